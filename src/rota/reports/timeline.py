"""Runs and slots of schedules between two times, for the timeline. Reads only, and a bounded number of rows."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, and_, bindparam, literal_column, select

from rota.core.states import Status, Verdict, shown_status
from rota.db.dialect import Query, Tx, is_listed
from rota.db.paging import Record, dict_of
from rota.db.tables import jobs, runs, slots
from rota.reports.runs import LIVING_FILTERS, LIVING_RUN

RUNS_MOST = 200  # of a schedule
LATER_READ = 50  # runs recorded after the range that may have begun in it
FOUND_READ = 5_000  # newest runs of an org with a status in which schedules are looked for
LIVING_READ = 2_000  # runs that have not ended, of the schedules of a page

r, j, t = runs.c, jobs.c, slots.c

RUN: tuple[ColumnElement[Any], ...] = (
    r.id, r.job_id, r.schedule_id, r.status, r.reason, r.attempt, r.slot, r.queued_at, r.started_at, r.finished_at,
    literal_column("NULL").label("retry_at"),
)  # fmt: skip
LIVING = tuple(column for column in LIVING_RUN if column.name in {column.name for column in RUN})
NOT_SUCCESS = r.status != literal_column("'success'")  # as the partial index has it


@dataclass(frozen=True, slots=True)
class Past:
    """What happened to a schedule between two times, oldest first."""

    runs: list[Record]
    complete: bool  # else earlier ones of the range are missing
    slots: list[Record]  # that did not run: missed, skipped, coalesced


def pasts(tx: Tx, ids: Sequence[str], start: datetime, end: datetime, status: str | None) -> dict[str, Past]:
    """Return runs that were queued, waited or ran between two times, with a status if given, and slots without runs."""
    living = select(*LIVING).where(is_listed(tx, j.schedule_id, ids), j.queued_at < end)
    now_living: dict[str, list[Record]] = {}
    for row in tx.execute(living.order_by(j.id.desc()).limit(LIVING_READ)):
        now_living.setdefault(row.schedule_id, []).insert(0, shown(dict_of(row)))
    return {key: past(tx, key, start, end, status, now_living.get(key, [])) for key in ids}


def past(
    tx: Tx, schedule_id: str, start: datetime, end: datetime, status: str | None, living: Sequence[Record]
) -> Past:
    params = {"key": schedule_id, "start": start, "end": end}
    wanted = {} if status is None else {"status": status}
    newest = tx.execute(RECORDED if status is None else RECORDED_WITH_STATUS, {**params, **wanted}).all()
    crossing = tx.execute(CROSSING, params)
    ended = [shown(dict_of(row)) for row in (*newest[::-1], *crossing)]
    records = [record for record in (*ended, *living) if status in (None, record["status"])]
    missing = [] if status else [dict_of(row) for row in tx.execute(MISSING, params)]
    return Past(records, len(newest) < RUNS_MOST, missing)


# built once: building them for each of the rows costs as much as running them


def recorded_query(*conditions: ColumnElement[bool]) -> Query:
    """Select the newest runs of a schedule that were recorded in the range."""
    inside = (r.schedule_id == KEY, r.recorded_at >= bindparam("start"), r.recorded_at < bindparam("end"))
    stmt = select(*RUN).where(*inside, *conditions)
    return stmt.order_by(r.recorded_at.desc(), r.id.desc()).limit(literal_column(str(RUNS_MOST)))


def crossing_query() -> Query:
    """Select runs that began in the range and ended after it."""
    after = select(*RUN).where(r.schedule_id == KEY, r.recorded_at >= bindparam("end"))
    later = after.order_by(r.recorded_at, r.id).limit(literal_column(str(LATER_READ))).subquery()
    return select(later).where(later.c.queued_at < bindparam("end"))


def missing_query() -> Query:
    """Select slots and gaps without a run among the newest of the range."""
    columns = (t.slot, t.last_slot, t.count, t.verdict, t.reason)
    newest = select(*columns).where(t.schedule_id == KEY, t.slot < bindparam("end"), t.slot >= bindparam("start"))
    read = newest.order_by(t.slot.desc()).limit(literal_column(str(RUNS_MOST))).subquery()
    return select(read).where(read.c.verdict.is_not(None), read.c.verdict != Verdict.RAN.value).order_by(read.c.slot)


KEY: BindParameter[Any] = bindparam("key")
RECORDED, RECORDED_WITH_STATUS = recorded_query(), recorded_query(r.status == bindparam("status"))
CROSSING, MISSING = crossing_query(), missing_query()


def shown(record: Record) -> Record:
    return {**record, "status": shown_status(record)}


def schedules_with(tx: Tx, org_id: str, status: str, start: datetime, end: datetime, limit: int) -> list[str]:
    """Return schedules that have runs with a status between two times, of the newest such runs."""
    if status in LIVING_FILTERS and status != Status.PAUSED:
        living = select(j.schedule_id).where(
            j.org_id == org_id, j.schedule_id.is_not(None), LIVING_FILTERS[Status(status)]
        )
        ids: Collection[str] = tx.execute(living.order_by(j.id.desc()).limit(FOUND_READ)).scalars().all()
    else:
        conditions = and_(
            r.org_id == org_id,
            r.schedule_id.is_not(None),
            NOT_SUCCESS,
            r.status == literal_column(f"'{Status(status).value}'"),
        )
        stmt = select(r.schedule_id).where(conditions, r.recorded_at >= start, r.recorded_at < end)
        ids = tx.execute(stmt.order_by(r.recorded_at.desc()).limit(FOUND_READ)).scalars().all()
    return list(dict.fromkeys(ids))[:limit]
