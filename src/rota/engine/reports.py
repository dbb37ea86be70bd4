"""Lists and details for people, as plain records in the wire's field names. Reads only.

A list answers with one page and the cursor of the next: the last key that was shown, so that a page costs the same
however far down it is, and rows that come or go meanwhile shift nothing.
"""

import functools
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import (
    Column,
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
from rota.core.ids import trace_id_of
from rota.core.model import HOST_JOB, WORKFLOW, Schedule
from rota.core.plan import first_plan
from rota.core.redact import HIDDEN, redacted
from rota.core.states import RAN, State, Status, Verdict, WorkerState
from rota.core.timing import triggers
from rota.core.timing.triggers import Once, Timing
from rota.db.column_types import EPOCH
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
    page_by,
    page_by_time,
    read_cursor,
    read_page,
    within,
    write_cursor,
)
from rota.db.tables import (
    api_keys,
    audit_log,
    clocks,
    grants,
    hosts,
    jobs,
    logs,
    orgs,
    queues,
    runs,
    schedule_stats,
    schedules,
    server_instances,
    slots,
    tasks,
    users,
    workers,
    workflow_runs,
    workflows,
)
from rota.engine import grants as authority
from rota.engine.orgs import slug_of
from rota.engine.runs import BY_ATTEMPT
from rota.engine.schedules import by_id_or_name

A_WHILE = timedelta(minutes=1)  # more than clocks are apart

s, k, st, j, r, t = schedules.c, clocks.c, schedule_stats.c, jobs.c, runs.c, slots.c

PLAIN = (  # columns that stand on the wire as they are
    s.name, s.kind, s.target, s.input, s.max_runs, s.misfire, s.catch_up_limit, s.overlap, s.start_deadline_seconds,
    s.timeout_seconds, s.retry, s.priority, s.queue, s.enabled, s.tags, s.description, s.grant_id, s.id, k.next_run_at,
    k.next_slot, st.last_run_at, st.last_run_id, st.last_job_id, st.last_run_status, k.fired.label("run_count"),
    st.failure_count, st.skipped_count, s.revision, s.condition, s.condition_reason, s.paused_at, s.paused_until,
    s.pause_reason, s.source, s.created_at, s.updated_at, s.owner_id, s.created_by,
)  # fmt: skip
NO_TIMING = dict.fromkeys(parse.flat_timing(Timing(Once(EPOCH))))
RUN = (
    r.id, r.job_id, r.kind, r.target, r.target_name, r.target_version, r.schedule_id, r.slot, r.trigger, r.attempt,
    r.retry_of, r.status, r.reason, r.error, r.outcome, r.queued_at, r.started_at, r.finished_at, r.worker,
    r.artifact_id, r.trace_id, r.usage, r.input,
)  # fmt: skip
TASK = (
    tasks.c.id, tasks.c.name, tasks.c.task_type, tasks.c.command, tasks.c.parameters, tasks.c.enabled, tasks.c.source,
    tasks.c.version, tasks.c.options, tasks.c.created_at, tasks.c.updated_at,
)  # fmt: skip
TASK_OPTIONS = (
    "retry",
    "timeout",
    "isolation",
    "cache_ttl",
    "env",
    "cwd",
    "stdin",
    "memory_mb",
    "delete_with_schedule",
)
decided: ColumnElement[Any] = case(  # what became of a slot that fired
    (t.verdict.is_not(None), t.verdict),
    (j.id.is_not(None), None),
    (r.status.in_(sorted(RAN)), Verdict.RAN.value),
    else_=func.coalesce(r.status, Verdict.RAN.value),  # it left the queue, and retention has taken its runs
)
RUNNING = j.state == literal_column(f"'{State.RUNNING.value}'")  # as text: a partial index serves no parameter
STARTED = and_(RUNNING, j.run_id.is_not(None))  # claimed is not started


# schedules


