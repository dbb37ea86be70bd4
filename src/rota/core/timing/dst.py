"""Daylight saving time: slots of patterns of local times in zones whose clock changes.

Two choices of the schedule decide. A local time that the clock skips has its slot at the first instant after the gap
(`run_after`) or none (`skip`); one that happens twice has it the `first` time or `both` times. Several local times in
one gap are one slot, since a slot is an instant.

Where the schedule does not choose, the set of hours of its pattern does, never how the pattern is written. One that has
all 24 hours follows elapsed time (`skip`, `both`): it loses nothing and pauses for no hour. Any other has fixed times,
never lost and never doubled (`run_after`, `first`).

    30 * * * *       skip, both: every real half hour
    30 0-23 * * *    the same
    0 */2 * * *      run_after, first: at 03:00 when 02:00 is skipped
    */5 2 * * *      run_after, first: in a gap all twelve become one slot at its end
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Literal, NamedTuple, Protocol
from zoneinfo import ZoneInfo, available_timezones

TICK = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
ZERO = timedelta(0)
CHANGE_SEARCH_STEP = timedelta(days=3)  # no zone changed its clock and changed it back in a shorter time since 1900
LONGEST_JUMP = timedelta(days=2)  # upper bound of one clock change


DstGap = Literal["run_after", "skip"]
DstRepeat = Literal["first", "both"]


class LocalPattern(Protocol):
    """Local times that a trigger matches, without a zone."""

    @property
    def skips_gap(self) -> bool:
        """Whether a local time that the clock skips has no slot; else it has one after the gap."""

    @property
    def in_both_passes(self) -> bool:
        """Whether a local time that happens twice has two slots; else it has the first."""

    def next_match(self, local: datetime) -> datetime | None:
        """Return the first matching local time strictly after `local`, in its tzinfo; None beyond the horizon."""

    def previous_match(self, local: datetime) -> datetime | None:
        """Return the latest matching local time at or before `local`, in its tzinfo; None beyond the horizon."""


class Period(NamedTuple):
    """A stretch `start <= instant < end` in which a zone has one UTC offset. The clock changed to it at `since`, from
    the offset `before`; where it did so long ago, both offsets are the same."""

    start: datetime
    end: datetime
    offset: timedelta
    since: datetime
    before: timedelta


def next_local(pattern: LocalPattern, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the first slot of a pattern strictly after `after`, in UTC; None beyond the horizon."""
    local = after.astimezone(zone)
    if not local.fold and not (pattern.in_both_passes and happens_twice(local)):
        match = pattern.next_match(local)
        if match is None:
            return None
        slot = match.astimezone(UTC)
        if offset(zone, slot) == match.utcoffset():  # the ordinary case: no clock change is near
            return slot
    return next_around_change(pattern, zone, local)


def last_local(pattern: LocalPattern, zone: ZoneInfo, until: datetime) -> datetime | None:
    """Return the latest slot at or before `until`, in UTC; None beyond the horizon."""
    local = until.astimezone(zone)
    if not local.fold:
        match = pattern.previous_match(local)
        if match is None:
            return None
        slot = match.astimezone(UTC)
        if offset(zone, slot) == match.utcoffset() and not (pattern.in_both_passes and happens_twice(match)):
            return slot
    return last_around_change(pattern, zone, local)


def next_around_change(pattern: LocalPattern, zone: ZoneInfo, local: datetime) -> datetime | None:
    local_time = local.replace(tzinfo=None, fold=0)
    first, second = offsets(zone, local_time)
    if first > second:  # the local time is in a repeated hour
        change = change_between(zone, local_time - first, local_time - second)
        begin, end = change + second, change + first
        match = pattern.next_match(local_time)
        if match and match < end and not local.fold:
            return instant(match - first)
        if pattern.in_both_passes:
            match = match if local.fold else pattern.next_match(begin - TICK)
            if match and match < end:
                return instant(match - second)
        local_time = end - TICK
    match = pattern.next_match(local_time)
    while match:
        first, second = offsets(zone, match)
        if first >= second:
            return instant(match - first)
        change = change_between(zone, match - second, match - first)  # the clock skips this local time
        if not pattern.skips_gap:
            return instant(change)
        match = pattern.next_match(change + second - TICK)
    return None


def last_around_change(pattern: LocalPattern, zone: ZoneInfo, local: datetime) -> datetime | None:
    local_time = local.replace(tzinfo=None, fold=0)
    first, second = offsets(zone, local_time)
    if first > second:
        change = change_between(zone, local_time - first, local_time - second)
        begin, end = change + second, change + first
        if local.fold:
            match = pattern.previous_match(local_time)
            if match and match >= begin and pattern.in_both_passes:
                return instant(match - second)
            local_time = end - TICK
        match = pattern.previous_match(local_time)
        if match and match >= begin:
            return instant(match - first)
        local_time = begin - TICK
    match = pattern.previous_match(local_time)
    while match:
        first, second = offsets(zone, match)
        if first >= second:
            return instant(match - (second if pattern.in_both_passes else first))
        change = change_between(zone, match - second, match - first)
        if not pattern.skips_gap:
            return instant(change)
        match = pattern.previous_match(change + first - TICK)
    return None


