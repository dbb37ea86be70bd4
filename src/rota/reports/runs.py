"""Runs as records with the field names of the API, and their logs. Reads only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, func, literal_column, or_, select

from rota.core.errors import NotFound
from rota.core.ids import trace_id_of
from rota.core.kinds import registered, traits_of
from rota.core.redact import redacted
from rota.core.states import State, Status
from rota.db.dialect import ResultRow, Tx
from rota.db.paging import (
    PAGE_ROWS,
    PAGE_ROWS_MAX,
    Page,
    Record,
    dict_of,
    invalid_cursor,
    matching,
    page_by,
    read_cursor,
    within,
    write_cursor,
)
from rota.db.tables import jobs, logs, runs, server_instances, tasks
from rota.reports.schedules import schedule_id_of

CLOCK_SKEW_MAX = timedelta(minutes=1)  # between the clocks of two machines

j, r, g = jobs.c, runs.c, logs.c

RUN = (
    r.id, r.job_id, r.kind, r.target, r.target_name, r.target_version, r.schedule_id, r.slot, r.trigger, r.attempt,
    r.retry_of, r.status, r.reason, r.error, r.outcome, r.queued_at, r.started_at, r.finished_at, r.worker,
    r.artifact_id, r.trace_id, r.usage, r.input,
)  # fmt: skip
RUNNING = j.state == literal_column(f"'{State.RUNNING.value}'")  # a literal: a partial index serves no parameter
STARTED = and_(RUNNING, j.run_id.is_not(None))  # claimed is not started


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
    wanted = RunFilters(**filters)
    if wanted.schedule_id is not None:
        wanted = replace(wanted, schedule_id=schedule_id_of(tx, org_id, wanted.schedule_id) or wanted.schedule_id)
    if wanted.kind is None and any(wanted.path):
        wanted = replace(wanted, kind=next(kind for kind, traits in registered().items() if traits.has_paths))
    part, inner = read_cursor(cursor, 2) if cursor else ("job", "")
    if part not in ("job", "run"):
        raise invalid_cursor(cursor)
    living: list[Record] = []
    if part == "job" and wanted.status in (None, Status.PENDING, Status.RUNNING):
        living, more = list_living(tx, org_id, wanted, limit, inner)
        if more:
            return with_details(tx, living), write_cursor("job", more)
    if wanted.status in (Status.PENDING, Status.RUNNING):
        return with_details(tx, living), None
    if len(living) == limit:  # only check whether ended runs follow
        ended, _ = list_ended(tx, org_id, wanted, 1, None)
        return with_details(tx, living), write_cursor("run", "") if ended else None
    ended, more = list_ended(tx, org_id, wanted, limit - len(living), inner if part == "run" else None)
    return with_details(tx, living + ended), write_cursor("run", more) if more else None


def list_living(tx: Tx, org_id: str, wanted: RunFilters, limit: int, cursor: str | None) -> Page:
    """Return a page of pending and running runs, newest job first."""
    stmt = matching(
        select(jobs).where(j.org_id == org_id, *path_filters(j.target, *wanted.path)),
        (j.schedule_id, wanted.schedule_id),
        (j.id, wanted.job_id),
        (j.parked_reason, wanted.reason),
        (j.kind, wanted.kind),
    )
    if wanted.target is not None:
        stmt = stmt.where(j.target.in_([wanted.target, *ids_of_targets(tx, org_id, wanted.target)]))
    if wanted.status is not None:
        stmt = stmt.where(STARTED if wanted.status is Status.RUNNING else ~STARTED)
    at = func.coalesce(j.started_at, j.queued_at, type_=j.queued_at.type)
    return page_by(tx, within(stmt, at, wanted.since, wanted.until), j.id, limit, cursor, living_run, descending=True)


def list_ended(tx: Tx, org_id: str, wanted: RunFilters, limit: int, cursor: str | None) -> Page:
    """Return a page of ended runs, the last recorded first."""
    stmt = matching(
        select(*RUN, r.recorded_at).where(r.org_id == org_id, *path_filters(r.target, *wanted.path)),
        (r.schedule_id, wanted.schedule_id),
        (r.job_id, wanted.job_id),
        (r.reason, wanted.reason),
        (r.kind, wanted.kind),
    )
    if wanted.status is not None:  # a literal: a partial index serves no parameter
        stmt = stmt.where(r.status == literal_column(f"'{wanted.status.value}'"))
    if wanted.status not in (None, Status.SUCCESS) or wanted.reason is not None:  # a success has no reason
        # implied, but SQLite's planner needs it for the partial index
        stmt = stmt.where(r.status != literal_column("'success'"))
    if wanted.last_only:
        later = runs.alias()
        again = select(later.c.id).where(later.c.job_id == r.job_id, later.c.attempt > r.attempt).exists()
        stmt = stmt.where(r.lost_fence == 0, ~again, ~select(j.id).where(j.id == r.job_id).exists())
    if wanted.target is not None:
        stmt = stmt.where(or_(r.target == wanted.target, r.target_name == wanted.target))
    if wanted.since is not None:
        stmt = stmt.where(r.recorded_at >= wanted.since - CLOCK_SKEW_MAX)  # implied by the next line, but has an index
    at = func.coalesce(r.started_at, r.finished_at, type_=r.finished_at.type)
    stmt = within(stmt, at, wanted.since, wanted.until)
    return page_by(tx, stmt, (r.recorded_at, r.id), limit, cursor, ended_run, descending=True)


def path_filters(
    path: ColumnElement[str], namespace: str | None, layer: str | None, name: str | None
) -> list[ColumnElement[bool]]:
    """Return conditions on the three parts of `namespace/layer/name`; None does not filter."""
    conditions = [] if namespace is None else [path.startswith(f"{namespace}/", autoescape=True)]
    conditions += [] if layer is None else [path.contains(f"/{layer}/", autoescape=True)]
    return conditions if name is None else [*conditions, path.endswith(f"/{name}", autoescape=True)]


def run(tx: Tx, org_id: str, run_id: str) -> Record:
    """Return a run, ended or still running. Raises NotFound."""
    job = tx.execute(select(jobs).where(j.org_id == org_id, j.run_id == run_id, STARTED)).one_or_none()
    if job is not None:  # read first: a run that ends between the two reads is found by the second
        return with_details(tx, [living_run(job)])[0]
    row = tx.execute(select(*RUN).where(r.org_id == org_id, r.id == run_id)).one_or_none()
    if row is None:
        raise NotFound(f"run {run_id!r} not found")
    return with_details(tx, [ended_run(row)])[0]


def with_details(tx: Tx, records: list[Record]) -> list[Record]:
    """Add what other tables hold about runs."""
    return with_target_names(tx, with_kind_details(tx, with_retry_times(tx, records)))


def ids_of_targets(tx: Tx, org_id: str, name: str) -> list[str]:
    """Return the ids of tasks and server instances by name."""
    t, v = tasks.c, server_instances.c
    both = (
        select(t.id)
        .where(t.org_id == org_id, t.name == name)
        .union_all(select(v.id).where(v.org_id == org_id, v.name == name))
    )
    return list(tx.execute(both).scalars())


def with_target_names(tx: Tx, records: list[Record]) -> list[Record]:
    """Add the names of tasks and server instances to runs that have only their ids: jobs that have not started, and
    runs whose worker or agent was lost."""
    ids = {run["target"] for run in records if run["target_name"] in (None, run["target"])}
    if not ids:
        return records
    t, v = tasks.c, server_instances.c
    both = select(t.id, t.name).where(t.id.in_(ids)).union_all(select(v.id, v.name).where(v.id.in_(ids)))
    names = {row.id: row.name for row in tx.execute(both)}
    return [{**run, "target_name": names.get(run["target"]) or run["target_name"] or run["target"]} for run in records]


def with_retry_times(tx: Tx, records: list[Record]) -> list[Record]:
    """Add `retry_at` to runs: when the next attempt of the job is planned, if the job waits for one after this run."""
    ids = {run["job_id"] for run in records if run["finished_at"] is not None and run["status"] != Status.SUCCESS}
    waiting = select(j.last_run_id, j.run_at).where(j.id.in_(ids), j.state == literal_column(f"'{State.RETRY.value}'"))
    planned = {row.last_run_id: row.run_at for row in tx.execute(waiting)} if ids else {}
    return [{**run, "retry_at": planned.get(run["id"])} for run in records]


def with_kind_details(tx: Tx, records: list[Record]) -> list[Record]:
    """Add the fields that only runs of their kind have."""
    details: dict[str, Record] = {}
    for kind in {record["kind"] for record in records}:
        read = traits_of(kind).run_details
        ids = [record["id"] for record in records if record["kind"] == kind and record["id"] is not None]
        if read is not None and ids:
            details |= read(tx, ids)
    return [{**record, **details.get(record["id"], {})} for record in records]


def is_started(row: ResultRow) -> bool:
    """Return whether the current attempt of a job has started; a claimed job may still wait in its worker."""
    return row.state == State.RUNNING and row.run_id is not None


def run_logs(tx: Tx, org_id: str, run_id: str, *, after: int = 0, limit: int = PAGE_ROWS_MAX) -> Page:
    """Return log lines of a run, oldest first."""
    run(tx, org_id, run_id)  # another org's run is not found
    columns = (g.id, g.at, g.stream, g.text)
    stmt = select(*columns).where(g.run_id == run_id, g.id > after).order_by(g.id).limit(limit + 1)
    lines = [dict_of(row) for row in tx.execute(stmt)]
    return lines[:limit], str(lines[limit - 1]["id"]) if len(lines) > limit else None


def living_run(row: ResultRow) -> Record:
    """Return a run that has not ended, from its job. It has no id before it starts."""
    started = is_started(row)
    return {
        "id": row.run_id if started else None, "job_id": row.id, "kind": row.kind, "target": row.target,
        "target_name": None, "target_version": None, "schedule_id": row.schedule_id, "slot": row.slot,
        "trigger": row.trigger, "attempt": row.attempt if started else row.attempt + 1, "retry_of": row.last_run_id,
        "status": (Status.RUNNING if started else Status.PENDING).value, "reason": row.parked_reason, "error": None,
        "outcome": None, "queued_at": row.queued_at, "started_at": row.started_at if started else None,
        "finished_at": None, "worker": row.lease_owner if started else None, "artifact_id": None,
        "trace_id": row.trace[3:35] if row.trace else trace_id_of(row.id), "usage": None,
        "input": redacted(row.payload),
    }  # fmt: skip


def ended_run(row: ResultRow) -> Record:
    """Return a run that ended. If its kind makes it an artifact, that has the id of the run."""
    record = dict_of(row)
    record.pop("recorded_at", None)
    record["trace_id"] = record["trace_id"] or trace_id_of(row.job_id)
    record |= {field: redacted(record[field]) for field in ("input", "outcome", "error")}
    if record["started_at"] is not None and traits_of(row.kind).run_artifact is not None:
        record["artifact_id"] = record["id"]
    return record


def with_names(tx: Tx, records: Sequence[Record]) -> list[Record]:
    """Add the names of servers and tasks to schedules, jobs or runs that have only their ids."""
    return with_target_names(tx, [{"target_name": None, **record} for record in records])


def log_tail(tx: Tx, run_id: str, limit: int, part: str | None = None) -> list[Record]:
    """Return the last lines of a run's log, or of its lines that contain `part`, oldest first."""
    stmt = select(g.id, g.at, g.stream, g.text).where(g.run_id == run_id).order_by(g.id.desc()).limit(limit)
    if part:
        stmt = stmt.where(g.text.icontains(part, autoescape=True))
    return [dict_of(row) for row in tx.execute(stmt)][::-1]
