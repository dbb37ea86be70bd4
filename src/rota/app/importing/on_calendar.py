"""Calendar expressions of systemd, `OnCalendar=`, as timing fields. Pure. See systemd.time(7)."""

import re
from datetime import UTC, datetime

from rota.app.importing.patterns import (
    EVERY_DAY,
    EVERY_HOUR,
    EVERY_MINUTE,
    EVERY_MONTH,
    EVERY_WEEKDAY,
    WEEK,
    NotConvertible,
    Pattern,
    Years,
    once_at,
    timing_fields,
    year_bounds,
)
from rota.core.timing.dst import zone_names
from rota.db.paging import Record

WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
SHORTHANDS = {
    "minutely": "*-*-* *:*:00", "hourly": "*-*-* *:00:00", "daily": "*-*-* 00:00:00", "weekly": "Mon *-*-* 00:00:00",
    "monthly": "*-*-01 00:00:00", "yearly": "*-01-01 00:00:00", "annually": "*-01-01 00:00:00",
    "quarterly": "*-01,04,07,10-01 00:00:00", "semiannually": "*-01,07-01 00:00:00",
    "biannually": "*-01,07-01 00:00:00", "bi-annually": "*-01,07-01 00:00:00", "semi-annually": "*-01,07-01 00:00:00",
}  # fmt: skip
EXPRESSION_CHARACTERS = 500
YEARS = (1970, 2199)
TERM = re.compile(r"(\d{1,4})(?:\.\.(\d{1,4}))?(?:/(\d{1,4}))?")


def calendar_fields(expression: str, zone: str) -> tuple[Record, str]:
    """Return the timing fields of an expression, whose zone is by default that of the machine, and what was lost.
    Raises NotConvertible."""
    if len(expression) > EXPRESSION_CHARACTERS:
        raise NotConvertible(f"is longer than {EXPRESSION_CHARACTERS} characters")
    words = expression.split()
    if len(words) > 1 and words[-1] in zone_names():
        zone = words.pop()
    if len(words) == 1 and (timestamp := re.fullmatch(r"@(\d{1,11})", words[0])):
        return {"run_at": datetime.fromtimestamp(int(timestamp[1]), UTC).isoformat(), "timezone": "UTC"}, ""
    if len(words) == 1 and words[0].lower() in SHORTHANDS:
        words = SHORTHANDS[words[0].lower()].split()
    if not words:
        raise NotConvertible("is empty")
    weekdays = set(EVERY_WEEKDAY)
    if words[0][0].isalpha():
        weekdays = weekdays_of(words.pop(0))
    date = words.pop(0) if words and ":" not in words[0] else "*-*-*"
    time = words.pop(0) if words else "00:00:00"
    if words:
        raise NotConvertible(f"is not a calendar expression at {words[0]!r}")
    years, months, days = date_of(date)
    hours, minutes, seconds = time_of(time)
    pattern = Pattern(minutes, hours, days, months, weekdays)
    if len(seconds) > 1:
        return {**many_seconds(pattern, seconds, years), "timezone": zone}, ""
    lost = "" if seconds == {0} else f"second {min(seconds)}: the slots are at second 0"
    return {**with_years(pattern, years, zone), "timezone": zone}, lost


def with_years(pattern: Pattern, years: set[int] | None, zone: str) -> Record:
    """Return the timing fields of a pattern in some years, None for all."""
    if years is None:
        return timing_fields(pattern)
    single = (years, pattern.months, pattern.days, pattern.hours, pattern.minutes)
    if all(len(values) == 1 for values in single) and pattern.any_weekday and min(pattern.days) > 0:
        try:
            return once_at(datetime(*(min(values) for values in single)), zone)  # type: ignore[arg-type]
        except ValueError:
            raise NotConvertible("names a day that does not exist") from None
    first, last = min(years), max(years)
    if years != set(range(first, last + 1)):
        raise NotConvertible("names years that do not follow each other")
    bounds: Years = (first, None if last == YEARS[1] else last)
    return {**timing_fields(pattern), **year_bounds(bounds, zone)}