def clock_note(pattern: LocalPattern | None, zone: ZoneInfo, at: datetime) -> str | None:
    """Describe how a clock change affects this slot; None if it does not."""
    local = at.astimezone(zone)
    local_time = local.replace(tzinfo=None, fold=0)
    first, second = offsets(zone, local_time)
    if first > second:
        return f"{local_time:%H:%M} happens twice on this day: this is the {'second' if local.fold else 'first'} time"
    gap = offset(zone, at) - offset(zone, at - TICK)
    if gap <= ZERO:
        return None
    jump = f"the clock goes from {local_time - gap:%H:%M} to {local_time:%H:%M}"
    if pattern and not pattern.skips_gap:
        missing = pattern.next_match(local_time - gap - TICK)
        if missing and missing < local_time:
            return f"{missing:%H:%M} does not exist on this day: {jump}"
    return jump


@cache  # the cache of ZoneInfo itself keeps only eight
def zone_of(name: str) -> ZoneInfo:
    return ZoneInfo(name)


@cache
def zone_names() -> frozenset[str]:
    """Return the IANA names, which have the same meaning on every machine."""
    return frozenset(available_timezones() - {"localtime", "Factory"})


def offsets(zone: ZoneInfo, local_time: datetime) -> tuple[timedelta, timedelta]:
    """Return the UTC offsets for fold 0 and 1: equal on an ordinary local time, the first is larger on a repeated one,
    smaller on a skipped one."""
    aware = local_time.replace(tzinfo=zone, fold=0)
    return aware.utcoffset() or ZERO, aware.replace(fold=1).utcoffset() or ZERO


def happens_twice(local: datetime) -> bool:
    """Whether this local time, at its first occurrence, occurs again."""
    second_time = datetime(
        local.year, local.month, local.day, local.hour, local.minute, local.second, tzinfo=local.tzinfo, fold=1
    )  # replace() costs five times as much
    return second_time.utcoffset() != local.utcoffset()


def offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or ZERO


def change_between(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """The change in `low < change <= high`, which must exist. Naive UTC in and out."""
    change = next_change(zone, instant(low), instant(high))
    assert change
    return change.replace(tzinfo=None)


def next_change(zone: ZoneInfo, low: datetime, high: datetime) -> datetime | None:
    """The first instant in `low < change <= high` with another offset; None if the offset is the same at both ends."""
    before = offset(zone, low)
    if offset(zone, high) == before:
        return None
    low = low.replace(microsecond=0)  # clocks change on whole seconds
    low_seconds, high_seconds = 0, -((low - high) // SECOND)
    while high_seconds - low_seconds > 1:
        middle = (low_seconds + high_seconds) // 2
        if offset(zone, low + middle * SECOND) == before:
            low_seconds = middle
        else:
            high_seconds = middle
    return low + high_seconds * SECOND


def periods(zone: str, start: datetime, end: datetime) -> Iterator[Period]:
    """Yield the periods of constant offset in `start <= instant < end`, ascending, cut at both ends."""
    at, offset_now = start - LONGEST_JUMP, offset(zone_of(zone), start - LONGEST_JUMP)
    before = offset_now
    for year in range(at.year, end.year + 1):
        for change, offset_after in changes_in(zone, year):
            if change <= at:
                continue
            if change >= end:
                break
            if change > start:
                yield Period(max(at, start), change, offset_now, at, before)
            at, before, offset_now = change, offset_now, offset_after
    yield Period(max(at, start), end, offset_now, at, before)


def periods_back(zone: str, start: datetime, end: datetime) -> Iterator[Period]:
    """Yield the same as `periods`, descending."""
    for year in range(end.year, start.year - 1, -1):
        low, high = max(start, datetime(year, 1, 1, tzinfo=UTC)), min(end, datetime(year + 1, 1, 1, tzinfo=UTC))
        if low < high:
            yield from reversed(list(periods(zone, low, high)))


@lru_cache(maxsize=20_000)
def changes_in(zone: str, year: int) -> tuple[tuple[datetime, timedelta], ...]:
    """Return the clock changes of a UTC year, ascending, each with the offset after it."""
    info = zone_of(zone)
    changes: list[tuple[datetime, timedelta]] = []
    low, end = datetime(year, 1, 1, tzinfo=UTC) - SECOND, datetime(year + 1, 1, 1, tzinfo=UTC) - SECOND
    while low < end:
        high = min(low + CHANGE_SEARCH_STEP, end)
        change = next_change(info, low, high)
        if change is not None:
            changes.append((change, offset(info, change)))
        low = change or high
    return tuple(changes)


def local_instant(local_time: datetime, zone: str) -> datetime:
    """Return the first instant of a local time; if the clock skips it, the first instant after the gap."""
    info = zone_of(zone)
    first, second = offsets(info, local_time)
    if first >= second:
        return instant(local_time - first)
    return instant(change_between(info, local_time - second, local_time - first))


def instant(utc: datetime) -> datetime:
    return utc.replace(tzinfo=UTC, fold=0)
