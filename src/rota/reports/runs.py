"""Runs as records with the field names of the API, and their logs. Reads only."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    null,
    or_,
    select,
    type_coerce,
    union_all,
)
from sqlalchemy.types import NULLTYPE

from rota.core.errors import NotFound
from rota.core.ids import trace_id_of
from rota.core.kinds import registered, traits_of
from rota.core.redact import redacted
from rota.core.run_filter import InputField
from rota.core.states import State, Status
from rota.db.column_types import instant_of
from rota.db.dialect import Query, ResultRow, Tx, escape_like, is_listed
from rota.db.paging import (
    PAGE_ROWS,
    PAGE_ROWS_MAX,
    STATEMENT_ROWS,
    Page,
    Record,
    dict_of,
    invalid_cursor,
    key_of,
    read_cursor,
    rows_after,
    text_of,
    within,
    write_cursor,
)
from rota.db.statement import Statement, compiled
from rota.db.tables import jobs, logs, runs, server_instances, tasks
from rota.reports.schedules import schedule_id_of

CLOCK_SKEW_MAX = timedelta(minutes=1)  # between the clocks of two machines
STATEMENTS_MAX = 500  # combinations of filters whose statement is kept
ID_CHARACTERS = 26

j, r, g = jobs.c, runs.c, logs.c

RUNNING = j.state == literal_column(f"'{State.RUNNING.value}'")  # a literal: a partial index serves no parameter
STARTED = and_(RUNNING, j.run_id.is_not(None), j.waiting.is_(None))  # claimed is not started
SUSPENDED = or_(
    j.state == literal_column(f"'{State.WAITING.value}'"),
    and_(j.state == literal_column(f"'{State.PARKED.value}'"), j.waiting.is_not(None)),
)
HAS_RUN = or_(STARTED, j.waiting.is_not(None))  # a suspended run goes on with its id
RETRIED = and_(j.id == r.job_id, j.last_run_id == r.id, j.state == literal_column(f"'{State.RETRY.value}'"))
NEXT_TRY = select(j.run_at).where(RETRIED).scalar_subquery()
RUN = (  # a run that ended
    r.id, r.job_id, r.kind, r.target, r.target_name, r.target_version, r.schedule_id, r.slot, r.trigger, r.attempt,
    r.retry_of, r.status, r.reason, r.error, r.outcome, r.queued_at, r.started_at, r.finished_at, r.worker,
    r.artifact_id, r.trace_id, r.usage, r.cpu_seconds, r.peak_memory_bytes, r.input,
    case((r.status != literal_column("'success'"), NEXT_TRY)).label("retry_at"),
)  # fmt: skip
LIVING_VALUES = {  # of a run that has not ended, from its job; others are null. It has no id before it starts
    "id": case((HAS_RUN, j.run_id)), "job_id": j.id, "kind": j.kind, "target": j.target, "schedule_id": j.schedule_id,
    "slot": j.slot, "trigger": j.trigger, "retry_of": j.last_run_id, "reason": j.parked_reason, "input": j.payload,
    "attempt": case((STARTED, j.attempt), else_=j.attempt + literal_column("1")), "queued_at": j.queued_at,
    "status": case(
        (STARTED, literal_column(f"'{Status.RUNNING.value}'")),
        (SUSPENDED, literal_column(f"'{Status.PAUSED.value}'")),
        else_=literal_column(f"'{Status.PENDING.value}'"),
    ),
    "started_at": case((HAS_RUN, j.started_at)), "worker": case((STARTED, j.lease_owner)),
    "trace_id": func.substr(j.trace, literal_column("4"), literal_column("32")),
}  # fmt: skip
LIVING_FILTERS = {
    Status.PENDING: and_(~STARTED, ~SUSPENDED),
    Status.RUNNING: STARTED,
    Status.PAUSED: SUSPENDED,
}
LIVING_RUN = tuple(
    type_coerce(LIVING_VALUES.get(column.name, cast(null(), column.type)), column.type).label(column.name)
    for column in RUN
)


OfTarget = Callable[[Mapping[str, ColumnElement[Any]], str | None], ColumnElement[bool]]

# lists


@dataclass(frozen=True, slots=True)
class RunFilters:
    """Which runs are listed; None does not filter."""

    schedule_id: str | None = None  # or its name
    job_id: str | None = None
    status: Status | None = None
    reason: str | None = None
    kind: str | None = None
    target: str | None = None
    namespace: str | None = None
    layer: str | None = None
    pipeline: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    last_only: bool = False  # the last run of each job
    # these are not served by an index: see `run_search`
    tag: str | None = None  # of the schedule
    input: tuple[InputField, ...] = ()
    error: str | None = None  # a part of its type or message
    worker: str | None = None  # id, or name of its machine
    longer_than: timedelta | None = None
    shorter_than: timedelta | None = None

    @property
    def path(self) -> tuple[str | None, str | None, str | None]:
        """The parts of a target that is a path."""
        return self.namespace, self.layer, self.pipeline


def list_runs(tx: Tx, /, org_id: str, *, limit: int = PAGE_ROWS, cursor: str | None = None, **filters: Any) -> Page:
    """Return a page of runs that match `RunFilters`, newest first: pending and running ones, from `jobs`, then ended
    ones, from `runs`.

    The cursor names the part it is in. A run that ends between two pages moves from the first part to the second: it
    may be listed twice, but is never missed.
    """
    wanted = resolved(tx, org_id, RunFilters(**filters))
    part, inner = read_position(cursor)
    living = part == "job" and wanted.status in (None, *LIVING_FILTERS)
    ended = wanted.status not in (Status.PENDING, Status.RUNNING)
    if not living and not ended:
        return [], None
    params = page_params(org_id, wanted, part, inner)
    of_targets: tuple[OfTarget, ...] = (by_name,)
    if ended and wanted.target is not None and len(wanted.target) == ID_CHARACTERS:
        name = names_of_targets(tx, {wanted.target}).get(wanted.target)
        if name in (None, wanted.target):  # deleted, or without a name: no two ranges without common runs
            of_targets = (by_name_or_id,)
        else:
            of_targets, params["name_of_target"] = (by_name, by_id), name
    elif ended and wanted.target is not None:
        ids = list(tx.execute(union_all(*ids_of_targets({"org_id": org_id, "target": wanted.target}))).scalars())
        if len(ids) == 1:
            of_targets, params["id_of_target"] = (by_name, by_unnamed), ids[0]
        elif ids:
            of_targets = (by_name_or_id,)
    rows = next(rows for rows in STATEMENT_ROWS if rows > limit)
    kind = wanted.kind if wanted.kind in registered() else None
    by = of_targets if ended else ()
    statement = page_statement(living, by, frozenset(params), wanted.status, kind, wanted.last_only, rows)
    columns = newest_first(statement.columns(tx, **params), limit + 1)
    recorded_at = columns.pop("recorded_at")
    records = records_of(columns)
    more = next_cursor(records[limit - 1], records[limit], recorded_at[limit - 1]) if len(records) > limit else None
    return with_details(tx, records[:limit]), more


def resolved(tx: Tx, org_id: str, wanted: RunFilters) -> RunFilters:
    """Return filters with the id of their schedule instead of its name, and the kind that their path implies."""
    if wanted.schedule_id is not None:
        wanted = replace(wanted, schedule_id=schedule_id_of(tx, org_id, wanted.schedule_id) or wanted.schedule_id)
    if wanted.kind is None and any(wanted.path):
        wanted = replace(wanted, kind=next(kind for kind, traits in registered().items() if traits.has_paths))
    return wanted


def read_position(cursor: str | None) -> tuple[str, str]:
    """Return the part of the list that a cursor is in, `job` or `run`, and the cursor inside it. Raises Invalid."""
    part, inner = read_cursor(cursor, 2) if cursor else ("job", "")
    if part not in ("job", "run"):
        raise invalid_cursor(cursor)
    return part, inner


def newest_first(columns: Mapping[str, Sequence[Any]], count: int) -> dict[str, Sequence[Any]]:
    """Return the first rows of a page, ordered: runs that have not ended, newest job first, then ended ones, the last
    recorded first. The parts of the statement are ordered, but not their union, and sorting it costs the databases a
    third of its time."""
    names = ("finished_at", "recorded_at", "job_id", "id")
    keys = [
        (1, job_id) if finished_at is None else (0, recorded_at, run_id)
        for finished_at, recorded_at, job_id, run_id in zip(*(columns[name] for name in names), strict=True)
    ]
    order = sorted(range(len(keys)), key=keys.__getitem__, reverse=True)[:count]
    if order == list(range(len(keys))):  # as a rule: the databases append one part to the other
        return dict(columns)
    return {name: [values[index] for index in order] for name, values in columns.items()}


def next_cursor(last: Record, following: Record, recorded_at: datetime | int | None) -> str:
    """Return the cursor after a run that is followed by another."""
    if following["finished_at"] is None:
        return write_cursor("job", write_cursor(last["job_id"]))
    if last["finished_at"] is None:
        return write_cursor("run", "")
    at = instant_of(recorded_at) if isinstance(recorded_at, int) else recorded_at
    return write_cursor("run", write_cursor(text_of(at), last["id"]))


def page_params(org_id: str, wanted: RunFilters, part: str, cursor: str) -> Record:
    """Return the parameters of a page's statement, except the number of rows."""
    params: Record = {"org_id": org_id, **path_patterns(*wanted.path)}
    named = ("schedule_id", "job_id", "reason", "kind", "target", "since", "until")
    params |= {name: value for name in named if (value := getattr(wanted, name)) is not None}
    if wanted.since is not None:
        params["recorded_since"] = wanted.since - CLOCK_SKEW_MAX
    if wanted.kind in registered():
        del params["kind"]  # a literal of the statement: a partial index serves no parameter
    if cursor:
        order: Record = {"after_id": j.id} if part == "job" else {"after_at": r.recorded_at, "after_id": r.id}
        keys = zip(order.items(), read_cursor(cursor, len(order)), strict=True)
        params |= {name: key_of(text, column, cursor) for (name, column), text in keys}
    return params


