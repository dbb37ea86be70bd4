"""SQL of tasks, their versions and cached results. Tasks that programs declare are mirrored here."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import delete, or_, select, update

from rota.core.errors import Conflict, NotFound
from rota.core.ids import new_id
from rota.core.states import State
from rota.db import tables
from rota.db.dialect import Tx, notify
from rota.db.paging import Record
from rota.db.statement import insert_new
from rota.db.tables import cached_results, schedules, task_versions, tasks
from rota.engine import jobs, orgs


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A row of `tasks`."""

    id: str
    org_id: str
    name: str
    task_type: str
    command: str
    parameters: Mapping[str, object] | None
    options: Mapping[str, object] | None
    schema: Record | None  # JSON Schema of the parameters
    enabled: bool
    source: str
    program: str | None
    version: str
    created_at: datetime
    updated_at: datetime


class CachedResult(NamedTuple):
    """The outcome of an earlier run."""

    outcome: object
    run_id: str


t, v, c = tasks.c, task_versions.c, cached_results.c

CODE = "code"
VERSIONED_FIELDS = ("name", "task_type", "command", "parameters", "options")  # a change of these is a new version


def get(tx: Tx, org_id: str, key: str) -> TaskRow:
    """Return a task of an org by its id or name. Raises NotFound."""
    stmt = select(tasks).where(t.org_id == org_id, or_(t.id == key, t.name == key))
    row = tx.execute(stmt.order_by(t.id != key)).first()  # ids first: the name of another task may look like an id
    if row is None:
        raise NotFound(f"task {key!r} not found")
    return TaskRow(**row._asdict())


def get_allowed(tx: Tx, org_id: str, key: str) -> TaskRow:
    """Return a task that is about to run. Raises Refused for a stored command of an org that may not run commands."""
    row = get(tx, org_id, key)
    if row.task_type == "shell" and row.source != CODE:
        orgs.check_shell(tx, org_id)
    return row


def shell_orgs(tx: Tx) -> set[str]:
    """Return the slugs of orgs that may run commands or have stored some; jobs of the latter end `skipped:
    no_shell`."""
    stored = select(t.org_id).where(t.task_type == "shell", t.source != CODE)
    org = tables.orgs.c
    return set(tx.execute(select(org.slug).where(or_(org.shell, org.id.in_(stored)))).scalars())


def insert(tx: Tx, org_id: str, fields: Record, now: datetime, source: str = "api") -> str:
    """Store a new task, named by its id if it has no name; returns the id. Raises Conflict if the name is in use."""
    task_id = fields["id"] or new_id()
    named = {**fields, "id": task_id, "name": fields["name"] or task_id}
    new_task_id = add(tx, org_id, named, now, source, next_version(tx, org_id, named["name"]))
    if new_task_id is None:
        raise Conflict(f"task {named['name']!r} already exists; choose another name")
    return new_task_id


def change(tx: Tx, old: TaskRow, fields: Record, now: datetime) -> str:
    """Update a task, with a new version if VERSIONED_FIELDS changed; returns its id. Raises Conflict for a name in
    use."""
    new = {name: getattr(old, name) for name in TaskRow.__slots__} | fields | {"id": old.id, "updated_at": now}
    same_name = select(t.id).where(t.org_id == old.org_id, t.name == new["name"], t.id != old.id)
    if tx.execute(same_name).first():
        raise Conflict(f"task {new['name']!r} already exists; choose another name")
    if "version" not in fields and any(new[name] != getattr(old, name) for name in VERSIONED_FIELDS):
        new["version"] = next_version(tx, old.org_id, new["name"])
    tx.execute(update(tasks).where(t.id == old.id).values(new))
    save_version(tx, new)
    notify(tx, "tasks")  # workers cache which tasks are disabled
    return old.id


def remove(tx: Tx, task: TaskRow) -> None:
    tx.execute(delete(tasks).where(t.id == task.id))


def remove_with_schedule(tx: Tx, org_id: str, target: str) -> None:
    """Delete a task with `delete_with_schedule` if it has no schedule left."""
    s = schedules.c
    try:
        task = get(tx, org_id, target)
    except NotFound:
        return
    if task.source == CODE or not (task.options or {}).get("delete_with_schedule"):
        return
    of_task = (s.org_id == org_id, s.kind == "task", s.target.in_([task.id, task.name]), s.deleted_at.is_(None))
    if tx.execute(select(s.id).where(*of_task).limit(1)).first() is None:
        remove(tx, task)


def sync(tx: Tx, org_id: str, declared: Sequence[Record], now: datetime) -> list[str]:
    """Store the tasks that a program declares; those of other programs stay. Returns the ids of changed tasks."""
    changed = []
    rows = {row.name: TaskRow(**row._asdict()) for row in tx.execute(select(tasks).where(t.org_id == org_id))}
    for task in declared:
        row = rows.get(task["name"])
        if row is None:
            task_id = add(tx, org_id, task, now, CODE, task["version"])
            changed += [task_id] if task_id is not None else []  # None: another process declared it at the same time
        elif any(getattr(row, name) != value for name, value in task.items()) or row.source != CODE:
            changed.append(change(tx, row, {**task, "source": CODE}, now))
    return changed


