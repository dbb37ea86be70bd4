"""Number of slots between two instants, by arithmetic: the cost does not grow with the number of slots. Pure.

Only slots that move into a window are counted one by one; there is at most one each time the window opens.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime, time, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from typing import assert_never

from rota.core.effort import spend
from rota.core.timing.cron import Calendar, calendar_of, next_match, shape_of_month
from rota.core.timing.dst import TICK, Period, periods
from rota.core.timing.grid import count_in_window
from rota.core.timing.triggers import (
    EARLIEST,
    LATEST,
    Cron,
    Every,
    Once,
    Timing,
    in_utc,
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
    if slots_move(timing):
        count = sum(1 for _ in islice(slots_between(timing, after, until), limit + 1))
        return count if count <= limit else None
    return counts_between(timing, [after + TICK, until + TICK])[0]


def slots_per_hour(timing: Timing, start: datetime, hours: int) -> list[int]:
    """Return the number of slots in each of the hours from `start` on."""
    edges = [start + hour * HOUR for hour in range(hours + 1)]
    if not slots_move(timing):
        return counts_between(timing, edges)
    counts = [0] * hours
    for slot in slots_between(timing, start - TICK, edges[-1] - TICK):
        counts[(slot - start) // HOUR] += 1
    return counts


def slots_move(timing: Timing) -> bool:
    """Whether the slots move into a window, so that they are counted one by one."""
    return timing.window is not None and moves_into_window(timing.trigger, timing.zone, timing.window)


def counts_between(timing: Timing, edges: Sequence[datetime]) -> list[int]:
    """Return the number of slots with `edge <= slot < next edge` for each two neighbouring edges."""
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
        case Cron(expression):
            calendar = calendar_of(expression)
            times = times_inside(calendar.times, window)
            return by_period(timing.zone, bounded, lambda part: count_cron(calendar, times, window, part))
        case _:
            assert_never(timing.trigger)


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


def count_cron(calendar: Calendar, times: tuple[int, ...], window: Window | None, part: Period) -> int:
    """Count slots of an expression in a part of a period; `times` are its times of day inside the window."""
    start, end = local_time_of(part.start, part.offset), local_time_of(part.end, part.offset)
    if calendar.elapsed or part.before == part.offset:
        return count_local_times(calendar, times, start, end)
    change, skipped_from = local_time_of(part.since, part.offset), local_time_of(part.since, part.before)
    if part.before > part.offset:  # local times up to `skipped_from` happen for the second time
        return count_local_times(calendar, times, max(start, skipped_from), end)
    count = count_local_times(calendar, times, start, end)
    if part.since == part.start and (window is None or window.holds(change.time())):
        skipped = next_match(calendar, skipped_from - TICK)
        if skipped and skipped < change and not count_local_times(calendar, times, change, change + TICK):
            count += 1  # all skipped times have one slot, at the first instant after the gap
    return count


def count_local_times(calendar: Calendar, times: tuple[int, ...], start: datetime, end: datetime) -> int:
    """Count local times of an expression in `start <= time < end`, on a clock that does not change."""
    if start >= end:
        return 0
    before, after = times_before(times, start), times_before(times, end)
    if start.date() == end.date():
        return after - before if on_day(calendar, start) else 0
    count = len(times) * matching_days(calendar, start, end)  # the day of `start` is one of them, that of `end` is not
    return count - (before if on_day(calendar, start) else 0) + (after if on_day(calendar, end) else 0)


def matching_days(calendar: Calendar, start: datetime, end: datetime) -> int:
    """Count days of an expression from the day of `start` up to the day before that of `end`."""
    count, year, month = 0, start.year, start.month
    while (year, month) <= (end.year, end.month):
        if month in calendar.months:
            days = calendar.masks[shape_of_month(year, month)]
            if (year, month) == (start.year, start.month):
                days &= -1 << start.day
            if (year, month) == (end.year, end.month):
                days &= (1 << end.day) - 1
            count += days.bit_count()
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
    return count


def on_day(calendar: Calendar, local: datetime) -> bool:
    return local.month in calendar.months and bool(
        calendar.masks[shape_of_month(local.year, local.month)] >> local.day & 1
    )


def times_before(times: tuple[int, ...], local: datetime) -> int:
    """Count the minutes of the day before a local time."""
    return bisect_left(times, 60 * local.hour + local.minute + bool(local.second or local.microsecond))


def times_inside(times: tuple[int, ...], window: Window | None) -> tuple[int, ...]:
    return times if window is None else tuple(minute for minute in times if window.holds(time(*divmod(minute, 60))))


def local_time_of(at: datetime, offset: timedelta) -> datetime:
    return (at + offset).replace(tzinfo=None)
