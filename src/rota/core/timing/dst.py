"""From the wall to the world: cron on a clock that changes.

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

from rota.core.timing.cron import Calendar, ahead, back

TICK = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
NOTHING = timedelta(0)
CHANGE_SEARCH_STEP = timedelta(days=3)  # no zone changed its clock and changed it back in a shorter time since 1900
LONGEST_JUMP = timedelta(days=2)  # of a clock change


class Period(NamedTuple):
    """A stretch `start <= instant < end` in which a zone has one UTC offset. The clock changed to it at `since`, from
    the offset `before`; where it did so long ago, both offsets are the same."""

    start: datetime
    end: datetime
    offset: timedelta
    since: datetime
    before: timedelta


def next_cron(calendar: Calendar, zone: ZoneInfo, after: datetime) -> datetime | None:
    local = after.astimezone(zone)
    if not local.fold and not (calendar.elapsed and happens_twice(local)):
        found = ahead(calendar, local)
        if found is None:
            return None
        slot = found.astimezone(UTC)
        if offset(zone, slot) == found.utcoffset():  # the ordinary case: no clock change is near
            return slot
    return next_around_change(calendar, zone, local)


def last_cron(calendar: Calendar, zone: ZoneInfo, until: datetime) -> datetime | None:
    """The mirror of `next_cron`, including `until` itself."""
    local = until.astimezone(zone)
    if not local.fold:
        found = back(calendar, local)
        if found is None:
            return None
        slot = found.astimezone(UTC)
        if offset(zone, slot) == found.utcoffset() and not (calendar.elapsed and happens_twice(found)):
            return slot
    return last_around_change(calendar, zone, local)


def next_around_change(calendar: Calendar, zone: ZoneInfo, local: datetime) -> datetime | None:
    wall = local.replace(tzinfo=None, fold=0)
    first, second = offsets(zone, wall)
    if first > second:  # we stand in an hour that happens twice
        change = change_between(zone, wall - first, wall - second)
        begin, end = change + second, change + first
        found = ahead(calendar, wall)
        if found and found < end and not local.fold:
            return instant(found - first)
        if calendar.elapsed:
            found = found if local.fold else ahead(calendar, begin - TICK)
            if found and found < end:
                return instant(found - second)
        wall = end - TICK
    found = ahead(calendar, wall)
    while found:
        first, second = offsets(zone, found)
        if first >= second:
            return instant(found - first)
        change = change_between(zone, found - second, found - first)  # the clock skips this wall time
        if not calendar.elapsed:
            return instant(change)
        found = ahead(calendar, change + second - TICK)
    return None


def last_around_change(calendar: Calendar, zone: ZoneInfo, local: datetime) -> datetime | None:
    wall = local.replace(tzinfo=None, fold=0)
    first, second = offsets(zone, wall)
    if first > second:
        change = change_between(zone, wall - first, wall - second)
        begin, end = change + second, change + first
        if local.fold:
            found = back(calendar, wall)
            if found and found >= begin and calendar.elapsed:
                return instant(found - second)
            wall = end - TICK
        found = back(calendar, wall)
        if found and found >= begin:
            return instant(found - first)
        wall = begin - TICK
    found = back(calendar, wall)
    while found:
        first, second = offsets(zone, found)
        if first >= second:
            return instant(found - (second if calendar.elapsed else first))
        change = change_between(zone, found - second, found - first)
        if not calendar.elapsed:
            return instant(change)
        found = back(calendar, change + first - TICK)
    return None


def clock_note(calendar: Calendar | None, zone: ZoneInfo, at: datetime) -> str | None:
    """How a clock change touches this slot, if it does."""
    local = at.astimezone(zone)
    wall = local.replace(tzinfo=None, fold=0)
    first, second = offsets(zone, wall)
    if first > second:
        return f"{wall:%H:%M} happens twice on this day: this is the {'second' if local.fold else 'first'} time"
    gap = offset(zone, at) - offset(zone, at - TICK)
    if gap <= NOTHING:
        return None
    jump = f"the clock goes from {wall - gap:%H:%M} to {wall:%H:%M}"
    if calendar and not calendar.elapsed:
        missing = ahead(calendar, wall - gap - TICK)
        if missing and missing < wall:
            return f"{missing:%H:%M} does not exist on this day: {jump}"
    return jump


@cache  # ZoneInfo itself keeps only eight
def zone_of(name: str) -> ZoneInfo:
    return ZoneInfo(name)


@cache
def zone_names() -> frozenset[str]:
    """Those that mean the same on every machine."""
    return frozenset(available_timezones() - {"localtime", "Factory"})


def offsets(zone: ZoneInfo, wall: datetime) -> tuple[timedelta, timedelta]:
    """Before and after a change: equal on an ordinary wall time, first > second on one that happens twice."""
    aware = wall.replace(tzinfo=zone, fold=0)
    return aware.utcoffset() or NOTHING, aware.replace(fold=1).utcoffset() or NOTHING


def happens_twice(local: datetime) -> bool:
    """Whether this wall time, met the first time, comes again."""
    again = datetime(
        local.year, local.month, local.day, local.hour, local.minute, local.second, tzinfo=local.tzinfo, fold=1
    )  # replace() costs five times as much
    return again.utcoffset() != local.utcoffset()


def offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or NOTHING


def change_between(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """The change in `low < change <= high`, which the caller knows to be there. Naive UTC in and out."""
    change = next_change(zone, instant(low), instant(high))
    assert change
    return change.replace(tzinfo=None)


def next_change(zone: ZoneInfo, low: datetime, high: datetime) -> datetime | None:
    """The first instant in `low < change <= high` with another offset; None if the offset is the same at both ends."""
    before = offset(zone, low)
    if offset(zone, high) == before:
        return None
    low = low.replace(microsecond=0)  # clocks change on whole seconds
    few, many = 0, -((low - high) // SECOND)
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if offset(zone, low + middle * SECOND) == before else (few, middle)
    return low + many * SECOND


def periods(zone: str, start: datetime, end: datetime) -> Iterator[Period]:
    """The periods of constant offset in `start <= instant < end`, ascending, cut at both ends."""
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
    """As `periods`, descending."""
    for year in range(end.year, start.year - 1, -1):
        low, high = max(start, datetime(year, 1, 1, tzinfo=UTC)), min(end, datetime(year + 1, 1, 1, tzinfo=UTC))
        if low < high:
            yield from reversed(list(periods(zone, low, high)))


@lru_cache(maxsize=20_000)
def changes_in(zone: str, year: int) -> tuple[tuple[datetime, timedelta], ...]:
    """The clock changes of a UTC year, ascending, each with the offset after it."""
    info, found = zone_of(zone), []
    low, end = datetime(year, 1, 1, tzinfo=UTC) - SECOND, datetime(year + 1, 1, 1, tzinfo=UTC) - SECOND
    while low < end:
        high = min(low + CHANGE_SEARCH_STEP, end)
        change = next_change(info, low, high)
        if change is not None:
            found.append((change, offset(info, change)))
        low = change or high
    return tuple(found)


def instant(utc: datetime) -> datetime:
    return utc.replace(tzinfo=UTC, fold=0)
