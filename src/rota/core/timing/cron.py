"""Cron expressions: which local days and times of day they match.

Knows no zone and no instant; `dst.py` converts local times to instants. Five fields as in crontab(5): names,
lists, ranges, steps, 7 as Sunday. In the day of week, `5L` is the last Friday of the month, `1#2` its second Monday. In
the day of month:

    L        the last day               15W      the weekday (Monday to Friday) nearest to the 15th, in the same month
    L-3      three days before it       LW       the last weekday
    3B       the third working day of the calendar (without a calendar, Monday to Friday)
    -1B      the last working day

Day of month and day of week are OR, unless one of the two begins with a star: then both must match (so `*/2` counts
as a star, as in Debian). `H` is replaced before an expression is parsed, see `spread.py`.
"""

import re
from bisect import bisect_left, bisect_right
from calendar import monthrange
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import NamedTuple

from rota.core.errors import Invalid
from rota.core.timing.calendars import MONDAY_TO_FRIDAY, HolidayRule, working_days_mask

HORIZON_YEARS = 50  # 29 February on a given weekday comes back after at most 40
MAX_EXPRESSION_LENGTH = 200
HOURS_PER_DAY = 24
LAST = 32  # the last day of a month, the last such weekday of it
WORKING_DAYS_MAX = 23  # of a month in a week of five days
ALL_MONTHS = tuple(range(1, 13))
MASKS_KEPT = 2_000  # months of one schedule
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


class BeforeLast(NamedTuple):
    """So many days before the last day of a month: `L-3`."""

    distance: int


class NearestWeekday(NamedTuple):
    """The day from Monday to Friday nearest to a day of a month, in the same month; `LAST` is its last day."""

    day: int


class WorkingDay(NamedTuple):
    """The nth working day of a month; a negative n counts from its end."""

    nth: int


DayTerm = int | BeforeLast | NearestWeekday | WorkingDay


class CronPattern(NamedTuple):
    """A parsed expression. Weekdays count from Sunday = 0."""

    texts: tuple[str, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    times: tuple[int, ...]  # minutes of the day, ascending
    skips_gap: bool  # the rules of clock changes, see dst.py
    in_both_passes: bool
    days: tuple[DayTerm, ...]
    months: tuple[int, ...]
    weekdays: tuple[int | Nth, ...]
    both_days: bool  # day of month AND day of week
    masks: tuple[int, ...]  # indexed by `month_shape`; bit n is set when day n matches
    calendar_days: "CalendarDays | None" = None  # instead of the masks, if a calendar decides about days

    def days_in(self, year: int, month: int) -> int:
        """Return the matching days of one of the `months`; bit n is day n."""
        if self.calendar_days is None:
            return self.masks[shape_of_month(year, month)]
        return self.calendar_days.mask(year, month)

    def next_match(self, local: datetime) -> datetime | None:
        """Return the first matching local time strictly after `local`, in its tzinfo; None beyond the horizon."""
        times, months = self.times, self.months
        past_days = 0  # mask: days of this month up to today
        if local.month in months:
            if self.days_in(local.year, local.month) >> local.day & 1:
                place = bisect_right(times, 60 * local.hour + local.minute)
                if place < len(times):
                    return datetime(local.year, local.month, local.day, *divmod(times[place], 60), tzinfo=local.tzinfo)
            past_days = (2 << local.day) - 1
        left = months[bisect_left(months, local.month) :]
        for year in range(local.year, local.year + HORIZON_YEARS):
            for month in left:
                days = self.days_in(year, month) & ~past_days
                if days:
                    day = (days & -days).bit_length() - 1
                    return datetime(year, month, day, *divmod(times[0], 60), tzinfo=local.tzinfo)
                past_days = 0
            left = months
        return None

    def previous_match(self, local: datetime) -> datetime | None:
        """Return the latest matching local time at or before `local`, in its tzinfo; None beyond the horizon."""
        times, months = self.times, self.months
        days_before = -1  # mask: days of this month before today
        if local.month in months:
            if self.days_in(local.year, local.month) >> local.day & 1:
                place = bisect_right(times, 60 * local.hour + local.minute)
                if place:
                    return datetime(
                        local.year, local.month, local.day, *divmod(times[place - 1], 60), tzinfo=local.tzinfo
                    )
            days_before = (1 << local.day) - 1
        left = months[: bisect_right(months, local.month)]
        for year in range(local.year, local.year - HORIZON_YEARS, -1):
            for month in reversed(left):
                days = self.days_in(year, month) & days_before
                if days:
                    return datetime(year, month, days.bit_length() - 1, *divmod(times[-1], 60), tzinfo=local.tzinfo)
                days_before = -1
            left = months
        return None


Times = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], bool, bool]  # fields of `CronPattern`, in its order
Days = tuple[tuple[DayTerm, ...], tuple[int, ...], tuple[int | Nth, ...], bool, tuple[int, ...]]


