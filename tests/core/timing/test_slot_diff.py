"""The difference between the slots of two timings, and what new slots meet."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rota.core.timing.calendars import Calendar, ordinals
from rota.core.timing.slot_diff import (
    COMPARED_SLOTS_MAX,
    BlockedSpan,
    PlannedSlots,
    SlotDiff,
    calendar_clashes,
    diff_slots,
    freeze_clashes,
    planned_slots,
    shortest_gap,
)
from rota.core.timing_form import parse_timing

NINE = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)  # a Monday
END = NINE + timedelta(days=30)


def planned(left: int | None = None, /, **fields: Any) -> PlannedSlots:
    return planned_slots(parse_timing(fields, now=NINE), NINE, END, left)


def compare(before: dict[str, Any], after: dict[str, Any]) -> SlotDiff:
    return diff_slots(planned(**before), planned(**after), after.get("timezone", "UTC"))


def test_slots_of_a_day_that_keeps_their_number_are_moved() -> None:
    diff = compare({"cron_expression": "0 12 * * *"}, {"cron_expression": "0 13 * * *"})
    assert (diff.added, diff.removed, len(diff.moved)) == ([], [], 30)
    assert diff.moved[0] == (NINE.replace(hour=12), NINE.replace(hour=13))
    # today's 08:00 has passed: the first of the new slots is an additional one
    later = compare({"cron_expression": "0 8 * * *"}, {"cron_expression": "0 10 * * *"})
    assert (later.added, len(later.moved)) == ([NINE.replace(hour=10)], 29)
    assert later.removed == [END.replace(hour=8)]  # the last day ends at nine


def test_days_that_become_other_days_are_moved() -> None:
    diff = compare({"cron_expression": "0 12 * * 2"}, {"cron_expression": "0 12 * * 3"})
    assert (diff.added, len(diff.moved)) == ([], 4)
    assert diff.removed == [datetime(2026, 6, 2, 12, 0, tzinfo=UTC)]  # its Wednesday is after the last day
    assert diff.moved[0][1] - diff.moved[0][0] == timedelta(days=1)


def test_more_or_fewer_slots_are_added_and_removed() -> None:
    hourly = compare({"cron_expression": "0 * * * *"}, {"cron_expression": "0,30 * * * *"})
    assert (len(hourly.added), hourly.removed, hourly.moved) == (720, [], [])
    fewer = compare({"cron_expression": "0,30 * * * *"}, {"cron_expression": "15 * * * *"})
    assert (len(fewer.added), len(fewer.removed), fewer.moved) == (720, 1440, [])
    same = compare({"cron_expression": "0 0 * * *"}, {"interval": "1d", "anchor": "2026-01-01T00:00:00Z"})
    assert (same.added, same.removed, same.moved, same.before) == ([], [], [], 30)


def test_a_timing_without_slots_and_one_that_ends() -> None:
    new = diff_slots(planned_slots(None, NINE, END), planned(cron_expression="0 12 * * *"), "UTC")
    assert (len(new.added), new.before) == (30, 0)
    limited = diff_slots(planned(cron_expression="0 12 * * *"), planned(3, cron_expression="0 12 * * *"), "UTC")
    assert (len(limited.removed), limited.after) == (27, 3)
    assert planned(0, cron_expression="0 12 * * *").slots == ()


def test_the_number_of_compared_slots_is_bounded() -> None:
    diff = compare({"interval": "1s"}, {"interval": "1s", "anchor": "2026-05-04T09:00:00.5Z"})
    assert diff.after == COMPARED_SLOTS_MAX
    assert diff.until == NINE + timedelta(seconds=COMPARED_SLOTS_MAX - 0.5)


timings = st.sampled_from(
    [
        {"cron_expression": "*/20 9-17 * * 1-5"},
        {"cron_expression": "0 2 * * *", "timezone": "Europe/Oslo"},
        {"interval": "7h"},
        {"cron_expression": "30 3 1,15 * *"},
        {"interval": "90m", "window_start": "22:00", "window_end": "06:00"},
    ]
)


@given(timings, timings)
@settings(max_examples=25, deadline=None)
def test_what_is_added_removed_and_moved_turns_one_list_into_the_other(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    diff, old, new = compare(before, after), set(planned(**before).slots), set(planned(**after).slots)
    sources, targets = {source for source, _ in diff.moved}, {target for _, target in diff.moved}
    assert len(sources) == len(targets) == len(diff.moved)
    assert (old - sources - set(diff.removed)) | targets | set(diff.added) == new
    assert sources | set(diff.removed) <= old
    assert not (targets | set(diff.added)) & old


def test_slots_clash_with_holidays_and_freezes_in_the_zone_of_the_schedule() -> None:
    holiday = Calendar("1", "norway", 1, ordinals([date(2026, 5, 17), date(2026, 5, 6)]))
    late = planned(cron_expression="30 23 * * *", timezone="Europe/Oslo")  # 21:30 UTC
    (clash,) = calendar_clashes(late.slots, "Europe/Oslo", [holiday, Calendar("2", "empty", 1)])
    assert (clash.name, clash.count, clash.days) == ("norway", 2, [date(2026, 5, 6), date(2026, 5, 17)])
    spans = [BlockedSpan("release", NINE, NINE + timedelta(days=2)), BlockedSpan("past", NINE, NINE)]
    (freeze,) = freeze_clashes(late.slots, "Europe/Oslo", spans)
    assert (freeze.type, freeze.name, freeze.count) == ("freeze", "release", 2)
    (endless,) = freeze_clashes(late.slots, "UTC", [BlockedSpan("stop", NINE, None)])
    assert endless.count == 30


def test_the_shortest_gap_between_two_slots() -> None:
    assert shortest_gap(planned(cron_expression="0,10 3 * * *").slots) == timedelta(minutes=10)
    assert shortest_gap(()) is None
