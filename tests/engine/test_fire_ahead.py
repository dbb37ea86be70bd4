"""Fire ahead: a process fires slots before their due time and leases the jobs to its own worker at once."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from rota.core.errors import Unavailable
from rota.db.statement import insert_rows
from rota.db.tables import queues, runs
from rota.engine import firing, scheduler
from rota.engine.engine_settings import EngineSettings
from rota.engine.scheduler import POLL_LEAD
from rota.engine.worker.claim_gate import ClaimGate
from rota.engine.worker.prefetch import EARLY_FIRE
from tests.engine.harness import Harness, at


async def state_of_the_fired(harness: Harness) -> str:
    harness.clock.set(at("9:10"))
    await harness.fire()
    (job,) = await harness.queue()
    return str(job.state)


async def test_a_fired_job_is_running_when_it_is_made(harness: Harness) -> None:
    await harness.schedule()
    assert await state_of_the_fired(harness) == "running"
    (job,) = await harness.queue()
    assert job.lease_owner == harness.worker.id
    assert job.fence > 0
    await harness.work()
    assert await harness.verdicts() == ["9:10 ran"]


async def full(harness: Harness) -> None:
    harness.engine.settings = EngineSettings(concurrency=0)


async def limited_org(harness: Harness) -> None:
    await harness.limit_org(max_running=1)


async def paused_queue(harness: Harness) -> None:
    row = {"org_id": harness.org_id, "name": "default", "paused_at": harness.clock.now(), "max_running": None}
    await harness.db.tx(insert_rows, queues, [row])


async def other_queues(harness: Harness) -> None:
    harness.worker.registration.queues = ["elsewhere"]


async def unregistered(harness: Harness) -> None:
    harness.worker.registration.registered = False


async def draining(harness: Harness) -> None:
    harness.worker.registration.draining = True


@pytest.mark.parametrize("hindrance", [full, limited_org, paused_queue, other_queues, unregistered, draining])
async def test_it_waits_for_a_claim_where_it_may_not_start(
    harness: Harness, hindrance: Callable[[Harness], Any]
) -> None:
    await harness.schedule()
    await hindrance(harness)
    assert await state_of_the_fired(harness) == "ready"


async def test_a_job_behind_one_that_runs_is_not_taken(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: True
    await harness.schedule()
    await harness.run_until(at("9:10"))
    await harness.run_until(at("9:20"))
    assert sorted(job.state for job in await harness.queue()) == ["blocked", "running"]
    await harness.release()
    assert await harness.verdicts() == ["9:10 ran", "9:20 (running)"]


async def test_what_was_fired_into_a_lost_answer_is_handed_back(harness: Harness, monkeypatch: Any) -> None:
    await harness.schedule()
    harness.clock.set(at("9:10"))
    real = harness.db.tx

    async def deaf(step: Any, *args: Any, **kwargs: Any) -> Any:
        result = await real(step, *args, **kwargs)
        if step is firing.fire:
            monkeypatch.setattr(harness.db, "tx", real)
            raise Unavailable("the answer is lost")
        return result

    monkeypatch.setattr(harness.db, "tx", deaf)
    with pytest.raises(Unavailable):
        await harness.scheduler.step()
    (job,) = await harness.queue()
    assert (job.state, job.lease_owner, job.run_id) == ("ready", None, None)
    await harness.run_until(at("9:10") + timedelta(seconds=1))
    assert await harness.verdicts() == ["9:10 ran"]


# bursts


async def test_what_is_fired_may_wait_with_a_worker_that_has_all_there_was(harness: Harness) -> None:
    harness.engine.settings = EngineSettings(concurrency=1)
    harness.fake_runner.long = lambda job: len(harness.fake_runner.began) == 1
    harness.worker.prefetch.size = 2
    for name in "abcde":
        await harness.schedule(name)
    await harness.worker.prefetch.claim()
    harness.clock.set(at("9:10"))
    await harness.scheduler.step()
    assert sorted(job.state for job in await harness.queue()) == ["ready"] * 2 + ["running"] * 3
    assert (len(harness.worker.active), len(harness.worker.prefetch.waiting)) == (1, 2)
    await harness.release()
    assert [await harness.verdicts(name) for name in "abcde"] == [["9:10 ran"]] * 5


async def test_a_fire_waits_for_a_line_that_moves(harness: Harness, monkeypatch: Any) -> None:
    monkeypatch.setattr(scheduler, "WORKER_BATCH_ROWS", 1)
    monkeypatch.setattr("rota.engine.worker.prefetch.CAPACITY_WAIT_SECONDS", 60)
    harness.engine.settings = EngineSettings(concurrency=1)
    harness.fake_runner.long = lambda job: True
    for name in "ab":
        await harness.schedule(name)
    await harness.worker.prefetch.claim()
    harness.clock.set(at("9:10"))
    left = await harness.scheduler.fire_due(await harness.scheduler.poll())
    assert left is not None
    firing = asyncio.ensure_future(harness.scheduler.fire_due(left))
    await harness.wait_until_idle()
    assert [job.state for job in await harness.queue()] == ["running"]
    harness.fake_runner.long = lambda job: False
    for gate in harness.fake_runner.gates.values():
        gate.set()
    await firing
    assert {job.state for job in await harness.queue()} == {"running"}  # the second was not left to a claim
    await harness.work()
    assert [await harness.verdicts(name) for name in "ab"] == [["9:10 ran"]] * 2


async def test_a_line_that_does_not_move_is_not_waited_for_long(harness: Harness) -> None:
    harness.engine.settings = EngineSettings(concurrency=1)
    harness.fake_runner.long = lambda job: True
    for name in "ab":
        await harness.schedule(name)
    await harness.worker.prefetch.claim()
    harness.clock.set(at("9:10"))
    await harness.fire()
    assert sorted(job.state for job in await harness.queue()) == ["ready", "running"]
    harness.fake_runner.long = lambda job: False
    await harness.release()


async def test_the_end_of_a_run_wakes_claims_only_if_another_waits_behind_it(harness: Harness) -> None:
    await harness.schedule(overlap="queue_one")
    harness.fake_runner.long = lambda job: True
    await harness.run_until(at("9:20"))
    wake, woken = harness.engine.wake.work, []
    for _ in range(2):
        await harness.worker.prefetch.claim()
        await harness.wait_until_idle()
        harness.fake_runner.gates.popitem()[1].set()
        await harness.worker.cancellation.until_idle(5)
        wake.clear()
        await harness.worker.completer.flush()
        woken.append(wake.is_set())
    assert woken == [True, False]
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran"]


async def test_the_end_of_a_run_wakes_claims_where_a_limit_kept_others_waiting(harness: Harness) -> None:
    await harness.limit_org(max_running=1)
    await harness.engine.enqueue(harness.org_id, "task", "job", [None] * 2)
    await harness.worker.prefetch.claim()
    await harness.worker.cancellation.until_idle(5)
    harness.engine.wake.work.clear()
    await harness.worker.completer.flush()
    assert harness.engine.wake.work.is_set()
    await harness.work()
    assert await harness.queue() == []


async def test_what_is_fired_does_not_pass_what_came_before(harness: Harness) -> None:
    harness.engine.settings = EngineSettings(concurrency=1)
    harness.fake_runner.long = lambda job: job.target == "long"
    await harness.engine.enqueue(harness.org_id, "task", "long", [None])
    await harness.worker.prefetch.claim()
    await harness.engine.enqueue(harness.org_id, "task", "before", [None])
    await harness.worker.prefetch.claim()
    harness.worker.prefetch.size = 2
    assert await state_of_the_new(harness) == "ready"
    await harness.release()
    assert [job.target for job in harness.fake_runner.began] == ["long", "before", "job"]


async def state_of_the_new(harness: Harness) -> str:
    await harness.schedule()
    harness.clock.set(at("9:10"))
    await harness.fire()
    return str(next(job.state for job in await harness.queue() if job.target == "job"))


async def test_a_crowd_is_read_and_fired_in_parts(harness: Harness, monkeypatch: Any) -> None:
    monkeypatch.setattr(scheduler, "POLL_LIMIT_ROWS", 5)
    monkeypatch.setattr(scheduler, "FIRE_BATCH_ROWS", 2)
    names = [f"job{n}" for n in range(12)]
    for name in names:
        await harness.schedule(name)
    harness.clock.set(at("9:10"))
    batch: Any = await harness.scheduler.poll()
    left = []
    while batch is not None:
        left.append(len(batch.planned))
        batch = await harness.scheduler.fire_due(batch)
    assert left == [5, 1]  # two batches at once; what was read is fired before the next read
    await harness.run_until(at("9:10"))
    assert [await harness.verdicts(name) for name in names] == [["9:10 ran"]] * 12


async def test_a_burst_is_not_read_again_before_its_due_time(harness: Harness, monkeypatch: Any) -> None:
    monkeypatch.setattr(scheduler, "POLL_LIMIT_ROWS", 2)
    harness.engine.settings = EngineSettings(concurrency=1)
    for name in "abc":
        await harness.schedule(name)
    harness.clock.set(at("9:10") - POLL_LEAD / 2)
    batch = await harness.scheduler.poll()
    assert await harness.scheduler.fire_due(batch, EARLY_FIRE) is batch
    harness.clock.set(at("9:10") - EARLY_FIRE / 2)
    after = await harness.scheduler.fire_due(batch, EARLY_FIRE)
    assert after is not None
    assert len(after.planned) == 1  # the other one was fired ahead
    await harness.run_until(at("9:10"))
    assert [await harness.verdicts(name) for name in "abc"] == [["9:10 ran"]] * 3


async def test_two_reservations_keep_no_more_places_than_there_are(harness: Harness) -> None:
    harness.engine.settings = EngineSettings(concurrency=3)
    leases = []

    async def reserve() -> None:
        async with harness.worker.reserve(2, at("9:10")) as reservation:
            assert reservation.lease is not None
            leases.append((reservation.lease.room, reservation.lease.prefetch))
            await asyncio.sleep(0)

    for caught_up, expected in ((False, [(2, 0), (1, 0)]), (True, [(2, 0), (1, 1)])):
        harness.worker.prefetch.caught_up, harness.worker.prefetch.size = caught_up, 10
        await asyncio.gather(reserve(), reserve())
        assert leases == expected
        leases.clear()


async def test_a_lost_answer_of_one_part_takes_nothing_of_the_other_back(harness: Harness, monkeypatch: Any) -> None:
    monkeypatch.setattr(scheduler, "FIRE_BATCH_ROWS", 2)
    harness.fake_runner.long = lambda job: True
    for name in "abcd":
        await harness.schedule(name)
    harness.clock.set(at("9:10"))
    real, fires = harness.db.tx, []

    async def deaf(step: Any, *args: Any, **kwargs: Any) -> Any:
        result = await real(step, *args, **kwargs)
        if step is firing.fire:
            fires.append(step)
            if len(fires) == 1:
                raise Unavailable("the answer is lost")
        return result

    monkeypatch.setattr(harness.db, "tx", deaf)
    with pytest.raises(Unavailable):
        await harness.scheduler.step()
    assert len(fires) == 2
    assert sorted(job.state for job in await harness.queue()) == ["ready", "ready", "running", "running"]
    assert len(harness.worker.active) == 2
    harness.fake_runner.long = lambda job: False
    await harness.release()
    assert [await harness.verdicts(name) for name in "abcd"] == [["9:10 ran"]] * 4


async def test_a_drained_gate_waits_for_claims_in_flight_and_blocks_new_ones() -> None:
    gate, answered, steps = ClaimGate(), asyncio.Event(), list[str]()

    async def claim(name: str) -> None:
        async with gate.claim() as in_flight:
            in_flight.expect(5)
            steps.append(f"{name} begins")
            await answered.wait()
            steps.append(f"{name} ends")

    async def drain() -> None:
        async with gate.drain():
            assert gate.expected == 0
            steps.append("drained")

    async with asyncio.TaskGroup() as group:
        for name in ("a", "b"):
            group.create_task(claim(name))
        await asyncio.sleep(0)
        assert gate.expected == 10
        group.create_task(drain())
        await asyncio.sleep(0)
        group.create_task(claim("c"))
        await asyncio.sleep(0)
        answered.set()
    assert steps == ["a begins", "b begins", "a ends", "b ends", "drained", "c begins", "c ends"]


# ahead of the due time


async def just_before(harness: Harness, due_time: datetime) -> None:
    harness.clock.set(due_time - EARLY_FIRE / 2)
    await harness.scheduler.fire_due(await harness.scheduler.poll(), EARLY_FIRE)


async def test_a_slot_fired_ahead_starts_at_its_due_time_and_not_before(harness: Harness) -> None:
    await harness.schedule()
    await just_before(harness, at("9:10"))
    (job,) = await harness.queue()
    assert (job.state, job.lease_owner) == ("running", harness.worker.id)
    harness.worker.prefetch.start_waiting()
    assert not harness.worker.active
    harness.worker.executor.launched.clear()
    harness.clock.set(at("9:10"))
    await asyncio.wait_for(harness.worker.executor.launched.wait(), 10)  # by itself, when its alarm rings
    await harness.work()
    assert await harness.verdicts() == ["9:10 ran"]
    (run,) = await harness.rows(select(runs))
    assert run.started_at == at("9:10")


@pytest.mark.parametrize("hindrance", [full, limited_org, paused_queue, other_queues, unregistered, draining])
async def test_a_slot_that_may_not_start_is_not_fired_ahead(
    harness: Harness, hindrance: Callable[[Harness], Any]
) -> None:
    await harness.schedule()
    await hindrance(harness)
    await just_before(harness, at("9:10"))
    assert await harness.queue() == []
    assert await state_of_the_fired(harness) == "ready"


@pytest.mark.parametrize("overlap", ["skip", "queue_one", "replace"])
async def test_overlap_is_decided_at_the_due_time(harness: Harness, overlap: str) -> None:
    harness.fake_runner.long = lambda job: True
    await harness.schedule(overlap=overlap)
    await harness.run_until(at("9:10"))
    await just_before(harness, at("9:20"))
    await harness.release()
    await harness.work()
    await harness.run_until(at("9:20"))
    await harness.release()
    await harness.work()
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran"]


async def test_no_more_is_fired_ahead_than_there_is_room_for(harness: Harness) -> None:
    harness.engine.settings = EngineSettings(concurrency=2)
    for name in "abc":
        await harness.schedule(name)
    await just_before(harness, at("9:10"))
    assert [job.state for job in await harness.queue()] == ["running", "running"]
    await harness.run_until(at("9:10"))
    assert await harness.verdicts("a") == await harness.verdicts("b") == await harness.verdicts("c") == ["9:10 ran"]


async def test_a_worker_that_stops_hands_back_what_it_took_ahead(harness: Harness) -> None:
    await harness.schedule()
    await just_before(harness, at("9:10"))
    await harness.worker.registration.hand_back([job.id for job in harness.worker.prefetch.waiting])
    harness.worker.prefetch.waiting.clear()
    (job,) = await harness.queue()
    assert (job.state, job.lease_owner) == ("ready", None)
    await harness.work()  # claimed again, too early
    assert not harness.worker.active
    await harness.run_until(at("9:10"))
    assert await harness.verdicts() == ["9:10 ran"]


async def test_an_edit_between_fire_and_due_time_keeps_the_ledger_right(harness: Harness) -> None:
    await harness.schedule()
    await just_before(harness, at("9:10"))
    await harness.edit(cron_expression="*/5 * * * *")
    await harness.run_until(at("9:15"))
    assert await harness.verdicts() == ["9:10 ran", "9:15 ran"]
