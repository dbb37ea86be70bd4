"""What a cron expression means on the wall: which days it matches, and at which times of day.

Knows no zone and no instant; `wall.py` steps from the wall to the world. Five fields as in crontab(5): names,
lists, ranges, steps, 7 as Sunday; `L` is the last day of the month, `5L` its last Friday, `1#2` its second Monday.
Day of month and day of week are OR, unless one of the two begins with a star: then both must match (so `*/2` counts
as a star, as in Debian).
"""

import re
from bisect import bisect_left, bisect_right
from calendar import monthrange
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from rota.core.errors import Invalid

HORIZON = 50  # years; 29 February on a given weekday comes back after at most 40
LONGEST = 200  # characters
HOURS_PER_DAY = 24
LAST = 32  # the last day of a month, the last such weekday of it
MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Nth(NamedTuple):
    """The nth such weekday of a month; `LAST` is the last one."""

    weekday: int
    nth: int


class Calendar(NamedTuple):
    """An expression, taken apart. Weekdays count from Sunday = 0."""

    texts: tuple[str, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    times: tuple[int, ...]  # minutes of the day, ascending
    elapsed: bool  # follows elapsed time, see wall.py
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int | Nth, ...]
    both_days: bool  # day of month AND day of week
    masks: tuple[int, ...]  # for each kind of month, bit n is set when day n matches


Times = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]  # the fields of a calendar, as they stand there
Days = tuple[tuple[int, ...], tuple[int, ...], tuple[int | Nth, ...], bool, tuple[int, ...]]


def tidy(expression: object) -> str:
    """The expression with single spaces, checked; a macro stays a macro."""
    if not isinstance(expression, str):
        raise wrong(expression, "must be text")
    if len(expression) > LONGEST:
        raise wrong(expression, f"is longer than {LONGEST} characters")
    if not (expression.isascii() and expression.replace("\t", " ").isprintable()):
        raise wrong(expression, "may hold only printable ASCII characters")
    text = " ".join(expression.split())
    if text.startswith("@"):
        text = text.lower()
    calendar_of(text)
    return text


@lru_cache(maxsize=4096)
def calendar_of(expression: str) -> Calendar:
    """Take an expression apart, or refuse it."""
    if expression.startswith("@") and expression not in MACROS:
        raise wrong(expression, f"is not one of {' '.join(MACROS)}")
    texts = tuple(MACROS.get(expression, expression).upper().split())
    if len(texts) == 6:
        raise wrong(expression, "has six fields: cron has no seconds here, use `interval` for spans under a minute")
    if len(texts) != 5:
        raise wrong(expression, "must have five fields: minute, hour, day of month, month, day of week")
    minute, hour, day, month, weekday = texts
    try:
        minutes, hours, times, elapsed = times_of(minute, hour)
        days, months, weekdays, both, masks = days_of(day, month, weekday)
    except ValueError as error:
        raise wrong(expression, f"is not a cron expression ({error})") from None
    if not masks:
        raise wrong(expression, "names a day that no month has")
    return Calendar(texts, minutes, hours, times, elapsed, days, months, weekdays, both, masks)


@lru_cache(maxsize=4096)  # few ways to name times and days serve many schedules
def times_of(minute: str, hour: str) -> Times:
    minutes, hours = MINUTE.numbers(minute), HOUR.numbers(hour)
    times = tuple(60 * each + past for each in hours for past in minutes)
    return minutes, hours, times, len(hours) == HOURS_PER_DAY


@lru_cache(maxsize=4096)
def days_of(day: str, month: str, weekday: str) -> Days:
    """There are no masks if none of these days ever comes."""
    days, months, weekdays = DAY_OF_MONTH.numbers(day), MONTH.numbers(month), DAY_OF_WEEK.weekdays(weekday)
    both = day.startswith("*") or weekday.startswith("*")
    masks = month_masks(days, weekdays, both)
    comes = any(
        masks[month_shape(first, length)] for month in months for length in LENGTHS[month] for first in range(7)
    )
    return days, months, weekdays, both, masks if comes else ()


def ahead(calendar: Calendar, wall: datetime) -> datetime | None:
    """The first matching wall time strictly after `wall`, in its tzinfo; None when there is none within the horizon."""
    times, months, masks = calendar.times, calendar.months, calendar.masks
    gone = 0  # the days of this month up to today
    if wall.month in months:
        if masks[shape_of_month(wall.year, wall.month)] >> wall.day & 1:
            place = bisect_right(times, 60 * wall.hour + wall.minute)
            if place < len(times):
                return datetime(wall.year, wall.month, wall.day, *divmod(times[place], 60), tzinfo=wall.tzinfo)
        gone = (2 << wall.day) - 1
    left = months[bisect_left(months, wall.month) :]
    for year in range(wall.year, wall.year + HORIZON):
        for month in left:
            days = masks[shape_of_month(year, month)] & ~gone
            if days:
                day = (days & -days).bit_length() - 1
                return datetime(year, month, day, *divmod(times[0], 60), tzinfo=wall.tzinfo)
            gone = 0
        left = months
    return None


