"""Slots of schedules with their verdicts, as records with the field names of the API. Reads only."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, case, func, literal_column, select

from rota.core.states import STATUSES_THAT_RAN, Status, Verdict
from rota.db.dialect import Query, ResultRow, Tx
from rota.db.paging import PAGE_ROWS, Page, Record, dict_of, page_by
from rota.db.tables import jobs, runs, schedules, slots
from rota.reports.schedules import schedule_id_of

STRIP_SLOTS = 30
MISSED_SEARCHED = 10_000  # newest missed slots of all orgs in which those of an org are looked for

s, j, r, t = schedules.c, jobs.c, runs.c, slots.c

verdict_of_slot: ColumnElement[object] = case(  # of a fired slot it follows from its job and last run
    (t.verdict.is_not(None), t.verdict),
    (j.id.is_not(None), None),
    (r.status.in_(sorted(STATUSES_THAT_RAN)), Verdict.RAN.value),
    else_=r.status,  # null without job and run, which the slot audit reports: retention stores verdicts first
)


def list_slots(
    tx: Tx,
    org_id: str,
    *,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
    schedule: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    verdict: str | None = None,
) -> Page:
    """Return a page of slots with their verdicts, newest first."""
    stmt = slot_query(since, until).where(s.org_id == org_id)
    if schedule is not None:
        stmt = stmt.where(t.schedule_id == (schedule_id_of(tx, org_id, schedule) or schedule))
    if verdict is not None:
        stmt = stmt.where(verdict_of_slot == verdict)
    return page_by(tx, stmt, (t.slot, t.schedule_id), limit, cursor, slot_record, descending=True)


def slot_query(since: datetime | None, until: datetime | None) -> Query:
    """Return the statement for slots and gaps between two times; None is no bound."""
    attempts = select(func.max(r.attempt)).where(r.job_id == t.job_id, r.lost_fence == 0)
    last = attempts.correlate(slots).scalar_subquery()
    columns = (
        t.schedule_id, s.name.label("schedule_name"), t.slot, t.last_slot, t.count, verdict_of_slot.label("verdict"),
        func.coalesce(t.reason, r.reason).label("reason"), t.note, t.into_slot,
        func.coalesce(j.run_id, r.id).label("run_id"), r.status, j.id.label("living"), j.run_id.label("running"),
    )  # fmt: skip
    joined = (
        slots.join(schedules, s.id == t.schedule_id)
        .outerjoin(jobs, j.id == t.job_id)
        .outerjoin(runs, and_(r.job_id == t.job_id, r.attempt == last, r.lost_fence == 0))
    )
    stmt = select(*columns).select_from(joined)
    if since is not None:
        stmt = stmt.where(func.coalesce(t.last_slot, t.slot, type_=t.slot.type) >= since)
    return stmt if until is None else stmt.where(t.slot < until)


def slot_record(row: ResultRow) -> Record:
    record = dict_of(row)
    job_id, run_id = record.pop("living"), record.pop("running")
    if job_id is not None:
        record["status"] = (Status.RUNNING if run_id else Status.PENDING).value
        record["run_id"] = run_id
    return {**record, "status": record["status"] or record["verdict"]}


def strips(tx: Tx, ids: Sequence[str], count: int = STRIP_SLOTS) -> dict[str, list[Record]]:
    """Return the last slots of each of these schedules, oldest first."""
    return {schedule_id: strip(tx, schedule_id, count) for schedule_id in ids}


def strip(
    tx: Tx, schedule_id: str, count: int, since: datetime | None = None, until: datetime | None = None
) -> list[Record]:
    """Return the last slots of a schedule, oldest first."""
    stmt = slot_query(since, until).where(t.schedule_id == schedule_id).order_by(t.slot.desc(), t.schedule_id.desc())
    return [slot_record(row) for row in tx.execute(stmt.limit(count))][::-1]


def missed(tx: Tx, org_id: str, since: datetime, limit: int) -> list[Record]:
    """Return slots that passed while no scheduler ran, newest first; a gap is one row."""
    columns = (t.schedule_id, t.slot, t.last_slot, t.count, t.reason)
    newest = select(*columns).where(t.verdict == literal_column("'missed'"), t.slot >= since).order_by(t.slot.desc())
    recent = newest.limit(
        MISSED_SEARCHED
    ).subquery()  # a subquery: the planners of both databases then use the index first
    stmt = select(s.name, *recent.c).select_from(recent.join(schedules, s.id == recent.c.schedule_id))
    stmt = stmt.where(s.org_id == org_id).order_by(recent.c.slot.desc()).limit(limit)
    return [dict_of(row) for row in tx.execute(stmt)]
