"""Workers and their leases. One row per process start; the jobs it holds carry its id."""

import socket
from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import and_, delete, func, or_, select, update

from rota.core.clock import ClockSample, stopwatch
from rota.core.states import WorkerState
from rota.db.dialect import Tx, database_now, insert_rows
from rota.db.tables import workers
from rota.engine import jobs as queue

w = workers.c
ALIVE = w.state == WorkerState.ALIVE
AHEAD = timedelta(minutes=15)  # no lease is longer than ten


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
    """A process is up and says what it can run; work that waited for that is ready again."""
    row = {
        "id": worker, "state": WorkerState.ALIVE.value, "pid": pid, "version": version,
        "host": host or socket.gethostname(), "host_id": host_id,
        "concurrency": concurrency, "kinds": sorted(kinds), "routes": sorted(routes),
        "queues": None if queues is None else sorted(queues), "started_at": now, "renewed_at": now,
        "lease_until": now + lease, "lease_seconds": round(lease.total_seconds()), "stopped_at": None,
    }  # fmt: skip
    insert_rows(tx, workers, [row])
    queue.route(tx, routes)


def announce(tx: Tx, worker: str, routes: Collection[str]) -> None:
    """A worker has learnt to run more."""
    tx.execute(update(workers).where(w.id == worker, ALIVE).values(routes=sorted(routes)))
    queue.route(tx, routes)


def renew(tx: Tx, worker: str, lease: timedelta, now: datetime) -> bool:
    """Keep the lease; False when somebody has declared this worker dead."""
    stmt = update(workers).where(w.id == worker, ALIVE).values(renewed_at=now, lease_until=now + lease)
    return bool(tx.execute(stmt).rowcount)


def stop(tx: Tx, worker: str, now: datetime) -> None:
    """Good-bye: the worker holds nothing any more."""
    tx.execute(update(workers).where(w.id == worker, ALIVE).values(state=WorkerState.STOPPED, stopped_at=now))


def expired(tx: Tx, now: datetime, but: str | None) -> list[str]:
    """Live workers whose lease ran out. A lease that lies too far ahead was written before the clock was set back."""
    ahead = w.lease_until > now + AHEAD
    stmt = select(w.id).where(ALIVE, or_(w.lease_until < now, ahead))
    return [one for one in tx.execute(stmt.order_by(w.lease_until)).scalars() if one != but]


def bury(tx: Tx, worker: str, now: datetime) -> bool:
    """Declare a worker dead before its jobs are taken; its next renewal will tell it. False if it lives after all."""
    late = and_(w.id == worker, ALIVE, or_(w.lease_until < now, w.lease_until > now + AHEAD))
    tx.execute(update(workers).where(late).values(state=WorkerState.DEAD, stopped_at=now))
    return not lives(tx, worker)


def lives(tx: Tx, worker: str) -> bool:
    """Whether a worker is up as far as anybody knows."""
    return tx.execute(select(w.id).where(w.id == worker, ALIVE)).first() is not None


def any_alive(tx: Tx, now: datetime) -> bool:
    """Whether a worker process is alive; agents of hosts are not workers."""
    alive = select(w.id).where(ALIVE, w.lease_until >= now, w.host_id.is_(None))
    return tx.execute(alive.limit(1)).first() is not None


def dead_with_jobs(tx: Tx, limit: int = 20) -> list[str]:
    """Workers that are gone but still own running jobs: a rescue that was cut short."""
    gone = w.state != WorkerState.ALIVE
    owns = select(queue.c.id).where(queue.c.lease_owner == w.id, queue.c.state == "running").exists()
    return list(tx.execute(select(w.id).where(gone, owns).limit(limit)).scalars())


def next_expiry(tx: Tx, but: str | None) -> datetime | None:
    """When the first lease of another worker runs out."""
    stmt = select(func.min(w.lease_until)).where(ALIVE)
    return tx.execute(stmt if but is None else stmt.where(w.id != but)).scalar()


def live_routes(tx: Tx, now: datetime) -> set[str]:
    """Everything that some live worker can run."""
    return {
        one for routes in tx.execute(select(w.routes).where(ALIVE, w.lease_until >= now)).scalars() for one in routes
    }


def forget(tx: Tx, before: datetime) -> int:
    """Delete rows of workers that went long ago."""
    return tx.execute(delete(workers).where(w.state != WorkerState.ALIVE, w.stopped_at < before)).rowcount


def beat(tx: Tx, worker: str, lease: timedelta) -> tuple[ClockSample, bool, dict[str, str]]:
    """One heartbeat: a sample of the database's clock, whether the lease holds, and which jobs of this worker are to be
    stopped."""
    sample = measure(tx)
    return sample, renew(tx, worker, lease, sample.time), queue.cancels(tx, worker)


def measure(tx: Tx) -> ClockSample:
    """Read the database's clock."""
    sent = stopwatch()
    now = database_now(tx)
    return ClockSample(now, sent, stopwatch())
