"""Parents and children: the end of a job is delivered to the steps that wait for it."""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import select

from rota.core.policy import FailureClass
from rota.core.states import Status
from rota.core.steps import StepStatus
from rota.db.dialect import Tx, is_listed
from rota.db.tables import jobs, runs, steps
from rota.engine import steps as step_store
from rota.engine.dependencies import wake_dependents

LIMIT_ROWS = 500


def subject_of(job_id: str) -> str:
    """Return what a step that waits for a job has as `waits_for`."""
    return f"job:{job_id}"


def deliver_ended(tx: Tx, job_ids: Sequence[str], now: datetime) -> int:
    """End the steps that wait for these jobs, which have left the queue, and wake their jobs; returns their number. A
    parent that has nothing to do before all its children have ended is woken by the last. Idempotent."""
    delivered = 0
    for job_id in job_ids:
        waiting = step_store.waiting_for(tx, subject_of(job_id))
        if not waiting:
            continue
        result, error = outcome_of(tx, job_id)
        status = StepStatus.DONE if error is None else StepStatus.FAILED
        for step in sorted(waiting, key=lambda row: row.job_id):
            if step_store.lock_job(tx, step.job_id):
                delivered += step_store.complete(tx, step.job_id, step.name, status, now, result, error)
                if step_store.can_go_on(tx, step.job_id):
                    step_store.wake(tx, [step.job_id], now)
    return delivered + wake_dependents(tx, job_ids, now)


def outcome_of(tx: Tx, job_id: str) -> tuple[object, dict[str, object] | None]:
    """Return the outcome of a job by its last run, or its error."""
    r = runs.c
    query = select(r.status, r.reason, r.error, r.outcome, r.artifact_id).where(r.job_id == job_id)
    run = tx.execute(query.order_by(*(column.desc() for column in (r.attempt, r.recorded_at))).limit(1)).one_or_none()
    if run is not None and run.status == Status.SUCCESS:
        return run.outcome, None
    status = "deleted" if run is None else run.status
    error = dict(run.error or {}) if run is not None else {}
    error.setdefault("type", "JobEnded")
    error.setdefault("message", f"job {job_id} ended as {status}" + (f": {run.reason}" if run and run.reason else ""))
    error.setdefault("code", status)
    failed = run is not None and run.status == Status.FAILED and run.reason in set(FailureClass)
    error["failure_class"] = run.reason if failed and run is not None else FailureClass.LOGIC.value
    return None, {**error, "job_id": job_id, "status": status}


def undelivered(tx: Tx, limit: int = LIMIT_ROWS) -> list[str]:
    """Return the ids of jobs that have left the queue while a step of a job in the queue waits for them: the process
    that recorded their end died before it delivered it."""
    c, parent = steps.c, jobs.alias("parent")
    gone = ~select(jobs.c.id).where(jobs.c.id == c.child_job_id).exists()
    alive = select(parent.c.id).where(parent.c.id == c.job_id).exists()
    stmt = select(c.child_job_id).where(
        step_store.IS_WAITING, c.waits_for.is_not(None), c.child_job_id.is_not(None), gone, alive
    )
    return list(tx.execute(stmt.limit(limit)).scalars())


def descendants(tx: Tx, job_ids: Collection[str]) -> list[str]:
    """Return the ids of all jobs in the queue below these, children before grandchildren."""
    below: list[str] = []
    level = list(job_ids)
    while level:
        level = list(tx.execute(select(jobs.c.id).where(is_listed(tx, jobs.c.parent_id, level))).scalars())
        below += level
    return below
