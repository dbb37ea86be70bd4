"""Runs, jobs and slots as records with the field names of the API. Reads only."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    case,
    func,
    literal_column,
    or_,
    select,
)

from rota.core.errors import NotFound
from rota.core.ids import trace_id_of
from rota.core.kinds import registered, traits_of
from rota.core.redact import redacted
from rota.core.states import RAN, State, Status, Verdict
from rota.core.timing import triggers
from rota.db.dialect import Tx
from rota.db.paging import (
    PAGE_ROWS,
    PAGE_ROWS_MAX,
    Page,
    Record,
    dict_of,
    invalid_cursor,
    matching,
    older_than,
    page_by_time,
    read_cursor,
    read_page,
    within,
    write_cursor,
)
from rota.db.tables import (
    jobs,
    logs,
    runs,
    schedules,
    server_instances,
    slots,
    tasks,
)
from rota.engine.reports import RUNNING, schedule_id_of
from rota.engine.runs import BY_ATTEMPT

CLOCK_SKEW_MAX = timedelta(minutes=1)  # between the clocks of two machines
s, j, r, t = schedules.c, jobs.c, runs.c, slots.c

RUN = (
    r.id, r.job_id, r.kind, r.target, r.target_name, r.target_version, r.schedule_id, r.slot, r.trigger, r.attempt,
    r.retry_of, r.status, r.reason, r.error, r.outcome, r.queued_at, r.started_at, r.finished_at, r.worker,
    r.artifact_id, r.trace_id, r.usage, r.input,
)  # fmt: skip
JOB_FIELDS = (
    "status", "kind", "target", "target_name", "attempt", "started_at", "finished_at", "error", "artifact_id",
)  # fmt: skip
verdict_of_slot: ColumnElement[Any] = case(  # of a fired slot it follows from its job and last run
    (t.verdict.is_not(None), t.verdict),
    (j.id.is_not(None), None),
    (r.status.in_(sorted(RAN)), Verdict.RAN.value),
    else_=func.coalesce(r.status, Verdict.RAN.value),  # no job and no run: retention pruned its runs
)
STARTED = and_(RUNNING, j.run_id.is_not(None))  # claimed is not started


# runs and jobs


def list_runs(
    tx: Tx,
    org_id: str,
    *,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
    schedule_id: str | None = None,
    job_id: str | None = None,
    status: Status | None = None,
    reason: str | None = None,
    kind: str | None = None,
    target: str | None = None,
    namespace: str | None = None,
    layer: str | None = None,
    pipeline: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    last_only: bool = False,
) -> Page:
    """Return a page of runs, newest first: pending and running ones, from `jobs`, then ended ones, from `runs`, in the
    order of an index.

    The cursor names the part it is in. A run that ends between two pages moves from the first part to the second: it
    may be listed twice, but is never missed.
    """
    if schedule_id is not None:
        schedule_id = schedule_id_of(tx, org_id, schedule_id) or schedule_id
    part, recorded, last = read_cursor(cursor, 3) if cursor else ("job", "", "")
    if part not in ("job", "run"):
        raise invalid_cursor(cursor)
    parts = (namespace, layer, pipeline)
    if kind is None and any(parts):
        kind = next(kind for kind, traits in registered().items() if traits.has_paths)
    items: list[Record] = []
    if part == "job" and status in (None, Status.PENDING, Status.RUNNING):
        stmt = select(jobs).where(j.org_id == org_id).order_by(j.id.desc())
        job_filters = ((j.schedule_id, schedule_id), (j.id, job_id), (j.parked_reason, reason), (j.kind, kind))
        stmt = matching(stmt, *job_filters).where(*pipeline_filters(j.target, *parts))
        if target is not None:
            stmt = stmt.where(j.target.in_([target, *ids_of_targets(tx, org_id, target)]))
        if status is not None:
            stmt = stmt.where(STARTED if status == Status.RUNNING else ~STARTED)
        stmt = within(stmt, func.coalesce(j.started_at, j.queued_at, type_=j.queued_at.type), since, until)
        if last:
            stmt = stmt.where(j.id < last)
        items, more = read_page(tx, stmt, limit, living_run, lambda row: ["job", "", row.id])
        if more:
            return with_details(tx, items), more
    if status in (Status.PENDING, Status.RUNNING):
        return with_details(tx, items), None
    stmt = select(*RUN, r.recorded_at).where(r.org_id == org_id).order_by(r.recorded_at.desc(), r.id.desc())
    run_filters = ((r.schedule_id, schedule_id), (r.job_id, job_id), (r.reason, reason), (r.kind, kind))
    stmt = matching(stmt, *run_filters).where(*pipeline_filters(r.target, *parts))
    if status is not None:  # a literal: a partial index serves no parameter
        stmt = stmt.where(r.status == literal_column(f"'{status.value}'"))
    if status not in (None, Status.SUCCESS) or reason is not None:  # a success has no reason
        stmt = stmt.where(
            r.status != literal_column("'success'")
        )  # implied, but SQLite's planner needs it for the partial index
    if last_only:  # of each job
        later = runs.alias()
        again = select(later.c.id).where(later.c.job_id == r.job_id, later.c.attempt > r.attempt).exists()
        stmt = stmt.where(r.lost_fence == 0, ~again, ~select(j.id).where(j.id == r.job_id).exists())
    if target is not None:
        stmt = stmt.where(or_(r.target == target, r.target_name == target))
    if since is not None:
        stmt = stmt.where(r.recorded_at >= since - CLOCK_SKEW_MAX)  # implied by the next line, but has an index
    stmt = within(stmt, func.coalesce(r.started_at, r.finished_at, type_=r.finished_at.type), since, until)
    if part == "run" and last:
        at = triggers.parse_instant(recorded, "cursor")
        stmt = stmt.where(*older_than(r.recorded_at, r.id, at, last))
    if len(items) == limit:  # jobs fill the page: only check whether runs follow
        return with_details(tx, items), write_cursor("run", "", "") if tx.execute(stmt.limit(1)).first() else None
    older, more = read_page(
        tx, stmt, limit - len(items), ended_run, lambda row: ["run", row.recorded_at.isoformat(), row.id]
    )
    return with_details(tx, items + older), more


def pipeline_filters(
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


def job_rows(tx: Tx, org_id: str, job_id: str | None) -> tuple[Any | None, list[Any]]:
    """Return the row of a job, None once it ended, and the rows of its runs by attempt. The job is read first: a run
    that ends between the two reads is in the second."""
    row = tx.execute(select(jobs).where(j.org_id == org_id, j.id == job_id)).one_or_none()
    return row, list(tx.execute(select(runs).where(r.org_id == org_id, r.job_id == job_id).order_by(*BY_ATTEMPT)))


def is_started(row: Any) -> bool:
    """Return whether the current attempt of a job has started; a claimed job may still wait in its worker."""
    return row.state == State.RUNNING and row.run_id is not None


def job(tx: Tx, org_id: str, job_id: str) -> Record:
    """Return a job: from `jobs` until it ends, then from its last run. Raises NotFound."""
    living, run_rows = job_rows(tx, org_id, job_id)
    ended = [ended_run(row) for row in run_rows]
    run_ids = [run["id"] for run in ended]
    if living is not None:
        shown = living_run(living)
        run_ids += [shown["id"]] if shown["id"] else []
    elif ended:
        shown = ended[-1]
    else:
        raise NotFound(f"job {job_id!r} not found")
    (shown,) = with_target_names(tx, [shown])
    submitted_at = ended[0]["queued_at"] if ended else shown["queued_at"]
    return {
        "id": job_id,
        "submitted_at": submitted_at,
        **{field: shown[field] for field in JOB_FIELDS},
        "run_ids": run_ids,
    }


def list_jobs(tx: Tx, /, org_id: str, **filters: Any) -> Page:
    """Return a page of jobs, newest first, with their current or last status."""
    records, more = list_runs(tx, org_id, last_only=True, **filters)
    return [
        {"id": record["job_id"], "submitted_at": record["queued_at"], **{field: record[field] for field in JOB_FIELDS}}
        for record in records
    ], more


def run_logs(tx: Tx, org_id: str, run_id: str, *, after: int = 0, limit: int = PAGE_ROWS_MAX) -> Page:
    """Return log lines of a run, oldest first."""
    run(tx, org_id, run_id)  # another org's run is not found
    columns = (logs.c.id, logs.c.at, logs.c.stream, logs.c.text)
    stmt = select(*columns).where(logs.c.run_id == run_id, logs.c.id > after).order_by(logs.c.id).limit(limit + 1)
    lines = [dict_of(row) for row in tx.execute(stmt)]
    return lines[:limit], str(lines[limit - 1]["id"]) if len(lines) > limit else None


def living_run(row: Any) -> Record:
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


def ended_run(row: Any) -> Record:
    """Return a run that ended. If its kind makes it an artifact, that has the id of the run."""
    record = dict_of(row)
    record.pop("recorded_at", None)
    record["trace_id"] = record["trace_id"] or trace_id_of(row.job_id)
    record |= {field: redacted(record[field]) for field in ("input", "outcome", "error")}
    if record["started_at"] is not None and traits_of(row.kind).run_artifact is not None:
        record["artifact_id"] = record["id"]
    return record


# slots


def list_slots(
    tx: Tx,
    org_id: str,
    *,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
    schedule: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    verdict: str | None = None,
) -> Page:
    """Return a page of slots with their verdicts, newest first."""
    stmt = slot_query().where(s.org_id == org_id)
    if schedule is not None:
        stmt = stmt.where(t.schedule_id == (schedule_id_of(tx, org_id, schedule) or schedule))
    if since is not None:
        stmt = stmt.where(func.coalesce(t.last_slot, t.slot, type_=t.slot.type) >= since)
    if until is not None:
        stmt = stmt.where(t.slot < until)
    if verdict is not None:
        stmt = stmt.where(verdict_of_slot == verdict)
    return page_by_time(tx, stmt, t.slot, t.schedule_id, limit, cursor, slot_record)


def slot_query() -> Select[Any]:
    attempts = select(func.max(r.attempt)).where(r.job_id == t.job_id, r.lost_fence == 0)
    last = attempts.correlate(slots).scalar_subquery()
    columns = (
        t.schedule_id, s.name.label("schedule_name"), t.slot, t.last_slot, t.count, verdict_of_slot.label("verdict"),
        func.coalesce(t.reason, r.reason).label("reason"), t.note, t.into_slot,
        func.coalesce(j.run_id, r.id).label("run_id"), r.status, j.id.label("living"), j.run_id.label("running"),
    )  # fmt: skip
    joined = (
        slots.join(schedules, s.id == t.schedule_id)
        .outerjoin(jobs, j.id == t.job_id)
        .outerjoin(runs, and_(r.job_id == t.job_id, r.attempt == last, r.lost_fence == 0))
    )
    return select(*columns).select_from(joined)


def slot_record(row: Any) -> Record:
    record = dict_of(row)
    job_id, run_id = record.pop("living"), record.pop("running")
    if job_id is not None:
        record["status"] = (Status.RUNNING if run_id else Status.PENDING).value
        record["run_id"] = run_id
    return {**record, "status": record["status"] or record["verdict"]}
