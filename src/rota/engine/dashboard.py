"""Queries of the dashboard's pages: strips of verdicts, timeline, end of a log, history of a resource. Reads only;
each query is bounded and served by an index."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Text, func, literal_column, or_, select, type_coerce

from rota.core.errors import NotFound
from rota.db.dialect import Tx
from rota.db.paging import Record, dict_of
from rota.db.tables import clocks, jobs, logs, runs, schedules, slots, trigger_spans
from rota.engine import audit_rows, reports, run_reports
from rota.engine.reports import schedule_filters
from rota.engine.run_reports import slot_query, slot_record

STRIP_SLOTS = 30
HISTORY_ROWS = 20
TIMINGS_MAX = 20_000  # different timings that are read
SCAN_ROWS_MAX = 10_000  # schedules that are counted; missed slots of all orgs that are searched

s, k, j, r, t, g = schedules.c, clocks.c, jobs.c, runs.c, slots.c, logs.c


def strips(tx: Tx, ids: Sequence[str], count: int = STRIP_SLOTS) -> dict[str, list[Record]]:
    """Return the last slots of each of these schedules, oldest first."""
    return {schedule_id: strip(tx, schedule_id, count) for schedule_id in ids}


def strip(
    tx: Tx, schedule_id: str, count: int, since: datetime | None = None, until: datetime | None = None
) -> list[Record]:
    stmt = slot_query().where(t.schedule_id == schedule_id).order_by(t.slot.desc(), t.schedule_id.desc()).limit(count)
    if since is not None:
        stmt = stmt.where(func.coalesce(t.last_slot, t.slot, type_=t.slot.type) >= since)
    if until is not None:
        stmt = stmt.where(t.slot < until)
    return [slot_record(row) for row in tx.execute(stmt)][::-1]


def count_schedules(tx: Tx, /, org_id: str, **filters: Any) -> int:
    """Return the number of schedules that match, up to SCAN_ROWS_MAX, in the order of the index of names."""
    names = select(s.name).where(s.org_id == org_id, s.deleted_at.is_(None), *schedule_filters(**filters))
    counted = select(func.count()).select_from(names.order_by(s.name).limit(SCAN_ROWS_MAX).subquery())
    return int(tx.execute(counted).scalar_one())


def names_of(tx: Tx, ids: Sequence[str]) -> dict[str, str]:
    """Return the names of schedules by id, also of deleted ones."""
    return {row.id: row.name for row in tx.execute(select(s.id, s.name).where(s.id.in_(ids)))} if ids else {}


def with_names(tx: Tx, records: Sequence[Record]) -> list[Record]:
    """Add the names of servers and tasks to schedules, jobs or runs that have only their ids."""
    return run_reports.with_target_names(tx, [{"target_name": None, **record} for record in records])


def spans(tx: Tx, schedule_id: str) -> list[Record]:
    """Return the timings of a schedule with the time each was in effect, newest first."""
    c = trigger_spans.c
    columns = (c.revision, type_coerce(c.timing, Text).label("timing"), c.from_at, c.until_at)
    stmt = select(*columns).where(c.schedule_id == schedule_id).order_by(c.revision.desc()).limit(HISTORY_ROWS)
    records = [dict_of(row) for row in tx.execute(stmt)]
    return [{**record, "words": reports.timing_record(record["timing"])["words"]} for record in records]


def history(tx: Tx, org_id: str, resource: str, resource_id: str) -> list[Record]:
    """Return the audit log entries of a resource, newest first."""
    return audit_rows.list_audit(tx, org_id, limit=HISTORY_ROWS, resource=resource, resource_id=resource_id)[0]


def job_of(tx: Tx, org_id: str, key: str) -> Record:
    """Return a job with its attempts, by its id or that of one of its runs. Raises NotFound."""
    known = tx.execute(select(j.id).where(j.org_id == org_id, or_(j.id == key, j.run_id == key))).scalar()
    ended = select(r.job_id).where(r.org_id == org_id, or_(r.id == key, r.job_id == key)).limit(1)
    job_id = known or tx.execute(ended).scalar()
    living, ended_rows = run_reports.job_rows(tx, org_id, job_id)
    if job_id is None or (living is None and not ended_rows):
        raise NotFound(f"run {key!r} not found")
    attempts = [run_reports.ended_run(row) for row in ended_rows]
    if living is not None:
        attempts.append(run_reports.living_run(living))
    attempts = run_reports.with_kind_details(tx, with_names(tx, attempts))
    return {"id": job_id, "living": living and dict_of(living), "attempts": attempts}


def log_tail(tx: Tx, run_id: str, limit: int, part: str | None = None) -> list[Record]:
    """Return the last lines of a run's log, or of its lines that contain `part`, oldest first."""
    stmt = select(g.id, g.at, g.stream, g.text).where(g.run_id == run_id).order_by(g.id.desc()).limit(limit)
    if part:
        stmt = stmt.where(g.text.icontains(part, autoescape=True))
    return [dict_of(row) for row in tx.execute(stmt)][::-1]


