"""Triggers of APScheduler 3, cron, interval and date, as timing fields. Pure. Weekdays count from Monday = 0 there."""

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from rota.app.importing.patterns import (
    EVERY_DAY,
    EVERY_HOUR,
    EVERY_MINUTE,
    EVERY_MONTH,
    EVERY_WEEKDAY,
    WEEK,
    NotConvertible,
    Pattern,
    interval_fields,
    timing_fields,
    year_bounds,
)
from rota.app.importing.python_source import Call
from rota.core.errors import Invalid
from rota.core.model import JITTER_LIMIT
from rota.core.timing.dst import local_instant
from rota.core.timing.triggers import parse_zone
from rota.db.paging import Record

FIELDS = ("year", "month", "day", "week", "day_of_week", "hour", "minute", "second")
DEFAULTS = {
    "year": "*",
    "month": "1",
    "day": "1",
    "week": "*",
    "day_of_week": "*",
    "hour": "0",
    "minute": "0",
    "second": "0",
}
BOUNDS = {
    "month": (1, 12),
    "day": (1, 31),
    "day_of_week": (0, 6),
    "hour": (0, 23),
    "minute": (0, 59),
    "second": (0, 59),
}
NAMES = {
    "month": ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    "day_of_week": ("mon", "tue", "wed", "thu", "fri", "sat", "sun"),
}
ORDINALS = {"1st": 1, "2nd": 2, "3rd": 3, "4th": 4, "5th": 5, "last": -1}
TERM = re.compile(r"(?:(\*)|(\d+)(?:-(\d+))?)(?:/(\d+))?")
NAMED = re.compile(r"([a-z]+)(?:-([a-z]+))?")
COMMON = {"start_date", "end_date", "timezone", "jitter"}
ARGUMENTS = {
    "cron": COMMON | set(FIELDS),
    "interval": COMMON | {"weeks", "days", "hours", "minutes", "seconds"},
    "date": {"run_date", "timezone"},
}
FORMATS = ("%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d")


def cron_trigger(**fields: object) -> Call:
    return Call("cron", (), fields)


def interval_trigger(
    weeks: object = 0, days: object = 0, hours: object = 0, minutes: object = 0, seconds: object = 0, **more: object
) -> Call:
    return Call(
        "interval", (), {"weeks": weeks, "days": days, "hours": hours, "minutes": minutes, "seconds": seconds, **more}
    )


def date_trigger(run_date: object = None, timezone: object = None) -> Call:
    return Call("date", (), {"run_date": run_date, "timezone": timezone})


def from_crontab(expression: str, timezone: object = None) -> Call:
    """Stands for `CronTrigger.from_crontab`, where 0 is Monday too."""
    values = expression.split()
    if len(values) != 5:
        raise ValueError("a crontab expression has five fields")
    fields = dict(zip(("minute", "hour", "day", "month", "day_of_week"), values, strict=True))
    return Call("cron", (), {**fields, "timezone": timezone})


def other_trigger(*_: object, **__: object) -> Call:
    return Call("other", (), {})


CONSTRUCTORS: dict[str, Callable[..., object]] = {
    "apscheduler.triggers.cron.CronTrigger": cron_trigger,
    "apscheduler.triggers.cron.CronTrigger.from_crontab": from_crontab,
    "apscheduler.triggers.interval.IntervalTrigger": interval_trigger,
    "apscheduler.triggers.date.DateTrigger": date_trigger,
    "apscheduler.triggers.combining.AndTrigger": other_trigger,
    "apscheduler.triggers.combining.OrTrigger": other_trigger,
    "apscheduler.triggers.calendarinterval.CalendarIntervalTrigger": other_trigger,
}


def timing_of(trigger: Call, zone: str) -> tuple[Record, list[str]]:
    """Return the timing fields of a trigger, and what was lost. `zone` is that of the scheduler. Raises NotConvertible
    and Invalid."""
    if trigger.name == "other":
        raise NotConvertible("a combination of triggers or a calendar interval has no counterpart")
    values = {name: value for name, value in trigger.kwargs.items() if value is not None}
    unknown = sorted(values.keys() - ARGUMENTS[trigger.name])
    if unknown:
        raise NotConvertible(f"the trigger has an unknown argument {unknown[0]}")
    dated = [values.get(name) for name in ("start_date", "end_date") if name in values]
    zones = [value.tzinfo for value in dated if isinstance(value, datetime) and value.tzinfo]
    zone = zone_name(values["timezone"]) if "timezone" in values else zone_name(zones[0]) if zones else zone
    if trigger.name == "date":
        if "run_date" not in values:
            raise NotConvertible("it runs at once, when the program starts")
        return {"run_at": instant_of(values["run_date"], zone)}, []
    fields, notes = cron_fields(values, zone) if trigger.name == "cron" else interval_of(values, zone)
    if trigger.name == "cron" and "start_date" in values:
        fields["starts_at"] = max(instant_of(values["start_date"], zone), str(fields.get("starts_at", "")))
    if "end_date" in values:
        fields["ends_at"] = min(instant_of(values["end_date"], zone), str(fields.get("ends_at", "9")))
    jitter = values.get("jitter")
    if isinstance(jitter, int | float) and jitter > 0:
        fields["jitter_seconds"] = min(float(jitter), JITTER_LIMIT.total_seconds())
        notes.append("jitter: one delay for all slots of a schedule, at most a day")
    return fields, notes


