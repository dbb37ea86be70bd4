"""Beat schedules of Celery as entries of files: `beat_schedule` of a Python file, and fixtures of django-celery-beat.
Pure; a Python file is read, not executed."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rota.app.importing.celery_fixtures import add_fixture
from rota.app.importing.celery_schedules import POLICIES, crontab, mapped_options, schedule, solar, timing_of
from rota.app.importing.patterns import NotConvertible
from rota.app.importing.python_source import (
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

SETTINGS = ("beat_schedule", "CELERY_BEAT_SCHEDULE", "CELERYBEAT_SCHEDULE")
ZONES = ("timezone", "CELERY_TIMEZONE")
ENTRY_FIELDS = {"task", "schedule", "args", "kwargs", "options", "relative"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A periodic task of a source: where it is, and its fields as expressions."""

    node: ast.expr
    name: str
    fields: Mapping[str, ast.expr]
    problem: str = ""


CONSTRUCTORS = {f"celery.schedules.{function.__name__}": function for function in (crontab, schedule, solar)} | {
    "kombu.Queue": lambda name, *_, **__: name
}


def import_celery(
    sources: Sequence[SourceFile], *, now: datetime, timezone: str = "UTC", prefix: str = "celery"
) -> Imported:
    """Return a schedule for each periodic task; its target is the Celery name of the task. `timezone` is for files
    that set none. Raises Invalid for an unknown zone, FileError for a file that is neither Python nor, with a name
    `*.json`, a fixture of django-celery-beat."""
    zone = parse_zone(timezone)
    imported = Imported()
    for source in sources:
        if source.name.endswith(".json"):
            add_fixture(imported, source, zone, now, prefix)
            continue
        program = read_program(source, CONSTRUCTORS)
        entries = [entry for node in program.nodes() for entry in entries_of(program, node)]
        file_zone = zone_of(imported, program, zone)
        for entry in entries:
            add_entry(imported, program, entry, file_zone, now, prefix)
        if not entries:
            imported.refuse(source.name, 1, source.name, "has no beat_schedule and no add_periodic_task")
    return imported


def entries_of(program: Program, node: ast.AST) -> Iterator[Entry]:
    """Yield the periodic tasks that a statement or call declares."""
    match node:
        case ast.Assign(targets, value):
            for target in targets:
                if name_of(target) in SETTINGS:
                    yield from entries_in(program, value)
                elif isinstance(target, ast.Subscript) and name_of(target.value) in SETTINGS:
                    yield entry_of(program, target.slice, value)
        case ast.AnnAssign(target, _, value) if value is not None and name_of(target) in SETTINGS:
            yield from entries_in(program, value)
        case ast.AugAssign(target, _, value) if name_of(target) in SETTINGS:
            yield from entries_in(program, value)
        case ast.keyword(arg, value) if arg in SETTINGS:
            yield from entries_in(program, value)
        case ast.Call(ast.Attribute(holder, "update"), args) if name_of(holder) in SETTINGS:
            for value in args:
                yield from entries_in(program, value)
        case ast.Call(ast.Attribute(_, "add_periodic_task")):
            yield periodic_task(program, node)
        case _:
            pass


