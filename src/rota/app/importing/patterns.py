"""Local times as sets of numbers that must all match, and the timing fields of a schedule that has the same slots.

Other schedulers combine day of month and day of week differently; this is the meaning "both must match", which a cron
expression of Rota has only in some cases. The others become recurrence rules.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from rota.core.timing.dst import local_instant
from rota.core.timing.rrule_parts import TIMES_PER_DAY
from rota.db.paging import Record

DAYS_OF_RULES = ("SU", "MO", "TU", "WE", "TH", "FR", "SA")
WEEK = 7
EVERY_MINUTE, EVERY_HOUR = frozenset(range(60)), frozenset(range(24))
EVERY_DAY, EVERY_MONTH, EVERY_WEEKDAY = frozenset(range(1, 32)), frozenset(range(1, 13)), frozenset(range(WEEK))
Years = tuple[int, int | None]  # first, last


class NotConvertible(Exception):
    """A time of another scheduler has no counterpart; the message completes "not imported: …"."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Local times. Days below 0 count from the end of the month: -1 is the last one. Weekdays count from Sunday = 0;
    `nth_weekdays` are pairs of a weekday and its number in the month, where -1 is the last."""

    minutes: Collection[int] = EVERY_MINUTE
    hours: Collection[int] = EVERY_HOUR
    days: Collection[int] = EVERY_DAY
    months: Collection[int] = EVERY_MONTH
    weekdays: Collection[int] = EVERY_WEEKDAY
    nth_weekdays: Collection[tuple[int, int]] = ()

    @property
    def any_day(self) -> bool:
        return set(self.days) >= EVERY_DAY and not self.nth_weekdays

    @property
    def any_weekday(self) -> bool:
        return set(self.weekdays) >= EVERY_WEEKDAY


def timing_fields(pattern: Pattern) -> Record:
    """Return `cron_expression`, or `rrule` if no expression has these slots. Raises NotConvertible."""
    days = day_fields(pattern)
    if days is None:
        return {"rrule": rule_of(pattern)}
    day, weekday = days
    minute, hour = field_text(pattern.minutes, 0, 59), field_text(pattern.hours, 0, 23, span=True)
    return {"cron_expression": f"{minute} {hour} {day} {field_text(pattern.months, 1, 12)} {weekday}"}


def day_fields(pattern: Pattern) -> tuple[str, str] | None:
    """Return the fields day of month and day of week; None if a cron expression cannot say it."""
    days, weekdays = set(pattern.days), set(pattern.weekdays)
    if pattern.nth_weekdays:
        if not (days >= EVERY_DAY and pattern.any_weekday):
            return None
        terms = [f"{day}L" if nth == -1 else f"{day}#{nth}" for day, nth in sorted(pattern.nth_weekdays)]
        return "*", ",".join(terms)
    if pattern.any_day:
        return "*", field_text(weekdays, 0, 6)
    if not pattern.any_weekday:
        first = min(days)
        is_whole_week = days == set(range(first, first + WEEK))
        if is_whole_week and first in (1, 8, 15, 22):
            return "*", ",".join(f"{day}#{first // WEEK + 1}" for day in sorted(weekdays))
        if days == set(range(-WEEK, 0)):
            return "*", ",".join(f"{day}L" for day in sorted(weekdays))
        return None
    from_end = [("L" if day == -1 else f"L{day + 1}") for day in sorted(day for day in days if day < 0)]
    numbers = {day for day in days if day > 0}
    return ",".join([*([field_text(numbers, 1, 31, span=True)] if numbers else []), *from_end]), "*"


def rule_of(pattern: Pattern) -> str:
    """Return a recurrence rule. Raises NotConvertible if it would have too many times per day."""
    if len(pattern.minutes) * len(pattern.hours) > TIMES_PER_DAY:
        raise NotConvertible(
            "day of month and day of week must both match, which needs a recurrence rule; "
            f"that has at most {TIMES_PER_DAY} times per day"
        )
    parts = ["FREQ=MONTHLY"]
    if set(pattern.months) != EVERY_MONTH:
        parts.append(f"BYMONTH={numbers(pattern.months)}")
    if not set(pattern.days) >= EVERY_DAY:
        parts.append(f"BYMONTHDAY={numbers(pattern.days)}")
    if pattern.nth_weekdays:
        named = [f"{nth}{DAYS_OF_RULES[day]}" for day, nth in sorted(pattern.nth_weekdays) if day in pattern.weekdays]
        if not named:
            raise NotConvertible("matches no day")
        parts.append(f"BYDAY={','.join(named)}")
    elif not pattern.any_weekday:
        parts.append(f"BYDAY={','.join(DAYS_OF_RULES[day] for day in sorted(pattern.weekdays))}")
    return ";".join([*parts, f"BYHOUR={numbers(pattern.hours)}", f"BYMINUTE={numbers(pattern.minutes)}"])


def numbers(values: Collection[int]) -> str:
    return ",".join(map(str, sorted(values)))


def field_text(values: Collection[int], low: int, high: int, *, span: bool = False) -> str:
    """Return numbers as a field of a cron expression. `span` writes steps of all values as a range, not as `*/n`."""
    ordered = sorted(set(values))
    if ordered == list(range(low, high + 1)):
        return "*"
    if len(ordered) > 2 and (step := ordered[1] - ordered[0]) > 1:
        if ordered == list(range(low, high + 1, step)) and not span:
            return f"*/{step}"
        if ordered == list(range(ordered[0], ordered[-1] + 1, step)):
            return f"{ordered[0]}-{ordered[-1]}/{step}"
    runs: list[list[int]] = []
    for value in ordered:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def year_bounds(years: Years, zone: str) -> Record:
    """Return `starts_at` and `ends_at` of the years from first to last."""
    midnight = partial(datetime, month=1, day=1, tzinfo=UTC)
    start = local_instant(midnight(years[0]).replace(tzinfo=None), zone)
    bounds: Record = {"starts_at": start.isoformat()}
    if years[1] is not None:
        end = local_instant(midnight(years[1] + 1).replace(tzinfo=None), zone)
        bounds["ends_at"] = (end - timedelta(seconds=1)).isoformat()
    return bounds


def interval_fields(span: timedelta) -> Record:
    """Return the interval of a schedule. Raises NotConvertible below a second."""
    seconds = span.total_seconds()
    if seconds < 1:
        raise NotConvertible("is an interval below one second")
    return {"interval_seconds": int(seconds) if seconds.is_integer() else seconds}


def once_at(local: datetime, zone: str) -> Record:
    """Return the timing of one local time."""
    return {"run_at": local_instant(local, zone).isoformat()}
