"""Cron on days when the clock changes, compared with a walk over every minute that shares no code with Rota."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.core.timing.dst import DstGap, DstRepeat
from rota.core.timing.presentation import preview
from rota.core.timing.triggers import (
    Every,
    Timing,
    last_slot,
    next_slot,
    parse_cron,
    slots_between,
    window_close,
    window_open,
)
from rota.core.timing.windows import Window

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
AROUND = timedelta(hours=30)
DST_GAPS: list[DstGap | None] = [None, "run_after", "skip"]
DST_REPEATS: list[DstRepeat | None] = [None, "first", "both"]
CHANGES = [
    ("America/New_York", "2026-03-08T07:00Z"),
    ("America/New_York", "2026-11-01T06:00Z"),
    ("Europe/Berlin", "2026-03-29T01:00Z"),
    ("Europe/Berlin", "2026-10-25T01:00Z"),
    ("Australia/Lord_Howe", "2026-04-04T15:00Z"),  # half an hour
    ("Australia/Lord_Howe", "2026-10-03T15:30Z"),
    ("Africa/Cairo", "2026-04-23T22:00Z"),  # midnight is skipped
    ("Africa/Cairo", "2026-10-29T21:00Z"),
    ("Asia/Beirut", "2026-03-28T22:00Z"),
    ("Asia/Beirut", "2026-10-24T21:00Z"),
    ("America/Havana", "2026-03-08T05:00Z"),
    ("America/Havana", "2026-11-01T05:00Z"),  # the first hour of the day comes twice
    ("Pacific/Apia", "2011-12-30T10:00Z"),  # a whole day is skipped
    ("Antarctica/Troll", "2026-03-29T01:00Z"),  # two hours
    ("Antarctica/Troll", "2026-10-25T01:00Z"),
    ("Pacific/Chatham", "2026-04-04T14:00Z"),  # at a quarter to four
    ("Pacific/Chatham", "2026-09-26T14:00Z"),
    ("Europe/Istanbul", "2016-09-06T21:00Z"),  # summer time becomes the standard: only the name changes
]


@dataclass(frozen=True)
class Fields:
    """An expression, and the sets of values that the test expects it to match."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    weekdays: frozenset[int]
    gap: DstGap | None  # None: by the set of hours
    repeat: DstRepeat | None

    @property
    def skips_gap(self) -> bool:
        return len(self.hours) == 24 if self.gap is None else self.gap == "skip"

    @property
    def in_both_passes(self) -> bool:
        return len(self.hours) == 24 if self.repeat is None else self.repeat == "both"

    def timing(self, zone: str, window: Window | None = None) -> Timing:
        return Timing(parse_cron(self.text), zone, window, dst_gap=self.gap, dst_repeat=self.repeat)

    def match(self, local: datetime) -> bool:
        return local.minute in self.minutes and local.hour in self.hours and local.isoweekday() % 7 in self.weekdays


@cache
def minutes_around(zone: str, change: str) -> list[tuple[datetime, datetime]]:
    """Each UTC minute around a change, with the local time."""
    info, middle = ZoneInfo(zone), datetime.fromisoformat(change)
    count = 2 * AROUND // MINUTE
    instants = [middle - AROUND + step * MINUTE for step in range(count)]
    return [(at, at.astimezone(info).replace(tzinfo=None, fold=0)) for at in instants]


def walk(fields: Fields, minutes: list[tuple[datetime, datetime]]) -> list[datetime]:
    """All slots, by looking at each minute."""
    slots, seen = set(), set()
    previous = minutes[0][1] - MINUTE
    for at, local in minutes:
        skipped = previous + MINUTE
        while skipped < local:  # local times that the clock skips
            if fields.match(skipped) and not fields.skips_gap:
                slots.add(at)
            skipped += MINUTE
        if fields.match(local) and (local not in seen or fields.in_both_passes):
            slots.add(at)
        seen.add(local)
        previous = max(previous, local)
    return sorted(slots)


@st.composite
def part(draw: st.DrawFn, size: int) -> tuple[str, frozenset[int]]:
    match draw(st.sampled_from(["star", "step", "one", "list", "range", "stepped"])):
        case "star":
            return "*", frozenset(range(size))
        case "step":
            step = draw(st.integers(1, size))
            return f"*/{step}", frozenset(range(0, size, step))
        case "one":
            value = draw(st.integers(0, size - 1))
            return str(value), frozenset([value])
        case "list":
            values = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=4))
            return ",".join(map(str, values)), frozenset(values)
        case "range":
            low, high = sorted(draw(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))))
            return f"{low}-{high}", frozenset(range(low, high + 1))
        case _:
            low, high = sorted(draw(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))))
            step = draw(st.integers(1, size))
            return f"{low}-{high}/{step}", frozenset(range(low, high + 1, step))


