"""Schedules, workers, queues and freezes as records with the field names of the API. Reads only."""

import functools
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    Select,
    Text,
    and_,
    case,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    type_coerce,
)

from rota.core import parse
from rota.core.errors import Invalid, NotFound
from rota.core.kinds import traits_of
from rota.core.model import Schedule
from rota.core.plan import first_plan
from rota.core.redact import redacted
from rota.core.states import State, WorkerState
from rota.core.timing import triggers
from rota.core.timing.triggers import Once, Timing
from rota.db.column_types import EPOCH
from rota.db.dialect import Tx
from rota.db.paging import (
    PAGE_ROWS,
    Page,
    Record,
    dict_of,
    matching,
    page_by,
)
from rota.db.tables import (
    clocks,
    jobs,
    orgs,
    queues,
    runs,
    schedule_stats,
    schedules,
    slots,
    workers,
)
from rota.engine.orgs import slug_of
from rota.engine.schedules import by_id_or_name

s, k, st, j, r, t = schedules.c, clocks.c, schedule_stats.c, jobs.c, runs.c, slots.c

PLAIN = (  # columns that stand on the wire as they are
    s.name, s.kind, s.target, s.input, s.max_runs, s.misfire, s.catch_up_limit, s.overlap, s.start_deadline_seconds,
    s.timeout_seconds, s.retry, s.priority, s.queue, s.enabled, s.tags, s.description, s.grant_id, s.id, k.next_run_at,
    k.next_slot, st.last_run_at, st.last_run_id, st.last_job_id, st.last_run_status, k.fired.label("run_count"),
    st.failure_count, st.skipped_count, s.revision, s.condition, s.condition_reason, s.paused_at, s.paused_until,
    s.pause_reason, s.source, s.created_at, s.updated_at, s.owner_id, s.created_by,
)  # fmt: skip
NO_TIMING = dict.fromkeys(parse.flat_timing(Timing(Once(EPOCH))))
RUNNING = j.state == literal_column(f"'{State.RUNNING.value}'")  # a literal: a partial index serves no parameter


# schedules


def list_schedules(
    tx: Tx,
    /,
    org_id: str,
    *,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
    sort: str = "name",
    **filters: Any,
) -> Page:
    """Return a page of schedules by name or by `id`, which is the order of their creation; `-` for descending. Both
    orders have an index."""
    column = s.id if sort.endswith("id") else s.name
    stmt = schedule_query().where(s.org_id == org_id, s.deleted_at.is_(None), *schedule_filters(**filters))
    return page_by(tx, stmt, column, limit, cursor, schedule_record, descending=sort.startswith("-"))


def schedule_ids(tx: Tx, /, org_id: str, **filters: Any) -> list[str]:
    """Return the ids of all schedules that match, ascending."""
    stmt = select(s.id).where(s.org_id == org_id, s.deleted_at.is_(None), *schedule_filters(**filters))
    return list(tx.execute(stmt.order_by(s.id)).scalars())


def schedule_filters(
    *,
    name: str | None = None,
    kind: str | None = None,
    tag: str | None = None,
    enabled: bool | None = None,
    paused: bool | None = None,
    condition: str | None = None,
    targets: Sequence[str] | None = None,
) -> list[ColumnElement[bool]]:
    """Return the conditions of a list of schedules; None does not filter."""
    plain = ((s.kind, kind), (s.enabled, enabled), (s.condition, condition), (s.paused_at.is_not(None), paused))
    conditions = [column == value for column, value in plain if value is not None]
    if targets is not None:
        conditions.append(s.target.in_(targets))
    if name is not None:
        conditions.append(s.name.icontains(name, autoescape=True))
    return conditions if tag is None else [*conditions, has_tag(tag)]


def schedule(tx: Tx, org_id: str, key: str) -> Record:
    """Return a schedule by its id or name. Raises NotFound."""
    row = tx.execute(schedule_query().where(by_id_or_name(org_id, key)).order_by(s.id != key)).first()
    if row is None:
        raise NotFound(f"schedule {key!r} not found")
    return schedule_record(row)


def new_schedule(schedule: Schedule) -> Record:
    """Return a schedule that was just stored as `schedule` would, without reading it: a request may create 10,000."""
    next_slot, next_run_at = first_plan(schedule, schedule.created_at) if schedule.enabled else (None, None)
    return {
        **with_redacted_input(parse.flat(schedule)),
        **{field: getattr(schedule, field) for field in UNCHANGED_FIELDS},
        **{"last_run_at": None, "last_run_id": None, "last_job_id": None, "last_run_status": None},
        **{"run_count": 0, "failure_count": 0, "skipped_count": 0},
        "next_run_at": next_run_at,
        "next_slot": next_slot,
        "condition": schedule.condition.value,
        "words": triggers.describe(schedule.timing),
        "paused": False,
        **origin(schedule.source),
    }


UNCHANGED_FIELDS = (  # fields of a schedule that its record has as they are, beside those of a request
    "id",
    "revision",
    "condition_reason",
    "paused_at",
    "paused_until",
    "pause_reason",
    "created_at",
    "updated_at",
    "owner_id",
    "created_by",
)


def schedule_id_of(tx: Tx, org_id: str, key: str) -> str | None:
    """Return the id for an id or name, also for the id of a deleted schedule: its history remains. None if unknown."""
    known = or_(and_(s.org_id == org_id, s.id == key), by_id_or_name(org_id, key))
    return tx.execute(select(s.id).where(known).order_by(s.id != key)).scalars().first()


def schedule_query() -> Select[Any]:
    # timing as text: a row whose timing cannot be parsed is still listed
    return select(*PLAIN, type_coerce(s.timing, Text).label("timing_text")).select_from(
        schedules.join(clocks, k.schedule_id == s.id).join(schedule_stats, st.schedule_id == s.id)
    )


