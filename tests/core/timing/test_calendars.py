"""Slots under a calendar, compared with a walk over the days that shares no code with Rota."""

from datetime import UTC, date, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.core.timing.calendars import ON_HOLIDAY, Calendar, HolidayRule, OnHoliday, ordinals
from rota.core.timing.counting import count_slots
from rota.core.timing.presentation import left_out
from rota.core.timing.stored import dump, load
from rota.core.timing.triggers import (
    Every,
    Recurring,
    Timing,
    last_slot,
    next_slot,
    parse_cron,
    parse_rule,
    slots_between,
)

TICK = timedelta(microseconds=1)
DAY = timedelta(days=1)
FIRST = date(2026, 1, 1)
START = datetime(2026, 1, 1, tzinfo=UTC)
ZONES = ["UTC", "Europe/Oslo", "Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Chatham", "Pacific/Apia"]

days = st.lists(st.integers(0, 400).map(lambda distance: FIRST + DAY * distance), max_size=40)
calendars = st.builds(
    lambda dates, weekend, counts: Calendar("c", "c", 1, ordinals(dates), frozenset(weekend), counts),
    days,
    st.sampled_from([(5, 6), (4, 5), ()]),
    st.booleans(),
)
day_fields = st.sampled_from(["* *", "1,15 *", "L *", "* 1-5", "15W *", "LW *", "L-2 *", "3B *", "-1B,10 *", "2B 1"])


def walked_days(calendar: Calendar, choice: OnHoliday, named: list[date]) -> list[date]:
    """The days on which slots of the named days take place."""
    holidays = {date.fromordinal(day) for day in calendar.holidays}

    def is_holiday(day: date) -> bool:
        return day in holidays or (calendar.weekend_is_holiday and day.weekday() in calendar.weekend)

    taken = set()
    for day in named:
        if choice == "run" or not is_holiday(day):
            taken.add(day)
        elif choice != "skip":
            step = DAY if choice == "next" else -DAY
            moved = [day + step * distance for distance in range(1, 32)]
            working = [other for other in moved if not is_holiday(other) and other.weekday() not in calendar.weekend]
            taken.update(working[:1])
    return sorted(taken)


@settings(max_examples=150, deadline=None)
@given(calendars, st.sampled_from(ON_HOLIDAY), day_fields, st.sampled_from(ZONES))
def test_cron_slots_are_on_the_days_that_the_calendar_leaves(
    calendar: Calendar, choice: OnHoliday, fields: str, zone: str
) -> None:
    of_month, of_week = fields.split()
    trigger = parse_cron(f"30 12 {of_month} * {of_week}")
    timing = Timing(trigger, zone, holidays=HolidayRule(calendar, choice))
    info, end = ZoneInfo(zone), START + 300 * DAY
    every_day = Timing(trigger, zone, holidays=HolidayRule(calendar, "run"))
    named = [slot.astimezone(info).date() for slot in slots_between(every_day, START - 60 * DAY, end + 60 * DAY)]
    expected = walked_days(calendar, choice, named)
    slots = list(slots_between(timing, START, end))
    lower, upper = START.astimezone(info).date() + DAY, end.astimezone(info).date() - DAY
    local = [slot.astimezone(info) for slot in slots]
    assert [at.date() for at in local if lower <= at.date() <= upper] == [
        day for day in expected if lower <= day <= upper
    ]
    assert {(at.hour, at.minute) for at in local} <= {(12, 30)}
    assert count_slots(timing, START, end, 10_000) == len(slots)
    assert load(dump(timing)) == timing


@settings(max_examples=100, deadline=None)
@given(calendars, st.sampled_from(ON_HOLIDAY), st.sampled_from(ZONES), st.integers(0, 200))
def test_rules_under_a_calendar_have_the_slots_of_the_same_cron_expression(
    calendar: Calendar, choice: OnHoliday, zone: str, distance: int
) -> None:
    after = START + distance * DAY
    holidays = HolidayRule(calendar, choice)
    anchor = START - 60 * DAY
    rule = Timing(
        Recurring(parse_rule("FREQ=MONTHLY;BYMONTHDAY=1,2,15;BYHOUR=7;BYMINUTE=5"), anchor), zone, holidays=holidays
    )
    cron = Timing(parse_cron("5 7 1,2,15 * *"), zone, holidays=holidays)
    slots = list(islice(slots_between(rule, after, after + 200 * DAY), 10))
    assert slots == list(islice(slots_between(cron, after, after + 200 * DAY), 10))
    for slot in slots:
        assert last_slot(rule, slot, after) == slot
        assert last_slot(rule, slot - TICK, after) == last_slot(cron, slot - TICK, after)


@settings(max_examples=100, deadline=None)
@given(calendars, st.sampled_from(ZONES), st.sampled_from([3600, 7 * 3600, 86400, 100_000]))
def test_intervals_have_no_slots_on_holidays(calendar: Calendar, zone: str, seconds: int) -> None:
    trigger = Every(timedelta(seconds=seconds), START)
    timing, info = Timing(trigger, zone, holidays=HolidayRule(calendar, "skip")), ZoneInfo(zone)
    end = START + 60 * DAY
    expected = [
        slot
        for slot in slots_between(Timing(trigger, zone), START, end)
        if not calendar.is_holiday(slot.astimezone(info).date().toordinal())
    ]
    assert list(slots_between(timing, START, end)) == expected
    assert count_slots(timing, START, end, 10_000) == len(expected)
    if expected:
        assert last_slot(timing, end, START) == expected[-1]
        assert next_slot(timing, START) == expected[0]


def test_a_preview_lists_the_holidays_that_are_left_out_and_where_they_move() -> None:
    calendar = Calendar("c", "norway", 1, ordinals([date(2026, 12, 25), date(2026, 12, 26)]))
    monthly = Timing(parse_cron("0 9 25 * *"), "Europe/Oslo", holidays=HolidayRule(calendar, "next"))
    shown = left_out(monthly, START, START + 365 * DAY)
    assert [(holiday.day, holiday.moved_to) for holiday in shown] == [(date(2026, 12, 25), date(2026, 12, 28))]


@pytest.mark.parametrize("choice", ["next", "previous"])
def test_a_slot_without_a_working_day_near_does_not_exist(choice: OnHoliday) -> None:
    closed = Calendar("c", "c", 1, ordinals(FIRST + DAY * distance for distance in range(365)))
    timing = Timing(parse_cron("0 9 15 6 *"), holidays=HolidayRule(closed, choice))
    assert next_slot(timing, START) == datetime(2027, 6, 15, 9, tzinfo=UTC)
