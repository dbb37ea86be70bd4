"""Makes the database match what a program or a script declares: workflow, handlers, schedules of producers."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from sqlalchemy import and_, delete, update

from rota.core import schedule_form, timing_form
from rota.core.errors import Conflict
from rota.core.ids import new_id
from rota.core.model import Schedule
from rota.core.schedule_form import Defaults
from rota.db import tables
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.db.statement import insert_new, insert_rows
from rota.engine import firing, schedules
from rota.kinds.workflows.rules import WORKFLOW, HandlerKind
from rota.kinds.workflows.store import workflows
from rota.kinds.workflows.store.consumer_jobs import ensure_consumer_job
from rota.kinds.workflows.store.records import WorkflowRow
from rota.kinds.workflows.store.workflows import SCRIPT

NOT_DECLARED = "no longer declared in the program"  # the pause reason of a workflow that vanished from its program

w, h = tables.workflows.c, tables.handlers.c


def producer_schedule(org_id: str, workflow: str, source: str, route: str, handler: Record, now: datetime) -> Schedule:
    """Return the schedule of a producer, from its declaration."""
    body = {
        **handler["schedule"],
        "name": f"{workflow}.{handler['name']}",
        "kind": WORKFLOW,
        "target": workflow,
        "input": {"handler": handler["name"]},
    }
    defaults = {WORKFLOW: Defaults()}
    schedule = schedule_form.parse_schedule(body, org_id=org_id, defaults=defaults, now=now, source=source, by=None)
    return replace(schedule, route=route)


def deploy(tx: Tx, org_id: str, fields: Record, producers: Mapping[str, Schedule], now: datetime) -> str | None:
    """Make the database match a declaration; returns the workflow's id, or None if it matches already. New and changed
    workflows run at once: producers by a job beside their slots, consumers because their code may decide otherwise.
    Raises Conflict if the name belongs to a workflow from another kind of source."""
    row = {"id": new_id(), "org_id": org_id, **fields, "created_at": now, "updated_at": now}
    is_new = bool(insert_new(tx, tables.workflows, [row], ("id",)))
    workflow = workflows.get(tx, org_id, fields["name"], hold=True)
    if (workflow.source == SCRIPT) != (fields["source"] == SCRIPT):
        raise Conflict(f"workflow {workflow.name!r} already exists, from {workflow.source}; choose another name")
    vanished = workflow.pause_reason == NOT_DECLARED
    if not is_new and not vanished and all(getattr(workflow, name) == value for name, value in fields.items()):
        return None
    unpaused = {"paused_at": None, "pause_reason": None} if vanished else {}
    tx.execute(update(tables.workflows).where(w.id == workflow.id).values({**fields, **unpaused, "updated_at": now}))
    deploy_handlers(tx, workflow, fields["declaration"]["handlers"], producers, now)
    workflow = workflows.get(tx, org_id, workflow.id)
    ensure_consumer_job(tx, workflow, now, "deploy")
    return workflow.id


def deploy_handlers(
    tx: Tx, workflow: WorkflowRow, declarations: Collection[Record], producers: Mapping[str, Schedule], now: datetime
) -> None:
    """Insert, change and delete handlers so that they match their declarations, with the schedules of producers."""
    declared = {declaration["name"]: declaration for declaration in declarations}
    for name in workflow.handlers.keys() - declared.keys():
        schedules.delete_if_exists(tx, workflow.org_id, workflow.handlers[name].schedule_id, now)
        tx.execute(delete(tables.handlers).where(h.workflow_id == workflow.id, h.name == name))
    for name, declaration in declared.items():
        handler = workflow.handlers.get(name)
        schedule_id = None if handler is None else handler.schedule_id
        if name in producers:
            schedule_id = schedule_producer(tx, producers[name], schedule_id, now)
        elif schedule_id is not None:
            schedules.delete_if_exists(tx, workflow.org_id, schedule_id, now)  # a producer that became a consumer
            schedule_id = None
        values = {
            "type": declaration["type"],
            "subscribe": declaration["subscribe"],
            "schedule_id": schedule_id,
            "dirty": declaration["type"] == HandlerKind.CONSUMER,
        }
        if handler is None:
            insert_rows(tx, tables.handlers, [{"workflow_id": workflow.id, "name": name, **values}])
        else:
            workflows.update_handler(tx, handler, **values)


def schedule_producer(tx: Tx, declared: Schedule, schedule_id: str | None, now: datetime) -> str:
    """Insert or change the schedule of a producer and run it now; returns its id. One that did not change keeps its
    next slot and does not run."""
    if schedule_id is None or not schedules.exists(tx, declared.org_id, schedule_id):
        schedules.insert(tx, [declared], now)
        schedule = declared
    else:
        due = schedules.lock(tx, declared.org_id, schedule_id)
        schedule = due.schedule
        old, new = (timing_form.flat_timing(timing) | {"anchor": None} for timing in (schedule.timing, declared.timing))
        if old == new and schedule.enabled:
            return schedule_id
        schedule = schedules.replace_schedule(tx, due, replace(schedule, timing=declared.timing, enabled=True), now)
    firing.run_now(tx, schedule, schedule.input, schedule.overlap, None, now, "deploy")
    return schedule.id


def pause_undeclared(tx: Tx, org_id: str, source: str, declared: Collection[str], now: datetime) -> list[str]:
    """Pause the workflows of a program that it no longer declares; returns their ids. They are not deleted."""
    undeclared = and_(w.org_id == org_id, w.source == source, w.name.not_in(declared), w.paused_at.is_(None))
    values = {"paused_at": now, "pause_reason": NOT_DECLARED, "updated_at": now}
    return list(tx.execute(update(tables.workflows).where(undeclared).values(values).returning(w.id)).scalars())
