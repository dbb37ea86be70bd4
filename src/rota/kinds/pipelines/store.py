"""SQL of pipelines, their versions and triggers, and the retention of their runs.

A trigger fires in the transaction that records the event it waits for, so a chain is never cut between two pipelines.
Firing locks the serial key of the pipeline, then the trigger's row, and claims the trigger by compare-and-set.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, delete, literal_column, or_, select, update

from rota.core.errors import Conflict, Invalid, NotFound
from rota.core.ids import new_id
from rota.core.model import AttemptResult, Job, NewJob, serial_key_of_target
from rota.core.states import Status
from rota.db import tables
from rota.db.dialect import Query, ResultRow, Tx, lock_keys
from rota.db.paging import PAGE_ROWS, Page, Record, dict_of, page_by
from rota.db.statement import Statement, insert_new, insert_rows
from rota.db.tables import pipeline_triggers, pipeline_upstreams, pipeline_versions, pipelines
from rota.engine import jobs, runs, schedules
from rota.engine.records import RunRow
from rota.kinds.pipelines.increments import flat
from rota.kinds.pipelines.records import FiringTrigger, PipelineRow, TriggerRow
from rota.reports import runs as run_reports
from rota.reports.runs import path_filters, path_patterns

p, t, u = pipelines.c, pipeline_triggers.c, pipeline_upstreams.c
PIPELINE = "pipeline"  # the kind
LIVING = p.deleted_at.is_(None)
VERSIONED_FIELDS = ("type", "sql", "function", "increment")  # a change of these is a new version

SUCCESS, DEPENDENCY, WEBHOOK = "pipeline_success", "cron_dependency", "webhook"
SQL_ROUTE = "pipeline:sql"


# pipelines


def get(tx: Tx, org_id: str, key: str, *, lock: bool = False) -> PipelineRow:
    """Return a pipeline of an org, not deleted, by its path or id. Raises NotFound."""
    of_org = and_(p.org_id == org_id, LIVING)  # in both branches: each uses an index
    stmt = select(pipelines).where(or_(and_(of_org, p.path == key), and_(of_org, p.id == key)))
    row = tx.execute(stmt.with_for_update() if lock else stmt).first()
    if row is None:
        raise NotFound(f"pipeline {key!r} not found")
    return PipelineRow(**row._asdict())


def unknown(tx: Tx, org_id: str, paths: Collection[str]) -> list[str]:
    """Return those of these paths that are not pipelines of the org."""
    existing = set(tx.execute(select(p.path).where(p.org_id == org_id, LIVING, p.path.in_(paths))).scalars())
    return sorted(set(paths) - existing)


def insert(tx: Tx, org_id: str, fields: Record, now: datetime) -> str:
    row = {"id": new_id(), "org_id": org_id, "version": 1, "created_at": now, "updated_at": now, **fields}
    if not insert_new(tx, pipelines, [row], ("id",)):
        raise Conflict(f"pipeline {row['path']!r} already exists; PUT writes its next version")
    save_version(tx, row, now)
    return str(row["id"])


def change(tx: Tx, old: PipelineRow, fields: Record, now: datetime) -> str:
    """Update a pipeline, with a new version if VERSIONED_FIELDS changed; returns its id."""
    new = {name: getattr(old, name) for name in PipelineRow.__slots__} | fields | {"updated_at": now}
    if any(new[name] != getattr(old, name) for name in VERSIONED_FIELDS):
        new["version"] = old.version + 1
        save_version(tx, new, now)
    tx.execute(update(pipelines).where(p.id == old.id).values(new))
    return old.id


def remove(tx: Tx, old: PipelineRow, now: datetime) -> str:
    """Delete a pipeline with its schedules and triggers; its versions, runs and table stay. Raises Conflict if a
    trigger of another pipeline waits for it."""
    lock_keys(tx, [f"pipelines:{old.org_id}"])  # against a concurrent insert of a trigger that waits for it
    downstream = select(p.path).join(pipeline_triggers, t.pipeline_id == p.id).join(pipeline_upstreams)
    other = tx.execute(downstream.where(u.pipeline_id == old.id, LIVING)).scalar()
    if other is not None:
        raise Conflict(f"pipeline {old.path!r} is the upstream of a trigger of {other!r}; delete that trigger first")
    drop_triggers(tx, t.pipeline_id == old.id)
    own_schedules = select(tables.schedules.c.id).where(
        tables.schedules.c.org_id == old.org_id,
        tables.schedules.c.target == old.path,
        schedules.LIVING,
        tables.schedules.c.kind == "pipeline",
    )
    for schedule_id in tx.execute(own_schedules).scalars().all():
        schedules.delete_if_exists(tx, old.org_id, schedule_id, now)
    tx.execute(update(pipelines).where(p.id == old.id).values(deleted_at=now, updated_at=now))
    return old.id


def sync(tx: Tx, org_id: str, declared: Sequence[Record], now: datetime) -> list[str]:
    """Store the pipelines that a program declares, and their triggers; returns the ids of what changed."""
    lock_keys(tx, [f"pipelines:{org_id}"])  # against concurrent declarations by other processes
    changed = []
    for pipeline in declared:
        fields = {name: value for name, value in pipeline.items() if name != "after"}
        row = tx.execute(select(pipelines).where(p.org_id == org_id, p.path == pipeline["path"], LIVING)).first()
        if row is None:
            changed.append(insert(tx, org_id, fields, now))
        elif any(getattr(row, name) != value for name, value in fields.items()):
            changed.append(change(tx, PipelineRow(**row._asdict()), fields, now))
    declared_links = {(pipeline["path"], upstream) for pipeline in declared for upstream in pipeline["after"]}
    stored_links = {}
    for pipeline in declared:
        for trigger_row in triggers_of(tx, org_id, get(tx, org_id, pipeline["path"]).id):
            if trigger_row.source == "code":
                upstream = upstreams_of(tx, [trigger_row.id])[trigger_row.id][0]
                stored_links[pipeline["path"], upstream] = trigger_row.id
    removed = [stored_links[link] for link in stored_links.keys() - declared_links]
    drop_triggers(tx, t.id.in_(removed))  # before the inserts: the direction of a link may be reversed
    for path, upstream in sorted(declared_links - stored_links.keys()):
        new = {"type": SUCCESS, "upstreams": [upstream], "source": "code"}
        changed.append(insert_trigger(tx, get(tx, org_id, path), new, now))
    return changed


def save_version(tx: Tx, row: Mapping[str, object], now: datetime) -> None:
    fields = {name: row[name] for name in VERSIONED_FIELDS}
    version = {"pipeline_id": row["id"], "version": row["version"], **fields, "created_at": now}
    insert_rows(tx, pipeline_versions, [version])


# lists and details


def record(row: ResultRow | PipelineRow) -> Record:
    names = (name for name in PipelineRow.__slots__ if name not in ("org_id", "deleted_at", "increment"))
    fields = {name: getattr(row, name) for name in names} | flat(row.increment)
    namespace, layer, name = row.path.split("/")
    return {**fields, "namespace": namespace, "layer": layer, "name": name}


def describe(tx: Tx, org_id: str, key: str) -> Record:
    return record(get(tx, org_id, key))


def list_pipelines(
    tx: Tx,
    org_id: str,
    *,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
    namespace: str | None = None,
    layer: str | None = None,
    type: str | None = None,
) -> Page:
    """Return a page of pipelines, by path."""
    in_part = path_filters(p.path, path_patterns(namespace, layer, None))
    stmt = select(pipelines).where(p.org_id == org_id, LIVING, *in_part)
    stmt = stmt if type is None else stmt.where(p.type == type)
    return page_by(tx, stmt, p.path, limit, cursor, record)


def list_versions(tx: Tx, org_id: str, key: str) -> list[Record]:
    """Return the versions of a pipeline, newest first."""
    v = pipeline_versions.c
    stmt = select(v.version, v.type, v.sql, v.function, v.created_at, v.increment)
    of_pipeline = stmt.where(v.pipeline_id == get(tx, org_id, key).id)
    versions = [dict_of(row) for row in tx.execute(of_pipeline.order_by(v.version.desc()))]
    return [version | flat(version.pop("increment")) for version in versions]


def zone_of(tx: Tx, schedule_id: str | None) -> str:
    """Return the time zone of a schedule; UTC without one."""
    timing = tx.execute(select(tables.schedules.c.timing).where(tables.schedules.c.id == schedule_id)).scalar()
    return "UTC" if timing is None else str(timing["zone"])


def last_runs(tx: Tx, org_id: str, path: str, limit: int) -> list[Record]:
    """Return runs of a pipeline, newest first: queued and running ones, then those that ended."""
    return run_reports.list_runs(tx, org_id, kind=PIPELINE, target=path, limit=limit)[0]


def namespaces(tx: Tx, org_id: str) -> list[Record]:
    """Return the namespaces that have pipelines, with their counts."""
    paths = tx.execute(select(p.path).where(p.org_id == org_id, LIVING)).scalars()
    counts = Counter(path.split("/")[0] for path in paths)
    return [{"name": name, "pipelines": count} for name, count in sorted(counts.items())]


def graph(tx: Tx, org_id: str) -> Record:
    """Return the dependency graph: edges are triggers, and tables that are read."""
    rows = tx.execute(select(pipelines).where(p.org_id == org_id, LIVING).order_by(p.path))
    records = [record(row) for row in rows]
    nodes = [{name: node[name] for name in ("path", "namespace", "layer", "name", "type")} for node in records]
    edges = [{"from": read, "to": reader["path"], "kind": "reads"} for reader in records for read in reader["reads"]]
    paths = {node["id"]: node["path"] for node in records}
    for row in tx.execute(links(org_id)):
        edges.append({"from": paths[row.upstream_id], "to": paths[row.pipeline_id], "kind": row.type})
    return {"nodes": nodes, "edges": sorted(edges, key=lambda edge: (edge["to"], edge["from"], edge["kind"]))}


def links(org_id: str) -> Query:
    stmt = select(t.pipeline_id, u.pipeline_id.label("upstream_id"), t.type)
    return stmt.join(pipeline_upstreams, u.trigger_id == t.id).where(t.org_id == org_id)


# triggers


def insert_trigger(tx: Tx, pipeline: PipelineRow, fields: Record, now: datetime) -> str:
    """Store a trigger; returns its id. `fields` are its `upstreams` (paths) and the columns that differ from the
    default. Raises Invalid for an unknown upstream or a cycle."""
    lock_keys(tx, [f"pipelines:{pipeline.org_id}"])  # against a concurrent insert that would close a cycle
    columns = {name: value for name, value in fields.items() if name != "upstreams"}
    if missing := unknown(tx, pipeline.org_id, fields["upstreams"]):
        raise Invalid("upstream", missing[0], "is not a pipeline; see `rota pipeline list`")
    upstream_ids = [get(tx, pipeline.org_id, path).id for path in fields["upstreams"]]
    check_acyclic(tx, pipeline, upstream_ids)
    row = {
        "id": new_id(),
        "org_id": pipeline.org_id,
        "pipeline_id": pipeline.id,
        "schedule_id": None,
        "token_hash": None,
        "cooldown_seconds": 0,
        "enabled": True,
        "waits": False,
        "source": "api",
        "created_at": now,
        **columns,
    }
    insert_rows(tx, pipeline_triggers, [row])
    upstreams = [{"trigger_id": row["id"], "pipeline_id": upstream, "fresh": False} for upstream in upstream_ids]
    insert_rows(tx, pipeline_upstreams, upstreams)
    return str(row["id"])


def check_acyclic(tx: Tx, pipeline: PipelineRow, upstreams: Collection[str]) -> None:
    """Raises Invalid if one of these upstreams is the pipeline itself, or runs after it."""
    after: dict[str, list[str]] = {}
    for row in tx.execute(links(pipeline.org_id)):
        after.setdefault(row.upstream_id, []).append(row.pipeline_id)
    seen, open_ends = {pipeline.id}, [pipeline.id]
    while open_ends:
        reached = [pipeline_id for pipeline_id in after.get(open_ends.pop(), []) if pipeline_id not in seen]
        seen.update(reached)
        open_ends += reached
    for pipeline_id in seen.intersection(upstreams):
        path = get(tx, pipeline.org_id, pipeline_id).path
        raise Invalid("upstream", path, f"is {pipeline.path}, or runs after it: the triggers would form a cycle")


def triggers_of(tx: Tx, org_id: str, pipeline_id: str) -> list[TriggerRow]:
    stmt = select(pipeline_triggers, tables.schedules.c.timing).outerjoin(
        tables.schedules, tables.schedules.c.id == t.schedule_id
    )
    rows = tx.execute(stmt.where(t.org_id == org_id, t.pipeline_id == pipeline_id).order_by(t.id))
    return [TriggerRow(**row._asdict()) for row in rows]


def upstreams_of(tx: Tx, trigger_ids: Collection[str]) -> dict[str, list[str]]:
    """Return the paths of the upstreams of triggers, by trigger."""
    paths: dict[str, list[str]] = {trigger_id: [] for trigger_id in trigger_ids}
    stmt = select(u.trigger_id, p.path).join(pipelines, p.id == u.pipeline_id).where(u.trigger_id.in_(trigger_ids))
    for row in tx.execute(stmt.order_by(p.path)):
        paths[row.trigger_id].append(row.path)
    return paths


def list_triggers(tx: Tx, org_id: str, key: str) -> list[Record]:
    rows = triggers_of(tx, org_id, get(tx, org_id, key).id)
    upstreams = upstreams_of(tx, [row.id for row in rows])
    names = ("id", "type", "cooldown_seconds", "enabled", "last_triggered_at", "last_job_id", "source", "created_at")
    return [
        {
            **{name: getattr(row, name) for name in names},
            "upstreams": upstreams[row.id],
            "cron_expression": row.cron,
        }
        for row in rows
    ]


def trigger(tx: Tx, org_id: str, key: str, trigger_id: str) -> Record:
    for item in list_triggers(tx, org_id, key):
        if item["id"] == trigger_id:
            return item
    raise NotFound(f"trigger {trigger_id!r} of pipeline {key!r} not found")


def change_trigger(tx: Tx, org_id: str, trigger_id: str, changes: Record, now: datetime) -> str:
    row = tx.execute(select(pipeline_triggers).where(t.id == trigger_id).with_for_update()).one()
    tx.execute(update(pipeline_triggers).where(t.id == trigger_id).values(dict(changes)))
    if row.schedule_id is not None and schedules.exists(tx, org_id, row.schedule_id) and "enabled" in changes:
        due = schedules.lock(tx, org_id, row.schedule_id)
        schedules.replace_schedule(tx, due, replace(due.schedule, enabled=changes["enabled"]), now)
    return trigger_id


def remove_trigger(tx: Tx, org_id: str, trigger_id: str, now: datetime) -> str:
    schedule_id = tx.execute(select(t.schedule_id).where(t.id == trigger_id)).scalar()
    if schedule_id is not None:
        schedules.delete_if_exists(tx, org_id, schedule_id, now)
    drop_triggers(tx, t.id == trigger_id)
    return trigger_id


def drop_triggers(tx: Tx, where: ColumnElement[bool]) -> None:
    tx.execute(delete(pipeline_upstreams).where(u.trigger_id.in_(select(t.id).where(where))))
    tx.execute(delete(pipeline_triggers).where(where))


# firing

UPSTREAMS = Statement(
    """Return those of these pipelines that a trigger has as an upstream.""",
    """
    SELECT {returns} FROM batch CROSS JOIN pipelines CROSS JOIN pipeline_upstreams
    WHERE pipelines.org_id = batch.org_id AND pipelines.path = batch.path AND pipelines.deleted_at IS NULL
          AND pipeline_upstreams.pipeline_id = pipelines.id
    """,
    batch={"org_id": p.org_id, "path": p.path},
    returns={"pipeline_id": u.pipeline_id},
)


def follow(tx: Tx, ended: Sequence[AttemptResult], now: datetime) -> None:
    """Mark the pipelines that succeeded as fresh upstreams, and fire the triggers that wait for them. It locks these
    triggers first, as `claim_slot` does: else each might miss what the other has not committed."""
    succeeded = {(result.job.org_id, result.job.target) for result in ended if result.status is Status.SUCCESS}
    upstreams = {pipeline_id for (pipeline_id,) in UPSTREAMS.run(tx, sorted(succeeded))}
    if not upstreams:
        return
    of_upstreams = t.id.in_(select(u.trigger_id).where(u.pipeline_id.in_(upstreams)))
    locked = select(t.id, t.type, t.waits).where(of_upstreams, t.type.in_((SUCCESS, DEPENDENCY))).order_by(t.id)
    rows = tx.execute(locked.with_for_update()).all()
    stale = and_(u.pipeline_id.in_(upstreams), ~u.fresh)
    tx.execute(update(pipeline_upstreams).where(stale).values(fresh=True))
    fire_triggers(tx, {row.id for row in rows if row.type == SUCCESS or row.waits}, now)


def fire_triggers(tx: Tx, trigger_ids: Collection[str], now: datetime) -> dict[str, str]:
    """Enqueue a job for each of these triggers that may fire now; returns job ids by trigger. A job of the trigger that
    still waits is reused: it will read the new data."""
    if not trigger_ids:
        return {}
    fields = (p.path, p.type.label("runs"), p.function, tables.orgs.c.slug, tables.schedules.c.timing)
    joined = pipeline_triggers.join(pipelines, p.id == t.pipeline_id).join(tables.orgs, tables.orgs.c.id == t.org_id)
    stmt = (
        select(pipeline_triggers, *fields)
        .select_from(joined.outerjoin(tables.schedules, tables.schedules.c.id == t.schedule_id))
        .where(t.id.in_(trigger_ids), t.enabled, LIVING)
        .order_by(t.id)
    )
    lock_keys(tx, [serial_key_of_target(PIPELINE, row.org_id, row.path) for row in tx.execute(stmt)])
    upstreams = upstreams_of(tx, trigger_ids)
    job_ids: dict[str, str] = {}
    for row in [FiringTrigger(**row._asdict()) for row in tx.execute(stmt.with_for_update(of=pipeline_triggers))]:
        if row.ready_at > now or (row.type == DEPENDENCY and not (row.waits and all_fresh(tx, row.id))):
            continue
        solo_key = f"trigger:{row.id}"
        waiting = tx.execute(select(tables.jobs.c.id).where(tables.jobs.c.solo_key == solo_key)).scalar()
        job = NewJob(
            org_id=row.org_id,
            kind="pipeline",
            target=row.path,
            payload=None,
            run_at=now,
            solo_key=solo_key,
            trigger=f"{row.type}:{row.cron or ''.join(upstreams[row.id]) or row.id}",
            route=route_of(row.slug, row.runs, row.function),
            serial_key=serial_key_of_target(PIPELINE, row.org_id, row.path),
        )
        if claim_trigger(tx, row, waiting or job.id, now):
            job_ids[row.id] = waiting or job.id
            jobs.add(tx, [] if waiting else [job], now)
    return job_ids


def claim_slot(tx: Tx, job: Job, now: datetime) -> bool:
    """Whether the job of a slot of a cron_dependency may run. If an upstream is not fresh yet, the trigger is marked as
    waiting, and the success of the last upstream fires it."""
    stmt = select(pipeline_triggers).where(t.schedule_id == job.schedule_id)
    row = tx.execute(stmt.with_for_update()).first()
    if row is None or row.last_job_id == job.id:  # claimed by an earlier attempt
        return True
    trigger_row = TriggerRow(**row._asdict(), timing=None)
    if all_fresh(tx, trigger_row.id) and trigger_row.ready_at <= now:
        return claim_trigger(tx, trigger_row, job.id, now)
    tx.execute(update(pipeline_triggers).where(t.id == trigger_row.id).values(waits=True))
    return False


def claim_trigger(tx: Tx, row: TriggerRow, job_id: str, now: datetime) -> bool:
    """Mark a trigger as fired by compare-and-set; False if it fired since `row` was read."""
    unchanged = and_(t.id == row.id, t.enabled, t.last_triggered_at.is_not_distinct_from(row.last_triggered_at))
    values = {"last_triggered_at": now, "last_job_id": job_id, "waits": False}
    won = bool(tx.execute(update(pipeline_triggers).where(unchanged).values(values)).rowcount)
    if won:
        tx.execute(update(pipeline_upstreams).where(u.trigger_id == row.id).values(fresh=False))
    return won


def all_fresh(tx: Tx, trigger_id: str) -> bool:
    return tx.execute(select(u.trigger_id).where(u.trigger_id == trigger_id, ~u.fresh)).first() is None


def by_token(tx: Tx, token_hash: str) -> TriggerRow | None:
    row = tx.execute(select(pipeline_triggers).where(t.token_hash == token_hash, t.enabled)).one_or_none()
    return None if row is None else TriggerRow(**row._asdict(), timing=None)


def route_of(org: str, type: str, function: str | None) -> str:
    """Return the route of a pipeline: SQL to any worker with an executor, a function to workers that declare it."""
    return SQL_ROUTE if type == "sql" else f"pipeline:{org}:{function}"


# retention


def with_limits(tx: Tx) -> list[PipelineRow]:
    """Return the pipelines with a retention of their own, deleted ones included."""
    rows = tx.execute(select(pipelines).where(or_(p.max_runs.is_not(None), p.max_age_days.is_not(None))))
    return [PipelineRow(**row._asdict()) for row in rows]


def prune(tx: Tx, pipeline: PipelineRow, now: datetime, limit: int) -> int:
    """Delete runs of a pipeline beyond its retention, at most `limit`; returns how many."""
    r = tables.runs.c
    of_kind = r.kind == literal_column("'pipeline'")  # a literal: the planner uses a partial index only for constants
    of_pipeline = select(tables.runs).where(of_kind, r.org_id == pipeline.org_id, r.target == pipeline.path)
    newest = of_pipeline.order_by(r.recorded_at.desc(), r.id.desc()).limit(limit)
    expired: list[ResultRow] = []
    if pipeline.max_age_days is not None:
        expired = list(tx.execute(newest.where(r.recorded_at < now - timedelta(days=pipeline.max_age_days))))
    if pipeline.max_runs is not None and not expired:
        expired = list(tx.execute(newest.offset(pipeline.max_runs)))
    return runs.delete_runs(tx, [RunRow(**row._asdict()) for row in expired])