def normalize(expression: object) -> str:
    """Return the expression with single spaces, macros kept. Raises Invalid if it is not a cron expression."""
    if not isinstance(expression, str):
        raise invalid_expression(expression, "must be text")
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise invalid_expression(expression, f"is longer than {MAX_EXPRESSION_LENGTH} characters")
    if not (expression.isascii() and expression.replace("\t", " ").isprintable()):
        raise invalid_expression(expression, "may hold only printable ASCII characters")
    text = " ".join(expression.split())
    if text.startswith("@"):
        text = text.lower()
    pattern_of(text)
    return text


@lru_cache(maxsize=4096)
def pattern_of(expression: str) -> CronPattern:
    """Parse a normalized expression. Raises Invalid if it is wrong or its days never occur."""
    if expression.startswith("@") and expression not in MACROS:
        raise invalid_expression(expression, f"is not one of {' '.join(MACROS)}")
    texts = tuple(MACROS.get(expression, expression).upper().split())
    if len(texts) == 6:
        raise invalid_expression(
            expression, "has six fields: cron has no seconds here, use `interval` for spans under a minute"
        )
    if len(texts) != 5:
        raise invalid_expression(expression, "must have five fields: minute, hour, day of month, month, day of week")
    minute, hour, day, month, weekday = texts
    try:
        minutes, hours, times, skips_gap, in_both_passes = times_of(minute, hour)
        days, months, weekdays, both, masks = days_of(day, month, weekday)
    except ValueError as error:
        raise invalid_expression(expression, f"is not a cron expression ({error})") from None
    if not masks:
        raise invalid_expression(expression, "names a day that no month has")
    return CronPattern(
        texts, minutes, hours, times, skips_gap, in_both_passes, days, months, weekdays, both, masks
    )  # fmt: skip


@lru_cache(maxsize=4096)  # many schedules share few times and days
def times_of(minute: str, hour: str) -> Times:
    minutes, hours = MINUTE_FIELD.numbers(minute), HOUR_FIELD.numbers(hour)
    times = tuple(60 * hour_of_day + minute_of_hour for hour_of_day in hours for minute_of_hour in minutes)
    follows_elapsed_time = len(hours) == HOURS_PER_DAY  # unless the schedule chooses
    return minutes, hours, times, follows_elapsed_time, follows_elapsed_time


@lru_cache(maxsize=4096)
def days_of(day: str, month: str, weekday: str) -> Days:
    """Return days, months, weekdays, whether both must match, and month masks: empty if no day ever matches."""
    days, months = DAY_OF_MONTH_FIELD.days(day), MONTH_FIELD.numbers(month)
    weekdays = DAY_OF_WEEK_FIELD.weekdays(weekday)
    both = day.startswith("*") or weekday.startswith("*")
    masks = month_masks(days, weekdays, both)
    ever_matches = any(
        masks[month_shape(first, length)] for month in months for length in MONTH_LENGTHS[month] for first in range(7)
    )
    return days, months, weekdays, both, masks if ever_matches else ()


def with_holidays(pattern: CronPattern, rule: HolidayRule) -> CronPattern:
    """Return the pattern with the days that a calendar leaves, moves or, for `3B`, names."""
    months = pattern.months if rule.on_holiday in ("skip", "run") else ALL_MONTHS  # a slot may move to another month
    return pattern._replace(months=months, calendar_days=CalendarDays(pattern, rule))


