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
from rota.engine.maintenance import Maintenance
from rota.engine.runner import WorkFailed
from tests.engine.harness import at, told
from tests.kinds.lake import Hall, Lake, open_lake

TOTALS = "sales/silver/daily_totals"


@pytest.fixture
async def lake(clean_url: str, tmp_path: Path) -> AsyncIterator[Lake]:
    """With an executor whose runs end when the test says; at the end every slot must have its verdict."""
    one = await open_lake(clean_url, tmp_path / "warehouse", Hall())
    await one.pipeline(TOTALS)
    yield one
    try:
        await one.check()
    finally:
        await one.close()


def hall(lake: Lake) -> Hall:
    assert lake.hall is not None
    return lake.hall


# the eight of the design


async def test_no_schedules(lake: Lake) -> None:
    await lake.live(at("12:00"))
    assert await lake.ran() == []


async def test_disabled_schedule_is_skipped(lake: Lake) -> None:
    await lake.plan(TOTALS, enabled=False)
    await lake.live(at("12:30"))
    assert (await lake.ran(), await lake.verdicts()) == ([], [])


async def test_due_schedule_fires(lake: Lake) -> None:
    await lake.plan(TOTALS)
    await lake.live(at("10:00"))
    assert await lake.ran() == [f"{TOTALS} schedule:0 * * * * success"]
    stats = await lake.stats()
    (run,) = await lake.rows(select(runs))
    assert (stats.last_run_id, stats.last_run_at, stats.fired) == (run.id, at("10:00"), 1)
    assert run.outcome == {"rows_written": 1, "duration_ms": 500}
    assert (run.target_name, run.target_version) == (TOTALS, "1")


async def test_counts_begin_at_zero_and_lateness_is_on_record(lake: Lake) -> None:
    await lake.plan(TOTALS)
    before = await lake.stats()
    assert (before.fired, before.failure_count, before.skipped_count, before.last_run_at) == (0, 0, 0, None)
    await lake.wake_up(at("10:00") + timedelta(seconds=7))
    (run,) = await lake.rows(select(runs))
    assert run.started_at - run.slot == timedelta(seconds=7)
    assert (await lake.stats()).fired == 1


async def test_future_schedule_does_not_fire(lake: Lake) -> None:
    await lake.plan(TOTALS)
    await lake.live(at("9:59"))
    assert await lake.ran() == []
    assert await lake.planned() == ("10:00", "10:00")


async def test_nil_next_run_at_is_computed_and_does_not_fire(lake: Lake) -> None:
    await lake.plan(TOTALS)
    await lake.write(update(clocks).values(next_slot=None, next_run_at=None))
    await lake.wake_up(at("9:30"))
    await Maintenance(lake.engine).reconcile()
    await lake.act()
    assert (await lake.ran(), await lake.planned()) == ([], ("10:00", "10:00"))
    stats = await lake.stats()
    assert (stats.last_run_at, stats.fired) == (None, 0)  # nothing ran, so nothing says so


async def test_missed_schedule_fires_once_and_goes_on_from_now(lake: Lake) -> None:
    await lake.plan(TOTALS)
    await lake.live(at("10:00"))
    await lake.wake_up(at("13:20"))  # three hours of nobody
    assert await lake.ran() == [f"{TOTALS} schedule:0 * * * * success"] * 2
    assert await lake.verdicts() == ["10:00 ran", "11:00-12:00 x2 coalesced > 13:00", "13:00 ran"]
    assert await lake.planned() == ("14:00", "14:00")


async def test_executor_failure_is_recorded_and_the_chain_goes_on(lake: Lake) -> None:
    hall(lake).errors = [WorkFailed(Failure(FailureClass.LOGIC, "Broken", "the runner is broken"))]
    await lake.plan(TOTALS)
    await lake.live(at("11:00"))
    cron = f"{TOTALS} schedule:0 * * * *"
    assert await lake.ran() == [f"{cron} failed: logic", f"{cron} success"]
    assert (await lake.stats()).failure_count == 1


async def test_invalid_cron_is_skipped_with_a_warning_and_marked_broken(lake: Lake) -> None:
    await lake.plan(TOTALS, name="bad")
    await lake.plan(TOTALS, name="good", cron="0 * * * *")
    timing = {"trigger": {"type": "cron", "expression": "not a cron"}, "zone": "UTC"}
    await lake.write(update(schedules).where(schedules.c.name == "bad").values(timing=timing))
    with structlog.testing.capture_logs() as logs:
        await lake.live(at("10:00"))
    assert any("marked broken" in line["event"] for line in logs)
    broken = await lake.record("bad")
    assert broken.condition == "broken"
    assert broken.condition_reason
    assert await lake.ran() == [f"{TOTALS} schedule:0 * * * * success"]


# what was learned later


async def test_active_run_is_not_stacked_upon(lake: Lake) -> None:
    hall(lake).shut = True
    await lake.plan(TOTALS)
    await lake.live(at("11:00"))
    assert await lake.verdicts() == ["10:00 (running)", "11:00 skipped: overlap"]


async def test_pending_run_is_not_stacked_upon(lake: Lake) -> None:
    await lake.plan(TOTALS)
    lake.clock.set(at("10:00"))
    await lake.fire()
    lake.clock.set(at("11:00"))
    await lake.fire()
    assert await lake.verdicts() == ["10:00 (ready)", "11:00 skipped: overlap"]
    await lake.act()


async def test_ended_runs_do_not_hold_up_the_next(lake: Lake) -> None:
    hall(lake).errors = [RuntimeError("x")]
    await lake.plan(TOTALS)
    await lake.live(at("12:00"))
    assert [line.split()[-1] for line in await lake.ran()] == ["logic", "success", "success"]


