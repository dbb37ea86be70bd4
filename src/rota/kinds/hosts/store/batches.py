"""Batches: one job on many servers. Each member is a host job of its own; what became of it follows from its runs."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select, update

from rota.core.errors import NotFound
from rota.core.states import State, Status
from rota.db.dialect import Tx, insert_new
from rota.db.paging import Page, Record, dict_of, page_by
from rota.db.tables import batch_members, batches, jobs, runs

b, m, j, r = batches.c, batch_members.c, jobs.c, runs.c
COUNTERS = ("total", "waiting", "running", "succeeded", "failed", "canceled", "skipped")
COUNTED = {Status.SUCCESS: "succeeded", Status.CANCELED: "canceled", Status.SKIPPED: "skipped"}


def open_batch(tx: Tx, batch: Record, members: Sequence[Any]) -> None:
    """Write a batch down with the servers that it is for: those that match now. Again it changes nothing."""
    if insert_new(tx, batches, [batch], ("id",)):
        rows = [{"batch_id": batch["id"], "server_instance_id": one.id, "name": one.name} for one in members]
        insert_new(tx, batch_members, rows, ("batch_id",))


def standing(tx: Tx, batch_id: str) -> list[Record]:
    """The members with their jobs and where those stand: `waiting`, `running`, or what they ended as."""
    rows = list(tx.execute(select(batch_members).where(m.batch_id == batch_id).order_by(m.name, m.server_instance_id)))
    ids = [row.job_id for row in rows if row.job_id and row.status is None]
    living = {row.id: row.state for row in tx.execute(select(j.id, j.state).where(j.id.in_(ids)))}
    ended: dict[str, str] = {}
    over = select(r.job_id, r.status).where(r.job_id.in_(set(ids) - set(living)), r.lost_fence == 0)
    over = over.order_by(r.job_id, r.attempt)
    ended.update((row.job_id, row.status) for row in tx.execute(over))
    found = []
    for row in rows:
        status = row.status or ended.get(row.job_id)
        if status is None:
            status = "running" if living.get(row.job_id) == State.RUNNING else "waiting"
        told = {"server_instance_id": row.server_instance_id, "name": row.name, "job_id": row.job_id, "status": status}
        found.append(told)
    return found


def counted(members: Sequence[Record]) -> dict[str, int]:
    counts = dict.fromkeys(COUNTERS, 0) | {"total": len(members)}
    for one in members:
        known = one["status"] in COUNTERS
        counts[one["status"] if known else COUNTED.get(one["status"], "failed")] += 1
    return counts


def note(tx: Tx, batch_id: str, server_id: str, **facts: str) -> None:
    """A member has its `job_id`, or its `status` for good."""
    mine = (m.batch_id == batch_id, m.server_instance_id == server_id)
    tx.execute(update(batch_members).where(*mine).values(facts))


def close(tx: Tx, batch_id: str, status: str, members: Sequence[Record], now: datetime) -> None:
    """Keep how it ended: retention takes the runs one day."""
    for one in members:
        if one["status"] not in ("waiting", "running"):
            note(tx, batch_id, one["server_instance_id"], status=one["status"])
    tx.execute(update(batches).where(b.id == batch_id).values(status=status, finished_at=now))


def record(tx: Tx, row: Any) -> Record:
    found = dict_of(row)
    del found["org_id"]
    seen_to = tx.execute(select(j.id).where(j.id == row.id)).first() is not None
    if row.finished_at is None and not seen_to:  # canceled before anything of it began
        found["status"] = "canceled"
    return {**found, **counted(standing(tx, row.id))}


def list_batches(tx: Tx, org_id: str, *, limit: int, cursor: str | None) -> Page:
    stmt = select(batches).where(b.org_id == org_id)
    return page_by(tx, stmt, b.id, limit, cursor, lambda row: record(tx, row), descending=True)


def batch(tx: Tx, org_id: str, batch_id: str) -> Record:
    found = tx.execute(select(batches).where(b.id == batch_id, b.org_id == org_id)).one_or_none()
    if found is None:
        raise NotFound(f"batch {batch_id!r} not found")
    return {**record(tx, found), "members": standing(tx, batch_id)}
