"""Search of runs by what has no index of its own: input, error, worker, duration, tag, end of a range of time.

A search reads the runs of the best index newest first, in windows of a fixed number of rows, each a short read. It ends
when a page is full or its time is used up. Then the page has what was found so far, and the cursor continues where the
search stopped: no page is slow, and none hides that there is more to search.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

import orjson
from sqlalchemy import ColumnElement, bindparam, literal_column, or_, select, union_all

from rota.core.clock import stopwatch
from rota.core.kinds import registered
from rota.core.states import Status
from rota.db.column_types import Instant, instant_of
from rota.db.connection import Reads
from rota.db.dialect import Query, Tx, contains, contains_any_case, duration_between, is_listed
from rota.db.paging import PAGE_ROWS, Record, dict_of, key_of, read_cursor, rows_after, text_of, write_cursor
from rota.db.tables import jobs, runs, schedule_tags, workers
from rota.reports.runs import (
    CLOCK_SKEW_MAX,
    HAS_RUN,
    LIVING_FILTERS,
    STARTED,
    RunFilters,
    ended_query,
    list_runs,
    living_query,
    page_params,
    read_position,
    records_of,
    resolved,
    with_details,
)

WINDOW_ROWS = 5000
SEARCH_SECONDS = 2.0  # after which a page is answered as it is
MERGED_SCHEDULES_MAX = 100  # of a tag: their runs are read by the index of each; those of more, by time
WORKERS_MAX = 1000  # processes of one machine, newest first

AFTER_ALL_IDS = "~"

j, r, t = jobs.c, runs.c, schedule_tags.c

JobKey = tuple[str]
RunKey = tuple[datetime, str]


class SearchPage(NamedTuple):
    """A page of runs. `searched_until` is set if the time was used up: the search stopped at this time."""

    items: list[Record]
    next_cursor: str | None
    searched_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """Filters with what they refer to."""

    org_id: str
    filters: RunFilters
    schedule_ids: Sequence[str] | None  # read by their own index
    tag: str | None  # of too many schedules for that
    worker_ids: Sequence[str] | None
    worker_started_at: datetime | None  # the first of them
    now: datetime


@dataclass(frozen=True, slots=True)
class Window:
    """What a window has: rows that may match, with the position after each, and the position after all of them."""

    rows: list[tuple[Record, str]]
    following: str | None
    searched_until: datetime | None = None


async def search(
    db: Reads, org_id: str, now: datetime, *, limit: int = PAGE_ROWS, cursor: str | None = None, **filters: Any
) -> SearchPage:
    """Return a page of runs that match `RunFilters`, newest first, like `list_runs`. Raises Invalid."""
    wanted = RunFilters(**filters)
    if is_indexed(wanted):
        return SearchPage(*await db.read(list_runs, org_id, limit=limit, cursor=cursor, **filters))
    plan = await db.read(prepare, org_id, wanted, now)
    ends_at = stopwatch() + SEARCH_SECONDS
    matches: list[tuple[Record, str]] = []
    position, until = cursor, None
    while True:
        window = await db.read(read_window, plan, position, limit + 1 - len(matches))
        matches += [(record, after) for record, after in window.rows if is_match(record, wanted)]
        position, until = window.following, window.searched_until
        if len(matches) > limit or position is None or stopwatch() > ends_at:
            break
    items = await db.read(with_details, [record for record, _ in matches[:limit]])
    if len(matches) > limit:
        return SearchPage(items, matches[limit - 1][1])
    return SearchPage(items, position, until if position is not None else None)


def is_indexed(wanted: RunFilters) -> bool:
    """Return whether an index serves all filters, so that a page reads few rows besides its own."""
    searched = (
        wanted.tag, wanted.error, wanted.worker, wanted.longer_than, wanted.shorter_than, wanted.reason, wanted.until,
        wanted.namespace, wanted.layer, wanted.pipeline, wanted.input or None,
        wanted.kind if wanted.target is None else None,
    )  # fmt: skip
    return all(value is None for value in searched)


def is_match(record: Record, wanted: RunFilters) -> bool:
    """Check what the database cannot: values as people see them. Hidden secrets match nothing."""
    error: Any = record["error"]
    if wanted.error is not None:
        text = f"{error.get('type') or ''}: {error.get('message') or ''}" if isinstance(error, dict) else ""
        if ascii_lower(wanted.error) not in ascii_lower(text):
            return False
    return all(field.matches(record["input"]) for field in wanted.input)


def ascii_lower(text: str) -> str:
    """Return a text with A to Z in lower case: what SQLite regards as the same letters."""
    return "".join(chr(ord(letter) + 32) if "A" <= letter <= "Z" else letter for letter in text)


def prepare(tx: Tx, org_id: str, wanted: RunFilters, now: datetime) -> Search:
    """Look up what filters refer to: schedules of a tag, processes of a machine."""
    wanted = resolved(tx, org_id, wanted)
    schedule_ids, tag = None if wanted.schedule_id is None else [wanted.schedule_id], wanted.tag
    if tag is not None:
        tagged = select(t.schedule_id).where(t.org_id == org_id, t.tag == tag).order_by(t.schedule_id)
        ids = list(tx.execute(tagged.limit(MERGED_SCHEDULES_MAX + 1)).scalars())
        if schedule_ids is not None:
            of_both = tagged.where(t.schedule_id == wanted.schedule_id)
            schedule_ids, tag = list(tx.execute(of_both).scalars()), None
        elif len(ids) <= MERGED_SCHEDULES_MAX:
            schedule_ids, tag = ids, None
    worker_ids, started_at = None, None
    if wanted.worker is not None:
        w = workers.c
        named = select(w.id, w.started_at).where(or_(w.id == wanted.worker, w.host == wanted.worker))
        rows = tx.execute(named.order_by(w.id.desc()).limit(WORKERS_MAX)).all()
        worker_ids = [row.id for row in rows] or [wanted.worker]
        started_at = min((row.started_at for row in rows), default=None)
    wanted = replace(wanted, schedule_id=None)
    return Search(org_id, wanted, schedule_ids, tag, worker_ids, started_at, now)


def read_window(tx: Tx, plan: Search, position: str | None, rows: int) -> Window:
    """Return the rows of the next window that may match, at most `rows`."""
    part, inner = read_position(position)
    wanted = plan.filters
    if plan.schedule_ids == []:
        return Window([], None)
    is_living = wanted.status in (None, *LIVING_FILTERS) and wanted.error is None and wanted.shorter_than is None
    if part == "job" and is_living:
        return living_window(tx, plan, inner, rows)
    if wanted.status in (Status.PENDING, Status.RUNNING):
        return Window([], None)
    return ended_window(tx, plan, inner if part == "run" else "", rows)


def living_window(tx: Tx, plan: Search, inner: str, rows: int) -> Window:
    """Read pending and running runs in the order of their jobs' ids. After the last of them, ended ones follow."""
    after = None if not inner else str(key_of(read_cursor(inner)[0], j.id, inner))
    begins = j.id < (after or AFTER_ALL_IDS)
    of_schedules = [] if plan.schedule_ids is None else [is_listed(tx, j.schedule_id, plan.schedule_ids)]
    bounds = select(j.id).where(begins, *of_schedules).order_by(j.id.desc())
    last = tx.execute(bounds.offset(WINDOW_ROWS - 1).limit(1)).scalar_one_or_none()
    stmt = living_query(bound_values(plan), plan.filters.status).where(begins, *of_schedules)
    if last is not None:
        stmt = stmt.where(j.id >= last)
    stmt = stmt.where(*living_conditions(tx, plan)).limit(rows)
    records, _ = read_records(tx, stmt)
    keyed = [(record, job_position(record["job_id"])) for record in records]
    if len(records) == rows:
        return Window(keyed, keyed[-1][1], plan.now)
    return Window(keyed, write_cursor("run", "") if last is None else job_position(last), plan.now)


