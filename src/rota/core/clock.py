"""The one place that asks what time it is. Everybody else is given a clock.

`now` is the database's time: measured once in a while, carried on by the monotonic clock in between. So the
processes of one installation agree on what is due and whose lease is over, whatever their own wall clocks say.
"""

import asyncio
import heapq
import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Protocol

CLOCK_JUMP = timedelta(seconds=5)  # a step of the clock that nobody should act on at once
SAMPLE_ERROR_SECONDS = 0.002  # round trip up to which a sample is always good enough
DRIFT_PER_SECOND = 0.0005  # how fast a monotonic clock may run wrong between samples


@dataclass(frozen=True, slots=True)
class ClockSample:
    """One reading of the database's clock: `time` was read between `sent` and `received` on the stopwatch."""

    time: datetime
    sent: float
    received: float

    @property
    def round_trip(self) -> float:
        """Seconds between request and answer: the most by which `time` can be old when it is received."""
        return self.received - self.sent


class Clock(Protocol):
    """What an operation needs of time: the moment, a stopwatch, a way to wait."""

    def now(self) -> datetime:
        """This moment, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds on a stopwatch that is never set."""
        ...

    async def wait(self, event: asyncio.Event, seconds: float | None) -> bool:
        """Wait until the event is set (True) or the seconds have passed (False)."""
        ...


class SystemClock:
    """Real time, set by the database's clock through `sync`. It may be behind that clock by the round trip of the
    sample that it was set by, and is never ahead of it: no slot starts before its time."""

    def __init__(self) -> None:
        # time, stopwatch, seconds by which the time may be wrong; one tuple: other threads read it while it is set
        self._set = (datetime.now(UTC), time.monotonic(), math.inf)

    def now(self) -> datetime:
        base, mark, _ = self._set
        return base + timedelta(seconds=time.monotonic() - mark)

    def monotonic(self) -> float:
        return time.monotonic()

    def sync(self, sample: ClockSample) -> timedelta:
        """Set the clock to a sample, as of when it was received. Returns how far the clock had been off.

        A sample with a longer round trip than the current error allows is dropped (0 is returned): it may be old by
        all of that. Only one that proves this clock to be ahead is used however long it took."""
        base, mark, error = self._set
        current = base + timedelta(seconds=sample.received - mark)
        allowed = max(SAMPLE_ERROR_SECONDS, error + DRIFT_PER_SECOND * (sample.received - mark))
        ahead = current > sample.time + timedelta(seconds=sample.round_trip)
        if sample.round_trip > allowed and not ahead:
            return timedelta(0)
        self._set = (sample.time, sample.received, sample.round_trip)
        return sample.time - current

    async def wait(self, event: asyncio.Event, seconds: float | None) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await event.wait()
        except TimeoutError:
            return event.is_set()


class ManualClock:
    """Time that stands still until a test moves it."""

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._start = start
        self._waiters: list[tuple[datetime, int, asyncio.Event]] = []
        self._order = count()

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._start).total_seconds()

    def sync(self, sample: ClockSample) -> timedelta:  # noqa: ARG002  a test's time is its own
        return timedelta(0)

    async def wait(self, event: asyncio.Event, seconds: float | None) -> bool:
        if seconds is None:
            return await event.wait()
        alarm = asyncio.Event()
        heapq.heappush(self._waiters, (self._now + timedelta(seconds=max(0, seconds)), next(self._order), alarm))
        tasks = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(alarm.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        return event.is_set()

    def set(self, moment: datetime) -> None:
        """Jump to a moment, also backwards."""
        self._now = moment
        while self._waiters and self._waiters[0][0] <= moment:
            heapq.heappop(self._waiters)[2].set()

    async def advance(self, span: timedelta) -> None:
        """Move on, and let everything that was waiting for it run."""
        self.set(self._now + span)
        for _ in range(10):
            await asyncio.sleep(0)


def system_time() -> datetime:
    """This machine's own idea of the time; only for what is measured before a database is at hand."""
    return datetime.now(UTC)


def system_time_ms() -> int:
    """The same in milliseconds since 1970, for ids that sort by age."""
    return time.time_ns() // 1_000_000


def stopwatch() -> float:
    """Seconds for measuring spans within one process."""
    return time.monotonic()


async def real_sleep(seconds: float) -> None:
    """Let real time pass, whatever clock the engine runs on: back-off after a lost connection, graces of processes."""
    await asyncio.sleep(seconds)


def blocking_sleep(seconds: float) -> None:
    """The same for programs without an event loop: clients and the command line."""
    time.sleep(seconds)