@st.composite
def expressions(draw: st.DrawFn) -> Fields:
    minute, minutes = draw(part(60))
    early = st.integers(0, 4).map(lambda hour: (str(hour), frozenset([hour])))  # where clocks change
    hour, hours = draw(st.one_of(part(24), early))
    weekday, weekdays = draw(st.one_of(st.just(("*", frozenset(range(7)))), part(7)))
    gap: DstGap | None = draw(st.sampled_from(DST_GAPS))
    repeat: DstRepeat | None = draw(st.sampled_from(DST_REPEATS))
    return Fields(f"{minute} {hour} * * {weekday}", minutes, hours, weekdays, gap, repeat)


changes = st.sampled_from(CHANGES)
instants = st.floats(-20 * 3600, 20 * 3600).map(lambda seconds: timedelta(seconds=seconds))


@pytest.mark.parametrize(("zone", "change"), CHANGES)
def test_each_row_of_the_table_is_a_clock_change(zone: str, change: str) -> None:
    at, info = datetime.fromisoformat(change), ZoneInfo(zone)
    before, after = (at - SECOND).astimezone(info), at.astimezone(info)
    assert (before.utcoffset(), before.tzname()) != (after.utcoffset(), after.tzname())


@settings(max_examples=400, deadline=None)
@given(expressions(), changes, instants)
def test_slots_equal_those_of_a_walk_over_all_minutes(fields: Fields, place: tuple[str, str], shift: timedelta) -> None:
    zone, change = place
    timing = fields.timing(zone)
    walked = walk(fields, minutes_around(zone, change))
    begin, end = search_bounds(change)
    inner = [slot for slot in walked if begin < slot <= end]
    assert list(slots_between(timing, begin, end)) == inner
    at = datetime.fromisoformat(change) + shift
    assert in_bounds(next_slot(timing, at), change) == next((slot for slot in inner if slot > at), None)
    assert last_slot(timing, at, begin) == next((slot for slot in reversed(inner) if slot <= at), None)


@settings(max_examples=100, deadline=None)
@given(expressions(), changes, st.times(), st.times())
def test_a_window_keeps_the_slots_inside_or_gathers_them_at_its_start(
    fields: Fields, place: tuple[str, str], start: time, end: time
) -> None:
    zone, change = place
    start, end = start.replace(second=0, microsecond=0), end.replace(second=0, microsecond=0)
    if start == end:
        return
    window, minutes = Window(start, end), minutes_around(zone, change)
    timing = fields.timing(zone, window)
    within = [(at, is_inside(window, local)) for at, local in minutes]
    slots = set(walk(fields, minutes))
    if any(is_inside(window, datetime(2026, 1, 1, hour, minute)) for hour in fields.hours for minute in fields.minutes):
        expected = [at for at, holds in within if holds and at in slots]
    else:
        expected, waiting = [], False
        for at, holds in within:
            waiting = waiting or at in slots
            if holds and waiting:
                expected.append(at)
                waiting = False
    begin, finish = search_bounds(change)
    begin += timedelta(days=1)  # so long may a slot have waited that the walker did not see
    expected = [slot for slot in expected if begin < slot <= finish]
    assert list(slots_between(timing, begin, finish)) == expected
    assert list(backwards(timing, begin, finish)) == expected[::-1]


@settings(max_examples=60, deadline=None)
@given(changes, st.sampled_from([60, 90, 25 * 60, 24 * 60]), st.integers(0, 1440), st.times(), st.integers(1, 600))
def test_a_window_does_the_same_to_intervals(
    place: tuple[str, str], span: int, shift: int, start: time, length: int
) -> None:
    zone, change = place
    opens = datetime(2026, 1, 1, start.hour, start.minute)
    window = Window(opens.time(), (opens + length * MINUTE).time())
    middle = datetime.fromisoformat(change)
    trigger = Every(span * MINUTE, middle - timedelta(days=3) + shift * MINUTE)
    info, year = ZoneInfo(zone), timedelta(days=366) // trigger.span
    slots = {trigger.anchor + step * trigger.span for step in range(year)}
    expected, waiting = [], False
    if any(is_inside(window, slot.astimezone(info)) for slot in slots):
        expected = [slot for slot in sorted(slots) if is_inside(window, slot.astimezone(info))]
    else:
        for at, local in minutes_around(zone, change):
            waiting = waiting or at in slots
            if waiting and is_inside(window, local):
                expected.append(at)
                waiting = False
    begin, finish = middle - timedelta(hours=2), middle + timedelta(hours=28)
    expected = [slot for slot in expected if begin < slot <= finish]
    timing = Timing(trigger, zone, window)
    assert list(slots_between(timing, begin, finish)) == expected
    assert list(backwards(timing, begin, finish)) == expected[::-1]