class CalendarDays:
    """The matching days of a pattern under a calendar. Keeps the masks that it computed."""

    def __init__(self, pattern: CronPattern, rule: HolidayRule) -> None:
        self.pattern, self.rule = pattern, rule
        self.by_working_day = any(isinstance(day, WorkingDay) for day in pattern.days)
        self.masks: dict[tuple[int, int], int] = {}

    def mask(self, year: int, month: int) -> int:
        """Return the matching days of a month; bit n is day n."""
        known = self.masks.get((year, month))
        if known is None:
            if len(self.masks) >= MASKS_KEPT:
                self.masks.clear()
            known = self.masks[year, month] = self.compute(year, month)
        return known

    def compute(self, year: int, month: int) -> int:
        if self.rule.on_holiday == "run":
            return self.before_moves(year, month)
        first = date(year, month, 1).toordinal()
        last = first + monthrange(year, month)[1] - 1
        mask = 0
        for day in self.rule.sources(first, last):
            source = date.fromordinal(day)
            if self.before_moves(source.year, source.month) >> source.day & 1:
                target = self.rule.target_of(day)
                if target is not None and first <= target <= last:
                    mask |= 1 << target - first + 1
        return mask

    def before_moves(self, year: int, month: int) -> int:
        """Return the days of a month that the expression names."""
        pattern = self.pattern
        if month not in pattern.months:
            return 0
        if not self.by_working_day:
            return pattern.masks[shape_of_month(year, month)]
        working_days = working_days_mask(self.rule.calendar, year, month)
        return month_mask(pattern.days, pattern.weekdays, pattern.both_days, *monthrange(year, month), working_days)


