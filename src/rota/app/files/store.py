"""SQL of what was applied from files, and reads of whole resources for files."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, delete, select, update

from rota.core.model import DueSchedule
from rota.db.dialect import Tx
from rota.db.statement import insert_new
from rota.db.tables import applied_resources, calendars, clocks, grants, queues, schedules, server_instances, tasks
from rota.engine.schedule_rows import schedule_of
from rota.engine.schedules import LIVING

a = applied_resources.c
Digests = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Applied:
    """A resource as files described it last: a digest of each field."""

    digests: Digests
    applied_by: str | None
    applied_at: datetime


def applied(tx: Tx, org_id: str) -> dict[tuple[str, str], Applied]:
    """Return what was applied from files, by resource and name."""
    rows = tx.execute(select(applied_resources).where(a.org_id == org_id))
    return {(row.resource, row.name): Applied(row.digests, row.applied_by, row.applied_at) for row in rows}


def record_applied(
    tx: Tx, org_id: str, resource: str, name: str, digests: Digests, by: str | None, now: datetime
) -> None:
    """Record a resource as it was applied."""
    values = {"digests": dict(digests), "applied_by": by, "applied_at": now}
    key = {"org_id": org_id, "resource": resource, "name": name}
    if not insert_new(tx, applied_resources, [{**key, **values}], ("name",)):
        tx.execute(update(applied_resources).where(is_key(org_id, resource, name)).values(values))


def forget_applied(tx: Tx, org_id: str, resource: str, name: str) -> None:
    tx.execute(delete(applied_resources).where(is_key(org_id, resource, name)))


def is_key(org_id: str, resource: str, name: str) -> Any:
    return and_(a.org_id == org_id, a.resource == resource, a.name == name)


def all_schedules(tx: Tx, org_id: str) -> list[DueSchedule]:
    """Return the schedules of an org that are not deleted, by name."""
    stmt = select(schedules, clocks.c.fired, clocks.c.next_slot).where(schedules.c.org_id == org_id, LIVING)
    rows = tx.execute(stmt.join(clocks, clocks.c.schedule_id == schedules.c.id).order_by(schedules.c.name))
    return [DueSchedule(schedule_of(row, readable=False), row.next_slot, row.fired, None, None) for row in rows]


def calendar_rows(tx: Tx, org_id: str) -> list[Any]:
    return list(tx.execute(select(calendars).where(calendars.c.org_id == org_id).order_by(calendars.c.name)))


def queue_rows(tx: Tx, org_id: str) -> list[Any]:
    return list(tx.execute(select(queues).where(queues.c.org_id == org_id).order_by(queues.c.name)))


def grant_rows(tx: Tx, org_id: str, now: datetime) -> list[Any]:
    """Return the grants of an org that hold, oldest first."""
    g = grants.c
    holds = (g.org_id == org_id, g.revoked_at.is_(None), (g.expires_at.is_(None)) | (g.expires_at > now))
    return list(tx.execute(select(grants).where(*holds).order_by(g.id)))


def server_names(tx: Tx, org_id: str) -> dict[str, str]:
    """Return the names of server instances by id, without names that several have."""
    v = server_instances.c
    rows = tx.execute(select(v.id, v.name).where(v.org_id == org_id)).all()
    counts = Counter(row.name for row in rows)
    return {row.id: row.name for row in rows if counts[row.name] == 1}


def task_names(tx: Tx, org_id: str) -> dict[str, str]:
    """Return the names of tasks by id."""
    stmt = select(tasks.c.id, tasks.c.name).where(tasks.c.org_id == org_id)
    return {row.id: row.name for row in tx.execute(stmt)}
