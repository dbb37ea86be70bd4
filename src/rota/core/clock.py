"""The only module that reads the time. Other modules receive a `Clock`.

`now` is the time of the database: sampled from time to time, extrapolated by the monotonic clock in between. So the
processes of one installation agree on what is due and which lease has expired, even if their system clocks differ.
"""

import asyncio
import heapq
import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Protocol

CLOCK_JUMP = timedelta(seconds=5)  # a larger step of the clock postpones rescues and is logged
SAMPLE_ERROR_SECONDS = 0.002  # a sample with a shorter round trip is always accepted
DRIFT_PER_SECOND = 0.0005  # assumed drift of the monotonic clock between samples
SAMPLE_RESOLUTION = timedelta(milliseconds=2)  # SQLite's clock has milliseconds


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
    """Current time, stopwatch and waiting."""

    def now(self) -> datetime:
        """Return the current time in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds of a monotonic clock."""
        ...

    async def wait(self, event: asyncio.Event, seconds: float | None) -> bool:
        """Wait until the event is set (True) or the seconds have passed (False)."""
        ...


class SystemClock:
    """Real time, set to the clock of the database by `sync`. It may be behind that clock by the round trip of the last
    sample, and is never ahead of it: no slot starts before its time."""

    def __init__(self) -> None:
        # time, stopwatch, error in seconds; one tuple, since other threads read it while it is set
        self._set = (datetime.now(UTC), time.monotonic(), math.inf)

    def now(self) -> datetime:
        base, mark, _ = self._set
        return base + timedelta(seconds=time.monotonic() - mark)

    def monotonic(self) -> float:
        return time.monotonic()

    def sync(self, sample: ClockSample) -> timedelta:
        """Set the clock to a sample, as of when it was received. Returns by how much the clock was wrong.

        A sample with a longer round trip than the current error allows is dropped (returns 0): it may be that old. A
        sample that proves this clock to be ahead is always used."""
        base, mark, error = self._set
        current = base + timedelta(seconds=sample.received - mark)
        allowed = max(SAMPLE_ERROR_SECONDS, error + DRIFT_PER_SECOND * (sample.received - mark))
        ahead = current > sample.time + timedelta(seconds=sample.round_trip) + SAMPLE_RESOLUTION
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
    """A clock for tests: time changes only by `set` and `advance`."""

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._start = start
        self._waiters: list[tuple[datetime, int, asyncio.Event]] = []
        self._order = count()

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._start).total_seconds()

    def sync(self, sample: ClockSample) -> timedelta:  # noqa: ARG002  only the test sets the time
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

    def set(self, now: datetime) -> None:
        """Set the time, also backwards, and wake the waits that have passed."""
        self._now = now
        while self._waiters and self._waiters[0][0] <= now:
            heapq.heappop(self._waiters)[2].set()

    async def advance(self, span: timedelta) -> None:
        """Advance the time, and let the tasks that waited for it run."""
        self.set(self._now + span)
        for _ in range(10):
            await asyncio.sleep(0)


def system_time() -> datetime:
    """Return the time of this machine; only for code that has no database connection."""
    return datetime.now(UTC)


def system_time_ms() -> int:
    """Return the time of this machine in milliseconds since 1970, for ids that sort by age."""
    return time.time_ns() // 1_000_000


def stopwatch() -> float:
    """Return seconds of the monotonic clock, to measure durations within one process."""
    return time.monotonic()


def thread_cpu_seconds() -> float:
    """Return the CPU time that the current thread has used, user and system."""
    return time.thread_time()


async def real_sleep(seconds: float) -> None:
    """Sleep in real time, whatever clock the engine has: backoff after a lost connection, grace of processes."""
    await asyncio.sleep(seconds)


def blocking_sleep(seconds: float) -> None:
    """Sleep without an event loop: clients and the command line."""
    time.sleep(seconds)
