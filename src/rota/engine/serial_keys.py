"""Serial keys: jobs with the same key run one after another.

A job with a serial key is inserted `blocked` and promoted when its key has no head. Each statement that takes a head
away promotes the next in the same transaction, under the advisory lock of the key. So claims read only `ready` jobs and
cannot violate the unique index of heads.
"""

from collections.abc import Collection, Iterable

from sqlalchemy import exists, literal, select

from rota.core.states import HEADS, State
from rota.db.dialect import Tx, lock_keys
from rota.db.tables import jobs
from rota.engine import statements
from rota.engine.job_states import is_in
from rota.engine.records import JobRow

c = jobs.c
REPAIR_BATCH_KEYS = 500


def promote(tx: Tx, keys: Iterable[str]) -> int:
    """Make the most urgent blocked job of each key without a head its head; returns their number. The caller holds the
    locks of the keys."""
    return len(statements.PROMOTE.run(tx, [(key,) for key in sorted(set(keys))]))


def head_of(tx: Tx, serial_key: str) -> JobRow | None:
    """Return the head of a serial key, in any state."""
    row = tx.execute(select(jobs).where(c.serial_key == serial_key, is_in(c.state, HEADS))).one_or_none()
    return None if row is None else JobRow(**row._asdict())


def keys_of(tx: Tx, ids: Collection[str]) -> set[str]:
    """Return the serial keys of jobs."""
    return set(tx.execute(select(c.serial_key).where(c.id.in_(ids), c.serial_key.is_not(None))).scalars())


def headless(tx: Tx, limit: int = REPAIR_BATCH_KEYS) -> list[str]:
    """Return serial keys with blocked jobs and no head. There should be none; maintenance checks."""
    head, waiting = jobs.alias("head"), jobs.alias("waiting")
    has_head = exists(select(literal(1)).where(head.c.serial_key == waiting.c.serial_key, is_in(head.c.state, HEADS)))
    stmt = select(waiting.c.serial_key).distinct().where(is_in(waiting.c.state, [State.BLOCKED]), ~has_head)
    return list(tx.execute(stmt.limit(limit)).scalars())


def repair(tx: Tx, keys: Collection[str]) -> int:
    """Promote a head for keys without one; returns their number."""
    lock_keys(tx, keys)
    return promote(tx, keys)
