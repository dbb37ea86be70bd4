"""AT_LEAST_ONCE and NO_MOVE_WITHOUT_THE_LEASE: workers that are killed, frozen or taken down by their work."""

import asyncio
import signal
from collections import Counter

import pytest

from rota.db.tables import runs
from tests.acceptance.cluster import Cluster, until
from tests.acceptance.conftest import MakeCluster

LEASE = 3


async def test_the_run_of_a_killed_worker_is_crashed_and_tried_again_by_another(cluster: MakeCluster) -> None:
    async with cluster(lease_seconds=LEASE) as one:
        both = await one.up(2)
        (job,) = await one.enqueue("sleeper", seconds=4)
        (begun,) = await one.wait_for_line("begin", job_id=job)
        await until(lambda: marked(one, job), 5, "the start is written down")
        next(process for process in both if process.pid == begun.pid).kill()
        killed_at = one.clock.now()
        await one.idle()

        crashed, success = await one.runs()
        assert [(run.status, run.attempt) for run in (crashed, success)] == [("crashed", 1), ("success", 2)]
        assert (crashed.id, crashed.error["code"]) == (begun.run_id, "crash")
        assert success.retry_of == crashed.id
        assert success.fence > crashed.fence
        assert (success.started_at - killed_at).total_seconds() < LEASE + 5
        assert [ended.run_id for ended in one.witness_lines("end")] == [success.id]


async def test_the_late_result_of_a_frozen_worker_is_recorded_as_lost(cluster: MakeCluster) -> None:
    async with cluster(lease_seconds=LEASE, log_level="debug") as one:
        both = await one.up(2)
        # else it may be frozen in the middle of a transaction, and SQLite has one writer
        await until(
            lambda: all("statement warm-up done" in process.log_text() for process in both), 30, "statements are warm"
        )
        (job,) = await one.enqueue("sleeper", seconds=5)
        (begun,) = await one.wait_for_line("begin", job_id=job)
        await until(lambda: marked(one, job), 5, "the start is written down")
        (frozen,) = [process for process in both if process.pid == begun.pid]
        frozen.signal(signal.SIGSTOP)
        await one.wait_for_line("begin", seconds=LEASE + 15, job_id=job, attempt=2)
        await asyncio.sleep(5 - LEASE)  # the sleep of the frozen run is over: its result is the first thing it has
        frozen.signal(signal.SIGCONT)
        await until(lambda: recorded_lost(one), 30, "the late result is recorded")
        await one.idle()

        lost, success = await one.runs()
        assert [(run.status, run.attempt) for run in (lost, success)] == [("lost", 1), ("success", 2)]
        assert (lost.id, success.retry_of) == (begun.run_id, begun.run_id)
        assert (lost.worker, lost.reason) != (success.worker, None)
        assert frozen.alive
        await until(lambda: registered_twice(one, frozen.pid), 20, "it works on, as a new registration")
        (again,) = await one.enqueue("quick")
        await one.idle()
        assert len(await one.runs(runs.c.job_id == again)) == 1


POISON = """
@app.task
async def poison(ctx: RunContext):
    note(ctx, "begin")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_a_job_that_kills_its_worker_is_quarantined_and_hurts_nobody_else(cluster: MakeCluster) -> None:
    async with cluster(POISON, lease_seconds=LEASE, concurrency=8) as one:
        workers = await one.up(2)

        async def supervise() -> None:
            while True:
                for process in [process for process in workers if not process.alive]:
                    workers.remove(process)
                    workers.extend(one.start(1))
                await asyncio.sleep(0.2)

        supervisor = asyncio.ensure_future(supervise())
        try:
            early = await one.enqueue("sleeper", 250, seconds=0.2)
            (bad,) = await one.enqueue("poison")
            sleepers = {*early, *await one.enqueue("sleeper", 249, seconds=0.2)}
            await one.idle(150)
        finally:
            supervisor.cancel()

        ledger = await one.runs()
        assert [run.job_id for run in ledger if run.reason == "quarantined"] == [bad]
        assert Counter(run.job_id for run in ledger if run.status == "success") == dict.fromkeys(sleepers, 1)
        assert {run.status for run in ledger} <= {"success", "crashed", "failed"}
        assert {run.job_id for run in ledger if run.status == "failed"} == {bad}
        begun = {seen.run_id for seen in one.witness_lines("begin")}
        # starts of suspects are recorded before they begin: one whose worker died in between is crashed all the same
        assert {run.id for run in ledger if run.status == "success"} <= begun
        # two workers at the most: then it kills only its child process, three times
        assert len([run for run in ledger if run.job_id == bad]) <= 5
        assert len(one.processes) <= 4


BLOCKER = f"""
@app.task
async def blocker(ctx: RunContext):
    note(ctx, "begin")
    time.sleep({3 * LEASE})
    note(ctx, "end")
"""


async def test_a_task_that_blocks_the_event_loop_keeps_its_lease(cluster: MakeCluster) -> None:
    async with cluster(BLOCKER, lease_seconds=LEASE) as one:
        await one.up(2)
        (job,) = await one.enqueue("blocker")
        await one.idle()
        assert [(run.status, run.attempt) for run in await one.runs()] == [("success", 1)]
        assert [row.state for row in await one.workers()] == ["alive", "alive"]
        assert len(one.witness_lines("begin", job_id=job)) == 1


async def marked(one: Cluster, job: str) -> bool:
    return any(row.started_at is not None for row in await one.jobs() if row.id == job)


async def recorded_lost(one: Cluster) -> bool:
    return bool(await one.runs(runs.c.status == "lost"))


async def registered_twice(one: Cluster, pid: int) -> bool:
    return len([row for row in await one.workers() if row.pid == pid]) == 2
