"""The overview of an org, for the first page. Every query is bounded and served by an index, however long the
history."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, ScalarSelect, Text, func, literal, literal_column, select, type_coerce

from rota.core.states import State, Status
from rota.db.dialect import Query, Tx
from rota.db.paging import Record, dict_of
from rota.db.tables import clocks, jobs, runs, schedules
from rota.engine import pauses
from rota.engine.job_states import is_in
from rota.reports import catch_ups, failing, freezes
from rota.reports.installation import list_workers
from rota.reports.runs import RUNNING, STARTED, with_names
from rota.reports.schedules import timing_record
from rota.reports.slots import missed
from rota.reports.steps import awaited_signals, open_approvals

DAY = timedelta(hours=24)
LIST_ROWS = 10
COUNT_MAX = 10_000  # runs of each status that are counted at most

s, k, j, r = schedules.c, clocks.c, jobs.c, runs.c


def overview(
    tx: Tx, org_id: str, kinds: Sequence[str], now: datetime, *, grace: timedelta = timedelta(), all_orgs: bool = False
) -> Record:
    """Return what needs attention, running and due jobs, and counts of the last day. Schedules are late that did not
    fire within `grace` of their due time. With `all_orgs`, workers are shown with the jobs of all orgs."""
    running_now = with_names(tx, running(tx, org_id))
    return {
        "freeze": pauses.freeze_of(tx, org_id, now),
        "freeze_windows": freezes.announced(tx, org_id, now),
        "failing": failing.failing(tx, org_id, now),
        "broken": broken(tx, org_id),
        "parked": with_names(tx, parked(tx, org_id)),
        "approvals": with_names(tx, open_approvals(tx, org_id, LIST_ROWS)),
        "catch_ups": catch_ups.open_catch_ups(tx, org_id, LIST_ROWS),
        "signals": with_names(tx, awaited_signals(tx, org_id, LIST_ROWS)),
        "paused": paused(tx, org_id),
        "late": late(tx, org_id, kinds, now - grace),
        "missed": missed(tx, org_id, now - DAY, LIST_ROWS),
        "running": running_now,
        "running_count": tx.execute(select(func.count()).where(j.org_id == org_id, RUNNING)).scalar_one(),
        "usual": last_durations(tx, {run["schedule_id"] for run in running_now if run["schedule_id"]}),
        "due": due(tx, org_id, kinds),
        "lateness": lateness(tx, org_id),
        "counts": counts(tx, org_id, now - DAY),
        "workers": list_workers(tx, None if all_orgs else org_id, limit=LIST_ROWS, state="alive")[0],
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


def paused(tx: Tx, org_id: str) -> list[Record]:
    columns = (s.id, s.name, s.paused_at, s.paused_until, s.pause_reason)
    stmt = select(*columns).where(s.org_id == org_id, s.paused_at.is_not(None), s.deleted_at.is_(None))
    return [dict_of(row) for row in tx.execute(stmt.order_by(s.name).limit(LIST_ROWS))]


def late(tx: Tx, org_id: str, kinds: Sequence[str], before: datetime) -> list[Record]:
    """Return schedules that were due before `before` and did not fire."""
    return next_due(tx, kinds, select(s.id, s.name, k.next_run_at).where(k.org_id == org_id, k.next_run_at < before))


def due(tx: Tx, org_id: str, kinds: Sequence[str]) -> list[Record]:
    """Return the next slots of an org's schedules."""
    columns = (s.id, s.name, s.target, k.next_slot, k.next_run_at, type_coerce(s.timing, Text).label("timing"))
    records = next_due(tx, kinds, select(*columns).where(k.org_id == org_id, k.next_run_at.is_not(None)))
    return [{**record, "words": timing_record(record["timing"])["words"]} for record in records]


def next_due(tx: Tx, kinds: Sequence[str], stmt: Query) -> list[Record]:
    """Return the first schedules of a statement by due time, read kind by kind: the order of the scheduler's index."""
    stmt = stmt.select_from(clocks.join(schedules, s.id == k.schedule_id)).order_by(k.next_run_at).limit(LIST_ROWS)
    records = [dict_of(row) for kind in kinds for row in tx.execute(stmt.where(k.kind == kind))]
    return sorted(records, key=lambda record: record["next_run_at"])[:LIST_ROWS]


def last_durations(tx: Tx, ids: Collection[str]) -> dict[str, float]:
    """Return how many seconds the last run of each of these schedules took, to estimate the progress of a running
    one."""
    durations: dict[str, float] = {}
    stmt = select(r.started_at, r.finished_at).order_by(r.recorded_at.desc(), r.id.desc()).limit(1)
    for schedule_id in ids:
        row = tx.execute(stmt.where(r.schedule_id == schedule_id)).first()
        if row is not None and row.started_at is not None:
            durations[schedule_id] = (row.finished_at - row.started_at).total_seconds()
    return durations


def lateness(tx: Tx, org_id: str, limit: int = 200) -> list[float]:
    """Return by how many seconds the last runs started after their slot, oldest first, without retries and catch-up."""
    stmt = select(r.slot, r.started_at, r.trigger).where(r.org_id == org_id, r.attempt == 1)
    stmt = stmt.order_by(r.recorded_at.desc(), r.id.desc()).limit(limit)
    fired = [row for row in tx.execute(stmt) if row.slot and row.started_at and row.trigger.startswith("schedule:")]
    return [max(0.0, (row.started_at - row.slot).total_seconds()) for row in fired][::-1]


def counts(tx: Tx, org_id: str, since: datetime) -> dict[str, int]:
    """Return the number of attempts by status, up to COUNT_MAX each; transient failures are `retried`. Successes have
    no index: they are the rest of all attempts, and omitted when another count reaches COUNT_MAX."""

    def count(most: int, *conditions: ColumnElement[bool]) -> ScalarSelect[int]:
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


def ended_as(status: Status) -> tuple[ColumnElement[bool], ...]:
    """Match a status as a literal: a partial index serves no parameter."""
    return r.status == literal_column(f"'{status.value}'"), r.status != literal_column("'success'")
