"""The status of an org and its installation, for `rota status`. Every list is short, every query bounded."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import case, func, select

from rota.core.states import Condition
from rota.db import schema
from rota.db.dialect import Tx
from rota.db.paging import PAGE_ROWS_MAX, Record
from rota.db.tables import schedules
from rota.engine import pauses
from rota.reports import diagnostics, failing, overview
from rota.reports.installation import list_queues, list_workers
from rota.reports.runs import with_names
from rota.reports.slots import missed

DAY = timedelta(hours=24)
LIST_ROWS = 10

s = schedules.c


def status(
    tx: Tx, org_id: str, kinds: Sequence[str], now: datetime, *, grace: timedelta, sees_org: str | None
) -> Record:
    """Return workers, queues, schedules, what needs attention, failing schedules and the next due ones. Schedules are
    late that did not fire within `grace` of their due time. Without `sees_org`, workers have the jobs of all orgs."""
    alive = list_workers(tx, sees_org, limit=PAGE_ROWS_MAX, state="alive")[0]
    late = overview.late(tx, org_id, kinds, now - grace)
    failed = failing.failing(tx, org_id, now)
    return {
        "ok": bool(alive) and all(row["acknowledged"] for row in failed),
        "database": tx.dialect.name,
        "database_version": diagnostics.version(tx),
        "schema_revision": schema.revision_of(tx),
        "workers": alive,
        "running": sum(worker["running"] for worker in alive),
        "lateness_seconds": quantile(overview.lateness(tx, org_id), 0.95),
        "queues": list_queues(tx, org_id),
        "schedules": {**schedule_counts(tx, org_id), "late": len(late)},
        "attention": attention(tx, org_id, late, now),
        "failing": failed,
        "due": [
            {"schedule_id": row["id"], "schedule": row["name"], "target": row["target"], "due_at": row["next_run_at"]}
            for row in overview.due(tx, org_id, kinds)
        ],
        "freeze": pauses.freeze_of(tx, org_id, now),
    }


def schedule_counts(tx: Tx, org_id: str) -> Record:
    """Return how many schedules are enabled, disabled, paused and broken; a broken or paused one may be enabled."""
    conditions = {
        "enabled": s.enabled,
        "disabled": ~s.enabled,
        "paused": s.paused_at.is_not(None),
        "broken": s.condition == Condition.BROKEN,
    }
    counted = (func.coalesce(func.sum(case((when, 1), else_=0)), 0).label(name) for name, when in conditions.items())
    row = tx.execute(select(*counted).where(s.org_id == org_id, s.deleted_at.is_(None))).one()
    return {name: int(getattr(row, name)) for name in conditions}


def attention(tx: Tx, org_id: str, late: Sequence[Record], now: datetime) -> list[Record]:
    """Return what a person should look at: broken and late schedules, parked jobs, slots missed in the last day."""
    rows = [("broken", row["name"], row["condition_reason"] or "", None) for row in overview.broken(tx, org_id)]
    rows += [("late", row["name"], "did not fire", row["next_run_at"]) for row in late]
    rows += [
        ("parked", row["schedule"] or row.get("target_name") or row["target"], row["reason"] or "", row["queued_at"])
        for row in with_names(tx, overview.parked(tx, org_id))
    ]
    rows += [
        ("missed", row["name"], f"{row['count'] or 'many'} slots", row["slot"])
        for row in missed(tx, org_id, now - DAY, LIST_ROWS)
    ]
    return [{"what": what, "name": name, "detail": detail, "since": since} for what, name, detail, since in rows]


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest of the values that is not exceeded by this share of them."""
    return sorted(values)[max(0, -(-int(share * 100) * len(values) // 100) - 1)] if values else None
