"""Recorded steps of durable tasks as records: of a job, and what jobs of an org wait for. Reads only."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, literal_column, select, type_coerce

from rota.core.redact import redacted
from rota.core.steps import ENDED, StepType
from rota.db.dialect import Query, Tx, is_listed
from rota.db.paging import Record, dict_of
from rota.db.tables import jobs, schedules, steps
from rota.engine.steps import IS_WAITING

STEPS_SHOWN_MAX = 300  # on a page; the API has all
GRID_STEPS_MAX = 50  # of a job, beside those of other jobs
OPEN_STEPS_MAX = 100  # that have not ended, on a page
# `waits_for` of approvals begins with this text. The range holds in every collation: its ends differ in a letter
APPROVAL_RANGE = ("approval", "approvam")
SIGNAL_RANGE = ("signal", "signam")

j, s = jobs.c, steps.c
STEP = (
    s.name, s.seq, s.type, s.status, s.attempts, s.started_at, s.finished_at, s.result, s.error, s.until, s.topic,
    s.key, s.child_job_id,
)  # fmt: skip
IS_APPROVAL = s.type == literal_column(f"'{StepType.APPROVAL.value}'")
SHOWN_STEP = (  # results and parameters may be large: only those of approvals are shown
    *(column for column in STEP if column is not s.result),
    type_coerce(case((IS_APPROVAL, s.params)), s.params.type).label("params"),
    type_coerce(case((IS_APPROVAL, s.result)), s.result.type).label("decision"),
)


def steps_of(tx: Tx, job_id: str) -> list[Record]:
    """Return the recorded steps of a job, in the order of their calls, with redacted results."""
    rows = tx.execute(select(*STEP).where(s.job_id == job_id).order_by(s.seq, s.started_at))
    return [{**dict_of(row), "result": redacted(row.result), "error": shown_error(redacted(row.error))} for row in rows]


def of_jobs(tx: Tx, org_id: str, job_ids: Collection[str]) -> dict[str, dict[str, Record]]:
    """Return the steps of jobs by name, in the order of their calls, then by job; of many the first."""
    columns = (s.job_id, s.name, s.status, s.started_at, s.finished_at)
    stmt = select(*columns).where(s.org_id == org_id, is_listed(tx, s.job_id, job_ids), s.seq < GRID_STEPS_MAX)
    by_name: dict[str, dict[str, Record]] = {}
    for row in tx.execute(stmt.order_by(s.seq, s.job_id)):
        by_name.setdefault(row.name, {})[row.job_id] = dict_of(row)
    return dict(list(by_name.items())[:GRID_STEPS_MAX])


def shown_error(error: Any) -> Record | None:
    """Return the error of a step with the fields of an error of a run."""
    if not error:
        return None
    return {name: error.get(name) for name in ("code", "type", "message", "traceback")}


def progress(tx: Tx, job_id: str) -> Record | None:
    """Return what differs after every change of a job's steps: their number, how many have ended, and the last time at
    which one began or ended. None for a job without steps."""
    ended = func.count(s.finished_at)
    stmt = select(func.count(), ended, func.sum(s.attempts), func.max(s.started_at), func.max(s.finished_at))
    count, ended_count, attempts, *times = tx.execute(stmt.where(s.job_id == job_id)).one()
    if not count:
        return None
    at = max(time for time in times if time is not None)
    return {"job_id": job_id, "steps": count, "ended": ended_count, "attempts": int(attempts), "at": at}


def shown_steps(tx: Tx, job_id: str, limit: int = STEPS_SHOWN_MAX) -> tuple[list[Record], int]:
    """Return the steps of a job for its page and the number of all: the last ones, and those that have not ended. They
    have no results; those of approvals have `title` and `decision`."""
    stmt = select(*SHOWN_STEP).where(s.job_id == job_id)
    last = list(tx.execute(stmt.order_by(s.seq.desc(), s.started_at.desc()).limit(limit + 1)))
    if len(last) <= limit:
        return [page_record(row) for row in reversed(last)], len(last)
    total = tx.execute(select(func.count()).where(s.job_id == job_id)).scalar_one()
    is_open = s.status.not_in([status.value for status in ENDED])
    before = stmt.where(is_open, s.seq < last[limit - 1].seq).order_by(s.seq).limit(OPEN_STEPS_MAX)
    return [page_record(row) for row in (*tx.execute(before), *reversed(last[:limit]))], total


def page_record(row: Any) -> Record:
    record = dict_of(row)
    params = record.pop("params")
    return {
        **record,
        "error": shown_error(redacted(row.error)),
        "title": params.get("title") if isinstance(params, dict) else None,
    }


def open_approvals(tx: Tx, org_id: str, limit: int) -> list[Record]:
    """Return the approvals that jobs of an org wait for, the oldest first."""
    rows = tx.execute(open_waits(org_id, StepType.APPROVAL, APPROVAL_RANGE).order_by(s.started_at).limit(limit))
    return [{**dict_of(row), "title": (row.params or {}).get("title") or row.name} for row in rows]


def awaited_signals(tx: Tx, org_id: str, limit: int) -> list[Record]:
    """Return signals that jobs of an org wait for, in any order."""
    return [dict_of(row) for row in tx.execute(open_waits(org_id, StepType.SIGNAL, SIGNAL_RANGE).limit(limit))]


def open_waits(org_id: str, step_type: StepType, subjects: tuple[str, str]) -> Query:
    """Return the query for waits of one type of jobs in the queue, with what they are about."""
    columns = (s.job_id, s.name, s.topic, s.key, s.params, s.started_at, s.until, j.target, j.schedule_id)
    joined = steps.join(jobs, j.id == s.job_id).outerjoin(schedules, schedules.c.id == j.schedule_id)
    waits = waiting_in(subjects)
    return (
        select(*columns, schedules.c.name.label("schedule"))
        .select_from(joined)
        .where(waits, s.type == step_type.value, s.org_id == org_id)
    )


def waiting_in(subjects: tuple[str, str]) -> ColumnElement[bool]:
    """Match waiting steps by a range of `waits_for`, which the index of waiting steps serves."""
    first, end = subjects
    return and_(IS_WAITING, s.waits_for.is_not(None), s.waits_for >= first, s.waits_for < end)
