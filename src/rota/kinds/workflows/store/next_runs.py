"""Runs of consumers that begin with a single statement: the only consumer that needs to run, and the next run of the
same consumer, begun by the statement that commits the run before it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from rota.core.ids import new_id
from rota.core.model import Attempt, AttemptResult, Job
from rota.core.policy import Terms
from rota.core.states import Phase
from rota.db.column_types import instant_of, json_value
from rota.db.statement import BoundStatement
from rota.engine import runs
from rota.kinds.workflows.rules import EventStatus, HandlerKind, may_move
from rota.kinds.workflows.store import single_statements
from rota.kinds.workflows.store.records import Decision, EventRow, Limits, Peeked, StartedRun

Followed = tuple[Attempt, StartedRun | None]  # the next attempt of the serial key; no run if no handler needs one

TO_COMMITTED = [phase.value for phase in Phase if may_move(phase, Phase.COMMITTED)]
READ = {name: json_value if name == "payload" else instant_of for name in ("payload", "created_at", "updated_at")}


def begin_consumer(job: Job, run_id: str, number: int, now: datetime) -> BoundStatement[StartedRun | None]:
    """Begin the first attempt at a job of a workflow's consumers; returns None if nothing was done, because it is not
    the only one that may have to run."""

    def read(columns: Mapping[str, Sequence[Any]]) -> StartedRun | None:
        if not columns["name"]:
            return None
        (workflow_id,), (handler,), (state,) = columns["workflow_id"], columns["name"], columns["state"]
        return StartedRun(run_id, workflow_id, handler, HandlerKind.CONSUMER, Phase.PREPARING, state, now)

    return single_statements.BEGIN_CONSUMER.bound(
        read,
        org_id=job.org_id,
        name=job.target,
        job_id=job.id,
        fence=job.fence,
        run_id=run_id,
        attempt=number,
        now=now,
    )


def may_repeat(job: Job, run: StartedRun, taken: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the next run is most likely one of the same consumer: more events were pending when this run
    began than it takes."""
    is_plain = run.kind is HandlerKind.CONSUMER and job.payload is None and job.schedule_id is None
    return is_plain and run.peeked is not None and run.peeked.has_more(taken)


def commit_and_begin_next(
    job: Job,
    run: StartedRun,
    state: object,
    worker: str,
    ended: AttemptResult,
    now: datetime,
    decision: Decision | None,
    reservations: Mapping[str, Sequence[str]],
    limits: Limits,
    locked: bool = False,
) -> BoundStatement[Followed | None]:
    """Commit a run that publishes nothing and begin the next run of its consumer, which reads pending events with these
    `limits`; returns None if nothing was done, because that is not what has to happen next. `locked`: it runs in a
    transaction that holds the workflow."""
    event_ids = [event_id for ids in reservations.values() for event_id in ids]
    next_job_id, run_id = new_id(), new_id()
    kept_result = None if decision is None else decision.result
    row = (job.id, job.fence, *runs.result_values(ended), kept_result, state, next_job_id, run_id)

    def read(columns: Mapping[str, Sequence[Any]]) -> Followed | None:
        if not columns["fence"]:
            return None
        (fence,), (by_topic,) = columns["fence"], columns["events"]
        started = StartedRun(
            id=run_id,
            workflow_id=run.workflow_id,
            handler=run.handler,
            kind=run.kind,
            phase=Phase.PREPARING,
            state=run.state if state is None else state,
            started_at=now,
            peeked=Peeked(limits, [event_of(values) for events in by_topic or () for values in events]),
        )
        return Attempt(job_after(job, next_job_id, fence, now), run_id, 1, now), started

    return single_statements.COMMIT_AND_BEGIN_NEXT.bound(
        read,
        list(zip(row, strict=True)),
        workflow_id=run.workflow_id,
        handler=run.handler,
        worker=worker,
        now=now,
        event_ids=event_ids,
        count=len(event_ids),
        held=EventStatus.RESERVED.value if decision is None else EventStatus.PENDING.value,
        earlier=TO_COMMITTED,
        topics=list(limits),
        most=max(limits.values(), default=0) + 1,
        locked=locked,
    )


def job_after(job: Job, job_id: str, fence: int, now: datetime) -> Job:
    """Return the job of the next run, as the statement writes it."""
    return replace(
        job,
        id=job_id,
        fence=fence,
        trigger="event",
        attempt=0,
        tries=0,
        crashes=0,
        rescues=0,
        queued_at=now,
        run_at=now,
        last_run_id=None,
        trace=None,
        terms=Terms(),
    )


def event_of(values: Sequence[object]) -> EventRow:
    """Return an event of its columns in JSON."""
    columns = dict(zip(single_statements.EVENT_COLUMNS, values, strict=True))
    return EventRow(**{**columns, **{name: READ[name](columns[name]) for name in READ}})  # type: ignore[arg-type]
