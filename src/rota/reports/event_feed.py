"""The event feed: what changed in an org since a time, derived from the stored rows.

Transactions do not commit in the order of their timestamps: a follower reads the last `OVERLAP` again and drops the
events it has seen.
"""

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, case, literal, or_, select

from rota.core.kinds import registered
from rota.core.policy import FailureClass
from rota.core.states import Status
from rota.core.steps import StepType
from rota.db.dialect import Query, Tx
from rota.db.paging import Record, dict_of
from rota.db.tables import audit_log, hosts, jobs, logs, runs, schedules, steps, workers
from rota.reports.runs import STARTED
from rota.reports.steps import APPROVAL_RANGE, waiting_in

OVERLAP = timedelta(seconds=5)
FEED_ROWS_MAX = 1000
EVENT_TYPES = {"hosts": "host.changed", "server-instances": "host.changed", "workflows": "workflow.changed"}

DECISIONS = ("runs.approve", "runs.reject")

s, j, r, w, a, p = schedules.c, jobs.c, runs.c, workers.c, audit_log.c, steps.c


def since(tx: Tx, org_id: str, at: datetime, key: str = "", limit: int = FEED_ROWS_MAX) -> tuple[list[Record], bool]:
    """Return the events after (at, key), oldest first, and whether more follow. Each has `type`, `at` and `id`."""
    parts = [[dict_of(row) for row in tx.execute(stmt.limit(limit))] for stmt in sources(org_id, at, key)]
    edges = [(part[-1]["at"], part[-1]["id"]) for part in parts if len(part) == limit]
    merged = sorted((event for part in parts for event in part), key=lambda event: (event["at"], event["id"]))
    if not edges:
        return merged, False
    return [event for event in merged if (event["at"], event["id"]) <= min(edges)], True


def sources(org_id: str, at: datetime, key: str) -> list[Query]:
    job = (j.id.label("job_id"), j.schedule_id, j.slot, j.kind, j.target)
    ended = (r.job_id, r.schedule_id, r.slot, r.kind, r.target, r.attempt, r.status, r.reason)
    changed = case(
        (s.deleted_at.is_not(None), "schedule.deleted"), (s.revision == 1, "schedule.created"), else_="schedule.changed"
    )
    schedule = (s.name, s.revision, s.enabled, s.condition, s.paused_at.is_not(None).label("paused"))
    worker = (w.host, w.host_id, w.pid, w.state)
    agent = w.host_id.is_not(None)  # of a host, and those are their org's alone
    visible = or_(~agent, w.host_id.in_(select(hosts.c.id).where(hosts.c.org_id == org_id)))
    up, down = (case((agent, f"host.{change}"), else_=f"worker.{change}").label("type") for change in ("up", "down"))
    steered = case(
        (a.resource == "queues", "queue.changed"), (a.action == "freeze.delete", "freeze.off"), else_="freeze.on"
    )
    changes = case(EVENT_TYPES, value=a.resource).label("type")
    approval = (p.job_id, p.run_id, p.name, p.topic.label("who"))
    return [
        behind(select(literal("run.started").label("type"), *job, j.attempt), j.started_at, j.run_id, at, key).where(
            j.org_id == org_id, STARTED
        ),
        behind(select(literal("run.ended").label("type"), *ended), r.recorded_at, r.id, at, key).where(
            r.org_id == org_id
        ),
        *(
            behind(
                select(literal(f"{kind}.stopped").label("type"), r.target.label("name"), r.job_id, r.reason),
                r.recorded_at, r.id, at, key,
            ).where(r.org_id == org_id, r.kind == kind, r.status == Status.FAILED, r.reason == FailureClass.INTERNAL)
            for kind, traits in registered().items()
            if traits.parks_on_failure
        ),
        behind(select(changed.label("type"), *schedule), s.updated_at, s.id, at, key).where(s.org_id == org_id),
        behind(select(up, *worker), w.started_at, w.id, at, key).where(visible),
        behind(select(down, *worker), w.stopped_at, w.id, at, key).where(visible),
        behind(
            select(steered.label("type"), a.resource_id.label("name"), a.before, a.after), a.at, a.id, at, key
        ).where(a.org_id == org_id, a.resource.in_(("freeze", "queues"))),
        behind(select(changes, a.action, a.resource_id.label("name")), a.at, a.id, at, key).where(
            a.org_id == org_id, a.resource.in_(EVENT_TYPES)
        ),
        behind(
            select(literal("approval.requested").label("type"), *approval), p.started_at, p.waits_for, at, key
        ).where(waiting_in(APPROVAL_RANGE), p.type == StepType.APPROVAL.value, p.org_id == org_id),
        behind(
            select(literal("approval.decided").label("type"), a.action, a.resource_id.label("name")),
            a.at, a.id, at, key,
        ).where(a.org_id == org_id, a.action.in_(DECISIONS)),
    ]  # fmt: skip


def behind(stmt: Query, time: ColumnElement[object], name: ColumnElement[object], at: datetime, key: str) -> Query:
    later = and_(time >= at, or_(time > at, name > key))
    return stmt.add_columns(time.label("at"), name.label("id")).where(later).order_by(time, name)


def log_start(tx: Tx, run_id: str, last: int) -> int:
    """Return the line id after which to read a run's log for a follower that has seen it up to `last`: lines within
    OVERLAP are repeated."""
    seen_at = select(logs.c.at).where(logs.c.id == last, logs.c.run_id == run_id)
    at = tx.execute(seen_at).scalar()
    if at is None:
        return last
    older = and_(logs.c.run_id == run_id, logs.c.id < last, logs.c.at < at - OVERLAP)
    return tx.execute(select(logs.c.id).where(older).order_by(logs.c.id.desc()).limit(1)).scalar() or 0
