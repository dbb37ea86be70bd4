"""The job of a workflow's consumers: at most one waits, its solo key is the workflow's id."""

from datetime import datetime
from typing import Any

from sqlalchemy import and_, delete, update

from rota.core.model import NewJob
from rota.core.states import Move, State, state_after, states_before
from rota.db import tables
from rota.db.dialect import Tx, lock_keys, notify
from rota.engine import jobs, serial_keys
from rota.engine.job_states import is_in
from rota.kinds.workflows.rules import WORKFLOW, Candidate, first_of, serial_key_of
from rota.kinds.workflows.store import events, statements
from rota.kinds.workflows.store.records import HandlerRow, WorkflowRow

CONSUMER_PRIORITY = 1  # of their jobs; that of producers is 0

j = tables.jobs.c


def ensure_consumer_job(
    tx: Tx, workflow: WorkflowRow, now: datetime, trigger: str = "event", leaving: bool = False
) -> bool:
    """Insert, move or delete the waiting job so that consumers run when they need to; returns whether anything changed.
    One job is enough because each commit calls this again. The caller holds the workflow; with `leaving` its own job is
    about to finish and promotes the next one of the serial key."""
    consumers = consumers_not_held(workflow)
    dirty = any(handler.dirty for handler in consumers)
    run_at = now if dirty else min((handler.wake_at for handler in consumers if handler.wake_at), default=None)
    trigger = trigger if dirty else "wake_at"
    serial_key = serial_key_of(workflow.org_id, workflow.name)
    ((job_id, state, job_run_at, has_head),) = read_consumer_job(tx, workflow)
    if job_id is None:
        if run_at is not None:
            job = NewJob(
                workflow.org_id,
                WORKFLOW,
                workflow.name,
                None,
                max(run_at, now),
                trigger,
                route=workflow.route,
                serial_key=serial_key,
                solo_key=workflow.id,
                priority=CONSUMER_PRIORITY,
            )
            if not leaving and not workflow.key_locked:
                lock_keys(tx, [serial_key])
            free = [serial_key] if workflow.key_locked and not has_head else []
            jobs.add(tx, [job], now, free, promoting=not leaving)
        return run_at is not None
    if state != State.LATER or job_run_at == run_at:
        return False
    lock_keys(tx, [serial_key])
    # race: a job that became due just now stays as it is, its run reads the flags
    delayed = and_(j.id == job_id, is_in(j.state, states_before(Move.WAIT)))
    if run_at is None:
        tx.execute(delete(tables.jobs).where(delayed))
    elif run_at > now:
        tx.execute(update(tables.jobs).where(delayed).values(run_at=run_at, trigger=trigger))
    else:
        values = {"run_at": run_at, "trigger": trigger, "state": state_after(Move.WAIT)}
        tx.execute(update(tables.jobs).where(delayed).values(values))
        serial_keys.promote(tx, [serial_key])
    notify(tx, "ready" if run_at is not None and run_at <= now else "later")
    return True


def read_consumer_job(tx: Tx, workflow: WorkflowRow) -> list[tuple[Any, ...]]:
    return statements.CONSUMER_JOB.run(
        tx, workflow_id=workflow.id, serial_key=serial_key_of(workflow.org_id, workflow.name)
    )


def is_consumer_job_blocked(tx: Tx, workflow: WorkflowRow) -> bool:
    """Return whether a job of the consumers waits behind the running job of the workflow."""
    ((_, state, _, _),) = read_consumer_job(tx, workflow)
    return bool(state == State.BLOCKED)


def choose_consumer(tx: Tx, workflow: WorkflowRow, now: datetime) -> HandlerRow | None:
    """Return the consumer that runs next, or None if none needs to."""
    consumers = consumers_not_held(workflow)
    due = [row for row in consumers if row.dirty or (row.wake_at is not None and row.wake_at <= now)]
    if len(due) < 2:
        return due[0] if due else None
    name = first_of(
        Candidate(row.name, row.wake_at, events.oldest_pending(tx, workflow.id, row.subscribe)) for row in due
    )
    return next(row for row in due if row.name == name)


def consumers_not_held(workflow: WorkflowRow) -> list[HandlerRow]:
    return [row for row in workflow.handlers.values() if row.is_consumer and row.held_run_id is None]
