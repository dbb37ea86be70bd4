"""What a process fires it may have at once: the job is its worker's from the transaction that makes it."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from rota.core.errors import Unavailable
from rota.db.dialect import insert_rows
from rota.db.tables import queues, runs
from rota.engine import scheduler, schedules
from rota.engine.commands import EngineSettings
from rota.engine.scheduler import POLL_LEAD
from rota.engine.worker.claim_gate import ClaimGate
from rota.engine.worker.prefetch import EARLY_FIRE
from tests.engine.harness import House, at


async def state_of_the_fired(house: House) -> str:
    house.clock.set(at("9:10"))
    await house.fire()
    (job,) = await house.queue()
    return str(job.state)


async def test_a_fired_job_is_running_when_it_is_made(house: House) -> None:
    await house.schedule()
    assert await state_of_the_fired(house) == "running"
    (job,) = await house.queue()
    assert job.lease_owner == house.worker.id
    assert job.fence > 0
    await house.work()
    assert await house.verdicts() == ["9:10 ran"]


async def full(house: House) -> None:
    house.engine.settings = EngineSettings(concurrency=0)


async def limited_org(house: House) -> None:
    await house.limit_org(max_running=1)


async def paused_queue(house: House) -> None:
    row = {"org_id": house.org_id, "name": "default", "paused_at": house.clock.now(), "max_running": None}
    await house.db.tx(insert_rows, queues, [row])


async def other_queues(house: House) -> None:
    house.worker.registration.queues = ["elsewhere"]


async def unregistered(house: House) -> None:
    house.worker.registration.registered = False


async def draining(house: House) -> None:
    house.worker.registration.draining = True


@pytest.mark.parametrize("hindrance", [full, limited_org, paused_queue, other_queues, unregistered, draining])
async def test_it_waits_for_a_claim_where_it_may_not_start(house: House, hindrance: Callable[[House], Any]) -> None:
    await house.schedule()
    await hindrance(house)
    assert await state_of_the_fired(house) == "ready"


async def test_a_job_behind_one_that_runs_is_not_taken(house: House) -> None:
    house.hands.long = lambda job: True
    await house.schedule()
    await house.live(at("9:10"))
    await house.live(at("9:20"))
    assert sorted(job.state for job in await house.queue()) == ["blocked", "running"]
    await house.release()
    assert await house.verdicts() == ["9:10 ran", "9:20 (running)"]


async def test_what_was_fired_into_a_lost_answer_is_handed_back(house: House, monkeypatch: Any) -> None:
    await house.schedule()
    house.clock.set(at("9:10"))
    real = house.db.tx

    async def deaf(step: Any, *args: Any, **kwargs: Any) -> Any:
        found = await real(step, *args, **kwargs)
        if step is schedules.fire:
            monkeypatch.setattr(house.db, "tx", real)
            raise Unavailable("the answer is lost")
        return found

    monkeypatch.setattr(house.db, "tx", deaf)
    with pytest.raises(Unavailable):
        await house.scheduler.step()
    (job,) = await house.queue()
    assert (job.state, job.lease_owner, job.run_id) == ("ready", None, None)
    await house.live(at("9:10") + timedelta(seconds=1))
    assert await house.verdicts() == ["9:10 ran"]


# a crowd


async def test_what_is_fired_may_wait_with_a_worker_that_has_all_there_was(house: House) -> None:
    house.engine.settings = EngineSettings(concurrency=1)
    house.hands.long = lambda job: len(house.hands.began) == 1
    house.worker.prefetch.size = 2
    for name in "abcde":
        await house.schedule(name)
    await house.worker.prefetch.claim()
    house.clock.set(at("9:10"))
    await house.scheduler.step()
    assert sorted(job.state for job in await house.queue()) == ["ready"] * 2 + ["running"] * 3
    assert (len(house.worker.active), len(house.worker.prefetch.waiting)) == (1, 2)
    await house.release()
    assert [await house.verdicts(name) for name in "abcde"] == [["9:10 ran"]] * 5


async def test_a_fire_waits_for_a_line_that_moves(house: House, monkeypatch: Any) -> None:
    monkeypatch.setattr(scheduler, "WORKER_BATCH_ROWS", 1)
    monkeypatch.setattr("rota.engine.worker.prefetch.CAPACITY_WAIT_SECONDS", 60)
    house.engine.settings = EngineSettings(concurrency=1)
    house.hands.long = lambda job: True
    for name in "ab":
        await house.schedule(name)
    await house.worker.prefetch.claim()
    house.clock.set(at("9:10"))
    left = await house.scheduler.fire_due(await house.scheduler.poll())
    assert left is not None
    firing = asyncio.ensure_future(house.scheduler.fire_due(left))
    await house.still()
    assert [job.state for job in await house.queue()] == ["running"]
    house.hands.long = lambda job: False
    for gate in house.hands.gates.values():
        gate.set()
    await firing
    assert {job.state for job in await house.queue()} == {"running"}  # the second was not left to a claim
    await house.work()
    assert [await house.verdicts(name) for name in "ab"] == [["9:10 ran"]] * 2


async def test_a_line_that_does_not_move_is_not_waited_for_long(house: House) -> None:
    house.engine.settings = EngineSettings(concurrency=1)
    house.hands.long = lambda job: True
    for name in "ab":
        await house.schedule(name)
    await house.worker.prefetch.claim()
    house.clock.set(at("9:10"))
    await house.fire()
    assert sorted(job.state for job in await house.queue()) == ["ready", "running"]
    house.hands.long = lambda job: False
    await house.release()


async def test_the_end_of_a_run_wakes_claims_only_if_another_waits_behind_it(house: House) -> None:
    await house.schedule(overlap="queue_one")
    house.hands.long = lambda job: True
    await house.live(at("9:20"))
    wake, told = house.engine.wake.work, []
    for _ in range(2):
        await house.worker.prefetch.claim()
        await house.still()
        house.hands.gates.popitem()[1].set()
        await house.worker.cancellation.until_idle(5)
        wake.clear()
        await house.worker.completer.flush()
        told.append(wake.is_set())
    assert told == [True, False]
    assert await house.verdicts() == ["9:10 ran", "9:20 ran"]


async def test_the_end_of_a_run_wakes_claims_where_a_limit_kept_others_waiting(house: House) -> None:
    await house.limit_org(max_running=1)
    await house.engine.enqueue(house.org_id, "task", "job", [None] * 2)
    await house.worker.prefetch.claim()
    await house.worker.cancellation.until_idle(5)
    house.engine.wake.work.clear()
    await house.worker.completer.flush()
    assert house.engine.wake.work.is_set()
    await house.work()
    assert await house.queue() == []


async def test_what_is_fired_does_not_pass_what_came_before(house: House) -> None:
    house.engine.settings = EngineSettings(concurrency=1)
    house.hands.long = lambda job: job.target == "long"
    await house.engine.enqueue(house.org_id, "task", "long", [None])
    await house.worker.prefetch.claim()
    await house.engine.enqueue(house.org_id, "task", "before", [None])
    await house.worker.prefetch.claim()
    house.worker.prefetch.size = 2
    assert await state_of_the_new(house) == "ready"
    await house.release()
    assert [job.target for job in house.hands.began] == ["long", "before", "job"]


async def state_of_the_new(house: House) -> str:
    await house.schedule()
    house.clock.set(at("9:10"))
    await house.fire()
    return str(next(job.state for job in await house.queue() if job.target == "job"))


async def test_a_crowd_is_read_and_fired_in_parts(house: House, monkeypatch: Any) -> None:
    monkeypatch.setattr(scheduler, "POLL_LIMIT_ROWS", 5)
    monkeypatch.setattr(scheduler, "FIRE_BATCH_ROWS", 2)
    names = [f"job{n}" for n in range(12)]
    for name in names:
        await house.schedule(name)
    house.clock.set(at("9:10"))
    batch: Any = await house.scheduler.poll()
    left = []
    while batch is not None:
        left.append(len(batch.planned))
        batch = await house.scheduler.fire_due(batch)
    assert left == [5, 1]  # two parts at once; what it has is done before it looks again
    await house.live(at("9:10"))
    assert [await house.verdicts(name) for name in names] == [["9:10 ran"]] * 12


async def test_a_crowd_is_not_read_again_before_its_moment(house: House, monkeypatch: Any) -> None:
    monkeypatch.setattr(scheduler, "POLL_LIMIT_ROWS", 2)
    house.engine.settings = EngineSettings(concurrency=1)
    for name in "abc":
        await house.schedule(name)
    house.clock.set(at("9:10") - POLL_LEAD / 2)
    batch = await house.scheduler.poll()
    assert await house.scheduler.fire_due(batch, EARLY_FIRE) is batch
    house.clock.set(at("9:10") - EARLY_FIRE / 2)
    after = await house.scheduler.fire_due(batch, EARLY_FIRE)
    assert after is not None
    assert len(after.planned) == 1  # the other one was fired ahead
    await house.live(at("9:10"))
    assert [await house.verdicts(name) for name in "abc"] == [["9:10 ran"]] * 3


async def test_two_reservations_keep_no_more_places_than_there_are(house: House) -> None:
    house.engine.settings = EngineSettings(concurrency=3)
    leases = []

    async def reserve() -> None:
        async with house.worker.reserve(2, at("9:10")) as reservation:
            assert reservation.lease is not None
            leases.append((reservation.lease.room, reservation.lease.prefetch))
            await asyncio.sleep(0)

    for caught_up, expected in ((False, [(2, 0), (1, 0)]), (True, [(2, 0), (1, 1)])):
        house.worker.prefetch.caught_up, house.worker.prefetch.size = caught_up, 10
        await asyncio.gather(reserve(), reserve())
        assert leases == expected
        leases.clear()


async def test_a_lost_answer_of_one_part_takes_nothing_of_the_other_back(house: House, monkeypatch: Any) -> None:
    monkeypatch.setattr(scheduler, "FIRE_BATCH_ROWS", 2)
    house.hands.long = lambda job: True
    for name in "abcd":
        await house.schedule(name)
    house.clock.set(at("9:10"))
    real, fires = house.db.tx, []

    async def deaf(step: Any, *args: Any, **kwargs: Any) -> Any:
        found = await real(step, *args, **kwargs)
        if step is schedules.fire:
            fires.append(step)
            if len(fires) == 1:
                raise Unavailable("the answer is lost")
        return found

    monkeypatch.setattr(house.db, "tx", deaf)
    with pytest.raises(Unavailable):
        await house.scheduler.step()
    assert len(fires) == 2
    assert sorted(job.state for job in await house.queue()) == ["ready", "ready", "running", "running"]
    assert len(house.worker.active) == 2
    house.hands.long = lambda job: False
    await house.release()
    assert [await house.verdicts(name) for name in "abcd"] == [["9:10 ran"]] * 4


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


# ahead of its moment


async def a_moment_before(house: House, moment: datetime) -> None:
    house.clock.set(moment - EARLY_FIRE / 2)
    await house.scheduler.fire_due(await house.scheduler.poll(), EARLY_FIRE)


async def test_what_is_fired_ahead_starts_at_its_moment_and_not_before(house: House) -> None:
    await house.schedule()
    await a_moment_before(house, at("9:10"))
    (job,) = await house.queue()
    assert (job.state, job.lease_owner) == ("running", house.worker.id)
    house.worker.prefetch.start_waiting()
    assert not house.worker.active
    house.worker.executor.launched.clear()
    house.clock.set(at("9:10"))
    await asyncio.wait_for(house.worker.executor.launched.wait(), 10)  # by itself, when its alarm rings
    await house.work()
    assert await house.verdicts() == ["9:10 ran"]
    (run,) = await house.rows(select(runs))
    assert run.started_at == at("9:10")


@pytest.mark.parametrize("hindrance", [full, limited_org, paused_queue, other_queues, unregistered, draining])
async def test_it_is_left_for_its_moment_where_it_may_not_start(
    house: House, hindrance: Callable[[House], Any]
) -> None:
    await house.schedule()
    await hindrance(house)
    await a_moment_before(house, at("9:10"))
    assert await house.queue() == []
    assert await state_of_the_fired(house) == "ready"


@pytest.mark.parametrize("overlap", ["skip", "queue_one", "replace"])
async def test_whether_it_overlaps_is_decided_at_its_moment(house: House, overlap: str) -> None:
    house.hands.long = lambda job: True
    await house.schedule(overlap=overlap)
    await house.live(at("9:10"))
    await a_moment_before(house, at("9:20"))
    await house.release()
    await house.work()
    await house.live(at("9:20"))
    await house.release()
    await house.work()
    assert await house.verdicts() == ["9:10 ran", "9:20 ran"]


async def test_no_more_is_fired_ahead_than_there_is_room_for(house: House) -> None:
    house.engine.settings = EngineSettings(concurrency=2)
    for name in "abc":
        await house.schedule(name)
    await a_moment_before(house, at("9:10"))
    assert [job.state for job in await house.queue()] == ["running", "running"]
    await house.live(at("9:10"))
    assert await house.verdicts("a") == await house.verdicts("b") == await house.verdicts("c") == ["9:10 ran"]


async def test_a_worker_that_stops_hands_back_what_it_took_ahead(house: House) -> None:
    await house.schedule()
    await a_moment_before(house, at("9:10"))
    await house.worker.registration.hand_back([job.id for job in house.worker.prefetch.waiting])
    house.worker.prefetch.waiting.clear()
    (job,) = await house.queue()
    assert (job.state, job.lease_owner) == ("ready", None)
    await house.work()  # claimed again, a moment too soon
    assert not house.worker.active
    await house.live(at("9:10"))
    assert await house.verdicts() == ["9:10 ran"]


async def test_an_edit_after_the_fire_and_before_its_moment_keeps_the_books_right(house: House) -> None:
    await house.schedule()
    await a_moment_before(house, at("9:10"))
    await house.edit(cron_expression="*/5 * * * *")
    await house.live(at("9:15"))
    assert await house.verdicts() == ["9:10 ran", "9:15 ran"]
