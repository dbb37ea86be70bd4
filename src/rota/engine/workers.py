"""Worker registrations and their leases: one row per process start; its jobs have its id as lease owner."""

import socket
from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import and_, delete, func, or_, select, update

from rota.core.clock import ClockSample, stopwatch
from rota.core.kinds import traits_of
from rota.core.states import WorkerState
from rota.db.dialect import Tx, database_now
from rota.db.statement import insert_rows
from rota.db.tables import workers
from rota.engine import jobs

w = workers.c
ALIVE = w.state == WorkerState.ALIVE
LEASE_AHEAD_MAX = timedelta(minutes=15)  # no lease is longer than ten


def register(
    tx: Tx,
    *,
    worker: str,
    pid: int,
    version: str,
    concurrency: int,
    kinds: Collection[str],
    routes: Collection[str],
    queues: Collection[str] | None,
    lease: timedelta,
    now: datetime,
    host: str | None = None,
    host_id: str | None = None,
) -> None:
    """Register a process with the routes it serves; parked jobs that waited for one of these routes become ready."""
    row = {
        "id": worker, "state": WorkerState.ALIVE.value, "pid": pid, "version": version,
        "host": host or socket.gethostname(), "host_id": host_id,
        "concurrency": concurrency, "kinds": sorted(kinds), "routes": sorted(routes),
        "queues": None if queues is None else sorted(queues), "started_at": now, "renewed_at": now,
        "lease_until": now + lease, "lease_seconds": round(lease.total_seconds()), "stopped_at": None,
    }  # fmt: skip
    insert_rows(tx, workers, [row])
    jobs.resume_routes(tx, routes)


def set_routes(tx: Tx, worker: str, routes: Collection[str]) -> None:
    """Replace the routes of a worker; parked jobs that waited for one of them become ready."""
    tx.execute(update(workers).where(w.id == worker, ALIVE).values(routes=sorted(routes)))
    jobs.resume_routes(tx, routes)


def renew(tx: Tx, worker: str, lease: timedelta, now: datetime, metrics: object = None) -> bool:
    """Renew the lease of a worker, and replace the snapshot of its metrics unless that is None; returns False if the
    worker was declared dead."""
    stmt = update(workers).where(w.id == worker, ALIVE).values(renewed_at=now, lease_until=now + lease)
    stmt = stmt if metrics is None else stmt.values(metrics=metrics)
    return bool(tx.execute(stmt).rowcount)


def stop(tx: Tx, worker: str, now: datetime, metrics: object = None) -> None:
    """Mark a worker that holds no jobs as stopped, with the last snapshot of its metrics unless that is None."""
    stmt = update(workers).where(w.id == worker, ALIVE).values(state=WorkerState.STOPPED, stopped_at=now)
    tx.execute(stmt if metrics is None else stmt.values(metrics=metrics))


def expired(tx: Tx, now: datetime, except_worker: str | None) -> list[str]:
    """Return live workers whose lease expired. A lease too far in the future was written before the clock was set
    back."""
    ahead = w.lease_until > now + LEASE_AHEAD_MAX
    stmt = select(w.id).where(ALIVE, or_(w.lease_until < now, ahead))
    return [worker for worker in tx.execute(stmt.order_by(w.lease_until)).scalars() if worker != except_worker]


def declare_dead(tx: Tx, worker: str, now: datetime) -> bool:
    """Declare a worker with an expired lease dead, before its jobs are rescued; its next renewal fails. Returns False
    if it renewed its lease in between."""
    late = and_(w.id == worker, ALIVE, or_(w.lease_until < now, w.lease_until > now + LEASE_AHEAD_MAX))
    tx.execute(update(workers).where(late).values(state=WorkerState.DEAD, stopped_at=now))
    return not is_alive(tx, worker)


def is_alive(tx: Tx, worker: str) -> bool:
    """Return whether a worker is registered as alive."""
    return tx.execute(select(w.id).where(w.id == worker, ALIVE)).first() is not None


def any_alive(tx: Tx, now: datetime) -> bool:
    """Return whether a worker process is alive; agents of hosts and registrations of servers do not count."""
    alive = select(w.kinds).where(ALIVE, w.lease_until >= now, w.host_id.is_(None))
    return any(is_worker(kinds) for kinds in tx.execute(alive).scalars())


def is_worker(kinds: Collection[str]) -> bool:
    """Return whether a registration with these kinds is a worker's, and not that of a server."""
    return not kinds or not all(traits_of(kind).in_servers for kind in kinds)


def last_renewal(tx: Tx) -> datetime | None:
    """Return when a worker last renewed its lease; agents of hosts and registrations of servers do not count."""
    stmt = select(w.kinds, w.renewed_at).where(w.host_id.is_(None)).order_by(w.renewed_at.desc()).limit(100)
    return next((row.renewed_at for row in tx.execute(stmt) if is_worker(row.kinds)), None)


def live_names(tx: Tx, now: datetime) -> list[str]:
    """Return what the registered processes that are alive are called, agents of hosts included."""
    alive = select(w.id, w.host, w.pid).where(ALIVE, w.lease_until >= now).order_by(w.id)
    return [f"worker {row.id} (process {row.pid} on {row.host})" for row in tx.execute(alive)]


def dead_with_jobs(tx: Tx, limit: int = 20) -> list[str]:
    """Return workers that stopped or died but still own running jobs: their rescue was interrupted."""
    gone = w.state != WorkerState.ALIVE
    owns = select(jobs.c.id).where(jobs.c.lease_owner == w.id, jobs.c.state == "running").exists()
    return list(tx.execute(select(w.id).where(gone, owns).limit(limit)).scalars())


def next_expiry(tx: Tx, except_worker: str | None) -> datetime | None:
    """Return when the first lease of another worker expires."""
    stmt = select(func.min(w.lease_until)).where(ALIVE)
    return tx.execute(stmt if except_worker is None else stmt.where(w.id != except_worker)).scalar()


def live_routes(tx: Tx, now: datetime) -> set[str]:
    """Return the routes of all live workers."""
    return {
        route
        for routes in tx.execute(select(w.routes).where(ALIVE, w.lease_until >= now)).scalars()
        for route in routes
    }


def delete_stopped(tx: Tx, before: datetime) -> int:
    """Delete registrations of workers that stopped before `before`; returns their number."""
    merged = or_(w.metrics.is_(None), w.metrics_merged)
    return tx.execute(delete(workers).where(w.state != WorkerState.ALIVE, w.stopped_at < before, merged)).rowcount


def beat(tx: Tx, worker: str, lease: timedelta, metrics: object = None) -> tuple[ClockSample, bool, dict[str, str]]:
    """One heartbeat: a sample of the database's clock, whether the lease holds, and which jobs of this worker are to be
    stopped. Stores the snapshot of the worker's metrics unless that is None."""
    sample = measure(tx)
    return sample, renew(tx, worker, lease, sample.time, metrics), jobs.cancel_requests(tx, worker)


def measure(tx: Tx) -> ClockSample:
    """Read the database's clock."""
    sent = stopwatch()
    now = database_now(tx)
    return ClockSample(now, sent, stopwatch())