def list_schedules(
    tx: Tx,
    /,
    org_id: str,
    *,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
    sort: str = "name",
    **wanted: Any,
) -> Page:
    """The living schedules by name or by when they were made (`id`), `-` for backwards: the orders of two indexes, so
    a page costs the same among ten and among a million."""
    column = s.id if sort.endswith("id") else s.name
    stmt = schedule_query().where(s.org_id == org_id, s.deleted_at.is_(None), *such_as(**wanted))
    return page_by(tx, stmt, column, limit, cursor, schedule_record, descending=sort.startswith("-"))


def schedule_ids(tx: Tx, /, org_id: str, **wanted: Any) -> list[str]:
    """The ids of all living schedules that are as wanted, in their order."""
    stmt = select(s.id).where(s.org_id == org_id, s.deleted_at.is_(None), *such_as(**wanted))
    return list(tx.execute(stmt.order_by(s.id)).scalars())


def such_as(
    *,
    name: str | None = None,
    kind: str | None = None,
    tag: str | None = None,
    enabled: bool | None = None,
    paused: bool | None = None,
    condition: str | None = None,
    targets: Sequence[str] | None = None,
) -> list[ColumnElement[bool]]:
    """What can be asked of schedules; None asks nothing."""
    plain = ((s.kind, kind), (s.enabled, enabled), (s.condition, condition), (s.paused_at.is_not(None), paused))
    found = [column == value for column, value in plain if value is not None]
    if targets is not None:
        found.append(s.target.in_(targets))
    if name is not None:
        found.append(s.name.icontains(name, autoescape=True))
    return found if tag is None else [*found, has_tag(tag)]


def schedule(tx: Tx, org_id: str, key: str) -> Record:
    """A living schedule by its id or name."""
    found = tx.execute(schedule_query().where(by_id_or_name(org_id, key)).order_by(s.id != key)).first()
    if found is None:
        raise NotFound(f"schedule {key!r} not found")
    return schedule_record(found)


def new_schedule(one: Schedule) -> Record:
    """A schedule that was just stored, as reading it would tell: ten thousand of them need not be read back."""
    next_slot, next_run_at = first_plan(one, one.created_at) if one.enabled else (None, None)
    same = (
        "id", "revision", "condition_reason", "paused_at", "paused_until", "pause_reason", "created_at", "owner_id",
        "created_by",
    )  # fmt: skip
    return {
        **shown_input(parse.flat(one)), **{field: getattr(one, field) for field in same}, "next_run_at": next_run_at,
        "next_slot": next_slot, "last_run_at": None, "last_run_id": None, "last_job_id": None, "last_run_status": None,
        "run_count": 0, "failure_count": 0, "skipped_count": 0, "condition": one.condition.value,
        "updated_at": one.updated_at, "words": triggers.describe(one.timing), "paused": False, **origin(one.source),
    }  # fmt: skip


def schedule_id_of(tx: Tx, org_id: str, key: str) -> str | None:
    """The id behind an id or a living name. A deleted schedule is still known by its id: its history stays."""
    known = or_(and_(s.org_id == org_id, s.id == key), by_id_or_name(org_id, key))
    return tx.execute(select(s.id).where(known).order_by(s.id != key)).scalars().first()


def schedule_query() -> Select[Any]:
    # timing as text: a row whose timing nobody can read is still told
    return select(*PLAIN, type_coerce(s.timing, Text).label("timing_text")).select_from(
        schedules.join(clocks, k.schedule_id == s.id).join(schedule_stats, st.schedule_id == s.id)
    )


def schedule_record(row: Any) -> Record:
    found = shown_input(dict_of(row))
    told = timing_record(found.pop("timing_text"))
    return {**found, "paused": row.paused_at is not None, **told, **origin(row.source)}


def origin(source: str) -> Record:
    """Where a schedule comes from, and the name of that: `code:jobs` is the program `jobs`."""
    kind, _, name = source.partition(":")
    return {"source": kind, "source_ref": name or None}


