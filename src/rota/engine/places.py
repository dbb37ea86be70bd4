"""Places of a key: at most N jobs of the key run at once.

A job holds a place while its row has `place_key`, in any state. That column is set only under the lock of the key,
after counting the rows that have it, so that no more than the limit ever have it; and it goes with the row, whatever
becomes of the worker. A job without a free place waits (`place_wanted`) until the end of another hands its place on.
"""

from collections.abc import Collection, Iterable
from datetime import datetime

from sqlalchemy import and_, func, select

from rota.core.states import State
from rota.db.dialect import Tx, lock_keys, notify
from rota.db.tables import jobs
from rota.engine import flow_statements
from rota.engine.job_states import is_in

REPAIR_BATCH_KEYS = 500

c = jobs.c


def lock_places(tx: Tx, keys: Iterable[str]) -> None:
    """Lock the places of keys until the transaction ends."""
    lock_keys(tx, {place_lock(key) for key in keys})


def place_lock(key: str) -> str:
    """Return the key to lock for the places of a key."""
    return f"place:{key}"


def free_places(tx: Tx, keys: Collection[str], now: datetime) -> int:
    """Hand on the places of jobs that this transaction deleted or moved; returns the number of jobs that became ready.
    The keys are locked first: jobs that began to wait before are seen here, and later ones see the free places."""
    if not keys:
        return 0
    lock_places(tx, keys)
    return hand_on_places(tx, keys, now)


def hand_on_places(tx: Tx, keys: Iterable[str], now: datetime) -> int:
    """Give free places to the jobs that wait for them, the most urgent first, and make these ready; returns their
    number. The caller holds the locks of the keys."""
    count, left = 0, set(keys)
    while left:  # each round hands on one place of each key
        left = {key for (key,) in flow_statements.HAND_ON_PLACES.run(tx, [(key,) for key in sorted(left)], now=now)}
        count += len(left)
    if count:
        notify(tx, "ready")
    return count


def starving_keys(tx: Tx) -> list[str]:
    """Return keys with waiting jobs and a free place. There should be none, except after jobs were parked; maintenance
    checks."""
    holder = jobs.alias("holder")
    taken = select(func.count()).where(holder.c.place_key == c.place_wanted).scalar_subquery()
    waiting = and_(c.place_wanted.is_not(None), is_in(c.state, [State.RETRY]), taken < c.place_limit)
    return list(tx.execute(select(c.place_wanted).distinct().where(waiting).limit(REPAIR_BATCH_KEYS)).scalars())
