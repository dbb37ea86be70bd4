"""`rota doctor --release`: what new code would break in an installation. Starts and stores nothing."""

import ast
import asyncio
import fnmatch
import inspect
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rota.app.application import Rota
from rota.app.doctor import Finding
from rota.app.files import store as files_store
from rota.app.programs import load_program
from rota.app.settings import Settings
from rota.core.errors import Invalid, NotFound, RotaError
from rota.core.kinds import traits_of
from rota.core.steps import OnNewVersion
from rota.db import schema
from rota.db.blocking import sqlite_path
from rota.db.connection import Database, open_database
from rota.db.dialect import Tx
from rota.engine import orgs, schedules
from rota.engine.versions import version_of
from rota.kinds.alarms.store import rows as alarms_store
from rota.kinds.tasks import store as tasks_store
from rota.kinds.tasks.registry import Task
from rota.kinds.tasks.targets import check_payload
from rota.reports import release
from rota.reports.release import BegunJobs, StoredWorkflow

NAMES_SHOWN = 3
SCRIPT = "script"  # source of workflows that are not of a program


def examine_release(settings: Settings, app: str) -> list[Finding]:
    """Load the program at `app` and compare it with the installation. Raises ProgramError if it cannot be loaded."""
    program = load_program(app)
    return asyncio.run(gather(settings, program, app))


async def gather(settings: Settings, program: Rota, app: str) -> list[Finding]:
    path = sqlite_path(settings.database_url)
    if path is not None and not path.exists():
        return [Finding("database", "wrong", f"{path} does not exist; give --data-dir or --database-url")]
    db = open_database(settings.database_url, pool=2)
    try:
        if stale := await db.read(schema.check):
            return [Finding("migrations", "wrong", stale)]
        return await check_release(db, program, app)
    except RotaError as error:
        return [Finding("database", "wrong", error.message)]
    finally:
        await db.close()


async def check_release(db: Database, program: Rota, app: str) -> list[Finding]:
    """Return what the program would break, or one finding that it breaks nothing."""
    org_id = await db.read(orgs.org_by_slug, program.org)
    if org_id is None:
        return [Finding("org", "wrong", f"{program.org!r} not found: make it first, or declare for another")]
    stored = await db.read(read_stored, org_id, Path(app).stem)
    findings = [*task_findings(program, stored), *schedule_findings(program, stored)]
    findings += [*run_findings(program, stored), *workflow_findings(program, stored)]
    findings += vanished(program, stored)
    if not any(finding.verdict == "wrong" for finding in findings):
        findings.append(Finding("release", "ok", f"{app} breaks nothing that is stored in org {program.org!r}"))
    return findings


class Stored:
    """What the org of a program has stored."""

    def __init__(self, tx: Tx, org_id: str, stem: str) -> None:
        self.stem, self.source = stem, f"code:{stem}"
        self.elsewhere = tasks_store.declared_elsewhere(tx, org_id, stem)
        self.tasks = tasks_store.of_program(tx, org_id, stem)
        self.schedules = [due.schedule for due in files_store.all_schedules(tx, org_id)]
        declared = schedules.declared_by(tx, org_id, self.source)  # with producers of workflows
        self.declared = {
            schedule.name
            for schedule in declared
            if schedule.paused_at is None and not traits_of(schedule.kind).declares_schedules
        }
        self.begun, self.is_cut = release.begun_jobs(tx, org_id)
        self.jobs = release.waiting_jobs(tx, org_id, "task")
        self.workflows = release.stored_workflows(tx, org_id)
        self.alarms = set(alarms_store.declared(tx, org_id, self.source))
        self.rows: dict[str, tasks_store.TaskRow] = {}
        targets = {schedule.target for schedule in self.schedules if schedule.kind == "task"}
        for target in targets | {job.target for job in self.begun if job.kind == "task"} | set(self.jobs):
            try:
                self.rows[target] = tasks_store.get(tx, org_id, target)
            except NotFound:
                continue


def read_stored(tx: Tx, org_id: str, stem: str) -> Stored:
    return Stored(tx, org_id, stem)


def new_task(program: Rota, row: tasks_store.TaskRow) -> Task | None:
    """Return what the program has for a row: the declared task, or the function that a stored task names."""
    return program.registry.find(row.name if row.source == tasks_store.CODE else row.command)


def is_gone(program: Rota, stored: Stored, row: tasks_store.TaskRow) -> bool:
    """Whether neither the program nor another one has the function or command of a row."""
    if new_task(program, row) is not None:
        return False
    if row.source == tasks_store.CODE:
        return row.program == stored.stem
    return row.task_type == "python" and row.command not in stored.elsewhere


