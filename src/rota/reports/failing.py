"""Schedules and targets that are failing: their newest job of the day failed, and none succeeded since.

The last attempt of a job decides: a failed attempt that is or was retried does not count. A person may acknowledge a
failing subject; the acknowledgement holds until its next success.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, case, func, literal_column, select

from rota.core.errors import Conflict, NotFound
from rota.core.redact import redacted
from rota.db.dialect import Tx
from rota.db.paging import Record, dict_of
from rota.db.tables import acknowledgements, jobs, runs, schedules, users
from rota.reports.runs import with_target_names

FAILING_HOURS = 24
FAILING_MOST = 200  # subjects that are listed
SUCCESSES_SEARCHED = 10_000  # newest runs in which later successes of targets without a schedule are looked for

r, s, j, a, u = runs.c, schedules.c, jobs.c, acknowledgements.c, users.c
FAILED = and_(
    r.status.in_([literal_column("'failed'"), literal_column("'crashed'")]), r.status != literal_column("'success'")
)
SUCCESS: ColumnElement[str] = literal_column("'success'")  # as text: a partial index serves no parameter


def failing(tx: Tx, org_id: str, now: datetime) -> list[Record]:
    """What is failing now, latest failure first, at most FAILING_MOST subjects: a schedule, or the target of jobs
    without a schedule."""
    later = runs.alias()
    superseded = select(later.c.id).where(later.c.job_id == r.job_id, later.c.attempt > r.attempt).exists()
    alive = select(j.id).where(j.id == r.job_id).exists()
    unscheduled = r.schedule_id.is_(None)
    kind, target = case((unscheduled, r.kind)).label("kind"), case((unscheduled, r.target)).label("target")
    groups = (
        select(
            r.schedule_id, kind, target, func.count().label("times"),
            func.max(r.recorded_at).label("last_at"), func.max(r.id).label("run_id"),
        )
        .where(r.org_id == org_id, r.recorded_at >= now - timedelta(hours=FAILING_HOURS), FAILED, ~superseded, ~alive)
        .group_by(r.schedule_id, kind, target)
        .subquery("groups")
    )  # fmt: skip
    success = runs.alias()
    recovered = (
        select(success.c.id)
        .where(
            success.c.schedule_id == groups.c.schedule_id,
            success.c.status == SUCCESS,
            success.c.recorded_at > groups.c.last_at,
        )
        .exists()
    )
    name = func.nullif(r.target_name, r.target).label("target_name")  # an id is looked up below
    columns = (r.id, r.job_id, r.kind, r.target, name, r.status, r.reason, r.error, r.attempt, r.finished_at)
    stmt = (
        select(groups.c.schedule_id, groups.c.times, groups.c.last_at, s.name.label("schedule"), *columns)
        .select_from(groups.join(runs, r.id == groups.c.run_id).outerjoin(schedules, s.id == groups.c.schedule_id))
        .where(~recovered, s.deleted_at.is_(None))
        .order_by(groups.c.last_at.desc())
        .limit(FAILING_MOST)
    )
    rows = [{**dict_of(row), "error": redacted(row.error)} for row in tx.execute(stmt)]
    rows = without_recovered_targets(tx, org_id, rows)
    return [{**row, "acknowledged": acknowledgement(tx, org_id, row)} for row in with_target_names(tx, rows)]


def without_recovered_targets(tx: Tx, org_id: str, rows: Sequence[Record]) -> list[Record]:
    """Drop targets of jobs without a schedule that succeeded after their last failure. The newest
    SUCCESSES_SEARCHED runs of the org are searched: no index leads from a target to its successes."""
    since = [row["last_at"] for row in rows if row["schedule_id"] is None]
    succeeded: dict[tuple[str, str], datetime] = {}
    if since:
        newest = (
            select(r.kind, r.target, r.schedule_id, r.status, r.recorded_at)
            .where(r.org_id == org_id, r.recorded_at > min(since))
            .order_by(r.recorded_at.desc(), r.id.desc())
            .limit(SUCCESSES_SEARCHED)
            .subquery()
        )
        n = newest.c
        stmt = select(n.kind, n.target, func.max(n.recorded_at)).where(n.schedule_id.is_(None), n.status == SUCCESS)
        succeeded = {(kind, target): at for kind, target, at in tx.execute(stmt.group_by(n.kind, n.target))}
    return [
        row
        for row in rows
        if row["schedule_id"] is not None
        or succeeded.get((row["kind"], row["target"]), row["last_at"]) <= row["last_at"]
    ]


def subject_of(schedule_id: str | None, kind: str, target: str) -> str:
    """The key of what fails: its schedule, or the target of jobs without a schedule."""
    return schedule_id or f"{kind}:{target}"


def acknowledgement(tx: Tx, org_id: str, row: Record) -> Record | None:
    """Who has acknowledged a failing subject, unless it succeeded since."""
    subject = subject_of(row["schedule_id"], row["kind"], row["target"])
    stmt = select(a.at, a.note, u.name.label("by")).select_from(acknowledgements.outerjoin(users, u.id == a.user_id))
    stored = tx.execute(stmt.where(a.org_id == org_id, a.subject == subject)).one_or_none()
    if stored is None or succeeded_since(tx, org_id, row, stored.at):
        return None
    return dict_of(stored)


def succeeded_since(tx: Tx, org_id: str, row: Record, at: datetime) -> bool:
    """Whether a failing subject had a success after `at`; for targets without a schedule among the newest runs."""
    stmt = select(r.kind, r.target, r.status).where(r.recorded_at > at)
    if row["schedule_id"] is not None:
        stmt = stmt.where(r.schedule_id == row["schedule_id"], r.status == SUCCESS).limit(1)
        return tx.execute(stmt).first() is not None
    newest = stmt.where(r.org_id == org_id).order_by(r.recorded_at.desc()).limit(SUCCESSES_SEARCHED).subquery().c
    same = (newest.kind == row["kind"], newest.target == row["target"], newest.status == SUCCESS)
    return tx.execute(select(newest.status).where(*same).limit(1)).first() is not None


def acknowledge(tx: Tx, org_id: str, run_id: str, user_id: str | None, note: str, now: datetime) -> None:
    """Acknowledge the failure that a run belongs to. Raises NotFound, or Conflict if that run did not fail."""
    subject = failed_subject(tx, org_id, run_id)
    withdraw(tx, org_id, subject)
    values = {"org_id": org_id, "subject": subject, "run_id": run_id, "user_id": user_id, "note": note, "at": now}
    tx.execute(acknowledgements.insert().values(values))


def unacknowledge(tx: Tx, org_id: str, run_id: str) -> None:
    """Withdraw the acknowledgement of the failure that a run belongs to, if there is one."""
    withdraw(tx, org_id, failed_subject(tx, org_id, run_id))


def withdraw(tx: Tx, org_id: str, subject: str) -> None:
    tx.execute(acknowledgements.delete().where(a.org_id == org_id, a.subject == subject))


def failed_subject(tx: Tx, org_id: str, run_id: str) -> str:
    row = tx.execute(
        select(r.schedule_id, r.kind, r.target, r.status).where(r.org_id == org_id, r.id == run_id)
    ).one_or_none()
    if row is None:
        raise NotFound(f"run {run_id} not found")
    if row.status not in ("failed", "crashed"):
        raise Conflict(f"run {run_id} did not fail: its status is {row.status}")
    return subject_of(row.schedule_id, row.kind, row.target)