def many_seconds(pattern: Pattern, seconds: set[int], years: set[int] | None) -> Record:
    """Return an interval for an expression that repeats within each minute. Raises NotConvertible."""
    first, *rest = sorted(seconds)
    step = rest[0] - first
    always = pattern == Pattern(days=EVERY_DAY, weekdays=EVERY_WEEKDAY) and years is None
    if not always or 60 % step or sorted(seconds) != list(range(first, 60, step)) or first >= step:
        raise NotConvertible("has several seconds of a minute, which only an interval of all day can have")
    return {"interval_seconds": step}


def weekdays_of(text: str) -> set[int]:
    days: set[int] = set()
    for term in text.rstrip(",").split(","):
        first, dots, last = term.replace("-", "..").partition("..")
        start = weekday_of(first)
        end = weekday_of(last) if dots else start
        order = [*range(1, WEEK), 0]  # a week begins on Monday
        if order.index(end) < order.index(start):
            raise NotConvertible(f"has weekdays {term!r} that go backwards")
        days.update(order[order.index(start) : order.index(end) + 1])
    return days


def weekday_of(text: str) -> int:
    for number, name in enumerate(WEEKDAYS):
        if text.lower() in (name, name[:3]):
            return number
    raise NotConvertible(f"has an unknown weekday {text!r}")


def date_of(text: str) -> tuple[set[int] | None, set[int], set[int]]:
    """Return years (None for all), months and days; days from the end of the month are below 0."""
    date, tilde, from_end = text.partition("~")
    parts = date.split("-")
    if tilde:
        parts.append(from_end)
    if len(parts) not in (2, 3):
        raise NotConvertible(f"has a date {text!r} that is not year-month-day")
    day, month = parts[-1], parts[-2]
    years = None
    if len(parts) == 3 and parts[0] != "*":
        years = {year_of(year) for year in numbers_of(parts[0], 0, YEARS[1])}
    days = {-number for number in numbers_of(day, 1, 28, from_end=True)} if tilde else numbers_of(day, 1, 31)
    return years, numbers_of(month, 1, 12) if month != "*" else set(EVERY_MONTH), days


def year_of(year: int) -> int:
    """Return a year of four digits: systemd reads 0 to 69 as 2000 to 2069."""
    return year + 2000 if year < 70 else year + 1900 if year < 100 else year


def time_of(text: str) -> tuple[set[int], set[int], set[int]]:
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise NotConvertible(f"has a time {text!r} that is not hour:minute:second")
    hours = set(EVERY_HOUR) if parts[0] == "*" else numbers_of(parts[0], 0, 23)
    minutes = set(EVERY_MINUTE) if parts[1] == "*" else numbers_of(parts[1], 0, 59)
    if len(parts) == 2:
        return hours, minutes, {0}
    if "." in parts[2].replace("..", ""):
        raise NotConvertible("has fractions of a second")
    return hours, minutes, set(EVERY_MINUTE) if parts[2] == "*" else numbers_of(parts[2], 0, 59)


def numbers_of(text: str, low: int, high: int, *, from_end: bool = False) -> set[int]:
    """Return the numbers of a component. `from_end`: a step without an end goes to 1, the last day of the month."""
    values: set[int] = set()
    for term in text.split(","):
        if term == "*":
            values.update(range(low, high + 1))
            continue
        match = TERM.fullmatch(term)
        if match is None:
            raise NotConvertible(f"has a part {term!r} that is not a number, range or step")
        first, step = int(match[1]), int(match[3] or 1)
        last = int(match[2]) if match[2] else first
        if from_end and match[3] and not match[2]:
            terms = range(first, 0, -step) if step else range(0)
        else:
            terms = range(first, (high if match[3] and not match[2] else last) + 1, step) if step else range(0)
        if not terms or not all(low <= value <= high for value in (first, last)):
            raise NotConvertible(f"has a part {term!r}, which goes from {low} to {high}")
        values.update(terms)
    return values
