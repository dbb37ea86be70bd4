"""No org takes every place of a worker: shares, limits, workers of chosen orgs, and the default time limit."""

import asyncio
from collections import Counter
from datetime import timedelta

from sqlalchemy import select, update

from rota.db.tables import orgs, runs
from rota.engine.scheduler import Scheduler
from rota.engine.worker import Worker
from rota.engine.worker.org_shares import OrgShares
from tests.engine.harness import House, open_house, register

TEN = timedelta(minutes=10)


async def two_orgs(house: House) -> str:
    """The id of a second org, of which the worker knows."""
    house.hands.long = lambda job: job.target == "long"
    other = await house.add_org("other")
    await house.worker.learn()
    return other


def places(house: House) -> Counter[str]:
    return Counter(run.attempt.job.org_id for run in house.worker.active.values())


async def test_an_org_that_fills_the_queue_leaves_places_to_others(house: House) -> None:
    other = await two_orgs(house)
    await house.engine.enqueue(house.org_id, "task", "long", [None] * 100)
    await house.work()
    assert places(house) == {house.org_id: 40}
    await house.engine.enqueue(other, "task", "long", [None] * 3)
    await house.work()
    assert places(house) == {house.org_id: 40, other: 3}
    await house.release()
    assert places(house) == {house.org_id: 40}  # its next ones, as places became free


async def test_jobs_that_were_claimed_ahead_do_not_pass_the_share(house: House) -> None:
    """Short work is claimed by the hundred; when it turns out to be long it goes back to the queue."""
    other = await two_orgs(house)
    house.worker.prefetch.size = 100
    await house.engine.enqueue(house.org_id, "task", "long", [None] * 100)
    await house.work()
    assert places(house) == {house.org_id: 40}
    assert len(house.worker.prefetch.waiting) == 60
    await house.engine.enqueue(other, "task", "long", [None])
    await house.work()
    assert places(house) == {house.org_id: 40, other: 1}
    house.clock.set(house.clock.now() + timedelta(seconds=1))
    assert house.worker.prefetch.is_blocked_by(house.worker.prefetch.long_runs())


async def test_slots_that_are_fired_to_the_worker_do_not_pass_the_share(house: House) -> None:
    await two_orgs(house)
    for number in range(45):
        await house.schedule(f"slot-{number}", target="long")
    house.clock.set(house.clock.now() + TEN)
    await house.fire()
    assert places(house) == {house.org_id: 40}


async def test_an_org_alone_or_with_a_limit_of_its_own_has_no_share(house: House) -> None:
    house.hands.long = lambda job: True
    await house.worker.learn()
    await house.engine.enqueue(house.org_id, "task", "long", [None] * 60)
    await house.work()
    assert places(house) == {house.org_id: 50}
    await house.add_org("other")
    await house.write(update(orgs).where(orgs.c.id == house.org_id).values(max_running=48))
    await house.worker.learn()
    await house.release()
    assert places(house) == {house.org_id: 10}
    await house.engine.enqueue(house.org_id, "task", "long", [None] * 60)
    await house.work()
    assert places(house) == {house.org_id: 48}


def test_a_share_is_never_all_places() -> None:
    for count, most in ((1, None), (2, 1), (3, 2), (4, 3), (5, 4), (10, 8), (50, 40)):
        shares = OrgShares(count)
        shares.update(True, ())
        assert shares.most == most
        shares.update(False, ())
        assert shares.room("any") is None


async def test_a_worker_of_chosen_orgs_claims_and_fires_nothing_else(house: House) -> None:
    other = await two_orgs(house)
    worker = Worker(house.engine, orgs=["other"])
    await worker.learn()
    await register(worker, house.engine)
    scheduler = Scheduler(house.engine, ["other"])
    await house.engine.create_schedules(
        other, [{"name": "theirs", "target": "short", "cron_expression": "*/10 * * * *"}]
    )
    await house.schedule("ours")
    house.worker, house.scheduler.worker, scheduler.worker = worker, None, worker
    await house.engine.enqueue(house.org_id, "task", "ours", [None])
    await house.engine.enqueue(other, "task", "theirs", [None])
    await house.work()
    house.clock.set(house.clock.now() + TEN)
    await scheduler.step()
    await house.work()
    assert {job.org_id for job in house.hands.began} == {other}
    assert len(house.hands.began) == 2
    assert (await house.planned("ours"))[0] == "9:10"  # not fired
    house.clean = False


async def test_a_run_without_a_limit_ends_after_the_default_timeout(clean_url: str) -> None:
    house = await open_house(clean_url, default_timeout=timedelta(milliseconds=1))
    try:
        house.hands.long = lambda job: True
        await house.engine.enqueue(house.org_id, "task", "long", [None])
        await house.worker.prefetch.claim()
        (run,) = house.worker.active.values()
        assert run.task is not None
        await asyncio.wait([run.task], timeout=20)
        await house.work()
        (row,) = await house.rows(select(runs.c.status, runs.c.reason))
        assert tuple(row) == ("failed", "timeout")
    finally:
        await house.close()
