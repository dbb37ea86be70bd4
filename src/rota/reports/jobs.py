"""Jobs as records with the field names of the API: the current attempt, all attempts, their steps. Reads only."""

from datetime import datetime
from typing import Any

from sqlalchemy import or_, select

from rota.core.errors import NotFound
from rota.db.dialect import ResultRow, Tx
from rota.db.paging import Page, Record, dict_of
from rota.db.tables import jobs, runs
from rota.engine.runs import BY_ATTEMPT
from rota.reports.runs import ended_run, is_started, list_runs, living_run, with_kind_details, with_target_names

j, r = jobs.c, runs.c

JOB_FIELDS = (
    "status", "kind", "target", "target_name", "attempt", "started_at", "finished_at", "error", "artifact_id",
)  # fmt: skip


def job_rows(tx: Tx, org_id: str, job_id: str) -> tuple[ResultRow | None, list[ResultRow]]:
    """Return the row of a job, None once it ended, and the rows of its runs by attempt. The job is read first: a run
    that ends between the two reads is in the second."""
    row = tx.execute(select(jobs).where(j.org_id == org_id, j.id == job_id)).one_or_none()
    return row, list(tx.execute(select(runs).where(r.org_id == org_id, r.job_id == job_id).order_by(*BY_ATTEMPT)))


def job_id_of(tx: Tx, org_id: str, key: str) -> str:
    """Return the id of a job by its id or that of one of its runs. Raises NotFound."""
    living = select(j.id).where(j.org_id == org_id, or_(j.id == key, j.run_id == key))
    ended = select(r.job_id).where(r.org_id == org_id, or_(r.id == key, r.job_id == key)).limit(1)
    job_id = tx.execute(living).scalar() or tx.execute(ended).scalar()
    if job_id is None:
        raise NotFound(f"run {key!r} not found")
    return str(job_id)


def attempts_of(tx: Tx, org_id: str, job_id: str) -> tuple[ResultRow | None, list[Record]]:
    """Return the row of a job, None once it ended, and its attempts: those that ended, then the current or next one.
    Raises NotFound."""
    living, run_rows = job_rows(tx, org_id, job_id)
    attempts = [ended_run(row) for row in run_rows] + ([] if living is None else [living_run(living)])
    if not attempts:
        raise NotFound(f"job {job_id!r} not found")
    return living, attempts


def job(tx: Tx, org_id: str, job_id: str) -> Record:
    """Return a job: from `jobs` until it ends, then from its last run. Raises NotFound."""
    _, attempts = attempts_of(tx, org_id, job_id)
    (shown,) = with_target_names(tx, attempts[-1:])
    return {
        "id": job_id,
        "submitted_at": attempts[0]["queued_at"],
        **{field: shown[field] for field in JOB_FIELDS},
        "run_ids": [attempt["id"] for attempt in attempts if attempt["id"] is not None],
    }


def list_jobs(tx: Tx, /, org_id: str, **filters: Any) -> Page:
    """Return a page of jobs, newest first, with their current or last status."""
    records, more = list_runs(tx, org_id, last_only=True, **filters)
    return [
        {"id": record["job_id"], "submitted_at": record["queued_at"], **{field: record[field] for field in JOB_FIELDS}}
        for record in records
    ], more


def job_with_attempts(tx: Tx, org_id: str, key: str) -> Record:
    """Return a job with its attempts, by its id or that of one of its runs. Raises NotFound."""
    job_id = job_id_of(tx, org_id, key)
    living, attempts = attempts_of(tx, org_id, job_id)
    attempts = with_kind_details(tx, with_target_names(tx, attempts))
    return {"id": job_id, "living": living and dict_of(living), "attempts": attempts}


def job_steps(tx: Tx, org_id: str, job_id: str) -> list[Record]:
    """Return the steps of a job so far, attempt by attempt: pending, running, its final status. The last is current."""
    living, run_rows = job_rows(tx, org_id, job_id)
    started = living is not None and is_started(living)
    steps: list[Record] = []

    def step(attempt: int, status: str, at: datetime | None, run_id: str | None, reason: str | None = None) -> None:
        steps.append(
            {"job_id": job_id, "run_id": run_id, "attempt": attempt, "status": status, "reason": reason, "at": at}
        )

    for row in (row for row in run_rows if row.lost_fence == 0):
        step(row.attempt, "pending", row.queued_at if not steps else steps[-1]["at"], None)
        if row.started_at is not None:
            step(row.attempt, "running", row.started_at, row.id)
        step(row.attempt, row.status, row.finished_at, row.id, row.reason)
    attempt = 0 if living is None else living.attempt if started else living.attempt + 1
    if living is not None and attempt > (steps[-1]["attempt"] if steps else 0):
        step(attempt, "pending", steps[-1]["at"] if steps else living.queued_at, None, living.parked_reason)
        if started:
            step(attempt, "running", living.started_at, living.run_id)
    return steps
