"""The overview of an org, for the first page. Every query is bounded and served by an index, however long the
history."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Text, func, literal, literal_column, select, type_coerce

from rota.core.states import State, Status
from rota.db.dialect import Tx
from rota.db.paging import Record, dict_of
from rota.db.tables import clocks, jobs, runs, schedules
from rota.engine import failing, reports
from rota.engine.job_states import is_in
from rota.engine.reports import RUNNING
from rota.engine.run_reports import STARTED

DAY = timedelta(hours=24)
LIST_ROWS = 10
COUNT_MAX = 10_000  # runs of each status that are counted at most

s, k, j, r = schedules.c, clocks.c, jobs.c, runs.c


def overview(tx: Tx, org_id: str, kinds: Iterable[str], now: datetime, *, all_orgs: bool = False) -> Record:
    """Return what needs attention, running and due jobs, and counts of the last day. With `all_orgs`, workers are shown
    with the jobs of all orgs."""
    return {
        "freeze": reports.freeze(tx, org_id, now),
        "failing": failing.failing(tx, org_id, now),
        "broken": broken(tx, org_id),
        "parked": parked(tx, org_id),
        "running": running(tx, org_id),
        "running_count": tx.execute(select(func.count()).where(j.org_id == org_id, RUNNING)).scalar_one(),
        "due": due(tx, org_id, kinds),
        "counts": counts(tx, org_id, now - DAY),
        "workers": reports.list_workers(tx, None if all_orgs else org_id, limit=LIST_ROWS, state="alive")[0],
        "any_schedule": tx.execute(select(s.id).where(s.org_id == org_id, s.deleted_at.is_(None)).limit(1)).first(),
    }


def broken(tx: Tx, org_id: str) -> list[Record]:
    stmt = select(s.id, s.name, s.condition_reason).where(
        s.condition == literal_column("'broken'"), s.deleted_at.is_(None)
    )
    return [dict_of(row) for row in tx.execute(stmt.where(s.org_id == org_id).order_by(s.name).limit(LIST_ROWS))]


def parked(tx: Tx, org_id: str) -> list[Record]:
    """Return parked jobs, oldest first."""
    stmt = select(j.id, s.name.label("schedule"), j.kind, j.target, j.parked_reason.label("reason"), j.queued_at)
    stmt = stmt.select_from(jobs.outerjoin(schedules, s.id == j.schedule_id)).where(is_in(j.state, [State.PARKED]))
    return [dict_of(row) for row in tx.execute(stmt.where(j.org_id == org_id).order_by(j.id).limit(LIST_ROWS))]


def running(tx: Tx, org_id: str) -> list[Record]:
    """Return started jobs, longest running first."""
    names = (j.run_id.label("id"), j.schedule_id, s.name.label("schedule"), j.target)
    stmt = select(*names, j.attempt, j.started_at, j.cancel_requested_at)
    stmt = stmt.select_from(jobs.outerjoin(schedules, s.id == j.schedule_id)).where(j.org_id == org_id, STARTED)
    return [dict_of(row) for row in tx.execute(stmt.order_by(j.started_at, j.id).limit(LIST_ROWS))]


def due(tx: Tx, org_id: str, kinds: Iterable[str]) -> list[Record]:
    """Return the next slots of an org's schedules, read kind by kind: the order of the scheduler's index."""
    columns = (s.id, s.name, s.target, k.next_slot, k.next_run_at, type_coerce(s.timing, Text).label("timing"))
    stmt = select(*columns).select_from(clocks.join(schedules, s.id == k.schedule_id))
    stmt = stmt.where(k.org_id == org_id, k.next_run_at.is_not(None)).order_by(k.next_run_at).limit(LIST_ROWS)
    records = [due_record(row) for kind in kinds for row in tx.execute(stmt.where(k.kind == kind))]
    return sorted(records, key=lambda record: record["next_run_at"])[:LIST_ROWS]


def due_record(row: Any) -> Record:
    return {**dict_of(row), "words": reports.timing_record(row.timing)["words"]}


def counts(tx: Tx, org_id: str, since: datetime) -> dict[str, int]:
    """Return the number of attempts by status, up to COUNT_MAX each; transient failures are `retried`. Successes have
    no index: they are the rest of all attempts, and omitted when another count reaches COUNT_MAX."""

    def count(most: int, *conditions: Any) -> Any:
        of_day = (r.org_id == org_id, r.recorded_at >= since, *conditions)
        matching = select(literal(1).label("one")).where(*of_day).limit(most)
        return select(func.count()).select_from(matching.subquery()).scalar_subquery()

    ended = (status for status in Status if status not in (Status.PENDING, Status.RUNNING, Status.SUCCESS))
    conditions = {status.value: ended_as(status) for status in ended}
    paused = conditions.pop(Status.PAUSED.value)
    conditions |= {"retried": (*paused, r.reason == "transient"), "paused": (*paused, r.reason != "transient")}
    numbers = tx.execute(select(*(count(COUNT_MAX, *those) for those in conditions.values()))).one()
    counted = dict(zip(conditions, numbers, strict=True))
    if COUNT_MAX in numbers:
        return counted
    total = tx.execute(select(count(sum(numbers) + COUNT_MAX))).scalar_one()
    return {Status.SUCCESS.value: max(0, total - sum(numbers)), **counted}


def ended_as(status: Status) -> tuple[Any, ...]:
    """Match a status as a literal: a partial index serves no parameter."""
    return r.status == literal_column(f"'{status.value}'"), r.status != literal_column("'success'")