@settings(max_examples=100, deadline=None)
@given(changes, st.times(), st.times(), st.integers(-1500, 1500))
def test_windows_open_and_close_by_local_time(place: tuple[str, str], start: time, end: time, step: int) -> None:
    zone, change = place
    start, end = start.replace(second=0, microsecond=0), end.replace(second=0, microsecond=0)
    if start == end:
        return
    window, minutes = Window(start, end), minutes_around(zone, change)
    timing = Timing(Every(MINUTE, minutes[0][0]), zone, window)
    at = datetime.fromisoformat(change) + step * MINUTE / 2
    opens = next((when for when, local in minutes if when >= at and is_inside(window, local)), None)
    now_inside = is_inside(window, at.astimezone(ZoneInfo(zone)))
    opens = at if now_inside else opens
    if opens:
        assert window_open(timing, at) == opens
        closes = next((when for when, local in minutes if when > opens and not is_inside(window, local)), None)
        assert closes is None or window_close(timing, at) == closes


@pytest.mark.parametrize(("zone", "change"), CHANGES)
@pytest.mark.parametrize("expression", ["*/20 * * * *", "30 * * * *", "30 2 * * *", "15,45 0-3 * * *", "0 */2 * * *"])
def test_from_every_second_between_two_slots_next_is_the_later_and_last_the_earlier(
    zone: str, change: str, expression: str
) -> None:
    timing, middle = Timing(parse_cron(expression), zone), datetime.fromisoformat(change)
    slots = list(slots_between(timing, middle - timedelta(hours=4), middle + timedelta(hours=4)))
    for earlier, later in pairwise(slots):
        length = int((later - earlier) / SECOND)
        for second in {*range(0, length, 7 if length > 600 else 1), 1, length - 1}:
            at = earlier + second * SECOND
            assert (next_slot(timing, at), last_slot(timing, at, middle - AROUND)) == (later, earlier)


@pytest.mark.parametrize(
    ("expression", "day", "expected"),
    [
        ("30 2 * * *", "2026-03-08", ["07:00"]),  # skipped: the first instant after the gap
        ("15,45 2 * * *", "2026-03-08", ["07:00"]),  # two of them are one slot
        ("0-30/5 2 * * *", "2026-03-08", ["07:00"]),
        ("30 2,3 * * *", "2026-03-08", ["07:00", "07:30"]),
        ("0 3 * * *", "2026-03-08", ["07:00"]),
        ("*/5 2 * * *", "2026-03-08", ["07:00"]),
        ("0 */2 * * *", "2026-03-08", ["05:00", "07:00", "08:00", "10:00"]),
        ("30 * * * *", "2026-03-08", ["05:30", "06:30", "07:30", "08:30", "09:30", "10:30"]),  # nothing in the gap
        ("30 1 * * *", "2026-11-01", ["05:30"]),  # comes twice: the first time
        ("30 * * * *", "2026-11-01", ["04:30", "05:30", "06:30", "07:30", "08:30", "09:30", "10:30"]),
        ("*/30 1 * * *", "2026-11-01", ["05:00", "05:30"]),
        ("0 0 * * *", "2026-03-09", ["04:00"]),
    ],
)
def test_new_york_when_the_clock_changes(expression: str, day: str, expected: list[str]) -> None:
    timing = Timing(parse_cron(expression), "America/New_York")
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("America/New_York")).astimezone(UTC)
    slots = slots_between(timing, midnight - SECOND, datetime.fromisoformat(f"{day}T11:00Z") - SECOND)
    assert [f"{slot:%H:%M}" for slot in slots] == expected