def back(calendar: Calendar, wall: datetime) -> datetime | None:
    """The latest matching wall time at or before `wall`, in its tzinfo; None when there is none within the horizon."""
    times, months, masks = calendar.times, calendar.months, calendar.masks
    still = -1  # the days of this month before today
    if wall.month in months:
        if masks[shape_of_month(wall.year, wall.month)] >> wall.day & 1:
            place = bisect_right(times, 60 * wall.hour + wall.minute)
            if place:
                return datetime(wall.year, wall.month, wall.day, *divmod(times[place - 1], 60), tzinfo=wall.tzinfo)
        still = (1 << wall.day) - 1
    left = months[: bisect_right(months, wall.month)]
    for year in range(wall.year, wall.year - HORIZON, -1):
        for month in reversed(left):
            days = masks[shape_of_month(year, month)] & still
            if days:
                return datetime(year, month, days.bit_length() - 1, *divmod(times[-1], 60), tzinfo=wall.tzinfo)
            still = -1
        left = months
    return None


@dataclass(frozen=True, slots=True)
class Field:
    """One of the five fields: its bounds, and the names that stand for numbers."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()  # the first one stands for `low`

    def numbers(self, text: str) -> tuple[int, ...]:
        found = set[int]()
        for term in text.split(","):
            found.update((LAST,) if term == "L" and self is DAY_OF_MONTH else self.span(term))
        return tuple(sorted(found))

    def weekdays(self, text: str) -> tuple[int | Nth, ...]:
        found = set[int | Nth]()
        for term in text.split(","):
            weekday, hash, nth = term.partition("#")
            if term.endswith("L"):
                found.add(Nth(self.number(term[:-1]) % 7, LAST))
            elif hash and nth in ("1", "2", "3", "4", "5"):
                found.add(Nth(self.number(weekday) % 7, int(nth)))
            else:
                found.update(day % 7 for day in self.span(term))  # 7 is Sunday too
        return tuple(sorted(found, key=lambda day: (1, *day) if isinstance(day, Nth) else (0, day, 0)))

    def span(self, text: str) -> range:
        body, slash, pace = text.partition("/")
        start, dash, end = body.partition("-")
        if body == "*":
            low, high = self.low, self.high
        else:
            low = self.number(start)
            high = self.number(end) if dash else self.high if slash else low
        if high < low:
            raise ValueError(f"{self.name} {text!r} goes backwards")
        step = whole(pace) if slash else 1
        if step is None or not 1 <= step <= self.high - self.low + 1:
            raise ValueError(f"bad step in {self.name} {text!r}, it goes from 1 to {self.high - self.low + 1}")
        return range(low, high + 1, step)

    def number(self, text: str) -> int:
        if text in self.names:
            return self.low + self.names.index(text)
        value = whole(text)
        if value is None or not self.low <= value <= self.high:
            raise self.bad(text)
        return value

    def bad(self, text: str) -> ValueError:
        return ValueError(f"bad {self.name} {text!r}, it goes from {self.low} to {self.high}")


MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
EVERY_SEVENTH = sum(1 << 7 * week for week in range(5))
MINUTE, HOUR, DAY_OF_MONTH = Field("minute", 0, 59), Field("hour", 0, 23), Field("day of month", 1, 31)
MONTH = Field("month", 1, 12, MONTHS)
DAY_OF_WEEK = Field("day of week", 0, 7, WEEKDAYS)
LENGTHS = {month: (28, 29) if month == 2 else (30,) if month in (4, 6, 9, 11) else (31,) for month in range(1, 13)}


@lru_cache(maxsize=4096)
def shape_of_month(year: int, month: int) -> int:
    return month_shape(*monthrange(year, month))


def month_shape(first: int, length: int) -> int:
    """Which of the 28 possible months it is that begins on weekday `first` (Monday = 0)."""
    return 4 * first + length - 28


def month_masks(days: tuple[int, ...], weekdays: tuple[int | Nth, ...], both: bool) -> tuple[int, ...]:
    """The matching days of each kind of month, in the order of `month_shape`."""
    masks = []
    for first in range(7):
        for length in range(28, 32):
            dates, by_weekday = mask_of_days(days, length), mask_of_weekdays(weekdays, first, length)
            whole_month = (2 << length) - 2
            masks.append((dates & by_weekday if both else dates | by_weekday) & whole_month)
    return tuple(masks)


def mask_of_days(days: tuple[int, ...], length: int) -> int:
    return sum({1 << (length if day == LAST else day) for day in days})


def mask_of_weekdays(weekdays: tuple[int | Nth, ...], first: int, length: int) -> int:
    mask = 0
    for wanted in weekdays:
        weekday, nth = (wanted, 0) if isinstance(wanted, int) else wanted
        begin = (weekday - first - 1) % 7 + 1
        if nth == LAST:
            mask |= 1 << begin + (length - begin) // 7 * 7
        else:
            mask |= 1 << begin + 7 * (nth - 1) if nth else EVERY_SEVENTH << begin
    return mask


def whole(text: str) -> int | None:
    """A short plain number; `int` alone would take signs, blanks and underscores."""
    return int(text) if re.fullmatch(r"[0-9]{1,4}", text) else None


def wrong(expression: object, right: str) -> Invalid:
    return Invalid("cron_expression", expression, right)
