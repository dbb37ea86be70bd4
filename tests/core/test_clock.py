"""The clock of tests, and the system clock set to the time of the database."""

import asyncio
from datetime import UTC, datetime, timedelta

from rota.core.clock import ClockSample, ManualClock, SystemClock

NINE = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


async def test_a_manual_clock_stops_until_it_is_advanced() -> None:
    clock = ManualClock(NINE)
    assert clock.now() == clock.now() == NINE
    await clock.advance(HOUR)
    assert clock.now() == NINE + HOUR
    assert clock.monotonic() == 3600


async def test_a_wait_ends_when_its_time_has_passed() -> None:
    clock, event = ManualClock(NINE), asyncio.Event()
    waits = [asyncio.ensure_future(clock.wait(event, seconds)) for seconds in (60, 3600)]
    await asyncio.sleep(0)
    await clock.advance(timedelta(seconds=60))
    assert [wait.done() for wait in waits] == [True, False]
    assert waits[0].result() is False
    await clock.advance(HOUR)
    assert waits[1].result() is False


async def test_an_event_ends_a_wait_before_its_time() -> None:
    for clock in (ManualClock(NINE), SystemClock()):
        event = asyncio.Event()
        wait = asyncio.ensure_future(clock.wait(event, 1000))
        await asyncio.sleep(0)
        event.set()
        assert await wait is True


async def test_a_wait_without_end_ends_with_its_event() -> None:
    clock, event = ManualClock(NINE), asyncio.Event()
    wait = asyncio.ensure_future(clock.wait(event, None))
    await clock.advance(HOUR)
    assert not wait.done()
    event.set()
    assert await wait is True


def test_a_clock_can_be_set_back() -> None:
    clock = ManualClock(NINE)
    clock.set(NINE - HOUR)
    assert clock.now() == NINE - HOUR


def test_the_time_of_the_database_is_extrapolated_by_the_monotonic_clock() -> None:
    clock = SystemClock()
    off = clock.sync(sample(clock, NINE, 0))
    assert abs(off) > HOUR
    assert NINE <= clock.now() < NINE + timedelta(seconds=5)
    assert abs(clock.sync(sample(clock, clock.now(), 0))) < timedelta(seconds=1)


async def test_a_wait_in_real_time_ends() -> None:
    assert await SystemClock().wait(asyncio.Event(), 0.001) is False


def sample(clock: SystemClock, time: datetime, round_trip: float) -> ClockSample:
    """A sample whose answer has just been received."""
    received = clock.monotonic()
    return ClockSample(time, received - round_trip, received)


def is_about(clock: SystemClock, time: datetime) -> bool:
    """Whether the clock shows the time, a loaded machine allowed for."""
    return timedelta(0) <= clock.now() - time < timedelta(seconds=2)


def test_the_first_sample_sets_the_clock_to_what_was_received_at_the_latest() -> None:
    clock = SystemClock()
    clock.sync(sample(clock, NINE, 12))
    assert is_about(clock, NINE)  # not 6 s ahead, as if the time were from the middle of the round trip


def test_a_slow_sample_does_not_move_the_clock() -> None:
    clock = SystemClock()
    clock.sync(sample(clock, NINE, 0.001))
    for time in (NINE - timedelta(seconds=12), NINE, NINE + HOUR):  # read early, late; or the database's clock was set
        assert clock.sync(sample(clock, time, 12.5)) == timedelta(0)
        assert is_about(clock, NINE)


def test_a_slow_sample_that_lacks_a_millisecond_proves_nothing() -> None:
    clock = SystemClock()
    received = clock.monotonic()
    clock.sync(ClockSample(NINE, received - 0.001, received))
    truncated = NINE + timedelta(seconds=1 - 0.7, milliseconds=-1)  # as SQLite's clock does
    assert clock.sync(ClockSample(truncated, received + 0.3, received + 1)) == timedelta(0)


def test_a_slow_sample_that_proves_the_clock_ahead_sets_it_back() -> None:
    clock = SystemClock()
    clock.sync(sample(clock, NINE, 0.001))
    assert clock.sync(sample(clock, NINE - HOUR, 12)) < timedelta(minutes=-59)
    assert is_about(clock, NINE - HOUR)


def test_a_better_sample_replaces_a_slow_one() -> None:
    clock = SystemClock()
    clock.sync(sample(clock, NINE, 12))
    clock.sync(sample(clock, NINE + timedelta(seconds=11), 0.03))
    assert is_about(clock, NINE + timedelta(seconds=11))


def test_samples_of_a_slow_link_are_used_when_they_are_as_good_as_the_last() -> None:
    clock = SystemClock()
    clock.sync(sample(clock, NINE, 0.08))
    clock.sync(sample(clock, NINE + HOUR, 0.08))  # the database's clock was set
    assert is_about(clock, NINE + HOUR)
