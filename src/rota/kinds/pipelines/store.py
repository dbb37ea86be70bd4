"""Pipelines: what they run, in versions; what makes them run; how they hang together; which of their runs are kept.

A trigger fires in the transaction that writes down what it waits for: a chain is never cut between two links. Whoever
fires one locks the lane of its pipeline and then its row, and claims it by compare-and-set.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, and_, delete, literal_column, or_, select, tuple_, update

from rota.core.errors import Conflict, Invalid, NotFound
from rota.core.ids import new_id
from rota.core.model import PIPELINE, AttemptResult, Job, NewJob, serial_key_of_target
from rota.core.states import Status
from rota.core.timing import triggers as timings
from rota.db.dialect import Tx, insert_new, insert_rows, lock_keys
from rota.db.paging import PAGE_ROWS, Page, Record, dict_of, page_by
from rota.db.tables import (
    jobs,
    orgs,
    pipeline_triggers,
    pipeline_upstreams,
    pipeline_versions,
    pipelines,
    runs,
    schedules,
)
from rota.engine import jobs as queue
from rota.engine import run_reports
from rota.engine import runs as engine_runs
from rota.engine import schedules as timers
from rota.engine.run_reports import pipeline_filters

p, t, u = pipelines.c, pipeline_triggers.c, pipeline_upstreams.c
LIVING = p.deleted_at.is_(None)
WHAT_RUNS = ("type", "sql", "function")  # another one of these is another version

SUCCESS, DEPENDENCY, WEBHOOK = "pipeline_success", "cron_dependency", "webhook"
SQL_ROUTE = "pipeline:sql"


# pipelines


def get(tx: Tx, org_id: str, key: str, *, lock: bool = False) -> Any:
    """A living pipeline of an org by its path or id."""
    mine = and_(p.org_id == org_id, LIVING)
    stmt = select(pipelines).where(or_(and_(mine, p.path == key), and_(mine, p.id == key)))
    found = tx.execute(stmt.with_for_update() if lock else stmt).first()
    if found is None:
        raise NotFound(f"pipeline {key!r} not found")
    return found


def unknown(tx: Tx, org_id: str, paths: Collection[str]) -> list[str]:
    """Which of these are no living pipelines."""
    known = set(tx.execute(select(p.path).where(p.org_id == org_id, LIVING, p.path.in_(paths))).scalars())
    return sorted(set(paths) - known)


def insert(tx: Tx, org_id: str, fields: Mapping[str, Any], now: datetime) -> str:
    row = {"id": new_id(), "org_id": org_id, "version": 1, "created_at": now, "updated_at": now, **fields}
    if not insert_new(tx, pipelines, [row], ("id",)):
        raise Conflict(f"pipeline {row['path']!r} already exists; PUT writes its next version")
    remember(tx, row, now)
    return str(row["id"])


def change(tx: Tx, old: Any, fields: Mapping[str, Any], now: datetime) -> str:
    """Write a pipeline anew; where it runs something else from now on, that is its next version."""
    new = {**old._mapping, **fields, "updated_at": now}
    if any(new[name] != getattr(old, name) for name in WHAT_RUNS):
        new["version"] = old.version + 1
        remember(tx, new, now)
    tx.execute(update(pipelines).where(p.id == old.id).values(new))
    return str(old.id)


def remove(tx: Tx, old: Any, now: datetime) -> str:
    """Take a pipeline away with its schedules and triggers; its versions, its runs and its table stay."""
    lock_keys(tx, [f"pipelines:{old.org_id}"])  # somebody may be making a trigger that waits for it
    waiting = select(p.path).join(pipeline_triggers, t.pipeline_id == p.id).join(pipeline_upstreams)
    other = tx.execute(waiting.where(u.pipeline_id == old.id, LIVING)).scalar()
    if other is not None:
        raise Conflict(f"pipeline {old.path}: a trigger of {other} waits for it; delete that trigger first")
    drop_triggers(tx, t.pipeline_id == old.id)
    mine = select(schedules.c.id).where(
        schedules.c.org_id == old.org_id, schedules.c.target == old.path, timers.LIVING, schedules.c.kind == "pipeline"
    )
    for schedule_id in tx.execute(mine).scalars().all():
        timers.delete_if_exists(tx, old.org_id, schedule_id, now)
    tx.execute(update(pipelines).where(p.id == old.id).values(deleted_at=now, updated_at=now))
    return str(old.id)


def sync(tx: Tx, org_id: str, declared: Sequence[Mapping[str, Any]], now: datetime) -> list[str]:
    """Mirror what a program declares, with the triggers of what comes after what. Returns the ids of what changed."""
    lock_keys(tx, [f"pipelines:{org_id}"])  # other processes declare the same
    changed = []
    for one in declared:
        fields = {name: value for name, value in one.items() if name != "after"}
        row = tx.execute(select(pipelines).where(p.org_id == org_id, p.path == one["path"], LIVING)).first()
        if row is None:
            changed.append(insert(tx, org_id, fields, now))
        elif any(getattr(row, name) != value for name, value in fields.items()):
            changed.append(change(tx, row, fields, now))
    wanted = {(one["path"], upstream) for one in declared for upstream in one["after"]}
    known = {}
    for one in declared:
        for found in triggers_of(tx, org_id, get(tx, org_id, one["path"]).id):
            if found.source == "code":
                known[one["path"], upstreams_of(tx, [found.id])[found.id][0]] = found.id
    drop_triggers(tx, t.id.in_([known[link] for link in known.keys() - wanted]))  # first: a chain may be turned round
    for path, upstream in sorted(wanted - known.keys()):
        new = {"type": SUCCESS, "upstreams": [upstream], "source": "code"}
        changed.append(insert_trigger(tx, get(tx, org_id, path), new, now))
    return changed


def remember(tx: Tx, row: Mapping[str, Any], now: datetime) -> None:
    what = {name: row[name] for name in WHAT_RUNS}
    version = {"pipeline_id": row["id"], "version": row["version"], **what, "created_at": now}
    insert_rows(tx, pipeline_versions, [version])


# what people see


def record(row: Any) -> Record:
    found = {name: value for name, value in dict_of(row).items() if name not in ("org_id", "deleted_at")}
    namespace, layer, name = row.path.split("/")
    return {**found, "namespace": namespace, "layer": layer, "name": name}


def describe(tx: Tx, org_id: str, key: str) -> Record:
    return record(get(tx, org_id, key))


def list_pipelines(
    tx: Tx, org_id: str, *, limit: int = PAGE_ROWS, cursor: str | None = None, namespace: str | None = None,
    layer: str | None = None, type: str | None = None,
) -> Page:  # fmt: skip
    """The living ones, by their paths."""
    stmt = select(pipelines).where(p.org_id == org_id, LIVING, *pipeline_filters(p.path, namespace, layer, None))
    stmt = stmt if type is None else stmt.where(p.type == type)
    return page_by(tx, stmt, p.path, limit, cursor, record)


def list_versions(tx: Tx, org_id: str, key: str) -> list[Record]:
    """Newest first."""
    v = pipeline_versions.c
    stmt = select(v.version, v.type, v.sql, v.function, v.created_at)
    mine = stmt.where(v.pipeline_id == get(tx, org_id, key).id)
    return [dict_of(row) for row in tx.execute(mine.order_by(v.version.desc()))]


def last_runs(tx: Tx, org_id: str, path: str, limit: int) -> list[Record]:
    """Runs of a pipeline, newest first: what waits or runs, then what ended."""
    j, of_kind = jobs.c, runs.c.kind == literal_column("'pipeline'")  # in the text: a partial index serves no parameter
    living = select(jobs).where(j.org_id == org_id, j.kind == "pipeline", j.target == path).order_by(j.id.desc())
    found = run_reports.with_target_names(tx, [run_reports.living_run(row) for row in tx.execute(living.limit(limit))])
    ended = select(*run_reports.RUN).where(of_kind, runs.c.org_id == org_id, runs.c.target == path)
    ended = ended.order_by(runs.c.recorded_at.desc(), runs.c.id.desc()).limit(limit)
    return (found + [run_reports.ended_run(row) for row in tx.execute(ended)])[:limit]


def namespaces(tx: Tx, org_id: str) -> list[Record]:
    """A namespace is there while a pipeline is in it."""
    paths = tx.execute(select(p.path).where(p.org_id == org_id, LIVING)).scalars()
    found = Counter(path.split("/")[0] for path in paths)
    return [{"name": name, "pipelines": count} for name, count in sorted(found.items())]


def graph(tx: Tx, org_id: str) -> Record:
    """What hangs on what: by triggers, and by the tables that are read."""
    found = [record(row) for row in tx.execute(select(pipelines).where(p.org_id == org_id, LIVING).order_by(p.path))]
    nodes = [{name: one[name] for name in ("path", "namespace", "layer", "name", "type")} for one in found]
    edges = [{"from": read, "to": one["path"], "kind": "reads"} for one in found for read in one["reads"]]
    paths = {one["id"]: one["path"] for one in found}
    for row in tx.execute(links(org_id)):
        edges.append({"from": paths[row.upstream_id], "to": paths[row.pipeline_id], "kind": row.type})
    return {"nodes": nodes, "edges": sorted(edges, key=lambda one: (one["to"], one["from"], one["kind"]))}


def links(org_id: str) -> Select[Any]:
    stmt = select(t.pipeline_id, u.pipeline_id.label("upstream_id"), t.type)
    return stmt.join(pipeline_upstreams, u.trigger_id == t.id).where(t.org_id == org_id)


# triggers


def insert_trigger(tx: Tx, pipeline: Any, fields: Mapping[str, Any], now: datetime) -> str:
    """`fields` are the columns that are not as in most triggers, and the paths of its `upstreams`."""
    lock_keys(tx, [f"pipelines:{pipeline.org_id}"])  # two triggers that are made at once could close a circle
    columns = {name: value for name, value in fields.items() if name != "upstreams"}
    if missing := unknown(tx, pipeline.org_id, fields["upstreams"]):
        raise Invalid("upstream", missing[0], "is not a pipeline; `rota pipeline list` shows those there are")
    wanted = [get(tx, pipeline.org_id, path).id for path in fields["upstreams"]]
    refuse_circle(tx, pipeline, wanted)
    row = {
        "id": new_id(), "org_id": pipeline.org_id, "pipeline_id": pipeline.id, "schedule_id": None, "token_hash": None,
        "cooldown_seconds": 0, "enabled": True, "waits": False, "source": "api", "created_at": now, **columns,
    }  # fmt: skip
    insert_rows(tx, pipeline_triggers, [row])
    links = [{"trigger_id": row["id"], "pipeline_id": one, "fresh": False} for one in wanted]
    insert_rows(tx, pipeline_upstreams, links)
    return str(row["id"])


def refuse_circle(tx: Tx, pipeline: Any, upstreams: Collection[str]) -> None:
    """A pipeline that waits, over any number of others, for itself would run for ever."""
    after: dict[str, list[str]] = {}
    for row in tx.execute(links(pipeline.org_id)):
        after.setdefault(row.upstream_id, []).append(row.pipeline_id)
    seen, open_ends = {pipeline.id}, [pipeline.id]
    while open_ends:
        found = [one for one in after.get(open_ends.pop(), []) if one not in seen]
        seen.update(found)
        open_ends += found
    for one in seen.intersection(upstreams):
        path = get(tx, pipeline.org_id, one).path
        raise Invalid("upstream", path, f"is {pipeline.path}, or runs after it: it would go round for ever")


def triggers_of(tx: Tx, org_id: str, pipeline_id: str) -> list[Any]:
    stmt = select(pipeline_triggers, schedules.c.timing).outerjoin(schedules, schedules.c.id == t.schedule_id)
    return list(tx.execute(stmt.where(t.org_id == org_id, t.pipeline_id == pipeline_id).order_by(t.id)))


def upstreams_of(tx: Tx, trigger_ids: Collection[str]) -> dict[str, list[str]]:
    """The paths that triggers wait for."""
    found: dict[str, list[str]] = {one: [] for one in trigger_ids}
    stmt = select(u.trigger_id, p.path).join(pipelines, p.id == u.pipeline_id).where(u.trigger_id.in_(trigger_ids))
    for row in tx.execute(stmt.order_by(p.path)):
        found[row.trigger_id].append(row.path)
    return found


def list_triggers(tx: Tx, org_id: str, key: str) -> list[Record]:
    rows = triggers_of(tx, org_id, get(tx, org_id, key).id)
    upstreams = upstreams_of(tx, [row.id for row in rows])
    same = ("id", "type", "cooldown_seconds", "enabled", "last_triggered_at", "last_job_id", "source", "created_at")
    return [
        {**{name: getattr(row, name) for name in same}, "upstreams": upstreams[row.id], "cron_expression": cron_of(row)}
        for row in rows
    ]


def trigger(tx: Tx, org_id: str, key: str, trigger_id: str) -> Record:
    for one in list_triggers(tx, org_id, key):
        if one["id"] == trigger_id:
            return one
    raise NotFound(f"trigger {trigger_id}: pipeline {key} has none such")


def change_trigger(tx: Tx, org_id: str, trigger_id: str, changes: Mapping[str, Any], now: datetime) -> str:
    row = tx.execute(select(pipeline_triggers).where(t.id == trigger_id).with_for_update()).one()
    tx.execute(update(pipeline_triggers).where(t.id == trigger_id).values(dict(changes)))
    if row.schedule_id is not None and timers.exists(tx, org_id, row.schedule_id) and "enabled" in changes:
        due = timers.lock(tx, org_id, row.schedule_id)
        timers.replace_schedule(tx, due, replace(due.schedule, enabled=changes["enabled"]), now)
    return trigger_id


def remove_trigger(tx: Tx, org_id: str, trigger_id: str, now: datetime) -> str:
    schedule_id = tx.execute(select(t.schedule_id).where(t.id == trigger_id)).scalar()
    if schedule_id is not None:
        timers.delete_if_exists(tx, org_id, schedule_id, now)
    drop_triggers(tx, t.id == trigger_id)
    return trigger_id


def drop_triggers(tx: Tx, where: Any) -> None:
    tx.execute(delete(pipeline_upstreams).where(u.trigger_id.in_(select(t.id).where(where))))
    tx.execute(delete(pipeline_triggers).where(where))


def cron_of(row: Any) -> str | None:
    cron = None if row.timing is None else timings.load(row.timing).trigger
    return cron.expression if isinstance(cron, timings.Cron) else None


# firing


def follow(tx: Tx, ended: Sequence[AttemptResult], now: datetime) -> None:
    """Pipelines succeeded: what waits for them runs."""
    done = {(one.job.org_id, one.job.target) for one in ended if one.status is Status.SUCCESS}
    if not done:
        return
    mine = select(p.id).where(tuple_(p.org_id, p.path).in_(done), LIVING)
    upstreams = list(tx.execute(mine).scalars())
    stale = and_(u.pipeline_id.in_(upstreams), ~u.fresh)
    tx.execute(update(pipeline_upstreams).where(stale).values(fresh=True))
    wants = or_(t.type == SUCCESS, and_(t.type == DEPENDENCY, t.waits))
    waiting = select(t.id).join(pipeline_upstreams, u.trigger_id == t.id).where(u.pipeline_id.in_(upstreams), wants)
    fire(tx, set(tx.execute(waiting).scalars()), now)


def fire(tx: Tx, trigger_ids: Collection[str], now: datetime) -> dict[str, str]:
    """Make a job for each of these triggers that may fire now; returns them by trigger. One that was made before and
    has not begun yet will find all that is new, and stands for this one too."""
    fields = (p.path, p.type.label("runs"), p.function, orgs.c.slug, schedules.c.timing)
    joined = pipeline_triggers.join(pipelines, p.id == t.pipeline_id).join(orgs, orgs.c.id == t.org_id)
    stmt = (
        select(pipeline_triggers, *fields)
        .select_from(joined.outerjoin(schedules, schedules.c.id == t.schedule_id))
        .where(t.id.in_(trigger_ids), t.enabled, LIVING)
        .order_by(t.id)
    )
    lock_keys(tx, [serial_key_of_target(PIPELINE, row.org_id, row.path) for row in tx.execute(stmt)])
    upstreams = upstreams_of(tx, trigger_ids)
    made: dict[str, str] = {}
    for row in tx.execute(stmt.with_for_update(of=pipeline_triggers)).all():
        if ready_at(row) > now or (row.type == DEPENDENCY and not (row.waits and all_fresh(tx, row.id))):
            continue
        solo = f"trigger:{row.id}"
        waiting = tx.execute(select(jobs.c.id).where(jobs.c.solo_key == solo)).scalar()
        job = NewJob(
            org_id=row.org_id, kind="pipeline", target=row.path, payload=None, run_at=now, solo_key=solo,
            trigger=f"{row.type}:{cron_of(row) or ''.join(upstreams[row.id]) or row.id}",
            route=route_of(row.slug, row.runs, row.function),
            serial_key=serial_key_of_target(PIPELINE, row.org_id, row.path),
        )  # fmt: skip
        if claim(tx, row, waiting or job.id, now):
            made[row.id] = waiting or job.id
            queue.add(tx, [] if waiting else [job], now)
    return made


def pass_gate(tx: Tx, job: Job, now: datetime) -> bool:
    """The slot of a cron_dependency has come: may its job run? If not all upstreams are there yet, the trigger waits
    for the last of them, whose end fires it."""
    row = tx.execute(select(pipeline_triggers).where(t.schedule_id == job.schedule_id).with_for_update()).first()
    if row is None or row.last_job_id == job.id:  # claimed by an earlier attempt
        return True
    if all_fresh(tx, row.id) and ready_at(row) <= now:
        return claim(tx, row, job.id, now)
    tx.execute(update(pipeline_triggers).where(t.id == row.id).values(waits=True))
    return False


def claim(tx: Tx, row: Any, job_id: str, now: datetime) -> bool:
    """Compare-and-set: of two ways to fire a trigger one wins."""
    as_read = and_(t.id == row.id, t.enabled, t.last_triggered_at.is_not_distinct_from(row.last_triggered_at))
    values = {"last_triggered_at": now, "last_job_id": job_id, "waits": False}
    won = bool(tx.execute(update(pipeline_triggers).where(as_read).values(values)).rowcount)
    if won:
        tx.execute(update(pipeline_upstreams).where(u.trigger_id == row.id).values(fresh=False))
    return won


def all_fresh(tx: Tx, trigger_id: str) -> bool:
    return tx.execute(select(u.trigger_id).where(u.trigger_id == trigger_id, ~u.fresh)).first() is None


def ready_at(row: Any) -> datetime:
    """When a trigger that has fired may do so again."""
    last: datetime = row.last_triggered_at or row.created_at - timedelta(seconds=row.cooldown_seconds)
    return last + timedelta(seconds=row.cooldown_seconds)


def by_token(tx: Tx, token_hash: str) -> Any | None:
    return tx.execute(select(pipeline_triggers).where(t.token_hash == token_hash, t.enabled)).one_or_none()


def route_of(org: str, type: str, function: str | None) -> str:
    """Any worker with an executor can run SQL, but only one that has the function a function."""
    return SQL_ROUTE if type == "sql" else f"pipeline:{org}:{function}"


# retention


def with_limits(tx: Tx) -> list[Any]:
    """The pipelines that keep fewer runs than the installation does, also after they were deleted."""
    return list(tx.execute(select(pipelines).where(or_(p.max_runs.is_not(None), p.max_age_days.is_not(None)))))


def prune(tx: Tx, pipeline: Any, now: datetime, limit: int) -> int:
    """Forget runs of a pipeline beyond what it keeps; returns how many."""
    of_kind = runs.c.kind == literal_column("'pipeline'")  # in the text: a partial index serves no parameter
    mine = select(runs).where(of_kind, runs.c.org_id == pipeline.org_id, runs.c.target == pipeline.path)
    newest = mine.order_by(runs.c.recorded_at.desc(), runs.c.id.desc()).limit(limit)
    found: list[Any] = []
    if pipeline.max_age_days is not None:
        found = list(tx.execute(newest.where(runs.c.recorded_at < now - timedelta(days=pipeline.max_age_days))))
    if pipeline.max_runs is not None and not found:
        found = list(tx.execute(newest.offset(pipeline.max_runs)))
    return engine_runs.delete_runs(tx, found)
