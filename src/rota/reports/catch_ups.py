"""Catch-ups for people: those that wait for an approval and those decided, and what a resume would catch up."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, literal_column, select

from rota.core.catch_up import CatchUp, CatchUpChoice, CatchUpLimits, lowered, plan_catch_up
from rota.core.plan import plan
from rota.core.policy import Misfire
from rota.db.dialect import Tx
from rota.db.paging import Page, Record, page_by
from rota.db.tables import catch_ups, schedules, users
from rota.engine import freezes, usual_runs
from rota.engine import schedules as schedule_rows
from rota.engine.catch_ups import get

c, s = catch_ups.c, schedules.c


def list_catch_ups(
    tx: Tx,
    org_id: str,
    *,
    limit: int,
    cursor: str | None = None,
    status: str | None = None,
    schedule: str | None = None,
) -> Page:
    """Return a page of the catch-ups of an org, the newest first; of one schedule by its id or name."""
    stmt = with_names().where(c.org_id == org_id)
    if status is not None:
        stmt = stmt.where(c.status == status)
    if schedule is not None:
        stmt = stmt.where((s.id == schedule) | (s.name == schedule))
    return page_by(tx, stmt, c.id, limit, cursor, summary, descending=True)


def open_catch_ups(tx: Tx, org_id: str, limit: int) -> list[Record]:
    """Return catch-ups that wait for an approval, oldest first."""
    waiting = with_names().where(c.org_id == org_id, c.status == literal_column("'open'")).order_by(c.id)
    return [summary(row) for row in tx.execute(waiting.limit(limit))]


def open_of_schedule(tx: Tx, schedule_id: str) -> Record | None:
    """Return the catch-up of a schedule that waits for an approval."""
    row = tx.execute(with_names().where(c.schedule_id == schedule_id, c.status == literal_column("'open'"))).first()
    return None if row is None else summary(row)


def catch_up(tx: Tx, org_id: str, catch_up_id: str) -> Record:
    """Return a catch-up with its slots. Raises NotFound."""
    held = get(tx, org_id, catch_up_id)
    row = tx.execute(with_names().where(c.id == held.id)).one()
    return {**summary(row), "slots": held.slots}


def summary_of(tx: Tx, org_id: str, catch_up_id: str) -> Record:
    """Return a catch-up without its slots. Raises NotFound."""
    return summary(tx.execute(with_names().where(c.id == get(tx, org_id, catch_up_id).id)).one())


def change_of(tx: Tx, org_id: str, catch_up_id: str) -> Record:
    """Return a catch-up as the audit log records it. Raises NotFound."""
    fields = ("id", "schedule", "status", "count", "gap", "limit", "spread_seconds", "fired", "comment")
    shown = catch_up(tx, org_id, catch_up_id)
    return {field: shown[field] for field in fields}


def options(
    tx: Tx, org_id: str, key: str, choice: CatchUpChoice, limits: CatchUpLimits, now: datetime
) -> Mapping[str, Any]:
    """Return what none, the latest or all of the slots that have passed since the clock of a schedule would take and
    cost if they were caught up now, as by a resume. Raises NotFound."""
    due = schedule_rows.read_with_clock(tx, org_id, key)
    schedule = due.schedule
    if due.next_slot is not None:
        due = replace(due, windows=freezes.of_schedule(tx, schedule, due.next_slot))
    usual = usual_runs.usual_run(tx, org_id, schedule.id)
    limits = lowered(limits, schedule.catch_up_approval_slots)
    spread_of_all = choice.with_default_spread(schedule.catch_up_spread).spread
    plans = {}
    for gap in Misfire:
        most = choice.limit or schedule.catch_up_limit
        unpaused = replace(schedule, paused_at=None, paused_until=None, misfire=gap, catch_up_limit=most)
        fires = plan(replace(due, schedule=unpaused), now, timedelta(0)).fires if due.next_slot else ()
        spread = spread_of_all if gap is Misfire.ALL else timedelta(0)
        plans[gap.value] = plan_catch_up(
            [fire.slot for fire in fires], CatchUpChoice(spread=spread), usual, limits, now
        )
    return {"schedule": schedule.name, **{gap: plan_record(plans[gap]) for gap in plans}}


def plan_record(planned: CatchUp) -> Record:
    """Return the plan of a catch-up as it is answered."""
    return {
        "count": len(planned.slots),
        "first_slot": planned.slots[0] if planned.slots else None,
        "last_slot": planned.slots[-1] if planned.slots else None,
        "run_seconds": planned.run_seconds,
        "credits": planned.credits,
        "usd": planned.usd,
        "ends_at": planned.ends_at,
        "waits_for": list(planned.waits_for),
    }


def with_names() -> Any:
    names = catch_ups.join(schedules, s.id == c.schedule_id).outerjoin(users, users.c.id == c.requested_by)
    return select(catch_ups, s.name.label("schedule"), users.c.name.label("requested_by_name")).select_from(names)


def summary(row: Row[Any]) -> Record:
    slots = [datetime.fromisoformat(slot) for slot in row.slots]
    return {
        "id": row.id,
        "schedule_id": row.schedule_id,
        "schedule": row.schedule,
        "source": row.source,
        "status": row.status,
        "count": len(slots),
        "first_slot": slots[0],
        "last_slot": slots[-1],
        "reprocess": row.reprocess,
        **row.estimate,
        "waits_for": row.waits_for,
        "requested_by": row.requested_by,
        "requested_by_name": row.requested_by_name,
        "requested_at": row.requested_at,
        "decided_by": row.decided_by,
        "decided_at": row.decided_at,
        "comment": row.comment,
        "gap": row.gap,
        "limit": row.slot_limit,
        "spread_seconds": row.spread_seconds,
        "fired": row.fired,
    }
