"""The audit log: every write by a user or program appends an entry, in the transaction that makes the write.

Commands do not append entries themselves: `Engine.audited_as` gives them a database that does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

import orjson
from sqlalchemy import delete, select

from rota.core.clock import Clock
from rota.core.errors import NotFound
from rota.core.ids import new_id
from rota.core.redact import public_task, redacted
from rota.db.connection import Database, P, R, Step
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.db.statement import BoundStatement, insert_rows
from rota.db.tables import audit_log
from rota.db.transactions import Transaction
from rota.engine import pauses
from rota.engine.extensions import Describe

FIELD_BYTES_MAX = 2000  # of the JSON of a field; larger values are replaced by their size
UNRECORDED_FIELDS = ("updated_at", "created_at", "revision", "next_slot", "words")
NO_DESCRIBERS: Mapping[str, Describe] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who changes which resource, and from where the request came."""

    org_id: str
    user_id: str
    resource: str  # as in the path: `schedules`
    verb: str  # `create`, `edit`, `delete`, or the action in the path: `pause`
    target: str | None = None  # id or name
    key_id: str | None = None
    address: str | None = None
    request_id: str | None = None
    reason: str | None = None  # as the caller stated it
    admin: bool = False  # may use resources of other users: admins, and programs at start


class AuditedDatabase:
    """Database wrapper that appends an audit log entry to every write transaction; reads pass through."""

    def __init__(
        self, db: Database, act: AuditEntry, clock: Clock, describers: Mapping[str, Describe] = NO_DESCRIBERS
    ) -> None:
        self.db, self.act, self.clock, self.describers = db, act, clock, describers
        self.url, self.survives_partition, self.writers = db.url, db.survives_partition, db.writers
        self.observer = db.observer

    async def tx(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        now = self.clock.now()

        def audited_step(tx: Tx) -> R:
            before = describe(tx, self.act, self.act.target, now, self.describers)
            result = step(tx, *args, **kwargs)
            write(tx, self.act, before, result, now, self.describers)
            return result

        return await self.db.tx(audited_step)

    async def statement(self, bound: BoundStatement[R]) -> R:
        return await self.tx(bound)

    async def read(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.db.read(step, *args, **kwargs)

    async def begin(self) -> Transaction:
        return await self.db.begin()

    def after_commit(self, action: Callable[[], None]) -> None:
        self.db.after_commit(action)

    async def close(self) -> None:
        await self.db.close()


def write(
    tx: Tx,
    act: AuditEntry,
    before: Record | None,
    result: object,
    now: datetime,
    describers: Mapping[str, Describe] = NO_DESCRIBERS,
) -> None:
    """Append an entry: all fields of a new resource, or the changed fields. A step that returns an empty list changed
    nothing."""
    if result == []:
        return
    new_ids = made_ids(result) if act.target is None else []
    resource_id = new_ids[0] if len(new_ids) == 1 else (before or {}).get("id", act.target)
    after = describe(tx, act, resource_id, now, describers)
    old, new = before or {}, after or {}
    changed = [field for field in {**old, **new} if field not in UNRECORDED_FIELDS and old.get(field) != new.get(field)]
    outcome: Record = {"count": len(result)} if isinstance(result, list) and len(new_ids) != 1 else {}
    if act.target is not None and len(jobs := made_ids(result)) == 1 and not hasattr(result, "id"):
        outcome["result"] = jobs[0]  # the job that was asked for
    if act.reason is not None:
        outcome["because"] = act.reason
    row = {
        "id": new_id(), "org_id": act.org_id, "at": now, "user_id": act.user_id, "key_id": act.key_id,
        "action": f"{act.resource}.{act.verb}", "resource": act.resource, "resource_id": resource_id,
        "before": small({field: old.get(field) for field in changed}) if before else None,
        "after": small({**{field: new.get(field) for field in changed}, **outcome}) if after or outcome else None,
        "address": act.address, "request_id": act.request_id,
    }  # fmt: skip
    insert_rows(tx, audit_log, [row])


def prune(tx: Tx, before: datetime, limit: int) -> int:
    """Delete entries older than `before`, up to `limit`; returns their number."""
    old = select(audit_log.c.id).where(audit_log.c.at < before).order_by(audit_log.c.at, audit_log.c.id).limit(limit)
    ids = tx.execute(old).scalars().all()
    if ids:
        tx.execute(delete(audit_log).where(audit_log.c.id.in_(ids)))
    return len(ids)


def describe(
    tx: Tx, act: AuditEntry, key: str | None, now: datetime, describers: Mapping[str, Describe]
) -> Record | None:
    if act.resource == "freeze":
        return pauses.freeze_of(tx, act.org_id, now)
    describer = describers.get(act.resource)
    if describer is None or key is None:
        return None
    try:
        return describer(tx, act.org_id, key)
    except NotFound:
        return None


def made_ids(result: object) -> list[str]:
    """Return the ids in the result of a step: an id, a record, a tuple that begins with one, or a list of them."""
    items = result if isinstance(result, list) else [result[0] if isinstance(result, tuple) else result]
    ids = (item if isinstance(item, str) else getattr(item, "id", None) for item in items)
    return [item for item in ids if item is not None]


def small(fields: Record) -> Record | None:
    """Return the fields without secrets and nulls; values over FIELD_BYTES_MAX are replaced by their size."""
    safe = redacted(public_task({name: value for name, value in fields.items() if value is not None}))
    sizes = {name: len(orjson.dumps(value)) for name, value in safe.items()}
    return {
        name: value if sizes[name] <= FIELD_BYTES_MAX else f"… ({sizes[name]} bytes)" for name, value in safe.items()
    }
