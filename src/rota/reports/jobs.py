"""Jobs as records with the field names of the API: the current attempt, all attempts, their steps. Reads only."""

from datetime import datetime
from typing import Any

from sqlalchemy import or_, select

from rota.core.errors import NotFound
from rota.core.states import State
from rota.core.steps import WaitingData
from rota.db.dialect import ResultRow, Tx
from rota.db.paging import Page, Record, dict_of
from rota.db.tables import jobs, runs
from rota.engine import dependencies
from rota.engine.runs import BY_ATTEMPT
from rota.reports.runs import LIVING_RUN, is_started, list_runs, record_of, with_kind_details, with_target_names
from rota.reports.steps import shown_steps, steps_of

j, r = jobs.c, runs.c
CHILDREN_MAX = 1000
DURABLE_FIELDS = ("parent_id", "children", "waiting", "steps")  # that only jobs of tasks use
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
    attempts = [record_of(row) for row in run_rows]
    if living is not None:
        current = tx.execute(select(*LIVING_RUN).where(j.id == job_id)).one_or_none()
        if current is None:  # it ended between the two reads
            return attempts_of(tx, org_id, job_id)
        attempts.append(record_of(current))
    if not attempts:
        raise NotFound(f"job {job_id!r} not found")
    return living, attempts


def job(tx: Tx, org_id: str, job_id: str) -> Record:
    """Return a job: from `jobs` until it ends, then from its last run. Raises NotFound."""
    living, attempts = attempts_of(tx, org_id, job_id)
    (shown,) = with_target_names(tx, attempts[-1:])
    return {
        "id": job_id,
        "submitted_at": attempts[0]["queued_at"],
        **{field: shown[field] for field in JOB_FIELDS},
        "run_ids": [attempt["id"] for attempt in attempts if attempt["id"] is not None],
        **tree_of(tx, job_id, living),
        "waiting": None if living is None else waiting_of(tx, living),
        "steps": steps_of(tx, job_id),
    }


def tree_of(tx: Tx, job_id: str, living: ResultRow | None) -> Record:
    """Return the parent and the children of a job, the first 1,000."""
    parent = select(r.parent_id).where(r.job_id == job_id).limit(1)
    queued = select(j.id).where(j.parent_id == job_id)
    ended = select(r.job_id).where(r.parent_id == job_id)
    ids = {row[0] for stmt in (queued, ended) for row in tx.execute(stmt.limit(CHILDREN_MAX))}
    return {
        "parent_id": tx.execute(parent).scalar() if living is None else living.parent_id,
        "children": sorted(ids)[:CHILDREN_MAX],
    }


def waiting_of(tx: Tx, job: ResultRow) -> Record | None:
    """Return what a job in the queue waits for, other than a free worker: what its suspended run waits for, a place of
    its key, the rate of its task or queue, or other jobs. None if nothing holds it."""
    if job.waiting is not None:
        return suspension_of(job.waiting)
    if job.state == State.RETRY and job.place_wanted is not None:
        return {"for": "place", "max_running": job.place_limit}
    if job.state == State.RETRY and job.reserved_at is not None:
        return {"for": "rate", "until": job.reserved_at}
    if job.state == State.LATER and (others := dependencies.waits_for(tx, job.id)):
        return {"for": "jobs", "after": others}
    return None


def suspension_of(waiting: WaitingData) -> Record:
    """Return what a suspended run waits for, without its internal fields."""
    until = waiting.get("until")
    return {
        "for": waiting["for"],
        "step": waiting["step"],
        "until": None if until is None else datetime.fromisoformat(until),
        "topic": waiting.get("topic"),
        "key": waiting.get("key"),
    }


def list_jobs(tx: Tx, /, org_id: str, **filters: Any) -> Page:
    """Return a page of jobs, newest first, with their current or last status."""
    records, more = list_runs(tx, org_id, last_only=True, **filters)
    return [
        {"id": record["job_id"], "submitted_at": record["queued_at"], **{field: record[field] for field in JOB_FIELDS}}
        for record in records
    ], more


def job_with_attempts(tx: Tx, org_id: str, key: str) -> Record:
    """Return a job with its attempts and steps as its page shows them, by its id or that of one of its runs. Raises
    NotFound."""
    job_id = job_id_of(tx, org_id, key)
    living, attempts = attempts_of(tx, org_id, job_id)
    attempts = with_kind_details(tx, with_target_names(tx, attempts))
    shown, count = shown_steps(tx, job_id)
    return {
        "id": job_id,
        "living": living and dict_of(living),
        "attempts": attempts,
        "steps": shown,
        "step_count": count,
        **tree_of(tx, job_id, living),
    }


def job_steps(tx: Tx, org_id: str, job_id: str) -> list[Record]:
    """Return the steps of a job so far, attempt by attempt: pending, running, its final status. The last is current."""
    living, run_rows = job_rows(tx, org_id, job_id)
    started = living is not None and is_started(living)
    timeline: list[Record] = []

    def step(attempt: int, status: str, at: datetime | None, run_id: str | None, reason: str | None = None) -> None:
        timeline.append(
            {"job_id": job_id, "run_id": run_id, "attempt": attempt, "status": status, "reason": reason, "at": at}
        )

    for row in (row for row in run_rows if row.lost_fence == 0):
        step(row.attempt, "pending", row.queued_at if not timeline else timeline[-1]["at"], None)
        if row.started_at is not None:
            step(row.attempt, "running", row.started_at, row.id)
        step(row.attempt, row.status, row.finished_at, row.id, row.reason)
    attempt = 0 if living is None else living.attempt if started else living.attempt + 1
    if living is not None and attempt > (timeline[-1]["attempt"] if timeline else 0):
        step(attempt, "pending", timeline[-1]["at"] if timeline else living.queued_at, None, living.parked_reason)
        if started or living.waiting is not None:
            step(attempt, "running", living.started_at, living.run_id)
        if living.waiting is not None and living.state in (State.WAITING, State.PARKED):
            step(attempt, "paused", living.started_at, living.run_id, living.parked_reason)
    return timeline
