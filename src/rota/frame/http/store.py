"""Idempotency keys: the first request with a key runs, and whoever sends the same again gets its answer."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import and_, delete, func, select, update

from rota.core.errors import KeyInUse, KeyMismatch
from rota.db.dialect import Tx, insert_new
from rota.db.tables import idempotency_keys

LEASE = timedelta(minutes=1)  # a request that has not answered by then is dead, and may be tried again
KEPT = timedelta(hours=24)
KEYS_PER_ORG = 100_000  # the newest; a repeat that comes after so many others runs again

c = idempotency_keys.c


class State(StrEnum):
    RUNNING = "running"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that holds its key."""

    org_id: str
    key: str
    lease_until: datetime


@dataclass(frozen=True, slots=True)
class Kept:
    """The first answer. A body that held a secret is not kept."""

    status: int
    headers: dict[str, str]
    body: bytes | None


def begin(
    tx: Tx, org_id: str, key: str, route: str, fingerprint: str, now: datetime, note: dict[str, str] | None = None
) -> Ticket | Kept:
    """Take the key: a ticket for the request that may run, else the answer of the request that came before. On
    PostgreSQL waits for a transaction that has inserted the key and not ended. The note is shown to requests that come
    while this one runs."""
    ticket = Ticket(org_id, key, now + LEASE)
    new = {
        "org_id": org_id, "key": key, "route": route, "fingerprint": fingerprint, "state": State.RUNNING.value,
        "lease_until": ticket.lease_until, "created_at": now,
        "headers": note,
    }  # fmt: skip
    mine = and_(c.org_id == org_id, c.key == key)
    tx.execute(delete(idempotency_keys).where(mine, c.created_at < now - KEPT))
    while not insert_new(tx, idempotency_keys, [new], ("key",)):
        before = tx.execute(select(idempotency_keys).where(mine).with_for_update()).one_or_none()
        if before is None:
            continue  # it failed just now and let go of its key
        if (answer := answered(before, route, fingerprint)) is not None:
            return answer
        if before.lease_until > now:
            raise KeyInUse(f"Idempotency-Key {key}: the first request with it still runs; ask again in a moment")
        tx.execute(update(idempotency_keys).where(mine).values(lease_until=ticket.lease_until, headers=note))
        break
    return ticket


def find(tx: Tx, org_id: str, key: str, route: str, fingerprint: str, now: datetime) -> Kept | None:
    """The answer that is stored under the key, if any. Raises KeyMismatch if it belongs to another request."""
    stored = select(idempotency_keys).where(c.org_id == org_id, c.key == key, c.created_at >= now - KEPT)
    row = tx.execute(stored).one_or_none()
    return None if row is None else answered(row, route, fingerprint)


def answered(row: Any, route: str, fingerprint: str) -> Kept | None:
    if (row.route, row.fingerprint) != (route, fingerprint):
        raise KeyMismatch(f"Idempotency-Key {row.key}: it came before with another request; take a new one")
    return Kept(row.status, row.headers, row.body) if row.state == State.DONE else None


def renew(tx: Tx, ticket: Ticket, now: datetime) -> Ticket | None:
    """Hold the key for longer; None when it has gone to another request meanwhile."""
    longer = replace(ticket, lease_until=now + LEASE)
    stmt = update(idempotency_keys).where(held(ticket), c.state == State.RUNNING)
    return longer if tx.execute(stmt.values(lease_until=longer.lease_until)).rowcount else None


def note(tx: Tx, org_id: str, key: str) -> dict[str, str]:
    """What the request that has the key said about itself."""
    return tx.execute(select(c.headers).where(c.org_id == org_id, c.key == key)).scalar() or {}


def keep(tx: Tx, ticket: Ticket, status: int, headers: dict[str, str], body: bytes | None) -> None:
    """Remember the answer, unless the key has gone to another request meanwhile."""
    values = {"state": State.DONE, "status": status, "headers": headers, "body": body}
    tx.execute(update(idempotency_keys).where(held(ticket)).values(values))


def let_go(tx: Tx, ticket: Ticket) -> None:
    """Nothing to remember: the request failed for a reason of ours, and may be tried again."""
    tx.execute(delete(idempotency_keys).where(held(ticket)))


def prune(tx: Tx, before: datetime, limit: int) -> int:
    old = select(c.org_id, c.key).where(c.created_at < before).order_by(c.created_at).limit(limit)
    found = tx.execute(old).all()
    for org_id, key in found:
        tx.execute(delete(idempotency_keys).where(c.org_id == org_id, c.key == key))
    return len(found)


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


def held(ticket: Ticket) -> Any:
    return and_(c.org_id == ticket.org_id, c.key == ticket.key, c.lease_until == ticket.lease_until)
