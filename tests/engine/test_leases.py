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
from rota.engine import jobs as queue
from rota.engine import reports as engine_reports
from rota.engine import why
from rota.engine.maintenance import Maintenance
from rota.engine.runner import ChildCrashed
from rota.engine.runs import read_logs
from rota.engine.worker import Worker
from rota.engine.worker.active_run import ActiveRuns
from tests.engine.harness import HOUR, House, at, register


async def enqueue(house: House, count: int = 1, **how: Any) -> list[str]:
    common = {"org_id": house.org_id, "kind": "task", "target": "job", "payload": None, "trigger": "manual"}
    how = {**common, "run_at": house.clock.now(), "route": "task", **how}
    return await house.db.tx(queue.enqueue, [NewJob(**how) for _ in range(count)], house.clock.now())


async def rescue(house: House) -> int:
    """Other processes declare the workers of this one dead."""
    house.clock.set(house.clock.now() + HOUR)
    return await Maintenance(house.engine).rescue()


async def new_registration(house: House, active: ActiveRuns | None = None) -> Worker:
    """As a process does whose worker lost its lease; with other `active` runs, another process."""
    house.worker = Worker(house.engine, active=house.worker.active if active is None else active)
    await register(house.worker, house.engine)
    house.scheduler.worker = house.worker
    return house.worker


async def run_long(house: House, count: int = 1, marked: bool = True, **how: Any) -> list[str]:
    """Jobs that run until they are released, their starts recorded or not yet."""
    house.hands.long = lambda job: True
    ids = await enqueue(house, count, **how)
    await house.work()
    if marked:
        await house.worker.executor.record_starts(list(house.worker.active.values()))
    return ids


def release(house: House) -> None:
    for gate in house.hands.gates.values():
        gate.set()
    house.hands.gates.clear()
    house.hands.long = lambda job: False


async def attempts(house: House, job_id: str) -> list[tuple[int, str, str | None]]:
    stmt = select(runs).where(runs.c.job_id == job_id).order_by(runs.c.attempt, runs.c.lost_fence.desc())
    return [(row.attempt, row.status, row.reason) for row in await house.rows(stmt)]


@pytest.mark.parametrize("marked", [True, False])
async def test_a_late_result_is_recorded_as_lost_and_changes_no_job(house: House, marked: bool) -> None:
    (job_id,) = await run_long(house, marked=marked)
    old = house.worker
    assert await rescue(house) == 1
    before = await house.queue()
    release(house)
    await house.still()
    await old.completer.flush()
    assert await house.queue() == before
    assert await attempts(house, job_id) == [(1, "lost", "success")]
    (lost,) = await house.rows(select(runs))
    assert (lost.worker, lost.outcome, lost.fence) == (old.id, "done", before[0].fence)

    await new_registration(house)
    await house.work()
    number = 2 if marked else 1  # a start that was not recorded leaves its number to the next attempt
    assert await attempts(house, job_id) == [(1, "lost", "success"), (number, "success", None)]
    shown = await house.db.read(engine_reports.job, house.org_id, job_id)
    assert (shown["status"], len(shown["run_ids"])) == ("success", 2)
    told = await house.db.read(why.of_run, house.org_id, job_id, house.clock.now())
    (sentence,) = [text for text in told["sentences"] if "(lost)" in text]
    assert f"on worker {old.id} and ended after" in sentence
    assert "as success, but its worker had lost the lease" in sentence


async def test_a_late_failure_keeps_its_error_and_log_and_is_not_retried(house: House) -> None:
    (job_id,) = await run_long(house)
    (attempt,) = house.worker.active.values()
    attempt.ctx.log.line("log", "a line")
    await rescue(house)
    house.hands.errors = [TransientError("net")]
    release(house)
    await house.still()
    await house.worker.completer.flush()
    assert await attempts(house, job_id) == [(1, "lost", "paused")]
    (lost,) = await house.rows(select(runs))
    assert lost.error["message"] == "net"
    assert [line.text for line in await house.db.read(read_logs, lost.id, 0, 10)] == ["a line"]
    assert [row.state for row in await house.queue()] == ["ready"]


async def test_a_late_result_of_a_canceled_job_changes_nothing(house: House) -> None:
    (job_id,) = await run_long(house)
    await house.db.tx(queue.request_cancel, [job_id], "ann", house.clock.now())
    await rescue(house)
    release(house)
    await house.still()
    await house.worker.completer.flush()
    assert await attempts(house, job_id) == [(1, "canceled", "ann")]


async def test_a_late_result_does_not_change_the_verdict_of_its_slot(house: House) -> None:
    await house.schedule(cron="10 * * * *")
    house.hands.long = lambda job: True
    await house.live(at("9:10"))
    old = house.worker
    await rescue(house)
    house.hands.long = lambda job: False
    await new_registration(house, active={})  # another process
    await house.worker.prefetch.claim()
    await house.worker.cancellation.until_idle(20)
    await house.worker.completer.flush()
    (job_id,) = {row.job_id for row in await house.rows(select(runs))}
    release(house)
    await asyncio.gather(*(attempt.task for attempt in old.active.values() if attempt.task), return_exceptions=True)
    await old.completer.flush()
    assert await attempts(house, job_id) == [(1, "lost", "success"), (1, "success", None)]
    found, _ = await house.db.read(lambda tx: engine_reports.list_slots(tx, house.org_id, limit=10))
    assert [(row["verdict"], row["status"]) for row in found if row["run_id"]] == [("ran", "success")]


