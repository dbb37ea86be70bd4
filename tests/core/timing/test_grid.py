"""Intervals in windows, by arithmetic, against walks."""

from datetime import UTC, datetime, time, timedelta
from itertools import islice, pairwise
from time import perf_counter
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.core.effort import Budget, limited
from rota.core.errors import TooMuchEffort
from rota.core.timing.dst import changes_in, periods, periods_back, zone_names
from rota.core.timing.grid import first_multiple, floor_sum
from rota.core.timing.triggers import Every, Timing, check_timing, last_slot, next_slot, slots_between
from rota.core.timing.windows import Window

NOON = datetime(2026, 5, 17, 12, tzinfo=UTC)
DAY = timedelta(days=1)
YEAR = 365 * DAY
SPARSE = Timing(Every(timedelta(seconds=86401), NOON), "Europe/Berlin", Window(time(17), time(17, 1)))


@settings(max_examples=500)
@given(st.integers(-200, 200), st.integers(1, 90), st.integers(-200, 200), st.data())
def test_the_first_multiple_is_the_one_that_a_walk_finds(
    step: int, modulus: int, low: int, data: st.DataObject
) -> None:
    length = data.draw(st.integers(1, modulus))
    walked = next((k for k in range(modulus + 1) if (k * step - low) % modulus < length), None)
    assert first_multiple(step, modulus, low, length) == walked


@settings(max_examples=300)
@given(st.integers(0, 40), st.integers(1, 60), st.integers(0, 90), st.integers(-90, 90))
def test_the_sum_of_floors_is_that_of_a_walk(count: int, modulus: int, step: int, start: int) -> None:
    assert floor_sum(count, modulus, step, start) == sum((step * k + start) // modulus for k in range(count))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([3600, 5400, 86399, 86401, 86460, 100_000, 7 * 86400 + 600]),
    st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca"]),
    st.times(),
    st.integers(1, 600),
    st.integers(0, 86400),
)
def test_slots_in_a_window_are_those_that_a_walk_finds(
    seconds: int, zone: str, opens: time, minutes: int, shift: int
) -> None:
    opens = opens.replace(second=0, microsecond=0)
    closes = (datetime.combine(NOON, opens) + timedelta(minutes=minutes)).time()
    window, span, anchor = Window(opens, closes), timedelta(seconds=seconds), NOON - timedelta(seconds=shift)
    timing, end = Timing(Every(span, anchor), zone, window), NOON + 300 * DAY
    walked = [anchor + k * span for k in range((end - anchor) // span + 1)]
    inside = [slot for slot in walked if slot > NOON and window.holds(slot.astimezone(ZoneInfo(zone)).time())]
    if not inside:
        return  # then slots may move into the window
    assert list(slots_between(timing, NOON, end)) == inside
    back, slot = [], last_slot(timing, end, NOON)
    while slot is not None:
        back.append(slot)
        slot = last_slot(timing, slot - timedelta(microseconds=1), NOON)
    assert back == inside[::-1]


def test_a_search_over_decades_takes_a_few_hundred_steps() -> None:
    started = perf_counter()
    with limited(400) as budget:
        first = next_slot(SPARSE, NOON)
    assert first is not None
    assert first.year > 2050
    assert 0 < budget.steps - budget.left < 200
    never = Timing(Every(2 * timedelta(seconds=86400), NOON), "Europe/Berlin", Window(time(14), time(14, 1)))
    assert next_slot(never, NOON) is not None
    assert last_slot(SPARSE, first, NOON) == first
    assert perf_counter() - started < 5  # day by day it was half a second for each search


def test_a_request_that_asks_for_too_much_is_refused() -> None:
    def searches() -> None:
        for number in range(1000):
            check_timing(Timing(Every(timedelta(seconds=86401), NOON + number * DAY), SPARSE.zone, SPARSE.window), NOON)

    with limited(1000), pytest.raises(TooMuchEffort, match="too many or too far apart"):
        searches()
    with limited(1000), pytest.raises(TooMuchEffort):
        list(slots_between(Timing(Every(timedelta(seconds=1), NOON)), NOON, NOON + DAY))
    assert len(list(islice(slots_between(Timing(Every(timedelta(seconds=1), NOON)), NOON, NOON + DAY), 2000))) == 2000


def test_budgets_are_counted_down_together() -> None:
    with limited(10) as outer:
        assert isinstance(outer, Budget)
        list(islice(slots_between(Timing(Every(DAY, NOON)), NOON, NOON + YEAR), 5))
        assert outer.left == 6


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Africa/Casablanca", "Asia/Gaza", "Pacific/Apia", "UTC"])
def test_periods_have_one_offset_and_no_hole(zone: str) -> None:
    start, end = datetime(2005, 1, 1, tzinfo=UTC), datetime(2045, 6, 1, tzinfo=UTC)
    parts, info = list(periods(zone, start, end)), ZoneInfo(zone)
    assert (parts[0].start, parts[-1].end) == (start, end)
    for earlier, later in pairwise(parts):
        assert earlier.end == later.start == later.since
        assert earlier.offset == later.before != later.offset
    for period in parts:
        steps = int((period.end - period.start) / timedelta(hours=6))
        instants = [period.start + step * timedelta(hours=6) for step in range(steps)]
        assert {at.astimezone(info).utcoffset() for at in [*instants, period.start]} == {period.offset}
    back = list(periods_back(zone, start, end))
    assert (back[-1].start, back[0].end) == (start, end)
    assert all(earlier.start == later.end for earlier, later in pairwise(back))


def test_changes_close_to_each_other_are_found() -> None:
    assert "Africa/Freetown" in zone_names()
    assert [change.month for change, _ in changes_in("Africa/Freetown", 1939)] == [
        6,
        9,
        9,
    ]  # two of them within four days
