"""Commands of operators: publish, run, pause, resume, skip an event, resolve a run that needs a decision."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import and_, literal, select, update

from rota.core.effects import EffectStatus
from rota.core.errors import Conflict, NotFound
from rota.core.model import NewJob
from rota.core.policy import RECONCILIATION
from rota.core.states import Phase, State, Status
from rota.db import tables
from rota.db.dialect import Tx, is_listed, lock_keys, notify
from rota.engine import firing, jobs, runs, schedules, serial_keys
from rota.kinds.workflows.rules import WORKFLOW, EventStatus, Outcome, Resolution, may_move, serial_key_of
from rota.kinds.workflows.store import effects, events, workflows
from rota.kinds.workflows.store.consumer_jobs import CONSUMER_PRIORITY, ensure_consumer_job
from rota.kinds.workflows.store.phases import find_run
from rota.kinds.workflows.store.publishing import API_SOURCE
from rota.kinds.workflows.store.records import NewEvent, OpenEffect, RunRow, StuckJob, WorkflowRow
from rota.kinds.workflows.store.workflow_runs import PAUSED

w, e, r, j, causes = tables.workflows.c, tables.events.c, tables.workflow_runs.c, tables.jobs.c, tables.causes.c


def publish(
    tx: Tx, org_id: str, key: str, new_events: Sequence[NewEvent], now: datetime
) -> tuple[list[tuple[str, str]], bool]:
    """Publish events from outside, also where `publish_inputs` does nothing; returns the id and the result of
    each, as `events.publish`, and whether the job of the consumers changed. Raises NotFound."""
    workflow = workflows.get(tx, org_id, key, hold=True, with_key=True)
    unknown = {event.topic for event in new_events} - set(workflow.declaration["topics"])
    if unknown:
        raise NotFound(f"topic {min(unknown)!r} of workflow {workflow.name!r} not found")
    results = events.publish(tx, workflow, new_events, now, source=API_SOURCE)
    return results, ensure_consumer_job(tx, workflow, now)


def run_now(tx: Tx, org_id: str, key: str, now: datetime) -> list[str]:
    """Queue all producers, one after the other; returns their job ids. Raises Conflict while a run is active or needs
    attention."""
    workflow = workflows.get(tx, org_id, key, hold=True)
    head = serial_keys.head_of(tx, serial_key_of(org_id, workflow.name))
    if workflow.paused_at is not None:
        raise Conflict(f"workflow {workflow.name!r} is paused; resume it first")
    if head is not None and head.state == State.PARKED:
        raise Conflict(f"workflow {workflow.name!r} needs attention ({head.parked_reason}); resolve that first")
    if head is not None and head.state == State.RETRY:
        retry_at = head.run_at.isoformat(timespec="seconds")
        raise Conflict(f"workflow {workflow.name!r} backs off after a failure; it retries at {retry_at}")
    if head is not None and (head.state == State.RUNNING or head.attempt):
        raise Conflict(f"workflow {workflow.name!r} has an active run; wait until it has ended")
    schedule_ids = [row.schedule_id for row in workflow.handlers.values() if row.schedule_id is not None]
    producers = [schedules.lock(tx, org_id, schedule_id).schedule for schedule_id in schedule_ids]
    return [firing.run_now(tx, schedule, schedule.input, schedule.overlap, None, now) for schedule in producers]


def pause(tx: Tx, org_id: str, key: str, reason: str, now: datetime) -> str:
    """Pause a workflow: the active run finishes, no other begins, new events stay pending. Returns its id."""
    workflow = workflows.get(tx, org_id, key, hold=True)
    if workflow.paused_at is None:
        values = {"paused_at": now, "pause_reason": reason, "updated_at": now}
        tx.execute(update(tables.workflows).where(w.id == workflow.id).values(values))
    return workflow.id


def resume(tx: Tx, org_id: str, key: str, now: datetime) -> str:
    """End a pause, or retry the failed run of a workflow that is not paused. Returns its id. Raises Conflict if there
    is neither, or the outcome of a mutation must be decided first."""
    workflow = workflows.get(tx, org_id, key, hold=True)
    stuck = stuck_job(tx, workflow)
    if workflow.paused_at is not None:
        values = {"paused_at": None, "pause_reason": None, "updated_at": now}
        tx.execute(update(tables.workflows).where(w.id == workflow.id).values(values))
        if stuck is not None and stuck.parked_reason == PAUSED:
            jobs.resume(tx, stuck.id, now)
        return workflow.id
    if stuck is not None and stuck.parked_reason == RECONCILIATION:
        raise Conflict(f"workflow {workflow.name!r} has a mutation with an unknown outcome; resolve it")
    if stuck is None and not workflow.held_runs():
        raise Conflict(f"workflow {workflow.name!r} is neither paused nor stuck")
    retry_stuck(tx, workflow, stuck, now)
    return workflow.id


def skip_event(tx: Tx, org_id: str, key: str, event_id: str, now: datetime) -> str:
    """Skip a pending event, and the pending events that were derived from it alone; returns its id. Raises NotFound, or
    Conflict if none of them is pending or a run has reserved one."""
    workflow = workflows.get(tx, org_id, key, hold=True)
    others = tables.causes.alias()
    shared = select(literal(1)).where(others.c.event_id == causes.event_id, others.c.input_id != event_id).exists()
    derived = tx.execute(select(causes.event_id).where(causes.input_id == event_id, ~shared)).scalars()
    stmt = select(e.id, e.status).where(e.workflow_id == workflow.id, is_listed(tx, e.id, [event_id, *derived]))
    rows = tx.execute(stmt.order_by(e.id).with_for_update())
    statuses = {row.id: row.status for row in rows}
    if event_id not in statuses:
        raise NotFound(f"event {event_id!r} of workflow {workflow.name!r} not found")
    if EventStatus.RESERVED in statuses.values():
        raise Conflict(f"event {event_id} is reserved by a run; wait until the run has ended, or resolve it")
    pending = [pending_id for pending_id, status in statuses.items() if status == EventStatus.PENDING]
    if not pending:
        raise Conflict(f"event {event_id} is already {statuses[event_id]}, and no event derived from it is pending")
    skipped = {"status": EventStatus.SKIPPED.value, "updated_at": now}
    tx.execute(update(tables.events).where(is_listed(tx, e.id, pending)).values(skipped))
    return event_id


def resolve(tx: Tx, org_id: str, key: str, resolution: Resolution, result: object, by: str, now: datetime) -> str:
    """Apply an operator's decision to the run that needs one; returns the workflow's id. Raises Conflict if no run does
    or the resolution does not fit it."""
    workflow = workflows.get(tx, org_id, key, hold=True)
    stuck = stuck_job(tx, workflow)
    run_id = stuck.last_run_id if stuck is not None else next(iter(workflow.held_runs().values()), None)
    run = find_run(tx, run_id)
    if run is None or (stuck is not None and stuck.parked_reason == PAUSED):
        raise Conflict(f"workflow {workflow.name!r} has no run that needs a decision")
    effect = effects.open_effect(tx, run.id)
    check_resolution(workflow.name, resolution, run, effect)
    match resolution:
        case Resolution.APPLIED:
            record_outcome(tx, run, effect, EffectStatus.APPLIED, Outcome.APPLIED, by, now, result)
        case Resolution.NOT_APPLIED:
            record_outcome(tx, run, effect, EffectStatus.FAILED, Outcome.FAILED, by, now)
        case Resolution.SKIP:
            record_outcome(tx, run, effect, EffectStatus.FAILED, Outcome.SKIPPED, by, now)
            events.skip_reserved(tx, run, now)
        case Resolution.TRY_AGAIN if effect is not None:
            effects.move_effect(tx, effect.id, EffectStatus.NEEDS_RECONCILE, now, reconcile_attempts=0)
        case Resolution.REJECT:
            reject_run(tx, workflow, stuck, run, now)
            return workflow.id
        case _:  # approve, or try again without a mutation: a retry is all it needs
            pass
    retry_stuck(tx, workflow, stuck, now)
    return workflow.id


def check_resolution(name: str, resolution: Resolution, run: RunRow, effect: OpenEffect | None) -> None:
    """Raise Conflict if a resolution does not fit the run."""
    if resolution in (Resolution.APPLIED, Resolution.NOT_APPLIED) and effect is None:
        text = "has no mutation with an unknown outcome; `applied` and `not_applied` are only valid for one"
        raise Conflict(f"workflow {name!r} {text}")
    if resolution in (Resolution.APPROVE, Resolution.REJECT) and effect is not None:
        text = "has a mutation with an unknown outcome; resolve it as applied, not_applied or skip"
        raise Conflict(f"workflow {name!r} {text}")
    if resolution is Resolution.SKIP and run.phase in (Phase.EXECUTING, Phase.PREPARING):
        raise Conflict(f"workflow {name!r}: the run has reserved no events, so there is nothing to skip")
    if resolution is Resolution.SKIP and run.mutation_outcome == Outcome.APPLIED:
        raise Conflict(f"workflow {name!r}: the mutation of the run was applied and cannot be skipped; resume it")


def record_outcome(
    tx: Tx,
    run: RunRow,
    effect: OpenEffect | None,
    status: EffectStatus,
    outcome: Outcome,
    by: str,
    now: datetime,
    result: object = None,
) -> None:
    """Write what an operator decided about the mutation of a run, and move the run past it. Raises Conflict."""
    if effect is not None:
        effects.move_effect(tx, effect.id, status, now, result=result, resolved_by=by)
    phase = Phase.MUTATED if may_move(run.phase, Phase.MUTATED) else run.phase
    values = {"mutation_outcome": outcome.value, "mutation_result": result, "updated_at": now, "phase": phase.value}
    tx.execute(update(tables.workflow_runs).where(r.id == run.id).values(values))


def reject_run(tx: Tx, workflow: WorkflowRow, stuck: StuckJob | None, run: RunRow, now: datetime) -> None:
    """Give up a run: its events are skipped, it is failed, and the workflow continues."""
    handler = workflow.handlers.get(run.handler_id)
    events.skip_reserved(tx, run, now)
    if run.phase == Phase.PREPARING and handler is not None:
        events.skip_oldest(tx, run.workflow_id, handler.subscribe, run.created_at, now)
    if stuck is None:
        workflows.update_handler(tx, workflow.handlers[run.handler_id], held_run_id=None)
    else:
        lock_keys(tx, [stuck.serial_key])
        jobs.withdraw(tx, j.id == stuck.id, Status.FAILED, "logic", now)
        notify(tx, "ready")
    consumer = handler if handler is not None and handler.is_consumer else None
    if consumer is not None and events.oldest_pending(tx, workflow.id, consumer.subscribe) is not None:
        workflows.update_handler(tx, consumer, dirty=True)  # the run cleared the flag when it began
    ensure_consumer_job(tx, workflow, now)


def stuck_job(tx: Tx, workflow: WorkflowRow) -> StuckJob | None:
    """Return the first job of the workflow if it is parked, or backs off to reconcile a mutation; else None."""
    serial_key = serial_key_of(workflow.org_id, workflow.name)
    head = serial_keys.head_of(tx, serial_key)
    if head is None or (head.state == State.PARKED and head.parked_reason == jobs.UNROUTABLE):
        return None
    reconciles = head.state == State.RETRY and effects.open_effect(tx, head.last_run_id) is not None
    if head.state != State.PARKED and not reconciles:
        return None
    return StuckJob(head.id, head.state, serial_key, head.parked_reason, head.last_run_id)


def retry_stuck(tx: Tx, workflow: WorkflowRow, stuck: StuckJob | None, now: datetime) -> None:
    """Retry the stuck job now, or else the failed runs of handlers on hold, with all their tries."""
    if stuck is not None:
        tx.execute(update(tables.jobs).where(j.id == stuck.id).values(tries=0, crashes=0))
        if stuck.state == State.PARKED:
            jobs.resume(tx, stuck.id, now)
        else:
            backs_off = and_(j.id == stuck.id, j.state == State.RETRY)
            tx.execute(update(tables.jobs).where(backs_off).values(run_at=now))
            notify(tx, "later")
        return
    for name, run_id in workflow.held_runs().items():
        run = runs.get(tx, workflow.org_id, run_id)
        job = NewJob(
            workflow.org_id,
            WORKFLOW,
            workflow.name,
            {"handler": name},
            now,
            "retry",
            route=workflow.route,
            serial_key=serial_key_of(workflow.org_id, workflow.name),
            priority=CONSUMER_PRIORITY,
            last_run_id=run_id,
            attempt=0 if run is None else runs.last_attempt(tx, run.job_id),
        )
        jobs.enqueue(tx, [job], now)
        workflows.update_handler(tx, workflow.handlers[name], held_run_id=None)
