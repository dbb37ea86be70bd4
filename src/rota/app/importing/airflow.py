"""DAGs of Airflow as entries of files: their schedules and shell tasks. Pure; the file is read, not executed.

A DAG of one shell task becomes a task and a schedule. One of several becomes a task that runs them one after another,
in the order of their dependencies. A DAG with other operators is not imported: its shell tasks alone would be another
program.
"""

import ast
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Any

from rota.app.importing.apscheduler_triggers import instant_of, zone_name
from rota.app.importing.cron_words import day_or_day
from rota.app.importing.patterns import NotConvertible, interval_fields
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
from rota.core.timing.triggers import parse_zone
from rota.db.paging import Record

PRESETS = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *", "@yearly": "0 0 1 1 *",
}  # fmt: skip
SCHEDULES = ("schedule", "schedule_interval", "timetable")
BASH = ("BashOperator",)
EMPTY = ("EmptyOperator", "DummyOperator")
RETRIES = ("retries", "retry_delay", "retry_exponential_backoff", "max_retry_delay")
READ_DAG = {*SCHEDULES, "dag_id", "start_date", "end_date", "catchup", "max_active_runs", "default_args", "description",
            "tags", "is_paused_upon_creation", "dagrun_timeout"}  # fmt: skip
READ_TASK = {*RETRIES, "task_id", "bash_command", "env", "append_env", "cwd", "execution_timeout", "dag"}
WITHOUT_EFFECT = {"dag_display_name", "doc_md", "owner"}
RETRY_DELAY = timedelta(minutes=5)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # the name stands in the command of several tasks without quotes


def cron_timetable(cron: object = None, *, timezone: object = "UTC", **_: object) -> Call:
    return Call("cron", (), {"cron": cron, "timezone": timezone})


def delta_timetable(delta: object = None, **_: object) -> Call:
    return Call("delta", (), {"delta": delta})


CONSTRUCTORS: dict[str, Callable[..., object]] = {
    **{f"{module}.{name}": cron_timetable for name in ("CronTriggerTimetable", "CronDataIntervalTimetable")
       for module in ("airflow.timetables.trigger", "airflow.timetables.interval", "airflow.sdk")},
    **{f"{module}.{name}": delta_timetable for name in ("DeltaTriggerTimetable", "DeltaDataIntervalTimetable")
       for module in ("airflow.timetables.trigger", "airflow.timetables.interval", "airflow.sdk")},
}  # fmt: skip