def name_of(node: ast.AST) -> str:
    """Return the last name of a name, attribute or subscript with a text."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
        case ast.Subscript(_, ast.Constant(str(name))):
            return name
        case _:
            return ""


def entries_in(program: Program, node: ast.expr) -> Iterator[Entry]:
    """Yield the entries of a mapping of periodic tasks."""
    if isinstance(node, ast.Name) and node.id in program.constants:
        node = program.constants[node.id]
    if isinstance(node, ast.Call) and program.dotted(node.func) == "dict" and not node.args:
        for keyword in node.keywords:
            yield entry_of(program, ast.Constant(keyword.arg or "**", lineno=node.lineno), keyword.value)
        return
    if not isinstance(node, ast.Dict):
        yield Entry(node, source_of(node), {}, f"line {node.lineno}: {source_of(node)} is not a literal")
        return
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            yield Entry(value, source_of(value), {}, f"line {value.lineno}: **{source_of(value)} is not a literal")
        else:
            yield entry_of(program, key, value)


def entry_of(program: Program, key: ast.expr, node: ast.expr) -> Entry:
    name = str(key.value) if isinstance(key, ast.Constant) else source_of(key)
    if isinstance(node, ast.Name) and node.id in program.constants:
        node = program.constants[node.id]
    if isinstance(node, ast.Call) and program.dotted(node.func) == "dict" and not node.args:
        return Entry(node, name, {keyword.arg or "**": keyword.value for keyword in node.keywords})
    if not isinstance(node, ast.Dict):
        return Entry(node, name, {}, f"line {node.lineno}: {source_of(node)} is not a literal")
    fields = {}
    for field, value in zip(node.keys, node.values, strict=True):
        if not (isinstance(field, ast.Constant) and isinstance(field.value, str)):
            return Entry(node, name, {}, f"line {node.lineno}: {source_of(field or value)} is not a literal")
        fields[field.value] = value
    return Entry(node, name, fields)


def periodic_task(program: Program, node: ast.Call) -> Entry:
    """Return the entry of a call of `add_periodic_task(schedule, signature, …)`."""
    try:
        arguments = program.arguments(node, ("schedule", "sig", "args", "kwargs", "name"))
    except NotLiteral as error:
        return Entry(node, source_of(node), {}, str(error))
    signature = arguments.pop("sig", None)
    name = arguments.pop("name", None)
    match signature:
        case ast.Call(ast.Attribute(task, "s" | "si"), args, keywords) if all(keyword.arg for keyword in keywords):
            arguments["task"] = task
            if args:
                arguments["args"] = ast.List(list(args), ast.Load(), lineno=node.lineno)
            if keywords:
                keys: list[ast.expr | None] = [ast.Constant(keyword.arg) for keyword in keywords]
                arguments["kwargs"] = ast.Dict(keys, [keyword.value for keyword in keywords], lineno=node.lineno)
        case _:
            return Entry(node, source_of(node), {}, f"line {node.lineno}: the signature is not task.s(…)")
    text = name.value if isinstance(name, ast.Constant) else source_of(arguments["task"])
    options = {key: value for key, value in arguments.items() if key not in ENTRY_FIELDS}
    fields = {key: value for key, value in arguments.items() if key in ENTRY_FIELDS}
    if options:
        fields["options"] = ast.Dict([ast.Constant(key) for key in options], list(options.values()), lineno=node.lineno)
    return Entry(node, str(text), fields)


def zone_of(imported: Imported, program: Program, zone: str) -> str:
    """Return the time zone that a file sets, and report it; without one the given zone."""
    for node in program.nodes():
        match node:
            case ast.Assign([target], value) if name_of(target) in ZONES:
                pass
            case ast.keyword(arg, value) if arg in ZONES and value is not None:
                pass
            case _:
                continue
        text = f"timezone = {source_of(value)}"
        try:
            zone = parse_zone(program.value(value))
            imported.record(program.file, value.lineno, text, imported="time zone of the schedules of this file")
        except NotLiteral as error:
            imported.refuse(program.file, value.lineno, text, f"{error}; schedules have {zone}")
        except Invalid as error:
            imported.refuse(program.file, value.lineno, text, f"{error.message}; schedules have {zone}")
    return zone


def add_entry(imported: Imported, program: Program, entry: Entry, zone: str, now: datetime, prefix: str) -> None:
    """Add the schedule of a periodic task, and report it."""

    def make() -> Entries:
        if entry.problem:
            raise NotLiteral(entry.problem)
        if in_loop(program, entry.node):
            raise NotLiteral("stands in a loop, which was not run")
        fields, notes = schedule_of(program, entry, zone)
        name = imported.name_for(entry.name, prefix)
        schedule = {"name": name, **fields, **POLICIES, "tags": ["celery"]}
        notes += scope_notes(program, entry.node)
        return Entries([schedule], notes=notes, text=f"schedule {name} of task {fields['target']}")

    imported.take((program.file, entry.node.lineno, entry.name), make, now)


def schedule_of(program: Program, entry: Entry, zone: str) -> tuple[Record, list[str]]:
    """Return the fields of a schedule, and what was lost. Raises NotLiteral and NotConvertible."""
    notes = []
    if "task" not in entry.fields or "schedule" not in entry.fields:
        raise NotConvertible("has no task or no schedule")
    task, function = task_of(program, entry.fields["task"])
    value = program.value(entry.fields["schedule"])
    timing, lost = timing_of(value, zone)
    notes += lost
    parameters, lost = parameters_of(program, entry.fields, function)
    notes += lost
    fields: Record = {"target": task, **timing}
    if parameters:
        fields["input"] = parameters
    if "options" in entry.fields:
        more, lost = options_of(program, entry.fields["options"])
        fields |= more
        notes += lost
    notes += [f"{name} is not carried over" for name in entry.fields if name not in ENTRY_FIELDS]
    return fields, notes


def task_of(program: Program, node: ast.expr) -> tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | None]:
    """Return the name of a task and, if it is in the file, its function. Raises NotLiteral."""
    if isinstance(node, ast.Attribute) and node.attr == "name":
        node = node.value
    if isinstance(node, ast.Name) and node.id in program.functions:
        return declared_name(program, node.id), program.functions[node.id]
    if isinstance(node, ast.Name | ast.Attribute) and not (isinstance(node, ast.Name) and node.id in program.constants):
        name = program.dotted(node)
        if name is not None:
            return name.lstrip("."), None
    value = program.value(node)
    if not isinstance(value, str):
        raise NotLiteral(f"line {node.lineno}: the task {source_of(node)} is not a name")
    last = value.rpartition(".")[2]
    is_here = last in program.functions and declared_name(program, last) in (value, last)
    return value, program.functions[last] if is_here else None


def declared_name(program: Program, function: str) -> str:
    """Return the name that a decorator gives a task, else that of the function."""
    for decorator in program.functions[function].decorator_list:
        if isinstance(decorator, ast.Call):
            for keyword in decorator.keywords:
                if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                    return str(keyword.value.value)
    return function


def parameters_of(
    program: Program, fields: Mapping[str, ast.expr], function: ast.FunctionDef | ast.AsyncFunctionDef | None
) -> tuple[Record, list[str]]:
    """Return the input of a task; positional arguments get the names of the function's parameters. Raises
    NotLiteral."""
    kwargs = program.value(fields["kwargs"]) if "kwargs" in fields else None
    args = program.value(fields["args"]) if "args" in fields else None
    if not isinstance(kwargs or {}, dict) or not isinstance(args or (), list | tuple):
        raise NotLiteral("args or kwargs are not a list and a mapping")
    return named_parameters(args or (), kwargs or {}, function)  # type: ignore[arg-type]


def named_parameters(
    args: Sequence[object], kwargs: Mapping[str, object], function: ast.FunctionDef | ast.AsyncFunctionDef | None
) -> tuple[Record, list[str]]:
    """Return arguments of a call by the names of the function's parameters, and a note if they are not known."""
    if not args:
        return dict(kwargs), []
    names = [] if function is None else [parameter.arg for parameter in function.args.args]
    if names and names[0] in ("self", "cls"):
        names = names[1:]
    if len(args) > len(names):
        return dict(kwargs), [f"positional arguments {list(args)!r} are not carried over: name them in `input`"]
    return {**dict(zip(names, args, strict=False)), **kwargs}, []


def options_of(program: Program, node: ast.expr) -> tuple[Record, list[str]]:
    """Return the options of an entry that have a counterpart, and what was lost. Raises NotLiteral."""
    options = program.value(node)
    if not isinstance(options, dict):
        raise NotLiteral(f"line {node.lineno}: the options are not a mapping")
    return mapped_options(options)
