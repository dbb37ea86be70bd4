"""Leases that are lost: late results are recorded, innocent jobs are not charged, no job runs twice in a process."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from rota.core.errors import TransientError
from rota.core.ids import new_id
from rota.core.model import Attempt, NewJob
from rota.db.tables import runs
from rota.engine import claiming, finishing
from rota.engine import jobs as queue
from rota.engine.maintenance import Maintenance
from rota.engine.runner import ChildCrashed
from rota.engine.runs import read_logs
from rota.engine.worker import Worker
from rota.engine.worker.active_run import ActiveRuns
from rota.reports import jobs as job_reports
from rota.reports import slots as slot_reports
from rota.reports import why
from tests.engine.harness import HOUR, Harness, at, register


async def enqueue(harness: Harness, count: int = 1, **how: Any) -> list[str]:
    common = {"org_id": harness.org_id, "kind": "task", "target": "job", "payload": None, "trigger": "manual"}
    how = {**common, "run_at": harness.clock.now(), "route": "task", **how}
    return await harness.db.tx(queue.enqueue, [NewJob(**how) for _ in range(count)], harness.clock.now())


async def rescue(harness: Harness) -> int:
    """Other processes declare the workers of this one dead."""
    harness.clock.set(harness.clock.now() + HOUR)
    return await Maintenance(harness.engine).rescue_dead_workers()


async def new_registration(harness: Harness, active: ActiveRuns | None = None) -> Worker:
    """As a process does whose worker lost its lease; with other `active` runs, another process."""
    harness.worker = Worker(harness.engine, active=harness.worker.active if active is None else active)
    await register(harness.worker, harness.engine)
    harness.scheduler.worker = harness.worker
    return harness.worker


async def run_long(harness: Harness, count: int = 1, marked: bool = True, **how: Any) -> list[str]:
    """Jobs that run until they are released, their starts recorded or not yet."""
    harness.fake_runner.long = lambda job: True
    ids = await enqueue(harness, count, **how)
    await harness.work()
    if marked:
        await harness.worker.executor.record_starts(list(harness.worker.active.values()))
    return ids


def release(harness: Harness) -> None:
    for gate in harness.fake_runner.gates.values():
        gate.set()
    harness.fake_runner.gates.clear()
    harness.fake_runner.long = lambda job: False


async def attempts(harness: Harness, job_id: str) -> list[tuple[int, str, str | None]]:
    stmt = select(runs).where(runs.c.job_id == job_id).order_by(runs.c.attempt, runs.c.lost_fence.desc())
    return [(row.attempt, row.status, row.reason) for row in await harness.rows(stmt)]


@pytest.mark.parametrize("marked", [True, False])
async def test_a_late_result_is_recorded_as_lost_and_changes_no_job(harness: Harness, marked: bool) -> None:
    (job_id,) = await run_long(harness, marked=marked)
    old = harness.worker
    assert await rescue(harness) == 1
    before = await harness.queue()
    release(harness)
    await harness.wait_until_idle()
    await old.completer.flush()
    assert await harness.queue() == before
    assert await attempts(harness, job_id) == [(1, "lost", "success")]
    (lost,) = await harness.rows(select(runs))
    assert (lost.worker, lost.outcome, lost.fence) == (old.id, "done", before[0].fence)

    await new_registration(harness)
    await harness.work()
    number = 2 if marked else 1  # a start that was not recorded leaves its number to the next attempt
    assert await attempts(harness, job_id) == [(1, "lost", "success"), (number, "success", None)]
    shown = await harness.db.read(job_reports.job, harness.org_id, job_id)
    assert (shown["status"], len(shown["run_ids"])) == ("success", 2)
    explanation = await harness.db.read(why.of_run, harness.org_id, job_id, harness.clock.now())
    (sentence,) = [text for text in explanation["sentences"] if "(lost)" in text]
    assert f"on worker {old.id} and ended after" in sentence
    assert "as success, but its worker had lost the lease" in sentence


async def test_a_late_failure_keeps_its_error_and_log_and_is_not_retried(harness: Harness) -> None:
    (job_id,) = await run_long(harness)
    (attempt,) = harness.worker.active.values()
    attempt.ctx.log.line("log", "a line")
    await rescue(harness)
    harness.fake_runner.errors = [TransientError("net")]
    release(harness)
    await harness.wait_until_idle()
    await harness.worker.completer.flush()
    assert await attempts(harness, job_id) == [(1, "lost", "paused")]
    (lost,) = await harness.rows(select(runs))
    assert lost.error["message"] == "net"
    assert [line.text for line in await harness.db.read(read_logs, lost.id, 0, 10)] == ["a line"]
    assert [row.state for row in await harness.queue()] == ["ready"]


async def test_a_late_result_of_a_canceled_job_changes_nothing(harness: Harness) -> None:
    (job_id,) = await run_long(harness)
    await harness.db.tx(queue.request_cancel, [job_id], "ann", harness.clock.now())
    await rescue(harness)
    release(harness)
    await harness.wait_until_idle()
    await harness.worker.completer.flush()
    assert await attempts(harness, job_id) == [(1, "canceled", "ann")]


async def test_a_late_result_does_not_change_the_verdict_of_its_slot(harness: Harness) -> None:
    await harness.schedule(cron="10 * * * *")
    harness.fake_runner.long = lambda job: True
    await harness.run_until(at("9:10"))
    old = harness.worker
    await rescue(harness)
    harness.fake_runner.long = lambda job: False
    await new_registration(harness, active={})  # another process
    await harness.worker.prefetch.claim()
    await harness.worker.cancellation.until_idle(20)
    await harness.worker.completer.flush()
    (job_id,) = {row.job_id for row in await harness.rows(select(runs))}
    release(harness)
    await asyncio.gather(*(attempt.task for attempt in old.active.values() if attempt.task), return_exceptions=True)
    await old.completer.flush()
    assert await attempts(harness, job_id) == [(1, "lost", "success"), (1, "success", None)]
    slots, _ = await harness.db.read(lambda tx: slot_reports.list_slots(tx, harness.org_id, limit=10))
    assert [(row["verdict"], row["status"]) for row in slots if row["run_id"]] == [("ran", "success")]


async def test_attempts_stopped_for_a_lost_lease_hand_their_jobs_back_at_once(harness: Harness) -> None:
    """The process lives, and no other worker took its jobs: an outage that was longer than the lease."""
    ids = await run_long(harness, 3)
    waiting = await enqueue(harness)
    harness.worker.prefetch.waiting.extend(await harness.worker.prefetch.lanes.claim_from_lanes(1))
    old = harness.worker
    old.abandon()
    await old.close_out()
    states = {row.id: (row.state, row.attempt, row.tries, row.crashes, row.rescues) for row in await harness.queue()}
    assert states == {**dict.fromkeys(ids, ("ready", 1, 0, 0, 0)), waiting[0]: ("ready", 0, 0, 0, 0)}
    assert [await attempts(harness, job_id) for job_id in ids] == [[(1, "lost", None)]] * 3
    harness.fake_runner.long = lambda job: False
    await new_registration(harness)
    await harness.work()
    assert [(await attempts(harness, job_id))[-1] for job_id in ids] == [(2, "success", None)] * 3


async def test_a_result_whose_fence_holds_counts_although_the_lease_was_lost(harness: Harness) -> None:
    harness.fake_runner.stubborn = True
    (job_id,) = await run_long(harness)
    old = harness.worker
    old.abandon()
    closing = asyncio.ensure_future(old.close_out())
    await asyncio.sleep(0)
    release(harness)
    await asyncio.wait_for(closing, 20)
    assert await attempts(harness, job_id) == [(1, "success", None)]
    assert await harness.queue() == []


async def test_a_worker_that_was_declared_dead_runs_no_two_attempts_of_a_job(harness: Harness) -> None:
    harness.fake_runner.stubborn = True  # as a thread that cannot be interrupted
    (job_id,) = await run_long(harness)
    old = harness.worker
    await rescue(harness)
    await old.prefetch.claim()  # it does not know yet that it was declared dead
    assert old.registration.lost
    assert [job.id for job in harness.fake_runner.began] == [job_id]
    assert old.active[job_id].stopped_for == "lost"
    closing = asyncio.ensure_future(old.close_out())
    while old.completer.results:
        await old.completer.flush()
    (row,) = await harness.queue()
    assert (row.state, row.crashes) == ("retry", 1)  # it was alone; that is all it is charged with

    worker = await new_registration(harness)
    harness.clock.set(row.run_at)
    await harness.fire()
    await worker.prefetch.claim()
    assert not worker.registration.lost
    assert len(harness.fake_runner.began) == 1  # the earlier attempt still runs: the job waits on
    release(harness)
    await asyncio.wait_for(closing, 20)
    while worker.completer.results:
        await worker.completer.flush()
    harness.clock.set(harness.clock.now() + timedelta(seconds=2))
    await harness.run_due()
    assert await attempts(harness, job_id) == [(1, "lost", "success"), (2, "success", None)]


async def test_the_jobs_of_a_dead_worker_run_again_at_full_width_and_uncharged(harness: Harness) -> None:
    ids = await enqueue(harness, 20)
    dead = Worker(harness.engine)
    await register(dead, harness.engine)
    lanes = await harness.db.read(claiming.lanes)
    took = await harness.db.tx(claiming.claim, lanes, worker=dead.id, routes=["task"], room=20, turn=0)
    await harness.db.tx(finishing.mark_started, [Attempt(job, new_id(), 1, harness.clock.now()) for job in took])
    harness.clock.set(at("9:30"))
    await Maintenance(harness.engine, harness.worker.id).rescue_dead_workers()
    harness.fake_runner.long = lambda job: True
    await harness.work()
    assert len(harness.fake_runner.gates) == 20  # all at once, in this process
    assert not any(attempt.ctx.isolated for attempt in harness.worker.active.values())
    assert all(attempt.start_recorded for attempt in harness.worker.active.values())
    release(harness)
    await harness.work()
    assert [await attempts(harness, job_id) for job_id in ids] == [[(1, "crashed", None), (2, "success", None)]] * 20


async def test_suspects_run_apart_and_only_evidence_counts(harness: Harness) -> None:
    """Two deaths: isolated, few at once. Three deaths: one at a time, and the next death counts against that one."""
    await enqueue(harness, 6)
    for _ in range(2):
        await lose(harness, 6)
    harness.fake_runner.long = lambda job: True
    await harness.worker.prefetch.claim()
    await begun(harness, 4)
    assert len(harness.worker.active) == 6
    assert all(attempt.ctx.isolated for attempt in harness.worker.active.values())
    harness.worker.abandon()
    await harness.worker.close_out()
    assert {(row.state, row.crashes, row.rescues) for row in await harness.queue()} == {("ready", 0, 2)}

    await lose(harness, 6)
    await new_registration(harness)
    await harness.worker.prefetch.claim()
    await begun(harness, 1)
    (culprit,) = harness.fake_runner.gates
    await rescue(harness)
    assert {row.id: row.crashes for row in await harness.queue() if row.crashes} == {culprit: 1}


async def begun(harness: Harness, count: int) -> None:
    """Wait until so many attempts have begun; no more do."""
    async with asyncio.timeout(20):
        while len(harness.fake_runner.gates) < count:  # noqa: ASYNC110 (statements of the attempts are under way)
            await asyncio.sleep(0.01)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(harness.fake_runner.gates) == count


async def lose(harness: Harness, count: int) -> None:
    """A worker dies that has begun these jobs."""
    dead = Worker(harness.engine)
    await register(dead, harness.engine)
    lanes = await harness.db.read(claiming.lanes)
    took = await harness.db.tx(claiming.claim, lanes, worker=dead.id, routes=["task"], room=count, turn=0)
    assert len(took) == count
    await harness.db.tx(
        finishing.mark_started, [Attempt(job, new_id(), job.attempt + 1, harness.clock.now()) for job in took]
    )
    harness.clock.set(harness.clock.now() + HOUR)
    assert await Maintenance(harness.engine, harness.worker.id).rescue_dead_workers() == count


async def test_a_child_process_that_dies_is_evidence(harness: Harness) -> None:
    (job_id,) = await enqueue(harness)
    harness.fake_runner.errors = [ChildCrashed("it died")] * 3
    await harness.work()
    expected = [(1, "crashed", None), (2, "crashed", None), (3, "failed", "quarantined")]
    assert await attempts(harness, job_id) == expected
