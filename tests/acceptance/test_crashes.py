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
    async with cluster(lease_seconds=LEASE) as live_cluster:
        both = await live_cluster.up(2)
        (job,) = await live_cluster.enqueue("sleeper", seconds=4)
        (begun,) = await live_cluster.wait_for_line("begin", job_id=job)
        await until(lambda: marked(live_cluster, job), 5, "the start is written down")
        next(process for process in both if process.pid == begun.pid).kill()
        killed_at = live_cluster.clock.now()
        await live_cluster.idle()

        crashed, success = await live_cluster.runs()
        assert [(run.status, run.attempt) for run in (crashed, success)] == [("crashed", 1), ("success", 2)]
        assert (crashed.id, crashed.error["code"]) == (begun.run_id, "crash")
        assert success.retry_of == crashed.id
        assert success.fence > crashed.fence
        assert (success.started_at - killed_at).total_seconds() < LEASE + 5
        assert [ended.run_id for ended in live_cluster.witness_lines("end")] == [success.id]


async def test_the_late_result_of_a_frozen_worker_is_recorded_as_lost(cluster: MakeCluster) -> None:
    async with cluster(lease_seconds=LEASE, log_level="debug") as live_cluster:
        both = await live_cluster.up(2)
        # else it may be frozen in the middle of a transaction, and SQLite has one writer
        await until(
            lambda: all("statement warm-up done" in process.log_text() for process in both), 30, "statements are warm"
        )
        (job,) = await live_cluster.enqueue("sleeper", seconds=5)
        (begun,) = await live_cluster.wait_for_line("begin", job_id=job)
        await until(lambda: marked(live_cluster, job), 5, "the start is written down")
        (frozen,) = [process for process in both if process.pid == begun.pid]
        frozen.signal(signal.SIGSTOP)
        await live_cluster.wait_for_line("begin", seconds=LEASE + 15, job_id=job, attempt=2)
        await asyncio.sleep(5 - LEASE)  # the sleep of the frozen run is over: its result is the first thing it has
        frozen.signal(signal.SIGCONT)
        await until(lambda: recorded_lost(live_cluster), 30, "the late result is recorded")
        await live_cluster.idle()

        lost, success = await live_cluster.runs()
        assert [(run.status, run.attempt) for run in (lost, success)] == [("lost", 1), ("success", 2)]
        assert (lost.id, success.retry_of) == (begun.run_id, begun.run_id)
        assert (lost.worker, lost.reason) != (success.worker, None)
        assert frozen.alive
        await until(lambda: registered_twice(live_cluster, frozen.pid), 20, "it works on, as a new registration")
        (again,) = await live_cluster.enqueue("quick")
        await live_cluster.idle()
        assert len(await live_cluster.runs(runs.c.job_id == again)) == 1


POISON = """
@app.task
async def poison(ctx: RunContext):
    note(ctx, "begin")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_a_job_that_kills_its_worker_is_quarantined_and_harms_no_other_job(cluster: MakeCluster) -> None:
    async with cluster(POISON, lease_seconds=LEASE, concurrency=8) as live_cluster:
        workers = await live_cluster.up(2)

        async def supervise() -> None:
            while True:
                for process in [process for process in workers if not process.alive]:
                    workers.remove(process)
                    workers.extend(live_cluster.start(1))
                await asyncio.sleep(0.2)

        supervisor = asyncio.ensure_future(supervise())
        try:
            early = await live_cluster.enqueue("sleeper", 250, seconds=0.2)
            (bad,) = await live_cluster.enqueue("poison")
            sleepers = {*early, *await live_cluster.enqueue("sleeper", 249, seconds=0.2)}
            await live_cluster.idle(150)
        finally:
            supervisor.cancel()

        ledger = await live_cluster.runs()
        assert [run.job_id for run in ledger if run.reason == "quarantined"] == [bad]
        assert Counter(run.job_id for run in ledger if run.status == "success") == dict.fromkeys(sleepers, 1)
        assert {run.status for run in ledger} <= {"success", "crashed", "failed"}
        assert {run.job_id for run in ledger if run.status == "failed"} == {bad}
        begun = {seen.run_id for seen in live_cluster.witness_lines("begin")}
        # starts of suspects are recorded before they begin: one whose worker died in between is crashed all the same
        assert {run.id for run in ledger if run.status == "success"} <= begun
        # two workers at the most: then it kills only its child process, three times
        assert len([run for run in ledger if run.job_id == bad]) <= 5
        assert len(live_cluster.processes) <= 4


BLOCKER = f"""
@app.task
async def blocker(ctx: RunContext):
    note(ctx, "begin")
    time.sleep({3 * LEASE})
    note(ctx, "end")
"""


async def test_a_task_that_blocks_the_event_loop_keeps_its_lease(cluster: MakeCluster) -> None:
    async with cluster(BLOCKER, lease_seconds=LEASE) as live_cluster:
        await live_cluster.up(2)
        (job,) = await live_cluster.enqueue("blocker")
        await live_cluster.idle()
        assert [(run.status, run.attempt) for run in await live_cluster.runs()] == [("success", 1)]
        assert [row.state for row in await live_cluster.workers()] == ["alive", "alive"]
        assert len(live_cluster.witness_lines("begin", job_id=job)) == 1


async def marked(cluster: Cluster, job: str) -> bool:
    return any(row.started_at is not None for row in await cluster.jobs() if row.id == job)


async def recorded_lost(cluster: Cluster) -> bool:
    return bool(await cluster.runs(runs.c.status == "lost"))


async def registered_twice(cluster: Cluster, pid: int) -> bool:
    return len([row for row in await cluster.workers() if row.pid == pid]) == 2
