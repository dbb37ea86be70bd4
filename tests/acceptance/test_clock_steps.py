"""Somebody sets a clock by an hour while everything runs: no lease ends early, no slot fires twice."""

import asyncio
from collections import Counter
from pathlib import Path

from tests.acceptance.cluster import Cluster, until

LEASE = 4

OWN_CLOCK = """
import rota.core.clock
from datetime import datetime, timedelta

def step():
    try:
        return timedelta(hours=int(open(os.environ["CLOCK"]).read()))
    except (FileNotFoundError, KeyError, ValueError):
        return timedelta(0)

class Stepped(datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + step()

rota.core.clock.datetime = Stepped
"""

MACHINE_CLOCK = (
    OWN_CLOCK
    + """
import rota.engine.workers
from rota.db import dialect

real = dialect.database_now
rota.engine.workers.database_now = lambda tx: real(tx) + step()  # SQLite asks the machine
"""
)


async def test_a_worker_whose_clock_is_set_keeps_to_the_time_of_postgresql(
    tmp_path: Path, postgres_database: str
) -> None:
    async with Cluster(tmp_path, postgres_database, OWN_CLOCK, lease_seconds=LEASE) as cluster:
        await cluster.up(2)
        await cluster.up(1, CLOCK=tmp_path / "clock")
        await steps_cost_nothing(cluster)
        report = await cluster.audit()
        assert report["ok"], report


async def test_setting_the_clock_of_the_machine_that_sqlite_asks_costs_no_lease(
    tmp_path: Path, sqlite_database: str
) -> None:
    async with Cluster(tmp_path, sqlite_database, MACHINE_CLOCK, lease_seconds=LEASE) as cluster:
        await cluster.up(3, CLOCK=tmp_path / "clock")
        await steps_cost_nothing(cluster)
        assert "the clock jumped" in cluster.log_text()


async def steps_cost_nothing(cluster: Cluster) -> None:
    """Steps forward and back while long jobs run and schedules fire."""
    await cluster.schedule_all(
        [{"name": f"s{n}", "target": "quick", "interval": 1, "overlap": "queue_all"} for n in range(5)]
    )
    long = await cluster.enqueue("sleeper", 9, seconds=6 * LEASE)
    await cluster.wait_for_line("begin", count=9, target="sleeper")
    await cluster.wait_for_line("end", count=10, target="quick")
    for hours in (1, 0, 2, 0):  # set ahead, back again, and once more
        (cluster.home / "clock").write_text(str(hours))
        await asyncio.sleep(1.2 * LEASE)  # time for every process to notice, and to expire leases if it were allowed
    await until(lambda: len(cluster.witness_lines("end", target="sleeper")) == len(long), 60, "the long runs end")

    async def written() -> bool:
        return not [row for row in await cluster.jobs() if row.target == "sleeper"]

    await until(written, 20, "their results are written")
    ledger = await cluster.runs()
    assert Counter(run.status for run in ledger) == {"success": len(ledger)}
    assert Counter(run.job_id for run in ledger).most_common(1)[0][1] == 1
    fired = Counter((run.schedule_id, run.slot) for run in ledger if run.slot is not None)
    assert fired.most_common(1)[0][1] == 1
    assert Counter(line.run_id for line in cluster.witness_lines("begin")).most_common(1)[0][1] == 1
    assert [row.state for row in await cluster.workers()] == ["alive"] * 3
