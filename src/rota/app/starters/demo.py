"""The program of `rota demo`. Change it and run `rota demo` again: this file is kept, and so is the data."""

from typing import Any

from rota import Prepare, Rota, RunContext, TransientError, Workflow, every

app = Rota()


# 1. A Python function, every five seconds. It is given what it asks for by type.


@app.task
async def heartbeat(ctx: RunContext) -> dict[str, str]:
    """Report the slot that this run is for."""
    print(f"alive, for the slot of {ctx.slot}")
    return {"slot": str(ctx.slot)}


app.schedule("heartbeat", "heartbeat", every="5s")


# 2. A function whose first attempt fails: it is retried after two seconds.


@app.task(retry={"max_retries": 2, "backoff_ms": 2000})
async def flaky(ctx: RunContext) -> str:
    """Fail at the first attempt, as a service does that is restarting."""
    if ctx.attempt == 1:
        raise TransientError("the service is restarting")
    return f"worked at attempt {ctx.attempt}"


app.schedule("flaky", "flaky", every="20s")


# 3. Shell commands, by cron expression. The second runs for half of its interval: kill the demo while it runs.

app.shell("disk", "df -h /")
app.shell("slow", "sleep 5")

app.schedule("disk-every-minute", "disk", cron="* * * * *")
app.schedule("disk-at-night", "disk", cron="0 2 * * *", timezone="Europe/Oslo")
app.schedule("slow", "slow", every="10s")


# 4. A workflow: a producer publishes an event every 15 seconds, a consumer handles the events that wait.

orders = app.workflow(Workflow("orders", topics=["orders"], description="An order every 15 seconds"))


@orders.producer(schedule=every("15s"), publishes=["orders"])
async def shop(ctx: Any, state: Any) -> int:
    """Publish the next order; the number is kept as the state of the producer."""
    number = (state or 1000) + 1
    await ctx.publish("orders", message_id=str(number), payload={"total": number % 90})
    return number


@orders.consumer(subscribe=["orders"])
class Ship:
    async def prepare(self, ctx: Any, state: Any) -> Prepare:
        waiting = await ctx.peek("orders")
        shipped = [event.id for event in waiting]
        return Prepare(reservations={"orders": shipped}, title=f"{len(shipped)} orders" if shipped else None)
