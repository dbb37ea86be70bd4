"""What becomes of jobs: deadlines, windows, retries, order, limits, and workers that vanish."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import select, text, update

from rota.core.errors import (
    AuthError,
    Conflict,
    GiveUp,
    LogicError,
    NotFound,
    PermissionDenied,
    RetryAfter,
    TransientError,
)
from rota.core.ids import new_id
from rota.core.model import Attempt, AttemptResult, Job
from rota.core.policy import Retry, Terms
from rota.core.states import Status
from rota.db.statement import insert_rows
from rota.db.tables import jobs, orgs, queues, runs
from rota.db.tables import workers as worker_rows
from rota.engine import claiming, finishing, workers
from rota.engine import jobs as queue
from rota.engine import runs as ledger_rows
from rota.engine.instruments import RUNS
from rota.engine.maintenance import Maintenance
from rota.engine.worker import Worker
from rota.engine.worker.prefetch import LONG_RUN_AFTER
from tests.engine.harness import HOUR, MINUTE, NINE, Harness, at, clock_text, register


async def enqueue(harness: Harness, target: str = "job", **how: Any) -> str:
    return (await harness.engine.enqueue(how.pop("org", harness.org_id), "task", target, [None], **how))[0]


# when a job may start


async def test_a_job_that_could_not_start_in_time_is_skipped(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule(overlap="queue_all", start_deadline_seconds=300)
    await harness.run_until(at("9:33"))
    await harness.release()
    assert await harness.verdicts() == ["9:10 ran", "9:20 skipped: deadline", "9:30 ran"]
    assert (await harness.stats()).skipped_count == 1


async def test_a_job_that_could_not_start_before_its_window_closed_is_skipped(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule(overlap="queue_all", window_start="09:00", window_end="09:30")
    await harness.run_until(at("9:30"))
    assert await harness.verdicts() == ["9:10 (running)", "9:20 (blocked)"]
    await harness.release()
    assert await harness.verdicts() == ["9:10 ran", "9:20 skipped: window"]
    assert await harness.planned() == ("+1 9:00", "+1 9:00")


async def test_slots_outside_the_window_are_no_slots(harness: Harness) -> None:
    await harness.schedule(window_start="09:30", window_end="09:50")
    await harness.run_until(at("11:00"))
    assert await harness.verdicts() == ["9:30 ran", "9:40 ran"]


async def test_a_retry_waits_for_the_next_window(harness: Harness) -> None:
    harness.fake_runner.errors = [TransientError("net")]
    await harness.schedule(
        cron="0 9 * * *",
        window_start="09:00",
        window_end="10:00",
        starts_at=at("9:01"),
        retry={"max_retries": 3, "backoff_ms": 3_600_000 * 2, "max_backoff_ms": 86_400_000},
    )
    await harness.run_until(NINE + timedelta(days=1))
    (job,) = await harness.queue()
    assert (job.state, clock_text(job.run_at)) == ("retry", "+2 9:00")
    await harness.run_until(NINE + timedelta(days=2))
    assert [line for line in await harness.history() if line.startswith("+1")] == [
        "+1 9:00 #1 paused: transient",
        "+1 9:00 #2 success",
    ]


async def test_jitter_that_leads_out_of_the_window_starts_nothing_there(harness: Harness) -> None:
    await harness.schedule(
        cron="*/5 * * * *",
        window_start="09:00",
        window_end="09:30",
        jitter_seconds=3600,
        overlap="allow",
        misfire="all",
    )
    await harness.run_until(at("23:00"))
    late = [job for job in harness.fake_runner.began if job.run_at >= at("9:30")]
    assert late == []


# failures


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        ({"max_retries": 3, "backoff_ms": 5000}, [5, 5, 5]),
        ({"max_retries": 3, "backoff_ms": 5000, "backoff_type": "exponential"}, [5, 10, 20]),
        (
            {"max_retries": 4, "backoff_ms": 5000, "backoff_type": "exponential", "max_backoff_ms": 12_000},
            [5, 10, 12, 12],
        ),
        (None, []),
    ],
)
async def test_a_failed_run_is_retried_as_its_policy_says(harness: Harness, retry: Any, delays: list[int]) -> None:
    harness.fake_runner.errors = [ValueError("wrong")] * 9
    await harness.schedule(cron="10 * * * *", retry=retry)
    await harness.run_until(at("9:59"))
    ledger = await harness.rows(select(runs).order_by(runs.c.attempt))
    assert [row.status for row in ledger] == ["failed"] * (len(delays) + 1)
    starts = [row.started_at for row in ledger]
    assert [(after - before).total_seconds() for before, after in pairwise(starts)] == delays
    assert [row.retry_of for row in ledger] == [None, *(row.id for row in ledger[:-1])]
    stats = await harness.stats()
    assert (stats.failure_count, stats.last_run_status) == (1, "failed")


async def test_a_logic_error_is_not_retried_under_a_retry_policy(harness: Harness) -> None:
    harness.fake_runner.errors = [LogicError("wrong")]
    await harness.schedule(cron="10 * * * *", retry={"max_retries": 3, "backoff_ms": 5000})
    await harness.run_until(at("9:59"))
    assert await harness.history() == ["9:10 #1 failed: logic"]


async def test_code_gives_up_or_chooses_the_delay_of_its_retry(harness: Harness) -> None:
    harness.fake_runner.errors = [RetryAfter(90), GiveUp("customer 7 was deleted")]
    await harness.schedule(cron="10 * * * *", retry={"max_retries": 3, "backoff_ms": 5000})
    await harness.run_until(at("9:59"))
    first, second = await harness.rows(select(runs).order_by(runs.c.attempt))
    assert await harness.history() == ["9:10 #1 paused: transient", "9:10 #2 failed: logic"]
    assert (second.started_at - first.started_at).total_seconds() == 90
    assert (second.error["code"], second.error["message"]) == ("gave_up", "customer 7 was deleted")


async def test_transient_failures_are_retried_five_times_by_default(harness: Harness) -> None:
    harness.fake_runner.errors = [TransientError("net")] * 9
    await harness.schedule(cron="10 * * * *")
    await harness.run_until(at("9:59"))
    assert await harness.history() == [
        *(f"9:10 #{n} paused: transient" for n in range(1, 6)),
        "9:10 #6 failed: transient",
    ]
    ledger = await harness.rows(select(runs).order_by(runs.c.attempt))
    starts = [row.started_at for row in ledger]
    gaps = [(after - before).total_seconds() for before, after in pairwise(starts)]
    assert gaps == [10, 20, 40, 80, 160]
    assert (await harness.stats()).failure_count == 1


async def test_a_policy_that_says_no_retries_holds_for_transient_failures_too(harness: Harness) -> None:
    harness.fake_runner.errors = [TransientError("net")]
    await harness.schedule(cron="10 * * * *", retry={"max_retries": 0})
    await harness.run_until(at("9:59"))
    assert await harness.history() == ["9:10 #1 failed: transient"]


@pytest.mark.parametrize("error", [AuthError("no key"), PermissionDenied("not yours")])
async def test_a_run_that_needs_a_person_is_parked_until_it_is_retried(harness: Harness, error: Exception) -> None:
    harness.fake_runner.errors = [error]
    await harness.schedule(cron="10 * * * *")
    await harness.run_until(at("9:40"))
    assert await harness.verdicts() == ["9:10 (parked)"]
    assert await harness.history() == ["9:10 #1 paused: approval"]
    (run,) = await harness.rows(select(runs))
    (job,) = await harness.queue()
    assert await harness.engine.retry(harness.org_id, run.id) == job.id
    await harness.work()
    assert await harness.history() == ["9:10 #1 paused: approval", "9:10 #2 success"]
    assert await harness.verdicts() == ["9:10 ran"]


async def test_retrying_a_finished_slot_is_a_further_attempt_of_it(harness: Harness) -> None:
    await harness.schedule(cron="10 * * * *")
    await harness.run_until(at("9:40"))
    (run,) = await harness.rows(select(runs))
    first = await harness.engine.retry(harness.org_id, run.id)
    assert await harness.engine.retry(harness.org_id, run.id) == first  # it joins
    await harness.work()
    assert await harness.history() == ["9:10 #1 success", "9:10 #2 success"]
    again = (await harness.rows(select(runs).where(runs.c.attempt == 2)))[0]
    assert (again.retry_of, again.trigger) == (run.id, "retry")


async def test_a_slot_is_retried_with_another_input(harness: Harness) -> None:
    await harness.schedule(cron="10 * * * *")
    await harness.run_until(at("9:40"))
    (run,) = await harness.rows(select(runs))
    await harness.engine.retry(harness.org_id, run.id, payload={"day": "monday"})
    await harness.work()
    (again,) = await harness.rows(select(runs).where(runs.c.attempt == 2))
    assert (again.slot, again.input) == (run.slot, {"day": "monday"})


async def test_a_job_without_a_schedule_can_be_retried(harness: Harness) -> None:
    harness.fake_runner.errors = [LogicError("wrong")]
    await enqueue(harness)
    await harness.work()
    (run,) = await harness.rows(select(runs))
    await harness.engine.retry(harness.org_id, run.id)
    await harness.work()
    assert await harness.history() == ["manual #1 failed: logic", "retry #2 success"]
    with pytest.raises(NotFound):
        await harness.engine.retry(harness.org_id, "nonsense")


async def test_what_the_schedule_counts(harness: Harness) -> None:
    harness.fake_runner.errors = [None, LogicError("wrong"), None]
    await harness.schedule()
    await harness.run_until(at("9:35"))
    stats = await harness.stats()
    last = (await harness.rows(select(runs).order_by(runs.c.id.desc())))[0]
    assert (stats.fired, stats.failure_count, stats.skipped_count) == (3, 1, 0)
    assert (stats.last_run_at, stats.last_run_id, stats.last_run_status) == (at("9:30"), last.id, "success")


# cancel


@pytest.mark.parametrize("state", ["later", "ready", "blocked", "retry", "parked", "running"])
async def test_cancel_in_each_state(harness: Harness, state: str) -> None:
    harness.fake_runner.long = lambda job: state == "running" or job.id != target
    target = ""
    if state == "later":
        target = await enqueue(harness, run_at=at("10:00"))
    elif state == "blocked":
        await enqueue(harness, "first", serial_key="k")
        target = await enqueue(harness, serial_key="k")
        await harness.work()
    else:
        target = await enqueue(harness, terms=Terms(retry=Retry(3, 60_000)))
    if state in ("retry", "parked"):
        harness.fake_runner.errors = [ValueError("x") if state == "retry" else AuthError("x")]
    if state in ("retry", "parked", "running"):
        await harness.work()
    (row,) = [row for row in await harness.queue() if row.id == target]
    assert row.state == state
    assert await harness.engine.cancel(harness.org_id, target, by="ann") == target
    if state == "running":
        assert len(await harness.queue()) == 1  # until its worker has stopped it
        await harness.work()
    assert not [row for row in await harness.queue() if row.id == target]
    last = (await harness.rows(select(runs).where(runs.c.job_id == target).order_by(runs.c.attempt.desc())))[0]
    assert (last.status, last.reason) == ("canceled", "ann")
    with pytest.raises(Conflict):
        await harness.engine.cancel(harness.org_id, target)


async def test_what_the_work_returned_wins_over_a_late_cancel(harness: Harness) -> None:
    harness.fake_runner.long, harness.fake_runner.stubborn = lambda job: True, True
    job = await enqueue(harness)
    await harness.work()
    await harness.engine.cancel(harness.org_id, job)
    await harness.work()
    await harness.release()
    assert await harness.history() == ["manual #1 success"]


async def test_a_canceled_run_that_fails_is_not_retried(harness: Harness) -> None:
    harness.fake_runner.long, harness.fake_runner.stubborn = lambda job: True, True
    harness.fake_runner.errors = [TransientError("net")]
    job = await enqueue(harness, serial_key="k")
    behind = await enqueue(harness, serial_key="k")
    await harness.work()
    await harness.engine.cancel(harness.org_id, job, by="ann")
    await harness.release()
    ledger = await harness.rows(select(runs).where(runs.c.job_id == job).order_by(runs.c.attempt))
    assert (ledger[-1].status, ledger[-1].reason) == ("canceled", "ann")
    assert [row.id for row in await harness.queue()] == [behind]


# order, limits, fairness


async def test_jobs_start_by_priority_then_by_age(harness: Harness) -> None:
    harness.clock.set(at("9:30"))
    for target, priority, run_at in [("c", 0, "9:10"), ("a", 5, "9:20"), ("b", 0, "9:05"), ("d", -5, "9:01")]:
        await enqueue(harness, target, priority=priority, run_at=at(run_at))
    await harness.work()
    assert [job.target for job in harness.fake_runner.began] == ["a", "b", "c", "d"]


async def limit_queue(harness: Harness, **values: Any) -> None:
    await harness.db.tx(insert_rows, queues, [{"org_id": harness.org_id, "name": "default", **values}])


async def test_a_queue_starts_no_more_than_its_limit(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: True
    await limit_queue(harness, max_running=2)
    for _ in range(5):
        await enqueue(harness)
    await enqueue(harness, queue_name="other")
    await harness.work()
    assert sorted(job.queue for job in harness.fake_runner.began) == ["default", "default", "other"]
    await harness.release()
    assert len(harness.fake_runner.began) == 5


async def test_an_org_starts_no_more_than_its_limit_over_all_queues(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: True
    await harness.limit_org(max_running=3)
    other = await harness.add_org("other")
    for name in ("a", "b"):
        for _ in range(4):
            await enqueue(harness, queue_name=name)
    await enqueue(harness, org=other)
    await harness.work()
    assert len([job for job in harness.fake_runner.began if job.org_id == harness.org_id]) == 3
    assert len([job for job in harness.fake_runner.began if job.org_id == other]) == 1


async def test_no_queue_of_a_limited_org_starves_another(harness: Harness) -> None:
    await harness.limit_org(max_running=1)
    for n in range(12):
        await enqueue(harness, queue_name="a" if n % 2 else "b")
    harness.engine.settings = type(harness.engine.settings)(concurrency=1)
    await harness.work()
    assert {job.queue for job in harness.fake_runner.began[:4]} == {"a", "b"}


async def test_a_paused_queue_starts_nothing(harness: Harness) -> None:
    await limit_queue(harness, paused_at=NINE)
    await enqueue(harness)
    await enqueue(harness, "free", queue_name="other")
    await harness.work()
    assert [job.target for job in harness.fake_runner.began] == ["free"]
    await harness.write(update(queues).values(paused_at=None))
    await harness.work()
    assert [job.target for job in harness.fake_runner.began] == ["free", "job"]


async def test_a_job_of_a_small_org_starts_although_another_has_ten_thousand_waiting(harness: Harness) -> None:
    small = await harness.add_org("small")
    await harness.engine.enqueue(harness.org_id, "task", "big", [None] * 10_000)
    job = await enqueue(harness, "small", org=small)
    harness.fake_runner.long = lambda job: True
    await harness.worker.prefetch.claim()
    assert job in {active_run.attempt.job.id for active_run in harness.worker.active.values()}
    assert len(harness.worker.active) == 50 or len(harness.worker.active) == 26
    await harness.work()
    assert len(harness.worker.active) == 50  # what the small org does not need goes to the big one


async def test_a_job_of_another_org_does_not_wait_behind_what_was_claimed_ahead(harness: Harness) -> None:
    small, third = [await harness.add_org(name) for name in ("small", "third")]
    await harness.engine.enqueue(harness.org_id, "task", "big", [None] * 200)
    harness.engine.settings = type(harness.engine.settings)(concurrency=2)
    harness.fake_runner.long = lambda job: len(harness.fake_runner.began) <= 2
    harness.worker.prefetch.size = 100
    await harness.worker.prefetch.claim()
    for _ in range(3):
        await enqueue(harness, "small", org=small)
        await harness.worker.prefetch.claim()
    await enqueue(harness, "third", org=third)
    await harness.worker.prefetch.claim()
    held = [job.target for job in harness.worker.prefetch.waiting]
    assert Counter(held) == {"big": 100, "small": 1, "third": 1}  # a job of each org: the rest is for other workers
    await harness.release()
    targets = [job.target for job in harness.fake_runner.began]
    assert targets[:5] == ["big", "big", "big", "small", "third"]
    assert Counter(targets) == {"big": 200, "small": 3, "third": 1}


async def test_a_full_worker_respects_limits_of_other_orgs(harness: Harness) -> None:
    small = await harness.add_org("small")
    await harness.write(update(orgs).where(orgs.c.id == small).values(max_running=0))
    await harness.engine.enqueue(harness.org_id, "task", "big", [None] * 200)
    harness.engine.settings = type(harness.engine.settings)(concurrency=2)
    harness.fake_runner.long = lambda job: True
    harness.worker.prefetch.size = 100
    await harness.worker.prefetch.claim()
    await enqueue(harness, "small", org=small)
    await harness.worker.prefetch.claim()
    assert {job.target for job in harness.worker.prefetch.waiting} == {"big"}
    await harness.worker.registration.hand_back([job.id for job in harness.worker.prefetch.waiting])
    harness.worker.prefetch.waiting.clear()


async def test_what_waits_behind_work_that_lasts_is_for_others(harness: Harness) -> None:
    harness.engine.settings = type(harness.engine.settings)(concurrency=2)
    harness.fake_runner.long = lambda job: True
    harness.worker.prefetch.size = 5
    await harness.engine.enqueue(harness.org_id, "task", "job", [None] * 9)
    await harness.worker.prefetch.claim()
    assert (len(harness.worker.active), len(harness.worker.prefetch.waiting)) == (2, 5)
    await harness.wait_until_idle()
    await harness.clock.advance(LONG_RUN_AFTER)
    watching = asyncio.ensure_future(harness.worker.watch_long_runs())
    for _ in range(500):
        if len([job for job in await harness.queue() if job.state == "ready"]) == 7:
            break
        await asyncio.sleep(0.01)
    watching.cancel()
    assert not harness.worker.prefetch.waiting
    assert Counter(job.state for job in await harness.queue()) == {"running": 2, "ready": 7}
    harness.fake_runner.long = lambda job: False
    await harness.release()
    assert len(harness.fake_runner.began) == 9
    assert await harness.queue() == []


async def test_only_places_that_move_count_for_what_is_claimed_ahead(harness: Harness) -> None:
    harness.engine.settings = type(harness.engine.settings)(concurrency=4)
    harness.fake_runner.long = lambda job: job.target == "long"
    await harness.engine.enqueue(harness.org_id, "task", "short", [None])
    await harness.work()
    assert harness.worker.prefetch.size == 400
    await harness.engine.enqueue(harness.org_id, "task", "long", [None] * 3)
    await harness.work()
    await harness.clock.advance(MINUTE)
    await harness.engine.enqueue(harness.org_id, "task", "short", [None])
    await harness.work()
    assert harness.worker.prefetch.size == 100
    await harness.release()
    assert harness.worker.prefetch.size == 0  # what takes so long is not claimed before it can start


async def test_hundreds_of_orgs_with_work_all_get_their_turn(harness: Harness) -> None:
    orgs = [await harness.add_org(f"org{n}") for n in range(120)]
    for org in orgs:
        for _ in range(3):
            await enqueue(harness, org=org)
    harness.engine.settings = type(harness.engine.settings)(concurrency=40)
    for _ in range(5):
        await harness.worker.prefetch.claim()
        while harness.worker.active:
            await harness.worker.cancellation.until_idle(1)
        await harness.worker.completer.flush()
    assert len({job.org_id for job in harness.fake_runner.began}) == 120


# workers that vanish


async def other_worker(harness: Harness) -> Worker:
    worker = Worker(harness.engine)
    await register(worker, harness.engine)
    return worker


async def claim(harness: Harness, worker: Worker, room: int = 10) -> list[Job]:
    lanes = await harness.db.read(claiming.lanes)
    return await harness.db.tx(claiming.claim, lanes, worker=worker.id, routes=["task"], room=room, turn=0)


async def test_jobs_of_a_worker_that_vanished_go_to_others(harness: Harness) -> None:
    await enqueue(harness)
    lost = await other_worker(harness)
    assert len(await claim(harness, lost)) == 1
    harness.clock.set(at("9:01"))
    await harness.db.tx(workers.renew, harness.worker.id, MINUTE, harness.clock.now())
    assert await Maintenance(harness.engine, harness.worker.id).rescue_dead_workers() == 1
    await harness.work()
    assert await harness.history() == ["manual #1 success"]  # it never started: no trace
    (row,) = await harness.rows(select(worker_rows).where(worker_rows.c.id == lost.id))
    assert row.state == "dead"


async def test_a_worker_never_rescues_itself(harness: Harness) -> None:
    await enqueue(harness)
    harness.fake_runner.long = lambda job: True
    await harness.work()
    harness.clock.set(at("9:30"))
    assert await Maintenance(harness.engine, harness.worker.id).rescue_dead_workers() == 0
    await harness.release()
    assert await harness.history() == ["manual #1 success"]


async def test_the_third_crash_quarantines(harness: Harness) -> None:
    await enqueue(harness, terms=Terms(retry=Retry(9)))
    for n in (1, 2, 3):
        lost = await other_worker(harness)
        (job,) = await claim(harness, lost)
        await harness.db.tx(finishing.mark_started, [Attempt(job, new_id(), job.attempt + 1, harness.clock.now())])
        harness.clock.set(harness.clock.now() + HOUR)
        await Maintenance(harness.engine, harness.worker.id).rescue_dead_workers()
        assert len(await harness.queue()) == (1 if n < 3 else 0)
    assert await harness.history() == ["manual #1 crashed", "manual #2 crashed", "manual #3 failed: quarantined"]
    assert harness.engine.metrics.by_labels(RUNS) == {("task", "crashed"): 2, ("task", "failed"): 1}


async def test_a_crashed_run_is_followed_by_a_marked_isolated_attempt(harness: Harness) -> None:
    await enqueue(harness)
    lost = await other_worker(harness)
    (job,) = await claim(harness, lost)
    await harness.db.tx(finishing.mark_started, [Attempt(job, new_id(), 1, harness.clock.now())])
    harness.clock.set(at("9:30"))
    await Maintenance(harness.engine, harness.worker.id).rescue_dead_workers()
    harness.fake_runner.long = lambda job: True
    await harness.work()
    (row,) = await harness.queue()
    assert row.run_id is not None  # written down before it began
    assert harness.worker.active[row.id].ctx.isolated
    await harness.release()
    assert await harness.history() == ["manual #1 crashed", "manual #2 success"]


async def test_handing_back_at_shutdown_uses_up_no_retry(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: True
    await enqueue(harness)
    await harness.work()
    await harness.worker.drain(timedelta(0))
    (row,) = await harness.queue()
    assert (row.state, row.attempt, row.tries) == ("ready", 1, 0)
    assert await harness.history() == ["manual #1 canceled: shutdown"]
    harness.worker = await other_worker(harness)
    harness.fake_runner.long = lambda job: False
    await harness.work()
    assert (await harness.history())[-1] == "manual #2 success"


async def test_a_job_without_a_live_worker_is_parked_until_one_starts(harness: Harness) -> None:
    await enqueue(harness)
    await harness.write(update(jobs).values(route="task:elsewhere"))
    harness.clock.set(at("9:05"))
    await harness.db.tx(workers.renew, harness.worker.id, HOUR, harness.clock.now())
    await Maintenance(harness.engine, harness.worker.id).reconcile()
    (row,) = await harness.queue()
    assert (row.state, row.parked_reason) == ("parked", "unroutable")
    await harness.db.tx(queue.resume_routes, ["task:elsewhere"])
    (row,) = await harness.queue()
    assert (row.state, row.parked_reason) == ("ready", None)


# one bad row


async def test_a_result_that_the_database_refuses_costs_only_its_own_run(harness: Harness) -> None:
    for n in range(8):
        await enqueue(harness, f"job{n}")
    lanes = await harness.db.read(claiming.lanes)
    took = await harness.db.tx(claiming.claim, lanes, worker=harness.worker.id, routes=["task"], room=9, turn=0)
    ended = [AttemptResult(job, Status.SUCCESS, None, NINE, new_id(), 1, NINE, outcome={"n": 1}) for job in took]
    ended[5] = AttemptResult(
        took[5], Status.SUCCESS, None, NINE, new_id(), 1, NINE, outcome={"text": "half \ud800 a pair"}
    )
    harness.worker.completer.results = ended
    while harness.worker.completer.results:
        await harness.worker.completer.flush()
    assert await harness.queue() == []
    ledger = {row.job_id: row.status for row in await harness.rows(select(runs))}
    assert [ledger[job.id] for job in took] == ["success"] * 5 + ["failed"] + ["success"] * 2


async def test_a_run_that_cannot_be_written_at_all_stops_no_loop(harness: Harness) -> None:
    first, second = await enqueue(harness, "one"), await enqueue(harness, "two")
    took = await claim(harness, harness.worker)
    ended = {job.id: AttemptResult(job, Status.SUCCESS, None, NINE, new_id(), 1, NINE) for job in took}
    await harness.db.tx(ledger_rows.append, [ended[first]], None)  # the ledger has this attempt, under another id
    harness.worker.completer.results = [replace(ended[first], run_id=new_id()), ended[second]]
    while harness.worker.completer.results:
        await harness.worker.completer.flush()
    assert second in {row.job_id for row in await harness.rows(select(runs))}


async def test_a_slot_that_the_database_rejects_is_reported_and_the_rest_fire(harness: Harness) -> None:
    """ONE_BAD_ROW_STOPS_NO_LOOP."""
    bodies = [{"name": f"job{n}", "target": f"job{n}", "cron_expression": "*/10 * * * *"} for n in range(7)]
    await harness.engine.create_schedules(harness.org_id, bodies)
    if harness.db.url.startswith("sqlite"):
        refuse = (
            "CREATE TRIGGER refuse BEFORE INSERT ON jobs WHEN NEW.target = 'job3' "
            "BEGIN SELECT RAISE(ABORT, 'no job3 here'); END"
        )
        undo = "DROP TRIGGER refuse"
    else:
        refuse = "ALTER TABLE jobs ADD CONSTRAINT refuse CHECK (target <> 'job3')"
        undo = "ALTER TABLE jobs DROP CONSTRAINT refuse"
    await harness.write(text(refuse))
    try:
        await harness.run_until(at("9:10"))
    finally:
        await harness.write(text(undo))
    for n in range(7):
        expected = "9:10 ran" if n != 3 else "9:10 skipped: scheduler_failed"
        assert await harness.verdicts(f"job{n}") == [expected]
        assert await harness.planned(f"job{n}") == ("9:20", "9:20")
    stats = await harness.stats("job3")
    assert (stats.fired, stats.failure_count, stats.skipped_count) == (0, 1, 1)
    assert stats.last_run_status == "scheduler_failed"
    await harness.run_until(at("9:20"))
    assert await harness.verdicts("job3") == ["9:10 skipped: scheduler_failed", "9:20 ran"]
