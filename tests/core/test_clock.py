"""Time in a test's hands, and time carried on from the database's clock."""

import asyncio
from datetime import UTC, datetime, timedelta

from rota.core.clock import ManualClock, SystemClock

NINE = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


async def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(NINE)
    assert clock.now() == clock.now() == NINE
    await clock.advance(HOUR)
    assert clock.now() == NINE + HOUR
    assert clock.monotonic() == 3600


async def test_whoever_waits_is_woken_when_the_time_has_come() -> None:
    clock, event = ManualClock(NINE), asyncio.Event()
    waits = [asyncio.ensure_future(clock.wait(event, seconds)) for seconds in (60, 3600)]
    await asyncio.sleep(0)
    await clock.advance(timedelta(seconds=60))
    assert [one.done() for one in waits] == [True, False]
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


def test_the_databases_time_is_carried_on_by_the_stopwatch() -> None:
    clock = SystemClock()
    off = clock.sync(NINE, clock.monotonic())
    assert abs(off) > HOUR
    assert NINE <= clock.now() < NINE + timedelta(seconds=5)
    assert abs(clock.sync(clock.now(), clock.monotonic())) < timedelta(seconds=1)


async def test_a_wait_of_real_time_ends_by_itself() -> None:
    assert await SystemClock().wait(asyncio.Event(), 0.001) is False