@dataclass(slots=True)
class Dag:
    """A DAG of a file with its tasks by task id, and the ids that each runs after."""

    node: ast.Call
    name: str
    function: str = ""  # that `@dag` decorates
    tasks: dict[str, ast.Call | ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    after: dict[str, set[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def import_airflow(
    sources: Sequence[SourceFile], *, now: datetime, timezone: str = "UTC", prefix: str = "dag"
) -> Imported:
    """Return a task and a schedule for each DAG of shell tasks. `timezone` is for DAGs whose start_date has none.
    Raises Invalid for an unknown one, FileError for a file that is not Python."""
    zone = parse_zone(timezone)
    imported = Imported()
    for source in sources:
        program = read_program(source, CONSTRUCTORS)
        dags = [dag for node in program.nodes() if (dag := dag_of(program, node)) is not None]
        if len(dags) == 1:
            collect_tasks(program, dags[0])
        for dag in dags:
            if len(dags) > 1:
                dag.problems.append("the file has several DAGs: split it into a file for each")
            add_dag(imported, program, dag, zone, now, prefix)
        if not dags:
            imported.refuse(source.name, 1, source.name, "has no DAG")
    return imported


def dag_of(program: Program, node: ast.AST) -> Dag | None:
    """Return the DAG that a call `DAG(…)` or `@dag(…)` declares."""
    if not isinstance(node, ast.Call) or last_name(program, node.func) not in ("DAG", "dag"):
        return None
    function = next((name for name, item in program.functions.items() if node in item.decorator_list), "")
    first = node.args[0] if node.args else next((item.value for item in node.keywords if item.arg == "dag_id"), None)
    name = str(first.value) if isinstance(first, ast.Constant) else function or source_of(node)
    return Dag(node, name, function)


def last_name(program: Program, node: ast.AST) -> str:
    return (program.dotted(node) or "").rpartition(".")[2]


def collect_tasks(program: Program, dag: Dag) -> None:
    """Read the operators and decorated functions of a file, and their order."""
    names: dict[str, str] = {}  # task ids by variable or function
    for node in program.nodes():
        match node:
            case ast.Call() if last_name(program, node.func).endswith(("Operator", "Sensor")):
                task_id = next((item.value for item in node.keywords if item.arg == "task_id"), None)
                name = str(task_id.value) if isinstance(task_id, ast.Constant) else source_of(node)
                if name in dag.tasks or in_loop(program, node):
                    dag.problems.append(f"line {node.lineno}: task {name} stands in a loop, or has the name of another")
                dag.tasks[name] = node
            case ast.FunctionDef() | ast.AsyncFunctionDef() if any(
                is_task(program, item) for item in node.decorator_list
            ):
                dag.tasks[node.name] = node
                names[node.name] = node.name
            case ast.Assign([ast.Name(variable)], ast.Call() as call):
                names[variable] = ""
                task_id = next((item.value for item in call.keywords if item.arg == "task_id"), None)
                if isinstance(task_id, ast.Constant):
                    names[variable] = str(task_id.value)
                elif isinstance(call.func, ast.Name) and call.func.id in names:
                    names[variable] = names[call.func.id]
            case _:
                pass
    for node in program.nodes():
        match node:
            case ast.Expr(ast.BinOp() as chain):
                order_of(dag, names, chain)
            case ast.Call(func) if last_name(program, func) in (
                "chain",
                "cross_downstream",
                "set_downstream",
                "set_upstream",
            ):
                dag.problems.append(f"line {node.lineno}: the order {source_of(node)} is not read: write it with >>")
            case _:
                pass


def is_task(program: Program, decorator: ast.expr) -> bool:
    dotted = program.dotted(decorator.func if isinstance(decorator, ast.Call) else decorator) or ""
    return dotted.rpartition(".")[2] == "task" or ".task." in f".{dotted}"


def order_of(dag: Dag, names: dict[str, str], node: ast.expr) -> list[str]:
    """Note the order of `a >> [b, c]` and `a << b`; returns the task ids that the expression stands for."""
    match node:
        case ast.BinOp(left, (ast.RShift() | ast.LShift()) as operator, right):
            first, second = order_of(dag, names, left), order_of(dag, names, right)
            before, later = (first, second) if isinstance(operator, ast.RShift) else (second, first)
            for task in later:
                dag.after.setdefault(task, set()).update(before)
            return second
        case ast.List(items) | ast.Tuple(items):
            return [task for item in items for task in order_of(dag, names, item)]
        case ast.Name(name) | ast.Call(ast.Name(name)) if names.get(name) in dag.tasks:
            return [names[name]]
        case _:
            dag.problems.append(f"line {node.lineno}: the order of {source_of(node)} is not read")
            return []


def add_dag(imported: Imported, program: Program, dag: Dag, zone: str, now: datetime, prefix: str) -> None:
    """Add the task and the schedule of a DAG; report it and its tasks."""
    place = (program.file, dag.node.lineno, f"DAG {dag.name}")
    reports: list[tuple[int, str, list[str]]] = []

    def make() -> Entries:
        if dag.problems:
            raise NotConvertible("; ".join(dag.problems))
        if in_loop(program, dag.node):
            raise NotLiteral("stands in a loop, which was not run")
        return entries_of(imported, program, dag, zone, now, prefix, reports)

    if imported.take(place, make, now):
        for line, text, notes in reports:
            imported.record(program.file, line, text, notes, imported="part of the task of the DAG")
        return
    for name, node in dag.tasks.items():
        imported.refuse(program.file, node.lineno, f"task {name}", "its DAG is not imported")


def entries_of(
    imported: Imported,
    program: Program,
    dag: Dag,
    zone: str,
    now: datetime,
    prefix: str,
    reports: list[tuple[int, str, list[str]]],
) -> Entries:
    arguments = program.arguments(dag.node, ("dag_id",))
    values, notes = values_of(program, arguments, READ_DAG)
    defaults = values.get("default_args") or {}
    if not isinstance(defaults, dict):
        raise NotLiteral("default_args is not a mapping")
    values = {**{name: defaults[name] for name in ("start_date", "end_date") if name in defaults}, **values}
    timing = timing_of(values, zone, now, notes)
    order = ordered(dag)
    commands, task = [], {}
    for name in order:
        fields, lost = task_of(program, dag.tasks[name], defaults)
        reports.append((dag.tasks[name].lineno, f"task {name}", lost))
        if fields is not None:
            commands.append(fields)
    if not commands:
        raise NotConvertible("has no shell task")
    name = imported.name_for(dag.name, prefix)
    task = {"name": name, **joined(commands, notes)}
    schedule: Record = {
        "name": name,
        "target": name,
        **timing,
        **policies_of(values, task, notes),
        "tags": tags_of(values),
    }
    if isinstance(values.get("description"), str):
        schedule["description"] = values["description"]
    notes += scope_notes(program, dag.node)
    return Entries([schedule], [task], notes, f"schedule {name}")


def values_of(program: Program, arguments: dict[str, ast.expr], read: set[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments that have a counterpart, and notes about the others. Raises NotLiteral."""
    values = {}
    notes = []
    for name, node in arguments.items():
        if name == "start_date":
            try:
                values[name] = program.value(node)
            except NotLiteral:
                notes.append(f"start_date {source_of(node)} is not carried over")
        elif name in read and name != "dag":
            values[name] = program.value(node)
        elif name not in READ_TASK | WITHOUT_EFFECT:
            notes.append(f"{name} is not carried over")
    return values, notes


def timing_of(values: dict[str, Any], zone: str, now: datetime, notes: list[str]) -> Record:
    """Return the timing of a DAG, in the zone of its start_date. Raises NotConvertible."""
    given = [name for name in SCHEDULES if name in values]
    schedule = values[given[0]] if given else None
    start, end = values.get("start_date"), values.get("end_date")
    if isinstance(start, datetime) and start.tzinfo is not None:
        zone = zone_name(start.tzinfo)
    match schedule:
        case str() if schedule in PRESETS:
            timing = {"cron_expression": PRESETS[schedule], "timezone": zone}
        case "@once" | "@continuous" | None:
            raise NotConvertible(f"the schedule {schedule!r} has no times: start it by hand or from a program")
        case str():
            timing = {"cron_expression": day_or_day(schedule), "timezone": zone}
        case timedelta():
            timing = interval_fields(schedule)
        case Call("cron", _, {"cron": str() as cron, "timezone": cron_zone}):
            timing = {"cron_expression": day_or_day(cron), "timezone": zone_name(cron_zone)}
        case Call("delta", _, {"delta": timedelta() as delta}):
            timing = interval_fields(delta)
        case _:
            raise NotConvertible(f"the schedule {schedule!r} has no counterpart")
    if start is not None:
        at = datetime.fromisoformat(instant_of(start, zone)).astimezone(UTC)
        if "interval_seconds" in timing:
            timing["anchor"] = at.isoformat()
        elif at > now:
            timing["starts_at"] = at.isoformat()
    if end is not None:
        timing["ends_at"] = instant_of(end, zone)
    if values.get("catchup"):
        notes.append("catchup: slots of the past are not run; see `rota schedule backfill`")
    return timing


def policies_of(values: dict[str, Any], task: Record, notes: list[str]) -> Record:
    """Return the policies of a DAG. Without catchup Airflow runs the latest missed interval."""
    fields: Record = {"misfire": "all" if values.get("catchup") else "once"}
    runs = values.get("max_active_runs", 16)
    if isinstance(runs, int) and runs > 1:
        fields["overlap"] = "allow"
        task["max_running"] = runs
    else:
        fields["overlap"] = "queue_all"
    if isinstance(values.get("dagrun_timeout"), timedelta):
        fields["timeout_seconds"] = max(1, int(values["dagrun_timeout"].total_seconds()))
    if values.get("is_paused_upon_creation"):
        fields["enabled"] = False
        notes.append("paused upon creation: the schedule is disabled")
    return fields


def tags_of(values: dict[str, Any]) -> list[str]:
    tags = values.get("tags") or []
    return ["airflow", *(tag for tag in tags if isinstance(tag, str) and tag != "airflow")]


def ordered(dag: Dag) -> list[str]:
    """Return the ids of the tasks, each after those that it depends on. Raises NotConvertible."""
    graph = TopologicalSorter({name: sorted(dag.after.get(name, ())) for name in dag.tasks})
    try:
        return list(graph.static_order())
    except CycleError:
        raise NotConvertible("its tasks depend on each other in a circle") from None


def task_of(
    program: Program, node: ast.Call | ast.FunctionDef | ast.AsyncFunctionDef, defaults: dict[str, Any]
) -> tuple[Record | None, list[str]]:
    """Return the fields of a shell task, None for an empty operator, and what was lost. Raises NotConvertible for other
    operators."""
    if not isinstance(node, ast.Call):
        raise NotConvertible(f"task {node.name} is a Python function: declare it with @app.task in a program")
    kind = last_name(program, node.func)
    if kind in EMPTY:
        return None, []
    if kind not in BASH:
        raise NotConvertible(f"line {node.lineno}: {kind} has no counterpart: write it as a task of a program")
    own, notes = values_of(program, program.arguments(node), READ_TASK)
    values = {**{name: value for name, value in defaults.items() if name in READ_TASK}, **own}
    notes += [
        f"{name} of default_args is not carried over"
        for name in defaults
        if name not in READ_TASK | WITHOUT_EFFECT | READ_DAG
    ]
    command = values.get("bash_command")
    if not isinstance(command, str) or not command.strip():
        raise NotConvertible(f"line {node.lineno}: bash_command is not a text")
    if "{{" in command or "{%" in command or command.rstrip(" ").endswith((".sh", ".bash")):
        raise NotConvertible(f"line {node.lineno}: bash_command is a template: use ROTA_SLOT, the time of the slot")
    fields: Record = {"command": command}
    if isinstance(values.get("env"), dict):
        fields["env"] = {str(name): str(value) for name, value in values["env"].items()}
        if wrong := [name for name in fields["env"] if not VARIABLE.fullmatch(name)]:
            raise NotConvertible(f"line {node.lineno}: {wrong[0]!r} is not the name of a variable")
    if isinstance(values.get("cwd"), str):
        fields["cwd"] = values["cwd"]
    if isinstance(values.get("execution_timeout"), timedelta):
        fields["timeout"] = values["execution_timeout"].total_seconds()
    if retries := values.get("retries"):
        fields["retry"] = retry_of(retries, values)
    return fields, notes


def retry_of(retries: object, values: dict[str, Any]) -> Record:
    if not isinstance(retries, int) or isinstance(retries, bool):
        raise NotConvertible("retries is not a number")
    delay = values.get("retry_delay", RETRY_DELAY)
    span = delay if isinstance(delay, timedelta) else timedelta(seconds=float(delay))
    policy: Record = {"max_retries": retries, "backoff_ms": int(span.total_seconds() * 1000)}
    if values.get("retry_exponential_backoff"):
        longest = values.get("max_retry_delay") or timedelta(days=1)
        policy |= {"backoff_type": "exponential", "max_backoff_ms": int(longest.total_seconds() * 1000)}
    return policy


def joined(commands: list[Record], notes: list[str]) -> Record:
    """Return one task of several commands; those of one task stay as they are."""
    if len(commands) == 1:
        (fields,) = commands
        return {**fields, "command": f"exec bash -c {quoted(fields['command'])}"}
    notes.append(f"its {len(commands)} tasks run one after another as one command; a retry repeats all")
    parts, timeouts, retries = [], [], []
    for fields in commands:
        cwd = f"cd {quoted(fields['cwd'])} && " if "cwd" in fields else ""
        env = "".join(f"{name}={quoted(value)} " for name, value in fields.get("env", {}).items())
        parts.append(f"({cwd}{env}bash -c {quoted(fields['command'])})")
        timeouts.append(fields.get("timeout"))
        retries.append(fields.get("retry", {}).get("max_retries", 0))
    task: Record = {"command": " && ".join(parts)}
    if all(timeouts):
        task["timeout"] = sum(timeouts)
    if max(retries):
        task["retry"] = next(fields["retry"] for fields in commands if fields.get("retry"))
    return task


def quoted(text: str) -> str:
    return shlex.quote(text)
