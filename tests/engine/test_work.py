"""What becomes of jobs: deadlines, windows, retries, order, limits, and workers that vanish."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import select, text, update

from rota.core.errors import AuthError, Conflict, LogicError, NotFound, PermissionDenied, TransientError
from rota.core.ids import new_id
from rota.core.model import Attempt, AttemptResult, Job
from rota.core.policy import Retry, Terms
from rota.core.states import Status
from rota.db.dialect import insert_rows
from rota.db.tables import jobs, orgs, queues, runs
from rota.db.tables import workers as worker_rows
from rota.engine import jobs as queue
from rota.engine import runs as ledger_rows
from rota.engine import workers
from rota.engine.maintenance import Maintenance
from rota.engine.worker import Worker
from rota.engine.worker.prefetch import LONG_RUN_AFTER
from tests.engine.harness import HOUR, MINUTE, NINE, House, at, register, told


async def enqueue(house: House, target: str = "job", **how: Any) -> str:
    return (await house.engine.enqueue(how.pop("org", house.org_id), "task", target, [None], **how))[0]


# when a job may start


async def test_a_job_that_could_not_start_in_time_is_skipped(house: House) -> None:
    house.hands.long = lambda job: job.slot == at("9:10")
    await house.schedule(overlap="queue_all", start_deadline_seconds=300)
    await house.live(at("9:33"))
    await house.release()
    assert await house.verdicts() == ["9:10 ran", "9:20 skipped: deadline", "9:30 ran"]
    assert (await house.stats()).skipped_count == 1


async def test_a_job_that_could_not_start_before_its_window_closed_is_skipped(house: House) -> None:
    house.hands.long = lambda job: job.slot == at("9:10")
    await house.schedule(overlap="queue_all", window_start="09:00", window_end="09:30")
    await house.live(at("9:30"))
    assert await house.verdicts() == ["9:10 (running)", "9:20 (blocked)"]
    await house.release()
    assert await house.verdicts() == ["9:10 ran", "9:20 skipped: window"]
    assert await house.planned() == ("+1 9:00", "+1 9:00")


async def test_slots_outside_the_window_are_no_slots(house: House) -> None:
    await house.schedule(window_start="09:30", window_end="09:50")
    await house.live(at("11:00"))
    assert await house.verdicts() == ["9:30 ran", "9:40 ran"]


async def test_a_retry_waits_for_the_next_window(house: House) -> None:
    house.hands.errors = [TransientError("net")]
    await house.schedule(
        cron="0 9 * * *",
        window_start="09:00",
        window_end="10:00",
        starts_at=at("9:01"),
        retry={"max_retries": 3, "backoff_ms": 3_600_000 * 2, "max_backoff_ms": 86_400_000},
    )
    await house.live(NINE + timedelta(days=1))
    (job,) = await house.queue()
    assert (job.state, told(job.run_at)) == ("retry", "+2 9:00")
    await house.live(NINE + timedelta(days=2))
    assert [line for line in await house.history() if line.startswith("+1")] == [
        "+1 9:00 #1 paused: transient", "+1 9:00 #2 success",
    ]  # fmt: skip


async def test_jitter_that_leads_out_of_the_window_starts_nothing_there(house: House) -> None:
    await house.schedule(cron="*/5 * * * *", window_start="09:00", window_end="09:30", jitter_seconds=3600,
                         overlap="allow", misfire="all")  # fmt: skip
    await house.live(at("23:00"))
    late = [job for job in house.hands.began if job.run_at >= at("9:30")]
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
async def test_a_failed_run_is_retried_as_its_policy_says(house: House, retry: Any, delays: list[int]) -> None:
    house.hands.errors = [ValueError("wrong")] * 9
    await house.schedule(cron="10 * * * *", retry=retry)
    await house.live(at("9:59"))
    ledger = await house.rows(select(runs).order_by(runs.c.attempt))
    assert [row.status for row in ledger] == ["failed"] * (len(delays) + 1)
    starts = [row.started_at for row in ledger]
    assert [(after - before).total_seconds() for before, after in pairwise(starts)] == delays
    assert [row.retry_of for row in ledger] == [None, *(row.id for row in ledger[:-1])]
    stats = await house.stats()
    assert (stats.failure_count, stats.last_run_status) == (1, "failed")


async def test_a_logic_error_is_not_retried_under_a_retry_policy(house: House) -> None:
    house.hands.errors = [LogicError("wrong")]
    await house.schedule(cron="10 * * * *", retry={"max_retries": 3, "backoff_ms": 5000})
    await house.live(at("9:59"))
    assert await house.history() == ["9:10 #1 failed: logic"]


async def test_transient_failures_are_retried_five_times_where_nobody_said_otherwise(house: House) -> None:
    house.hands.errors = [TransientError("net")] * 9
    await house.schedule(cron="10 * * * *")
    await house.live(at("9:59"))
    assert await house.history() == [
        *(f"9:10 #{n} paused: transient" for n in range(1, 6)),
        "9:10 #6 failed: transient",
    ]
    ledger = await house.rows(select(runs).order_by(runs.c.attempt))
    starts = [row.started_at for row in ledger]
    gaps = [(after - before).total_seconds() for before, after in pairwise(starts)]
    assert gaps == [10, 20, 40, 80, 160]
    assert (await house.stats()).failure_count == 1


async def test_a_policy_that_says_no_retries_holds_for_transient_failures_too(house: House) -> None:
    house.hands.errors = [TransientError("net")]
    await house.schedule(cron="10 * * * *", retry={"max_retries": 0})
    await house.live(at("9:59"))
    assert await house.history() == ["9:10 #1 failed: transient"]


@pytest.mark.parametrize("error", [AuthError("no key"), PermissionDenied("not yours")])
async def test_a_run_that_needs_a_person_is_parked_until_somebody_retries_it(house: House, error: Exception) -> None:
    house.hands.errors = [error]
    await house.schedule(cron="10 * * * *")
    await house.live(at("9:40"))
    assert await house.verdicts() == ["9:10 (parked)"]
    assert await house.history() == ["9:10 #1 paused: approval"]
    (run,) = await house.rows(select(runs))
    (job,) = await house.queue()
    assert await house.engine.retry(house.org_id, run.id) == job.id
    await house.work()
    assert await house.history() == ["9:10 #1 paused: approval", "9:10 #2 success"]
    assert await house.verdicts() == ["9:10 ran"]


async def test_retrying_a_finished_slot_is_a_further_attempt_of_it(house: House) -> None:
    await house.schedule(cron="10 * * * *")
    await house.live(at("9:40"))
    (run,) = await house.rows(select(runs))
    first = await house.engine.retry(house.org_id, run.id)
    assert await house.engine.retry(house.org_id, run.id) == first  # it joins
    await house.work()
    assert await house.history() == ["9:10 #1 success", "9:10 #2 success"]
    again = (await house.rows(select(runs).where(runs.c.attempt == 2)))[0]
    assert (again.retry_of, again.trigger) == (run.id, "retry")


async def test_a_job_without_a_schedule_can_be_retried(house: House) -> None:
    house.hands.errors = [LogicError("wrong")]
    await enqueue(house)
    await house.work()
    (run,) = await house.rows(select(runs))
    await house.engine.retry(house.org_id, run.id)
    await house.work()
    assert await house.history() == ["manual #1 failed: logic", "retry #2 success"]
    with pytest.raises(NotFound):
        await house.engine.retry(house.org_id, "nonsense")


async def test_what_the_schedule_counts(house: House) -> None:
    house.hands.errors = [None, LogicError("wrong"), None]
    await house.schedule()
    await house.live(at("9:35"))
    stats = await house.stats()
    last = (await house.rows(select(runs).order_by(runs.c.id.desc())))[0]
    assert (stats.fired, stats.failure_count, stats.skipped_count) == (3, 1, 0)
    assert (stats.last_run_at, stats.last_run_id, stats.last_run_status) == (at("9:30"), last.id, "success")


# cancel


@pytest.mark.parametrize("state", ["later", "ready", "blocked", "retry", "parked", "running"])
async def test_cancel_in_each_state(house: House, state: str) -> None:
    house.hands.long = lambda job: state == "running" or job.id != target
    target = ""
    if state == "later":
        target = await enqueue(house, run_at=at("10:00"))
    elif state == "blocked":
        await enqueue(house, "first", serial_key="k")
        target = await enqueue(house, serial_key="k")
        await house.work()
    else:
        target = await enqueue(house, terms=Terms(retry=Retry(3, 60_000)))
    if state in ("retry", "parked"):
        house.hands.errors = [ValueError("x") if state == "retry" else AuthError("x")]
    if state in ("retry", "parked", "running"):
        await house.work()
    (row,) = [row for row in await house.queue() if row.id == target]
    assert row.state == state
    assert await house.engine.cancel(house.org_id, target, by="ann") == target
    if state == "running":
        assert len(await house.queue()) == 1  # until its worker has stopped it
        await house.work()
    assert not [row for row in await house.queue() if row.id == target]
    last = (await house.rows(select(runs).where(runs.c.job_id == target).order_by(runs.c.attempt.desc())))[0]
    assert (last.status, last.reason) == ("canceled", "ann")
    with pytest.raises(Conflict):
        await house.engine.cancel(house.org_id, target)


async def test_what_the_work_returned_wins_over_a_late_cancel(house: House) -> None:
    house.hands.long, house.hands.stubborn = lambda job: True, True
    job = await enqueue(house)
    await house.work()
    await house.engine.cancel(house.org_id, job)
    await house.work()
    await house.release()
    assert await house.history() == ["manual #1 success"]


async def test_a_canceled_run_that_fails_by_itself_is_not_retried(house: House) -> None:
    house.hands.long, house.hands.stubborn = lambda job: True, True
    house.hands.errors = [TransientError("net")]
    job = await enqueue(house, serial_key="k")
    behind = await enqueue(house, serial_key="k")
    await house.work()
    await house.engine.cancel(house.org_id, job, by="ann")
    await house.release()
    ledger = await house.rows(select(runs).where(runs.c.job_id == job).order_by(runs.c.attempt))
    assert (ledger[-1].status, ledger[-1].reason) == ("canceled", "ann")
    assert [row.id for row in await house.queue()] == [behind]


# order, limits, fairness


async def test_urgent_jobs_start_first_then_older_ones(house: House) -> None:
    house.clock.set(at("9:30"))
    for target, priority, run_at in [("c", 0, "9:10"), ("a", 5, "9:20"), ("b", 0, "9:05"), ("d", -5, "9:01")]:
        await enqueue(house, target, priority=priority, run_at=at(run_at))
    await house.work()
    assert [job.target for job in house.hands.began] == ["a", "b", "c", "d"]


async def limit_queue(house: House, **values: Any) -> None:
    await house.db.tx(insert_rows, queues, [{"org_id": house.org_id, "name": "default", **values}])


async def test_a_queue_starts_no_more_than_its_limit(house: House) -> None:
    house.hands.long = lambda job: True
    await limit_queue(house, max_running=2)
    for _ in range(5):
        await enqueue(house)
    await enqueue(house, queue_name="other")
    await house.work()
    assert sorted(job.queue for job in house.hands.began) == ["default", "default", "other"]
    await house.release()
    assert len(house.hands.began) == 5


async def test_an_org_starts_no_more_than_its_limit_over_all_queues(house: House) -> None:
    house.hands.long = lambda job: True
    await house.limit_org(max_running=3)
    other = await house.add_org("other")
    for name in ("a", "b"):
        for _ in range(4):
            await enqueue(house, queue_name=name)
    await enqueue(house, org=other)
    await house.work()
    assert len([job for job in house.hands.began if job.org_id == house.org_id]) == 3
    assert len([job for job in house.hands.began if job.org_id == other]) == 1


async def test_no_queue_of_a_limited_org_starves_another(house: House) -> None:
    await house.limit_org(max_running=1)
    for n in range(12):
        await enqueue(house, queue_name="a" if n % 2 else "b")
    house.engine.settings = type(house.engine.settings)(concurrency=1)
    await house.work()
    assert {job.queue for job in house.hands.began[:4]} == {"a", "b"}


async def test_a_paused_queue_starts_nothing(house: House) -> None:
    await limit_queue(house, paused_at=NINE)
    await enqueue(house)
    await enqueue(house, "free", queue_name="other")
    await house.work()
    assert [job.target for job in house.hands.began] == ["free"]
    await house.write(update(queues).values(paused_at=None))
    await house.work()
    assert [job.target for job in house.hands.began] == ["free", "job"]


async def test_a_job_of_a_small_org_starts_although_another_has_ten_thousand_waiting(house: House) -> None:
    small = await house.add_org("small")
    await house.engine.enqueue(house.org_id, "task", "big", [None] * 10_000)
    job = await enqueue(house, "small", org=small)
    house.hands.long = lambda job: True
    await house.worker.prefetch.claim()
    assert job in {one.attempt.job.id for one in house.worker.active.values()}
    assert len(house.worker.active) == 50 or len(house.worker.active) == 26
    await house.work()
    assert len(house.worker.active) == 50  # what the small org does not need goes to the big one


async def test_a_job_of_another_org_does_not_wait_behind_what_was_claimed_ahead(house: House) -> None:
    small, third = [await house.add_org(name) for name in ("small", "third")]
    await house.engine.enqueue(house.org_id, "task", "big", [None] * 200)
    house.engine.settings = type(house.engine.settings)(concurrency=2)
    house.hands.long = lambda job: len(house.hands.began) <= 2
    house.worker.prefetch.size = 100
    await house.worker.prefetch.claim()
    for _ in range(3):
        await enqueue(house, "small", org=small)
        await house.worker.prefetch.claim()
    await enqueue(house, "third", org=third)
    await house.worker.prefetch.claim()
    held = [job.target for job in house.worker.prefetch.waiting]
    assert Counter(held) == {"big": 100, "small": 1, "third": 1}  # a job of each org: the rest is for other workers
    await house.release()
    targets = [job.target for job in house.hands.began]
    assert targets[:5] == ["big", "big", "big", "small", "third"]
    assert Counter(targets) == {"big": 200, "small": 3, "third": 1}


async def test_a_worker_with_enough_to_do_minds_the_limits_of_others(house: House) -> None:
    small = await house.add_org("small")
    await house.write(update(orgs).where(orgs.c.id == small).values(max_running=0))
    await house.engine.enqueue(house.org_id, "task", "big", [None] * 200)
    house.engine.settings = type(house.engine.settings)(concurrency=2)
    house.hands.long = lambda job: True
    house.worker.prefetch.size = 100
    await house.worker.prefetch.claim()
    await enqueue(house, "small", org=small)
    await house.worker.prefetch.claim()
    assert {job.target for job in house.worker.prefetch.waiting} == {"big"}
    await house.worker.registration.hand_back([job.id for job in house.worker.prefetch.waiting])
    house.worker.prefetch.waiting.clear()


async def test_what_waits_behind_work_that_lasts_is_for_others(house: House) -> None:
    house.engine.settings = type(house.engine.settings)(concurrency=2)
    house.hands.long = lambda job: True
    house.worker.prefetch.size = 5
    await house.engine.enqueue(house.org_id, "task", "job", [None] * 9)
    await house.worker.prefetch.claim()
    assert (len(house.worker.active), len(house.worker.prefetch.waiting)) == (2, 5)
    await house.still()
    await house.clock.advance(LONG_RUN_AFTER)
    watching = asyncio.ensure_future(house.worker.watch_long_runs())
    for _ in range(500):
        if len([job for job in await house.queue() if job.state == "ready"]) == 7:
            break
        await asyncio.sleep(0.01)
    watching.cancel()
    assert not house.worker.prefetch.waiting
    assert Counter(job.state for job in await house.queue()) == {"running": 2, "ready": 7}
    house.hands.long = lambda job: False
    await house.release()
    assert len(house.hands.began) == 9
    assert await house.queue() == []


async def test_only_places_that_move_count_for_what_is_claimed_ahead(house: House) -> None:
    house.engine.settings = type(house.engine.settings)(concurrency=4)
    house.hands.long = lambda job: job.target == "long"
    await house.engine.enqueue(house.org_id, "task", "short", [None])
    await house.work()
    assert house.worker.prefetch.size == 400
    await house.engine.enqueue(house.org_id, "task", "long", [None] * 3)
    await house.work()
    await house.clock.advance(MINUTE)
    await house.engine.enqueue(house.org_id, "task", "short", [None])
    await house.work()
    assert house.worker.prefetch.size == 100
    await house.release()
    assert house.worker.prefetch.size == 0  # what takes so long is not claimed before it can start


async def test_hundreds_of_orgs_with_work_all_get_their_turn(house: House) -> None:
    orgs = [await house.add_org(f"org{n}") for n in range(120)]
    for org in orgs:
        for _ in range(3):
            await enqueue(house, org=org)
    house.engine.settings = type(house.engine.settings)(concurrency=40)
    for _ in range(5):
        await house.worker.prefetch.claim()
        while house.worker.active:
            await house.worker.cancellation.until_idle(1)
        await house.worker.completer.flush()
    assert len({job.org_id for job in house.hands.began}) == 120


# workers that vanish


async def other_worker(house: House) -> Worker:
    one = Worker(house.engine)
    await register(one, house.engine)
    return one


async def claim(house: House, worker: Worker, room: int = 10) -> list[Job]:
    found = await house.db.read(queue.lanes)
    return await house.db.tx(queue.claim, found, worker=worker.id, routes=["task"], room=room, turn=0)


async def test_jobs_of_a_worker_that_vanished_go_to_others(house: House) -> None:
    await enqueue(house)
    lost = await other_worker(house)
    assert len(await claim(house, lost)) == 1
    house.clock.set(at("9:01"))
    await house.db.tx(workers.renew, house.worker.id, MINUTE, house.clock.now())
    assert await Maintenance(house.engine, house.worker.id).rescue() == 1
    await house.work()
    assert await house.history() == ["manual #1 success"]  # it never started: no trace
    (row,) = await house.rows(select(worker_rows).where(worker_rows.c.id == lost.id))
    assert row.state == "dead"


async def test_a_worker_never_rescues_itself(house: House) -> None:
    await enqueue(house)
    house.hands.long = lambda job: True
    await house.work()
    house.clock.set(at("9:30"))
    assert await Maintenance(house.engine, house.worker.id).rescue() == 0
    await house.release()
    assert await house.history() == ["manual #1 success"]


async def test_the_third_crash_quarantines(house: House) -> None:
    await enqueue(house, terms=Terms(retry=Retry(9)))
    for n in (1, 2, 3):
        lost = await other_worker(house)
        (job,) = await claim(house, lost)
        await house.db.tx(queue.mark_started, [Attempt(job, new_id(), job.attempt + 1, house.clock.now())])
        house.clock.set(house.clock.now() + HOUR)
        await Maintenance(house.engine, house.worker.id).rescue()
        assert len(await house.queue()) == (1 if n < 3 else 0)
    assert await house.history() == ["manual #1 crashed", "manual #2 crashed", "manual #3 failed: quarantined"]
    assert house.engine.meter.runs == {("task", "crashed"): 2, ("task", "failed"): 1}


async def test_a_crashed_run_is_followed_by_a_marked_isolated_attempt(house: House) -> None:
    await enqueue(house)
    lost = await other_worker(house)
    (job,) = await claim(house, lost)
    await house.db.tx(queue.mark_started, [Attempt(job, new_id(), 1, house.clock.now())])
    house.clock.set(at("9:30"))
    await Maintenance(house.engine, house.worker.id).rescue()
    house.hands.long = lambda job: True
    await house.work()
    (row,) = await house.queue()
    assert row.run_id is not None  # written down before it began
    assert house.worker.active[row.id].ctx.isolated
    await house.release()
    assert await house.history() == ["manual #1 crashed", "manual #2 success"]


async def test_handing_back_at_shutdown_uses_up_no_retry(house: House) -> None:
    house.hands.long = lambda job: True
    await enqueue(house)
    await house.work()
    await house.worker.drain(timedelta(0))
    (row,) = await house.queue()
    assert (row.state, row.attempt, row.tries) == ("ready", 1, 0)
    assert await house.history() == ["manual #1 canceled: shutdown"]
    house.worker = await other_worker(house)
    house.hands.long = lambda job: False
    await house.work()
    assert (await house.history())[-1] == "manual #2 success"


async def test_work_that_nobody_can_run_is_put_aside_until_somebody_comes_up(house: House) -> None:
    await enqueue(house)
    await house.write(update(jobs).values(route="task:elsewhere"))
    house.clock.set(at("9:05"))
    await house.db.tx(workers.renew, house.worker.id, HOUR, house.clock.now())
    await Maintenance(house.engine, house.worker.id).reconcile()
    (row,) = await house.queue()
    assert (row.state, row.parked_reason) == ("parked", "unroutable")
    await house.db.tx(queue.route, ["task:elsewhere"])
    (row,) = await house.queue()
    assert (row.state, row.parked_reason) == ("ready", None)


# one bad row


async def test_a_result_that_the_database_refuses_costs_only_its_own_run(house: House) -> None:
    for n in range(8):
        await enqueue(house, f"job{n}")
    found = await house.db.read(queue.lanes)
    took = await house.db.tx(queue.claim, found, worker=house.worker.id, routes=["task"], room=9, turn=0)
    ended = [AttemptResult(job, Status.SUCCESS, None, NINE, new_id(), 1, NINE, outcome={"n": 1}) for job in took]
    ended[5] = AttemptResult(
        took[5], Status.SUCCESS, None, NINE, new_id(), 1, NINE, outcome={"text": "half \ud800 a pair"}
    )
    house.worker.completer.results = ended
    while house.worker.completer.results:
        await house.worker.completer.flush()
    assert await house.queue() == []
    ledger = {row.job_id: row.status for row in await house.rows(select(runs))}
    assert [ledger[job.id] for job in took] == ["success"] * 5 + ["failed"] + ["success"] * 2


async def test_a_run_that_cannot_be_written_at_all_stops_no_loop(house: House) -> None:
    one, two = await enqueue(house, "one"), await enqueue(house, "two")
    took = await claim(house, house.worker)
    ended = {job.id: AttemptResult(job, Status.SUCCESS, None, NINE, new_id(), 1, NINE) for job in took}
    await house.db.tx(ledger_rows.append, [ended[one]], None)  # the ledger has this attempt, under another id
    house.worker.completer.results = [replace(ended[one], run_id=new_id()), ended[two]]
    while house.worker.completer.results:
        await house.worker.completer.flush()
    assert two in {row.job_id for row in await house.rows(select(runs))}


async def test_a_slot_that_the_database_refuses_is_told_and_the_rest_fire(house: House) -> None:
    bodies = [{"name": f"job{n}", "target": f"job{n}", "cron_expression": "*/10 * * * *"} for n in range(7)]
    await house.engine.create_schedules(house.org_id, bodies)
    if house.db.url.startswith("sqlite"):
        refuse = (
            "CREATE TRIGGER refuse BEFORE INSERT ON jobs WHEN NEW.target = 'job3' "
            "BEGIN SELECT RAISE(ABORT, 'no job3 here'); END"
        )
        undo = "DROP TRIGGER refuse"
    else:
        refuse = "ALTER TABLE jobs ADD CONSTRAINT refuse CHECK (target <> 'job3')"
        undo = "ALTER TABLE jobs DROP CONSTRAINT refuse"
    await house.write(text(refuse))
    try:
        await house.live(at("9:10"))
    finally:
        await house.write(text(undo))
    for n in range(7):
        expected = "9:10 ran" if n != 3 else "9:10 skipped: scheduler_failed"
        assert await house.verdicts(f"job{n}") == [expected]
        assert await house.planned(f"job{n}") == ("9:20", "9:20")
    stats = await house.stats("job3")
    assert (stats.fired, stats.failure_count, stats.skipped_count) == (0, 1, 1)
    assert stats.last_run_status == "scheduler_failed"
    await house.live(at("9:20"))
    assert await house.verdicts("job3") == ["9:10 skipped: scheduler_failed", "9:20 ran"]