@functools.lru_cache(STATEMENTS_MAX)
def page_statement(
    living: bool,
    ended: tuple[OfTarget, ...],
    params: frozenset[str],
    status: Status | None,
    kind: str | None,
    last: bool,
    rows: int,
) -> Statement:
    """Return the statement of a page of living runs and of ended ones, by each of these conditions of their target;
    `newest_first` orders them. It reads `rows` of each: a literal, which the planner counts on, unlike a parameter."""
    bound: dict[str, ColumnElement[Any]] = {name: bindparam(name) for name in params}
    bound |= {} if kind is None else {"kind": literal_column(f"'{kind}'")}
    parts = [
        *([living_query(bound, status)] if living else []),
        *(ended_query(bound, status, kind, last, of_target) for of_target in ended),
    ]
    pages = [select(part.limit(literal_column(str(rows))).subquery()) for part in parts]
    return compiled("Return a page of runs, in any order.", union_all(*pages))


def living_query(params: Mapping[str, ColumnElement[Any]], status: Status | None) -> Query:
    """Return pending and running runs, newest job first."""
    unrecorded = type_coerce(cast(null(), r.recorded_at.type), NULLTYPE).label("recorded_at")
    stmt = select(unrecorded, *LIVING_RUN).where(
        *equal(params, org_id=j.org_id, schedule_id=j.schedule_id, job_id=j.id, reason=j.parked_reason, kind=j.kind),
        *path_filters(j.target, params),
    )
    if "target" in params:
        stmt = stmt.where(j.target.in_(union_all(select(params["target"]), *ids_of_targets(params))))
    if status is not None:
        stmt = stmt.where(LIVING_FILTERS[status])
    if "after_id" in params:
        stmt = stmt.where(*rows_after([params["after_id"]], [j.id], descending=True))
    at = func.coalesce(j.started_at, j.queued_at, type_=j.queued_at.type)
    return within(stmt, at, params.get("since"), params.get("until")).order_by(j.id.desc())