@dataclass(frozen=True, slots=True)
class Field:
    """One of the five fields: its bounds and the names of its numbers."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()  # the first name is `low`

    def numbers(self, text: str) -> tuple[int, ...]:
        return tuple(sorted({number for term in text.split(",") for number in self.term_range(term)}))

    def days(self, text: str) -> tuple[DayTerm, ...]:
        """Return the days of a month: numbers first, ascending."""
        days = set[DayTerm]()
        for term in text.split(","):
            special = self.special_day(term)
            days.update((special,) if special is not None else self.term_range(term))
        return tuple(sorted(days, key=lambda day: (0, day) if isinstance(day, int) else (1, *day)))

    def special_day(self, term: str) -> DayTerm | None:
        """Return the day of a term with `L`, `W` or `B`; None for other terms."""
        if term == "L":
            return LAST
        if term == "LW":
            return NearestWeekday(LAST)
        if parts := re.fullmatch(r"L-([0-9]{1,2})", term):
            if not 1 <= int(parts[1]) <= 30:
                raise ValueError(f"bad {self.name} {term!r}, `L-n` goes from L-1 to L-30")
            return BeforeLast(int(parts[1]))
        if parts := re.fullmatch(r"([0-9]{1,4})W", term):
            return NearestWeekday(self.number(parts[1]))
        if parts := re.fullmatch(r"(-?)([0-9]{1,4})B", term):
            if not 1 <= int(parts[2]) <= WORKING_DAYS_MAX:
                raise ValueError(
                    f"bad {self.name} {term!r}, working days go from 1B to {WORKING_DAYS_MAX}B and from -1B to "
                    f"-{WORKING_DAYS_MAX}B"
                )
            return WorkingDay(int(parts[1] + parts[2]))
        if term[-1:] in ("W", "B") or term.startswith("L"):
            raise ValueError(f"bad {self.name} {term!r}, allowed are L, L-3, LW, 15W, 3B and -1B")
        return None

    def weekdays(self, text: str) -> tuple[int | Nth, ...]:
        weekdays = set[int | Nth]()
        for term in text.split(","):
            weekday, marker, nth = term.partition("#")
            if term.endswith("L"):
                weekdays.add(Nth(self.number(term[:-1]) % 7, LAST))
            elif marker and nth in ("1", "2", "3", "4", "5"):
                weekdays.add(Nth(self.number(weekday) % 7, int(nth)))
            else:
                weekdays.update(day % 7 for day in self.term_range(term))  # 7 is Sunday too
        return tuple(sorted(weekdays, key=lambda day: (1, *day) if isinstance(day, Nth) else (0, day, 0)))

    def term_range(self, text: str) -> range:
        body, slash, pace = text.partition("/")
        start, dash, end = body.partition("-")
        if body == "*":
            low, high = self.low, self.high
        else:
            low = self.number(start)
            high = self.number(end) if dash else self.high if slash else low
        if high < low:
            raise ValueError(f"{self.name} {text!r} goes backwards")
        step = parse_number(pace) if slash else 1
        if step is None or not 1 <= step <= self.high - self.low + 1:
            raise ValueError(f"bad step in {self.name} {text!r}, it goes from 1 to {self.high - self.low + 1}")
        return range(low, high + 1, step)

    def number(self, text: str) -> int:
        if text in self.names:
            return self.low + self.names.index(text)
        value = parse_number(text)
        if value is None or not self.low <= value <= self.high:
            raise self.bad(text)
        return value

    def bad(self, text: str) -> ValueError:
        return ValueError(f"bad {self.name} {text!r}, it goes from {self.low} to {self.high}")


MONTH_ABBREVIATIONS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAY_ABBREVIATIONS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
EVERY_SEVENTH = sum(1 << 7 * week for week in range(5))
MINUTE_FIELD = Field("minute", 0, 59)
HOUR_FIELD = Field("hour", 0, 23)
DAY_OF_MONTH_FIELD = Field("day of month", 1, 31)
MONTH_FIELD = Field("month", 1, 12, MONTH_ABBREVIATIONS)
DAY_OF_WEEK_FIELD = Field("day of week", 0, 7, WEEKDAY_ABBREVIATIONS)
MONTH_LENGTHS = {
    month: (28, 29) if month == 2 else (30,) if month in (4, 6, 9, 11) else (31,) for month in range(1, 13)
}


@lru_cache(maxsize=4096)
def shape_of_month(year: int, month: int) -> int:
    return month_shape(*monthrange(year, month))


def month_shape(first: int, length: int) -> int:
    """Return which of the 28 possible months begins on weekday `first` (Monday = 0) and has `length` days."""
    return 4 * first + length - 28


def month_masks(days: tuple[DayTerm, ...], weekdays: tuple[int | Nth, ...], both: bool) -> tuple[int, ...]:
    """Return the masks of matching days, one per `month_shape`; working days are Monday to Friday."""
    return tuple(
        month_mask(days, weekdays, both, first, length, weekdays_mask(first, length))
        for first in range(7)
        for length in range(28, 32)
    )


def month_mask(
    days: tuple[DayTerm, ...], weekdays: tuple[int | Nth, ...], both: bool, first: int, length: int, working_days: int
) -> int:
    """Return the matching days of a month that begins on weekday `first` (Monday = 0) and has these working days."""
    dates, by_weekday = mask_of_days(days, first, length, working_days), mask_of_weekdays(weekdays, first, length)
    whole_month = (2 << length) - 2
    return (dates & by_weekday if both else dates | by_weekday) & whole_month


def mask_of_days(days: tuple[DayTerm, ...], first: int, length: int, working_days: int) -> int:
    mask = 0
    for term in days:
        match term:
            case int():
                mask |= 1 << (length if term == LAST else term)
            case BeforeLast(distance):
                mask |= 1 << length - distance if distance < length else 0
            case NearestWeekday(day):
                mask |= nearest_weekday(length if day == LAST else day, first, length)
            case WorkingDay(nth):
                places = [day for day in range(1, length + 1) if working_days >> day & 1]
                if abs(nth) <= len(places):
                    mask |= 1 << places[nth - 1 if nth > 0 else nth]
    return mask


def nearest_weekday(day: int, first: int, length: int) -> int:
    """Return the mask of the day from Monday to Friday nearest to a day; empty if the month has no such day."""
    if day > length:
        return 0
    match (first + day - 1) % 7:
        case 5:
            day = day - 1 if day > 1 else day + 2
        case 6:
            day = day + 1 if day < length else day - 2
        case _:
            pass
    return 1 << day


def weekdays_mask(first: int, length: int) -> int:
    return sum(1 << day for day in range(1, length + 1) if (first + day - 1) % 7 not in MONDAY_TO_FRIDAY.weekend)


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


def parse_number(text: str) -> int | None:
    """Parse up to four digits; None otherwise. `int` alone accepts signs, blanks and underscores."""
    return int(text) if re.fullmatch(r"[0-9]{1,4}", text) else None


def invalid_expression(expression: object, right: str) -> Invalid:
    return Invalid("cron_expression", expression, right)
