"""A run of a workflow, from begin to commit. Each function is one transaction, and safe to repeat if its answer was
lost."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

from sqlalchemy import and_, update

from rota.core.effects import EffectStatus
from rota.core.ids import new_id
from rota.core.model import Attempt, AttemptResult, Job
from rota.core.states import Move, Phase
from rota.db import tables
from rota.db.dialect import Tx, lock_keys
from rota.engine import finishing, grants, jobs, runs, schedules, serial_keys
from rota.engine.metrics import count_on_commit
from rota.engine.runner import LogLine
from rota.kinds.workflows.rules import WORKFLOW, EventStatus, HandlerKind, Outcome, start_of
from rota.kinds.workflows.store import consumer_jobs, effects, events, statements, workflows
from rota.kinds.workflows.store.next_runs import Followed, commit_and_begin_next
from rota.kinds.workflows.store.phases import find_run, lease_lost, move_phase
from rota.kinds.workflows.store.records import (
    Decision,
    HandlerRow,
    Limits,
    NewEvent,
    RunRow,
    StartedRun,
    WorkflowRow,
)

PAUSED = "paused"  # the reason of a job that is parked because its workflow is paused
YIELD, IDLE = "yield", "idle"  # why an attempt does not begin: the job waits again; no handler needs to run


# begin


def begin(tx: Tx, job: Job, run_id: str, number: int, now: datetime) -> StartedRun | str:
    """Begin an attempt: choose the handler and the phase, and what it keeps of the attempt before. Or return why not:
    PAUSED, YIELD, IDLE, or the code of a grant that does not hold. Raises LeaseLost."""
    workflow = workflows.get(tx, job.org_id, job.target, hold=True)
    return begin_attempt(tx, workflow, Attempt(job, run_id, number, now))


def begin_attempt(tx: Tx, workflow: WorkflowRow, attempt: Attempt) -> StartedRun | str:
    """As `begin`, for a caller that holds the workflow."""
    job, run_id, now = attempt.job, attempt.run_id, attempt.started_at
    before = find_run(tx, job.last_run_id)
    if before is not None and before.phase == Phase.COMMITTED:
        before = None
    name = before.handler_id if before is not None else job.payload and job.payload["handler"]
    handler = workflow.handlers.get(name) if name else consumer_jobs.choose_consumer(tx, workflow, now)
    why_not = None
    if workflow.paused_at is not None:
        why_not = PAUSED
    elif before is None and name and consumer_jobs.is_consumer_job_blocked(tx, workflow):
        why_not = YIELD
    elif handler is None or (before is None and handler.held_run_id is not None):
        why_not = IDLE
    elif before is None and handler.is_consumer and (code := grant_problem(tx, workflow, now)) is not None:
        why_not = code
    elif (started := insert_run(tx, workflow, handler, before, attempt)) is not None:
        return started
    existing = find_run(tx, run_id)
    if existing is not None:  # the answer to the first call was lost
        return started_run(tx, workflow, existing)
    if why_not in (PAUSED, YIELD):
        lock_keys(tx, [job.serial_key or ""])
        move, reason = (Move.PARK, PAUSED) if why_not == PAUSED else (Move.YIELD, None)
        finishing.set_aside(tx, job, move, job.schedule_id or workflow.id, reason)
    return why_not or IDLE


def grant_problem(tx: Tx, workflow: WorkflowRow, now: datetime) -> str | None:
    """Return the code of the first grant that does not hold, of those of the producers' schedules: then no consumer
    may begin."""
    schedule_ids = [row.schedule_id for row in workflow.handlers.values() if row.schedule_id]
    for grant_id in schedules.grants_of(tx, schedule_ids):
        code = grants.trouble(tx, workflow.org_id, grant_id, WORKFLOW, {workflow.id, workflow.name}, now)
        if code is not None or grants.used_up(tx, grant_id, now) is not None:
            return code or "budget"
    return None


def insert_run(
    tx: Tx, workflow: WorkflowRow, handler: HandlerRow, before: RunRow | None, attempt: Attempt
) -> StartedRun | None:
    """Record that the attempt began and insert its run; None if that exists already. As `start_of` decides, it keeps
    reservations, results and the mutation of the attempt before, or makes the reserved events pending again. Raises
    LeaseLost."""
    job, run_id, now = attempt.job, attempt.run_id, attempt.started_at
    kind, kept = HandlerKind(handler.type), None
    begins, effect = start_of(kind), None
    if before is not None:
        effect = effects.open_effect(tx, before.id)
        status = None if effect is None else effect.status
        begins = start_of(kind, before.phase, before.mutation_outcome, status)
        kept = before if begins.keeps else None
    row = {
        "id": run_id,
        "workflow_id": workflow.id,
        "handler_id": handler.name,
        "handler_type": kind.value,
        "retry_of": before and before.id,
        "phase": begins.phase.value,
        "prepare_result": kept and kept.prepare_result,
        "mutation_outcome": kept and kept.mutation_outcome and kept.mutation_outcome.value,
        "mutation_result": kept and kept.mutation_result,
        "created_at": now,
        "updated_at": now,
    }
    prepares = begins.phase is Phase.PREPARING  # events published from now on are for the next run
    new = statements.BEGIN_RUN.run(tx, [(job.id, job.fence, attempt.number, *row.values())], prepares=prepares)
    if not new:
        raise lease_lost(job)
    if new == [(False,)]:
        return None
    if kept is not None:
        events.hand_over(tx, kept, run_id, now)
        effects.hand_over(tx, kept.id, run_id, now)
        if effect is not None and effect.status == EffectStatus.IN_FLIGHT:  # the worker died, or lost the answer
            effects.move_effect(tx, effect.id, EffectStatus.NEEDS_RECONCILE, now)
    elif before is not None:
        events.release(tx, before, now)
    if prepares:
        handler.dirty, handler.wake_at = False, None
    return StartedRun(
        id=run_id,
        workflow_id=workflow.id,
        handler=handler.name,
        kind=kind,
        phase=begins.phase,
        state=handler.state,
        started_at=now,
        prepared=None if kept is None else kept.prepare_result,
        outcome=None if kept is None else kept.mutation_outcome,
        result=None if kept is None else kept.mutation_result,
        effect=None if kept is None else effect,
        retry_of=None if before is None else before.id,
    )


def started_run(tx: Tx, workflow: WorkflowRow, row: RunRow) -> StartedRun:
    return StartedRun(
        id=row.id,
        workflow_id=row.workflow_id,
        handler=row.handler_id,
        kind=row.handler_type,
        phase=row.phase,
        state=workflow.handlers[row.handler_id].state,
        started_at=row.created_at,
        prepared=row.prepare_result,
        outcome=row.mutation_outcome,
        result=row.mutation_result,
        effect=effects.open_effect(tx, row.id),
        retry_of=row.retry_of,
    )


# checkpoints


def save_decision(tx: Tx, job: Job, run: StartedRun, decision: Decision, now: datetime) -> None:
    """Reserve the events of a decision, all or none, and keep its result. Raises LeaseLost, EventsSkipped or
    LogicError."""
    if move_phase(tx, job, run, Phase.PREPARED, now, prepare_result=decision.result):
        events.reserve(tx, run, decision.reservations, EventStatus.RESERVED, now)
        if decision.wake_at is not None:  # begin has cleared it
            h = tables.handlers.c
            row = and_(h.workflow_id == run.workflow_id, h.name == run.handler)
            tx.execute(update(tables.handlers).where(row).values(wake_at=decision.wake_at))


def move_to_emitting(tx: Tx, job: Job, run: StartedRun, now: datetime) -> None:
    """Record that `next` runs, or failed. Raises LeaseLost."""
    move_phase(tx, job, run, Phase.EMITTING, now)


# end


def commit(
    tx: Tx,
    job: Job,
    run: StartedRun,
    state: object,
    new_events: Sequence[NewEvent],
    worker: str,
    ended: AttemptResult,
    log_lines: Sequence[LogLine],
    now: datetime,
    decision: Decision | None = None,
    follows: bool = False,
    reservations: Mapping[str, Sequence[str]] = MappingProxyType({}),
    repeats: Limits | None = None,
) -> Followed | None:
    """Commit a run, once and as a whole: handler state, consumed and published events, phase, run row, logs, and the
    job of the consumers. A `decision` that was not saved is committed with it. If the worker `follows`, return the
    attempt that begins at once; with `repeats`, first try whether that is one of the same consumer. Raises
    LeaseLost."""
    workflow = workflows.get(tx, job.org_id, job.target, hold=True, with_key=True)
    if repeats is not None:
        repeat = commit_and_begin_next(
            job, run, state, worker, ended, now, decision, reservations, repeats, locked=True
        )
        repeated = repeat(tx)
        if repeated is not None:
            runs.write_logs(tx, log_lines)
            count_on_commit(tx, lambda metrics: metrics.ended([ended]))
            return repeated
    changes: dict[str, object] = {} if run.outcome else {"mutation_outcome": Outcome.NONE.value}
    if decision is not None:
        changes["prepare_result"] = decision.result
    if not move_phase(tx, job, run, Phase.COMMITTED, now, **changes):
        return find_followed(tx, workflow, job, worker)
    consumes = run.kind is HandlerKind.CONSUMER
    consumed: list[events.EventSource] = []
    if decision is not None:
        consumed = events.reserve(tx, run, decision.reservations, EventStatus.CONSUMED, now)
    elif consumes:
        consumed = events.consume(tx, run, now)
    inputs: list[str] = []
    if consumes and new_events:
        inputs = events.inputs_of(tx, consumed or events.reserved_events(tx, run))
    source = None if consumes else run.handler
    if new_events:
        events.publish(tx, workflow, new_events, now, source=source, run_id=run.id, inputs=inputs)
    handler = workflow.handlers.get(run.handler)
    if handler is not None:  # a new version may have no handler of this name
        handler.state = handler.state if state is None else state
        handler.wake_at = handler.wake_at if decision is None else decision.wake_at
        row = (workflow.id, handler.name, handler.state, handler.wake_at)
        ended_handler = statements.END_OF_HANDLER.run(tx, [row], takes=bool(consumed), topics=handler.subscribe)
        handler.dirty = ended_handler[0][0]
    consumer_jobs.ensure_consumer_job(tx, workflow, now, leaving=True)  # first: the finished job promotes by priority
    runs.write_logs(tx, log_lines)
    recorded, next_job = finishing.finish_and_claim_next(tx, ended, worker, now, follows and workflow.paused_at is None)
    if not recorded:
        raise lease_lost(job)
    if next_job is None:
        return None
    attempt = Attempt(next_job, new_id(), next_job.attempt + 1, now)
    started = begin_attempt(tx, workflow, attempt)
    if isinstance(started, str):
        return None if started in (PAUSED, YIELD) else (attempt, None)
    return attempt, started


def find_followed(tx: Tx, workflow: WorkflowRow, job: Job, worker: str) -> Followed | None:
    """Return the attempt that a commit began whose answer was lost."""
    head = serial_keys.head_of(tx, job.serial_key or "")
    if head is None or head.id == job.id or head.lease_owner != worker:
        return None
    if head.run_id is None or head.started_at is None:
        return None
    next_job = replace(jobs.job_of(head), attempt=head.attempt - 1)
    attempt = Attempt(next_job, head.run_id, head.attempt, head.started_at)
    row = find_run(tx, head.run_id)
    assert row is not None  # a job of a workflow has its run row from the transaction that set its run id
    return attempt, started_run(tx, workflow, row)


def hold_handler(
    tx: Tx, job: Job, run: StartedRun, worker: str, ended: AttemptResult, log_lines: Sequence[LogLine], now: datetime
) -> None:
    """End a failed run and hold its handler for an operator, while the other handlers continue. Raises LeaseLost."""
    workflow = workflows.get(tx, job.org_id, job.target, hold=True)
    if run.handler in workflow.handlers:
        workflows.update_handler(tx, workflow.handlers[run.handler], held_run_id=run.id)
    consumer_jobs.ensure_consumer_job(tx, workflow, now, leaving=True)
    if not finishing.finish(tx, [ended], worker, now).recorded:
        raise lease_lost(job)
    runs.write_logs(tx, log_lines)
