"""The audit log: each write of a person or a program leaves a line there, in the transaction that makes it.

A command does not have to remember this. It is given a database that does: see `Engine.audited_as`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import orjson

from rota.core.clock import Clock
from rota.core.errors import NotFound
from rota.core.ids import new_id
from rota.core.redact import public_task, redacted
from rota.db.connection import Database, P, R, Step
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.db.transactions import Transaction
from rota.engine import audit_rows, reports
from rota.engine.extensions import Describe

LARGE = 2000  # bytes of JSON of one field that are kept
NOISE = ("updated_at", "created_at", "revision", "next_slot", "words")
DESCRIBERS: Mapping[str, Describe] = {  # of resources before and after a change; slices add their own
    "schedules": reports.schedule,
    "queues": reports.queue,
}


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who is about to change what, and from where they ask."""

    org_id: str
    user_id: str
    resource: str  # as in the path: `schedules`
    verb: str  # `create`, `edit`, `delete`, or what the path says: `pause`
    target: str | None = None  # id or name
    key_id: str | None = None
    address: str | None = None
    request_id: str | None = None
    reason: str | None = None  # why, in the words of whoever does it
    admin: bool = False  # whether they may use what belongs to others: admins, and programs at their start


class AuditedDatabase:
    """A database whose transactions tell the audit log what they did. Reads are nobody's business."""

    def __init__(
        self, db: Database, act: AuditEntry, clock: Clock, describers: Mapping[str, Describe] = DESCRIBERS
    ) -> None:
        self.db, self.act, self.clock, self.describers = db, act, clock, describers
        self.url, self.survives_partition, self.writers = db.url, db.survives_partition, db.writers

    async def tx(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        now = self.clock.now()

        def told(tx: Tx) -> R:
            before = describe(tx, self.act, self.act.target, now, self.describers)
            result = step(tx, *args, **kwargs)
            write(tx, self.act, before, result, now, self.describers)
            return result

        return await self.db.tx(told)

    statement = tx

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
    describers: Mapping[str, Describe] = DESCRIBERS,
) -> None:
    """One line: of a thing that was made all of it, of a change only what differs. An empty list did nothing."""
    if result == []:
        return
    made = made_ids(result) if act.target is None else []
    known = made[0] if len(made) == 1 else (before or {}).get("id", act.target)
    after = describe(tx, act, known, now, describers)
    old, new = before or {}, after or {}
    changed = [field for field in {**old, **new} if field not in NOISE and old.get(field) != new.get(field)]
    outcome: Record = {"count": len(result)} if isinstance(result, list) and len(made) != 1 else {}
    if act.target is not None and len(jobs := made_ids(result)) == 1 and not hasattr(result, "id"):
        outcome["result"] = jobs[0]  # the job that was asked for
    if act.reason is not None:
        outcome["because"] = act.reason
    line = {
        "id": new_id(), "org_id": act.org_id, "at": now, "user_id": act.user_id, "key_id": act.key_id,
        "action": f"{act.resource}.{act.verb}", "resource": act.resource, "resource_id": known,
        "before": small({field: old.get(field) for field in changed}) if before else None,
        "after": small({**{field: new.get(field) for field in changed}, **outcome}) if after or outcome else None,
        "address": act.address, "request_id": act.request_id,
    }  # fmt: skip
    audit_rows.append(tx, line)


def describe(
    tx: Tx, act: AuditEntry, key: str | None, now: datetime, describers: Mapping[str, Describe]
) -> Record | None:
    if act.resource == "freeze":
        return reports.freeze(tx, act.org_id, now)
    describer = describers.get(act.resource)
    if describer is None or key is None:
        return None
    try:
        return describer(tx, act.org_id, key)
    except NotFound:
        return None


def made_ids(result: object) -> list[str]:
    """The ids in what a step returned: an id, a record, an id with something beside it, or a list of them."""
    items = result if isinstance(result, list) else [result[0] if isinstance(result, tuple) else result]
    found = (one if isinstance(one, str) else getattr(one, "id", None) for one in items)
    return [one for one in found if one is not None]


def small(fields: Record) -> Record | None:
    """Without secrets, nulls and what is too large to keep."""
    safe = redacted(public_task({name: value for name, value in fields.items() if value is not None}))
    sizes = {name: len(orjson.dumps(value)) for name, value in safe.items()}
    return {name: value if sizes[name] <= LARGE else f"… ({sizes[name]} bytes)" for name, value in safe.items()}
