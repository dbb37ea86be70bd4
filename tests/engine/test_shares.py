"""No org takes every place of a worker: shares, limits, workers of chosen orgs, and the default time limit."""

import asyncio
from collections import Counter
from datetime import timedelta

from sqlalchemy import select, update

from rota.db.tables import orgs, runs
from rota.engine.scheduler import Scheduler
from rota.engine.worker import Worker
from rota.engine.worker.org_shares import OrgShares
from tests.engine.harness import Harness, open_harness, register

TEN = timedelta(minutes=10)


async def two_orgs(harness: Harness) -> str:
    """The id of a second org, of which the worker knows."""
    harness.fake_runner.long = lambda job: job.target == "long"
    other = await harness.add_org("other")
    await harness.worker.learn()
    return other


def places(harness: Harness) -> Counter[str]:
    return Counter(run.attempt.job.org_id for run in harness.worker.active.values())


async def test_an_org_that_fills_the_queue_leaves_places_to_others(harness: Harness) -> None:
    other = await two_orgs(harness)
    await harness.engine.enqueue(harness.org_id, "task", "long", [None] * 100)
    await harness.work()
    assert places(harness) == {harness.org_id: 40}
    await harness.engine.enqueue(other, "task", "long", [None] * 3)
    await harness.work()
    assert places(harness) == {harness.org_id: 40, other: 3}
    await harness.release()
    assert places(harness) == {harness.org_id: 40}  # its next jobs, as places became free


async def test_jobs_that_were_claimed_ahead_do_not_pass_the_share(harness: Harness) -> None:
    """Short jobs are prefetched in large batches; if they turn out to be long, they are handed back."""
    other = await two_orgs(harness)
    harness.worker.prefetch.size = 100
    await harness.engine.enqueue(harness.org_id, "task", "long", [None] * 100)
    await harness.work()
    assert places(harness) == {harness.org_id: 40}
    assert len(harness.worker.prefetch.waiting) == 60
    await harness.engine.enqueue(other, "task", "long", [None])
    await harness.work()
    assert places(harness) == {harness.org_id: 40, other: 1}
    harness.clock.set(harness.clock.now() + timedelta(seconds=1))
    assert harness.worker.prefetch.is_blocked_by(harness.worker.prefetch.long_runs())


async def test_slots_that_are_fired_to_the_worker_do_not_pass_the_share(harness: Harness) -> None:
    await two_orgs(harness)
    for number in range(45):
        await harness.schedule(f"slot-{number}", target="long")
    harness.clock.set(harness.clock.now() + TEN)
    await harness.fire()
    assert places(harness) == {harness.org_id: 40}


async def test_a_single_org_or_one_with_a_limit_has_no_share(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: True
    await harness.worker.learn()
    await harness.engine.enqueue(harness.org_id, "task", "long", [None] * 60)
    await harness.work()
    assert places(harness) == {harness.org_id: 50}
    await harness.add_org("other")
    await harness.write(update(orgs).where(orgs.c.id == harness.org_id).values(max_running=48))
    await harness.worker.learn()
    await harness.release()
    assert places(harness) == {harness.org_id: 10}
    await harness.engine.enqueue(harness.org_id, "task", "long", [None] * 60)
    await harness.work()
    assert places(harness) == {harness.org_id: 48}


def test_a_share_is_never_all_places() -> None:
    for count, most in ((1, None), (2, 1), (3, 2), (4, 3), (5, 4), (10, 8), (50, 40)):
        shares = OrgShares(count)
        shares.update(True, ())
        assert shares.most == most
        shares.update(False, ())
        assert shares.room("any") is None


async def test_a_worker_of_chosen_orgs_claims_and_fires_nothing_else(harness: Harness) -> None:
    other = await two_orgs(harness)
    worker = Worker(harness.engine, orgs=["other"])
    await worker.learn()
    await register(worker, harness.engine)
    scheduler = Scheduler(harness.engine, ["other"])
    await harness.engine.create_schedules(
        other, [{"name": "theirs", "target": "short", "cron_expression": "*/10 * * * *"}]
    )
    await harness.schedule("ours")
    harness.worker, harness.scheduler.worker, scheduler.worker = worker, None, worker
    await harness.engine.enqueue(harness.org_id, "task", "ours", [None])
    await harness.engine.enqueue(other, "task", "theirs", [None])
    await harness.work()
    harness.clock.set(harness.clock.now() + TEN)
    await scheduler.step()
    await harness.work()
    assert {job.org_id for job in harness.fake_runner.began} == {other}
    assert len(harness.fake_runner.began) == 2
    assert (await harness.planned("ours"))[0] == "9:10"  # not fired
    harness.clean = False


async def test_a_run_without_a_limit_ends_after_the_default_timeout(clean_url: str) -> None:
    harness = await open_harness(clean_url, default_timeout=timedelta(milliseconds=1))
    try:
        harness.fake_runner.long = lambda job: True
        await harness.engine.enqueue(harness.org_id, "task", "long", [None])
        await harness.worker.prefetch.claim()
        (run,) = harness.worker.active.values()
        assert run.task is not None
        await asyncio.wait([run.task], timeout=20)
        await harness.work()
        (row,) = await harness.rows(select(runs.c.status, runs.c.reason))
        assert tuple(row) == ("failed", "timeout")
    finally:
        await harness.close()
