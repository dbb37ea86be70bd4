"""Daylight saving time: slots of cron expressions in zones whose clock changes.

How cron meets a clock change depends on the set of hours that an expression has, never on how it is written. One that
has all 24 hours follows **elapsed time**: no slot in a skipped hour and two rounds of slots in a repeated one. Any
other has **fixed times**, never lost and never doubled: one that is skipped has its slot at the first instant after
the gap, one that happens twice has it the first time.

    30 * * * *       elapsed time: every real half hour
    30 0-23 * * *    the same
    0 */2 * * *      fixed times: at 03:00 when 02:00 is skipped
    */5 2 * * *      fixed times: in a gap all twelve become one slot at its end, since a slot is an instant
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from rota.core.timing.cron import Calendar, next_match, previous_match

TICK = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
ZERO = timedelta(0)
CHANGE_SEARCH_STEP = timedelta(days=3)  # no zone changed its clock and changed it back in a shorter time since 1900
LONGEST_JUMP = timedelta(days=2)  # upper bound of one clock change


class Period(NamedTuple):
    """A stretch `start <= instant < end` in which a zone has one UTC offset. The clock changed to it at `since`, from
    the offset `before`; where it did so long ago, both offsets are the same."""

    start: datetime
    end: datetime
    offset: timedelta
    since: datetime
    before: timedelta


def next_cron(calendar: Calendar, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the first slot strictly after `after`, in UTC; None beyond the horizon."""
    local = after.astimezone(zone)
    if not local.fold and not (calendar.elapsed and happens_twice(local)):
        match = next_match(calendar, local)
        if match is None:
            return None
        slot = match.astimezone(UTC)
        if offset(zone, slot) == match.utcoffset():  # the ordinary case: no clock change is near
            return slot
    return next_around_change(calendar, zone, local)


def last_cron(calendar: Calendar, zone: ZoneInfo, until: datetime) -> datetime | None:
    """Return the latest slot at or before `until`, in UTC; None beyond the horizon."""
    local = until.astimezone(zone)
    if not local.fold:
        match = previous_match(calendar, local)
        if match is None:
            return None
        slot = match.astimezone(UTC)
        if offset(zone, slot) == match.utcoffset() and not (calendar.elapsed and happens_twice(match)):
            return slot
    return last_around_change(calendar, zone, local)


def next_around_change(calendar: Calendar, zone: ZoneInfo, local: datetime) -> datetime | None:
    local_time = local.replace(tzinfo=None, fold=0)
    first, second = offsets(zone, local_time)
    if first > second:  # the local time is in a repeated hour
        change = change_between(zone, local_time - first, local_time - second)
        begin, end = change + second, change + first
        match = next_match(calendar, local_time)
        if match and match < end and not local.fold:
            return instant(match - first)
        if calendar.elapsed:
            match = match if local.fold else next_match(calendar, begin - TICK)
            if match and match < end:
                return instant(match - second)
        local_time = end - TICK
    match = next_match(calendar, local_time)
    while match:
        first, second = offsets(zone, match)
        if first >= second:
            return instant(match - first)
        change = change_between(zone, match - second, match - first)  # the clock skips this local time
        if not calendar.elapsed:
            return instant(change)
        match = next_match(calendar, change + second - TICK)
    return None


def last_around_change(calendar: Calendar, zone: ZoneInfo, local: datetime) -> datetime | None:
    local_time = local.replace(tzinfo=None, fold=0)
    first, second = offsets(zone, local_time)
    if first > second:
        change = change_between(zone, local_time - first, local_time - second)
        begin, end = change + second, change + first
        if local.fold:
            match = previous_match(calendar, local_time)
            if match and match >= begin and calendar.elapsed:
                return instant(match - second)
            local_time = end - TICK
        match = previous_match(calendar, local_time)
        if match and match >= begin:
            return instant(match - first)
        local_time = begin - TICK
    match = previous_match(calendar, local_time)
    while match:
        first, second = offsets(zone, match)
        if first >= second:
            return instant(match - (second if calendar.elapsed else first))
        change = change_between(zone, match - second, match - first)
        if not calendar.elapsed:
            return instant(change)
        match = previous_match(calendar, change + first - TICK)
    return None


def clock_note(calendar: Calendar | None, zone: ZoneInfo, at: datetime) -> str | None:
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
    if calendar and not calendar.elapsed:
        missing = next_match(calendar, local_time - gap - TICK)
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


def instant(utc: datetime) -> datetime:
    return utc.replace(tzinfo=UTC, fold=0)
