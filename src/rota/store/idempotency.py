"""Idempotency keys: the first request with a key runs, and whoever sends the same again gets its answer."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import and_, delete, select, update

from rota.core.errors import KeyInUse, KeyMismatch
from rota.store.dialect import Tx, insert_new
from rota.store.tables import idempotency_keys

LEASE = timedelta(minutes=1)  # a request that has not answered by then is dead, and may be tried again
KEPT = timedelta(hours=24)

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
    """Take the key: a ticket for whoever may run, else the answer of the request that came before. The note is for
    those who come while it runs."""
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
        if (before.route, before.fingerprint) != (route, fingerprint):
            raise KeyMismatch(f"Idempotency-Key {key}: it came before with another request; take a new one")
        if before.state == State.DONE:
            return Kept(before.status, before.headers, before.body)
        if before.lease_until > now:
            raise KeyInUse(f"Idempotency-Key {key}: the first request with it still runs; ask again in a moment")
        tx.execute(update(idempotency_keys).where(mine).values(lease_until=ticket.lease_until, headers=note))
        break
    return ticket


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


def held(ticket: Ticket) -> Any:
    return and_(c.org_id == ticket.org_id, c.key == ticket.key, c.lease_until == ticket.lease_until)
