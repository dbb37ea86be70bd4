"""A backup under load, restored elsewhere, of either kind: no row is lost, and jobs that ran are rescued. After a move
an installation continues on its new database."""

import asyncio
import signal
from datetime import datetime
from pathlib import Path

import pytest

from rota.core.errors import Conflict
from rota.db.backup import backup, restore
from rota.db.tables import jobs, runs
from rota.engine.move import move
from rota.engine.slot_audit import audit
from tests.acceptance.cluster import Cluster, until
from tests.acceptance.conftest import MakeCluster
from tests.db.copies import no_bar

APP = """
@app.task
async def slow(ctx: RunContext):
    note(ctx, "begin")
    if "SLOW" in os.environ:
        await asyncio.sleep(600)
    note(ctx, "end")
"""


@pytest.mark.long
async def test_a_backup_under_load_is_restored_without_losses(
    cluster: MakeCluster, empty_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "backup"
    async with cluster(APP, lease_seconds=2) as here:
        bodies = [{"name": f"s{n}", "target": "quick", "interval_seconds": 1, "overlap": "allow"} for n in range(20)]
        await here.schedule_all(bodies)
        (slow,) = await here.enqueue("slow")
        await here.up(2, SLOW="yes")
        await here.wait_for_line("begin", target="slow")
        await until(lambda: len(here.witness_lines("end")) > 100, 60, "runs end")

        async def started() -> bool:  # the start of a run is stored after 100 ms
            return bool(await here.jobs(jobs.c.id == slow, jobs.c.run_id.is_not(None)))

        await until(started, 20, "the start of the slow run is stored")
        loading = asyncio.create_task(load(here))
        await here.wait_for_line("end", count=len(here.witness_lines("end")) + 50)
        committed = {row.id for row in await here.runs()}
        manifest = await asyncio.to_thread(backup, here.url, file, no_bar)
        ended = len(here.witness_lines("end"))
        await until(lambda: len(here.witness_lines("end")) > ended + 50, 60, "runs end after the backup")
        loading.cancel()
        for process in here.processes:
            process.kill()
        source_runs = {row.id: tuple(row) for row in await here.runs()}

    await asyncio.to_thread(restore, file, empty_url, no_bar)
    (tmp_path / "other").mkdir(exist_ok=True)
    async with Cluster(tmp_path / "other", empty_url, APP, lease_seconds=2) as there:
        restored = {row.id: tuple(row) for row in await there.runs()}
        assert len(committed) > 100
        assert committed <= restored.keys() < source_runs.keys()
        assert {key: row for key, row in source_runs.items() if key in restored} == restored
        at = datetime.fromisoformat(manifest["created_at"])
        report = await audit(there.db, there.org, None, None, at)
        assert (report["problems"], report["schedules"]) == ([], 20)
        assert report["slots"] > 40

        (running,) = await there.jobs(jobs.c.id == slow)
        assert running.state == "running"  # as after a crash of its worker
        await there.up()
        await there.wait_for_line("end", target="slow", seconds=60)

        async def recorded() -> bool:
            return len(await there.runs(runs.c.job_id == slow)) == 2

        await until(recorded, 30, "the run is recorded")
        attempts = await there.runs(runs.c.job_id == slow)
        assert [(run.attempt, run.status) for run in attempts] == [(1, "crashed"), (2, "success")]
        assert attempts[0].id == running.run_id
        assert (await there.audit())["problems"] == []


@pytest.mark.long
async def test_an_installation_continues_on_another_database(
    cluster: MakeCluster, empty_url: str, tmp_path: Path
) -> None:
    async with cluster(APP, lease_seconds=2) as here:
        await here.schedule_all([{"name": f"s{n}", "target": "quick", "interval_seconds": 1} for n in range(10)])
        (worker,) = await here.up()
        await here.wait_for_line("end", count=30)
        with pytest.raises(Conflict, match=f"in use by worker .* .process {worker.pid} on "):
            await asyncio.to_thread(move, here.url, empty_url, no_bar)
        worker.signal(signal.SIGTERM)
        assert await worker.ended(60) == 0
    moved = await asyncio.to_thread(move, here.url, empty_url, no_bar)
    assert moved.problems == []
    assert moved.slots >= 30
    (tmp_path / "other").mkdir(exist_ok=True)
    async with Cluster(tmp_path / "other", empty_url, APP, lease_seconds=2) as there:
        there.witness = here.witness
        await there.up()
        await there.wait_for_line("end", count=len(here.witness_lines("end")) + 30)
        report = await there.audit()
        assert (report["problems"], report["schedules"]) == ([], 10)
        slots = [(line.job_id, line.slot) for line in there.witness_lines("begin")]
        assert len(slots) == len(set(slots))


async def load(here: Cluster) -> None:
    while True:
        await here.enqueue("quick", 50)
        await asyncio.sleep(0.1)
