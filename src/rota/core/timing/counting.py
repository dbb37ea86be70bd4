"""Number of slots between two instants, by arithmetic: the cost does not grow with the number of slots. Pure.

Slots that move into a window are counted one by one; there is at most one each time the window opens. So are the times
of a recurrence rule, which has no arithmetic.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, time, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from typing import assert_never

from rota.core.effort import spend
from rota.core.timing.calendars import HolidayRule
from rota.core.timing.cron import CronPattern
from rota.core.timing.dst import TICK, Period, periods, zone_of
from rota.core.timing.grid import count_in_window
from rota.core.timing.holiday_stretches import first_instant
from rota.core.timing.triggers import (
    EARLIEST,
    LATEST,
    Cron,
    Every,
    Once,
    Recurring,
    Timing,
    in_utc,
    local_pattern,
    moves_into_window,
    slots_between,
)
from rota.core.timing.windows import Window, since_midnight, window_length

HOUR = timedelta(hours=1)


@lru_cache(maxsize=1024)  # after an outage many schedules have the same rule and the same gap
def count_slots(timing: Timing, after: datetime, until: datetime, limit: int) -> int | None:
    """Return the number of slots in `after < slot <= until`; None if they are counted one by one and exceed `limit`."""
    after, until = in_utc(after), in_utc(until)
    if until <= after:
        return 0
    if counted_singly(timing):
        count = sum(1 for _ in islice(slots_between(timing, after, until), limit + 1))
        return count if count <= limit else None
    return counts_between(timing, [after + TICK, until + TICK])[0]


def slots_per_hour(timing: Timing, start: datetime, hours: int) -> list[int]:
    """Return the number of slots in each of the hours from `start` on."""
    edges = [start + hour * HOUR for hour in range(hours + 1)]
    if not counted_singly(timing):
        return counts_between(timing, edges)
    counts = [0] * hours
    for slot in slots_between(timing, start - TICK, edges[-1] - TICK):
        counts[(slot - start) // HOUR] += 1
    return counts


def counted_singly(timing: Timing) -> bool:
    """Whether slots are counted one by one: those of a recurrence rule, and those that move into a window."""
    if isinstance(timing.trigger, Recurring):
        return True
    return timing.window is not None and moves_into_window(timing.trigger, timing.zone, timing.window)


def counts_between(timing: Timing, edges: Sequence[datetime]) -> list[int]:
    """Return the number of slots with `edge <= slot < next edge` for each two neighbouring edges."""
    if timing.holidays is not None and isinstance(timing.trigger, Every) and timing.holidays.on_holiday != "run":
        return counts_without_holidays(replace(timing, holidays=None), timing.holidays, edges)
    low, high = max(timing.starts_at or EARLIEST, EARLIEST + TICK), min(timing.ends_at or LATEST, LATEST)
    bounded = [max(low, min(edge, high)) for edge in edges]
    window = timing.window
    match timing.trigger:
        case Once(at):
            return [int(start <= at < end) for start, end in pairwise(bounded)]
        case Every(span, anchor) if window is not None:
            opens, length = since_midnight(window.start), window_length(window)
            return by_period(timing.zone, bounded, lambda part: count_in_window(span, anchor, opens, length, part))
        case Every(span, anchor):
            ranks = [max(0, -((anchor - edge) // span)) for edge in bounded]  # slots before each edge
            return [after - before for before, after in pairwise(ranks)]
        case Cron():
            pattern = local_pattern(timing)
            assert isinstance(pattern, CronPattern)
            return by_period(timing.zone, bounded, lambda part: count_local(pattern, window, part))
        case Recurring():
            raise TypeError("slots of a recurrence rule are counted one by one")
        case _:
            assert_never(timing.trigger)


def counts_without_holidays(timing: Timing, rule: HolidayRule, edges: Sequence[datetime]) -> list[int]:
    """Return the same for an interval that has no slots on holidays: count between the edges of its local days."""
    zone = zone_of(timing.zone)
    first, last = (edge.astimezone(zone).date().toordinal() for edge in (edges[0], edges[-1]))
    days = [day for day in range(first, last + 1) if rule.calendar.is_holiday(day)]
    spend(last - first)
    holidays = [(first_instant(day, timing.zone), first_instant(day + 1, timing.zone)) for day in days]
    inner = {at for stretch in holidays for at in stretch if edges[0] < at < edges[-1]}
    finer = sorted(inner | set(edges))
    counts = [0] * (len(edges) - 1)
    for start, count in zip(finer, counts_between(timing, finer) if len(finer) > 1 else [], strict=False):
        if not rule.calendar.is_holiday(start.astimezone(zone).date().toordinal()):
            counts[bisect_right(edges, start) - 1] += count
    return counts


def by_period(zone: str, edges: Sequence[datetime], count: Callable[[Period], int]) -> list[int]:
    """Sum `count` over the parts of periods of constant offset that lie between two neighbouring edges."""
    counts = [0] * (len(edges) - 1)
    if edges[0] >= edges[-1]:
        return counts
    for period in periods(zone, edges[0], edges[-1]):
        spend()
        first = max(0, bisect_right(edges, period.start) - 1)
        for place in range(first, bisect_left(edges, period.end)):
            start, end = max(period.start, edges[place]), min(period.end, edges[place + 1])
            if start < end:
                counts[place] += count(period._replace(start=start, end=end))
    return counts


def count_local(pattern: CronPattern, window: Window | None, part: Period) -> int:
    """Count slots of a pattern inside the window in a part of a period."""
    start, end = local_time_of(part.start, part.offset), local_time_of(part.end, part.offset)
    if part.before == part.offset:
        return count_local_times(pattern, window, start, end)
    change, skipped_from = local_time_of(part.since, part.offset), local_time_of(part.since, part.before)
    if part.before > part.offset:  # local times up to `skipped_from` happen for the second time
        return count_local_times(pattern, window, start if pattern.in_both_passes else max(start, skipped_from), end)
    count = count_local_times(pattern, window, start, end)
    if part.since == part.start and not pattern.skips_gap and (window is None or window.holds(change.time())):
        skipped = pattern.next_match(skipped_from - TICK)
        if skipped and skipped < change and not count_local_times(pattern, window, change, change + TICK):
            count += 1  # all skipped times have one slot, at the first instant after the gap
    return count


def count_local_times(pattern: CronPattern, window: Window | None, start: datetime, end: datetime) -> int:
    """Count local times of a pattern in `start <= time < end`, on a clock that does not change."""
    if start >= end:
        return 0
    times = times_inside(pattern.times, window)
    before, after = times_before(times, start), times_before(times, end)
    if start.date() == end.date():
        return after - before if on_day(pattern, start) else 0
    count = len(times) * matching_days(pattern, start, end)  # the day of `start` is one of them, that of `end` is not
    return count - (before if on_day(pattern, start) else 0) + (after if on_day(pattern, end) else 0)


def matching_days(pattern: CronPattern, start: datetime, end: datetime) -> int:
    """Count days of an expression from the day of `start` up to the day before that of `end`."""
    count, year, month = 0, start.year, start.month
    while (year, month) <= (end.year, end.month):
        if month in pattern.months:
            days = pattern.days_in(year, month)
            if (year, month) == (start.year, start.month):
                days &= -1 << start.day
            if (year, month) == (end.year, end.month):
                days &= (1 << end.day) - 1
            count += days.bit_count()
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
    return count


def on_day(pattern: CronPattern, local: datetime) -> bool:
    return local.month in pattern.months and bool(pattern.days_in(local.year, local.month) >> local.day & 1)


def times_before(times: tuple[int, ...], local: datetime) -> int:
    """Count the minutes of the day before a local time."""
    return bisect_left(times, 60 * local.hour + local.minute + bool(local.second or local.microsecond))


@lru_cache(maxsize=256)
def times_inside(times: tuple[int, ...], window: Window | None) -> tuple[int, ...]:
    return times if window is None else tuple(minute for minute in times if window.holds(time(*divmod(minute, 60))))


def local_time_of(at: datetime, offset: timedelta) -> datetime:
    return (at + offset).replace(tzinfo=None)
