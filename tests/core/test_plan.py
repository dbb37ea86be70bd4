"""Plans of due schedules: every passed slot is decided exactly once, under all policies."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.core.freeze import FreezeMode, FreezeWindow
from rota.core.model import DueSchedule, Plan, PlannedSchedule, Schedule
from rota.core.plan import FIRE_BATCH_SLOTS, first_plan, plan, plan_again, plan_at
from rota.core.policy import Misfire, Overlap
from rota.core.schedule_form import Defaults, parse_schedule
from rota.core.timing.dst import TICK
from rota.core.timing.triggers import next_slot, run_at, slots_between

NINE = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)
MINUTE, GRACE = timedelta(minutes=1), timedelta(seconds=60)


def make_schedule(**body: Any) -> Schedule:
    fields = {"target": "t", "cron_expression": "*/10 * * * *", **body}
    if "interval" in body:
        del fields["cron_expression"]
    return parse_schedule(fields, org_id="o", defaults={"task": Defaults()}, now=NINE, source="test", by=None)


def due(schedule: Schedule, **more: Any) -> DueSchedule:
    values = {"next_slot": first_plan(schedule, NINE)[0], "fired": 0, "frozen_at": None, "frozen_until": None, **more}
    return DueSchedule(schedule, **values)


def freeze_window(start: datetime, end: datetime, mode: FreezeMode) -> FreezeWindow:
    return FreezeWindow("w", "o", "stop", start, end, mode, "release")


triggers = st.sampled_from(
    [
        {"cron_expression": "*/10 * * * *"},
        {"cron_expression": "3,4,59 * * * *"},
        {"interval": "20s"},
        {"interval": "7m", "jitter_seconds": 300},
        {"interval": "30s", "jitter_seconds": 100},
        {"cron_expression": "*/5 * * * *", "window_start": "09:00", "window_end": "09:40"},
        {"cron_expression": "0 3 * * *", "window_start": "10:00", "window_end": "11:00"},
    ]
)
instants = st.integers(-10, 200).map(lambda minutes: NINE + minutes * MINUTE)


@settings(max_examples=400, deadline=None)
@given(
    trigger=triggers,
    misfire=st.sampled_from(Misfire),
    overlap=st.sampled_from(Overlap),
    limit=st.sampled_from([1, 3, 1000]),
    max_runs=st.sampled_from([None, 1, 4]),
    fired=st.integers(0, 5),
    late=st.integers(0, 3 * 3600),
    pause=st.none() | st.tuples(instants, instants),
    freeze=st.none() | st.tuples(instants, instants),
    windows=st.lists(st.tuples(instants, instants, st.sampled_from(FreezeMode)), max_size=3),
)
def test_each_passed_slot_is_decided_exactly_once(
    trigger: Any,
    misfire: Misfire,
    overlap: Overlap,
    limit: int,
    max_runs: int | None,
    fired: int,
    late: int,
    pause: Any,
    freeze: Any,
    windows: Any,
) -> None:
    schedule = replace(
        make_schedule(**trigger), misfire=misfire, overlap=overlap, catch_up_limit=limit, max_runs=max_runs
    )
    if pause:
        schedule = replace(schedule, paused_at=pause[0], paused_until=pause[1])
    covering = [freeze_window(start, end, mode) for start, end, mode in windows if start < end]
    state = due(
        schedule, fired=fired, frozen_at=freeze and freeze[0], frozen_until=freeze and freeze[1], windows=covering
    )
    assert state.next_slot is not None
    now = max(run_at(schedule.id, state.next_slot, schedule.timing.jitter), NINE) + timedelta(seconds=late)
    result = plan(state, now, GRACE)
    slots = decided(schedule, result)
    assert sorted(slots) == list(slots_between(schedule.timing, state.next_slot - TICK, result.handled))
    assert len(set(slots)) == len(slots)
    assert [fire.slot for fire in result.fires] == sorted({fire.slot for fire in result.fires})
    assert len(result.fires) <= FIRE_BATCH_SLOTS
    if max_runs is not None:
        assert fired + len(result.fires) <= max(max_runs, fired)
    for fire in result.fires:
        assert not any(window.contains(fire.slot) for window in covering if window.mode is FreezeMode.SKIP)
        assert not any(window.contains(fire.slot) and window.ends_at > now for window in covering)
    if result.next_slot is not None:
        assert result.next_slot == next_slot(schedule.timing, result.handled)
        assert result.next_run_at is not None
        assert result.next_run_at >= now


@settings(max_examples=400, deadline=None)
@given(
    trigger=triggers,
    misfire=st.sampled_from(Misfire),
    overlap=st.sampled_from(Overlap),
    max_runs=st.sampled_from([None, 1, 4]),
    late=st.integers(-300, 1200),
    pause=st.none() | st.tuples(instants, instants),
    freeze=st.none() | st.tuples(instants, instants),
)
def test_a_plan_made_ahead_equals_the_plan_at_the_due_time(
    trigger: Any, misfire: Misfire, overlap: Overlap, max_runs: int | None, late: int, pause: Any, freeze: Any
) -> None:
    schedule = replace(make_schedule(**trigger), misfire=misfire, overlap=overlap, max_runs=max_runs)
    if pause:
        schedule = replace(schedule, paused_at=pause[0], paused_until=pause[1])
    state = due(schedule, frozen_at=freeze and freeze[0], frozen_until=freeze and freeze[1])
    assert state.next_slot is not None
    due_at = run_at(schedule.id, state.next_slot, schedule.timing.jitter)
    state = replace(state, run_at=due_at)
    known = PlannedSchedule(state, plan_at(state, NINE, GRACE))
    now = due_at + timedelta(seconds=late)
    assert plan_again(known, now, GRACE).plan == plan(state, max(now, due_at), GRACE)


def decided(schedule: Schedule, result: Plan) -> list[datetime]:
    inside = [slot for gap in result.gaps for slot in slots_between(schedule.timing, gap.first - TICK, gap.last)]
    for gap in result.gaps:
        assert gap.count in (None, len(list(slots_between(schedule.timing, gap.first - TICK, gap.last))))
    return [fire.slot for fire in result.fires] + inside


def test_nothing_is_due_before_its_slot() -> None:
    schedule = make_schedule()
    result = plan(due(schedule), NINE + 5 * MINUTE, GRACE)
    assert (result.fires, result.gaps, result.next_slot) == ((), (), NINE + 10 * MINUTE)


def test_a_year_of_missed_minutes_takes_no_year() -> None:
    schedule = replace(make_schedule(cron_expression="* * * * *"), misfire=Misfire.SKIP)
    result = plan(due(schedule), NINE + timedelta(days=365), GRACE)
    assert result.gaps[0].count == 365 * 24 * 60 - 2  # the last two are within the grace


def test_all_slots_of_a_schedule_are_delayed_alike() -> None:
    schedule = make_schedule(interval="7m", jitter_seconds=300)
    slot, at = first_plan(schedule, NINE)
    assert slot is not None
    assert at is not None
    result = plan(due(replace(schedule, misfire=Misfire.ALL)), at + timedelta(minutes=70), GRACE)
    assert len(result.fires) == 11
    assert {fire.run_at - fire.slot for fire in result.fires} == {at - slot}


@pytest.mark.parametrize("jitter", [0, 30, 600])
def test_jitter_delays_but_never_advances(jitter: int) -> None:
    schedule = make_schedule(jitter_seconds=jitter)
    slot, at = first_plan(schedule, NINE)
    assert slot is not None
    assert at is not None
    assert slot <= at < slot + timedelta(seconds=jitter) or at == slot


def test_a_used_up_max_runs_finishes_without_a_fire() -> None:
    schedule = replace(make_schedule(), max_runs=2)
    result = plan(due(schedule, fired=5), NINE + 10 * MINUTE, GRACE)
    assert (result.fires, result.gaps, result.next_slot) == ((), (), None)
    assert result.handled < NINE + 10 * MINUTE
