"""What changed in an org since a moment, for those who follow it. Derived from what is stored anyway.

Transactions do not commit in the order of their moments: who follows reads again what lies up to `OVERLAP` back, and
drops what it knows.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, literal, or_, select

from rota.core.model import WORKFLOW
from rota.core.policy import FailureClass
from rota.core.states import Status
from rota.db.dialect import Tx
from rota.db.paging import Record, dict_of
from rota.db.tables import audit_log, hosts, jobs, logs, runs, schedules, workers
from rota.engine.run_reports import STARTED

OVERLAP = timedelta(seconds=5)
LIMIT = 1000
CHANGED = {"hosts": "host.changed", "server-instances": "host.changed", "workflows": "workflow.changed"}

s, j, r, w, a = schedules.c, jobs.c, runs.c, workers.c, audit_log.c


def since(tx: Tx, org_id: str, at: datetime, key: str = "", limit: int = LIMIT) -> tuple[list[Record], bool]:
    """Changes behind (at, key), oldest first, and whether there are more. Each has `type`, `at` and `id`."""
    found = [[dict_of(row) for row in tx.execute(stmt.limit(limit))] for stmt in sources(org_id, at, key)]
    edges = [(part[-1]["at"], part[-1]["id"]) for part in found if len(part) == limit]
    merged = sorted((one for part in found for one in part), key=lambda one: (one["at"], one["id"]))
    if not edges:
        return merged, False
    return [one for one in merged if (one["at"], one["id"]) <= min(edges)], True


def sources(org_id: str, at: datetime, key: str) -> list[Select[Any]]:
    job = (j.id.label("job_id"), j.schedule_id, j.slot, j.kind, j.target)
    ended = (r.job_id, r.schedule_id, r.slot, r.kind, r.target, r.attempt, r.status, r.reason)
    changed = case(
        (s.deleted_at.is_not(None), "schedule.deleted"), (s.revision == 1, "schedule.created"), else_="schedule.changed"
    )
    schedule = (s.name, s.revision, s.enabled, s.condition, s.paused_at.is_not(None).label("paused"))
    worker = (w.host, w.host_id, w.pid, w.state)
    agent = w.host_id.is_not(None)  # of a host, and those are their org's alone
    ours = or_(~agent, w.host_id.in_(select(hosts.c.id).where(hosts.c.org_id == org_id)))
    up, down = (case((agent, f"host.{what}"), else_=f"worker.{what}").label("type") for what in ("up", "down"))
    steered = case(
        (a.resource == "queues", "queue.changed"), (a.action == "freeze.delete", "freeze.off"), else_="freeze.on"
    )
    changes = case(CHANGED, value=a.resource).label("type")
    return [
        behind(select(literal("run.started").label("type"), *job, j.attempt), j.started_at, j.run_id, at, key).where(
            j.org_id == org_id, STARTED
        ),
        behind(select(literal("run.ended").label("type"), *ended), r.recorded_at, r.id, at, key).where(
            r.org_id == org_id
        ),
        behind(
            select(literal("workflow.stopped").label("type"), r.target.label("name"), r.job_id, r.reason),
            r.recorded_at, r.id, at, key,
        ).where(r.org_id == org_id, r.kind == WORKFLOW, r.status == Status.FAILED, r.reason == FailureClass.INTERNAL),
        behind(select(changed.label("type"), *schedule), s.updated_at, s.id, at, key).where(s.org_id == org_id),
        behind(select(up, *worker), w.started_at, w.id, at, key).where(ours),
        behind(select(down, *worker), w.stopped_at, w.id, at, key).where(ours),
        behind(
            select(steered.label("type"), a.resource_id.label("name"), a.before, a.after), a.at, a.id, at, key
        ).where(a.org_id == org_id, a.resource.in_(("freeze", "queues"))),
        behind(select(changes, a.action, a.resource_id.label("name")), a.at, a.id, at, key).where(
            a.org_id == org_id, a.resource.in_(CHANGED)
        ),
    ]  # fmt: skip


def behind(
    stmt: Select[Any], moment: ColumnElement[Any], name: ColumnElement[Any], at: datetime, key: str
) -> Select[Any]:
    later = and_(moment >= at, or_(moment > at, name > key))
    return stmt.add_columns(moment.label("at"), name.label("id")).where(later).order_by(moment, name)


def log_start(tx: Tx, run_id: str, last: int) -> int:
    """From where to read a run's log for someone who has seen it up to `last`: lines of the overlap come again."""
    seen_at = select(logs.c.at).where(logs.c.id == last, logs.c.run_id == run_id)
    at = tx.execute(seen_at).scalar()
    if at is None:
        return last
    older = and_(logs.c.run_id == run_id, logs.c.id < last, logs.c.at < at - OVERLAP)
    return tx.execute(select(logs.c.id).where(older).order_by(logs.c.id.desc()).limit(1)).scalar() or 0


def job_steps(tx: Tx, org_id: str, job_id: str) -> list[Record]:
    """Everything a job came to so far, attempt by attempt: pending, running, how it ended. The last one holds now."""
    # looked for first: a job that ends between two looks is found by the second
    living = tx.execute(select(jobs, STARTED.label("started")).where(j.org_id == org_id, j.id == job_id)).one_or_none()
    stmt = select(runs).where(r.org_id == org_id, r.job_id == job_id, r.lost_fence == 0).order_by(r.attempt)
    steps: list[Record] = []

    def step(attempt: int, status: str, at: datetime | None, run_id: str | None, reason: str | None = None) -> None:
        told = {"job_id": job_id, "run_id": run_id, "attempt": attempt, "status": status, "reason": reason, "at": at}
        steps.append(told)

    for row in tx.execute(stmt):
        step(row.attempt, "pending", row.queued_at if not steps else steps[-1]["at"], None)
        if row.started_at is not None:
            step(row.attempt, "running", row.started_at, row.id)
        step(row.attempt, row.status, row.finished_at, row.id, row.reason)
    attempt = 0 if living is None else living.attempt if living.started else living.attempt + 1
    if living is not None and attempt > (steps[-1]["attempt"] if steps else 0):
        step(attempt, "pending", steps[-1]["at"] if steps else living.queued_at, None, living.parked_reason)
        if living.started:
            step(attempt, "running", living.started_at, living.run_id)
    return steps
