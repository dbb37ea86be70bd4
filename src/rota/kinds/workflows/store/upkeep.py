"""What maintenance mends in workflows: producers whose schedule is gone, consumers that miss events which wait."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import and_, func, literal, or_, select

from rota.core import parse
from rota.core.model import WORKFLOW, Schedule, record, serial_key_of_target
from rota.core.parse import Defaults
from rota.core.states import Phase
from rota.db.dialect import Tx
from rota.db.tables import events, handlers, jobs, schedules, workflow_runs, workflows
from rota.engine import jobs as queue
from rota.engine import schedules as schedule_store
from rota.kinds.workflows.rules import HandlerKind
from rota.kinds.workflows.store import workflows as flows

w, h, e, r, s, j = workflows.c, handlers.c, events.c, workflow_runs.c, schedules.c, jobs.c


@record
class HandlerRef:
    """A handler of a workflow."""

    org_id: str
    workflow: str
    handler: str

    @property
    def name(self) -> str:
        return f"{self.workflow}.{self.handler}"


def producer_schedule(
    org_id: str, workflow: str, source: str, route: str, handler: Mapping[str, Any], now: datetime
) -> Schedule:
    """The schedule that a producer's declaration asks for."""
    body = {
        **handler["schedule"], "name": f"{workflow}.{handler['name']}", "kind": WORKFLOW, "target": workflow,
        "input": {"handler": handler["name"]},
    }  # fmt: skip
    made = parse.parse_schedule(
        body, org_id=org_id, defaults={WORKFLOW: Defaults()}, now=now, source=source, by=None
    )  # fmt: skip
    return replace(made, route=route)


def lost_producers(tx: Tx, limit: int = 100) -> list[HandlerRef]:
    """Producers whose schedule was deleted."""
    joined = handlers.join(workflows, w.id == h.workflow_id).outerjoin(schedules, s.id == h.schedule_id)
    lost = and_(h.type == HandlerKind.PRODUCER, w.deleted_at.is_(None), or_(s.id.is_(None), s.deleted_at.is_not(None)))
    stmt = select(w.org_id, w.name, h.name.label("handler")).select_from(joined).where(lost)
    return [
        HandlerRef(row.org_id, row.name, row.handler) for row in tx.execute(stmt.order_by(w.id, h.name).limit(limit))
    ]


def plan_again(tx: Tx, lost: HandlerRef, now: datetime) -> bool:
    """Make the schedule of a producer again, under the grant of the one that was deleted. False if it is there."""
    flow = flows.get(tx, lost.org_id, lost.workflow, hold=True)
    handler = flow.handlers.get(lost.handler)
    declared = [one for one in flow.declaration["handlers"] if one["name"] == lost.handler and one["schedule"]]
    if handler is None or not declared:
        return False
    if handler.schedule_id is not None and schedule_store.exists(tx, lost.org_id, handler.schedule_id):
        return False
    made = producer_schedule(lost.org_id, flow.name, flow.source, flows.route_of(flow), declared[0], now)
    grant_id = tx.execute(select(s.grant_id).where(s.id == handler.schedule_id)).scalar_one_or_none()
    made = replace(made, grant_id=grant_id)
    schedule_store.insert(tx, [made], now)
    flows.note(tx, handler, schedule_id=made.id)
    return True


def stranded_consumers(tx: Tx, limit: int = 100) -> list[HandlerRef]:
    """Consumers of idle workflows that have no reason to run although an event waits that came after their last look.
    An event that was seen and left waiting is no reason: the consumer decided so."""
    waiting = tx.execute(
        select(e.workflow_id, e.topic, func.max(e.updated_at).label("at")).where(flows.is_pending())
        .group_by(e.workflow_id, e.topic)
    ).all()  # fmt: skip
    newest: dict[str, dict[str, datetime]] = {}
    for workflow_id, topic, came_at in waiting:
        newest.setdefault(workflow_id, {})[topic] = came_at
    idle = and_(h.type == HandlerKind.CONSUMER, h.dirty.is_(False), h.held_run_id.is_(None), w.deleted_at.is_(None))
    stmt = select(h.workflow_id, h.name, h.subscribe, w.org_id, w.name.label("workflow")).select_from(
        handlers.join(workflows, w.id == h.workflow_id)
    )
    stranded: list[HandlerRef] = []
    for row in tx.execute(stmt.where(idle, w.paused_at.is_(None), h.workflow_id.in_(list(newest)[:1000]))):
        came = [newest[row.workflow_id][topic] for topic in row.subscribe if topic in newest[row.workflow_id]]
        if not came or queue.head_of(tx, serial_key_of_target(WORKFLOW, row.org_id, row.workflow)) is not None:
            continue
        looks = and_(r.workflow_id == row.workflow_id, r.handler_id == row.name, r.phase == Phase.COMMITTED)
        looked_at = tx.execute(
            select(r.created_at).where(looks).order_by(r.id.desc()).limit(1)
        ).scalar_one_or_none()  # fmt: skip
        if looked_at is None or looked_at < max(came):
            stranded.append(HandlerRef(row.org_id, row.workflow, row.name))
    return stranded[:limit]


def waiting_consumers(tx: Tx, limit: int = 100) -> list[HandlerRef]:
    """Consumers that need to run and have no job for it, because a grant did not hold when it would have begun."""
    has_job = select(literal(1)).where(j.solo_key == w.id).exists()
    live = and_(w.deleted_at.is_(None), w.paused_at.is_(None))
    needs = and_(h.type == HandlerKind.CONSUMER, h.dirty, h.held_run_id.is_(None), live)
    joined = handlers.join(workflows, w.id == h.workflow_id)
    stmt = select(w.org_id, w.name, h.name.label("handler")).select_from(joined)
    rows = tx.execute(stmt.where(needs, ~has_job).order_by(w.id, h.name).limit(limit))
    return [HandlerRef(row.org_id, row.name, row.handler) for row in rows]


def queue_again(tx: Tx, waiting: HandlerRef, now: datetime) -> bool:
    """Give a workflow a job for what its consumers need."""
    return flows.arm(tx, flows.get(tx, waiting.org_id, waiting.workflow, hold=True), now)


def look_again(tx: Tx, stranded: HandlerRef, now: datetime) -> bool:
    """Give a consumer a job for the events that wait. False if it is no longer stranded."""
    flow = flows.get(tx, stranded.org_id, stranded.workflow, hold=True)
    handler = flow.handlers.get(stranded.handler)
    if handler is None or stranded not in stranded_consumers(tx):
        return False
    flows.note(tx, handler, dirty=True)
    flows.arm(tx, flow, now)
    return True