def ended_window(tx: Tx, plan: Search, inner: str, rows: int) -> Window:
    """Read ended runs in the order in which they were recorded."""
    after = run_key(inner) if inner else None
    last = last_of_window(tx, plan, after)
    wanted, values = plan.filters, bound_values(plan)
    values["org_of_target"] = values.pop("org_id")  # that of runs: see `path_conditions`
    stmt = ended_query(values, wanted.status, wanted.kind, wanted.last_only)
    stmt = stmt.where(*path_conditions(tx, plan), *after_key(after), *ended_conditions(tx, plan))
    if last is not None:
        stmt = stmt.where(r.recorded_at >= last[0], or_(r.recorded_at > last[0], r.id >= last[1]))
    records, recorded_at = read_records(tx, stmt.limit(rows))
    keys = [(at, record["id"]) for record, at in zip(records, recorded_at, strict=True)]
    keyed = [(record, run_position(key)) for record, key in zip(records, keys, strict=True)]
    if len(records) == rows:
        return Window(keyed, run_position(keys[-1]), keys[-1][0])
    return Window(keyed, None) if last is None else Window(keyed, run_position(last), last[0])


def last_of_window(tx: Tx, plan: Search, after: RunKey | None) -> RunKey | None:
    """Return the key of the last row of the next window; None if fewer rows are left."""
    newest_first = (r.recorded_at.desc(), r.id.desc())
    if plan.schedule_ids is None:
        keys: Any = select(r.recorded_at, r.id).where(*path_conditions(tx, plan), *after_key(after))
        keys = keys.order_by(*newest_first)
        rows = WINDOW_ROWS
    else:  # the newest rows of each schedule, merged: those of one may be older than all others
        rows = max(WINDOW_ROWS // len(plan.schedule_ids), 100)
        of_each = [
            select(r.recorded_at, r.id)
            .where(r.schedule_id == schedule_id, *since_conditions(plan), *after_key(after))
            .order_by(*newest_first)
            .limit(rows)
            .subquery()
            for schedule_id in plan.schedule_ids
        ]
        merged = union_all(*(select(part) for part in of_each)).subquery()
        keys = select(merged).order_by(merged.c.recorded_at.desc(), merged.c.id.desc())
    row = tx.execute(keys.offset(rows - 1).limit(1)).one_or_none()
    return None if row is None else (row.recorded_at, row.id)


def path_conditions(tx: Tx, plan: Search) -> list[ColumnElement[bool]]:
    """Return the conditions that an index serves, in the order of time."""
    wanted = plan.filters
    if plan.schedule_ids is not None:  # not by the org's index: without statistics SQLite might use that
        of_org = r.org_id.concat(literal_column("''")) == plan.org_id
        return [of_org, is_listed(tx, r.schedule_id, plan.schedule_ids), *since_conditions(plan)]
    served = [r.org_id == plan.org_id, *since_conditions(plan)]
    if wanted.status not in (None, Status.SUCCESS):  # literals: a partial index serves no parameter
        served += [r.status == literal_column(f"'{wanted.status.value}'"), r.status != literal_column("'success'")]
    elif wanted.error is not None:
        served.append(r.error.is_not(None))
    return served


def since_conditions(plan: Search) -> list[ColumnElement[bool]]:
    """Return the earliest time of recording: a run is recorded after it and its worker started."""
    starts = [start for start in (plan.filters.since, plan.worker_started_at) if start is not None]
    return [r.recorded_at >= max(starts) - CLOCK_SKEW_MAX] if starts else []


def after_key(after: RunKey | None) -> list[ColumnElement[bool]]:
    return [] if after is None else rows_after(after, [r.recorded_at, r.id], descending=True)


def living_conditions(tx: Tx, plan: Search) -> list[ColumnElement[bool]]:
    conditions = [contains(tx, j.payload, json_part(field.value)) for field in plan.filters.input]
    if plan.tag is not None:
        conditions.append(j.schedule_id.in_(schedules_of_tag(plan)))
    if plan.worker_ids is not None:
        conditions += [STARTED, is_listed(tx, j.lease_owner, plan.worker_ids)]
    if plan.filters.longer_than is not None:
        conditions += [HAS_RUN, j.started_at <= plan.now - plan.filters.longer_than]
    return conditions


def ended_conditions(tx: Tx, plan: Search) -> list[ColumnElement[bool]]:
    wanted = plan.filters
    conditions = [contains(tx, r.input, json_part(field.value)) for field in wanted.input]
    if plan.tag is not None:
        conditions.append(r.schedule_id.in_(schedules_of_tag(plan)))
    if plan.worker_ids is not None:
        conditions.append(is_listed(tx, r.worker, plan.worker_ids))
    if wanted.error is not None:
        conditions.append(contains_any_case(r.error, json_part(wanted.error)))
    took = duration_between(tx, r.started_at, r.finished_at)
    if wanted.longer_than is not None:
        conditions.append(took >= wanted.longer_than.total_seconds())
    if wanted.shorter_than is not None:
        conditions.append(took < wanted.shorter_than.total_seconds())
    return conditions


def schedules_of_tag(plan: Search) -> Query:
    return select(t.schedule_id).where(t.org_id == plan.org_id, t.tag == plan.tag)


def json_part(text: str) -> str:
    """Return a text as it is inside JSON."""
    return orjson.dumps(text).decode()[1:-1]


def bound_values(plan: Search) -> dict[str, ColumnElement[Any]]:
    """Return the parameters of `living_query` and `ended_query` with their values."""
    values = page_params(plan.org_id, plan.filters, "job", "")
    bound: dict[str, ColumnElement[Any]] = {
        name: bindparam(name, value, Instant() if isinstance(value, datetime) else None)
        for name, value in values.items()
    }
    if plan.filters.kind in registered():
        bound["kind"] = literal_column(f"'{plan.filters.kind}'")
    return bound


def read_records(tx: Tx, stmt: Query) -> tuple[list[Record], list[datetime]]:
    """Return runs, and when they were recorded."""
    rows = [dict_of(row) for row in tx.execute(stmt)]
    if not rows:
        return [], []
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    recorded_at: list[Any] = columns.pop("recorded_at")
    instants: list[Any] = [instant_of(at) if isinstance(at, int) else at for at in recorded_at]
    return records_of(dict(columns)), instants


def run_key(inner: str) -> RunKey:
    at, run_id = read_cursor(inner, 2)
    recorded_at: Any = key_of(at, r.recorded_at, inner)
    return recorded_at, run_id


def job_position(job_id: str) -> str:
    return write_cursor("job", write_cursor(job_id))


def run_position(key: RunKey) -> str:
    return write_cursor("run", write_cursor(text_of(key[0]), key[1]))
