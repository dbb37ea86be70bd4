"""When a schedule is due: parsing, slots, windows, jitter, and the way to JSON and back."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta, timezone
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.core.errors import Invalid
from rota.core.timing.counting import count_slots
from rota.core.timing.cron import DAY_OF_MONTH_FIELD, DAY_OF_WEEK_FIELD, HOUR_FIELD, MINUTE_FIELD, MONTH_FIELD
from rota.core.timing.dst import zone_of
from rota.core.timing.presentation import describe, preview
from rota.core.timing.stored import dump, load
from rota.core.timing.triggers import (
    Cron,
    Every,
    Once,
    Recurring,
    Timing,
    check_timing,
    last_slot,
    next_slot,
    parse_cron,
    parse_instant,
    parse_interval,
    parse_rule,
    parse_zone,
    reaching_back,
    run_at,
    slots_between,
    window_close,
    window_open,
)
from rota.core.timing.windows import Window, parse_window

NOON = datetime(2026, 5, 17, 12, tzinfo=UTC)  # a Sunday
TICK = timedelta(microseconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
YEAR = timedelta(days=365)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# Cron


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/5 * * * *", ["2026-05-17 12:05", "2026-05-17 12:10"]),
        ("0 2 * * *", ["2026-05-18 02:00", "2026-05-19 02:00"]),
        ("0 9 * * 1-5", ["2026-05-18 09:00", "2026-05-19 09:00"]),
        ("0 9 * * mon,WED", ["2026-05-18 09:00", "2026-05-20 09:00"]),
        ("0 0 * * 7", ["2026-05-24 00:00", "2026-05-31 00:00"]),
        ("0 0 * * 5-7", ["2026-05-22 00:00", "2026-05-23 00:00", "2026-05-24 00:00"]),
        ("0 0 L * *", ["2026-05-31 00:00", "2026-06-30 00:00"]),
        ("0 0 * * 5L", ["2026-05-29 00:00", "2026-06-26 00:00"]),
        ("0 0 * * 1#2", ["2026-06-08 00:00", "2026-07-13 00:00"]),
        ("0 0 * * fri#5", ["2026-05-29 00:00", "2026-07-31 00:00"]),
        (
            "0 0 13 * 5",
            ["2026-05-22 00:00", "2026-05-29 00:00", "2026-06-05 00:00", "2026-06-12 00:00", "2026-06-13 00:00"],
        ),
        ("0 0 */10 * 1", ["2026-06-01 00:00", "2026-08-31 00:00"]),  # a star with a step is a star: both must match
        ("0 0 1 jan *", ["2027-01-01 00:00"]),
        ("5/20 12 * * *", ["2026-05-17 12:05", "2026-05-17 12:25", "2026-05-17 12:45"]),
        ("0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("@hourly", ["2026-05-17 13:00"]),
        ("@daily", ["2026-05-18 00:00"]),
        ("@midnight", ["2026-05-18 00:00"]),
        ("@weekly", ["2026-05-24 00:00"]),
        ("@monthly", ["2026-06-01 00:00"]),
        ("@yearly", ["2027-01-01 00:00"]),
        ("@annually", ["2027-01-01 00:00"]),
    ],
)
def test_cron_supports_the_syntax_of_crontab(expression: str, expected: list[str]) -> None:
    slots = islice(slots_between(Timing(parse_cron(expression)), NOON, NOON + 20 * YEAR), len(expected))
    assert list(slots) == [at(text) for text in expected]


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("61 * * * *", "bad minute '61', it goes from 0 to 59"),
        ("* 24 * * *", "bad hour"),
        ("* * 0 * *", "bad day of month"),
        ("* * 32 * *", "bad day of month"),
        ("* * * 13 *", "bad month"),
        ("* * * * 8", "bad day of week"),
        ("* * * * FOO", "bad day of week"),
        ("* * * * 1#6", "bad day of week"),
        ("* * * * 1#", "bad day of week"),
        ("* * * * L", "bad day of week"),
        ("* * * * 1-61", "bad day of week"),
        ("30-10 * * * *", "goes backwards"),
        ("* * * * FRI-SUN", "goes backwards"),
        ("*/0 * * * *", "bad step"),
        ("*/90 * * * *", "bad step"),
        ("*/ * * * *", "bad step"),
        ("0-999999999999 * * * *", "bad minute"),
        ("L * * * *", "bad minute"),
        ("? * * * *", "bad minute"),
        ("R * * * *", "bad minute"),
        ("-5 * * * *", "bad minute"),
        ("+5 * * * *", "bad minute"),
        ("1_0 * * * *", "bad minute"),
        (",5 * * * *", "bad minute"),
        ("1-2-3 * * * *", "bad minute"),
        ("\u0665 * * * *", "ASCII"),
        ("\uff15 * * * *", "ASCII"),
        ("5\u00a0* * * *", "ASCII"),
        ("5 * * * *\n", "ASCII"),
        ("0 0 * * * *", "six fields: cron has no seconds here, use `interval`"),
        ("* * * *", "five fields"),
        ("", "five fields"),
        ("@reboot", "is not one of"),
        ("0 0 31 2 *", "no month has"),
        ("0 0 30 2 *", "no month has"),
        ("0 0 31 4,6,9,11 *", "no month has"),
        ("*," * 100 + "* * * * *", "longer than 200"),
        (None, "must be text"),
        (5, "must be text"),
    ],
)
def test_anything_else_is_refused_with_the_reason(expression: object, why: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_cron(expression)
    assert caught.value.field == "cron_expression"
    assert why in caught.value.message


def test_blanks_between_fields_are_normalized() -> None:
    assert parse_cron(" 0\t9  * * 1-5 ") == Cron("0 9 * * 1-5")
    assert parse_cron("@Daily") == Cron("@daily")


def test_a_leap_day_is_found_across_a_century_without_one() -> None:
    timing = Timing(parse_cron("0 0 29 2 *"))
    assert next_slot(timing, at("2096-03-01")) == at("2104-02-29")
    assert last_slot(timing, at("2104-02-28"), at("2090-01-01")) == at("2096-02-29")
    rare = Timing(parse_cron("0 0 29 2 */7"))  # only on a Sunday, which takes 40 years over a century
    assert next_slot(rare, at("2088-03-01")) == at("2128-02-29")


UNITS = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 7)}


@st.composite
def cron_field(draw: st.DrawFn, unit: str) -> str:
    low, high = UNITS[unit]
    value = st.integers(low, high)
    pair = st.tuples(value, value).filter(lambda two: two[0] < two[1])
    terms = [
        value.map(str),
        pair.map(lambda two: f"{two[0]}-{two[1]}"),
        st.tuples(pair, st.integers(1, high)).map(lambda got: f"{got[0][0]}-{got[0][1]}/{got[1]}"),
        st.integers(1, high).map(lambda step: f"*/{step}"),
    ]
    if unit == "day":
        terms.append(st.just("L"))
    if unit == "weekday":
        terms.append(st.tuples(value, st.integers(1, 5)).map(lambda got: f"{got[0]}#{got[1]}"))
        terms.append(value.map(lambda day: f"{day}L"))
    if draw(st.integers(0, 2)) == 0:
        return "*"
    return ",".join(draw(st.lists(st.one_of(terms), min_size=1, max_size=3)))


expressions = st.tuples(*(cron_field(unit) for unit in UNITS)).map(" ".join)
instants = st.datetimes(datetime(1990, 1, 1), datetime(2110, 1, 1), timezones=st.just(UTC))


def cron_or_none(expression: str) -> Cron | None:
    try:
        return parse_cron(expression)
    except Invalid as error:
        if "no month has" not in error.message:
            raise
        return None


@settings(max_examples=250, deadline=None)
@given(expressions, instants)
def test_the_calendar_agrees_with_cronsim(expression: str, start: datetime) -> None:
    trigger = cron_or_none(expression)
    if trigger is None:
        return
    timing = Timing(trigger)
    ours, back = start, start
    for theirs in islice(CronSim(expression, start), 5):
        slot = next_slot(timing, ours)
        assert slot == theirs
        ours = slot
    for theirs in islice(CronSim(expression, start, reverse=True), 5):
        earlier = last_slot(timing, back - TICK, at("1900-01-02"))
        assert earlier == theirs
        back = earlier


zones = st.sampled_from(["UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu"])
local_times = st.times().map(lambda local: local.replace(second=0, microsecond=0))
windows = st.builds(Window, local_times, local_times).filter(lambda window: window.start != window.end)
spans = st.one_of(
    st.sampled_from([60, 3600, 5400, 86400, 7 * 86400, 25 * 3600]).map(lambda seconds: timedelta(seconds=seconds)),
    st.timedeltas(timedelta(seconds=1), timedelta(days=30)),
)
triggers = st.one_of(
    expressions.map(cron_or_none).filter(bool), st.builds(Every, spans, instants), st.builds(Once, instants)
)
timings = st.builds(
    Timing,
    trigger=triggers,
    zone=zones,
    window=st.none() | windows,
    starts_at=st.none() | instants,
    ends_at=st.none() | instants,
    jitter=st.timedeltas(timedelta(0), HOUR),
)


@settings(max_examples=250, deadline=None)
@given(timings, instants)
def test_next_is_later_and_last_is_its_mirror(timing: Timing, start: datetime) -> None:
    slot = next_slot(timing, start)
    if slot is None:
        return
    assert slot > start
    assert slot.tzinfo is UTC
    assert next_slot(timing, slot - TICK) == slot
    assert last_slot(timing, slot, start) == slot
    assert last_slot(timing, slot, slot) is None
    assert last_slot(timing, slot - TICK, start) is None
    following = next_slot(timing, slot)
    assert following is None or last_slot(timing, following - TICK, start) == slot
    assert timing.starts_at is None or slot >= timing.starts_at
    assert timing.ends_at is None or slot < timing.ends_at
    assert window_open(timing, slot) == slot


@settings(max_examples=150, deadline=None)
@given(timings, instants, st.timedeltas(timedelta(0), timedelta(days=3)))
def test_the_count_is_the_number_of_slots(timing: Timing, start: datetime, length: timedelta) -> None:
    slots = list(islice(slots_between(timing, start, start + length), 301))
    assert slots == sorted(set(slots))
    count = count_slots(timing, start, start + length, 300)
    if len(slots) <= 300:
        assert count == len(slots)
    else:
        assert count is None or count > 300


@settings(max_examples=200, deadline=None)
@given(timings)
def test_a_timing_survives_json(timing: Timing) -> None:
    assert load(json.loads(json.dumps(dump(timing)))) == timing


@settings(max_examples=200, deadline=None)
@given(timings)
def test_every_timing_has_a_description(timing: Timing) -> None:
    assert describe(timing)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"trigger": None},
        {**dump(Timing(Once(NOON))), "trigger": {"type": "moon"}},
        {**dump(Timing(Once(NOON))), "zone": "Mars/Olympus"},
        {**dump(Timing(Once(NOON))), "window": ["22:00"]},
        {**dump(Timing(Every(HOUR, NOON))), "trigger": {"type": "interval", "microseconds": 0, "anchor": "x"}},
        [],
    ],
)
def test_a_damaged_timing_is_refused(data: Any) -> None:
    with pytest.raises(Invalid):
        load(data)


# The reference page


def table_of(heading: str) -> list[list[str]]:
    """The rows of the table in docs/slots.md whose head begins with this column."""
    page = (Path(__file__).parents[3] / "docs" / "slots.md").read_text()
    rows = page.partition(f"| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]


@pytest.mark.parametrize(("expression", "_", "slots"), table_of("expression"))
def test_expressions_have_the_slots_that_the_reference_page_shows(expression: str, _: str, slots: str) -> None:
    shown = slots.split(", ")
    upcoming = islice(slots_between(Timing(parse_cron(expression)), at("2026-05-01"), at("2099-01-01")), len(shown))
    assert [f"{slot:%Y-%m-%d %H:%M}" for slot in upcoming] == shown


@pytest.mark.parametrize(("expression", "message"), table_of("refused"))
def test_expressions_are_refused_as_the_reference_page_says(expression: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_cron(expression)
    assert message in caught.value.message


@pytest.mark.parametrize("row", table_of("field"), ids=lambda row: row[0])
def test_the_reference_page_has_the_limits_of_each_field(row: list[str]) -> None:
    field = {
        field.name: field for field in (MINUTE_FIELD, HOUR_FIELD, DAY_OF_MONTH_FIELD, MONTH_FIELD, DAY_OF_WEEK_FIELD)
    }[row[0]]
    names = f"{field.names[0]} to {field.names[-1]}" if field.names else ""
    assert row[1].partition(";")[0] == f"{field.low} to {field.high}"
    assert (row[2], row[3]) == (names, f"1 to {field.high - field.low + 1}")


# Intervals and one-time triggers


def test_intervals_keep_their_grid() -> None:
    timing = Timing(Every(timedelta(minutes=7), NOON))
    assert next_slot(timing, NOON - DAY) == NOON  # the anchor is a slot, if it is still to come
    assert next_slot(timing, NOON) == NOON + timedelta(minutes=7)
    assert next_slot(timing, NOON + 40 * YEAR) - NOON - 40 * YEAR <= timedelta(minutes=7)  # type: ignore[operator]
    assert last_slot(timing, NOON - TICK, NOON - DAY) is None
    assert last_slot(timing, NOON, NOON - DAY) == NOON
    assert count_slots(timing, NOON, NOON + 10 * YEAR, 1) == 10 * 365 * 24 * 60 // 7


def test_an_interval_reaches_back_on_its_grid() -> None:
    timing = Timing(Every(timedelta(minutes=7), NOON))
    back = reaching_back(timing, NOON - DAY)
    slots = list(slots_between(back, NOON - DAY, NOON + HOUR))
    assert slots[:2] == [NOON - 205 * timedelta(minutes=7), NOON - 204 * timedelta(minutes=7)]
    assert NOON in slots
    assert slots[-8:] == list(slots_between(timing, NOON, NOON + HOUR))
    assert reaching_back(timing, NOON) == timing
    assert reaching_back(Timing(Once(NOON)), NOON - DAY) == Timing(Once(NOON))


def test_a_timestamp_is_one_slot() -> None:
    timing = Timing(Once(NOON))
    assert next_slot(timing, NOON - TICK) == NOON
    assert next_slot(timing, NOON) is None
    assert last_slot(timing, NOON + YEAR, NOON - YEAR) == NOON
    assert count_slots(timing, NOON - DAY, NOON + DAY, 5) == 1


def test_bounds_are_half_open() -> None:
    timing = Timing(parse_cron("0 * * * *"), starts_at=NOON, ends_at=NOON + 2 * HOUR)
    assert list(slots_between(timing, NOON - DAY, NOON + DAY)) == [NOON, NOON + HOUR]
    assert last_slot(timing, NOON + DAY, NOON - DAY) == NOON + HOUR
    assert last_slot(timing, NOON - TICK, NOON - DAY) is None


def test_the_result_does_not_depend_on_the_zone_of_the_argument() -> None:
    timing = Timing(parse_cron("30 1 * * *"), "America/New_York")
    asked = datetime(2026, 11, 1, 2, 0, tzinfo=timezone(timedelta(hours=-3)))
    assert next_slot(timing, asked) == next_slot(timing, asked.astimezone(UTC)) == at("2026-11-01 05:30")
    with pytest.raises(ValueError, match="no offset"):
        next_slot(timing, datetime(2026, 11, 1))


def test_the_earliest_and_latest_dates_do_not_overflow() -> None:
    timing = Timing(parse_cron("0 0 29 2 *"), "America/New_York", parse_window("22:00", "06:00"))
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert next_slot(timing, last) is None
    assert next_slot(timing, first) is not None
    assert last_slot(timing, last, first) is not None
    forever = Timing(Every(DAY, last), "Asia/Tokyo", parse_window("22:00", "06:00"))
    assert next_slot(forever, NOON) is None


def test_the_cost_does_not_grow_with_years_of_downtime() -> None:
    hard = [
        Timing(parse_cron("* * * * *"), "Europe/Berlin"),
        Timing(parse_cron("* * * * *"), "Europe/Berlin", parse_window("22:00", "22:01")),
        Timing(Every(timedelta(seconds=1), NOON), "Europe/Berlin", parse_window("22:00", "22:01")),
        Timing(parse_cron("0 12 * * *"), "Europe/Berlin", parse_window("22:00", "06:00")),
    ]
    started = perf_counter()
    for timing in hard:
        slot = last_slot(timing, NOON + 20 * YEAR, NOON)
        assert slot
        assert NOON + 20 * YEAR - slot <= 2 * DAY
        moved = timing is hard[-1]  # is counted by walking
        assert (count_slots(timing, NOON, NOON + 20 * YEAR, 1000) is None) == moved
    assert perf_counter() - started < 5  # a walk over ten million slots takes a minute


# Windows


@pytest.mark.parametrize("trigger", [parse_cron("0 11 * * *"), Every(DAY, NOON - HOUR - 10 * DAY)])
def test_slots_before_the_schedule_existed_do_not_move_into_its_window(trigger: Cron | Every) -> None:
    timing = Timing(trigger, window=parse_window("22:00", "23:00"))
    tonight, tomorrow = at("2026-05-17 22:00"), at("2026-05-18 22:00")
    assert next_slot(timing, NOON) == tonight  # 11:00 has passed and waits for the window
    assert next_slot(timing, NOON, since=NOON) == tomorrow
    assert next_slot(timing, NOON, since=NOON - 2 * HOUR) == tonight
    assert list(slots_between(timing, NOON, tomorrow, since=NOON)) == [tomorrow]
    assert [slot.at for slot in preview(timing, NOON, 2, since=NOON)] == [tomorrow, tomorrow + DAY]
    bounded = replace(timing, ends_at=tomorrow)
    with pytest.raises(Invalid, match="leaves no slot"):
        check_timing(bounded, NOON)


def slots_of(timing: Timing, days: int = 2) -> list[str]:
    return [f"{slot:%d %H:%M}" for slot in slots_between(timing, NOON, NOON + days * DAY)]


@pytest.mark.parametrize(
    ("trigger", "start", "end", "expected"),
    [
        (parse_cron("0 */6 * * *"), "17:00", "23:00", ["17 18:00", "18 18:00"]),
        (parse_cron("0 */6 * * *"), "18:00", "00:00", ["17 18:00", "18 18:00"]),
        (parse_cron("0 */6 * * *"), "23:00", "06:00", ["18 00:00", "19 00:00"]),
        (parse_cron("0 12 * * *"), "22:00", "06:00", ["17 22:00", "18 22:00"]),  # of today's noon, too
        (parse_cron("0 9,15 * * *"), "22:00", "06:00", ["17 22:00", "18 22:00"]),  # two become one
        (parse_cron("0 6 * * *"), "22:00", "06:00", ["17 22:00", "18 22:00"]),  # the end is outside
        (Every(HOUR, NOON + HOUR / 2), "13:00", "15:00", ["17 13:30", "17 14:30", "18 13:30", "18 14:30"]),
        (Every(HOUR, NOON + HOUR / 2), "13:40", "14:10", ["17 13:40", "18 13:40"]),
        (Every(DAY, NOON - DAY), "13:00", "15:00", ["17 13:00", "18 13:00"]),
        (Every(25 * HOUR, NOON), "12:30", "13:30", ["18 13:00"]),
        (Once(NOON + HOUR), "13:00", "14:00", ["17 13:00"]),
        (Once(NOON + HOUR), "14:00", "15:00", ["17 14:00"]),
    ],
)
def test_slots_outside_the_window_vanish_or_move(
    trigger: Cron | Every | Once, start: str, end: str, expected: list[str]
) -> None:
    assert slots_of(Timing(trigger, window=parse_window(start, end))) == expected


def test_when_a_window_opens_and_closes() -> None:
    night = Timing(parse_cron("0 0 * * *"), "Europe/Oslo", parse_window("22:00", "06:00"))
    assert window_open(night, NOON) == at("2026-05-17 20:00")
    assert window_close(night, at("2026-05-17 23:00")) == at("2026-05-18 04:00")
    assert window_close(night, NOON) == at("2026-05-18 04:00")
    assert window_open(night, at("2026-05-17 23:00")) == at("2026-05-17 23:00")
    assert window_open(Timing(Once(NOON)), NOON) == NOON
    assert window_close(Timing(Once(NOON)), NOON) is None


def test_a_daily_interval_that_meets_its_window_only_in_summer_has_slots_only_in_summer() -> None:
    timing = Timing(Every(DAY, at("2026-01-01 10:30")), "Europe/Berlin", parse_window("12:00", "13:00"))
    slot = next_slot(timing, at("2026-11-01 00:00"))
    assert slot == at("2027-03-28 10:30")
    assert last_slot(timing, slot - TICK, NOON) == at("2026-10-24 10:30")


# Parsing


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("30s", 30), ("5m", 300), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("1d2h3m4s", 93784), (90, 90), (1.5, 1.5)],
)
def test_intervals_are_parsed(value: object, seconds: float) -> None:
    assert parse_interval(value) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    [
        *["", "5", "m", "5x", "1.5h", "-5m", "30m1h", "5 m", "5M", "\u0665m", "0s", "3661d", "9999999999s", "5m\n"],
        *[0, 0.5, -1, 10**9, 10**400, float("nan"), float("inf"), -float("inf"), True, None, [], b"5m"],
    ],
)
def test_other_intervals_are_refused(value: object) -> None:
    with pytest.raises(Invalid) as caught:
        parse_interval(value, "every")
    assert caught.value.field == "every"


def test_zones_are_iana_names() -> None:
    assert parse_zone("Europe/Oslo") == "Europe/Oslo"
    assert parse_zone("UTC") == "UTC"


@pytest.mark.parametrize(
    "value",
    [
        *["", "Mars/Olympus", "europe/oslo", "/etc/passwd", "../UTC", "Europe/../UTC", "Europe", "UTC\0", "localtime"],
        *["+02:00", "posixrules", "\u0415urope/Oslo", None, 5, ["UTC"]],
    ],
)
def test_other_zones_are_refused(value: object) -> None:
    with pytest.raises(Invalid) as caught:
        parse_zone(value)
    assert caught.value.field == "timezone"


def test_a_window_is_two_local_times_or_none() -> None:
    assert parse_window("22:00", "06:30") == Window(time(22), time(6, 30))
    assert parse_window(None, None) is None


@pytest.mark.parametrize(
    ("start", "end", "field"),
    [
        ("22:00", None, "window_end"),
        (None, "22:00", "window_start"),
        ("22:00", "22:00", "window_end"),
        ("24:00", "06:00", "window_start"),
        ("9:00", "17:00", "window_start"),
        ("09:00", "17:60", "window_end"),
        ("09:00", "17:00:00", "window_end"),
        ("\u0660\u0669:00", "17:00", "window_start"),
        (9, 17, "window_start"),
        ("", "", "window_start"),
    ],
)
def test_other_windows_are_refused(start: object, end: object, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_window(start, end)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-11-20T09:00:00Z", "2026-11-20 09:00"),
        ("2026-11-20T09:00:00+01:00", "2026-11-20 08:00"),
        ("2026-11-20t09:00z", "2026-11-20 09:00"),
        ("2026-11-20 09:00:00.5-00:00", "2026-11-20 09:00:00.5"),
        (datetime(2026, 11, 20, 9, tzinfo=timezone(HOUR)), "2026-11-20 08:00"),
    ],
)
def test_timestamps_are_converted_to_utc(value: object, expected: str) -> None:
    instant = parse_instant(value, "run_at")
    assert instant == at(expected)
    assert instant.tzinfo is UTC


@pytest.mark.parametrize(
    "value",
    [
        *["", "2026-11-20", "2026-11-20T09:00:00", "2026-02-30T09:00:00Z", "2026-11-20T24:01:00Z", "tomorrow"],
        *["2026-11-20T09:00:00+99:00", "2026-11-20T09:00:00+03:75", "2026-11-20T09:00:00-24:00"],
        *["0001-01-01T00:00:00Z", "9999-12-31T23:00:00-05:00", "20261120T090000Z"],
        *["\u0662026-11-20T09:00:00Z", "2026-W47-5T09:00:00Z", 1795165200, None, datetime(2026, 11, 20)],
    ],
)
def test_other_timestamps_are_refused(value: object) -> None:
    with pytest.raises(Invalid) as caught:
        parse_instant(value, "run_at")
    assert caught.value.field == "run_at"


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=40), st.text("0123456789*/-,L# @?SUNMOJA\tdhms:TZ+.", max_size=30)))
def test_random_text_is_accepted_or_refused_as_invalid(text: str) -> None:
    readers: list[Callable[[str], object]] = [
        parse_cron,
        parse_interval,
        parse_zone,
        lambda value: parse_window(value, "10:00"),
        lambda value: parse_instant(value, "run_at"),
    ]
    for read in readers:
        with suppress(Invalid):
            read(text)


# A whole timing


@pytest.mark.parametrize(
    "timing",
    [
        Timing(parse_cron("0 0 29 2 *")),
        Timing(Once(NOON + TICK)),
        Timing(Every(HOUR, NOON - YEAR), starts_at=NOON + YEAR, ends_at=at("9999-12-31 23:59")),
        Timing(parse_cron("0 12 * * *"), "Europe/Oslo", parse_window("22:00", "06:00"), jitter=HOUR),
    ],
)
def test_a_good_timing_passes(timing: Timing) -> None:
    check_timing(timing, NOON)


@pytest.mark.parametrize(
    ("timing", "field", "why"),
    [
        (Timing(Once(NOON)), "run_at", "must be in the future"),
        (Timing(Once(at("9950-01-01"))), "run_at", "before the year 9900"),
        (Timing(Every(HOUR, NOON), starts_at=NOON, ends_at=NOON), "ends_at", "must be after starts_at"),
        (Timing(Every(HOUR, NOON), ends_at=NOON), "ends_at", "the next one is 2026-05-17T13:00:00+00:00"),
        (Timing(parse_cron("0 0 * * *"), ends_at=NOON + HOUR), "ends_at", "leaves no slot"),
        (Timing(Once(NOON + HOUR), starts_at=NOON + DAY), "starts_at", "leaves no slot"),
        (Timing(Every(HOUR, NOON), jitter=-HOUR), "jitter_seconds", "must be 0 to"),
        (
            Timing(parse_cron("30 2 * 3 0#2"), "America/New_York", parse_window("02:00", "03:00")),
            "window_start",
            "meets no slot",  # its hour is skipped on just that Sunday, each year
        ),
        (Timing(Cron("0 0 31 2 *")), "cron_expression", "no month has"),
        (Timing(Every(DAY, at("9999-01-01"))), "interval", "has no slot"),
    ],
)
def test_a_timing_without_slots_is_refused(timing: Timing, field: str, why: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_timing(timing, NOON)
    assert caught.value.field == field
    assert why in caught.value.message


def test_a_preview_shows_local_time() -> None:
    rows = preview(Timing(parse_cron("0 9 * * *"), "Asia/Kolkata"), NOON, 3)
    assert [row.local.isoformat() for row in rows][:1] == ["2026-05-18T09:00:00+05:30"]
    assert [row.at for row in rows] == [at(f"2026-05-{day} 03:30") for day in (18, 19, 20)]
    assert preview(Timing(Once(NOON)), NOON, 3) == []


# Jitter


@given(st.text(min_size=1, max_size=26), instants, st.timedeltas(TICK, DAY))
def test_jitter_is_stable_and_bounded(schedule_id: str, slot: datetime, jitter: timedelta) -> None:
    due = run_at(schedule_id, slot, jitter)
    assert slot <= due < slot + jitter
    assert due == run_at(schedule_id, slot.astimezone(timezone(HOUR)), jitter)
    assert run_at(schedule_id, slot, timedelta(0)) == slot


def test_jitter_spreads_schedules() -> None:
    offsets = [(run_at(f"schedule {number}", NOON, HOUR) - NOON) / HOUR for number in range(200)]
    assert len(set(offsets)) == len(offsets)
    assert 0.4 < sum(offsets) / len(offsets) < 0.6


def test_jitter_delays_all_slots_of_a_schedule_alike() -> None:
    assert {run_at("nightly", NOON + step * HOUR, HOUR) - step * HOUR for step in range(200)} == {
        run_at("nightly", NOON, HOUR)
    }


def test_jitter_is_the_same_in_another_process() -> None:
    program = (
        "from datetime import *; from rota.core.timing.triggers import run_at;"
        "print(run_at('nightly', datetime(2026, 5, 17, 12, tzinfo=UTC), timedelta(hours=1)).isoformat())"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == run_at("nightly", NOON, HOUR).isoformat()


@pytest.mark.parametrize(("rule", "slots"), table_of("rule"))
def test_rules_have_the_slots_that_the_reference_page_shows(rule: str, slots: str) -> None:
    timing = Timing(Recurring(parse_rule(rule), at("2026-05-01")))
    shown = slots.split(", ")
    upcoming = islice(slots_between(timing, at("2026-05-01") - TICK, at("2099-01-01")), 3)
    assert [f"{slot:%Y-%m-%d %H:%M}" for slot in upcoming] == shown


@pytest.mark.parametrize(("rule", "message"), table_of("rule that is refused"))
def test_rules_are_refused_as_the_reference_page_says(rule: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_timing(Timing(Recurring(parse_rule(rule), at("2026-05-01"))), at("2026-05-01"))
    assert message.replace("`", "") in caught.value.message.replace("`", "")


@pytest.mark.parametrize("row", table_of("trigger"), ids=lambda row: " ".join(row[:3]))
def test_clock_changes_are_as_the_reference_page_shows(row: list[str]) -> None:
    expression, gap, repeat, *days = row
    choices: Any = {"dst_gap": gap or None, "dst_repeat": repeat or None}
    timing = Timing(parse_cron(expression), "Europe/Oslo", **choices)
    oslo = zone_of("Europe/Oslo")
    for day, shown in zip(("2027-03-28", "2026-10-25"), days, strict=True):
        first = datetime.fromisoformat(f"{day}T01:00").replace(tzinfo=oslo)
        last = datetime.fromisoformat(f"{day}T03:59").replace(tzinfo=oslo)
        local = [slot.astimezone(oslo) for slot in slots_between(timing, first - TICK, last)]
        assert ", ".join(f"{slot:%H:%M}{slot.isoformat()[-6:]}" for slot in local) == shown