def timings(tx: Tx, org_id: str) -> tuple[dict[str, int], int]:
    """Return the timings of an org's schedules with the number of schedules, the most frequent first, up to
    TIMINGS_MAX; and the number of all schedules."""
    fires = (s.org_id == org_id, s.deleted_at.is_(None), s.enabled, s.paused_at.is_(None))
    rule = type_coerce(s.timing, Text).label("timing")
    rules = select(rule, func.count().label("schedules")).where(*fires).group_by(rule)
    counts = {row.timing: row.schedules for row in tx.execute(rules.order_by(func.count().desc()).limit(TIMINGS_MAX))}
    total = sum(counts.values())
    if len(counts) == TIMINGS_MAX:
        total = int(tx.execute(select(func.count()).select_from(schedules).where(*fires)).scalar_one())
    return counts, total


def lateness(tx: Tx, org_id: str, limit: int = 200) -> list[float]:
    """Return by how many seconds the last runs started after their slot, oldest first, without retries and catch-up."""
    stmt = select(r.slot, r.started_at, r.trigger).where(r.org_id == org_id, r.attempt == 1)
    stmt = stmt.order_by(r.recorded_at.desc(), r.id.desc()).limit(limit)
    fired = [row for row in tx.execute(stmt) if row.slot and row.started_at and row.trigger.startswith("schedule:")]
    return [max(0.0, (row.started_at - row.slot).total_seconds()) for row in fired][::-1]


def missed(tx: Tx, org_id: str, since: datetime, limit: int) -> list[Record]:
    """Return slots that passed while no scheduler ran, newest first; a gap is one row."""
    columns = (t.schedule_id, t.slot, t.last_slot, t.count, t.reason)
    newest = select(*columns).where(t.verdict == literal_column("'missed'"), t.slot >= since).order_by(t.slot.desc())
    recent = newest.limit(
        SCAN_ROWS_MAX
    ).subquery()  # a subquery: the planners of both databases then use the index first
    stmt = select(s.name, *recent.c).select_from(recent.join(schedules, s.id == recent.c.schedule_id))
    stmt = stmt.where(s.org_id == org_id).order_by(recent.c.slot.desc()).limit(limit)
    return [dict_of(row) for row in tx.execute(stmt)]


def paused(tx: Tx, org_id: str, limit: int) -> list[Record]:
    stmt = select(s.id, s.name, s.paused_at, s.paused_until, s.pause_reason).where(
        s.org_id == org_id, s.paused_at.is_not(None), s.deleted_at.is_(None)
    )
    return [dict_of(row) for row in tx.execute(stmt.order_by(s.name).limit(limit))]


def late(tx: Tx, org_id: str, kinds: Sequence[str], before: datetime, limit: int) -> list[Record]:
    """Return schedules that were due before `before` and did not fire."""
    stmt = select(s.id, s.name, k.next_run_at).select_from(clocks.join(schedules, s.id == k.schedule_id))
    stmt = stmt.where(k.org_id == org_id, k.next_run_at < before).order_by(k.next_run_at).limit(limit)
    records = [dict_of(row) for kind in kinds for row in tx.execute(stmt.where(k.kind == kind))]
    return sorted(records, key=lambda record: record["next_run_at"])[:limit]


def usual(tx: Tx, ids: Sequence[str]) -> dict[str, float]:
    """Return how many seconds the last run of each of these schedules took, to estimate the progress of a running
    one."""
    durations: dict[str, float] = {}
    stmt = select(r.started_at, r.finished_at).order_by(r.recorded_at.desc(), r.id.desc()).limit(1)
    for schedule_id in set(ids):
        row = tx.execute(stmt.where(r.schedule_id == schedule_id)).first()
        if row is not None and row.started_at is not None:
            durations[schedule_id] = (row.finished_at - row.started_at).total_seconds()
    return durations
