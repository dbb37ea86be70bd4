"""Catch up once: three hours without a worker cost one run per schedule, however many processes start at once."""

import signal
from collections import Counter
from datetime import datetime, timedelta

import duckdb
import pytest
from sqlalchemy import select

from rota.db.tables import clocks, runs
from rota.kinds.pipelines.manager import PipelineManager
from tests.acceptance.cluster import Cluster, until
from tests.acceptance.conftest import MakeCluster

OTHER_TIME = """
import rota.core.clock
import rota.engine.workers
from datetime import datetime, timedelta
from rota.db import dialect

def step():
    return timedelta(minutes=int(os.environ["MINUTES"])) if "MINUTES" in os.environ else timedelta(0)

class Stepped(datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + step()

rota.core.clock.datetime = Stepped
real = dialect.database_now
rota.engine.workers.database_now = lambda tx: real(tx) + step()  # the clock that workers go by
"""
HOURLY = "0 * * * *"


async def make(cluster: Cluster, count: int) -> None:
    """A pipeline with an hourly schedule, `count` times; and one that comes after the first."""
    manager = PipelineManager(cluster.engine, cluster.org)
    for number in range(count):
        name = f"daily_totals{number}"
        sql = f"SELECT range AS id FROM range({number + 1})"
        await manager.create({"namespace": "sales", "layer": "silver", "name": name, "sql": sql})
    report = {"namespace": "sales", "layer": "gold", "name": "report"}
    await manager.create({**report, "sql": "SELECT count(*) AS rows FROM sales.silver.daily_totals0"})
    trigger = {"type": "pipeline_success", "upstream": "sales/silver/daily_totals0"}
    await manager.add_trigger("sales/gold/report", trigger)
    await cluster.schedule_all(
        [
            {"name": f"s{n}", "kind": "pipeline", "target": f"sales/silver/daily_totals{n}", "cron_expression": HOURLY}
            for n in range(count)
        ]
    )


def half_past(now: datetime) -> int:
    """Minutes from now to the middle of the hour: no slot comes while the test looks."""
    return 30 - now.minute


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("processes", [1, 3])
async def test_three_hours_of_downtime_cost_one_run_per_schedule(cluster: MakeCluster, processes: int) -> None:
    count = 20
    async with cluster(OTHER_TIME) as live_cluster:
        start = half_past(live_cluster.clock.now())
        (first,) = await live_cluster.up(1, MINUTES=start)
        await make(live_cluster, count)
        before = {row.schedule_id: row.next_slot for row in await live_cluster.rows(select(clocks))}
        first.signal(signal.SIGTERM)
        assert await first.ended(30) == 0
        assert await live_cluster.runs() == []

        await live_cluster.up(processes, MINUTES=start + 3 * 60)

        async def caught_up() -> bool:
            return (
                len(await live_cluster.runs(runs.c.status == "success")) == count + 1 and not await live_cluster.jobs()
            )

        await until(caught_up, 60, "each schedule ran, and what comes after the first")
        ledger = await live_cluster.runs()
        scheduled = [run for run in ledger if run.slot is not None]
        assert Counter(run.target for run in scheduled) == {f"sales/silver/daily_totals{n}": 1 for n in range(count)}
        assert {run.trigger for run in scheduled} == {f"schedule:{HOURLY}"}
        (slot,) = {run.slot for run in scheduled}
        for row in await live_cluster.rows(select(clocks)):
            assert slot == before[row.schedule_id] + timedelta(hours=2)  # the latest of the three that passed
            assert row.next_slot == slot + timedelta(hours=1)  # the first after now
        passed = [row for row in await live_cluster.slots() if row.verdict is not None]
        assert {(row.verdict, row.count, row.into_slot) for row in passed} == {("coalesced", 2, slot)}
        (after,) = [run for run in ledger if run.slot is None]
        assert (after.target, after.trigger) == ("sales/gold/report", "pipeline_success:sales/silver/daily_totals0")
        file = live_cluster.home / "data" / "warehouse" / live_cluster.org / "sales" / "gold" / "report.parquet"
        assert duckdb.execute(f"SELECT * FROM '{file}'").fetchall() == [(1,)]


@pytest.mark.timeout(180)
async def test_a_worker_killed_in_a_pipeline_leaves_the_table_complete_and_the_chain_continues(
    cluster: MakeCluster,
) -> None:
    slow = """
import duckdb

@app.pipeline("sales/bronze/slow")
def slow(con: duckdb.DuckDBPyConnection, ctx: RunContext):
    note(ctx, "begin")
    if ctx.attempt == 1:
        time.sleep(60)  # here its worker is killed
    return con.sql("SELECT 1 AS id")

app.pipeline("sales/gold/after", "SELECT * FROM sales.bronze.slow", after="sales/bronze/slow")
"""
    async with cluster(slow, lease_seconds=3) as live_cluster:
        both = await live_cluster.up(2)
        await PipelineManager(live_cluster.engine, live_cluster.org).run("sales/bronze/slow")
        (seen,) = await live_cluster.wait_for_line("begin")
        next(process for process in both if process.pid == seen.pid).kill()
        await live_cluster.wait_for_line("begin", 60, 2)

        async def over() -> bool:
            return [run.status for run in await live_cluster.runs()] == ["crashed", "success", "success"]

        await until(over, 60, "the second attempt, and what comes after it")
        ledger = await live_cluster.runs()
        assert [(run.target, run.attempt) for run in ledger] == [
            ("sales/bronze/slow", 1),
            ("sales/bronze/slow", 2),
            ("sales/gold/after", 1),
        ]
