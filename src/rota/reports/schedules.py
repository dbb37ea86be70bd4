"""Schedules as records with the field names of the API. Reads only."""

import functools
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Text, and_, bindparam, func, literal_column, or_, select, type_coerce

from rota.core import schedule_form, timing_form
from rota.core.errors import Invalid, NotFound
from rota.core.kinds import traits_of
from rota.core.model import Schedule
from rota.core.plan import first_plan
from rota.core.redact import redacted
from rota.core.timing import presentation, stored
from rota.core.timing.triggers import Once, Timing
from rota.db.column_types import EPOCH
from rota.db.dialect import Query, ResultRow, Tx
from rota.db.paging import PAGE_ROWS, STATEMENT_ROWS, Page, Record, dict_of, read_cursor, rows_after, write_cursor
from rota.db.statement import Statement, compiled
from rota.db.tables import clocks, schedule_stats, schedules, trigger_spans
from rota.engine.schedules import STATEMENTS_MAX, FilterShape, ScheduleFilters, by_id_or_name, matching

s, k, st = schedules.c, clocks.c, schedule_stats.c

SPANS_SHOWN = 20
COUNTED_MAX = 10_000  # schedules that are counted

PLAIN = (  # columns returned by the API unchanged: first the fields of a request that have a column
    *(s[name] for name in schedule_form.ScheduleChanges.model_fields if name in s),
    s.id, k.next_run_at, k.next_slot, st.last_run_at, st.last_run_id, st.last_job_id, st.last_run_status,
    k.fired.label("run_count"), st.failure_count, st.skipped_count, s.revision, s.condition, s.condition_reason,
    s.paused_at, s.paused_until, s.pause_reason, s.source, s.created_at, s.updated_at, s.owner_id, s.created_by,
)  # fmt: skip
# timing as text: a row whose timing cannot be parsed is still listed
COLUMNS = (*PLAIN, type_coerce(s.timing, Text).label("timing_text"))
NO_TIMING: Record = {**dict.fromkeys(timing_form.flat_timing(Timing(Once(EPOCH)))), "after": []}


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
    wanted = ScheduleFilters(**filters)
    params: Record = {"org_id": org_id, **wanted.params}
    if cursor:
        params["after"] = read_cursor(cursor)[0]
    rows = next(rows for rows in STATEMENT_ROWS if rows > limit)
    columns = page_statement(wanted.shape, sort, bool(cursor), rows).columns(tx, **params)
    keys = columns.pop("sort_key")
    records = records_of({name: values[:limit] for name, values in columns.items()})
    return records, write_cursor(keys[limit - 1]) if len(keys) > limit else None


@functools.lru_cache(STATEMENTS_MAX)
def page_statement(shape: FilterShape, sort: str, after: bool, rows: int) -> Statement:
    """Return the statement of a page. It reads `rows`: a literal, which the planner counts on, unlike a parameter."""
    stmt, name, schedule_id = matching(COLUMNS, shape)
    key = schedule_id if sort.endswith("id") else name
    descending = sort.startswith("-")
    if after:
        stmt = stmt.where(*rows_after([bindparam("after")], [key], descending))
    stmt = stmt.add_columns(key.label("sort_key")).where(k.schedule_id == s.id, st.schedule_id == s.id)
    stmt = stmt.order_by(key.desc() if descending else key).limit(literal_column(str(rows)))
    return compiled("Return a page of schedules.", stmt)


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
        **with_redacted_input(schedule_form.flat(schedule)),
        **{field: getattr(schedule, field) for field in UNCHANGED_FIELDS},
        **{"last_run_at": None, "last_run_id": None, "last_job_id": None, "last_run_status": None},
        **{"run_count": 0, "failure_count": 0, "skipped_count": 0},
        "next_run_at": next_run_at,
        "next_slot": next_slot,
        "condition": schedule.condition.value,
        "words": presentation.describe(schedule.timing),
        "paused": False,
        **origin(schedule.source),
    }


UNCHANGED_FIELDS = (  # fields of a schedule that its record has as they are, beside those of a request
    "id", "revision", "condition_reason", "paused_at", "paused_until", "pause_reason", "created_at", "updated_at",
    "owner_id", "created_by",
)  # fmt: skip


