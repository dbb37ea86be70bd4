"""Stored metrics: a snapshot in the row of each worker, and totals of processes that have no such row.

The sum over all sources counts everything once: a worker that ended is merged into the total ENDED some minutes later,
so that Prometheus reads its last numbers under its own name, and what servers count is added to the total SERVERS.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import select, update

from rota.core.states import WorkerState
from rota.db.commit_actions import on_commit
from rota.db.dialect import Tx, lock_keys, upsert
from rota.db.tables import metric_totals, workers
from rota.engine.metrics import ENDED, SERVERS, Metrics, Series, Values, add_to, dump, load

MERGE_AFTER = timedelta(minutes=5)  # after a worker ended; longer than the usual interval of scrapes
MERGE_BATCH_ROWS = 200

w, t = workers.c, metric_totals.c


def snapshot_of(tx: Tx, worker: str) -> object:
    """Return the stored snapshot of a worker; None without one."""
    return tx.execute(select(w.metrics).where(w.id == worker)).scalar()


def by_source(tx: Tx) -> dict[str, Values]:
    """Return all stored metrics: of workers that are alive or ended lately by their id, and the totals."""
    rows = tx.execute(select(w.id, w.metrics).where(w.metrics.is_not(None), ~w.metrics_merged).order_by(w.id))
    totals = tx.execute(select(t.source, t.metrics).order_by(t.source))
    return {row[0]: load(row[1]) for row in (*rows, *totals)}


def merge_ended(tx: Tx, now: datetime) -> int:
    """Add the metrics of workers that ended MERGE_AFTER ago to the total ENDED, once each; returns their number."""
    ended = select(w.id, w.metrics).where(
        w.state != WorkerState.ALIVE, w.stopped_at < now - MERGE_AFTER, w.metrics.is_not(None), ~w.metrics_merged
    )
    rows = list(tx.execute(ended.order_by(w.id).limit(MERGE_BATCH_ROWS).with_for_update(skip_locked=True)))
    if rows:
        merged: Values = {}
        for row in rows:
            add_to(merged, load(row.metrics))
        tx.execute(update(workers).where(w.id.in_([row.id for row in rows])).values(metrics_merged=True))
        add_to_total(tx, ENDED, merged)
    return len(rows)


def add_to_total(tx: Tx, source: str, values: Mapping[Series, Sequence[float]]) -> None:
    """Add series to the total of a source."""
    lock_keys(tx, [f"metrics:{source}"])
    total = load(tx.execute(select(t.metrics).where(t.source == source)).scalar())
    add_to(total, values)
    stmt = upsert(tx, metric_totals).values(source=source, metrics=dump(total))
    tx.execute(stmt.on_conflict_do_update(index_elements=["source"], set_={"metrics": stmt.excluded.metrics}))


def store_of_server(tx: Tx, metrics: Metrics) -> None:
    """Add what a process without a worker has counted to the total SERVERS. What it counts until the commit stays for
    the next time."""
    values = metrics.current()
    if values:
        add_to_total(tx, SERVERS, values)
        on_commit(tx, lambda _: metrics.leave(values))
