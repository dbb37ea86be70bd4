"""What only pages show: strips of verdicts, a timeline, the end of a log, the history of a thing. Reads only, and each
query is bounded and has its index: pages cost the same among ten schedules and among a hundred thousand."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Text, func, literal_column, or_, select, type_coerce

from rota.core.errors import NotFound
from rota.db.dialect import Tx
from rota.db.paging import Record, dict_of
from rota.db.tables import clocks, jobs, logs, runs, schedules, slots, trigger_spans, workflow_runs
from rota.engine import audit_rows, reports, run_reports
from rota.engine.reports import schedule_filters
from rota.engine.run_reports import slot_query, slot_record
from rota.engine.runs import BY_ATTEMPT

STRIP = 30
HISTORY = 20
TIMINGS = 20_000  # different rules that are read, at most
MOST = 10_000  # schedules that are counted; missed slots of all orgs that are looked through

s, k, j, r, t, g = schedules.c, clocks.c, jobs.c, runs.c, slots.c, logs.c


def strips(tx: Tx, ids: Sequence[str], count: int = STRIP) -> dict[str, list[Record]]:
    """The last verdicts of each of these schedules, oldest first."""
    return {one: strip(tx, one, count) for one in ids}


def strip(
    tx: Tx, schedule_id: str, count: int, since: datetime | None = None, until: datetime | None = None
) -> list[Record]:
    stmt = slot_query().where(t.schedule_id == schedule_id).order_by(t.slot.desc(), t.schedule_id.desc()).limit(count)
    if since is not None:
        stmt = stmt.where(func.coalesce(t.last_slot, t.slot, type_=t.slot.type) >= since)
    if until is not None:
        stmt = stmt.where(t.slot < until)
    return [slot_record(row) for row in tx.execute(stmt)][::-1]


def count_schedules(tx: Tx, /, org_id: str, **wanted: Any) -> int:
    """How many living schedules are as wanted, counted up to MOST, along the index of their names."""
    some = select(s.name).where(s.org_id == org_id, s.deleted_at.is_(None), *schedule_filters(**wanted))
    counted = select(func.count()).select_from(some.order_by(s.name).limit(MOST).subquery())
    return int(tx.execute(counted).scalar_one())


def names_of(tx: Tx, ids: Sequence[str]) -> dict[str, str]:
    """The names of schedules, also of deleted ones."""
    return {row.id: row.name for row in tx.execute(select(s.id, s.name).where(s.id.in_(ids)))} if ids else {}


def with_names(tx: Tx, found: Sequence[Record]) -> list[Record]:
    """Schedules, jobs or runs with the names of the servers and tasks that they know by an id."""
    return run_reports.with_target_names(tx, [{"target_name": None, **record} for record in found])


def spans(tx: Tx, schedule_id: str) -> list[Record]:
    """Which rule held since when, newest first."""
    c = trigger_spans.c
    columns = (c.revision, type_coerce(c.timing, Text).label("timing"), c.from_at, c.until_at)
    stmt = select(*columns).where(c.schedule_id == schedule_id).order_by(c.revision.desc()).limit(HISTORY)
    told = [dict_of(row) for row in tx.execute(stmt)]
    return [{**one, "words": reports.timing_record(one["timing"])["words"]} for one in told]


def history(tx: Tx, org_id: str, resource: str, resource_id: str) -> list[Record]:
    """Who changed a thing, newest first."""
    return audit_rows.list_audit(tx, org_id, limit=HISTORY, resource=resource, resource_id=resource_id)[0]


def job_of(tx: Tx, org_id: str, key: str) -> Record:
    """Everything about a job, by its id or that of one of its runs: where it stands in the queue, and its attempts."""
    known = tx.execute(select(j.id).where(j.org_id == org_id, or_(j.id == key, j.run_id == key))).scalar()
    ended = select(r.job_id).where(r.org_id == org_id, or_(r.id == key, r.job_id == key)).limit(1)
    job_id = known or tx.execute(ended).scalar()
    living = tx.execute(select(jobs).where(j.org_id == org_id, j.id == job_id)).one_or_none()
    past = tx.execute(select(runs).where(r.org_id == org_id, r.job_id == job_id).order_by(*BY_ATTEMPT)).all()
    if job_id is None or (living is None and not past):
        raise NotFound(f"run {key!r} not found")
    attempts = [run_reports.ended_run(row) for row in past]
    if living is not None:
        attempts.append(run_reports.living_run(living))
    x, ids = workflow_runs.c, [one["id"] for one in attempts if one["kind"] == "workflow"]
    phases = {row.id: row.phase for row in tx.execute(select(x.id, x.phase).where(x.id.in_(ids)))} if ids else {}
    attempts = [{**one, "phase": phases.get(one["id"])} for one in with_names(tx, attempts)]
    return {"id": job_id, "living": living and dict_of(living), "attempts": attempts}


def log_tail(tx: Tx, run_id: str, limit: int, part: str | None = None) -> list[Record]:
    """The last lines of a run's log, or those that have a part, oldest first."""
    stmt = select(g.id, g.at, g.stream, g.text).where(g.run_id == run_id).order_by(g.id.desc()).limit(limit)
    if part:
        stmt = stmt.where(g.text.icontains(part, autoescape=True))
    return [dict_of(row) for row in tx.execute(stmt)][::-1]


