"""Jobs of APScheduler 3 as entries of files: calls of `add_job` and `scheduled_job`. Pure; the file is read, not
executed."""

import ast
from collections.abc import Sequence
from datetime import datetime

from rota.app.importing.apscheduler_triggers import ARGUMENTS, CONSTRUCTORS, timing_of, zone_name
from rota.app.importing.celery import named_parameters
from rota.app.importing.patterns import NotConvertible
from rota.app.importing.python_source import (
    Call,
    NotLiteral,
    Program,
    in_loop,
    read_program,
    scope_notes,
    source_of,
)
from rota.app.importing.report import Entries, Imported
from rota.app.importing.sources import SourceFile
from rota.core.errors import Invalid
from rota.core.timing.triggers import parse_zone
from rota.db.paging import Record
from rota.engine.engine_settings import EngineSettings

ADD_JOB = ("func", "trigger", "args", "kwargs", "id", "name", "misfire_grace_time", "coalesce", "max_instances",
           "next_run_time", "jobstore", "executor", "replace_existing")  # fmt: skip
SCHEDULED_JOB = tuple(name for name in ADD_JOB if name not in ("func", "replace_existing"))
SCHEDULERS = ("BackgroundScheduler", "BlockingScheduler", "AsyncIOScheduler", "GeventScheduler", "TornadoScheduler",
              "TwistedScheduler", "QtScheduler")  # fmt: skip
LOST = ("jobstore", "executor")
GRACE_SECONDS = EngineSettings().misfire_grace.total_seconds()


def import_apscheduler(
    sources: Sequence[SourceFile], *, now: datetime, timezone: str = "UTC", prefix: str = "job"
) -> Imported:
    """Return a schedule for each job; its target is the name of the job's function. `timezone` is for schedulers that
    set none. Raises Invalid for an unknown zone, FileError for a file that is not Python."""
    machine_zone = parse_zone(timezone)
    imported = Imported()
    for source in sources:
        program = read_program(source, CONSTRUCTORS)
        defaults: dict[str, object] = {}
        zone, count = machine_zone, 0
        for node in program.nodes():
            if isinstance(node, ast.Call) and name_of(node.func) in SCHEDULERS:
                defaults, zone = read_scheduler(imported, program, node, zone)
        for node in program.nodes():
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
                continue
            kind = name_of(node.func)
            if kind in ("add_job", "scheduled_job"):
                count += 1
                add_job(imported, program, node, defaults, zone, now, prefix)
            elif kind == "add_schedule":
                count += 1
                imported.refuse(
                    source.name, node.lineno, source_of(node), "is of APScheduler 4, which is not supported"
                )
        if not count:
            imported.refuse(source.name, 1, source.name, "has no add_job and no scheduled_job")
    return imported


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def read_scheduler(imported: Imported, program: Program, node: ast.Call, zone: str) -> tuple[dict[str, object], str]:
    """Return the defaults of the jobs of a scheduler and its time zone, and report them."""
    defaults: dict[str, object] = {}
    for keyword in node.keywords:
        place = (program.file, keyword.value.lineno, f"{keyword.arg or '**'} = {source_of(keyword.value)}")
        try:
            if keyword.arg == "timezone":
                zone = zone_name(program.value(keyword.value))
                imported.record(*place, imported="time zone of the schedules of this file")
            elif keyword.arg == "job_defaults":
                value = program.value(keyword.value)
                defaults = dict(value) if isinstance(value, dict) else {}
                imported.record(*place, imported="defaults of the jobs of this file")
            else:
                imported.refuse(*place, "has no counterpart")
        except NotConvertible as error:
            imported.refuse(*place, str(error))
        except Invalid as error:
            imported.refuse(*place, error.message)
    return defaults, zone


def add_job(
    imported: Imported,
    program: Program,
    node: ast.Call,
    defaults: dict[str, object],
    zone: str,
    now: datetime,
    prefix: str,
) -> None:
    """Add the schedule of a job, and report it."""

    def make() -> Entries:
        if in_loop(program, node):
            raise NotLiteral("stands in a loop, which was not run")
        base, fields, notes = schedule_of(program, node, defaults, zone)
        name = imported.name_for(base, prefix)
        notes += scope_notes(program, node)
        schedule = {"name": name, **fields, "tags": ["apscheduler"]}
        return Entries([schedule], notes=notes, text=f"schedule {name} of task {fields['target']}")

    imported.take((program.file, node.lineno, source_of(node)), make, now)


