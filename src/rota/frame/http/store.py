"""SQL of idempotency keys: a lease for the first request, its stored answer for repeats."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import ColumnElement, and_, delete, func, select, update

from rota.core.errors import KeyInUse, KeyMismatch
from rota.db.dialect import ResultRow, Tx
from rota.db.statement import insert_new
from rota.db.tables import idempotency_keys

KEY_LEASE = timedelta(
    minutes=1
)  # an unanswered request is presumed dead after this time, and its key can be taken over
KEY_RETENTION = timedelta(hours=24)
KEYS_PER_ORG = 100_000  # older keys are pruned

c = idempotency_keys.c


class State(StrEnum):
    RUNNING = "running"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class KeyLease:
    """The right of one request to execute under a key."""

    org_id: str
    key: str
    lease_until: datetime


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The answer of the first request; `body` is None if it contained a secret."""

    status: int
    headers: dict[str, str]
    body: bytes | None


def begin(
    tx: Tx, org_id: str, key: str, route: str, fingerprint: str, now: datetime, note: dict[str, str] | None = None
) -> KeyLease | StoredAnswer:
    """Lease the key, or return the stored answer of an earlier request. Raises KeyInUse while that request runs,
    KeyMismatch if it was another request. On PostgreSQL waits for an open transaction with the key. `note_of` returns
    the note while the request runs."""
    lease = KeyLease(org_id, key, now + KEY_LEASE)
    new = {
        "org_id": org_id,
        "key": key,
        "route": route,
        "fingerprint": fingerprint,
        "state": State.RUNNING.value,
        "lease_until": lease.lease_until,
        "created_at": now,
        "headers": note,
    }
    this_key = and_(c.org_id == org_id, c.key == key)
    tx.execute(delete(idempotency_keys).where(this_key, c.created_at < now - KEY_RETENTION))
    while not insert_new(tx, idempotency_keys, [new], ("key",)):
        before = tx.execute(select(idempotency_keys).where(this_key).with_for_update()).one_or_none()
        if before is None:
            continue  # the earlier request has just released the key
        if (answer := answered(before, route, fingerprint)) is not None:
            return answer
        if before.lease_until > now:
            raise KeyInUse(f"the first request with Idempotency-Key {key} is still running; try again later")
        tx.execute(update(idempotency_keys).where(this_key).values(lease_until=lease.lease_until, headers=note))
        break
    return lease


def find(tx: Tx, org_id: str, key: str, route: str, fingerprint: str, now: datetime) -> StoredAnswer | None:
    """Return the answer stored under the key, if any. Raises KeyMismatch if it belongs to another request."""
    stored = select(idempotency_keys).where(c.org_id == org_id, c.key == key, c.created_at >= now - KEY_RETENTION)
    row = tx.execute(stored).one_or_none()
    return None if row is None else answered(row, route, fingerprint)


def answered(row: ResultRow, route: str, fingerprint: str) -> StoredAnswer | None:
    if (row.route, row.fingerprint) != (route, fingerprint):
        raise KeyMismatch(f"Idempotency-Key {row.key} was already used for another request; use a new key")
    return StoredAnswer(row.status, row.headers, row.body) if row.state == State.DONE else None


def renew(tx: Tx, lease: KeyLease, now: datetime) -> KeyLease | None:
    """Extend the lease; None if it has expired and another request holds the key."""
    longer = replace(lease, lease_until=now + KEY_LEASE)
    stmt = update(idempotency_keys).where(held(lease), c.state == State.RUNNING)
    return longer if tx.execute(stmt.values(lease_until=longer.lease_until)).rowcount else None


def note_of(tx: Tx, org_id: str, key: str) -> dict[str, str]:
    """Return the note of the request that holds the key."""
    return tx.execute(select(c.headers).where(c.org_id == org_id, c.key == key)).scalar() or {}


def store_answer(tx: Tx, lease: KeyLease, status: int, headers: dict[str, str], body: bytes | None) -> None:
    """Store the answer. No-op if another request holds the key."""
    values = {"state": State.DONE, "status": status, "headers": headers, "body": body}
    tx.execute(update(idempotency_keys).where(held(lease)).values(values))


def release(tx: Tx, lease: KeyLease) -> None:
    """Release the key without an answer: the request can be repeated."""
    tx.execute(delete(idempotency_keys).where(held(lease)))


def prune(tx: Tx, before: datetime, limit: int) -> int:
    old = select(c.org_id, c.key).where(c.created_at < before).order_by(c.created_at).limit(limit)
    rows = tx.execute(old).all()
    for org_id, key in rows:
        tx.execute(delete(idempotency_keys).where(c.org_id == org_id, c.key == key))
    return len(rows)


def prune_excess(tx: Tx, limit: int) -> int:
    """Delete keys of orgs that have more than their share, the oldest first; returns how many."""
    deleted = 0
    counts = select(c.org_id, func.count() - KEYS_PER_ORG).group_by(c.org_id).having(func.count() > KEYS_PER_ORG)
    for org_id, excess in tx.execute(counts).all():
        oldest = select(c.key).where(c.org_id == org_id).order_by(c.created_at).limit(min(excess, limit - deleted))
        keys = tx.execute(oldest).scalars().all()
        tx.execute(delete(idempotency_keys).where(c.org_id == org_id, c.key.in_(keys)))
        deleted += len(keys)
    return deleted


def held(lease: KeyLease) -> ColumnElement[bool]:
    return and_(c.org_id == lease.org_id, c.key == lease.key, c.lease_until == lease.lease_until)
