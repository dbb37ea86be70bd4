"""Decisions of people about suspended and parked runs: approvals, and effects whose outcome is unknown."""

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum

from sqlalchemy import update

from rota.core.errors import Conflict, NotFound, Refused
from rota.core.states import State
from rota.core.steps import OUTCOME_UNKNOWN, StepStatus, StepType
from rota.db.dialect import Tx
from rota.db.tables import jobs as job_table
from rota.db.tables import steps as step_table
from rota.engine import jobs, runs, steps
from rota.engine.job_states import is_in
from rota.engine.records import JobRow, StepRow

APPROVER_ROLE = "operator"  # approvals of this name are for all operators
c = step_table.c

MayApprove = Callable[[str], bool]  # whether the caller may decide an approval of this name


class EffectResolution(StrEnum):
    """What a person knows about an effect without an answer."""

    APPLIED = "applied"
    NOT_APPLIED = "not_applied"  # the next attempt tries it again
    SKIP = "skip"  # the task goes on without it


def subject_of(job_id: str, step: str) -> str:
    """Return what a step that waits for an approval has as `waits_for`."""
    return f"approval:{job_id}:{step}"


def decide(
    tx: Tx, org_id: str, key: str, step: str | None, approved: bool, by: str, comment: str | None,
    may: MayApprove, now: datetime,
) -> str:  # fmt: skip
    """Decide the approval that a run waits for, given by the id of the run or its job; returns the job's id. Raises
    NotFound, Conflict if it waits for none or for several and `step` names none, Refused if the caller may not."""
    job = locked_job(tx, org_id, key)
    waiting = [row for row in steps.of_job(tx, job.id) if is_open_approval(row)]
    row = chosen(key, waiting, step, "approval")
    who = row.topic or ""
    if not may(who):
        raise Refused(f"run {key}: {who!r} decides this: an admin, the user of that e-mail or a key with approve:{who}")
    result = {"approved": approved, "by": by, "comment": comment}
    steps.complete(tx, job.id, row.name, StepStatus.DONE, now, result)
    steps.wake(tx, [job.id], now)
    return job.id


def is_open_approval(row: StepRow) -> bool:
    return row.type is StepType.APPROVAL and row.status is StepStatus.WAITING


def resolve_effect(
    tx: Tx, org_id: str, key: str, step: str | None, resolution: EffectResolution, result: object, by: str,
    now: datetime,
) -> str:  # fmt: skip
    """Record what a person knows about an effect without an answer, and let its job go on; returns the job's id. Raises
    NotFound, or Conflict if the job has no such effect or still runs."""
    job = locked_job(tx, org_id, key)
    unknown = [row for row in steps.of_job(tx, job.id) if row.status in OUTCOME_UNKNOWN]
    row = chosen(key, unknown, step, "effect with an unknown outcome")
    if job.state not in (State.PARKED, State.RETRY):
        raise Conflict(f"run {key} is {job.state}: its effect {row.name!r} is decided when the run has stopped")
    failed = resolution is EffectResolution.NOT_APPLIED
    error = {
        "code": "not_applied", "type": "NotApplied", "message": f"{by} decided that it did not happen",
        "traceback": None, "failure_class": "transient", "final": False, "module": None,
    }  # fmt: skip
    values = {
        "status": (StepStatus.FAILED if failed else StepStatus.DONE).value,
        "result": result if resolution is EffectResolution.APPLIED else None,
        "error": error if failed else None,
        "finished_at": now,
    }
    tx.execute(update(step_table).where(c.job_id == job.id, c.name == row.name).values(values))
    if job.state == State.PARKED:
        jobs.resume(tx, job.id, now)
    else:
        backs_off = (job_table.c.id == job.id, is_in(job_table.c.state, [State.RETRY]))
        tx.execute(update(job_table).where(*backs_off).values(run_at=now))
    return job.id


def locked_job(tx: Tx, org_id: str, key: str) -> JobRow:
    """Return a job in the queue by its id or that of one of its runs, locked. Raises NotFound, or Conflict if it has
    ended."""
    run = runs.get(tx, org_id, key)
    job = jobs.find(tx, org_id, key if run is None else run.job_id)
    locked = job is not None and steps.lock_job(tx, job.id)
    job = jobs.find(tx, org_id, job.id) if job is not None and locked else None
    if job is None and run is None and not runs.of_job(tx, org_id, key):
        raise NotFound(f"run {key!r} not found")
    if job is None:
        raise Conflict(f"run {key} has ended: there is nothing to decide")
    return job


def chosen(key: str, rows: list[StepRow], step: str | None, kind: str) -> StepRow:
    named = [row for row in rows if step in (None, row.name)]
    if not named:
        raise Conflict(f"run {key} waits for no {kind}" + (f" of step {step!r}" if step else ""))
    if len(named) > 1:
        raise Conflict(f"run {key} has several; name the step: {', '.join(row.name for row in named)}")
    return named[0]
