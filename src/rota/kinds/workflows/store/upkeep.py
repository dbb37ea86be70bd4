"""Maintenance of workflows: producers whose schedule is gone, consumers that miss pending events, orphaned
reservations, old events and runs."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import ColumnElement, and_, delete, func, literal, or_, select

from rota.core.states import Phase
from rota.db import tables
from rota.db.dialect import Tx, is_listed
from rota.engine import schedules, serial_keys
from rota.kinds.workflows.rules import EventStatus, HandlerKind, serial_key_of
from rota.kinds.workflows.store import events, workflows
from rota.kinds.workflows.store.consumer_jobs import ensure_consumer_job
from rota.kinds.workflows.store.deployment import producer_schedule

w, h, e, r = tables.workflows.c, tables.handlers.c, tables.events.c, tables.workflow_runs.c
s, j, causes = tables.schedules.c, tables.jobs.c, tables.causes.c

WORKFLOWS_PER_CHECK = 1000  # whose consumers one check for missed events looks at


@dataclass(frozen=True, slots=True)
class HandlerRef:
    """A handler of a workflow."""

    org_id: str
    workflow: str
    handler: str

    @property
    def name(self) -> str:
        return f"{self.workflow}.{self.handler}"


@dataclass(frozen=True, slots=True)
class OrphanedEvent:
    """A reserved event whose run neither runs nor waits."""

    workflow_id: str
    id: str
    topic: str
    reserved_by: str


def lost_producers(tx: Tx, limit: int = 100) -> list[HandlerRef]:
    """Return producers whose schedule was deleted."""
    joined = tables.handlers.join(tables.workflows, w.id == h.workflow_id)
    joined = joined.outerjoin(tables.schedules, s.id == h.schedule_id)
    deleted = or_(s.id.is_(None), s.deleted_at.is_not(None))
    stmt = select(w.org_id, w.name, h.name.label("handler")).select_from(joined)
    stmt = stmt.where(h.type == HandlerKind.PRODUCER, w.deleted_at.is_(None), deleted)
    return [
        HandlerRef(row.org_id, row.name, row.handler) for row in tx.execute(stmt.order_by(w.id, h.name).limit(limit))
    ]


def restore_schedule(tx: Tx, lost: HandlerRef, now: datetime) -> bool:
    """Insert the schedule of a producer again, under the grant of the deleted one. False if it has a schedule."""
    workflow = workflows.get(tx, lost.org_id, lost.workflow, hold=True)
    handler = workflow.handlers.get(lost.handler)
    declarations = [
        declaration
        for declaration in workflow.declaration["handlers"]
        if declaration["name"] == lost.handler and declaration["schedule"]
    ]
    if handler is None or not declarations:
        return False
    if handler.schedule_id is not None and schedules.exists(tx, lost.org_id, handler.schedule_id):
        return False
    declared = producer_schedule(lost.org_id, workflow.name, workflow.source, workflow.route, declarations[0], now)
    grant_id = tx.execute(select(s.grant_id).where(s.id == handler.schedule_id)).scalar_one_or_none()
    schedule = replace(declared, grant_id=grant_id)
    schedules.insert(tx, [schedule], now)
    workflows.update_handler(tx, handler, schedule_id=schedule.id)
    return True


def stranded_consumers(tx: Tx, limit: int = 100) -> list[HandlerRef]:
    """Return consumers of idle workflows that are not dirty although an event is pending that came after their last
    run began. An event that was seen and left pending does not count: the consumer decided so."""
    pending = tx.execute(
        select(e.workflow_id, e.topic, func.max(e.updated_at).label("at"))
        .where(events.is_pending())
        .group_by(e.workflow_id, e.topic)
    ).all()
    newest: dict[str, dict[str, datetime]] = {}
    for workflow_id, topic, at in pending:
        newest.setdefault(workflow_id, {})[topic] = at
    idle = and_(
        h.type == HandlerKind.CONSUMER,
        h.dirty.is_(False),
        h.held_run_id.is_(None),
        w.deleted_at.is_(None),
        w.paused_at.is_(None),
    )
    joined = tables.handlers.join(tables.workflows, w.id == h.workflow_id)
    stmt = select(h.workflow_id, h.name, h.subscribe, w.org_id, w.name.label("workflow")).select_from(joined)
    stranded: list[HandlerRef] = []
    for row in tx.execute(stmt.where(idle, h.workflow_id.in_(list(newest)[:WORKFLOWS_PER_CHECK]))):
        by_topic = newest[row.workflow_id]
        published = [by_topic[topic] for topic in row.subscribe if topic in by_topic]
        if not published or serial_keys.head_of(tx, serial_key_of(row.org_id, row.workflow)) is not None:
            continue
        committed = and_(r.workflow_id == row.workflow_id, r.handler_id == row.name, r.phase == Phase.COMMITTED)
        last_run = select(r.created_at).where(committed).order_by(r.id.desc()).limit(1)
        began_at = tx.execute(last_run).scalar_one_or_none()
        if began_at is None or began_at < max(published):
            stranded.append(HandlerRef(row.org_id, row.workflow, row.name))
    return stranded[:limit]


def consumers_without_job(tx: Tx, limit: int = 100) -> list[HandlerRef]:
    """Return consumers that need to run and have no job, because a grant did not hold when it would have begun."""
    has_job = select(literal(1)).where(j.solo_key == w.id).exists()
    live = and_(w.deleted_at.is_(None), w.paused_at.is_(None))
    needs_run = and_(h.type == HandlerKind.CONSUMER, h.dirty, h.held_run_id.is_(None), live)
    joined = tables.handlers.join(tables.workflows, w.id == h.workflow_id)
    stmt = select(w.org_id, w.name, h.name.label("handler")).select_from(joined)
    rows = tx.execute(stmt.where(needs_run, ~has_job).order_by(w.id, h.name).limit(limit))
    return [HandlerRef(row.org_id, row.name, row.handler) for row in rows]


def queue_consumer(tx: Tx, consumer: HandlerRef, now: datetime) -> bool:
    """Give the workflow of a consumer its job. False if it has one."""
    return ensure_consumer_job(tx, workflows.get(tx, consumer.org_id, consumer.workflow, hold=True), now)


def wake_stranded(tx: Tx, stranded: HandlerRef, now: datetime) -> bool:
    """Give a stranded consumer a job for the pending events. False if it is no longer stranded."""
    workflow = workflows.get(tx, stranded.org_id, stranded.workflow, hold=True)
    handler = workflow.handlers.get(stranded.handler)
    if handler is None or stranded not in stranded_consumers(tx):
        return False
    workflows.update_handler(tx, handler, dirty=True)
    ensure_consumer_job(tx, workflow, now)
    return True


def orphaned_events(tx: Tx, limit: int = 20) -> list[OrphanedEvent]:
    """Return reserved events whose run neither runs nor waits. This is an inconsistency of unknown cause: it is only
    reported, and an operator decides, because handling the events again could repeat an effect."""
    runs = tables.runs.c
    running = select(literal(1)).where(j.run_id == e.reserved_by).exists()
    attempt = tables.runs.join(tables.jobs, and_(j.id == runs.job_id, j.last_run_id == runs.id))
    retried = select(literal(1)).select_from(attempt).where(runs.id == e.reserved_by).exists()
    held = select(literal(1)).where(h.workflow_id == e.workflow_id, h.held_run_id == e.reserved_by).exists()
    reserved = and_(events.is_in_status("reserved", "skipped"), e.status == EventStatus.RESERVED)
    stmt = select(e.workflow_id, e.id, e.topic, e.reserved_by).where(reserved, ~running, ~retried, ~held)
    return [OrphanedEvent(**row._asdict()) for row in tx.execute(stmt.limit(limit))]


def prune_events(tx: Tx, before: datetime, limit: int) -> int:
    """Delete the oldest events that were done before this time; returns how many. An input is kept as long as the
    events derived from it."""
    has_derived = select(literal(1)).where(causes.input_id == e.id).exists()
    old = select(e.id).where(events.is_in_status("consumed", "skipped"), e.updated_at < before, ~has_derived)
    ids = tx.execute(old.order_by(e.updated_at).limit(limit)).scalars().all()
    for stmt in (
        delete(tables.causes).where(is_listed(tx, causes.event_id, ids)),
        delete(tables.events).where(is_listed(tx, e.id, ids)),
    ):
        tx.execute(stmt)
    return len(ids)


def runs_in_use() -> ColumnElement[bool]:
    """Match ended runs that a held handler still needs."""
    return select(h.name).where(h.held_run_id == tables.runs.c.id).exists()


def delete_run_rows(tx: Tx, run_ids: Collection[str]) -> None:
    """Delete the phases and effects of runs."""
    effects = tables.effects
    tx.execute(delete(effects).where(effects.c.run_id.in_(run_ids)))
    tx.execute(delete(tables.workflow_runs).where(r.id.in_(run_ids)))
