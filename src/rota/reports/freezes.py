"""Freeze windows for people: lists, one with the schedules that it covers, and those that concern a schedule."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select

from rota.core.errors import NotFound
from rota.core.freeze import FreezeWindow
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.db.tables import freeze_windows, schedule_tags, schedules, users
from rota.engine import freezes
from rota.engine.freezes import window_of
from rota.engine.schedules import LIVING

f, s = freeze_windows.c, schedules.c
SCHEDULES_SHOWN = 100
WINDOWS_SHOWN = 500
ANNOUNCED_AHEAD = timedelta(days=14)  # windows that begin so soon are on the start page


def list_windows(tx: Tx, org_id: str, now: datetime) -> list[Record]:
    """Return the newest windows of an org, by their start."""
    stmt = windows_with_names().where(f.org_id == org_id).order_by(f.starts_at.desc(), f.id.desc())
    return [summary(row, now) for row in tx.execute(stmt.limit(WINDOWS_SHOWN))]


def announced(tx: Tx, org_id: str, now: datetime) -> list[Record]:
    """Return the windows that are in effect or begin soon, earliest first."""
    near = (f.org_id == org_id, f.ends_at > now, f.starts_at <= now + ANNOUNCED_AHEAD)
    return [summary(row, now) for row in tx.execute(windows_with_names().where(*near).order_by(f.starts_at, f.id))]


def window(tx: Tx, org_id: str, key: str, now: datetime) -> Record:
    """Return a window by its name or id, with the schedules that it covers. Raises NotFound."""
    window_id = freezes.row(tx, org_id, key).id
    row = tx.execute(windows_with_names().where(f.id == window_id)).one_or_none()
    if row is None:
        raise NotFound(f"freeze window {key!r} not found")
    stmt = select(s.name).where(s.org_id == org_id, LIVING)
    for column, value in ((s.kind, row.kind), (s.queue, row.queue)):
        stmt = stmt if value is None else stmt.where(column == value)
    if row.tag is not None:
        tagged = schedule_tags.c
        of_tag = (tagged.org_id == org_id, tagged.tag == row.tag, tagged.schedule_id == s.id)
        stmt = stmt.where(select(tagged.name).where(*of_tag).exists())
    names = list(tx.execute(stmt.order_by(s.name).limit(SCHEDULES_SHOWN)).scalars())
    return {**summary(row, now), "schedules": names}


def change_of(tx: Tx, org_id: str, key: str) -> Record:
    """Return a window as the audit log records it. Raises NotFound."""
    row = freezes.row(tx, org_id, key)
    fields = ("id", "name", "starts_at", "ends_at", "mode", "reason", "kind", "queue", "tag")
    return {field: getattr(row, field) for field in fields}


def windows_ahead(
    tx: Tx, org_id: str, since: datetime, kind: str | None, queue: str | None, tags: list[str]
) -> list[FreezeWindow]:
    """Return the windows after `since` for schedules of this kind and queue with these tags."""
    windows = freezes.between(tx, [org_id], since, None).get(org_id, ())
    return [freeze for freeze in windows if freeze.covers(kind, queue, tags)]


def windows_with_names() -> Any:
    names = freeze_windows.outerjoin(users, users.c.id == f.created_by)
    return select(freeze_windows, users.c.name.label("created_by_name")).select_from(names)


def summary(row: Any, now: datetime) -> Record:
    freeze = window_of(row)
    return {
        "id": row.id,
        "name": row.name,
        "starts_at": row.starts_at,
        "ends_at": row.ends_at,
        "mode": row.mode,
        "reason": row.reason,
        "kind": row.kind,
        "queue": row.queue,
        "tag": row.tag,
        "state": "ended" if row.ends_at <= now else "active" if row.starts_at <= now else "upcoming",
        "words": f"{freeze.words}, for {freeze.scope}",
        "created_by": row.created_by,
        "created_by_name": row.created_by_name,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }
