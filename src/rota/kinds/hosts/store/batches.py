"""SQL of batches: one job on several servers. Each member has a host job of its own, whose runs give its status."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select, update

from rota.core.errors import NotFound
from rota.core.states import State, Status
from rota.db.dialect import Tx
from rota.db.paging import Page, Record, dict_of, page_by
from rota.db.statement import insert_new
from rota.db.tables import batch_members, batches, jobs, runs
from rota.kinds.hosts.store.records import ServerRow

b, m, j, r = batches.c, batch_members.c, jobs.c, runs.c
COUNTERS = ("total", "waiting", "running", "succeeded", "failed", "canceled", "skipped")
COUNTER_OF_STATUS = {Status.SUCCESS: "succeeded", Status.CANCELED: "canceled", Status.SKIPPED: "skipped"}


def open_batch(tx: Tx, batch: Record, members: Sequence[ServerRow]) -> None:
    """Store a batch with the servers that match now as its members; idempotent."""
    if insert_new(tx, batches, [batch], ("id",)):
        rows = [{"batch_id": batch["id"], "server_instance_id": server.id, "name": server.name} for server in members]
        insert_new(tx, batch_members, rows, ("batch_id",))


def members_of(tx: Tx, batch_id: str) -> list[Record]:
    """Return the members with their jobs and statuses: `waiting`, `running`, or the final one."""
    rows = list(tx.execute(select(batch_members).where(m.batch_id == batch_id).order_by(m.name, m.server_instance_id)))
    ids = [row.job_id for row in rows if row.job_id and row.status is None]
    living = {row.id: row.state for row in tx.execute(select(j.id, j.state).where(j.id.in_(ids)))}
    ended: dict[str, str] = {}
    last_runs = select(r.job_id, r.status).where(r.job_id.in_(set(ids) - set(living)), r.lost_fence == 0)
    last_runs = last_runs.order_by(r.job_id, r.attempt)
    ended.update((row.job_id, row.status) for row in tx.execute(last_runs))
    members = []
    for row in rows:
        status = row.status or ended.get(row.job_id)
        if status is None:
            status = "running" if living.get(row.job_id) == State.RUNNING else "waiting"
        member = {
            "server_instance_id": row.server_instance_id,
            "name": row.name,
            "job_id": row.job_id,
            "status": status,
        }
        members.append(member)
    return members


def count_statuses(members: Sequence[Record]) -> dict[str, int]:
    """Return the counters of a batch."""
    counts = dict.fromkeys(COUNTERS, 0) | {"total": len(members)}
    for member in members:
        status = member["status"]
        counts[status if status in COUNTERS else COUNTER_OF_STATUS.get(status, "failed")] += 1
    return counts


def update_member(tx: Tx, batch_id: str, server_id: str, **fields: str) -> None:
    """Set the `job_id` or the final `status` of a member."""
    member = (m.batch_id == batch_id, m.server_instance_id == server_id)
    tx.execute(update(batch_members).where(*member).values(fields))


def close(tx: Tx, batch_id: str, status: str, members: Sequence[Record], now: datetime) -> None:
    """Store the final statuses: retention deletes the runs later."""
    for member in members:
        if member["status"] not in ("waiting", "running"):
            update_member(tx, batch_id, member["server_instance_id"], status=member["status"])
    tx.execute(update(batches).where(b.id == batch_id).values(status=status, finished_at=now))


def record(tx: Tx, fields: Record) -> Record:
    del fields["org_id"]
    has_job = tx.execute(select(j.id).where(j.id == fields["id"])).first() is not None
    if fields["finished_at"] is None and not has_job:  # canceled before it began
        fields["status"] = "canceled"
    return {**fields, **count_statuses(members_of(tx, fields["id"]))}


def list_batches(tx: Tx, org_id: str, *, limit: int, cursor: str | None) -> Page:
    stmt = select(batches).where(b.org_id == org_id)
    return page_by(tx, stmt, b.id, limit, cursor, lambda row: record(tx, dict_of(row)), descending=True)


def batch(tx: Tx, org_id: str, batch_id: str) -> Record:
    row = tx.execute(select(batches).where(b.id == batch_id, b.org_id == org_id)).one_or_none()
    if row is None:
        raise NotFound(f"batch {batch_id!r} not found")
    return {**record(tx, dict_of(row)), "members": members_of(tx, batch_id)}