def schedule_id_of(tx: Tx, org_id: str, key: str) -> str | None:
    """Return the id for an id or name, also for the id of a deleted schedule: its history remains. None if unknown."""
    known = or_(and_(s.org_id == org_id, s.id == key), by_id_or_name(org_id, key))
    return tx.execute(select(s.id).where(known).order_by(s.id != key)).scalars().first()


def schedule_query() -> Query:
    return select(*COLUMNS).select_from(
        schedules.join(clocks, k.schedule_id == s.id).join(schedule_stats, st.schedule_id == s.id)
    )


def schedule_record(row: ResultRow) -> Record:
    return records_of({name: [value] for name, value in dict_of(row).items()})[0]


def records_of(columns: dict[str, Sequence[Any]]) -> list[Record]:
    """Return schedules from columns of rows."""
    timings = [timing_record(text) for text in columns.pop("timing_text")]
    columns["paused"] = [paused_at is not None for paused_at in columns["paused_at"]]
    records = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    for record, timing in zip(records, timings, strict=True):
        record.update(timing)
        record.update(origin(record["source"]))
        if traits_of(record["kind"]).orders_hosts:
            record["input"] = redacted(record["input"])
    return records


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
        timing = stored.load(orjson.loads(text))
    except (Invalid, ValueError):
        return {"words": None, **NO_TIMING}
    return {"words": presentation.describe(timing), **timing_form.flat_timing(timing)}


def count_schedules(tx: Tx, /, org_id: str, **filters: Any) -> int:
    """Return the number of schedules that match, up to COUNTED_MAX, in the order of the index of names."""
    wanted = ScheduleFilters(**filters)
    return int(count_statement(wanted.shape).run(tx, org_id=org_id, **wanted.params)[0][0])


@functools.lru_cache(STATEMENTS_MAX)
def count_statement(shape: FilterShape) -> Statement:
    stmt, name, _ = matching([s.id], shape)
    first = stmt.order_by(name).limit(literal_column(str(COUNTED_MAX))).subquery()
    return compiled("Count schedules.", select(func.count().label("schedules")).select_from(first))


def names_of(tx: Tx, ids: Sequence[str]) -> dict[str, str]:
    """Return the names of schedules by id, also of deleted ones."""
    return {row.id: row.name for row in tx.execute(select(s.id, s.name).where(s.id.in_(ids)))} if ids else {}


def spans(tx: Tx, schedule_id: str) -> list[Record]:
    """Return the timings of a schedule with the time each was in effect, newest first."""
    c = trigger_spans.c
    columns = (c.revision, type_coerce(c.timing, Text).label("timing"), c.from_at, c.until_at)
    stmt = select(*columns).where(c.schedule_id == schedule_id).order_by(c.revision.desc()).limit(SPANS_SHOWN)
    records = [dict_of(row) for row in tx.execute(stmt)]
    return [{**record, "words": timing_record(record["timing"])["words"]} for record in records]


def timings(
    tx: Tx, org_id: str, after_id: str, limit: int
) -> tuple[dict[str, int], list[tuple[str, datetime, int]], str | None]:
    """Return the stored timings of the next `limit` active schedules of an org, by id, with the number of schedules
    that have them; (timing, next slot, number of slots left) of those with `max_runs`; and the last id, None at the
    end. Active schedules are enabled, not paused and have a slot left."""
    fires = (s.org_id == org_id, s.deleted_at.is_(None), s.enabled, s.paused_at.is_(None), k.next_slot.is_not(None))
    columns = (s.id, type_coerce(s.timing, Text).label("timing"), s.max_runs, k.fired, k.next_slot)
    stmt = select(*columns).join(clocks, k.schedule_id == s.id).where(*fires, s.id > after_id)
    rows = tx.execute(stmt.order_by(s.id).limit(limit)).all()
    counts = Counter(row.timing for row in rows if row.max_runs is None)
    limited = [(row.timing, row.next_slot, row.max_runs - row.fired) for row in rows if row.max_runs is not None]
    return counts, limited, rows[-1].id if len(rows) == limit else None