async def test_attempts_stopped_for_a_lost_lease_hand_their_jobs_back_at_once(house: House) -> None:
    """The process lives, and no other worker took its jobs: an outage that was longer than the lease."""
    ids = await run_long(house, 3)
    waiting = await enqueue(house)
    house.worker.prefetch.waiting.extend(await house.worker.prefetch.lanes.claim_from_lanes(1))
    old = house.worker
    old.abandon()
    await old.close_out()
    states = {row.id: (row.state, row.attempt, row.tries, row.crashes, row.rescues) for row in await house.queue()}
    assert states == {**dict.fromkeys(ids, ("ready", 1, 0, 0, 0)), waiting[0]: ("ready", 0, 0, 0, 0)}
    assert [await attempts(house, job_id) for job_id in ids] == [[(1, "lost", None)]] * 3
    house.hands.long = lambda job: False
    await new_registration(house)
    await house.work()
    assert [(await attempts(house, job_id))[-1] for job_id in ids] == [(2, "success", None)] * 3


async def test_a_result_whose_fence_holds_counts_although_the_lease_was_lost(house: House) -> None:
    house.hands.stubborn = True
    (job_id,) = await run_long(house)
    old = house.worker
    old.abandon()
    closing = asyncio.ensure_future(old.close_out())
    await asyncio.sleep(0)
    release(house)
    await asyncio.wait_for(closing, 20)
    assert await attempts(house, job_id) == [(1, "success", None)]
    assert await house.queue() == []


async def test_a_worker_that_was_declared_dead_runs_no_two_attempts_of_a_job(house: House) -> None:
    house.hands.stubborn = True  # as a thread that cannot be interrupted
    (job_id,) = await run_long(house)
    old = house.worker
    await rescue(house)
    await old.prefetch.claim()  # it does not know yet that it was declared dead
    assert old.registration.lost
    assert [job.id for job in house.hands.began] == [job_id]
    assert old.active[job_id].stopped_for == "lost"
    closing = asyncio.ensure_future(old.close_out())
    while old.completer.results:
        await old.completer.flush()
    (row,) = await house.queue()
    assert (row.state, row.crashes) == ("retry", 1)  # it was alone; that is all it is charged with

    worker = await new_registration(house)
    house.clock.set(row.run_at)
    await house.fire()
    await worker.prefetch.claim()
    assert not worker.registration.lost
    assert len(house.hands.began) == 1  # the earlier attempt still runs: the job waits on
    release(house)
    await asyncio.wait_for(closing, 20)
    while worker.completer.results:
        await worker.completer.flush()
    house.clock.set(house.clock.now() + timedelta(seconds=2))
    await house.act()
    assert await attempts(house, job_id) == [(1, "lost", "success"), (2, "success", None)]


async def test_the_jobs_of_a_dead_worker_run_again_at_full_width_and_uncharged(house: House) -> None:
    ids = await enqueue(house, 20)
    dead = Worker(house.engine)
    await register(dead, house.engine)
    found = await house.db.read(queue.lanes)
    took = await house.db.tx(queue.claim, found, worker=dead.id, routes=["task"], room=20, turn=0)
    await house.db.tx(queue.mark_started, [Attempt(job, new_id(), 1, house.clock.now()) for job in took])
    house.clock.set(at("9:30"))
    await Maintenance(house.engine, house.worker.id).rescue()
    house.hands.long = lambda job: True
    await house.work()
    assert len(house.hands.gates) == 20  # all at once, in this process
    assert not any(attempt.ctx.isolated for attempt in house.worker.active.values())
    assert all(attempt.start_recorded for attempt in house.worker.active.values())
    release(house)
    await house.work()
    assert [await attempts(house, job_id) for job_id in ids] == [[(1, "crashed", None), (2, "success", None)]] * 20


async def test_suspects_run_apart_and_only_evidence_counts(house: House) -> None:
    """Two deaths: isolated, few at once. Three deaths: one at a time, and the next death counts against that one."""
    await enqueue(house, 6)
    for _ in range(2):
        await lose(house, 6)
    house.hands.long = lambda job: True
    await house.worker.prefetch.claim()
    await begun(house, 4)
    assert len(house.worker.active) == 6
    assert all(attempt.ctx.isolated for attempt in house.worker.active.values())
    house.worker.abandon()
    await house.worker.close_out()
    assert {(row.state, row.crashes, row.rescues) for row in await house.queue()} == {("ready", 0, 2)}

    await lose(house, 6)
    await new_registration(house)
    await house.worker.prefetch.claim()
    await begun(house, 1)
    (culprit,) = house.hands.gates
    await rescue(house)
    assert {row.id: row.crashes for row in await house.queue() if row.crashes} == {culprit: 1}


async def begun(house: House, count: int) -> None:
    """Wait until so many attempts have begun; no more do."""
    async with asyncio.timeout(20):
        while len(house.hands.gates) < count:  # noqa: ASYNC110 (statements of the attempts are under way)
            await asyncio.sleep(0.01)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(house.hands.gates) == count


async def lose(house: House, count: int) -> None:
    """A worker dies that has begun these jobs."""
    dead = Worker(house.engine)
    await register(dead, house.engine)
    found = await house.db.read(queue.lanes)
    took = await house.db.tx(queue.claim, found, worker=dead.id, routes=["task"], room=count, turn=0)
    assert len(took) == count
    await house.db.tx(queue.mark_started, [Attempt(job, new_id(), job.attempt + 1, house.clock.now()) for job in took])
    house.clock.set(house.clock.now() + HOUR)
    assert await Maintenance(house.engine, house.worker.id).rescue() == count


async def test_a_child_process_that_dies_is_evidence(house: House) -> None:
    (job_id,) = await enqueue(house)
    house.hands.errors = [ChildCrashed("it died")] * 3
    await house.work()
    expected = [(1, "crashed", None), (2, "crashed", None), (3, "failed", "quarantined")]
    assert await attempts(house, job_id) == expected