def schedule_record(row: Any) -> Record:
    record = with_redacted_input(dict_of(row))
    timing = timing_record(record.pop("timing_text"))
    return {**record, "paused": row.paused_at is not None, **timing, **origin(row.source)}


def origin(source: str) -> Record:
    """Return where a schedule comes from, and its name there: `code:jobs` is the program `jobs`."""
    kind, _, name = source.partition(":")
    return {"source": kind, "source_ref": name or None}


def with_redacted_input(record: Record) -> Record:
    """Redact the input of schedules that order hosts: it may contain passwords."""
    return {**record, "input": redacted(record["input"])} if traits_of(record["kind"]).orders_hosts else record


@functools.lru_cache(maxsize=10_000)  # parsing and describing a timing is half the cost of a list
def timing_record(text: str) -> Record:
    try:
        timing = triggers.load(orjson.loads(text))
    except (Invalid, ValueError):
        return {"words": None, **NO_TIMING}
    return {"words": triggers.describe(timing), **parse.flat_timing(timing)}


def has_tag(tag: str) -> ColumnElement[bool]:
    """Match schedules with a tag. `tags` is a JSON text; `replace` finds a part of it on both databases, case-sensitive
    and without wildcards."""
    text = type_coerce(s.tags, Text)
    items = literal(",") + func.substr(text, 2, func.length(text) - 2) + ","
    return func.replace(items, f",{orjson.dumps(tag).decode()},", "") != items


# workers, queues, tasks, freeze


def list_workers(
    tx: Tx, org_id: str | None = None, *, limit: int = PAGE_ROWS, cursor: str | None = None, state: str | None = None
) -> Page:
    """Return a page of workers, newest first. Workers serve every org: for an org, `running` counts its own jobs, and
    host and pid are shown to org `default` only. Without an org everything is shown."""
    w = workers.c
    counted = select(j.lease_owner, func.count().label("n")).where(RUNNING, *([j.org_id == org_id] if org_id else []))
    shown = org_id is None or slug_of(tx, org_id) == "default"
    host, pid = (w.host, w.pid) if shown else (null().label("host"), null().label("pid"))
    held = counted.group_by(j.lease_owner).subquery()
    columns = (
        w.id, w.state, host, pid, w.version, w.concurrency, w.kinds, w.queues, w.started_at, w.renewed_at,
        w.lease_until, func.coalesce(held.c.n, 0).label("running"),
    )  # fmt: skip
    joined = workers.outerjoin(held, held.c.lease_owner == w.id)
    of_installation = select(*columns).select_from(joined).where(w.host_id.is_(None))  # agents belong to an org
    stmt = matching(of_installation, (w.state, state))
    return page_by(tx, stmt, w.id, limit, cursor, descending=True)


def queue(tx: Tx, org_id: str, name: str) -> Record:
    record = next((queue for queue in list_queues(tx, org_id) if queue["name"] == name), None)
    if record is None:
        raise NotFound(f"queue {name!r} not found: it has no jobs, no limit and is not paused")
    return record


def list_queues(tx: Tx, org_id: str) -> list[Record]:
    """Return the queues of an org that have jobs, a limit or a pause, with the number of jobs by state."""
    oldest = func.min(case((j.state == State.READY, j.run_at)), type_=j.run_at.type)
    counted = select(j.queue, j.state, func.count().label("n"), oldest.label("oldest")).where(j.org_id == org_id)
    limits = select(queues.c.name, queues.c.max_running, queues.c.paused_at).where(queues.c.org_id == org_id)
    records: dict[str, Record] = {}

    def entry(name: str) -> Record:
        depth = {state.value: 0 for state in State}
        empty = {"name": name, "depth": depth, "oldest_ready_at": None, "max_running": None, "paused": False}
        return records.setdefault(name, empty)

    for row in tx.execute(counted.group_by(j.queue, j.state)):
        entry(row.queue)["depth"][row.state] = row.n
        if row.oldest is not None:
            entry(row.queue)["oldest_ready_at"] = row.oldest
    for row in tx.execute(limits):
        entry(row.name).update(max_running=row.max_running, paused=row.paused_at is not None)
    return [records[name] for name in sorted(records)]


def gauges(tx: Tx, now: datetime) -> Record:
    """Return the gauges of the installation, over all orgs."""
    counted = {row[0]: row[1] for row in tx.execute(select(j.state, func.count()).group_by(j.state))}
    oldest = tx.execute(select(func.min(j.run_at)).where(j.state == State.READY)).scalar()
    due = tx.execute(select(func.min(k.next_run_at)).where(k.next_run_at.is_not(None))).scalar()
    alive = and_(workers.c.state == WorkerState.ALIVE, workers.c.lease_until >= now, workers.c.host_id.is_(None))
    return {
        "jobs": {state.value: counted.get(state, 0) for state in State},
        "oldest": max(0.0, (now - oldest).total_seconds()) if oldest else 0.0,
        "overdue": max(0.0, (now - due).total_seconds()) if due else 0.0,
        "workers": tx.execute(select(func.count()).select_from(workers).where(alive)).scalar_one(),
    }


def freeze(tx: Tx, org_id: str, now: datetime) -> Record:
    """Return whether an org is frozen, since when, until when and why."""
    o = orgs.c
    row = tx.execute(select(o.frozen_at, o.frozen_until, o.freeze_reason).where(o.id == org_id)).one()
    frozen = row.frozen_at is not None and (row.frozen_until is None or row.frozen_until > now)
    if not frozen:
        return {"frozen": False, "frozen_at": None, "until": None, "reason": None}
    return {"frozen": True, "frozen_at": row.frozen_at, "until": row.frozen_until, "reason": row.freeze_reason}


# people
