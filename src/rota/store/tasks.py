"""Task rows: what can run, as the API knows it. Functions and commands declared in code are mirrored here."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, or_, select, update

from rota.core.errors import Conflict, NotFound
from rota.core.model import new_id
from rota.store.dialect import Tx, insert_new
from rota.store.tables import tasks

t = tasks.c
CODE = "code"


def get(tx: Tx, org_id: str, key: str) -> Any:
    """A task of an org by its id or name."""
    found = tx.execute(select(tasks).where(t.org_id == org_id, or_(t.id == key, t.name == key))).first()
    if found is None:
        raise NotFound(f"task {key}: there is none")
    return found


def insert(tx: Tx, org_id: str, name: str, task_type: str, command: str, source: str, now: datetime) -> str:
    """Store a new task; returns its id."""
    made = add(tx, org_id, name, task_type, command, source, now)
    if made is None:
        raise Conflict(f"task {name}: there is already one with this name; choose another")
    return made


def add(tx: Tx, org_id: str, name: str, task_type: str, command: str, source: str, now: datetime) -> str | None:
    """Store a task unless there is one of its name, also one that another process is about to store."""
    row = {
        "id": new_id(), "org_id": org_id, "name": name, "task_type": task_type, "command": command, "enabled": True,
        "source": source, "created_at": now, "updated_at": now,
    }  # fmt: skip
    return str(row["id"]) if insert_new(tx, tasks, [row], ("id",)) else None


def remove(tx: Tx, org_id: str, key: str) -> None:
    tx.execute(delete(tasks).where(t.id == get(tx, org_id, key).id))


def sync(tx: Tx, org_id: str, declared: Sequence[tuple[str, str, str]], now: datetime) -> list[str]:
    """Mirror what code declares: (name, type, command). What another program declared stays. Returns ids of changes."""
    changed = []
    known = {row.name: row for row in tx.execute(select(tasks).where(t.org_id == org_id))}
    for name, task_type, command in declared:
        row = known.get(name)
        if row is None:
            made = add(tx, org_id, name, task_type, command, CODE, now)
            changed += [made] if made is not None else []  # else another process that declares the same was quicker
        elif (row.task_type, row.command, row.source) != (task_type, command, CODE):
            values = {"task_type": task_type, "command": command, "source": CODE, "updated_at": now}
            tx.execute(update(tasks).where(t.id == row.id).values(values))
            changed.append(row.id)
    return changed
