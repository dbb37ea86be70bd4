"""Triggers as English phrases: "every 5 minutes", "every weekday at 09:00"."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from rota.core.timing.cron import LAST, BeforeLast, CronPattern, DayTerm, NearestWeekday, Nth, WorkingDay

WEEKDAY_NAMES = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTH_NAMES = "January February March April May June July August September October November December".split()  # noqa: SIM905
ORDINAL_NAMES = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", LAST: "last"}
ALL_DAYS, ALL_WEEKDAYS = set(range(1, 32)), set(range(7))
LONG_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))
SHORT_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
MAX_LISTED_TIMES = 8  # more times of day are described by their pattern


def cron_words(pattern: CronPattern) -> tuple[str, bool]:
    """Return a phrase, and whether it names local times, so that the zone matters."""
    paced = pace_words(pattern)
    if paced is None:
        return f"{day_words(pattern, 'every') or 'every day'} {time_words(pattern)}", True
    days = day_words(pattern, "on")
    return f"{paced} {days}".strip(), bool(days) or len(pattern.hours) < 24


def span_words(span: timedelta, single: str = "") -> str:
    """`5 minutes`, `1 hour 30 minutes`; a unit alone is `hour`, or `1 hour` with `single="1 "`."""
    rest, parts = span, []
    for unit, seconds in LONG_UNITS:
        count, rest = divmod(rest, timedelta(seconds=seconds))
        if count:
            parts.append(plural(count, unit))
    if rest:
        parts.append(plural(rest.total_seconds(), "second"))
    return single + parts[0][2:] if len(parts) == 1 and parts[0].startswith("1 ") else " ".join(parts)


def short_span(span: timedelta) -> str:
    """Return a span in its largest unit, or in two units if there are fewer than three of it: `2h5m`."""
    seconds = round(span.total_seconds())
    for position, (size, unit) in enumerate(SHORT_UNITS):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            finer = SHORT_UNITS[position + 1] if whole < 3 and position + 1 < len(SHORT_UNITS) else None
            return f"{whole}{unit}" + (f"{rest // finer[0]}{finer[1]}" if finer and rest >= finer[0] else "")
    return "0s"


def timestamp_words(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}" if at.second else f"{at:%Y-%m-%d %H:%M}"


def pace_words(pattern: CronPattern) -> str | None:
    """`every 5 minutes from 09:00 to 17:55`; None for times of day that have no common pace."""
    minutes, hours = pattern.minutes, pattern.hours
    every_minutes = pace_of(pattern.texts[0], minutes, 60)
    every_hours = pace_of(pattern.texts[1], hours, 24)
    in_a_row = hours[-1] - hours[0] == len(hours) - 1
    first, last = clock_time(pattern.times[0]), clock_time(pattern.times[-1])
    if every_minutes:
        pace = span_words(timedelta(minutes=every_minutes))
        if every_hours == 1:
            return f"every {pace}"
        return f"every {pace} from {first} to {last}" if in_a_row else f"every {pace} in the hours {ranges(hours)}"
    if every_hours:
        pace = span_words(timedelta(hours=every_hours))
        if minutes == (0,):
            return f"every {pace}"
        return f"every {pace} at minute{'s' if len(minutes) > 1 else ''} {ranges(minutes)}"
    if len(minutes) == 1 and len(hours) > 2 and in_a_row:
        return f"every hour from {first} to {last}"
    return None


def time_words(pattern: CronPattern) -> str:
    if len(pattern.times) <= MAX_LISTED_TIMES or len(pattern.minutes) == 1:
        return f"at {listing(clock_time(minute) for minute in pattern.times)}"
    return f"at minutes {ranges(pattern.minutes)} of the hours {ranges(pattern.hours)}"


def day_words(pattern: CronPattern, each: str) -> str:
    """Return which days, as `every Monday` or `on Mondays`; empty for every day."""
    months = listing(MONTH_NAMES[month - 1] for month in pattern.months) if len(pattern.months) < 12 else ""
    by_day = not ALL_DAYS.issubset(pattern.days)
    by_weekday = not ALL_WEEKDAYS.issubset(pattern.weekdays)
    if not (by_day and by_weekday) and not pattern.both_days:
        by_day = by_weekday = False  # one OR the other, and one is every day
    if by_day and by_weekday:
        either = weekday_words(pattern, each, "of the month")
        both = f"if it is {listing(weekday_names(pattern), 'or')}"
        days = f"{date_words(pattern, 'of the month')} {both if pattern.both_days else f'or {either}'}"
    elif by_day:
        return date_words(pattern, f"of {months or 'every month'}")
    elif by_weekday and numbered_weekdays(pattern):
        return weekday_words(pattern, each, f"of {months or 'every month'}")
    elif by_weekday:
        days = weekday_words(pattern, each, "")
    else:
        days = "every day" if months and each == "every" else ""
    return f"{days} in {months}".strip() if months else days


def date_words(pattern: CronPattern, of: str) -> str:
    pace = re.fullmatch(r"\*/([2-9])", pattern.texts[2])
    if pace:
        return f"on every {ordinal(int(pace[1]))} day {of}"
    return f"on the {listing(day_term_words(day) for day in pattern.days)} {of}"


def day_term_words(term: DayTerm) -> str:
    """Return a day of a month: `15th`, `last day`, `weekday nearest to the 15th`, `third working day`."""
    match term:
        case BeforeLast(distance):
            return f"{ORDINAL_NAMES.get(distance + 1, ordinal(distance + 1))} to last day"
        case NearestWeekday(day):
            return "last weekday" if day == LAST else f"weekday nearest to the {ordinal(day)}"
        case WorkingDay(nth) if nth == -1:
            return "last working day"
        case WorkingDay(nth):
            counted = ORDINAL_NAMES.get(abs(nth), ordinal(abs(nth)))
            return f"{counted} working day" if nth > 0 else f"{counted} to last working day"
        case _:
            return "last day" if term == LAST else ordinal(term)


def weekday_words(pattern: CronPattern, each: str, of: str) -> str:
    """Return the weekdays: plain ones recur weekly, a numbered one is a day `of` a month."""
    if numbered_weekdays(pattern):
        return f"on {listing(weekday_names(pattern))} {of}"
    names = weekday_names(pattern, "" if each == "every" else "s")
    return f"{each} {listing(names)}"


def weekday_names(pattern: CronPattern, ending: str = "") -> list[str]:
    if pattern.weekdays == (1, 2, 3, 4, 5):
        return [f"weekday{ending}"]
    plain = sorted((day for day in pattern.weekdays if not isinstance(day, Nth)), key=lambda day: (day - 1) % 7)
    names = [WEEKDAY_NAMES[day] + ending for day in plain]
    if numbered_weekdays(pattern):
        names = [f"every {name}" for name in names]
    return names + [f"the {ORDINAL_NAMES[day.nth]} {WEEKDAY_NAMES[day.weekday]}" for day in numbered_weekdays(pattern)]


def numbered_weekdays(pattern: CronPattern) -> list[Nth]:
    return [day for day in pattern.weekdays if isinstance(day, Nth)]


def pace_of(text: str, values: Sequence[int], size: int) -> int | None:
    """Return the n of `*` and `*/n` if n divides the hour or the day, so that all distances are equal."""
    if not text.startswith("*") or len(values) < 2:
        return None
    return size // len(values) if tuple(values) == tuple(range(0, size, size // len(values))) else None


def ranges(values: Sequence[int]) -> str:
    """`0 to 30`, `9, 12 and 15`."""
    if len(values) > 2 and values[-1] - values[0] == len(values) - 1:
        return f"{values[0]} to {values[-1]}"
    return listing(str(value) for value in values)


def listing(items: Iterable[str], last: str = "and") -> str:
    *most, end = items
    return f"{', '.join(most)} {last} {end}" if most else end


def ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def clock_time(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def plural(count: float, unit: str) -> str:
    return f"{count:g} {unit}{'' if count == 1 else 's'}"