def shown_input(found: Record) -> Record:
    """What is sent to hosts may hold their passwords."""
    return {**found, "input": redacted(found["input"])} if found["kind"] == HOST_JOB else found


@functools.lru_cache(maxsize=10_000)  # reading a timing and putting it into words is half of what a list costs
def timing_record(text: str) -> Record:
    try:
        timing = triggers.load(orjson.loads(text))
    except (Invalid, ValueError):
        return {"words": None, **NO_TIMING}
    return {"words": triggers.describe(timing), **parse.flat_timing(timing)}


def has_tag(tag: str) -> ColumnElement[bool]:
    """`tags` is a JSON text. `replace` finds a part of it on both databases, minds case and knows no wildcards."""
    text = type_coerce(s.tags, Text)
    items = literal(",") + func.substr(text, 2, func.length(text) - 2) + ","
    return func.replace(items, f",{orjson.dumps(tag).decode()},", "") != items


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
    """Newest first: the pending and running ones, which are jobs, then those that ended, which are the ledger's, in the
    order of an index that also knows time: a page costs the same however long the history is.

    The cursor says in which part it stands. A run that ends between two pages moves from the part still to be shown
    to the other one, or was shown already: it may be seen twice, never not at all.
    """
    if schedule_id is not None:
        schedule_id = schedule_id_of(tx, org_id, schedule_id) or schedule_id
    part, moment, last = read_cursor(cursor, 3) if cursor else ("job", "", "")
    if part not in ("job", "run"):
        raise invalid_cursor(cursor)
    parts = (namespace, layer, pipeline)
    kind = kind or ("pipeline" if any(parts) else None)
    items: list[Record] = []
    if part == "job" and status in (None, Status.PENDING, Status.RUNNING):
        stmt = select(jobs).where(j.org_id == org_id).order_by(j.id.desc())
        living = ((j.schedule_id, schedule_id), (j.id, job_id), (j.parked_reason, reason), (j.kind, kind))
        stmt = matching(stmt, *living).where(*such_pipelines(j.target, *parts))
        if target is not None:
            stmt = stmt.where(j.target.in_([target, *ids_of_targets(tx, org_id, target)]))
        if status is not None:
            stmt = stmt.where(STARTED if status == Status.RUNNING else ~STARTED)
        stmt = within(stmt, func.coalesce(j.started_at, j.queued_at, type_=j.queued_at.type), since, until)
        if last:
            stmt = stmt.where(j.id < last)
        items, more = read_page(tx, stmt, limit, living_run, lambda row: ["job", "", row.id])
        if more:
            return completed(tx, items), more
    if status in (Status.PENDING, Status.RUNNING):
        return completed(tx, items), None
    stmt = select(*RUN, r.recorded_at).where(r.org_id == org_id).order_by(r.recorded_at.desc(), r.id.desc())
    ended = ((r.schedule_id, schedule_id), (r.job_id, job_id), (r.reason, reason), (r.kind, kind))
    stmt = matching(stmt, *ended).where(*such_pipelines(r.target, *parts))
    if status is not None:  # in the statement's text: a partial index serves no parameter
        stmt = stmt.where(r.status == literal_column(f"'{status.value}'"))
    if status not in (None, Status.SUCCESS) or reason is not None:  # a success has no reason
        stmt = stmt.where(r.status != literal_column("'success'"))  # SQLite does not conclude it by itself
    if last_only:  # of each job
        later = runs.alias()
        again = select(later.c.id).where(later.c.job_id == r.job_id, later.c.attempt > r.attempt).exists()
        stmt = stmt.where(r.lost_fence == 0, ~again, ~select(j.id).where(j.id == r.job_id).exists())
    if target is not None:
        stmt = stmt.where(or_(r.target == target, r.target_name == target))
    if since is not None:
        stmt = stmt.where(r.recorded_at >= since - A_WHILE)  # follows from the next line, and has an index
    stmt = within(stmt, func.coalesce(r.started_at, r.finished_at, type_=r.finished_at.type), since, until)
    if part == "run" and last:
        at = triggers.parse_instant(moment, "cursor")
        stmt = stmt.where(*older_than(r.recorded_at, r.id, at, last))
    if len(items) == limit:  # the living ones fill the page: only see whether the ledger has any
        return completed(tx, items), write_cursor("run", "", "") if tx.execute(stmt.limit(1)).first() else None
    older, more = read_page(
        tx, stmt, limit - len(items), ended_run, lambda row: ["run", row.recorded_at.isoformat(), row.id]
    )
    return completed(tx, items + older), more


