"""Jobs after jobs: a job that waits until others have ended.

A dependent job is inserted in state `later`, without a due time; `job_dependencies` has a row for each job that it
waits for, as long as its runs are kept. The end of such a job makes its dependents due, and `jobs.release_due` decides
whether each runs, never runs, or waits on. So one place decides, under the lock of the dependent job, and an end that
is delivered twice changes nothing.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, select, update

from rota.core.errors import Invalid
from rota.core.order import When
from rota.core.states import State, Status
from rota.core.steps import NO_DUE_TIME
from rota.db.dialect import Tx, is_listed, notify
from rota.db.statement import insert_rows
from rota.db.tables import job_dependencies, jobs, runs
from rota.engine.job_states import is_in

DEPENDENCY = "dependency"  # reason of a job that is skipped because its condition cannot hold
DELETED = "deleted"  # status of a job whose runs are deleted
REPAIR_BATCH_JOBS = 500

c, d, r = jobs.c, job_dependencies.c, runs.c


def follow(tx: Tx, org_id: str, after: Sequence[str]) -> dict[str, str | None]:
    """Mark jobs as followed; returns the last status of each, None while it is in the queue. Their rows stay locked, so
    that none ends unseen. Raises Invalid for an id that is no job of the org."""
    wanted = sorted(set(after))
    in_queue = select(c.id).where(is_listed(tx, c.id, wanted), c.org_id == org_id).order_by(c.id).with_for_update()
    living = set(tx.execute(in_queue).scalars())
    tx.execute(update(jobs).where(is_listed(tx, c.id, sorted(living))).values(followed=True))
    statuses: dict[str, str | None] = dict.fromkeys(living)
    statuses |= last_statuses(tx, org_id, [job_id for job_id in wanted if job_id not in living])
    for position, job_id in enumerate(after):
        if job_id not in statuses:
            raise Invalid(f"after[{position}]", job_id, "is not a job; name ids of jobs that exist (`rota job list`)")
    return statuses


def statuses_of(tx: Tx, org_id: str, job_ids: Sequence[str]) -> dict[str, str | None]:
    """Return the last status of jobs: None while one is in the queue, `deleted` if its runs are deleted. The rows of
    those in the queue stay locked, so that none ends unseen."""
    in_queue = select(c.id).where(is_listed(tx, c.id, job_ids), c.org_id == org_id).order_by(c.id).with_for_update()
    living = set(tx.execute(in_queue).scalars())
    ended = last_statuses(tx, org_id, [job_id for job_id in job_ids if job_id not in living])
    return {job_id: None if job_id in living else ended.get(job_id, DELETED) for job_id in job_ids}


def last_statuses(tx: Tx, org_id: str, job_ids: Collection[str]) -> dict[str, str]:
    """Return the status of the last run of jobs that have left the queue."""
    if not job_ids:
        return {}
    stmt = select(r.job_id, r.status).where(is_listed(tx, r.job_id, job_ids), r.org_id == org_id)
    return {row.job_id: row.status for row in tx.execute(stmt.order_by(r.attempt, r.recorded_at))}


def decide(when: When, statuses: Collection[str | None]) -> bool | None:
    """Return whether a dependent job runs (True) or never will (False); None while that is open."""
    failed = any(status is not None and status != Status.SUCCESS for status in statuses)
    if when is When.SUCCESS and failed:
        return False
    if None in statuses:
        return None
    return when is not When.FAILURE or failed


def insert(tx: Tx, job_ids: Sequence[str], statuses: dict[str, str | None], when: When) -> None:
    """Record what jobs wait for, with the statuses of those that have ended already."""
    rows = [
        {"job_id": job_id, "depends_on": other, "condition": when.value, "status": status}
        for job_id in job_ids
        for other, status in sorted(statuses.items())
    ]
    insert_rows(tx, job_dependencies, rows)


def wake_dependents(tx: Tx, ended: Collection[str], now: datetime) -> int:
    """Make jobs due that wait for these, which have left the queue; returns their number. Idempotent."""
    if not ended:
        return 0
    waiting = select(d.job_id).where(is_listed(tx, d.depends_on, ended))
    stmt = update(jobs).where(c.id.in_(waiting), is_in(c.state, [State.LATER]), c.run_at > now).values(run_at=now)
    woken: int = tx.execute(stmt).rowcount
    if woken:
        notify(tx, "later")
    return woken


def decide_due(tx: Tx, now: datetime, limit: int) -> list[str]:
    """Decide about dependent jobs that became due, except those about which another process is deciding: the rows of
    those that run get the statuses that decided it, those that wait on lose their due time; returns the ids of those
    that never run."""
    due = select(d.job_id).distinct().join(jobs, c.id == d.job_id).where(is_in(c.state, [State.LATER]), c.run_at <= now)
    job_ids = sorted(tx.execute(due.limit(limit)).scalars())
    never: list[str] = []
    for job_id in job_ids:
        # one that waited would have the lock when another process has made the job ready, and claims skip locked jobs
        still_due = select(c.org_id).where(c.id == job_id, is_in(c.state, [State.LATER]))
        org_id = tx.execute(still_due.with_for_update(skip_locked=True)).scalar()
        rows = list(tx.execute(select(job_dependencies).where(d.job_id == job_id)))
        if org_id is None or not rows:
            continue
        others = [row.depends_on for row in rows if row.status is None]
        queued = set(tx.execute(select(c.id).where(is_listed(tx, c.id, others))).scalars())
        ended = last_statuses(tx, org_id, [other for other in others if other not in queued])
        known = {other: ended.get(other, DELETED) for other in others if other not in queued}
        statuses = [known.get(row.depends_on) if row.status is None else row.status for row in rows]
        runs_now = decide(When(rows[0].condition), statuses)
        if runs_now is None:
            tx.execute(update(jobs).where(c.id == job_id).values(run_at=NO_DUE_TIME))
            continue
        record_statuses(tx, job_id, known)
        if not runs_now:
            never.append(job_id)
    return never


def undecided(job_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Match jobs that wait for others and about which is not decided, although they may be due."""
    return select(d.job_id).where(d.job_id == job_id, d.status.is_(None)).exists()


def record_statuses(tx: Tx, job_id: str, statuses: dict[str, str]) -> None:
    """Record how jobs ended that a job waited for."""
    for status in sorted(set(statuses.values())):
        others = [other for other, ended_as in statuses.items() if ended_as == status]
        rows = and_(d.job_id == job_id, is_listed(tx, d.depends_on, others))
        tx.execute(update(job_dependencies).where(rows).values(status=status))


def undelivered(tx: Tx) -> list[str]:
    """Return the ids of jobs that have left the queue while others wait for them: the process that recorded their end
    died before it woke these."""
    gone = ~select(c.id).where(c.id == d.depends_on).exists()
    waiting = select(c.id).where(c.id == d.job_id, is_in(c.state, [State.LATER]), c.run_at == NO_DUE_TIME).exists()
    stmt = select(d.depends_on).distinct().where(d.status.is_(None), gone, waiting)
    return list(tx.execute(stmt.limit(REPAIR_BATCH_JOBS)).scalars())


def waits_for(tx: Tx, job_id: str) -> list[str]:
    """Return the ids of the jobs that a job waits for and that have not ended."""
    stmt = select(d.depends_on).where(d.job_id == job_id, d.status.is_(None)).order_by(d.depends_on)
    return list(tx.execute(stmt).scalars())