def reroute(tx: Tx, task: TaskRow, route: str) -> None:
    """Move the waiting jobs and the schedules of a task to another route."""
    targets = [task.id, task.name]
    s, j = schedules.c, tables.jobs.c
    of_task = (s.org_id == task.org_id, s.kind == "task", s.target.in_(targets), s.deleted_at.is_(None))
    tx.execute(update(schedules).where(*of_task).values(route=route))
    not_running = (j.org_id == task.org_id, j.kind == "task", j.target.in_(targets), j.state != State.RUNNING.value)
    tx.execute(update(tables.jobs).where(*not_running).values(route=route))
    jobs.resume_routes(tx, [route])
    notify(tx, "ready")
    notify(tx, "clocks")


def disabled(tx: Tx) -> set[tuple[str, str]]:
    """Return the disabled tasks as (org_id, name)."""
    return {(row.org_id, row.name) for row in tx.execute(select(t.org_id, t.name).where(~t.enabled))}


def orphans(tx: Tx, org_id: str, functions: Collection[str]) -> list[TaskRow]:
    """Return enabled tasks whose function is not in `functions`."""
    stmt = select(tasks).where(t.org_id == org_id, t.task_type == "python", t.enabled).order_by(t.id)
    return [TaskRow(**row._asdict()) for row in tx.execute(stmt) if row.command not in functions]


def declared_elsewhere(tx: Tx, org_id: str, program: str | None) -> set[str]:
    """Return the functions that other programs declared, running or not."""
    stmt = select(t.name).where(t.org_id == org_id, t.source == CODE, t.program.is_distinct_from(program))
    return set(tx.execute(stmt).scalars())


def of_program(tx: Tx, org_id: str, program: str) -> list[TaskRow]:
    """Return the enabled tasks that a program declared, by name."""
    stmt = select(tasks).where(t.org_id == org_id, t.source == CODE, t.program == program, t.enabled)
    return [TaskRow(**row._asdict()) for row in tx.execute(stmt.order_by(t.name))]


def add(tx: Tx, org_id: str, fields: Record, now: datetime, source: str, version: str) -> str | None:
    """Insert a task; returns None if the org has one of this name, also in a concurrent transaction."""
    row = {
        "id": new_id(),
        "org_id": org_id,
        "parameters": None,
        "options": None,
        "schema": None,
        "enabled": True,
        "source": source,
        "created_at": now,
        "updated_at": now,
        **fields,
        "version": version,
    }
    if not insert_new(tx, tasks, [row], ("id",)):
        return None
    save_version(tx, row)
    return str(row["id"])


# versions


def next_version(tx: Tx, org_id: str, name: str) -> str:
    """Return the next version number of a task name. Goes on after a deletion: runs refer to old versions."""
    stmt = select(v.version).where(v.org_id == org_id, v.name == name)
    versions = set(tx.execute(stmt).scalars())
    number = len(versions) + 1
    while str(number) in versions:
        number += 1
    return str(number)


def save_version(tx: Tx, row: Mapping[str, object]) -> None:
    """Store a snapshot of the task for runs of this version; a no-op if it is stored."""
    names = ("id", *VERSIONED_FIELDS, "created_at", "updated_at")
    version = {
        "org_id": row["org_id"],
        "name": row["name"],
        "version": row["version"],
        "snapshot": {name: row[name] for name in names},
        "created_at": row["updated_at"],
    }
    insert_new(tx, task_versions, [version], ("version",))


# cached results


def find_result(tx: Tx, org_id: str, key: str, now: datetime) -> CachedResult | None:
    """Return a cached result; None also if it names an artifact that was deleted with its run."""
    stmt = select(c.outcome, c.run_id).where(c.org_id == org_id, c.key == key, c.expires_at > now)
    row = tx.execute(stmt).one_or_none()
    if row is None or names_missing_artifact(tx, org_id, row.outcome):
        return None
    return CachedResult(row.outcome, row.run_id)


def names_missing_artifact(tx: Tx, org_id: str, outcome: object) -> bool:
    artifact_id = outcome.get("artifact_id") if isinstance(outcome, dict) else None
    if not isinstance(artifact_id, str):
        return False
    a, r = tables.artifacts.c, tables.runs.c
    saved = select(a.id).where(a.org_id == org_id, a.id == artifact_id)
    return tx.execute(saved.union_all(select(r.id).where(r.org_id == org_id, r.id == artifact_id))).first() is None


def cache_result(tx: Tx, org_id: str, key: str, outcome: object, run_id: str, until: datetime) -> None:
    tx.execute(delete(cached_results).where(c.org_id == org_id, c.key == key))
    row = {"org_id": org_id, "key": key, "outcome": outcome, "run_id": run_id, "expires_at": until}
    insert_new(tx, cached_results, [row], ("key",))


def prune_results(tx: Tx, now: datetime) -> int:
    return tx.execute(delete(cached_results).where(c.expires_at <= now)).rowcount