def such_pipelines(
    path: ColumnElement[str], namespace: str | None, layer: str | None, name: str | None
) -> list[ColumnElement[bool]]:
    """Conditions on the three parts of `namespace/layer/name`; None asks nothing."""
    found = [] if namespace is None else [path.startswith(f"{namespace}/", autoescape=True)]
    found += [] if layer is None else [path.contains(f"/{layer}/", autoescape=True)]
    return found if name is None else [*found, path.endswith(f"/{name}", autoescape=True)]


def ended_run(row: Any) -> Record:
    """A run that ended. One of a task that began is its own artifact."""
    found = dict_of(row)
    found.pop("recorded_at", None)
    found["trace_id"] = found["trace_id"] or trace_id_of(row.job_id)
    found |= {field: redacted(found[field]) for field in ("input", "outcome", "error")}
    if found["kind"] == "task" and found["started_at"] is not None:
        found["artifact_id"] = found["id"]
    return found


def run(tx: Tx, org_id: str, run_id: str) -> Record:
    """One run, ended or still running."""
    living = tx.execute(select(jobs).where(j.org_id == org_id, j.run_id == run_id, STARTED)).one_or_none()
    if living is not None:  # looked for first: one that ends between two looks is found by the second
        return completed(tx, [living_run(living)])[0]
    ended = tx.execute(select(*RUN).where(r.org_id == org_id, r.id == run_id)).one_or_none()
    if ended is None:
        raise NotFound(f"run {run_id!r} not found")
    return completed(tx, [ended_run(ended)])[0]


def completed(tx: Tx, found: list[Record]) -> list[Record]:
    """Runs with what other tables have about them."""
    return with_target_names(tx, with_phases(tx, found))


def ids_of_targets(tx: Tx, org_id: str, name: str) -> list[str]:
    """The ids of the tasks and server instances that have a name."""
    t, v = tasks.c, server_instances.c
    both = (
        select(t.id)
        .where(t.org_id == org_id, t.name == name)
        .union_all(select(v.id).where(v.org_id == org_id, v.name == name))
    )
    return list(tx.execute(both).scalars())


def with_target_names(tx: Tx, found: list[Record]) -> list[Record]:
    """Runs with the names of the tasks and server instances that they know by an id. A run that began has recorded the
    name of its target then; one whose worker or agent was lost may have recorded the id."""
    ids = {run["target"] for run in found if run["target_name"] in (None, run["target"])}
    if not ids:
        return found
    t, v = tasks.c, server_instances.c
    both = select(t.id, t.name).where(t.id.in_(ids)).union_all(select(v.id, v.name).where(v.id.in_(ids)))
    names = {row.id: row.name for row in tx.execute(both)}
    return [{**run, "target_name": names.get(run["target"]) or run["target_name"] or run["target"]} for run in found]


def with_retry_times(tx: Tx, found: list[Record]) -> list[Record]:
    """Runs with `retry_at`: when the next attempt of the job is planned, if it waits for one after this run."""
    ids = {run["job_id"] for run in found if run["finished_at"] is not None and run["status"] != Status.SUCCESS}
    waiting = select(j.last_run_id, j.run_at).where(j.id.in_(ids), j.state == literal_column(f"'{State.RETRY.value}'"))
    planned = {row.last_run_id: row.run_at for row in tx.execute(waiting)} if ids else {}
    return [{**run, "retry_at": planned.get(run["id"])} for run in found]


