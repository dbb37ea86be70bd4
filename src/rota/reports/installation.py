"""State of the installation: workers, queues and gauges. Reads only."""

from datetime import datetime

from sqlalchemy import and_, case, func, null, select

from rota.core.alarms import EventState
from rota.core.errors import NotFound
from rota.core.kinds import registered
from rota.core.states import State, WorkerState
from rota.db.dialect import Tx
from rota.db.paging import PAGE_ROWS, Page, Record, matching, page_by
from rota.db.tables import alarm_events, clocks, jobs, queues, workers
from rota.engine.orgs import slug_of
from rota.engine.workers import is_worker
from rota.reports.runs import RUNNING

UNLIMITED_QUEUE: Record = {"max_running": None, "rate": None, "burst": None, "paused": False}

k, j = clocks.c, jobs.c


def list_workers(
    tx: Tx, org_id: str | None = None, *, limit: int = PAGE_ROWS, cursor: str | None = None, state: str | None = None
) -> Page:
    """Return a page of workers, newest first. Workers serve every org: for an org, `running` counts its own jobs, and
    host and pid are shown to org `default` only. Without an org everything is shown."""
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
    no_servers = [w.kinds != [kind] for kind, traits in registered().items() if traits.in_servers]
    of_installation = select(*columns).select_from(joined).where(w.host_id.is_(None), *no_servers)  # agents have an org
    stmt = matching(of_installation, (w.state, state))
    return page_by(tx, stmt, w.id, limit, cursor, descending=True)


def queue(tx: Tx, org_id: str, name: str) -> Record:
    record = next((queue for queue in list_queues(tx, org_id) if queue["name"] == name), None)
    if record is None:
        raise NotFound(f"queue {name!r} not found: it has no jobs, no limit and is not paused")
    return record


def list_queues(tx: Tx, org_id: str) -> list[Record]:
    """Return the queues of an org that have jobs, a limit or a pause, with the number of jobs by state."""
    oldest = func.min(case((j.state == State.READY, j.run_at)), type_=j.run_at.type)
    counted = select(j.queue, j.state, func.count().label("n"), oldest.label("oldest")).where(j.org_id == org_id)
    limits = select(queues.c.name, queues.c.max_running, queues.c.paused_at, queues.c.rate, queues.c.burst).where(
        queues.c.org_id == org_id
    )
    records: dict[str, Record] = {}

    def entry(name: str) -> Record:
        depth = {state.value: 0 for state in State}
        empty = {"name": name, "depth": depth, "oldest_ready_at": None, **UNLIMITED_QUEUE}
        return records.setdefault(name, empty)

    for row in tx.execute(counted.group_by(j.queue, j.state)):
        entry(row.queue)["depth"][row.state] = row.n
        if row.oldest is not None:
            entry(row.queue)["oldest_ready_at"] = row.oldest
    for row in tx.execute(limits):
        set_limits = {"max_running": row.max_running, "rate": row.rate, "burst": row.burst}
        entry(row.name).update(set_limits, paused=row.paused_at is not None)
    return [records[name] for name in sorted(records)]


def gauges(tx: Tx, now: datetime) -> Record:
    """Return the gauges of the installation, over all orgs, and its live workers."""
    counted = {row[0]: row[1] for row in tx.execute(select(j.state, func.count()).group_by(j.state))}
    oldest = tx.execute(select(func.min(j.run_at)).where(j.state == State.READY)).scalar()
    due = tx.execute(select(func.min(k.next_run_at)).where(k.next_run_at.is_not(None))).scalar()
    w = workers.c
    alive = and_(w.state == WorkerState.ALIVE, w.lease_until >= now, w.host_id.is_(None))
    held = dict(
        tuple(row) for row in tx.execute(select(j.lease_owner, func.count()).where(RUNNING).group_by(j.lease_owner))
    )
    open_alarms = select(alarm_events.c.state, func.count()).where(alarm_events.c.state != EventState.RESOLVED)
    alarms = {row[0]: row[1] for row in tx.execute(open_alarms.group_by(alarm_events.c.state))}
    return {
        "alarms": {state.value: alarms.get(state, 0) for state in (EventState.FIRING, EventState.ACKNOWLEDGED)},
        "jobs": {state.value: counted.get(state, 0) for state in State},
        "oldest": max(0.0, (now - oldest).total_seconds()) if oldest else 0.0,
        "overdue": max(0.0, (now - due).total_seconds()) if due else 0.0,
        "workers": [
            {
                "id": row.id,
                "concurrency": row.concurrency,
                "running": held.get(row.id, 0),
                "heartbeat_age": max(0.0, (now - row.renewed_at).total_seconds()),
            }
            for row in tx.execute(select(w.id, w.concurrency, w.renewed_at, w.kinds).where(alive).order_by(w.id))
            if is_worker(row.kinds)
        ],
    }
