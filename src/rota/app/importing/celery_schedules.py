"""Schedules of Celery, `crontab`, `schedule`, timedelta and seconds, as timing fields. Pure."""

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta

from rota.app.importing.patterns import NotConvertible, Pattern, interval_fields, timing_fields
from rota.app.importing.python_source import Call
from rota.db.paging import Record

CRONTAB_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
BOUNDS = {"minute": (0, 59), "hour": (0, 23), "day_of_week": (0, 6), "day_of_month": (1, 31), "month_of_year": (1, 12)}
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
TERM = re.compile(r"(?:(\*)|([a-z]+|\d{1,2})(?:-([a-z]+|\d{1,2}))?)(?:/(\d{1,2}))?")
# Celery sends a task also while the one before runs; after a downtime beat sends what is due once
POLICIES = {"overlap": "allow", "misfire": "once"}


def crontab(
    minute: object = "*",
    hour: object = "*",
    day_of_week: object = "*",
    day_of_month: object = "*",
    month_of_year: object = "*",
    **other: object,
) -> Call:
    """Stands for `celery.schedules.crontab`."""
    fields = dict(zip(CRONTAB_FIELDS, (minute, hour, day_of_week, day_of_month, month_of_year), strict=True))
    return Call("crontab", (), {**other, **fields})


def schedule(run_every: object = None, relative: object = False, **other: object) -> Call:
    """Stands for `celery.schedules.schedule`."""
    return Call("schedule", (), {"run_every": run_every, "relative": relative, **other})


def solar(*args: object, **kwargs: object) -> Call:
    return Call("solar", args, kwargs)


def timing_of(value: object, zone: str) -> tuple[Record, list[str]]:
    """Return the timing fields of a schedule of Celery, and what was lost. Raises NotConvertible."""
    match value:
        case bool():
            pass
        case int() | float():
            return interval_fields(timedelta(seconds=value)), []
        case timedelta():
            return interval_fields(value), []
        case Call("schedule", _, kwargs):
            timing, lost = timing_of(kwargs["run_every"], zone)
            return timing, [*lost, *(["relative: the interval is not rounded"] if kwargs["relative"] else [])]
        case Call("crontab", _, kwargs):
            fields = {name: kwargs[name] for name in CRONTAB_FIELDS}
            lost = [f"{name} is not carried over" for name in kwargs if name not in CRONTAB_FIELDS]
            return {**timing_fields(pattern_of(fields)), "timezone": zone}, lost
        case Call("solar"):
            raise NotConvertible("times of the sun have no counterpart")
        case _:
            pass
    raise NotConvertible(f"the schedule {value!r} is not a number, timedelta or crontab")


def pattern_of(fields: Mapping[str, object]) -> Pattern:
    """Return the local times of a crontab: all of its fields must match. Raises NotConvertible."""
    values = {name: values_of(name, fields[name]) for name in CRONTAB_FIELDS}
    return Pattern(
        values["minute"], values["hour"], values["day_of_month"], values["month_of_year"], values["day_of_week"]
    )


def values_of(name: str, value: object) -> set[int]:
    """Return the numbers of a field of a crontab. Raises NotConvertible."""
    low, high = BOUNDS[name]
    if isinstance(value, str):
        numbers: Iterable[object] = [number for term in value.split(",") for number in term_values(name, term)]
    elif isinstance(value, set | frozenset | list | tuple):
        numbers = value
    else:
        numbers = [value]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            raise NotConvertible(f"{name} has {number!r}, it goes from {low} to {high}")
    result = {number for number in numbers if isinstance(number, int)}
    if not result:
        raise NotConvertible(f"{name} is empty")
    return result


def term_values(name: str, term: str) -> list[int]:
    """Return the numbers of a term: `*`, `*/n`, `a`, `a-b`, `a-b/n`. A range may go past the end."""
    low, high = BOUNDS[name]
    match = TERM.fullmatch(term.strip().lower())
    if match is None or (match[4] and not (match[1] or match[3])):
        raise NotConvertible(f"{name} has {term!r}, which is not a number, range or step")
    step = int(match[4] or 1)
    if step < 1:
        raise NotConvertible(f"{name} has {term!r} with the step 0")
    if match[1]:
        return list(range(low, high + 1))[::step]
    first = number_of(name, match[2])
    last = number_of(name, match[3]) if match[3] else first
    numbers = range(first, last + 1) if last >= first else [*range(first, high + 1), *range(low, last + 1)]
    return list(numbers)[::step]


def number_of(name: str, text: str) -> int:
    low, high = BOUNDS[name]
    names = {"day_of_week": WEEKDAYS, "month_of_year": MONTHS}.get(name, ())
    if text[:3] in names and text.isalpha():
        return low + names.index(text[:3])
    if not text.isdecimal() or not low <= int(text) <= high:
        raise NotConvertible(f"{name} has {text!r}, it goes from {low} to {high}")
    return int(text)


def mapped_options(options: Mapping[str, object]) -> tuple[Record, list[str]]:
    fields: Record = {}
    notes = []
    for name, value in options.items():
        match name, value:
            case "queue", str():
                fields["queue"] = value
            case "expires", int() | float() | timedelta():
                span = value if isinstance(value, timedelta) else timedelta(seconds=value)
                fields["start_deadline_seconds"] = max(1, int(span.total_seconds()))
            case "priority", int():
                fields["priority"] = value
                notes.append(f"priority {value}: in Rota a higher number starts first")
            case "time_limit", int() | float():
                fields["timeout_seconds"] = max(1, int(value))
            case _:
                notes.append(f"option {name} is not carried over")
    return fields, notes