def schedule_of(
    program: Program, node: ast.Call, defaults: dict[str, object], zone: str
) -> tuple[str, Record, list[str]]:
    """Return the name of a job, the fields of its schedule, and what was lost. Raises NotLiteral, NotConvertible and
    Invalid."""
    is_decorator = name_of(node.func) == "scheduled_job"
    arguments = program.arguments(node, SCHEDULED_JOB if is_decorator else ADD_JOB)
    target, function = decorated(program, node) if is_decorator else function_of(program, arguments.pop("func", None))
    trigger_arguments = {name: arguments.pop(name) for name in [*arguments] if name not in ADD_JOB}
    trigger = trigger_of(program, arguments.pop("trigger", None), trigger_arguments)
    timing, notes = timing_of(trigger, zone)
    values = {**defaults}
    for name in [*arguments]:
        if name == "next_run_time":
            if isinstance(arguments[name], ast.Constant):
                values[name] = program.value(arguments[name])
            else:
                notes.append("next_run_time is not carried over")
        else:
            values[name] = program.value(arguments[name])
    args, kwargs = values.get("args") or (), values.get("kwargs") or {}
    if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
        raise NotLiteral("args or kwargs are not a list and a mapping")
    parameters, lost = named_parameters(args, kwargs, function)
    notes += lost
    fields: Record = {"target": target, **timing, **policies_of(values, notes)}
    if parameters:
        fields["input"] = parameters
    if "next_run_time" in values and values["next_run_time"] is None:
        fields["enabled"] = False
        notes.append("added as paused: the schedule is disabled")
    if isinstance(values.get("name"), str):
        fields["description"] = str(values["name"])
    notes += [
        f"{name} {values[name]!r} is not carried over" for name in LOST if values.get(name, "default") != "default"
    ]
    return str(values.get("id") or target), fields, notes


def policies_of(values: dict[str, object], notes: list[str]) -> Record:
    """Return the policies of a job: APScheduler skips a run that is later than `misfire_grace_time`, 1 s by default,
    and one that would be more than `max_instances`, 1 by default."""
    fields: Record = {"overlap": "skip", "misfire": "skip"}
    instances, grace = values.get("max_instances", 1), values.get("misfire_grace_time", 1)
    if isinstance(instances, int) and instances > 1:
        fields["overlap"] = "allow"
        notes.append(f"max_instances {instances}: set max_running of the task")
    if grace is None or (isinstance(grace, int | float) and grace > GRACE_SECONDS):
        fields["misfire"] = "once" if values.get("coalesce") else "all"
        if isinstance(grace, int | float):
            fields["start_deadline_seconds"] = int(grace)
    return fields


def trigger_of(program: Program, node: ast.expr | None, arguments: dict[str, ast.expr]) -> Call:
    """Return the trigger of a job: an object, or a name with arguments. Raises NotLiteral and NotConvertible."""
    trigger = None if node is None else program.value(node)
    if isinstance(trigger, Call):
        return trigger
    if trigger is None:
        trigger = "date"
    if trigger not in ARGUMENTS:
        raise NotConvertible(f"the trigger {trigger!r} is unknown")
    return Call(str(trigger), (), {name: program.value(value) for name, value in arguments.items()})


def function_of(program: Program, node: ast.expr | None) -> tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | None]:
    """Return the name of a job's function and, if it is in the file, the function. Raises NotLiteral."""
    if node is None:
        raise NotLiteral("has no func")
    if isinstance(node, ast.Name) and node.id in program.functions:
        return node.id, program.functions[node.id]
    if isinstance(node, ast.Name | ast.Attribute) and not (isinstance(node, ast.Name) and node.id in program.constants):
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id in program.imports
        ):
            raise NotLiteral(f"line {node.lineno}: the function {source_of(node)} belongs to an object")
        return str(program.dotted(node)).rpartition(".")[2], None
    value = program.value(node) if not isinstance(node, ast.Lambda) else None
    if not isinstance(value, str):
        raise NotLiteral(f"line {node.lineno}: the function {source_of(node)} has no name")
    name = value.replace(":", ".").rpartition(".")[2]
    return name, program.functions.get(name)


def decorated(program: Program, node: ast.Call) -> tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the function that a call decorates. Raises NotLiteral."""
    for name, function in program.functions.items():
        if node in function.decorator_list:
            return name, function
    raise NotLiteral("decorates no function")
