"""Rows of catch-ups: hold slots for an approval, read and close them. A schedule has at most one that is open.

The caller has locked the clock of the schedule.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import delete, select, update

from rota.core.catch_up import AWAITING_APPROVAL, NOT_APPROVED, CatchUp
from rota.core.errors import NotFound
from rota.core.ids import new_id
from rota.core.model import Schedule
from rota.core.plan import FIRE_BATCH_SLOTS
from rota.core.states import Verdict
from rota.db.dialect import Tx
from rota.db.statement import insert_rows
from rota.db.tables import catch_ups, slots

c, t = catch_ups.c, slots.c


class CatchUpStatus(StrEnum):
    OPEN = "open"
    APPROVED = "approved"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"  # its schedule was deleted


class CatchUpSource(StrEnum):
    OUTAGE = "outage"
    RESUME = "resume"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True)
class CatchUpRow:
    """A row of `catch_ups`."""

    id: str
    org_id: str
    schedule_id: str
    source: CatchUpSource
    status: CatchUpStatus
    slots: Sequence[datetime]
    reprocess: bool
    estimate: dict[str, float | None]
    waits_for: Sequence[str]
    requested_by: str | None
    requested_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    comment: str | None
    gap: str | None
    slot_limit: int | None
    spread_seconds: int | None
    fired: int


def hold(
    tx: Tx,
    schedule: Schedule,
    held: CatchUp,
    source: CatchUpSource,
    now: datetime,
    *,
    by: str | None = None,
    reprocess: bool = False,
) -> str:
    """Store a catch-up as open, or add its slots to the open one of the schedule; returns its id. An open one has at
    most FIRE_BATCH_SLOTS slots: further ones can be backfilled."""
    estimate = {"run_seconds": held.run_seconds, "credits": held.credits, "usd": held.usd}
    old = open_of(tx, schedule.id)
    if old is not None:
        merged = sorted({*old.slots, *held.slots})[:FIRE_BATCH_SLOTS]
        values = {
            "slots": [slot.isoformat() for slot in merged],
            "estimate": {name: total(value, old.estimate[name]) for name, value in estimate.items()},
            "waits_for": [*old.waits_for, *(reason for reason in held.waits_for if reason not in old.waits_for)],
        }
        tx.execute(update(catch_ups).where(c.id == old.id).values(values))
        return old.id
    row = {
        "id": new_id(), "org_id": schedule.org_id, "schedule_id": schedule.id, "source": source.value,
        "status": CatchUpStatus.OPEN.value, "slots": [slot.isoformat() for slot in held.slots], "reprocess": reprocess,
        "estimate": estimate, "waits_for": list(held.waits_for), "requested_by": by, "requested_at": now, "fired": 0,
    }  # fmt: skip
    insert_rows(tx, catch_ups, [row])
    return str(row["id"])


def total(new: float | None, old: float | None) -> float | None:
    return old if new is None else new if old is None else round(old + new, 4)


def open_of(tx: Tx, schedule_id: str) -> CatchUpRow | None:
    """Return the open catch-up of a schedule."""
    row = tx.execute(select(catch_ups).where(c.schedule_id == schedule_id, c.status == "open")).one_or_none()
    return None if row is None else row_of(row._asdict())


def get(tx: Tx, org_id: str, catch_up_id: str) -> CatchUpRow:
    """Return a catch-up. Raises NotFound."""
    row = tx.execute(select(catch_ups).where(c.org_id == org_id, c.id == catch_up_id)).one_or_none()
    if row is None:
        raise NotFound(f"catch-up {catch_up_id!r} not found")
    return row_of(row._asdict())


def row_of(values: dict[str, Any]) -> CatchUpRow:
    typed = {
        "source": CatchUpSource(values["source"]),
        "status": CatchUpStatus(values["status"]),
        "slots": [datetime.fromisoformat(slot) for slot in values["slots"]],
    }
    return CatchUpRow(**{**values, **typed})


def close(tx: Tx, row: CatchUpRow, values: dict[str, object]) -> None:
    """Store the decision about an open catch-up. Its slots that did not fire are missed, as not approved."""
    tx.execute(update(catch_ups).where(c.id == row.id).values(values))
    waiting = (t.schedule_id == row.schedule_id, t.slot >= row.slots[0], t.verdict == Verdict.MISSED)
    tx.execute(update(slots).where(*waiting, t.reason == AWAITING_APPROVAL).values(reason=NOT_APPROVED))


def withdraw(tx: Tx, schedule_id: str, now: datetime) -> None:
    """Close the open catch-up of a schedule that is deleted."""
    row = open_of(tx, schedule_id)
    if row is not None:
        close(tx, row, {"status": CatchUpStatus.WITHDRAWN.value, "decided_at": now})


def refused_ranges(tx: Tx, schedule_id: str, since: datetime, until: datetime) -> list[tuple[datetime, datetime]]:
    """Return the ranges of slots that a decision left out, which overlap a range."""
    left_out = (t.verdict == Verdict.MISSED, t.reason == NOT_APPROVED)
    stmt = select(t.slot, t.last_slot).where(t.schedule_id == schedule_id, t.slot <= until, *left_out)
    return [(row.slot, row.last_slot) for row in tx.execute(stmt) if row.last_slot >= since]


def prune(tx: Tx, before: datetime, limit: int) -> int:
    """Delete catch-ups that were decided before `before`, up to `limit`; returns their number."""
    old = select(c.id).where(c.decided_at.is_not(None), c.decided_at < before).order_by(c.decided_at).limit(limit)
    ids = tx.execute(old).scalars().all()
    if ids:
        tx.execute(delete(catch_ups).where(c.id.in_(ids)))
    return len(ids)
