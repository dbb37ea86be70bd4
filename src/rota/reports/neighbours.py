"""Runs before and after a run, of the same schedule or target. Reads only."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, literal_column, select

from rota.core.states import Status
from rota.db.dialect import ResultRow, Tx
from rota.db.paging import Record, dict_of, rows_after
from rota.db.tables import runs

SUCCESS_SEARCHED = 500  # runs back that are searched for a success

r = runs.c
BRIEF = (r.id, r.job_id, r.status, r.reason, r.attempt, r.started_at, r.finished_at, r.recorded_at)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """None where there is no such run."""

    previous: Record | None
    next: Record | None
    last_success: Record | None  # before this run


def neighbours(tx: Tx, org_id: str, run: Record) -> Neighbours:
    """Return the ended runs of other jobs around a run, of its schedule or else of its target; if it has not ended, it
    is the last one."""
    at = tx.execute(select(r.recorded_at).where(r.org_id == org_id, r.id == run["id"])).scalar()
    key = None if at is None else [at, run["id"]]
    before = newest(tx, org_id, run, key, descending=True)
    after = None if key is None else newest(tx, org_id, run, key, descending=False)
    return Neighbours(before, after, success_before(tx, org_id, run, key))


def newest(tx: Tx, org_id: str, run: Record, key: list[object] | None, *, descending: bool) -> Record | None:
    order = [column.desc() if descending else column.asc() for column in (r.recorded_at, r.id)]
    beyond = () if key is None else rows_after(key, [r.recorded_at, r.id], descending=descending)
    stmt = select(*BRIEF).where(of_subject(org_id, run), r.job_id != run["job_id"], *beyond).order_by(*order).limit(1)
    return brief(tx.execute(stmt).one_or_none())


def success_before(tx: Tx, org_id: str, run: Record, key: list[object] | None) -> Record | None:
    beyond = () if key is None else rows_after(key, [r.recorded_at, r.id], descending=True)
    recent = select(*BRIEF).where(of_subject(org_id, run), r.job_id != run["job_id"], *beyond)
    last = recent.order_by(r.recorded_at.desc(), r.id.desc()).limit(SUCCESS_SEARCHED).subquery()
    stmt = select(last).where(last.c.status == Status.SUCCESS)
    return brief(tx.execute(stmt.order_by(last.c.recorded_at.desc(), last.c.id.desc()).limit(1)).one_or_none())


def of_subject(org_id: str, run: Record) -> ColumnElement[bool]:
    """Return the condition of runs of the same schedule, or of the same target where a run has no schedule."""
    if run["schedule_id"] is not None:
        in_org = r.org_id.concat(literal_column("''")) == org_id  # not by the index of the org's runs
        return and_(r.schedule_id == run["schedule_id"], r.schedule_id.is_not(None), in_org)
    return and_(r.org_id == org_id, r.target_name == run["target_name"], r.kind == run["kind"])


def brief(row: ResultRow | None) -> Record | None:
    return None if row is None else dict_of(row)