def interval_of(values: Mapping[str, object], zone: str) -> tuple[Record, list[str]]:
    spans = {name: values.get(name, 0) for name in ("weeks", "days", "hours", "minutes", "seconds")}
    if not all(isinstance(value, int | float) for value in spans.values()):
        raise NotConvertible("the interval has a value that is not a number")
    try:
        span = timedelta(**spans)  # type: ignore[arg-type]
    except OverflowError:
        raise NotConvertible("the interval is too long") from None
    fields = interval_fields(span or timedelta(seconds=1))
    if "start_date" in values:
        fields["anchor"] = instant_of(values["start_date"], zone)
    return fields, []


def cron_fields(values: Mapping[str, object], zone: str) -> tuple[Record, list[str]]:
    """Return the timing of a cron trigger: fields below the last one that is set have their lowest value."""
    given = [name for name in FIELDS if name in values]
    texts = {
        name: str(values[name])
        if name in values
        else DEFAULTS[name]
        if given and FIELDS.index(name) > FIELDS.index(given[-1])
        else "*"
        for name in FIELDS
    }
    if texts["week"] != "*":
        raise NotConvertible("`week`, the number of a week, has no counterpart in a cron expression; use an rrule")
    days, nth_weekdays = days_of(texts["day"])
    weekdays = {(day + 1) % WEEK for day in numbers_of("day_of_week", texts["day_of_week"])}
    sets = {name: numbers_of(name, texts[name]) for name in ("month", "hour", "minute", "second")}
    pattern = Pattern(sets["minute"], sets["hour"], days, sets["month"], weekdays, nth_weekdays)
    notes = []
    years = years_of(texts["year"], zone)
    seconds = sorted(sets["second"])
    if len(seconds) > 1:
        step = seconds[1] - seconds[0]
        every_minute = Pattern(EVERY_MINUTE, EVERY_HOUR, EVERY_DAY, EVERY_MONTH, EVERY_WEEKDAY)
        if pattern != every_minute or 60 % step or seconds != list(range(seconds[0], 60, step)) or seconds[0] >= step:
            raise NotConvertible("has several seconds of a minute, which only an interval of all day can have")
        return {"interval_seconds": step, **years}, []
    if seconds != [0]:
        notes.append(f"second {seconds[0]}: the slots are at second 0")
    if nth_weekdays and set(days) < EVERY_DAY:
        raise NotConvertible("has numbered weekdays beside days of the month")
    return {**timing_fields(pattern), **years, "timezone": zone}, notes


def years_of(text: str, zone: str) -> Record:
    match = re.fullmatch(r"(\d{4})(?:-(\d{4}))?", text)
    if text == "*":
        return {}
    if match is None:
        raise NotConvertible(f"year {text!r} is not a year or a range of years")
    return year_bounds((int(match[1]), int(match[2] or match[1])), zone)


def days_of(text: str) -> tuple[set[int], set[tuple[int, int]]]:
    """Return days of the month, -1 for the last, and numbered weekdays."""
    days: set[int] = set()
    nth_weekdays: set[tuple[int, int]] = set()
    for term in text.lower().split(","):
        ordinal, _, name = term.strip().partition(" ")
        name = name.strip()
        if ordinal in ORDINALS and name:
            if name not in NAMES["day_of_week"]:
                raise NotConvertible(f"day {term!r} has an unknown weekday")
            nth_weekdays.add(((NAMES["day_of_week"].index(name) + 1) % WEEK, ORDINALS[ordinal]))
        elif ordinal == "last":
            days.add(-1)
        else:
            days |= numbers_of("day", term)
    if nth_weekdays and days:
        raise NotConvertible(f"day {text!r} has days and weekdays: make two schedules")
    return days or set(EVERY_DAY), nth_weekdays


def numbers_of(name: str, text: str) -> set[int]:
    """Return the numbers of a field. Raises NotConvertible."""
    low, high = BOUNDS[name]
    values: set[int] = set()
    for term in text.lower().split(","):
        if (named := NAMED.fullmatch(term.strip())) and name in NAMES:
            try:
                first, last = (low + NAMES[name].index(part) for part in (named[1], named[2] or named[1]))
            except ValueError:
                raise NotConvertible(f"{name} has an unknown name in {term!r}") from None
            step = 1
        elif match := TERM.fullmatch(term.strip()):
            first = low if match[1] else int(match[2])
            last = high if match[1] or (match[4] and not match[3]) else int(match[3] or match[2])
            step = int(match[4] or 1)
        else:
            raise NotConvertible(f"{name} has {term!r}, which is not a number, range or step")
        if not low <= first <= last <= high or step < 1:
            raise NotConvertible(f"{name} has {term!r}, it goes from {low} to {high}")
        values.update(range(first, last + 1, step))
    return values


def zone_name(value: object) -> str:
    """Return the name of a time zone. Raises Invalid, NotConvertible."""
    if isinstance(value, ZoneInfo):
        return parse_zone(value.key)
    if isinstance(value, tzinfo):
        return "UTC"  # other zones are not literals
    if isinstance(value, str):
        return parse_zone("UTC" if value.lower() in ("utc", "z") else value)
    raise NotConvertible(f"the time zone {value!r} is not a name")


def instant_of(value: object, zone: str) -> str:
    """Return a date or time, which is local without a zone of its own. Raises NotConvertible."""
    moment = value
    if isinstance(value, str):
        for layout in FORMATS:
            try:
                moment = datetime.strptime(value, layout)
                break
            except ValueError:
                continue
        else:
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                raise NotConvertible(f"{value!r} is not a date") from None
    if isinstance(moment, date) and not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if not isinstance(moment, datetime):
        raise NotConvertible(f"{value!r} is not a date")
    try:
        if moment.tzinfo is not None:
            return moment.astimezone(ZoneInfo("UTC")).isoformat()
        return local_instant(moment, zone).isoformat()
    except (OverflowError, Invalid):
        raise NotConvertible(f"{value!r} is out of range") from None