def test_all_hours_of_one_day_a_year_meet_the_repeated_hour_twice() -> None:
    timing = Timing(parse_cron("*/30 * 1 11 *"), "America/New_York")
    first_round = datetime(2026, 11, 1, 5, 30, tzinfo=UTC)
    assert next_slot(timing, first_round) == datetime(2026, 11, 1, 6, 0, tzinfo=UTC)


@pytest.mark.parametrize(("zone", "change"), CHANGES)
@pytest.mark.parametrize(
    "spellings",
    [
        ["0 * * * *", "0 */1 * * *", "0 0-23 * * *", "0 0-11,12-23 * * *", "@hourly"],
        ["*/20 * * * *", "0,20,40 * * * *", "0-59/20 0-23 * * *"],
        ["*/15 2 * * *", "0,15,30,45 2 * * *", "0-59/15 2-2 * * *"],
        ["0 */2 * * *", "0 0-23/2 * * *", "0 0,2,4,6,8,10,12,14,16,18,20,22 * * *"],
        ["0 0-22 * * *", "0 0-11,12-22 * * *"],
    ],
)
def test_equal_sets_of_times_have_equal_slots_however_they_are_spelt(
    zone: str, change: str, spellings: list[str]
) -> None:
    begin, end = search_bounds(change)
    slots = {tuple(slots_between(Timing(parse_cron(text), zone), begin, end)) for text in spellings}
    assert len(slots) == 1


def test_the_day_that_samoa_skipped_has_one_daily_slot_at_its_end() -> None:
    timing = Timing(parse_cron("0 12 * * *"), "Pacific/Apia")
    slots = slots_between(timing, datetime(2011, 12, 29, tzinfo=UTC), datetime(2012, 1, 1, tzinfo=UTC))
    assert [slot.isoformat() for slot in slots] == [
        "2011-12-29T22:00:00+00:00",
        "2011-12-30T10:00:00+00:00",  # for 30 December, which did not happen
        "2011-12-30T22:00:00+00:00",
        "2011-12-31T22:00:00+00:00",
    ]


def test_a_window_that_lies_in_the_gap_has_no_slot_on_that_day() -> None:
    timing = Timing(parse_cron("30 2 * * *"), "America/New_York", Window(time(2), time(3)))
    slots = slots_between(timing, datetime(2026, 3, 7, tzinfo=UTC), datetime(2026, 3, 10, tzinfo=UTC))
    assert [slot.day for slot in slots] == [7, 9]


@pytest.mark.parametrize(
    ("expression", "after", "notes"),
    [
        (
            "30 2 * * *",
            "2026-03-07T12:00Z",
            ["02:30 does not exist on this day: the clock goes from 02:00 to 03:00", None],
        ),
        ("0 3 * * *", "2026-03-07T12:00Z", ["the clock goes from 02:00 to 03:00", None]),
        ("30 1 * * *", "2026-10-31T12:00Z", ["01:30 happens twice on this day: this is the first time", None]),
        (
            "30 * * * *",
            "2026-11-01T05:00Z",
            [
                "01:30 happens twice on this day: this is the first time",
                "01:30 happens twice on this day: this is the second time",
                None,
            ],
        ),
    ],
)
def test_previews_describe_how_a_change_affects_a_slot(expression: str, after: str, notes: list[str | None]) -> None:
    timing = Timing(parse_cron(expression), "America/New_York")
    rows = preview(timing, datetime.fromisoformat(after), len(notes))
    assert [row.note for row in rows] == notes
    zone = ZoneInfo("America/New_York")
    assert all(row.local == row.at for row in rows)
    assert all(row.local.utcoffset() == row.at.astimezone(zone).utcoffset() for row in rows)


def search_bounds(change: str) -> tuple[datetime, datetime]:
    """The part of the walked minutes in which the walker sees every neighbour it needs."""
    middle = datetime.fromisoformat(change)
    return middle - timedelta(hours=26), middle + timedelta(hours=28)


def in_bounds(slot: datetime | None, change: str) -> datetime | None:
    begin, end = search_bounds(change)
    return slot if slot and begin < slot <= end else None


def is_inside(window: Window, local: datetime) -> bool:
    clock = (local.hour, local.minute)
    start, end = (window.start.hour, window.start.minute), (window.end.hour, window.end.minute)
    return start <= clock < end if start < end else not end <= clock < start


def backwards(timing: Timing, begin: datetime, end: datetime) -> Iterator[datetime]:
    slot = last_slot(timing, end, begin)
    while slot:
        yield slot
        slot = last_slot(timing, slot - timedelta(microseconds=1), begin)
