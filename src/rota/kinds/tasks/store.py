"""Task rows: what can run, as the API knows it. Functions and commands declared in code are mirrored here."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, or_, select, update

from rota.core.errors import Conflict, NotFound
from rota.core.ids import new_id
from rota.core.states import State
from rota.db import tables
from rota.db.dialect import Tx, insert_new, notify
from rota.db.tables import cached_results, jobs, schedules, task_versions, tasks
from rota.engine import jobs as queue
from rota.engine import orgs

t, v, c = tasks.c, task_versions.c, cached_results.c

CODE = "code"
WHAT_RUNS = ("name", "task_type", "command", "parameters", "options")  # another one of these is another version


def get(tx: Tx, org_id: str, key: str) -> Any:
    """A task of an org by its id or name."""
    mine = select(tasks).where(t.org_id == org_id, or_(t.id == key, t.name == key))
    found = tx.execute(mine.order_by(t.id != key)).first()  # another's name may look like its id
    if found is None:
        raise NotFound(f"task {key!r} not found")
    return found


def get_allowed(tx: Tx, org_id: str, key: str) -> Any:
    """A task that is about to run. Raises Refused for a stored command of an org that may not run commands."""
    row = get(tx, org_id, key)
    if row.task_type == "shell" and row.source != CODE:
        orgs.check_shell(tx, org_id)
    return row


def shell_orgs(tx: Tx) -> set[str]:
    """The slugs of orgs that may run commands, or have stored some: jobs of those end as `skipped: no_shell`."""
    stored = select(t.org_id).where(t.task_type == "shell", t.source != CODE)
    org = tables.orgs.c
    return set(tx.execute(select(org.slug).where(or_(org.shell, org.id.in_(stored)))).scalars())


def insert(tx: Tx, org_id: str, fields: Mapping[str, Any], now: datetime, source: str = "api") -> str:
    """Store a new task; one without a name goes by its id. Returns the id."""
    task_id = fields["id"] or new_id()
    named = {**fields, "id": task_id, "name": fields["name"] or task_id}
    made = add(tx, org_id, named, now, source, next_version(tx, org_id, named["name"]))
    if made is None:
        raise Conflict(f"task {named['name']!r} already exists; choose another name")
    return made


def change(tx: Tx, old: Any, fields: Mapping[str, Any], now: datetime) -> str:
    """Write a task anew; where it runs something else from now on, that is a new version. Returns its id."""
    new = {**old._mapping, **fields, "id": old.id, "updated_at": now}
    taken = select(t.id).where(t.org_id == old.org_id, t.name == new["name"], t.id != old.id)
    if tx.execute(taken).first():
        raise Conflict(f"task {new['name']!r} already exists; choose another name")
    if "version" not in fields and any(new[name] != getattr(old, name) for name in WHAT_RUNS):
        new["version"] = next_version(tx, old.org_id, new["name"])
    tx.execute(update(tasks).where(t.id == old.id).values(new))
    remember(tx, new)
    notify(tx, "tasks")  # who keeps in mind what is disabled must look again
    return str(old.id)


def remove(tx: Tx, task: Any) -> None:
    tx.execute(delete(tasks).where(t.id == task.id))


def remove_with_schedule(tx: Tx, org_id: str, target: str) -> None:
    """Delete a task that was stored for its schedules, if none of them is left."""
    s = schedules.c
    try:
        task = get(tx, org_id, target)
    except NotFound:
        return
    if task.source == CODE or not (task.options or {}).get("delete_with_schedule"):
        return
    left = (s.org_id == org_id, s.kind == "task", s.target.in_([task.id, task.name]), s.deleted_at.is_(None))
    if tx.execute(select(s.id).where(*left).limit(1)).first() is None:
        remove(tx, task)


def sync(tx: Tx, org_id: str, declared: Sequence[Mapping[str, Any]], now: datetime) -> list[str]:
    """Mirror what code declares. What another program declared stays. Returns ids of changes."""
    changed = []
    known = {row.name: row for row in tx.execute(select(tasks).where(t.org_id == org_id))}
    for one in declared:
        row = known.get(one["name"])
        if row is None:
            made = add(tx, org_id, one, now, CODE, one["version"])
            changed += [made] if made is not None else []  # else another process that declares the same was quicker
        elif any(getattr(row, name) != value for name, value in one.items()) or row.source != CODE:
            changed.append(change(tx, row, {**one, "source": CODE}, now))
    return changed


def reroute(tx: Tx, task: Any, route: str) -> None:
    """Let other workers take the jobs of a task that wait, and those of its slots to come."""
    targets = [task.id, task.name]
    s, j = schedules.c, jobs.c
    of_task = (s.org_id == task.org_id, s.kind == "task", s.target.in_(targets), s.deleted_at.is_(None))
    tx.execute(update(schedules).where(*of_task).values(route=route))
    waiting = (j.org_id == task.org_id, j.kind == "task", j.target.in_(targets), j.state != State.RUNNING.value)
    tx.execute(update(jobs).where(*waiting).values(route=route))
    queue.route(tx, [route])
    notify(tx, "ready")
    notify(tx, "clocks")


def disabled(tx: Tx) -> set[tuple[str, str]]:
    """The tasks that may not run: (org, name)."""
    return {(row.org_id, row.name) for row in tx.execute(select(t.org_id, t.name).where(~t.enabled))}


def orphans(tx: Tx, org_id: str, functions: Collection[str]) -> list[Any]:
    """Enabled tasks whose function is not among these."""
    mine = select(tasks).where(t.org_id == org_id, t.task_type == "python", t.enabled).order_by(t.id)
    return [row for row in tx.execute(mine) if row.command not in functions]


def declared_elsewhere(tx: Tx, org_id: str, program: str | None) -> set[str]:
    """Functions that another program declared, whether it is up or not."""
    stmt = select(t.name).where(t.org_id == org_id, t.source == CODE, t.program.is_distinct_from(program))
    return set(tx.execute(stmt).scalars())


def add(tx: Tx, org_id: str, fields: Mapping[str, Any], now: datetime, source: str, version: str) -> str | None:
    """Store a task unless there is one of its name, also one that another process is about to store."""
    row = {
        "id": new_id(), "org_id": org_id, "parameters": None, "options": None, "schema": None,
        "enabled": True, "source": source, "created_at": now, "updated_at": now, **fields, "version": version,
    }  # fmt: skip
    if not insert_new(tx, tasks, [row], ("id",)):
        return None
    remember(tx, row)
    return str(row["id"])


# versions


def next_version(tx: Tx, org_id: str, name: str) -> str:
    """The number of the next version of what goes by this name, also after a deletion: history must not be mistaken."""
    mine = select(v.version).where(v.org_id == org_id, v.name == name)
    known = set(tx.execute(mine).scalars())
    number = len(known) + 1
    while str(number) in known:
        number += 1
    return str(number)


def remember(tx: Tx, row: Mapping[str, Any]) -> None:
    """Keep what runs of this version ran."""
    shown = ("id", *WHAT_RUNS, "created_at", "updated_at")
    version = {
        "org_id": row["org_id"], "name": row["name"], "version": row["version"],
        "snapshot": {name: row[name] for name in shown}, "created_at": row["updated_at"],
    }  # fmt: skip
    insert_new(tx, task_versions, [version], ("version",))


# results that may be used again


def find_result(tx: Tx, org_id: str, key: str, now: datetime) -> Any | None:
    stmt = select(c.outcome, c.run_id).where(c.org_id == org_id, c.key == key, c.expires_at > now)
    return tx.execute(stmt).one_or_none()


def keep_result(tx: Tx, org_id: str, key: str, outcome: Any, run_id: str, until: datetime) -> None:
    tx.execute(delete(cached_results).where(c.org_id == org_id, c.key == key))
    row = {"org_id": org_id, "key": key, "outcome": outcome, "run_id": run_id, "expires_at": until}
    insert_new(tx, cached_results, [row], ("key",))


def prune_results(tx: Tx, now: datetime) -> int:
    return tx.execute(delete(cached_results).where(c.expires_at <= now)).rowcount
