"""What the handlers and topics of a workflow did lately, for its drawing. Reads only."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import func, select

from rota.core.states import Status
from rota.db import tables
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.kinds.workflows.store import events

x, runs, e, jobs = tables.workflow_runs.c, tables.runs.c, tables.events.c, tables.jobs.c

RUNS_READ = 300  # newest ones of a workflow


def of_handlers(tx: Tx, workflow_id: str) -> dict[str, Record]:
    """Return the last run of each handler with how many of the workflow's newest runs were its own, and how many of
    those failed."""
    columns = (
        x.id,
        x.handler_id,
        runs.status,
        runs.started_at,
        runs.finished_at,
        jobs.started_at.label("running_since"),
    )
    joined = tables.workflow_runs.outerjoin(tables.runs, runs.id == x.id).outerjoin(tables.jobs, jobs.run_id == x.id)
    stmt = select(*columns).select_from(joined).where(x.workflow_id == workflow_id)
    handlers: dict[str, Record] = {}
    for row in tx.execute(stmt.order_by(x.id.desc()).limit(RUNS_READ)):
        status = row.status or (Status.RUNNING.value if row.running_since else None)
        if status is None:
            continue
        handler = handlers.setdefault(
            row.handler_id,
            {"run_id": row.id, "status": status, "started_at": row.started_at or row.running_since,
             "finished_at": row.finished_at, "runs": 0, "failures": 0},
        )  # fmt: skip
        handler["runs"] += 1
        handler["failures"] += status in (Status.FAILED, Status.CRASHED)
    return handlers


def oldest_pending(tx: Tx, workflow_id: str, topics: Collection[str]) -> dict[str, datetime]:
    """Return when the oldest pending event of each topic was published."""
    stmt = select(e.topic, func.min(e.id, type_=e.id.type).label("id"))
    stmt = stmt.where(e.workflow_id == workflow_id, events.is_pending(), e.topic.in_(topics)).group_by(e.topic)
    ids = [row.id for row in tx.execute(stmt)]
    return {row.topic: row.created_at for row in tx.execute(select(e.topic, e.created_at).where(e.id.in_(ids)))}
