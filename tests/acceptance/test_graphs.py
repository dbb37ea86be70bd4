"""IDEMPOTENT_CHARGES: a worker is killed in the middle of a graph; what was reported is charged, each unit once."""

from sqlalchemy import select

from rota.billing import store as billing_store
from rota.db.tables import charge_receipts, logs
from rota.engine import billing_accounts, orgs
from rota.kinds.graphs.manager import GraphManager
from tests.acceptance.cluster import until
from tests.acceptance.conftest import MakeCluster

THREE = """
from rota.graphs import TextDelta, UsageReport

async def three(request, caller):
    for number in range(3):
        yield TextDelta(f"{number} ")
        yield UsageReport(f"unit-{number}", "tiny", 10, 20, "0.001")
        with open(os.environ["WITNESS"] + ".units", "a") as units:
            units.write(f"{request.run_id}/{request.attempt}/unit-{number} {os.getpid()}\\n")
        if request.attempt == 1:
            await asyncio.sleep(60)  # here its worker is killed

app.graph("three", three, provider="python")
"""


async def test_a_worker_killed_after_the_first_of_three_units_costs_nothing_twice(cluster: MakeCluster) -> None:
    async with cluster(THREE, lease_seconds=3) as live_cluster:
        units = live_cluster.witness.with_name("witness.units")
        both = await live_cluster.up(2)
        owner = await live_cluster.db.tx(orgs.system_user, live_cluster.org, live_cluster.clock.now())
        await GraphManager(live_cluster.engine, live_cluster.org).run("python:three", {}, None, owner)
        await until(lambda: units.exists() and units.read_text().endswith("\n"), 20, "the first unit is reported")
        pid = int(units.read_text().split()[1])
        next(process for process in both if process.pid == pid).kill()
        await live_cluster.idle()

        crashed, success = await live_cluster.runs()
        assert [(run.status, run.attempt) for run in (crashed, success)] == [("crashed", 1), ("success", 2)]
        assert success.outcome["content"] == "0 1 2 "
        pids = {int(line.split()[1]) for line in units.read_text().splitlines()}
        assert len(pids - {process.pid for process in both}) == 1  # the second time it had a process to itself
        said = await live_cluster.rows(select(logs).where(logs.c.run_id == success.id, logs.c.stream == "text"))
        assert "".join(line.text for line in said) == "0 1 2 "
        reported = [line.split()[0] for line in units.read_text().splitlines()]
        receipts = await live_cluster.rows(select(charge_receipts).order_by(charge_receipts.c.id))
        assert [receipt.source_reference for receipt in receipts] == reported
        assert len(reported) == len(set(reported)) == 4  # one of the run that died, three of the next
        account = await live_cluster.db.tx(
            billing_accounts.account_of, live_cluster.org, owner, live_cluster.clock.now()
        )
        assert account.balance_credits == -20_000 * len(reported)
        assert await live_cluster.db.read(billing_store.balance_of_ledger, account.id) == account.balance_credits
        assert success.usage["credits"] == 60_000