def ended_query(
    params: Mapping[str, ColumnElement[Any]],
    status: Status | None,
    kind: str | None,
    last_only: bool,
    of_target: OfTarget | None = None,
) -> Query:
    """Return ended runs, the last recorded first; `of_target` returns the condition of the target."""
    # runs of a schedule are read by its own index: without statistics SQLite might read all runs of the org
    org_id = r.org_id.concat(literal_column("''")) if "schedule_id" in params else r.org_id
    # the time of recording as the driver returns it: only that of the last run is needed, for the cursor
    stmt = select(type_coerce(r.recorded_at, NULLTYPE).label("recorded_at"), *RUN).where(
        *equal(params, org_id=org_id, schedule_id=r.schedule_id, job_id=r.job_id, reason=r.reason, kind=r.kind),
        *path_filters(r.target, params),
    )
    if status is not None:  # a literal: a partial index serves no parameter
        stmt = stmt.where(r.status == literal_column(f"'{status.value}'"))
    if status not in (None, Status.SUCCESS) or "reason" in params:  # a success has no reason
        # implied, but SQLite's planner needs it for the partial index
        stmt = stmt.where(r.status != literal_column("'success'"))
    if last_only:
        later = runs.alias()
        again = select(later.c.id).where(later.c.job_id == r.job_id, later.c.attempt > r.attempt).exists()
        stmt = stmt.where(r.lost_fence == literal_column("0"), ~again, ~select(j.id).where(j.id == r.job_id).exists())
    if "target" in params:
        stmt = stmt.where((of_target or by_name_or_id)(params, kind))
    if "since" in params:
        stmt = stmt.where(r.recorded_at >= params["recorded_since"])  # implied by the next line, but has an index
    if "after_at" in params:
        last_key = [params["after_at"], params["after_id"]]
        stmt = stmt.where(*rows_after(last_key, [r.recorded_at, r.id], descending=True))
    at = func.coalesce(r.started_at, r.finished_at, type_=r.finished_at.type)
    stmt = within(stmt, at, params.get("since"), params.get("until"))
    return stmt.order_by(r.recorded_at.desc(), r.id.desc())


