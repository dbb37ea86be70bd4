"""Timers and services of systemd as entries of files. Pure. Each setting of each unit is reported."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rota.app.importing.on_calendar import calendar_fields
from rota.app.importing.patterns import NotConvertible, interval_fields
from rota.app.importing.report import Imported
from rota.app.importing.sources import SourceFile
from rota.app.importing.systemd_units import (
    Setting,
    Unit,
    read_units,
    shell_word,
    span_of,
    without_specifiers,
    words_of,
)
from rota.core.errors import Invalid
from rota.core.model import JITTER_LIMIT
from rota.core.timing.triggers import parse_zone
from rota.db.paging import Record

TRIGGERS = {
    "OnCalendar": "",
    "OnUnitActiveSec": "",
    "OnUnitInactiveSec": "counted from the start of a run, not from its end",
}
NOT_TRIGGERS = {
    "OnBootSec": "the time after a start of the machine has no counterpart: start it with the machine",
    "OnStartupSec": "the time after a start of systemd has no counterpart",
    "OnActiveSec": "the time after a start of the timer has no counterpart",
}
WITHOUT_EFFECT = {
    "AccuracySec": "slots start on time",
    "FixedRandomDelay": "the delay of a schedule is fixed",
    "Description": "description of the schedule",
    "Documentation": "for people",
    "WantedBy": "the schedule is enabled",
    "RemainAfterElapse": "a schedule stays",
}
COMMANDS = ("ExecStartPre", "ExecStart", "ExecStartPost")
PREFIXES = {
    "+": "ran with all privileges",
    "!": "ran with other privileges",
    ":": "",
}


@dataclass(slots=True)
class Service:
    """The task of a service, and what was lost of its settings, by setting."""

    task: Record = field(default_factory=dict)
    notes: dict[Setting, str] = field(default_factory=dict)  # empty: imported
    refused: dict[Setting, str] = field(default_factory=dict)
    problem: str = ""  # why it cannot be imported


def import_timers(
    sources: Sequence[SourceFile], *, now: datetime, timezone: str = "UTC", prefix: str = "timer"
) -> Imported:
    """Return a task for each service that a timer starts and a schedule for each of the timer's triggers. `timezone`
    is that of the machine. Raises Invalid for an unknown one, FileError for a unit with too many settings."""
    zone = parse_zone(timezone)
    imported = Imported()
    units, other = read_units(sources)
    services = {name: read_service(unit) for name, unit in units.items() if name.endswith(".service")}
    started: set[str] = set()
    for unit in units.values():
        if unit.name.endswith(".timer"):
            started.add(add_timer(imported, unit, units, services, zone, now, prefix))
    for name, service in services.items():
        report_service(imported, units[name], service, started=name in started)
    for setting in other:
        imported.refuse(setting.file, setting.line, setting.text, setting.value)
    imported.report.sort(key=lambda line: (line.file, line.line))
    return imported


def add_timer(
    imported: Imported,
    timer: Unit,
    units: dict[str, Unit],
    services: dict[str, Service],
    zone: str,
    now: datetime,
    prefix: str,
) -> str:
    """Add the schedules of a timer and their task, and report its settings. Returns the name of the service."""
    target = timer.text("Unit") or f"{timer.stem}.service"
    service, unit = services.get(target), units.get(target)
    if service is None or unit is None:
        problem = f"{target} is not among the files"
    else:
        problem = f"{target}: {service.problem}" if service.problem else ""
    common, notes = policies_of(timer)
    triggers = [
        setting for setting in timer.settings if setting.name in TRIGGERS and setting in timer.values(setting.name)
    ]
    schedules: list[Record] = []
    for setting in triggers:
        notes[setting] = ""
        try:
            fields, lost = trigger_fields(setting, zone)
        except NotConvertible as error:
            imported.refuse(setting.file, setting.line, setting.text, f"the expression {error}")
            continue
        if problem or service is None:
            imported.refuse(setting.file, setting.line, setting.text, problem)
            continue
        name = imported.name_for(timer.stem, prefix)
        task = {"name": schedules[0]["target"] if schedules else name, **service.task}
        description = timer.text("Description") or (unit.text("Description") if unit else "")
        schedule = {
            "name": name, "target": task["name"], **fields, **common, "tags": ["systemd"],
            **({"description": description} if description else {}),
        }  # fmt: skip
        try:
            imported.add([schedule], [] if schedules else [task], now)
        except Invalid as error:
            imported.refuse(setting.file, setting.line, setting.text, error.message)
            continue
        schedules.append(schedule)
        several = ["runs of several triggers of a timer may overlap"] if len(schedules) > 1 else []
        lost_parts = [*([lost] if lost else []), *several]
        imported.record(setting.file, setting.line, setting.text, lost_parts, imported=f"schedule {name}")
    report_timer_settings(imported, timer, notes, {*triggers}, imported_any=bool(schedules))
    if not triggers:
        first = timer.settings[0] if timer.settings else Setting(timer.name, 1, timer.name, "", "", "")
        imported.refuse(first.file, first.line, timer.name, "has no OnCalendar and no interval")
    return target


def trigger_fields(setting: Setting, zone: str) -> tuple[Record, str]:
    """Return the timing of a trigger, and what was lost. Raises NotConvertible."""
    if setting.name == "OnCalendar":
        return calendar_fields(setting.value, zone)
    span = span_of(setting.value)
    if span is None:
        raise NotConvertible("never elapses")
    return interval_fields(span), TRIGGERS[setting.name]


def policies_of(timer: Unit) -> tuple[Record, dict[Setting, str]]:
    """Return the policies of the schedules of a timer, and what was lost of its settings: those that it names are
    imported, with a note if that is not empty."""
    # systemd does not start a service that is still running
    fields: Record = {"overlap": "skip", "misfire": "once" if timer.is_true("Persistent") else "skip"}
    notes: dict[Setting, str] = {}
    if persistent := timer.last("Persistent"):
        notes[persistent] = ""
    if delay := timer.last("RandomizedDelaySec"):
        try:
            span = span_of(delay.value) or timedelta()
        except NotConvertible as error:
            notes[delay] = str(error)
            span = timedelta()
        if span > JITTER_LIMIT:
            notes[delay] = "jitter is at most a day"
        elif delay not in notes:
            notes[delay] = "" if timer.is_true("FixedRandomDelay") else "one delay for all slots of a schedule"
        if span:
            fields["jitter_seconds"] = min(span, JITTER_LIMIT).total_seconds()
    if unit := timer.last("Unit"):
        notes[unit] = ""
    return fields, notes


def report_timer_settings(
    imported: Imported, timer: Unit, notes: dict[Setting, str], triggers: set[Setting], *, imported_any: bool
) -> None:
    for setting in timer.settings:
        if setting in triggers:
            continue
        place = (setting.file, setting.line, setting.text)
        if setting in notes and imported_any:
            imported.record(*place, [notes[setting]] if notes[setting] else [])
        elif setting in notes:
            imported.refuse(*place, "no schedule of this timer is imported")
        elif not setting.value or (setting.name in timer_lists(timer) and setting not in timer.values(setting.name)):
            imported.record(*place, imported="resets the values before it, or is reset")
        elif setting.name in WITHOUT_EFFECT:
            imported.record(*place, imported=WITHOUT_EFFECT[setting.name])
        else:
            imported.refuse(*place, NOT_TRIGGERS.get(setting.name, f"{setting.name} has no counterpart"))


def timer_lists(timer: Unit) -> set[str]:
    """Return the names that appear several times: only the last, or those after an empty one, count."""
    names = [setting.name for setting in timer.settings]
    return {name for name in names if names.count(name) > 1}


def read_service(unit: Unit) -> Service:
    """Return the task of a service without its name."""
    service = Service()
    try:
        commands = [command_of(service, unit, setting) for name in COMMANDS for setting in unit.values(name)]
        if not unit.values("ExecStart"):
            raise NotConvertible("has no ExecStart")
        service.task["command"] = " && ".join(commands)
    except NotConvertible as error:
        service.problem = f"the command {error}"
    for reader in (read_environment, read_directory, read_limits):
        try:
            reader(service, unit)
        except NotConvertible as error:
            service.problem = service.problem or str(error)
    if (kind := unit.last("Type")) is not None:
        lost = "" if kind.value in ("oneshot", "simple", "exec", "idle") else "a run ends when its command exits"
        service.notes[kind] = lost
    return service


def command_of(service: Service, unit: Unit, setting: Setting) -> str:
    """Return a command for a shell. Raises NotConvertible."""
    text, notes, may_fail, expands = setting.value, [], False, True
    while text and text[0] in "-@+!:":
        may_fail |= text[0] == "-"
        expands &= text[0] != ":"
        if text[0] == "@":
            raise NotConvertible("has another argv[0] (`@`)")
        if lost := PREFIXES.get(text[0], ""):
            notes.append(lost)
        text = text[1:]
    words = words_of(without_specifiers(text, unit))
    if not words:
        raise NotConvertible("is empty")
    if not expands:
        words = [word.replace("$", "$$") for word in words]
    if ";" in words:
        raise NotConvertible("has several commands in one line (`;`)")
    command = " ".join(map(shell_word, words))
    if may_fail:
        command = f"{{ {command} || true; }}"
    service.notes[setting] = "; ".join(dict.fromkeys(notes))
    return command


def read_environment(service: Service, unit: Unit) -> None:
    variables: dict[str, str] = {}
    for setting in unit.values("Environment"):
        for word in words_of(without_specifiers(setting.value, unit)):
            name, equals, value = word.partition("=")
            if not equals:
                raise NotConvertible(f"Environment has {word!r}, which is not NAME=VALUE")
            variables[name] = value
        service.notes[setting] = ""
    if variables:
        service.task["env"] = variables


def read_directory(service: Service, unit: Unit) -> None:
    if (setting := unit.last("WorkingDirectory")) is None:
        return
    path = without_specifiers(setting.value, unit)
    if path.removeprefix("-") == "~":
        service.refused[setting] = "is the home of the user: set cwd"
        return
    service.task["cwd"] = path.removeprefix("-")
    service.notes[setting] = "must exist" if path.startswith("-") else ""


def read_limits(service: Service, unit: Unit) -> None:
    """Read the time and memory of a run. TimeoutStartSec limits only commands of Type=oneshot."""
    name = "TimeoutStartSec" if unit.text("Type") == "oneshot" else "RuntimeMaxSec"
    if (setting := unit.last(name)) is not None:
        span = span_of(setting.value)
        if span is not None and span:
            service.task["timeout"] = span.total_seconds()
        service.notes[setting] = ""
    if (memory := unit.last("MemoryMax")) is not None:
        units = {"K": 2**10, "M": 2**20, "G": 2**30}
        digits, factor = memory.value.rstrip("KMG"), units.get(memory.value[-1:], 1)
        if digits.isdecimal() and 16 <= (megabytes := int(digits[:15]) * factor // 2**20) <= 1_048_576:
            service.task["memory_mb"] = megabytes
            service.notes[memory] = ""


def report_service(imported: Imported, unit: Unit, service: Service, *, started: bool) -> None:
    """Report the settings of a service."""
    used = bool(service.task) and not service.problem
    for setting in unit.settings:
        place = (setting.file, setting.line, setting.text)
        if not started:
            imported.refuse(*place, f"no timer among the files starts {unit.name}")
        elif setting.name in COMMANDS and service.problem:
            imported.refuse(*place, service.problem)
        elif setting in service.refused:
            imported.refuse(*place, service.refused[setting])
        elif setting in service.notes and used:
            imported.record(*place, [note] if (note := service.notes[setting]) else [])
        elif setting.name in WITHOUT_EFFECT:
            imported.record(*place, imported=WITHOUT_EFFECT[setting.name])
        elif setting.name in ("User", "Group"):
            imported.refuse(*place, "commands run as the user of the worker")
        elif setting.name in (*COMMANDS, "Environment") and setting not in unit.values(setting.name):
            imported.record(*place, imported="resets the values before it, or is reset")
        else:
            imported.refuse(*place, f"{setting.name} has no counterpart" if used else service.problem)
