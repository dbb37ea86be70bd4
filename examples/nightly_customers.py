"""Nightly fan-out over 1,000 customers with a rate limit. Run it with: rota up examples/nightly_customers.py

rota task run nightly --wait                 # enqueues a job per customer, and a last one that reports
rota job list --status pending               # customers that wait for the rate; `rota why JOB` names the reserved start
rota queue set imports --max-running 20      # an operator may limit more
"""

from rota import GiveUp, RetryAfter, Rota

app = Rota()

CUSTOMERS = 1000
DELETED = {13}  # customers that the service no longer knows
imported: set[int] = set()  # in place of the service that is called
busy = {7}  # customers for which the service asks to come back later, once


@app.task(rate="300/1s", burst=50, max_running=4, max_running_key="region", queue="imports", retry={"max_retries": 3})
async def import_customer(number: int, region: str) -> None:
    """At most 300 a second, and four of a region at once, however many workers there are."""
    if number in DELETED:
        raise GiveUp(f"customer {number} was deleted")  # another attempt would not help
    if number in busy:
        busy.remove(number)
        raise RetryAfter(1)  # as the service's answer 429 says
    imported.add(number)


@app.task
async def report() -> dict[str, int]:
    """Runs once, when the jobs of all customers have ended, well or not."""
    return {"imported": len(imported)}


@app.task
async def nightly(customers: int = CUSTOMERS) -> dict[str, object]:
    """Enqueue all customers and the report in one transaction."""
    params = [{"number": number, "region": f"region {number % 20}"} for number in range(customers)]
    *jobs, last = await app.batch("nightly-import", import_customer, params, then=report)
    return {"jobs": len(jobs), "report": last}


app.schedule("nightly", nightly, cron="0 2 * * *", timezone="Europe/Oslo")