def by_name(params: Mapping[str, ColumnElement[Any]], kind: str | None) -> ColumnElement[bool]:
    """Return the condition of ended runs that have the target as their name: a range of an index."""
    has_paths = kind is not None and traits_of(kind).has_paths  # the name of a path is the path
    return (r.target if has_paths else r.target_name) == params["target"]


def by_id(params: Mapping[str, ColumnElement[Any]], kind: str | None) -> ColumnElement[bool]:  # noqa: ARG001
    """Return the condition of ended runs whose target is an id and that have its name: a range of an index."""
    return and_(r.target_name == params["name_of_target"], r.target == params["target"])


def by_name_or_id(params: Mapping[str, ColumnElement[Any]], kind: str | None) -> ColumnElement[bool]:
    """Return all conditions in one, which no index serves."""
    return or_(
        r.target == params["target"], by_name(params, kind), r.target_name.in_(union_all(*ids_of_targets(params)))
    )


def by_unnamed(params: Mapping[str, ColumnElement[Any]], kind: str | None) -> ColumnElement[bool]:  # noqa: ARG001
    """Return the condition of ended runs that have the id of the target as their name: they were not prepared."""
    return r.target_name == params["id_of_target"]


def equal(params: Mapping[str, ColumnElement[Any]], **columns: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    """Return the conditions that columns equal the parameters of their name, if there are such."""
    return [column == params[name] for name, column in columns.items() if name in params]


def path_patterns(namespace: str | None, layer: str | None, last_part: str | None) -> dict[str, str]:
    """Return LIKE patterns for the parts of the path `namespace/layer/last_part`; None does not filter."""
    parts = {"namespace": (namespace, "{}//%"), "layer": (layer, "%//{}//%"), "last_part": (last_part, "%//{}")}
    return {name: pattern.format(escape_like(text)) for name, (text, pattern) in parts.items() if text is not None}


def path_filters(path: ColumnElement[str], patterns: Mapping[str, Any]) -> list[ColumnElement[bool]]:
    """Return the conditions of `path_patterns`, or of parameters for them."""
    names = ("namespace", "layer", "last_part")
    return [path.like(patterns[name], escape="/") for name in names if name in patterns]


def run(tx: Tx, org_id: str, run_id: str) -> Record:
    """Return a run, ended or still running. Raises NotFound."""
    # the job is read first: a run that ends between the two reads is found by the second
    living = select(*LIVING_RUN).where(j.org_id == org_id, j.run_id == run_id, HAS_RUN)
    ended = select(*RUN).where(r.org_id == org_id, r.id == run_id)
    row = tx.execute(living).one_or_none() or tx.execute(ended).one_or_none()
    if row is None:
        raise NotFound(f"run {run_id!r} not found")
    return with_details(tx, [record_of(row)])[0]


def with_details(tx: Tx, records: list[Record]) -> list[Record]:
    """Add what other tables hold about runs."""
    return with_target_names(tx, with_kind_details(tx, records))


def ids_of_targets(params: Mapping[str, Any]) -> list[Query]:
    """Return queries for the ids of tasks and server instances with the name `target`."""
    return [
        select(table.c.id).where(
            table.c.org_id == params.get("org_of_target", params.get("org_id")), table.c.name == params["target"]
        )
        for table in (tasks, server_instances)
    ]


def with_target_names(tx: Tx, records: list[Record]) -> list[Record]:
    """Add the names of tasks and server instances to runs that have only their ids: jobs that have not started, and
    runs whose worker or agent was lost."""
    unnamed = [run for run in records if run["target_name"] in (None, run["target"])]
    ids = {run["target"] for run in unnamed if len(run["target"]) == ID_CHARACTERS}
    names = names_of_targets(tx, ids) if ids else {}
    for run in unnamed:
        run["target_name"] = names.get(run["target"]) or run["target_name"] or run["target"]
    return records


def names_of_targets(tx: Tx, ids: Collection[str]) -> dict[str, str]:
    """Return the names of tasks and server instances by id."""
    t, v = tasks.c, server_instances.c
    both = select(t.id, t.name).where(t.id.in_(ids)).union_all(select(v.id, v.name).where(v.id.in_(ids)))
    return {row.id: row.name for row in tx.execute(both)}


def with_kind_details(tx: Tx, records: list[Record]) -> list[Record]:
    """Add the fields that only runs of their kind have."""
    for kind in {record["kind"] for record in records}:
        read = traits_of(kind).run_details
        by_id = {record["id"]: record for record in records if record["kind"] == kind and record["id"] is not None}
        if read is not None and by_id:
            for run_id, details in read(tx, list(by_id)).items():
                by_id[run_id] |= details
    return records


def retried(tx: Tx, run_ids: Sequence[str]) -> set[str]:
    """Return which of these runs have a later attempt that ended, of the same job or of one that retried it."""
    later = select(r.retry_of).where(r.retry_of.is_not(None), is_listed(tx, r.retry_of, run_ids))
    return {str(run_id) for (run_id,) in tx.execute(later)}


def is_started(row: ResultRow) -> bool:
    """Return whether the current attempt of a job has started; a claimed job may still wait in its worker."""
    return row.state == State.RUNNING and row.run_id is not None and row.waiting is None


def run_logs(tx: Tx, org_id: str, run_id: str, *, after: int = 0, limit: int = PAGE_ROWS_MAX) -> Page:
    """Return log lines of a run, oldest first."""
    run(tx, org_id, run_id)  # another org's run is not found
    columns = (g.id, g.at, g.stream, g.text)
    stmt = select(*columns).where(g.run_id == run_id, g.id > after).order_by(g.id).limit(limit + 1)
    lines = [dict_of(row) for row in tx.execute(stmt)]
    return lines[:limit], str(lines[limit - 1]["id"]) if len(lines) > limit else None


def record_of(row: ResultRow) -> Record:
    """Return a run from a row with the columns of `RUN` or `LIVING_RUN`, and perhaps more."""
    return records_of({name: [value] for name, value in dict_of(row).items()})[0]


def records_of(columns: dict[str, Sequence[Any]]) -> list[Record]:
    """Return runs from columns of rows. If their kind makes an ended run an artifact, that has the id of the run."""
    columns["trace_id"] = [
        trace_id or trace_id_of(job_id) for trace_id, job_id in zip(columns["trace_id"], columns["job_id"], strict=True)
    ]
    for name in ("input", "outcome", "error"):
        if any(columns[name]):
            columns[name] = [value and redacted(value) for value in columns[name]]
    artifact_kinds = {kind for kind in set(columns["kind"]) if traits_of(kind).run_artifact is not None}
    if artifact_kinds:
        names = ("kind", "id", "started_at", "finished_at", "artifact_id")
        columns["artifact_id"] = [
            run_id if kind in artifact_kinds and started_at and finished_at else artifact_id
            for kind, run_id, started_at, finished_at, artifact_id in zip(*(columns[n] for n in names), strict=True)
        ]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def with_names(tx: Tx, records: Sequence[Record]) -> list[Record]:
    """Add the names of servers and tasks to schedules, jobs or runs that have only their ids."""
    return with_target_names(tx, [{"target_name": None, **record} for record in records])
