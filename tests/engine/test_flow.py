"""Rates and places: when jobs that are limited start, on both databases, with the clock in the test's hands."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from rota.core.flow import Limits, PlaceLimit, Rate, RateLimit
from rota.core.model import Job
from rota.db.tables import jobs, rate_limits, runs
from rota.engine import admission, finishing, places
from rota.engine.maintenance import Maintenance
from rota.reports import why
from tests.engine.harness import MINUTE, Harness

SECOND = timedelta(seconds=1)
TEN_A_MINUTE = Rate(10, MINUTE)


def rate_of(rate: Rate, key: Callable[[Job], str] = lambda job: "api") -> Callable[[Job], Limits]:
    return lambda job: Limits((RateLimit(key(job), rate),))


def places_of(count: int) -> Callable[[Job], Limits]:
    return lambda job: Limits(place=PlaceLimit(f"customer:{job.payload}", count))


async def add(harness: Harness, count: int, payload: Any = None, **options: Any) -> list[str]:
    return await harness.engine.enqueue(harness.org_id, "task", "t", [payload] * count, **options)


async def starts(harness: Harness) -> list[float]:
    """Return when the runs started, in seconds since the first."""
    rows = await harness.rows(select(runs.c.started_at).order_by(runs.c.started_at))
    return [(row.started_at - rows[0].started_at).total_seconds() for row in rows]


async def test_jobs_beyond_a_rate_start_at_their_reserved_times_and_are_touched_once(harness: Harness) -> None:
    harness.fake_runner.limits = rate_of(TEN_A_MINUTE)
    began = harness.clock.now()
    await add(harness, 25)
    await harness.run_due()
    waiting = await harness.queue()
    assert [(row.run_at - began).total_seconds() for row in waiting] == [6.0 * number for number in range(1, 25)]
    assert all(row.reserved_at == row.run_at and row.state == "retry" and row.attempt == 0 for row in waiting)
    assert len(await harness.rows(select(runs))) == 1  # waiting records no run
    fences = {row.id: row.fence for row in waiting}
    await harness.run_until(began + 3 * MINUTE)
    assert await starts(harness) == [6.0 * number for number in range(25)]
    ended = await harness.rows(select(runs.c.job_id, runs.c.fence, runs.c.attempt).where(runs.c.job_id.in_(fences)))
    assert all(row.attempt == 1 for row in ended)
    (row,) = await harness.rows(select(rate_limits))
    assert row.key == "api"
    await harness.db.tx(admission.prune_rates, harness.clock.now(), 100)
    assert await harness.rows(select(rate_limits)) == []


async def test_a_burst_starts_at_once_after_a_pause(harness: Harness) -> None:
    harness.fake_runner.limits = rate_of(Rate(10, MINUTE, burst=4))
    await add(harness, 6)
    await harness.run_until(harness.clock.now() + MINUTE)
    assert await starts(harness) == [0, 0, 0, 0, 6, 12]


async def test_each_key_has_its_own_rate(harness: Harness) -> None:
    harness.fake_runner.limits = rate_of(TEN_A_MINUTE, lambda job: str(job.payload))
    await add(harness, 2, "ada")
    await add(harness, 2, "bob")
    await harness.run_until(harness.clock.now() + MINUTE)
    assert await starts(harness) == [0, 0, 6, 6]


async def test_the_rate_of_a_queue_holds_for_all_its_jobs_until_it_is_removed(harness: Harness) -> None:
    await harness.engine.set_queue(harness.org_id, "slow", max_running=None, paused=False, rate=TEN_A_MINUTE)
    await harness.worker.learn()
    await add(harness, 3, queue_name="slow")
    await add(harness, 2)
    await harness.run_until(harness.clock.now() + MINUTE)
    assert await starts(harness) == [0, 0, 0, 6, 12]
    await harness.engine.set_queue(harness.org_id, "slow", max_running=None, paused=False)
    await harness.worker.learn()
    assert harness.worker.executor.limits.rated_queues == {}


async def test_jobs_that_no_worker_could_start_in_time_reserve_again(harness: Harness) -> None:
    """After an outage the jobs that waited do not all start at once."""
    harness.fake_runner.limits = rate_of(TEN_A_MINUTE)
    began = harness.clock.now()
    await add(harness, 11)
    await harness.run_due()
    await harness.start_at(began + 10 * MINUTE)
    await harness.run_until(began + 20 * MINUTE)
    assert await starts(harness) == [0, *(600.0 + 6 * number for number in range(10))]


async def test_a_retry_reserves_its_own_start(harness: Harness) -> None:
    harness.fake_runner.limits = rate_of(TEN_A_MINUTE)
    harness.fake_runner.errors = [ConnectionError("net")]
    await add(harness, 1)
    await harness.run_until(harness.clock.now() + MINUTE)
    assert await starts(harness) == [0, 10]
    tat = (await harness.rows(select(rate_limits.c.tat_us)))[0].tat_us
    await add(harness, 1)
    await harness.run_due()
    assert (await harness.rows(select(rate_limits.c.tat_us)))[0].tat_us > tat


async def test_at_most_so_many_of_a_key_run_and_the_others_follow_in_order(harness: Harness) -> None:
    harness.fake_runner.limits, harness.fake_runner.long = places_of(2), lambda job: True
    ids = await add(harness, 5, "ada")
    others = await add(harness, 1, "bob")
    await harness.run_due()
    assert sorted(harness.fake_runner.gates) == sorted([*ids[:2], *others])
    waiting = [row for row in await harness.queue() if row.place_wanted]
    assert [row.id for row in waiting] == ids[2:]
    assert all((row.state, row.place_limit, row.attempt) == ("retry", 2, 0) for row in waiting)
    claims = [row.fence for row in waiting]
    await harness.run_due()
    assert [row.fence for row in await harness.queue() if row.place_wanted] == claims  # not claimed again
    for first in ids[:3]:
        harness.fake_runner.gates.pop(first).set()
        await harness.work()
    assert [job.id for job in harness.fake_runner.began if job.payload == "ada"] == ids
    await harness.release()
    assert await harness.queue() == []


async def test_a_place_comes_back_with_the_lease_of_a_dead_worker(harness: Harness) -> None:
    harness.fake_runner.limits, harness.fake_runner.long, harness.fake_runner.first = (
        places_of(1), lambda job: True, True,
    )  # fmt: skip
    first, second = await add(harness, 2, "ada")
    await harness.run_due()
    await harness.db.tx(finishing.rescue, harness.worker.id, harness.clock.now())
    rows = {row.id: row for row in await harness.queue()}
    assert (rows[first].state, rows[first].place_key) == ("ready", None)
    assert (rows[second].state, rows[second].place_key) == ("ready", "customer:ada")


async def test_a_canceled_job_hands_its_place_on(harness: Harness) -> None:
    harness.fake_runner.limits, harness.fake_runner.long = places_of(1), lambda job: True
    first, second, third = await add(harness, 3, "ada")
    await harness.run_due()
    harness.fake_runner.gates.pop(first).set()
    await harness.wait_until_idle()
    await harness.worker.completer.flush()  # the second job holds the place now, and is not claimed yet
    rows = {row.id: row for row in await harness.queue()}
    assert (rows[second].state, rows[second].place_key) == ("ready", "customer:ada")
    await harness.engine.cancel(harness.org_id, second)
    await harness.work()
    assert list(harness.fake_runner.gates) == [third]


async def test_a_canceled_job_that_waits_for_a_place_leaves_the_queue(harness: Harness) -> None:
    harness.fake_runner.limits, harness.fake_runner.long = places_of(1), lambda job: True
    _, second = await add(harness, 2, "ada")
    await harness.run_due()
    await harness.engine.cancel(harness.org_id, second)
    assert second not in {row.id for row in await harness.queue()}
    await harness.release()
    assert await harness.queue() == []


async def test_a_raised_limit_applies_to_jobs_that_wait(harness: Harness) -> None:
    harness.fake_runner.limits, harness.fake_runner.long = places_of(1), lambda job: True
    await add(harness, 4, "ada")
    await harness.run_due()
    assert len(harness.fake_runner.gates) == 1
    harness.fake_runner.limits = places_of(3)
    await add(harness, 1, "ada")
    await harness.run_due()
    await harness.run_due()  # the places were handed on while the last job asked for one
    assert len(harness.fake_runner.gates) == 3


async def test_a_job_with_a_place_waits_for_its_rate_with_it(harness: Harness) -> None:
    harness.fake_runner.limits = lambda job: Limits((RateLimit("api", TEN_A_MINUTE),), PlaceLimit("ada", 2))
    await add(harness, 5)
    await harness.run_due()
    assert sorted(row.place_key or "-" for row in await harness.queue()) == ["-", "-", "ada", "ada"]
    await harness.run_until(harness.clock.now() + MINUTE)
    assert await starts(harness) == [0, 6, 12, 18, 24]


async def test_maintenance_hands_on_places_of_parked_jobs(harness: Harness) -> None:
    harness.fake_runner.limits, harness.fake_runner.long = places_of(1), lambda job: True
    first, second = await add(harness, 2, "ada")
    await harness.run_due()
    await harness.write(update(jobs).where(jobs.c.id == first).values(place_key=None))
    assert await harness.db.read(places.starving_keys) == ["customer:ada"]
    await Maintenance(harness.engine).reconcile()
    assert await harness.db.read(places.starving_keys) == []
    await harness.work()
    assert second in harness.fake_runner.gates


async def test_why_names_the_rate_or_the_place_that_a_job_waits_for(harness: Harness) -> None:
    harness.fake_runner.limits = lambda job: (rate_of(TEN_A_MINUTE) if job.payload == "rate" else places_of(1))(job)
    harness.fake_runner.long = lambda job: True
    _, rated = await add(harness, 2, "rate")
    _, placed = await add(harness, 2, "place")
    await harness.run_due()
    sentences = [
        " ".join((await harness.db.read(why.of_run, harness.org_id, job_id, harness.clock.now()))["sentences"])
        for job_id in (rated, placed)
    ]
    assert "its start is reserved for 2026-05-04T09:00:06" in sentences[0]
    assert "It waits for a place: at most 1 jobs of its key run at once." in sentences[1]


@pytest.mark.parametrize("count", [1, 40])
async def test_a_job_without_limits_costs_no_statement_more(harness: Harness, count: int) -> None:
    """Nothing asks for admission: not one row of a rate, and the limits of the worker were not entered."""
    harness.worker.executor.limits.enter = None  # type: ignore[assignment, method-assign]
    await add(harness, count)
    await harness.run_due()
    assert (await harness.rows(select(func.count()).select_from(runs).where(runs.c.status == "success")))[0][0] == count
