"""PostgreSQL outages and lost answers to commits: no job is lost, none runs twice."""

import asyncio
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rota.db.tables import jobs as job_rows
from tests.acceptance.cluster import Cluster, until
from tests.acceptance.proxy import Proxy
from tests.postgres import StopMode, create_database, own_server

COMMAND = """
app.shell("command", "sleep 0.2")
"""


LONG_AT_FIRST = """
@app.task
async def waiting(ctx: RunContext, seconds: float):
    note(ctx, "begin")
    await asyncio.sleep(seconds if ctx.attempt == 1 else 0)
    note(ctx, "end")

@app.task
def blocking(ctx: RunContext, seconds: float):
    note(ctx, "begin")
    time.sleep(seconds if ctx.attempt == 1 else 0)
    note(ctx, "end")
"""

LEASE_LOST = "the lease could not be renewed in time"


@pytest.mark.parametrize("mode", [pytest.param("fast", marks=pytest.mark.long), "immediate"])
async def test_workers_come_back_by_themselves_when_postgresql_restarts(tmp_path: Path, mode: StopMode) -> None:
    with own_server() as server:
        async with Cluster(tmp_path, create_database(server.url), COMMAND, lease_seconds=15, concurrency=10) as cluster:
            processes = await cluster.up(3)
            ids = await fires_each_second(cluster, seconds=15, schedules=20)
            jobs = await cluster.enqueue("quick", 500)
            jobs += await cluster.enqueue("command", 150)  # their starts are written down first
            jobs += await cluster.enqueue("sleeper", 150, seconds=0.5)
            await cluster.wait_for_line("end", count=500)
            await asyncio.to_thread(server.restart, mode)
            await over(cluster, ids)

            ledger = await cluster.runs()
            assert Counter(run.status for run in ledger) == {"success": len(ledger)}
            assert Counter(run.job_id for run in ledger).most_common(1)[0][1] == 1
            assert set(jobs) <= {run.job_id for run in ledger}
            assert len(ledger) == len(jobs) + 15 * len(ids)
            assert all(process.alive for process in processes)
            assert [row.state for row in await cluster.workers()] == ["alive"] * 3
            report = await cluster.audit()
            assert report["ok"], report
            assert "Traceback" not in cluster.log_text()


@pytest.mark.long
async def test_an_outage_longer_than_the_lease_leaves_one_success_of_each_job(tmp_path: Path) -> None:
    """Some attempts end during the outage, some are stopped when the lease is lost, some cannot be stopped."""
    lease = 3
    with own_server() as server:
        async with Cluster(
            tmp_path, create_database(server.url), LONG_AT_FIRST, lease_seconds=lease, concurrency=20
        ) as cluster:
            processes = await cluster.up(2)
            ids = await fires_each_second(cluster, seconds=6, schedules=3)
            short = await cluster.enqueue("waiting", 10, seconds=1.2)
            long = await cluster.enqueue("waiting", 10, seconds=60)
            long += await cluster.enqueue("blocking", 4, seconds=8)

            async def recorded() -> bool:
                started = await cluster.jobs(job_rows.c.id.in_(long), job_rows.c.run_id.is_not(None))
                return len(started) == len(long)

            await until(recorded, 20, "the starts are recorded")
            stopped_at = time.monotonic()
            await asyncio.to_thread(server.stop, "fast")
            await until(
                lambda: all(LEASE_LOST in process.log_text() for process in processes),
                20,
                "both workers lose their lease",
            )
            await asyncio.sleep(max(0.0, stopped_at + lease + 1 - time.monotonic()))  # to others it is lost, too
            await asyncio.to_thread(server.start)
            await over(cluster, ids)

            attempts: dict[str, list[str]] = {}
            for run in sorted(await cluster.runs(), key=lambda run: (run.attempt, -run.lost_fence)):
                attempts.setdefault(run.job_id, []).append(run.status)
            assert {*short, *long} <= set(attempts)
            assert len(attempts) == len(short) + len(long) + 6 * len(ids)
            for job_id, statuses in attempts.items():
                *earlier, last = statuses
                assert last == "success", (job_id, statuses)
                assert set(earlier) <= {"lost", "crashed"}, (job_id, statuses)
            assert all(len(attempts[job_id]) > 1 for job_id in long)
            begun = Counter(line.job_id for line in cluster.witness_lines("begin"))
            assert begun == {job_id: len(statuses) for job_id, statuses in attempts.items()}
            assert all(process.alive for process in processes)
            audited = await cluster.audit()
            assert audited["ok"], audited
            assert "Traceback" not in cluster.log_text()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["claim", "finish", "fire"])
async def test_a_commit_whose_answer_is_lost_happens_once(tmp_path: Path, postgres_database: str, kind: str) -> None:
    async with Cluster(tmp_path, postgres_database, lease_seconds=10) as cluster, Proxy(postgres_database) as proxy:
        await cluster.up(2, url=proxy.url, concurrency=5)
        ids = await fires_each_second(cluster, seconds=12, schedules=10)
        jobs = await cluster.enqueue("quick", 300)
        proxy.arm(kind, times=4)
        jobs += await cluster.enqueue("sleeper", 100, seconds=0.2)
        await until(lambda: proxy.cuts == 4, 40, f"four answers to a {kind} are lost")
        await over(cluster, ids)

        ledger = await cluster.runs()
        assert Counter(run.status for run in ledger) == {"success": len(jobs) + 12 * len(ids)}
        assert Counter(run.job_id for run in ledger).most_common(1)[0][1] == 1
        for event in ("begin", "end"):
            assert Counter(line.run_id for line in cluster.witness_lines(event)) == Counter(run.id for run in ledger)
        assert [row.state for row in await cluster.workers()] == ["alive"] * 2
        report = await cluster.audit()
        assert report["ok"], report


async def fires_each_second(cluster: Cluster, seconds: int, schedules: int) -> list[str]:
    start = cluster.clock.now() + timedelta(seconds=1)
    span: dict[str, Any] = {
        "interval": 1,
        "anchor": start.isoformat(),
        "starts_at": start.isoformat(),
        "ends_at": (start + timedelta(seconds=seconds)).isoformat(),
    }
    return await cluster.schedule_all(
        [{"name": f"s{n}", "target": "quick", "overlap": "queue_all", **span} for n in range(schedules)]
    )


async def over(cluster: Cluster, ids: list[str]) -> None:
    async def finished() -> bool:
        rows = await cluster.schedules()
        return all(row.condition == "finished" for row in rows if row.id in ids) and not await cluster.jobs()

    await until(finished, 60, "all schedules are finished and the queue is empty", every=0.5)
