"""Enqueues child jobs together with the steps that wait for them."""

from datetime import datetime

from rota.core.model import Job, NewJob
from rota.db.dialect import Tx, lock_keys
from rota.engine import children, jobs, steps
from rota.engine.records import StepRow


def spawn(tx: Tx, job: Job, row: StepRow, child: NewJob, now: datetime) -> StepRow:
    """Enqueue a child of a job that this worker owns, unless the step is recorded; returns the step as it is recorded.
    Raises LeaseLost."""
    lock_keys(tx, [child.serial_key] if child.serial_key else [])
    row.child_job_id, row.waits_for = child.id, children.subject_of(child.id)
    registered = steps.register(tx, job, row)
    if registered.child_job_id == child.id:
        jobs.enqueue(tx, [child], now)
    return registered