def task_findings(program: Rota, stored: Stored) -> list[Finding]:
    """Return declared tasks that are gone. Their schedules and begun runs have findings of their own."""
    findings = []
    for row in stored.tasks:
        if is_gone(program, stored, row):
            count = stored.jobs.get(row.name, 0) + stored.jobs.get(row.id, 0)
            remedy = "cancel them, or keep it until they have ended"
            waiting = f", but has {counted(count, 'job')} in the queue: {remedy}" if count else ""
            what, detail = f"task {row.name}", f"is no longer declared and will be disabled{waiting}"
            findings.append(Finding(what, "wrong", detail) if count else Finding(what, "note", detail))
    return findings


def schedule_findings(program: Rota, stored: Stored) -> list[Finding]:
    """Return schedules whose task is gone, or whose input does not fit its parameters."""
    findings = []
    new_bodies = {str(body["name"]): body for body in program.schedules}
    for schedule in stored.schedules:
        row = stored.rows.get(schedule.target)
        if schedule.kind != "task" or not schedule.enabled or schedule.source == stored.source:
            continue  # those of the program are replaced by its new ones, or vanish
        what = f"schedule {schedule.name}"
        if row is None:
            detail = f"its task {schedule.target!r} does not exist: add it or edit the schedule"
            findings.append(Finding(what, "wrong", detail))
        elif is_gone(program, stored, row):
            remedy = "declare it, or give the schedule another task, or delete it"
            findings.append(Finding(what, "wrong", f"its task {row.name!r} is no longer declared: {remedy}"))
        elif (wrong := wrong_input(program, row, schedule.input)) is not None:
            remedy = "give the parameters defaults, or edit the input after the release"
            findings.append(Finding(what, "wrong", f"its input does not fit task {row.name!r}: {wrong}; {remedy}"))
    for name, body in new_bodies.items():
        if body.get("kind", "task") == "task" and (error := declared_error(program, stored, body)) is not None:
            findings.append(Finding(f"schedule {name}", "wrong", f"{error}; the program would not start"))
    return findings


def wrong_input(program: Rota, row: tasks_store.TaskRow, payload: object) -> str | None:
    """Return why an input does not fit the parameters of the new function; None if it does."""
    try:
        check_payload(row, payload, "input", new_task(program, row), program.injector)
    except Invalid as error:
        return error.message
    return None


def declared_error(program: Rota, stored: Stored, body: Mapping[str, object]) -> str | None:
    """Return why a schedule that the program declares would be refused, as far as its task is known; None if it would
    not."""
    target = str(body.get("target"))
    task = program.registry.find(target)
    if task is None:
        known = target in stored.rows or target in stored.elsewhere
        return None if known else f"its task {target!r} is not declared"
    if task.function is None:
        return None
    try:
        program.injector.signature(task.function).check(body.get("input"), "input")
    except Invalid as error:
        return f"its input does not fit task {target!r}: {error.message}"
    return None


def run_findings(program: Rota, stored: Stored) -> list[Finding]:
    """Return runs with recorded steps that the new code cannot go on with."""
    findings = []
    for begun in stored.begun:
        row = stored.rows.get(begun.target)
        if begun.kind != "task" or row is None:
            continue
        what = f"{counted(begun.jobs, 'begun run')} of {row.name}"
        if is_gone(program, stored, row):
            findings.append(Finding(what, "wrong", "the task is no longer declared: keep it until they have ended"))
            continue
        task = new_task(program, row)
        if task is None or task.version == version_of(begun.route) or version_of(begun.route) is None:
            continue
        if (finding := version_finding(what, row, task, begun)) is not None:
            findings.append(finding)
    if stored.is_cut:
        detail = f"only {release.STEP_ROWS_MAX} recorded steps were compared; there are more"
        findings.append(Finding("begun runs", "note", detail))
    return findings


def version_finding(what: str, row: tasks_store.TaskRow, task: Task, begun: BegunJobs) -> Finding | None:
    """Return what happens to runs that an older version of the function began."""
    own = (row.options or {}).get("on_new_version") if row.source != tasks_store.CODE else None
    rule = OnNewVersion(str(own or task.on_new_version or OnNewVersion.CONTINUE))
    change = f"version {version_of(begun.route)} becomes {task.version}"
    remedy = "keep a worker with the old version, or let them end first"
    if rule is OnNewVersion.RESTART:
        detail = "they would begin again, and those with effects or children be parked"
        return Finding(what, "wrong", f"{change}: {detail}; {remedy}")
    if rule is OnNewVersion.PARK:
        return Finding(what, "wrong", f"{change}: they would be parked; {remedy}")
    missing = missing_steps(task, begun.steps)
    if missing:
        detail = f"they would fail, because the code does not name their recorded steps {named(missing)}"
        return Finding(what, "wrong", f"{change}: {detail}; keep the steps, or {remedy}")
    same = f" and must call the same steps: {named(begun.steps)}" if begun.steps else ""
    return Finding(what, "note", f"{change}: they go on under it{same}")


