"""The tick of a scheduler for pipelines, as policies of the one engine: what fires, what passes, what waits."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import structlog
from sqlalchemy import select, update

from rota.core.errors import Conflict
from rota.core.policy import Failure, FailureClass
from rota.db.tables import clocks, jobs, runs, schedules
from rota.engine import orgs
from rota.engine.instruments import RUNS
from rota.engine.maintenance import Maintenance
from rota.engine.runner import WorkFailed
from tests.engine.harness import NINE, at, clock_text
from tests.kinds.pipelines.harness import FakeExecutor, PipelineHarness, open_pipeline_harness

TOTALS = "sales/silver/daily_totals"


@pytest.fixture
async def harness(clean_url: str, tmp_path: Path) -> AsyncIterator[PipelineHarness]:
    """A harness whose executor ends runs on request; at the end every slot must have a verdict."""
    harness = await open_pipeline_harness(clean_url, tmp_path / "warehouse", FakeExecutor())
    await harness.pipeline(TOTALS)
    yield harness
    try:
        await harness.check()
    finally:
        await harness.close()


def fake_executor(harness: PipelineHarness) -> FakeExecutor:
    assert harness.fake_executor is not None
    return harness.fake_executor


# the eight of the design


async def test_no_schedules(harness: PipelineHarness) -> None:
    await harness.run_until(at("12:00"))
    assert await harness.ran() == []


async def test_disabled_schedule_is_skipped(harness: PipelineHarness) -> None:
    await harness.plan(TOTALS, enabled=False)
    await harness.run_until(at("12:30"))
    assert (await harness.ran(), await harness.verdicts()) == ([], [])


async def test_due_schedule_fires(harness: PipelineHarness) -> None:
    await harness.plan(TOTALS)
    await harness.run_until(at("10:00"))
    assert await harness.ran() == [f"{TOTALS} schedule:0 * * * * success"]
    stats = await harness.stats()
    (run,) = await harness.rows(select(runs))
    assert (stats.last_run_id, stats.last_run_at, stats.fired) == (run.id, at("10:00"), 1)
    assert run.outcome == {"rows_written": 1, "duration_ms": 500}
    assert (run.target_name, run.target_version) == (TOTALS, "1")


async def test_counts_begin_at_zero_and_lateness_is_on_record(harness: PipelineHarness) -> None:
    await harness.plan(TOTALS)
    before = await harness.stats()
    assert (before.fired, before.failure_count, before.skipped_count, before.last_run_at) == (0, 0, 0, None)
    await harness.start_at(at("10:00") + timedelta(seconds=7))
    (run,) = await harness.rows(select(runs))
    assert run.started_at - run.slot == timedelta(seconds=7)
    assert (await harness.stats()).fired == 1


async def test_future_schedule_does_not_fire(harness: PipelineHarness) -> None:
    await harness.plan(TOTALS)
    await harness.run_until(at("9:59"))
    assert await harness.ran() == []
    assert await harness.planned() == ("10:00", "10:00")


async def test_nil_next_run_at_is_computed_and_does_not_fire(harness: PipelineHarness) -> None:
    await harness.plan(TOTALS)
    await harness.write(update(clocks).values(next_slot=None, next_run_at=None))
    await harness.start_at(at("9:30"))
    await Maintenance(harness.engine).reconcile()
    await harness.run_due()
    assert (await harness.ran(), await harness.planned()) == ([], ("10:00", "10:00"))
    stats = await harness.stats()
    assert (stats.last_run_at, stats.fired) == (None, 0)  # nothing ran, so no start is recorded


async def test_missed_schedule_fires_once_and_continues_from_now(harness: PipelineHarness) -> None:
    await harness.plan(TOTALS)
    await harness.run_until(at("10:00"))
    await harness.start_at(at("13:20"))  # three hours without a worker
    assert await harness.ran() == [f"{TOTALS} schedule:0 * * * * success"] * 2
    assert await harness.verdicts() == ["10:00 ran", "11:00-12:00 x2 coalesced > 13:00", "13:00 ran"]
    assert await harness.planned() == ("14:00", "14:00")


async def test_executor_failure_is_recorded_and_the_chain_continues(harness: PipelineHarness) -> None:
    fake_executor(harness).errors = [WorkFailed(Failure(FailureClass.LOGIC, "Broken", "the runner is broken"))]
    await harness.plan(TOTALS)
    await harness.run_until(at("11:00"))
    cron = f"{TOTALS} schedule:0 * * * *"
    assert await harness.ran() == [f"{cron} failed: logic", f"{cron} success"]
    assert (await harness.stats()).failure_count == 1


async def test_invalid_cron_is_skipped_with_a_warning_and_marked_broken(harness: PipelineHarness) -> None:
    await harness.plan(TOTALS, name="bad")
    await harness.plan(TOTALS, name="good", cron="0 * * * *")
    timing = {"trigger": {"type": "cron", "expression": "not a cron"}, "zone": "UTC"}
    await harness.write(update(schedules).where(schedules.c.name == "bad").values(timing=timing))
    with structlog.testing.capture_logs() as logs:
        await harness.run_until(at("10:00"))
    assert any("marked broken" in line["event"] for line in logs)
    broken = await harness.record("bad")
    assert broken.condition == "broken"
    assert broken.condition_reason
    assert await harness.ran() == [f"{TOTALS} schedule:0 * * * * success"]


# what was learned later


async def test_active_run_is_not_stacked_upon(harness: PipelineHarness) -> None:
    fake_executor(harness).shut = True
    await harness.plan(TOTALS)
    await harness.run_until(at("11:00"))
    assert await harness.verdicts() == ["10:00 (running)", "11:00 skipped: overlap"]


async def test_pending_run_is_not_stacked_upon(harness: PipelineHarness) -> None:
    await harness.plan(TOTALS)
    harness.clock.set(at("10:00"))
    await harness.fire()
    harness.clock.set(at("11:00"))
    await harness.fire()
    assert await harness.verdicts() == ["10:00 (ready)", "11:00 skipped: overlap"]
    await harness.run_due()


async def test_ended_runs_do_not_hold_up_the_next(harness: PipelineHarness) -> None:
    fake_executor(harness).errors = [RuntimeError("x")]
    await harness.plan(TOTALS)
    await harness.run_until(at("12:00"))
    assert [line.split()[-1] for line in await harness.ran()] == ["logic", "success", "success"]


async def test_a_run_that_finds_no_room_stays_pending_and_is_used_again(harness: PipelineHarness) -> None:
    """Never a dead-lock, though the schedule skips while a run is pending; never a second run for the slot."""
    fake_executor(harness).places = 0
    await harness.plan(TOTALS, cron="*/30 * * * *")
    await harness.run_until(at("9:30"))
    (job,) = await harness.rows(select(jobs))
    assert (job.state, job.attempt, job.run_id, job.last_run_id) == ("retry", 0, None, None)
    assert (await harness.ran(), await harness.verdicts()) == ([], ["9:30 (retry)"])
    await harness.run_until(at("9:31"))
    assert fake_executor(harness).asked == 0  # no poll was needed: it reported that it is busy
    fake_executor(harness).places = 1
    await harness.run_until(at("9:32"))
    (run,) = await harness.rows(select(runs))
    assert (run.job_id, run.attempt, run.status, clock_text(run.slot)) == (job.id, 1, "success", "9:30")
    assert harness.engine.metrics.by_labels(RUNS) == {("pipeline", "success"): 1}
    await harness.run_until(at("10:00"))
    assert await harness.verdicts() == ["9:30 ran", "10:00 ran"]


async def test_disabling_a_schedule_withdraws_a_run_that_waits_for_room(harness: PipelineHarness) -> None:
    fake_executor(harness).places = 0
    await harness.plan(TOTALS)
    await harness.run_until(at("10:00"))
    await harness.edit(enabled=False)
    assert await harness.verdicts() == ["10:00 skipped: disabled"]
    assert await harness.waiting() == []


async def test_canceling_a_run_that_waits_for_room_takes_it_away(harness: PipelineHarness) -> None:
    fake_executor(harness).places = 0
    job_id = await harness.manager.run(TOTALS)
    await harness.run_due()
    await harness.engine.cancel(harness.org_id, job_id)
    assert await harness.ran() == [f"{TOTALS} manual canceled: operator"]


async def test_many_due_at_once_are_all_run_within_the_executors_room(harness: PipelineHarness) -> None:
    fake_executor(harness).shut = True
    for number in range(10):
        await harness.pipeline(f"sales/bronze/t{number}")
        await harness.plan(f"sales/bronze/t{number}", name=f"job{number}")
    await harness.start_at(at("10:00"))
    assert len(fake_executor(harness).inside) == fake_executor(harness).most == 4
    assert sorted({row.split()[-1] for row in await harness.waiting()}) == ["retry", "running"]
    await harness.release_executor()
    await harness.run_until(at("10:05"))
    assert len(await harness.ran()) == 10
    assert fake_executor(harness).most == 4


async def test_a_run_waits_for_a_slot_that_becomes_free_and_is_not_returned_to_the_queue(
    harness: PipelineHarness,
) -> None:
    fake_executor(harness).places = 1
    fake_executor(harness).shut = True
    for number in range(5):
        await harness.pipeline(f"sales/bronze/t{number}")
        await harness.manager.run(f"sales/bronze/t{number}")
    await harness.worker.prefetch.claim()
    for _ in range(1000):
        if fake_executor(harness).inside:
            break
        await asyncio.sleep(0.001)
    assert [row.split()[-1] for row in await harness.waiting()] == ["running"] * 5
    await harness.release_executor()
    assert len(await harness.ran()) == 5  # at the same instant: no delay has passed
    assert (fake_executor(harness).asked, fake_executor(harness).most) == (5, 1)


async def test_a_run_that_ends_before_it_is_submitted_leaves_its_slot_to_the_next(harness: PipelineHarness) -> None:
    fake_executor(harness).places = 1
    owner = await harness.db.tx(orgs.system_user, harness.org_id, NINE)
    grant_id = await harness.engine.create_grant(harness.org_id, owner, [f"pipeline:run:{TOTALS}"])
    await harness.plan(TOTALS, grant_id=grant_id)
    await harness.engine.revoke_grant(harness.org_id, grant_id)
    await harness.run_until(at("10:00"))
    await harness.run(TOTALS)
    assert await harness.ran() == [
        f"{TOTALS} schedule:0 * * * * skipped: grant_revoked",
        f"{TOTALS} manual success",
    ]


async def test_two_causes_take_turns_on_one_pipeline(harness: PipelineHarness) -> None:
    fake_executor(harness).shut = True
    await harness.plan(TOTALS)
    await harness.run_until(at("10:00"))
    await harness.manager.run(TOTALS)
    await harness.run_due()
    assert await harness.waiting() == [f"{TOTALS} schedule:0 * * * * running", f"{TOTALS} manual blocked"]
    await harness.release_executor()
    assert [line.split()[1] for line in await harness.ran()] == ["schedule:0", "manual"]


async def test_the_scheduler_idles_while_no_worker_has_an_executor(harness: PipelineHarness) -> None:
    await harness.plan(TOTALS)
    runner = harness.manager.runner
    runner.executor, executor = None, runner.executor
    await harness.run_until(at("12:30"))
    assert (await harness.ran(), await harness.waiting(), await harness.verdicts()) == ([], [], [])
    runner.executor = executor
    await harness.run_due()
    assert await harness.verdicts() == ["10:00-11:00 x2 coalesced > 12:00", "12:00 ran"]


async def test_a_run_that_takes_too_long_is_stopped(harness: PipelineHarness) -> None:
    fake_executor(harness).shut = True
    await harness.plan(TOTALS, timeout_seconds=1)
    await harness.run_until(at("10:00"))
    fake_executor(harness).shut = False
    await harness.work()
    assert await harness.ran() == [f"{TOTALS} schedule:0 * * * * failed: timeout"]


async def test_an_edited_cron_counts_from_now_and_a_bad_one_is_refused(harness: PipelineHarness) -> None:
    await harness.plan(TOTALS)
    await harness.edit(cron_expression="30 * * * *")
    assert await harness.planned() == ("9:30", "9:30")
    with pytest.raises(Exception, match="61"):
        await harness.edit(cron_expression="61 * * * *")
    await harness.edit(enabled=False)
    await harness.start_at(at("14:00"))
    await harness.edit(enabled=True)  # after a long time: nothing fires at once
    await harness.run_due()
    assert (await harness.ran(), await harness.planned()) == ([], ("14:30", "14:30"))


async def test_run_now_while_the_schedule_has_a_run_is_a_conflict(harness: PipelineHarness) -> None:
    fake_executor(harness).shut = True
    await harness.plan(TOTALS)
    await harness.run_until(at("10:00"))
    with pytest.raises(Conflict):
        await harness.run_now()


async def test_a_crash_between_two_links_of_a_chain_cuts_nothing(harness: PipelineHarness) -> None:
    """The success of the first and the job of the second are one transaction."""
    await harness.pipeline("sales/gold/report")
    await harness.trigger("sales/gold/report", "pipeline_success", upstream=TOTALS)
    await harness.manager.run(TOTALS)
    await harness.worker.prefetch.claim()
    await asyncio.wait([active_run.task for active_run in harness.worker.active.values() if active_run.task])
    await asyncio.sleep(0)  # its callback
    await harness.worker.completer.flush()
    # the worker may die here: the next worker finds the second job of the chain
    assert await harness.ran() == [f"{TOTALS} manual success"]
    assert await harness.waiting() == [f"sales/gold/report pipeline_success:{TOTALS} ready"]
    await harness.run_due()
    assert (await harness.ran())[1:] == [f"sales/gold/report pipeline_success:{TOTALS} success"]
