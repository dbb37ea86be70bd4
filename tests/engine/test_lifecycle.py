"""Editing, disabling, deleting, pausing, freezing and skipping: what each does to slots, jobs and the clock."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import select, update

from rota.core import plan
from rota.core.errors import Conflict, Invalid, NotFound, StaleRevision
from rota.core.model import DueSchedule, Plan
from rota.db.tables import clocks, orgs, schedules, trigger_spans
from rota.engine import scheduler
from rota.engine.maintenance import Maintenance
from tests.engine.harness import DAY, HOUR, Harness, at


async def test_editing_the_trigger_withdraws_what_waits_and_plans_from_now(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule()
    await harness.run_until(at("9:25"))
    await harness.edit(cron_expression="0 * * * *")
    assert await harness.verdicts() == ["9:10 (running)", "9:20 skipped: superseded"]
    assert await harness.planned() == ("10:00", "10:00")
    await harness.release()
    await harness.run_until(at("10:30"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 skipped: superseded", "10:00 ran"]
    assert "9:20 #1 skipped: superseded" in await harness.history()


async def test_editing_something_else_leaves_the_clock_and_the_waiting_job_alone(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule()
    await harness.run_until(at("9:25"))
    await harness.edit(description="new words", priority=3)
    assert await harness.verdicts() == ["9:10 (running)", "9:20 (blocked)"]
    assert await harness.planned() == ("9:30", "9:30")


async def test_a_slot_that_was_due_but_not_fired_at_an_edit_is_superseded(harness: Harness) -> None:
    await harness.schedule()
    await harness.run_until(at("9:12"))
    harness.clock.set(at("9:35"))
    await harness.edit(cron_expression="0 * * * *")
    assert await harness.verdicts() == ["9:10 ran", "9:20-9:30 x2 skipped: superseded"]


async def test_an_edit_with_a_stale_revision_is_refused(harness: Harness) -> None:
    await harness.schedule()
    await harness.engine.edit_schedule(harness.org_id, "job", {"description": "a"}, expected=1)
    with pytest.raises(StaleRevision):
        await harness.engine.edit_schedule(harness.org_id, "job", {"description": "b"}, expected=1)
    assert (await harness.record()).revision == 2


async def test_renaming_to_a_name_that_is_taken_is_a_conflict(harness: Harness) -> None:
    await harness.schedule("one")
    await harness.schedule("two")
    with pytest.raises(Conflict):
        await harness.edit("two", name="one")


@pytest.mark.parametrize("names", [["a", "job"], ["a", "b", "a"]])
async def test_of_many_new_schedules_none_is_made_when_a_name_is_taken(harness: Harness, names: list[str]) -> None:
    await harness.schedule()
    bodies = [{"name": name, "target": "t", "interval": "1h"} for name in names]
    with pytest.raises(Conflict, match=f"schedule '{names[-1]}' already exists"):
        await harness.engine.create_schedules(harness.org_id, bodies)
    assert [row.name for row in await harness.rows(select(schedules))] == ["job"]


async def test_concurrent_creations_with_one_name_give_one_conflict(harness: Harness) -> None:
    body = {"name": "a", "target": "t", "interval": "1h"}
    tries = [harness.engine.create_schedules(harness.org_id, [body]) for _ in range(4)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Conflict"] * 3 + ["list"]


async def test_an_interval_keeps_its_grid_through_edits_and_restarts(harness: Harness) -> None:
    await harness.schedule(cron=None, interval="7m")
    await harness.run_until(at("9:20"))
    await harness.edit(description="x")
    await harness.run_until(at("9:30"))
    assert await harness.fired_slots() == ["9:07", "9:14", "9:21", "9:28"]


async def test_disabled_time_has_no_slots(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule()
    await harness.run_until(at("9:25"))
    await harness.edit(enabled=False)
    assert await harness.verdicts() == ["9:10 (running)", "9:20 skipped: disabled"]
    assert await harness.planned() == (None, None)
    await harness.release()
    await harness.run_until(at("10:05"))
    await harness.edit(enabled=True)
    assert await harness.planned() == ("10:10", "10:10")
    await harness.run_until(at("10:10"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 skipped: disabled", "10:10 ran"]


async def test_a_schedule_created_disabled_has_no_slots_until_it_is_enabled(harness: Harness) -> None:
    await harness.schedule(enabled=False)
    await harness.run_until(at("9:35"))
    await harness.edit(enabled=True)
    await harness.run_until(at("9:40"))
    assert await harness.verdicts() == ["9:40 ran"]


async def test_deleting_withdraws_what_waits_and_keeps_the_past(harness: Harness) -> None:
    harness.fake_runner.long = lambda job: job.slot == at("9:10")
    await harness.schedule()
    await harness.run_until(at("9:25"))
    await harness.engine.delete_schedule(harness.org_id, "job")
    await harness.release()
    await harness.run_until(at("10:00"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 skipped: disabled"]
    with pytest.raises(NotFound):
        await harness.edit(description="x")
    await harness.schedule()  # the name is free again


async def test_a_lowered_max_runs_finishes_the_schedule(harness: Harness) -> None:
    await harness.schedule()
    await harness.run_until(at("9:35"))
    await harness.edit(max_runs=2)
    await harness.run_until(at("10:00"))
    assert await harness.fired_slots() == ["9:10", "9:20", "9:30"]
    assert (await harness.record()).condition == "finished"
    assert await harness.planned() == (None, None)


async def test_max_runs_counts_fires_and_then_finishes(harness: Harness) -> None:
    await harness.schedule(max_runs=2)
    await harness.run_until(at("10:00"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran"]
    row = await harness.record()
    assert (row.condition, row.enabled) == ("finished", False)


async def test_max_runs_holds_in_catch_up_too(harness: Harness) -> None:
    await harness.schedule(max_runs=3, misfire="all")
    await harness.start_at(at("11:15"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran", "9:30 ran"]
    assert await harness.planned() == (None, None)


async def test_a_schedule_ends_at_its_end(harness: Harness) -> None:
    await harness.schedule(ends_at=at("9:30"))
    await harness.run_until(at("10:00"))
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran"]
    assert (await harness.record()).condition == "finished"


async def test_a_schedule_starts_at_its_start(harness: Harness) -> None:
    await harness.schedule(starts_at=at("9:30"))
    assert await harness.planned() == ("9:30", "9:30")
    await harness.run_until(at("9:45"))
    assert await harness.verdicts() == ["9:30 ran", "9:40 ran"]


async def test_once_is_finished_after_its_slot(harness: Harness) -> None:
    await harness.schedule(cron=None, run_at=at("9:30"))
    await harness.run_until(at("9:30"))
    row = await harness.record()
    assert (row.condition, row.enabled) == ("finished", False)
    assert await harness.verdicts() == ["9:30 ran"]
    assert await harness.planned() == (None, None)
    with pytest.raises(Invalid):
        await harness.edit(enabled=True)


async def test_a_finished_schedule_with_a_new_run_at_runs_again(harness: Harness) -> None:
    await harness.schedule(cron=None, run_at=at("9:30"))
    await harness.run_until(at("9:40"))
    await harness.edit(run_at=at("9:50"), enabled=True)
    await harness.run_until(at("10:00"))
    assert await harness.verdicts() == ["9:30 ran", "9:50 ran"]


# pause


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        ("skip", ["9:20-9:50 x4 skipped: paused"]),
        ("once", ["9:20-9:40 x3 coalesced > 9:50", "9:50 ran"]),
        ("all", ["9:20 ran", "9:30 ran", "9:40 ran", "9:50 ran"]),
    ],
)
async def test_resume_closes_the_gap_as_asked(harness: Harness, gap: str, expected: list[str]) -> None:
    await harness.schedule(catch_up_limit=10)
    await harness.run_until(at("9:15"))
    await harness.engine.pause_schedule(harness.org_id, "job", reason="lunch")
    assert (await harness.planned())[1] is None
    await harness.run_until(at("9:55"))
    assert await harness.verdicts() == ["9:10 ran"]
    await harness.engine.resume_schedule(harness.org_id, "job", gap=gap)
    await harness.work()
    assert await harness.verdicts() == ["9:10 ran", *expected]
    assert await harness.planned() == ("10:00", "10:00")
    assert (await harness.record()).paused_at is None


async def test_resume_all_obeys_the_limit(harness: Harness) -> None:
    await harness.schedule(catch_up_limit=2)
    await harness.engine.pause_schedule(harness.org_id, "job")
    await harness.run_until(at("9:55"))
    await harness.engine.resume_schedule(harness.org_id, "job", gap="all")
    await harness.work()
    assert await harness.verdicts() == ["9:10 ran", "9:20 ran", "9:30-9:50 x3 missed: limit"]


async def test_a_pause_ends_by_itself(harness: Harness) -> None:
    await harness.schedule()
    await harness.engine.pause_schedule(harness.org_id, "job", reason="lunch", until=at("9:35"))
    assert await harness.planned() == ("9:10", "9:35")
    await harness.run_until(at("9:45"))
    assert await harness.verdicts() == ["9:10-9:30 x3 skipped: paused", "9:40 ran"]
    row = await harness.record()
    assert (row.paused_at, row.paused_until, row.pause_reason) == (None, None, None)


async def test_a_pause_that_ended_during_a_downtime(harness: Harness) -> None:
    await harness.schedule(misfire="skip")
    await harness.engine.pause_schedule(harness.org_id, "job", until=at("9:35"))
    await harness.start_at(at("10:15"))
    assert await harness.verdicts() == ["9:10-9:30 x3 skipped: paused", "9:40-10:10 x4 missed"]
    assert await harness.planned() == ("10:20", "10:20")


async def test_slots_that_passed_before_a_pause_are_judged_by_misfire(harness: Harness) -> None:
    await harness.schedule(misfire="skip")
    harness.clock.set(at("9:25"))  # no scheduler was up for 9:10 and 9:20
    await harness.engine.pause_schedule(harness.org_id, "job", until=at("9:45"))
    await harness.run_until(at("9:50"))
    assert await harness.verdicts() == ["9:10-9:20 x2 missed", "9:30-9:40 x2 skipped: paused", "9:50 ran"]


async def test_resuming_what_is_not_paused_is_a_conflict(harness: Harness) -> None:
    await harness.schedule()
    with pytest.raises(Conflict):
        await harness.engine.resume_schedule(harness.org_id, "job")


async def test_a_one_time_schedule_paused_over_its_due_time_is_finished_at_resume(harness: Harness) -> None:
    await harness.schedule(cron=None, run_at=at("9:30"))
    await harness.engine.pause_schedule(harness.org_id, "job")
    await harness.run_until(at("10:00"))
    await harness.engine.resume_schedule(harness.org_id, "job", gap="skip")
    assert await harness.verdicts() == ["9:30 skipped: paused"]
    assert (await harness.record()).condition == "finished"


async def test_editing_the_trigger_while_paused_closes_the_gap_and_stays_paused(harness: Harness) -> None:
    await harness.schedule()
    await harness.engine.pause_schedule(harness.org_id, "job")
    await harness.run_until(at("9:35"))
    await harness.edit(cron_expression="*/15 * * * *")
    assert await harness.verdicts() == ["9:10-9:30 x3 skipped: paused"]
    assert await harness.planned() == ("9:45", None)
    await harness.run_until(at("10:05"))
    await harness.engine.resume_schedule(harness.org_id, "job")
    assert await harness.verdicts() == ["9:10-9:30 x3 skipped: paused", "9:45-10:00 x2 skipped: paused"]


async def test_disabling_while_paused_closes_the_gap(harness: Harness) -> None:
    await harness.schedule()
    await harness.engine.pause_schedule(harness.org_id, "job")
    await harness.run_until(at("9:35"))
    await harness.edit(enabled=False)
    await harness.run_until(at("10:00"))
    assert await harness.verdicts() == ["9:10-9:30 x3 skipped: paused"]


async def test_the_reconciler_leaves_a_paused_schedule_alone(harness: Harness) -> None:
    await harness.schedule()
    await harness.engine.pause_schedule(harness.org_id, "job")
    await Maintenance(harness.engine, harness.worker.id).reconcile()
    assert await harness.planned() == ("9:10", None)


# freeze


async def test_a_freeze_lets_every_slot_of_the_org_pass_as_one_gap(harness: Harness) -> None:
    await harness.schedule("a")
    await harness.schedule("b", cron="*/20 * * * *")
    await harness.run_until(at("9:15"))
    await harness.engine.freeze(harness.org_id, reason="release")
    await harness.run_until(at("10:15"))
    assert await harness.verdicts("a") == ["9:10 ran"]
    await harness.engine.unfreeze(harness.org_id)
    await harness.run_due()
    assert await harness.verdicts("a") == ["9:10 ran", "9:20-10:10 x6 skipped: frozen"]
    assert await harness.verdicts("b") == ["9:20-10:00 x3 skipped: frozen"]
    assert await harness.planned("a") == ("10:20", "10:20")
    assert await harness.planned("b") == ("10:20", "10:20")
    await harness.run_until(at("10:20"))
    assert (await harness.verdicts("b"))[-1] == "10:20 ran"


async def test_a_freeze_ends_by_itself(harness: Harness) -> None:
    await harness.schedule()
    await harness.engine.freeze(harness.org_id, until=at("9:35"))
    await harness.run_until(at("9:45"))
    assert await harness.verdicts() == ["9:10-9:30 x3 skipped: frozen", "9:40 ran"]


async def test_a_freeze_touches_no_other_org(harness: Harness) -> None:
    other = await harness.add_org("other")
    await harness.engine.freeze(other)
    await harness.schedule()
    await harness.run_until(at("9:10"))
    assert await harness.verdicts() == ["9:10 ran"]


async def test_freezing_again_keeps_the_beginning_of_the_freeze(harness: Harness) -> None:
    await harness.schedule(misfire="once")
    await harness.engine.freeze(harness.org_id, until=at("9:35"))
    await harness.run_until(at("9:25"))
    await harness.engine.freeze(harness.org_id, until=at("10:05"))
    await harness.run_until(at("10:05"))
    assert await harness.verdicts() == ["9:10-10:00 x6 skipped: frozen"]


async def test_unfreezing_after_the_end_was_moved_lets_schedules_go_at_once(harness: Harness) -> None:
    await harness.schedule()
    await harness.engine.freeze(harness.org_id, until=at("12:00"))
    await harness.run_until(at("9:15"))
    await harness.engine.freeze(harness.org_id, until=at("11:00"))
    await harness.engine.unfreeze(harness.org_id)
    await harness.run_until(at("9:20"))
    assert await harness.verdicts() == ["9:10 skipped: frozen", "9:20 ran"]


async def test_a_freeze_over_the_end_of_a_pause(harness: Harness) -> None:
    await harness.schedule()
    await harness.engine.pause_schedule(harness.org_id, "job", until=at("9:35"))
    await harness.engine.freeze(harness.org_id)
    await harness.run_until(at("10:05"))
    await harness.engine.unfreeze(harness.org_id)
    await harness.run_until(at("10:10"))
    assert await harness.verdicts() == ["9:10-9:30 x3 skipped: paused", "9:40-10:00 x3 skipped: frozen", "10:10 ran"]


async def test_unfreezing_ends_no_pause(harness: Harness) -> None:
    await harness.schedule("open_end")
    await harness.schedule("until_noon")
    await harness.engine.freeze(harness.org_id)
    await harness.run_until(at("9:15"))
    await harness.engine.pause_schedule(harness.org_id, "open_end")
    await harness.engine.pause_schedule(harness.org_id, "until_noon", until=at("12:00"))
    await harness.engine.unfreeze(harness.org_id)
    await harness.run_until(at("9:45"))
    assert await harness.planned("open_end") == ("9:10", None)
    assert await harness.planned("until_noon") == ("9:10", "12:00")
    await harness.run_until(at("12:00"))
    assert (await harness.verdicts("until_noon"))[-1] == "12:00 ran"


async def test_unfreezing_what_is_not_frozen_is_a_conflict(harness: Harness) -> None:
    with pytest.raises(Conflict):
        await harness.engine.unfreeze(harness.org_id)
    assert (await harness.rows(select(orgs.c.frozen_at)))[0][0] is None


# skip next


async def test_skip_next_skips_one_slot(harness: Harness) -> None:
    await harness.schedule()
    assert await harness.engine.skip_next(harness.org_id, "job", reason="holiday") == at("9:10")
    assert await harness.planned() == ("9:20", "9:20")
    await harness.run_until(at("9:25"))
    assert await harness.verdicts() == ["9:10 skipped: operator", "9:20 ran"]


async def test_skip_next_twice_skips_two(harness: Harness) -> None:
    await harness.schedule()
    await harness.engine.skip_next(harness.org_id, "job")
    await harness.engine.skip_next(harness.org_id, "job")
    await harness.run_until(at("9:35"))
    assert await harness.verdicts() == ["9:10 skipped: operator", "9:20 skipped: operator", "9:30 ran"]


async def test_skipping_the_last_slot_finishes_the_schedule(harness: Harness) -> None:
    await harness.schedule(cron=None, run_at=at("9:30"))
    await harness.engine.skip_next(harness.org_id, "job")
    assert (await harness.record()).condition == "finished"
    await harness.run_until(at("9:40"))
    assert await harness.verdicts() == ["9:30 skipped: operator"]


async def test_a_skip_is_forgotten_when_the_trigger_changes(harness: Harness) -> None:
    await harness.schedule(cron="0 12 * * *")
    await harness.engine.skip_next(harness.org_id, "job")
    await harness.edit(cron_expression="*/30 * * * *")
    assert await harness.planned() == ("9:30", "9:30")
    await harness.run_until(at("13:00"))
    assert (await harness.verdicts())[-3:] == ["12:00 ran", "12:30 ran", "13:00 ran"]


async def test_skip_next_while_paused_does_not_end_the_pause(harness: Harness) -> None:
    await harness.schedule()
    await harness.engine.pause_schedule(harness.org_id, "job", until=at("9:45"))
    await harness.engine.skip_next(harness.org_id, "job")
    assert await harness.planned() == ("9:20", "9:45")
    await harness.run_until(at("9:50"))
    assert await harness.verdicts() == ["9:10 skipped: operator", "9:20-9:40 x3 skipped: paused", "9:50 ran"]


# one bad row


async def test_a_schedule_that_cannot_be_read_is_put_aside_and_the_rest_go_on(harness: Harness) -> None:
    bad = await harness.schedule("bad")
    await harness.schedule("good")
    await harness.write(update(schedules).where(schedules.c.id == bad).values(timing={"trigger": "nonsense"}))
    await harness.run_until(at("9:25"))
    assert await harness.verdicts("good") == ["9:10 ran", "9:20 ran"]
    row = await harness.record("bad")
    assert (row.condition, row.enabled) == ("broken", True)
    assert await harness.planned("bad") == (None, None)
    await harness.edit("bad", cron_expression="*/10 * * * *")
    await harness.run_until(at("9:30"))
    assert (await harness.record("bad")).condition == "ok"
    assert (await harness.verdicts("bad"))[-1] == "9:30 ran"


async def test_a_schedule_that_cannot_be_planned_is_put_aside_and_the_rest_go_on(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan_at(due: DueSchedule, *rest: Any) -> Plan:
        if due.schedule.name == "bad":
            raise ZeroDivisionError("no such day")
        return real(due, *rest)

    real = plan.plan_at
    monkeypatch.setattr(scheduler, "plan_at", plan_at)
    for name in ("bad", "good"):
        await harness.schedule(name)
    await harness.run_until(at("9:10"))
    (row,) = await harness.rows(select(schedules).where(schedules.c.name == "bad"))
    assert (row.condition, row.condition_reason) == ("broken", "ZeroDivisionError: no such day")
    assert await harness.verdicts("good") == ["9:10 ran"]


async def test_the_reconciler_gives_an_enabled_schedule_without_a_slot_its_next_one(harness: Harness) -> None:
    await harness.schedule()
    await harness.write(update(clocks).values(next_slot=None, next_run_at=None))
    await Maintenance(harness.engine, harness.worker.id).reconcile()
    assert await harness.planned() == ("9:10", "9:10")


# the clock of the machine


async def test_a_clock_set_back_fires_no_slot_twice(harness: Harness) -> None:
    await harness.schedule()
    await harness.run_until(at("9:35"))
    harness.clock.set(at("9:05"))
    await harness.run_until(at("9:45"))
    assert await harness.fired_slots() == ["9:10", "9:20", "9:30", "9:40"]


async def test_an_edit_after_the_clock_was_set_back(harness: Harness) -> None:
    await harness.schedule()
    await harness.run_until(at("10:00"))
    harness.clock.set(at("9:05"))
    await harness.edit(cron_expression="*/15 * * * *")
    await harness.run_until(at("10:20"))
    assert await harness.fired_slots() == ["9:10", "9:20", "9:30", "9:40", "9:50", "10:00", "10:15"]


async def test_a_clock_set_back_between_freeze_and_unfreeze(harness: Harness) -> None:
    await harness.schedule()
    harness.clock.set(at("10:00"))
    await harness.engine.freeze(harness.org_id)
    harness.clock.set(at("9:30"))
    await harness.engine.unfreeze(harness.org_id)
    await harness.run_until(at("10:30"))
    verdicts = await harness.verdicts()
    assert verdicts[-3:] == ["10:10 ran", "10:20 ran", "10:30 ran"]


async def test_there_is_one_trigger_span_per_change(harness: Harness) -> None:
    await harness.schedule()
    await harness.run_until(at("9:10") + HOUR)
    await harness.edit(cron_expression="0 * * * *")
    await harness.edit(enabled=False)
    harness.clock.set(harness.clock.now() + DAY)
    await harness.edit(enabled=True)
    spans = await harness.rows(select(trigger_spans).order_by(trigger_spans.c.from_at))
    assert [(span.until_at is None) for span in spans] == [False, False, True]
    assert spans[0].until_at == spans[1].from_at
    assert spans[2].from_at - spans[1].until_at == DAY
