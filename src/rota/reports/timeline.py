"""Runs and slots of schedules between two times, for the timeline. Reads only, and a bounded number of rows."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, and_, literal_column, select

from rota.core.states import Status, Verdict, shown_status
from rota.db.dialect import Tx, is_listed
from rota.db.paging import Record, dict_of
from rota.db.tables import jobs, runs, slots
from rota.reports.runs import LIVING_FILTERS, LIVING_RUN

RUNS_MOST = 200  # of a schedule
LATER_READ = 50  # runs recorded after the range that may have begun in it
FOUND_READ = 5_000  # newest runs of an org with a status in which schedules are looked for
LIVING_READ = 2_000  # runs that have not ended, of the schedules of a page

r, j, t = runs.c, jobs.c, slots.c

RUN = (
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
    of_schedule = r.schedule_id == schedule_id
    inside = select(*RUN).where(of_schedule, r.recorded_at >= start, r.recorded_at < end, *of_status(status))
    newest = tx.execute(inside.order_by(r.recorded_at.desc(), r.id.desc()).limit(RUNS_MOST)).all()
    after = select(*RUN).where(of_schedule, r.recorded_at >= end).order_by(r.recorded_at, r.id).limit(LATER_READ)
    later = after.subquery()
    crossing = select(later).where(later.c.queued_at < end)
    ended = [shown(dict_of(row)) for row in (*newest[::-1], *tx.execute(crossing))]
    records = [record for record in (*ended, *living) if status in (None, record["status"])]
    return Past(records, len(newest) < RUNS_MOST, [] if status else missing_slots(tx, schedule_id, start, end))


def of_status(status: str | None) -> tuple[ColumnElement[bool], ...]:
    return () if status is None or status not in set(Status) else (r.status == status,)


def shown(record: Record) -> Record:
    return {**record, "status": shown_status(record)}


def missing_slots(tx: Tx, schedule_id: str, start: datetime, end: datetime) -> list[Record]:
    """Return slots and gaps without a run among the newest of the range."""
    columns = (t.slot, t.last_slot, t.count, t.verdict, t.reason)
    newest = select(*columns).where(t.schedule_id == schedule_id, t.slot < end, t.slot >= start)
    read = newest.order_by(t.slot.desc()).limit(RUNS_MOST).subquery()
    stmt = select(read).where(read.c.verdict.is_not(None), read.c.verdict != Verdict.RAN.value).order_by(read.c.slot)
    return [dict_of(row) for row in tx.execute(stmt)]


def schedules_with(tx: Tx, org_id: str, status: str, start: datetime, end: datetime, limit: int) -> list[str]:
    """Return schedules that have runs with a status between two times, of the newest such runs."""
    if status in LIVING_FILTERS and status != Status.PAUSED:
        living = select(j.schedule_id).where(
            j.org_id == org_id, j.schedule_id.is_not(None), LIVING_FILTERS[Status(status)]
        )
        ids: Collection[str] = tx.execute(living.order_by(j.id.desc()).limit(FOUND_READ)).scalars().all()
    else:
        found = and_(r.org_id == org_id, NOT_SUCCESS, r.status == literal_column(f"'{Status(status).value}'"))
        stmt = select(r.schedule_id).where(found, r.recorded_at >= start, r.recorded_at < end)
        ids = tx.execute(stmt.order_by(r.recorded_at.desc()).limit(FOUND_READ)).scalars().all()
    return [key for key in dict.fromkeys(ids) if key is not None][:limit]