async def test_a_run_that_finds_no_room_stays_pending_and_is_used_again(lake: Lake) -> None:
    """Never a dead-lock, though the schedule skips while a run is pending; never a second run for the slot."""
    hall(lake).places = 0
    await lake.plan(TOTALS, cron="*/30 * * * *")
    await lake.live(at("9:30"))
    (job,) = await lake.rows(select(jobs))
    assert (job.state, job.attempt, job.run_id, job.last_run_id) == ("retry", 0, None, None)
    assert (await lake.ran(), await lake.verdicts()) == ([], ["9:30 (retry)"])
    await lake.live(at("9:31"))
    assert hall(lake).asked == 0  # there was no need to ask: it said so
    hall(lake).places = 1
    await lake.live(at("9:32"))
    (run,) = await lake.rows(select(runs))
    assert (run.job_id, run.attempt, run.status, told(run.slot)) == (job.id, 1, "success", "9:30")
    assert lake.engine.meter.runs == {("pipeline", "success"): 1}
    await lake.live(at("10:00"))
    assert await lake.verdicts() == ["9:30 ran", "10:00 ran"]


async def test_disabling_a_schedule_withdraws_a_run_that_waits_for_room(lake: Lake) -> None:
    hall(lake).places = 0
    await lake.plan(TOTALS)
    await lake.live(at("10:00"))
    await lake.edit(enabled=False)
    assert await lake.verdicts() == ["10:00 skipped: disabled"]
    assert await lake.waiting() == []


async def test_canceling_a_run_that_waits_for_room_takes_it_away(lake: Lake) -> None:
    hall(lake).places = 0
    job_id = await lake.manager.run(TOTALS)
    await lake.act()
    await lake.engine.cancel(lake.org_id, job_id)
    assert await lake.ran() == [f"{TOTALS} manual canceled: operator"]


async def test_many_due_at_once_are_all_run_within_the_executors_room(lake: Lake) -> None:
    hall(lake).shut = True
    for number in range(10):
        await lake.pipeline(f"sales/bronze/t{number}")
        await lake.plan(f"sales/bronze/t{number}", name=f"job{number}")
    await lake.wake_up(at("10:00"))
    assert len(hall(lake).inside) == hall(lake).most == 4
    assert sorted({row.split()[-1] for row in await lake.waiting()}) == ["retry", "running"]
    await lake.release_hall()
    await lake.live(at("10:05"))
    assert len(await lake.ran()) == 10
    assert hall(lake).most == 4


async def test_two_causes_take_turns_on_one_pipeline(lake: Lake) -> None:
    hall(lake).shut = True
    await lake.plan(TOTALS)
    await lake.live(at("10:00"))
    await lake.manager.run(TOTALS)
    await lake.act()
    assert await lake.waiting() == [f"{TOTALS} schedule:0 * * * * running", f"{TOTALS} manual blocked"]
    await lake.release_hall()
    assert [line.split()[1] for line in await lake.ran()] == ["schedule:0", "manual"]


async def test_the_scheduler_idles_while_nobody_here_has_an_executor(lake: Lake) -> None:
    await lake.plan(TOTALS)
    runner = lake.manager.runner
    runner.executor, executor = None, runner.executor
    await lake.live(at("12:30"))
    assert (await lake.ran(), await lake.waiting(), await lake.verdicts()) == ([], [], [])
    runner.executor = executor
    await lake.act()
    assert await lake.verdicts() == ["10:00-11:00 x2 coalesced > 12:00", "12:00 ran"]


async def test_a_run_that_takes_too_long_is_stopped(lake: Lake) -> None:
    hall(lake).shut = True
    await lake.plan(TOTALS, timeout_seconds=1)
    await lake.live(at("10:00"))
    hall(lake).shut = False
    await lake.work()
    assert await lake.ran() == [f"{TOTALS} schedule:0 * * * * failed: timeout"]


async def test_an_edited_cron_counts_from_now_and_a_bad_one_is_refused(lake: Lake) -> None:
    await lake.plan(TOTALS)
    await lake.edit(cron_expression="30 * * * *")
    assert await lake.planned() == ("9:30", "9:30")
    with pytest.raises(Exception, match="61"):
        await lake.edit(cron_expression="61 * * * *")
    await lake.edit(enabled=False)
    await lake.wake_up(at("14:00"))
    await lake.edit(enabled=True)  # after a long time: nothing fires at once
    await lake.act()
    assert (await lake.ran(), await lake.planned()) == ([], ("14:30", "14:30"))


async def test_run_now_while_the_schedule_has_a_run_is_told(lake: Lake) -> None:
    hall(lake).shut = True
    await lake.plan(TOTALS)
    await lake.live(at("10:00"))
    with pytest.raises(Conflict):
        await lake.run_now()


async def test_a_crash_between_two_links_of_a_chain_cuts_nothing(lake: Lake) -> None:
    """The success of the first and the job of the second are one transaction."""
    await lake.pipeline("sales/gold/report")
    await lake.trigger("sales/gold/report", "pipeline_success", upstream=TOTALS)
    await lake.manager.run(TOTALS)
    await lake.worker.prefetch.claim()
    await asyncio.wait([one.task for one in lake.worker.active.values() if one.task])
    await asyncio.sleep(0)  # its callback
    await lake.worker.completer.flush()
    # this is all that the worker has done; whatever happens to it now, the next one finds the second link
    assert await lake.ran() == [f"{TOTALS} manual success"]
    assert await lake.waiting() == [f"sales/gold/report pipeline_success:{TOTALS} ready"]
    await lake.act()
    assert (await lake.ran())[1:] == [f"sales/gold/report pipeline_success:{TOTALS} success"]
