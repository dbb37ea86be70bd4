"""Freeze windows: their rows, those that cover a schedule, and the clocks that wait for the end of one.

A change counts `freeze_revision` of the org up. Firing reads no window of an org whose revision is 0, and refuses a
plan that was made under another revision.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import and_, delete, func, or_, select, update

from rota.core.errors import Conflict, NotFound
from rota.core.freeze import FreezeMode, FreezeWindow
from rota.core.model import Schedule
from rota.db.dialect import Tx, notify
from rota.db.statement import insert_new
from rota.db.tables import clocks, freeze_windows, orgs, schedules

f, k, s = freeze_windows.c, clocks.c, schedules.c

WindowsByOrg = Mapping[str, Sequence[FreezeWindow]]


def insert(tx: Tx, row: Mapping[str, object]) -> None:
    """Store a window. Raises Conflict for a name that exists."""
    if not insert_new(tx, freeze_windows, [dict(row)], ("id",)):
        raise Conflict(f"freeze window {row['name']!r} already exists; choose another name or edit that window")
    count_change(tx, str(row["org_id"]))


def row(tx: Tx, org_id: str, key: str, *, for_update: bool = False) -> Any:
    """Return the row of a window by its name or id. Raises NotFound."""
    stmt = select(freeze_windows).where(f.org_id == org_id, or_(f.name == key, f.id == key)).order_by(f.name != key)
    window = tx.execute(stmt.with_for_update() if for_update else stmt).first()
    if window is None:
        raise NotFound(f"freeze window {key!r} not found")
    return window


def change(tx: Tx, old: Any, values: Mapping[str, object], now: datetime) -> None:
    """Change a window, given by its locked row."""
    tx.execute(update(freeze_windows).where(f.id == old.id).values(**values, updated_at=now))
    count_change(tx, old.org_id)
    release(tx, old, now)


def remove(tx: Tx, org_id: str, key: str, now: datetime) -> str:
    """Delete a window: slots that it holds are due now. Returns its id. Raises NotFound."""
    old = row(tx, org_id, key, for_update=True)
    tx.execute(delete(freeze_windows).where(f.id == old.id))
    count_change(tx, org_id)
    release(tx, old, now)
    return str(old.id)


def release(tx: Tx, old: Any, now: datetime) -> None:
    """Let the clocks that wait for the end of a window be planned again: at once if they wait for its slots."""
    if old.mode != FreezeMode.HOLD or old.starts_at > now or old.ends_at <= now:
        return
    unpaused = or_(s.paused_at.is_(None), s.paused_until <= now)
    waiting = and_(k.org_id == old.org_id, k.next_slot < old.ends_at, k.next_run_at == old.ends_at)
    running = select(s.id).where(s.id == k.schedule_id, unpaused).exists()
    tx.execute(update(clocks).where(waiting, running).values(next_run_at=now))
    notify(tx, "clocks")


def count_change(tx: Tx, org_id: str) -> None:
    tx.execute(update(orgs).where(orgs.c.id == org_id).values(freeze_revision=orgs.c.freeze_revision + 1))


def between(tx: Tx, org_ids: Collection[str], since: datetime, until: datetime | None) -> WindowsByOrg:
    """Return the windows of orgs that end after `since` and begin by `until`, by org."""
    stmt = select(freeze_windows).where(f.org_id.in_(sorted(org_ids)), f.ends_at > since)
    stmt = stmt if until is None else stmt.where(f.starts_at <= until)
    by_org: dict[str, list[FreezeWindow]] = {}
    for row in tx.execute(stmt.order_by(f.starts_at, f.id)):
        by_org.setdefault(row.org_id, []).append(window_of(row))
    return by_org


def of_schedule(tx: Tx, schedule: Schedule, since: datetime) -> Sequence[FreezeWindow]:
    """Return the windows that cover a schedule and end after `since`."""
    return covering(schedule, between(tx, [schedule.org_id], since, None).get(schedule.org_id, ()))


def covering(schedule: Schedule, windows: Iterable[FreezeWindow]) -> Sequence[FreezeWindow]:
    """Return the windows that cover a schedule."""
    return tuple(window for window in windows if window.covers(schedule.kind, schedule.queue, schedule.tags))


def count(tx: Tx, org_id: str, now: datetime) -> int:
    """Return the number of windows of an org that have not ended."""
    stmt = select(func.count()).select_from(freeze_windows).where(f.org_id == org_id, f.ends_at > now)
    return tx.execute(stmt).scalar_one()


def window_of(row: Any) -> FreezeWindow:
    return FreezeWindow(
        id=row.id,
        org_id=row.org_id,
        name=row.name,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        mode=FreezeMode(row.mode),
        reason=row.reason,
        kind=row.kind,
        queue=row.queue,
        tag=row.tag,
    )
