"""Fixtures of django-celery-beat, made by `manage.py dumpdata django_celery_beat`. Pure."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rota.app.files.documents import FileError
from rota.app.importing.celery_schedules import CRONTAB_FIELDS, POLICIES, crontab, mapped_options, timing_of
from rota.app.importing.patterns import NotConvertible, interval_fields
from rota.app.importing.report import Entries, Imported
from rota.app.importing.sources import SourceFile
from rota.core.timing.triggers import parse_instant, parse_interval, parse_zone
from rota.db.paging import Record

MODEL = "django_celery_beat."
TRIGGERS = {
    "interval": "intervalschedule",
    "crontab": "crontabschedule",
    "clocked": "clockedschedule",
    "solar": "solarschedule",
}
PERIODS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
READ = {"name", "task", "args", "kwargs", "queue", "priority", "expire_seconds", "enabled", "description", "start_time",
        "one_off", *TRIGGERS}  # fmt: skip
WITHOUT_EFFECT = {"last_run_at", "total_run_count", "date_changed"}  # what has happened, not what is to happen


def add_fixture(imported: Imported, source: SourceFile, zone: str, now: datetime, prefix: str) -> None:
    """Add the periodic tasks of a fixture. Raises FileError if it is none."""
    try:
        rows = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{source.name}: is not JSON: {error}") from None
    if not isinstance(rows, list) or not all(is_row(row) for row in rows):
        raise FileError(f"{source.name}: is not a fixture: a list of objects with `model` and `fields`")
    by_key = {(row["model"], row.get("pk")): row["fields"] for row in rows}
    for number, row in enumerate(rows, start=1):
        model, fields = row["model"].removeprefix(MODEL), row["fields"]
        place = (source.name, number, f"{model} {fields.get('name', row.get('pk'))}")
        if model == "periodictask":
            add_task(imported, place, fields, by_key, zone, now, prefix)
        elif model not in (*TRIGGERS.values(), "periodictasks"):
            imported.refuse(*place, f"the model {row['model']} is unknown")


def is_row(row: object) -> bool:
    return isinstance(row, dict) and isinstance(row.get("model"), str) and isinstance(row.get("fields"), dict)


def add_task(
    imported: Imported,
    place: tuple[str, int, str],
    fields: Mapping[str, Any],
    by_key: Mapping[tuple[str, Any], Mapping[str, Any]],
    zone: str,
    now: datetime,
    prefix: str,
) -> None:
    """Add the schedule of a periodic task, and report it. The line of the report is the number of the row."""

    def make() -> Entries:
        schedule, notes = schedule_of(fields, by_key, zone)
        name = imported.name_for(str(fields.get("name")), prefix)
        text = f"schedule {name} of task {schedule['target']}"
        return Entries([{"name": name, **schedule}], notes=notes, text=text)

    imported.take(place, make, now)


def schedule_of(
    fields: Mapping[str, Any], by_key: Mapping[tuple[str, Any], Mapping[str, Any]], zone: str
) -> tuple[Record, list[str]]:
    """Return the fields of a schedule, and what was lost. Raises NotConvertible and Invalid."""
    set_fields = {name: value for name, value in fields.items() if value not in (None, "", "{}", "[]")}
    triggers = [name for name in TRIGGERS if name in set_fields]
    if len(triggers) != 1:
        raise NotConvertible("has no trigger, or several")
    trigger = by_key.get((MODEL + TRIGGERS[triggers[0]], set_fields[triggers[0]]))
    if trigger is None:
        raise NotConvertible(f"its {triggers[0]} {set_fields[triggers[0]]} is not in the fixture")
    schedule, notes = trigger_fields(triggers[0], trigger, zone)
    if args := json_of(set_fields.get("args", "[]")):
        notes.append(f"positional arguments {args!r} are not carried over: name them in `input`")
    if kwargs := json_of(set_fields.get("kwargs", "{}")):
        schedule["input"] = kwargs
    names = {"expire_seconds": "expires", "queue": "queue", "priority": "priority"}
    more, lost = mapped_options({names[name]: value for name, value in set_fields.items() if name in names})
    if set_fields.get("one_off"):
        more["max_runs"] = 1
    if start := set_fields.get("start_time"):
        more["starts_at"] = parse_instant(start, "start_time").isoformat()
    if description := set_fields.get("description"):
        more["description"] = description
    if fields.get("enabled") is False:
        more["enabled"] = False
    lost += [
        f"{name} is not carried over"
        for name in set_fields
        if name not in READ | WITHOUT_EFFECT and set_fields[name] != {}
    ]
    task = str(fields.get("task", ""))
    return {"target": task, **schedule, **more, **POLICIES, "tags": ["celery"]}, notes + lost


def trigger_fields(kind: str, trigger: Mapping[str, Any], zone: str) -> tuple[Record, list[str]]:
    """Return the timing fields of a stored schedule. Raises NotConvertible and Invalid."""
    if kind == "interval":
        period = PERIODS.get(str(trigger.get("period")))
        if period is None:
            raise NotConvertible(f"the period {trigger.get('period')!r} has no counterpart")
        return interval_fields(parse_interval(period * int(trigger.get("every") or 0))), []
    if kind == "crontab":
        expression = crontab(**{name: str(trigger.get(name, "*")) for name in CRONTAB_FIELDS})
        return timing_of(expression, parse_zone(trigger["timezone"]) if trigger.get("timezone") else zone)
    if kind == "clocked":
        return {"run_at": parse_instant(trigger.get("clocked_time"), "clocked_time").isoformat()}, []
    raise NotConvertible("times of the sun have no counterpart")


def json_of(text: object) -> Any:
    """Return the value of a JSON text. Raises NotConvertible."""
    try:
        return json.loads(str(text))
    except (ValueError, RecursionError):
        raise NotConvertible(f"has arguments {text!r} that are not JSON") from None