def timings(tx: Tx, org_id: str) -> tuple[dict[str, int], int]:
    """The rules by which an org's schedules fire and how many have each, the commonest first, up to TIMINGS; and how
    many schedules there are."""
    fires = (s.org_id == org_id, s.deleted_at.is_(None), s.enabled, s.paused_at.is_(None))
    rule = type_coerce(s.timing, Text).label("timing")
    rules = select(rule, func.count().label("schedules")).where(*fires).group_by(rule)
    found = {row.timing: row.schedules for row in tx.execute(rules.order_by(func.count().desc()).limit(TIMINGS))}
    total = sum(found.values())
    if len(found) == TIMINGS:
        total = int(tx.execute(select(func.count()).select_from(schedules).where(*fires)).scalar_one())
    return found, total


def lateness(tx: Tx, org_id: str, limit: int = 200) -> list[float]:
    """By how many seconds the last runs started after their slot, oldest first; without retries and catching up."""
    stmt = select(r.slot, r.started_at, r.trigger).where(r.org_id == org_id, r.attempt == 1)
    stmt = stmt.order_by(r.recorded_at.desc(), r.id.desc()).limit(limit)
    fired = [row for row in tx.execute(stmt) if row.slot and row.started_at and row.trigger.startswith("schedule:")]
    return [max(0.0, (row.started_at - row.slot).total_seconds()) for row in fired][::-1]


def missed(tx: Tx, org_id: str, since: datetime, limit: int) -> list[Record]:
    """Slots that passed while nobody was up, newest first; a gap is one of them."""
    columns = (t.schedule_id, t.slot, t.last_slot, t.count, t.reason)
    newest = select(*columns).where(t.verdict == literal_column("'missed'"), t.slot >= since).order_by(t.slot.desc())
    some = newest.limit(MOST).subquery()  # apart, so that both databases begin with their index
    stmt = select(s.name, *some.c).select_from(some.join(schedules, s.id == some.c.schedule_id))
    stmt = stmt.where(s.org_id == org_id).order_by(some.c.slot.desc()).limit(limit)
    return [dict_of(row) for row in tx.execute(stmt)]


def paused(tx: Tx, org_id: str, limit: int) -> list[Record]:
    stmt = select(s.id, s.name, s.paused_at, s.paused_until, s.pause_reason).where(
        s.org_id == org_id, s.paused_at.is_not(None), s.deleted_at.is_(None)
    )
    return [dict_of(row) for row in tx.execute(stmt.order_by(s.name).limit(limit))]


def late(tx: Tx, org_id: str, kinds: Sequence[str], before: datetime, limit: int) -> list[Record]:
    """Schedules that should have fired before this moment, and did not."""
    stmt = select(s.id, s.name, k.next_run_at).select_from(clocks.join(schedules, s.id == k.schedule_id))
    stmt = stmt.where(k.org_id == org_id, k.next_run_at < before).order_by(k.next_run_at).limit(limit)
    found = [dict_of(row) for kind in kinds for row in tx.execute(stmt.where(k.kind == kind))]
    return sorted(found, key=lambda one: one["next_run_at"])[:limit]


def usual(tx: Tx, ids: Sequence[str]) -> dict[str, float]:
    """How many seconds the last run of each of these schedules took: by it people judge how far a running one is."""
    found: dict[str, float] = {}
    stmt = select(r.started_at, r.finished_at).order_by(r.recorded_at.desc(), r.id.desc()).limit(1)
    for one in set(ids):
        row = tx.execute(stmt.where(r.schedule_id == one)).first()
        if row is not None and row.started_at is not None:
            found[one] = (row.finished_at - row.started_at).total_seconds()
    return found
