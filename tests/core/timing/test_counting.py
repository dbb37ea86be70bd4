"""Counting slots by arithmetic, against walks."""

from collections import Counter
from datetime import UTC, datetime, time, timedelta
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.core.timing.counting import count_slots, slots_per_hour
from rota.core.timing.triggers import Every, Once, Timing, parse_cron, slots_between
from rota.core.timing.windows import Window
from tests.core.timing.test_dst import Fields, changes, expressions

HOUR = timedelta(hours=1)
NOON = datetime(2026, 5, 17, 12, tzinfo=UTC)
offsets = st.integers(-40 * 3600, 40 * 3600).map(lambda seconds: timedelta(seconds=seconds))
windows = st.none() | st.tuples(st.integers(0, 1439), st.integers(1, 1439)).map(
    lambda pair: Window(time(*divmod(pair[0], 60)), time(*divmod(sum(pair) % 1440, 60)))
)


@settings(max_examples=400, deadline=None)
@given(expressions(), changes, offsets, offsets, windows)
def test_cron_slots_around_a_clock_change_are_counted_as_they_are_walked(
    fields: Fields, place: tuple[str, str], start: timedelta, end: timedelta, window: Window | None
) -> None:
    zone, change = place
    timing, middle = fields.timing(zone, window), datetime.fromisoformat(change)
    walked = len(list(slots_between(timing, middle + start, middle + end)))
    assert count_slots(timing, middle + start, middle + end, 10_000) == walked


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([60, 3600, 5400, 86401]), changes, st.integers(0, 86400), offsets, offsets, windows)
def test_intervals_are_counted_as_they_are_walked(
    span: int, place: tuple[str, str], shift: int, start: timedelta, end: timedelta, window: Window | None
) -> None:
    zone, change = place
    middle = datetime.fromisoformat(change)
    timing = Timing(Every(timedelta(seconds=span), middle - timedelta(seconds=shift)), zone, window)
    walked = len(list(slots_between(timing, middle + start, middle + end)))
    assert count_slots(timing, middle + start, middle + end, 10_000) == walked


@pytest.mark.parametrize(
    "timing",
    [
        Timing(parse_cron("*/7 * * * *"), "Asia/Kathmandu"),
        Timing(parse_cron("30 2 * * *"), "Europe/Berlin"),
        Timing(parse_cron("* 0-22 * * 1-5"), "Australia/Lord_Howe", Window(time(22), time(6))),
        Timing(parse_cron("0 12 * * *"), "Europe/Berlin", Window(time(2), time(5))),
        Timing(Every(timedelta(minutes=13), NOON), starts_at=NOON + 5 * HOUR, ends_at=NOON + 50 * HOUR),
        Timing(Every(timedelta(minutes=50), NOON), "Europe/Berlin", Window(time(22), time(6))),
        Timing(Once(NOON + 3 * HOUR)),
        Timing(Once(NOON + 3 * HOUR), window=Window(time(22), time(6))),
    ],
)
@pytest.mark.parametrize("start", [NOON, datetime(2026, 10, 22, 3, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)])
def test_slots_of_each_hour_are_counted_as_they_are_walked(timing: Timing, start: datetime) -> None:
    hours = 7 * 24
    tick = timedelta(microseconds=1)
    walked = Counter(
        (slot - start) // HOUR for slot in slots_between(timing, start - tick, start + hours * HOUR - tick)
    )
    assert slots_per_hour(timing, start, hours) == [walked[hour] for hour in range(hours)]


def test_the_cost_does_not_grow_with_the_number_of_slots() -> None:
    started, decades = perf_counter(), timedelta(days=20 * 365)
    assert (
        count_slots(Timing(parse_cron("* * * * *"), "Europe/Berlin"), NOON, NOON + decades, 0) == decades // HOUR * 60
    )
    seconds = Timing(Every(timedelta(seconds=1), NOON), "Europe/Berlin", Window(time(22), time(6)))
    assert 20 * 365 * 28_800 * 0.99 < (count_slots(seconds, NOON, NOON + decades, 0) or 0) < 20 * 365 * 28_800 * 1.01
    assert perf_counter() - started < 5