def missing_steps(task: Task, recorded: Sequence[str]) -> list[str]:
    """Return recorded names that no text in the module of the function can be."""
    patterns = step_texts(task)
    if patterns is None:
        return []
    return [name for name in recorded if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def step_texts(task: Task) -> set[str] | None:
    """Return the texts of the module of a function as patterns, f-strings with `*` for their values; None if its source
    cannot be read."""
    try:
        module = inspect.getmodule(task.function)
        tree = ast.parse(inspect.getsource(module if module is not None else task.function))  # type: ignore[arg-type]
    except (OSError, TypeError, SyntaxError):
        return None
    texts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(literal(node.value))
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else None for part in node.values)
            texts.add("".join("*" if part is None else literal(str(part)) for part in parts))
    return texts - {"*"}


def literal(text: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in text)


def workflow_findings(program: Rota, stored: Stored) -> list[Finding]:
    """Return workflows, topics and connectors that stored events and effects still need."""
    findings = []
    for workflow in stored.workflows:
        what = f"workflow {workflow.name}"
        new = program.workflows.get(workflow.name)
        if workflow.source == stored.source and new is None:
            pending = sum(workflow.pending.values())
            left = f" with {counted(pending, 'pending event')}" if pending else ""
            remedy = "declare it, or delete the workflow"
            findings.append(Finding(what, "wrong", f"is no longer declared and will be paused{left}: {remedy}"))
        elif workflow.source == stored.source and new is not None:
            subscribed = {topic for handler in new.handlers.values() for topic in handler.subscribe}
            for topic, count in sorted(workflow.pending.items()):
                if topic not in subscribed:
                    detail = f"topic {topic!r} has {counted(count, 'pending event')}, but no consumer in the new code"
                    findings.append(Finding(what, "wrong", f"{detail}: keep a consumer until they are consumed"))
        if workflow.source in (stored.source, SCRIPT):
            findings += connector_findings(program, what, workflow, new is not None)
    for name, workflow_ in program.workflows.items():
        unknown = unknown_connectors(program, workflow_.connectors or ())
        if unknown:
            detail = f"may call {named(unknown)}, which the program does not register: add app.connector(…)"
            findings.append(Finding(f"workflow {name}", "wrong", detail))
    return findings


def connector_findings(program: Rota, what: str, workflow: StoredWorkflow, is_declared: bool) -> list[Finding]:
    findings = []
    for call, count in sorted(workflow.effects.items()):
        if call not in program.connectors.methods:
            need = "needs" if count == 1 else "need"
            detail = f"{counted(count, 'unsettled effect')} {need} {call}, which the program does not register"
            findings.append(Finding(what, "wrong", f"{detail}: add the connector until they are settled"))
    names = workflow.declaration.get("connectors")
    if not is_declared and workflow.source == SCRIPT and isinstance(names, list):
        unknown = unknown_connectors(program, names)
        if unknown:
            detail = f"the script calls {named(unknown)}, which this program does not register"
            findings.append(Finding(what, "note", f"{detail}: another program of the org must"))
    return findings


def unknown_connectors(program: Rota, names: Collection[object]) -> list[str]:
    """Return connectors, or methods of connectors, that a program does not have."""
    methods = set(program.connectors.methods)
    known = methods | {method.partition(".")[0] for method in methods}
    return sorted(str(name) for name in names if name not in known)


def vanished(program: Rota, stored: Stored) -> list[Finding]:
    """Return other things that the program declared and does not any more."""
    alarms = {str(body["name"]) for body, _ in program.alarms}
    declared = {str(body["name"]) for body in program.schedules}
    findings = [
        Finding(f"schedule {name}", "wrong", "is no longer declared and will be paused: declare it, or delete it first")
        for name in sorted(stored.declared - declared)
    ]
    return findings + [
        Finding(f"alarm {name}", "wrong", "is no longer declared and will be deleted: declare it, or delete it first")
        for name in sorted(stored.alarms - alarms)
    ]


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def named(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + (
        f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    )