def with_phases(tx: Tx, found: list[Record]) -> list[Record]:
    """Runs with `retry_at`; those of workflows with what they have beside a status."""
    found = with_retry_times(tx, found)
    ids = [one["id"] for one in found if one["kind"] == WORKFLOW and one["id"] is not None]
    rows = tx.execute(select(workflow_runs).where(workflow_runs.c.id.in_(ids))) if ids else ()
    same = ("workflow_id", "handler_id", "handler_type", "phase", "mutation_outcome", "prepare_result",
            "mutation_result", "updated_at")  # fmt: skip
    known = {row.id: {name: getattr(row, name) for name in (*same, "retry_of")} for row in rows}
    return [{**one, **redacted(known.get(one["id"], {}))} for one in found]


JOB_FIELDS = (
    "status", "kind", "target", "target_name", "attempt", "started_at", "finished_at", "error", "artifact_id",
)  # fmt: skip


def job(tx: Tx, org_id: str, job_id: str) -> Record:
    """One job: from the queue while it lives, else from its last run."""
    living = tx.execute(select(jobs).where(j.org_id == org_id, j.id == job_id)).one_or_none()
    stmt = select(*RUN).where(r.org_id == org_id, r.job_id == job_id).order_by(*BY_ATTEMPT)
    ended = [ended_run(row) for row in tx.execute(stmt)]
    run_ids = [one["id"] for one in ended]
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


def list_jobs(tx: Tx, /, org_id: str, **wanted: Any) -> Page:
    """Jobs, newest first: as they stand, or as they ended."""
    found, more = list_runs(tx, org_id, last_only=True, **wanted)
    return [
        {"id": one["job_id"], "submitted_at": one["queued_at"], **{field: one[field] for field in JOB_FIELDS}}
        for one in found
    ], more


def run_logs(tx: Tx, org_id: str, run_id: str, *, after: int = 0, limit: int = PAGE_ROWS_MAX) -> Page:
    """Log lines of a run, oldest first."""
    run(tx, org_id, run_id)  # another org's run is not found
    columns = (logs.c.id, logs.c.at, logs.c.stream, logs.c.text)
    stmt = select(*columns).where(logs.c.run_id == run_id, logs.c.id > after).order_by(logs.c.id).limit(limit + 1)
    found = [dict_of(row) for row in tx.execute(stmt)]
    return found[:limit], str(found[limit - 1]["id"]) if len(found) > limit else None


def living_run(row: Any) -> Record:
    """A run that has not ended, from its job. It has no id before it has started."""
    started = row.state == State.RUNNING and row.run_id is not None
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
    """What became of slots, newest first. A fired slot's verdict follows from its job and runs."""
    stmt = slot_query().where(s.org_id == org_id)
    if schedule is not None:
        stmt = stmt.where(t.schedule_id == (schedule_id_of(tx, org_id, schedule) or schedule))
    if since is not None:
        stmt = stmt.where(func.coalesce(t.last_slot, t.slot, type_=t.slot.type) >= since)
    if until is not None:
        stmt = stmt.where(t.slot < until)
    if verdict is not None:
        stmt = stmt.where(decided == verdict)
    return page_by_time(tx, stmt, t.slot, t.schedule_id, limit, cursor, slot_record)


