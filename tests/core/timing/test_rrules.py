"""Recurrence rules, compared with dateutil from DTSTART on, in zones whose clock changes."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.core.errors import Invalid
from rota.core.timing.counting import count_slots
from rota.core.timing.presentation import describe
from rota.core.timing.stored import dump, load
from rota.core.timing.triggers import (
    Recurring,
    Timing,
    check_timing,
    last_slot,
    next_slot,
    parse_rule,
    reaching_back,
    slots_between,
)

TICK = timedelta(microseconds=1)
START = datetime(2020, 1, 31, 9, 30, tzinfo=UTC)
ZONES = ["UTC", "Europe/Oslo", "Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Chatham", "Pacific/Apia"]


def some(values: st.SearchStrategy[object], size: int = 3) -> st.SearchStrategy[str]:
    return st.lists(values, min_size=1, max_size=size, unique=True).map(lambda items: ",".join(map(str, items)))


@st.composite
def rules(draw: st.DrawFn) -> str:
    frequency = draw(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY"]))
    longest = {"YEARLY": 3, "MONTHLY": 14, "WEEKLY": 5, "DAILY": 40, "HOURLY": 50, "MINUTELY": 3000}[frequency]
    parts = [f"FREQ={frequency}", f"INTERVAL={draw(st.integers(1, longest))}"]
    optional = {
        "BYMONTH": some(st.integers(1, 12)),
        "BYDAY": some(st.sampled_from(["MO", "TU", "WE", "TH", "FR", "SA", "SU"])),
        "BYHOUR": some(st.integers(0, 23)),
        "BYMINUTE": some(st.integers(0, 59)),
        "WKST": st.sampled_from(["MO", "SU", "WE"]),
    }
    if frequency in ("YEARLY", "MONTHLY", "DAILY"):
        optional["BYMONTHDAY"] = some(st.sampled_from([1, 13, 28, 31, -1, -5]))
    if frequency in ("YEARLY", "MONTHLY"):
        optional["BYDAY"] = some(st.sampled_from(["MO", "1TU", "2WE", "-1FR", "SU"]))
        optional["BYSETPOS"] = some(st.sampled_from([1, 2, -1]))
    chosen = [name for name in sorted(optional) if draw(st.booleans())]
    if chosen in (["BYSETPOS"], ["BYSETPOS", "WKST"]):
        chosen = []
    parts += [f"{name}={draw(optional[name])}" for name in chosen]
    parts += draw(st.sampled_from([[], [], ["COUNT=7"], ["UNTIL=20210601T000000"]]))
    return ";".join(parts)


def timing_of(rule: str, zone: str = "UTC") -> Timing | None:
    """The timing of a rule that is accepted, else None."""
    timing = Timing(Recurring(parse_rule(rule), START), zone)
    try:
        check_timing(timing, START)
    except Invalid:
        return None
    return timing


@settings(max_examples=150, deadline=None)
@given(rules(), st.integers(0, 900))
def test_slots_are_those_of_dateutil_from_its_start_on(rule: str, days: int) -> None:
    timing = timing_of(rule)
    if timing is None:
        return
    after = START + timedelta(days=days)
    theirs = rrulestr(rule, dtstart=START.replace(tzinfo=None))
    end = after + timedelta(days=365 * 20)
    expected = [at.replace(tzinfo=UTC) for at in islice(theirs.xafter(after.replace(tzinfo=None)), 4)]
    assert list(islice(slots_between(timing, after, end), 4)) == [slot for slot in expected if slot <= end]
    before = theirs.before(after.replace(tzinfo=None), inc=True)
    assert last_slot(timing, after, START - TICK) == (before and before.replace(tzinfo=UTC))


@settings(max_examples=150, deadline=None)
@given(rules(), st.sampled_from(ZONES), st.integers(0, 24 * 700))
def test_next_is_later_and_last_is_its_mirror_in_all_zones(rule: str, zone: str, hours: int) -> None:
    timing = timing_of(rule, zone)
    if timing is None:
        return
    after = START + timedelta(hours=hours)
    slot = next_slot(timing, after)
    if slot is None:
        return
    assert slot > after
    assert next_slot(timing, slot - TICK) == slot
    assert last_slot(timing, slot, after) == slot
    assert last_slot(timing, slot - TICK, after) is None
    slots = list(islice(slots_between(timing, after, slot + timedelta(days=20)), 200))
    assert slots == sorted(set(slots))
    assert count_slots(timing, after, slots[-1], 1000) == len(slots)
    assert load(dump(timing)) == timing
    assert describe(timing)


@pytest.mark.parametrize("zone", ZONES)
def test_a_rule_of_all_hours_follows_elapsed_time_and_others_have_fixed_times(zone: str) -> None:
    hourly = Timing(Recurring(parse_rule("FREQ=HOURLY;BYMINUTE=0"), START), zone)
    spelled = Timing(
        Recurring(parse_rule("FREQ=DAILY;BYMINUTE=0;BYHOUR=" + ",".join(map(str, range(24)))), START), zone
    )
    first, last = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
    assert list(slots_between(hourly, first, last)) == list(slots_between(spelled, first, last))
    daily = Timing(Recurring(parse_rule("FREQ=DAILY;BYHOUR=2;BYMINUTE=30"), START), zone)
    days = [slot.astimezone(ZoneInfo(zone)).date() for slot in slots_between(daily, first, last)]
    assert len(days) == len(set(days))
    assert all(later - earlier == timedelta(days=1) for earlier, later in pairwise(days))


def test_a_backfill_before_the_start_has_the_slots_of_the_rule_unless_it_is_counted() -> None:
    since = START - timedelta(days=60)
    monthly = Timing(Recurring(parse_rule("FREQ=MONTHLY;BYMONTHDAY=1"), START))
    counted = Timing(Recurring(parse_rule("FREQ=MONTHLY;BYMONTHDAY=1;COUNT=3"), START))
    assert next_slot(monthly, since) == datetime(2020, 2, 1, 9, 30, tzinfo=UTC)
    assert next_slot(reaching_back(monthly, since), since) == datetime(2020, 1, 1, 9, 30, tzinfo=UTC)
    assert reaching_back(counted, since) == counted