def slot_query() -> Select[Any]:
    attempts = select(func.max(r.attempt)).where(r.job_id == t.job_id, r.lost_fence == 0)
    last = attempts.correlate(slots).scalar_subquery()
    columns = (
        t.schedule_id, s.name.label("schedule_name"), t.slot, t.last_slot, t.count, decided.label("verdict"),
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
    found = dict_of(row)
    living, running = found.pop("living"), found.pop("running")
    if living is not None:
        found["status"] = (Status.RUNNING if running else Status.PENDING).value
        found["run_id"] = running
    return {**found, "status": found["status"] or found["verdict"]}


# workers, queues, tasks, freeze


def list_workers(
    tx: Tx, org_id: str | None = None, *, limit: int = PAGE_ROWS, cursor: str | None = None, state: str | None = None
) -> Page:
    """Worker processes, newest first. They serve every org: for one org `running` counts its own jobs, and host and pid
    are shown to org `default` alone. None: everything, for the installation's admin."""
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
    ours = select(*columns).select_from(joined).where(w.host_id.is_(None))  # an agent is its org's alone
    stmt = matching(ours, (w.state, state))
    return page_by(tx, stmt, w.id, limit, cursor, descending=True)


def queue(tx: Tx, org_id: str, name: str) -> Record:
    found = next((one for one in list_queues(tx, org_id) if one["name"] == name), None)
    if found is None:
        raise NotFound(f"queue {name}: it has no work, no limit and no pause")
    return found


def list_queues(tx: Tx, org_id: str) -> list[Record]:
    """The queues of an org that have work, a limit or a pause; how much lies in each, by state."""
    oldest = func.min(case((j.state == State.READY, j.run_at)), type_=j.run_at.type)
    counted = select(j.queue, j.state, func.count().label("n"), oldest.label("oldest")).where(j.org_id == org_id)
    limits = select(queues.c.name, queues.c.max_running, queues.c.paused_at).where(queues.c.org_id == org_id)
    found: dict[str, Record] = {}

    def entry(name: str) -> Record:
        depth = {state.value: 0 for state in State}
        empty = {"name": name, "depth": depth, "oldest_ready_at": None, "max_running": None, "paused": False}
        return found.setdefault(name, empty)

    for row in tx.execute(counted.group_by(j.queue, j.state)):
        entry(row.queue)["depth"][row.state] = row.n
        if row.oldest is not None:
            entry(row.queue)["oldest_ready_at"] = row.oldest
    for row in tx.execute(limits):
        entry(row.name).update(max_running=row.max_running, paused=row.paused_at is not None)
    return [found[name] for name in sorted(found)]


def gauges(tx: Tx, now: datetime) -> Record:
    """How the whole installation stands, in numbers that name no org."""
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


def list_tasks(
    tx: Tx, org_id: str, *, limit: int = PAGE_ROWS, cursor: str | None = None, task_type: str | None = None,
    enabled: bool | None = None,
) -> Page:  # fmt: skip
    stmt: Select[Any] = select(*TASK).where(tasks.c.org_id == org_id)
    stmt = matching(stmt, (tasks.c.task_type, task_type), (tasks.c.enabled, enabled))
    return page_by(tx, stmt, tasks.c.id, limit, cursor, task_record)


def task(tx: Tx, org_id: str, key: str) -> Record:
    """A task by its id or name."""
    mine = and_(tasks.c.org_id == org_id, or_(tasks.c.id == key, tasks.c.name == key))
    found = tx.execute(select(*TASK).where(mine).order_by(tasks.c.id != key)).first()
    if found is None:
        raise NotFound(f"task {key!r} not found")
    return task_record(found)


def task_record(row: Any) -> Record:
    """Its options stand beside its other fields, as they are written."""
    found = dict_of(row)
    options = found.pop("options") or {}
    return {**found, **{name: options.get(name) for name in TASK_OPTIONS}}


def public_task(found: Record) -> Record:
    """A task, or what a run kept of it, for readers without the scope `shell`: values of `env` and all of `stdin` are
    hidden, secrets in `parameters` and `command` where they are recognised."""
    shown = {**found}
    if isinstance(found.get("env"), Mapping):
        shown["env"] = dict.fromkeys(found["env"], HIDDEN)
    if found.get("stdin"):
        shown["stdin"] = HIDDEN
    shown |= {name: redacted(found[name]) for name in ("parameters", "command") if found.get(name) is not None}
    options = found.get("options")
    return {**shown, "options": public_task(options)} if isinstance(options, dict) else shown


def schedules_of(tx: Tx, org_id: str, task: Any, by_name: bool = False) -> list[str]:
    """The ids of the living schedules that run a task; or only of those that know it by its name."""
    named = s.target == task.name if by_name else s.target.in_([task.id, task.name])
    stmt = select(s.id).where(s.org_id == org_id, s.kind == "task", named, s.deleted_at.is_(None))
    return list(tx.execute(stmt.order_by(s.id)).scalars())


def list_grants(tx: Tx, org_id: str, *, limit: int = PAGE_ROWS, cursor: str | None = None) -> Page:
    """The grants of an org, newest first."""
    stmt = select(grants).where(grants.c.org_id == org_id)
    return page_by(tx, stmt, grants.c.id, limit, cursor, grant_record, descending=True)


def grant(tx: Tx, org_id: str, grant_id: str) -> Record:
    return grant_record(authority.get(tx, org_id, grant_id))


def grant_record(row: Any) -> Record:
    limits = {"per_day": row.budget_per_day, "total": row.budget_total}
    return {
        "id": row.id, "owner_id": row.owner_id, "billing_account_id": row.billing_account_id, "scopes": row.scopes,
        "schedule_id": row.schedule_id, "expires_at": row.expires_at, "revoked_at": row.revoked_at,
        "budget": limits if any(one is not None for one in limits.values()) else None, "spent": row.spent_total,
        "created_at": row.created_at,
    }  # fmt: skip


def freeze(tx: Tx, org_id: str, now: datetime) -> Record:
    """Whether an org is frozen, since when, until when and why."""
    o = orgs.c
    row = tx.execute(select(o.frozen_at, o.frozen_until, o.freeze_reason).where(o.id == org_id)).one()
    frozen = row.frozen_at is not None and (row.frozen_until is None or row.frozen_until > now)
    if not frozen:
        return {"frozen": False, "frozen_at": None, "until": None, "reason": None}
    return {"frozen": True, "frozen_at": row.frozen_at, "until": row.frozen_until, "reason": row.freeze_reason}


# people


ORG = (orgs.c.id, orgs.c.slug, orgs.c.name, orgs.c.shell, orgs.c.max_running, orgs.c.created_at)
USER = (users.c.id, users.c.email, users.c.name, users.c.role, users.c.created_at, users.c.updated_at)
KEY = (
    api_keys.c.id, api_keys.c.name, api_keys.c.user_id, users.c.name.label("user_name"), api_keys.c.role,
    api_keys.c.scopes, api_keys.c.prefix, api_keys.c.created_at, api_keys.c.expires_at, api_keys.c.last_used_at,
    api_keys.c.revoked_at,
)  # fmt: skip
ACT = (
    audit_log.c.id, audit_log.c.at, audit_log.c.user_id, users.c.name.label("user_name"), audit_log.c.key_id,
    api_keys.c.name.label("key_name"), audit_log.c.action, audit_log.c.resource, audit_log.c.resource_id,
    audit_log.c.before, audit_log.c.after, audit_log.c.address, audit_log.c.request_id,
)  # fmt: skip


def list_orgs(tx: Tx, org_id: str | None, *, limit: int = PAGE_ROWS, cursor: str | None = None) -> Page:
    """Every org, or the one that is asked for."""
    stmt = matching(select(*ORG), (orgs.c.id, org_id))
    return page_by(tx, stmt, orgs.c.id, limit, cursor)


def org(tx: Tx, key: str) -> Record:
    """An org by its slug or id."""
    found = tx.execute(select(*ORG).where(or_(orgs.c.slug == key, orgs.c.id == key))).first()
    if found is None:
        raise NotFound(f"org {key!r} not found")
    return dict_of(found)


def list_users(
    tx: Tx,
    org_id: str,
    *,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
    email: str | None = None,
    role: str | None = None,
) -> Page:
    """The people of an org."""
    u = users.c
    mine = and_(u.org_id == org_id, u.email.is_not(None), u.deleted_at.is_(None))
    stmt = matching(select(*USER).where(mine), (u.email, email), (u.role, role))
    return page_by(tx, stmt, u.id, limit, cursor)


def user(tx: Tx, org_id: str, user_id: str) -> Record:
    u = users.c
    mine = and_(u.org_id == org_id, u.id == user_id, u.email.is_not(None), u.deleted_at.is_(None))
    found = tx.execute(select(*USER).where(mine)).one_or_none()
    if found is None:
        raise NotFound(f"user {user_id!r} not found")
    return dict_of(found)


def list_keys(
    tx: Tx, org_id: str, *, limit: int = PAGE_ROWS, cursor: str | None = None, user_id: str | None = None
) -> Page:
    """The API keys of an org, also those that were revoked, newest first."""
    k = api_keys.c
    stmt: Select[Any] = select(*KEY).join(users, users.c.id == k.user_id).where(k.org_id == org_id)
    stmt = matching(stmt, (k.user_id, user_id))
    return page_by(tx, stmt, k.id, limit, cursor, descending=True)


def api_key(tx: Tx, org_id: str, key_id: str) -> Record:
    k = api_keys.c
    stmt = select(*KEY).join(users, users.c.id == k.user_id).where(k.org_id == org_id, k.id == key_id)
    found = tx.execute(stmt).one_or_none()
    if found is None:
        raise NotFound(f"API key {key_id!r} not found")
    return dict_of(found)


def list_audit(
    tx: Tx,
    org_id: str,
    *,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
    action: str | None = None,
    resource: str | None = None,
    resource_id: str | None = None,
    user_id: str | None = None,
    key_id: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Page:
    """Who changed what, newest first."""
    a = audit_log.c
    named = audit_log.outerjoin(users, users.c.id == a.user_id).outerjoin(api_keys, api_keys.c.id == a.key_id)
    stmt: Select[Any] = select(*ACT).select_from(named).where(a.org_id == org_id)
    wanted = ((a.action, action), (a.resource, resource), (a.resource_id, resource_id), (a.user_id, user_id))
    stmt = within(matching(stmt, *wanted, (a.key_id, key_id)), a.at, since, until)
    lines, more = page_by(tx, stmt, a.id, limit, cursor, descending=True)
    return with_resource_names(tx, lines), more


def with_resource_names(tx: Tx, lines: list[Record]) -> list[Record]:
    """Lines of the audit log with `resource_name`: the name of the resource now, else the one in the line."""
    ids: dict[str, set[str]] = {}
    for line in lines:
        if line["resource_id"] is not None:
            ids.setdefault(line["resource"], set()).add(line["resource_id"])
    names: dict[tuple[str, str], str] = {}
    for resource, (key, name) in NAMED_RESOURCES.items():
        if resource in ids:
            rows = tx.execute(select(key.label("id"), name.label("name")).where(key.in_(ids[resource])))
            names |= {(resource, row.id): row.name for row in rows}
    return [
        {**line, "resource_name": names.get((line["resource"], line["resource_id"])) or noted(line)} for line in lines
    ]


NAMED_RESOURCES: dict[str, tuple[Column[str], Column[str]]] = {  # by the first part of the route
    "schedules": (s.id, s.name), "tasks": (tasks.c.id, tasks.c.name), "hosts": (hosts.c.id, hosts.c.name),
    "workflows": (workflows.c.id, workflows.c.name), "users": (users.c.id, users.c.name),
    "api-keys": (api_keys.c.id, api_keys.c.name), "orgs": (orgs.c.id, orgs.c.name),
    "server-instances": (server_instances.c.id, server_instances.c.name),
}  # fmt: skip


def noted(line: Record) -> str | None:
    """The name that a line of the audit log has in its values."""
    values = {**(line["before"] or {}), **(line["after"] or {})}
    name = values.get("name")
    return name if isinstance(name, str) else None
