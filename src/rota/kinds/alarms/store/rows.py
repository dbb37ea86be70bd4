"""Alarms, their channels and when they are evaluated: insert, read, change, delete."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, or_, select, update

from rota.core.alarms import RULES, EventState, parse_when
from rota.core.errors import Conflict, NotFound
from rota.core.ids import new_id
from rota.core.redact import redacted
from rota.db.dialect import Tx
from rota.db.paging import Page, Record, dict_of, page_by
from rota.db.statement import insert_new, insert_rows
from rota.db.tables import alarm_channels, alarm_checks, alarm_events, alarms, users

ALARMS_MAX = 500  # of an org
a, c, k, e = alarms.c, alarm_channels.c, alarm_checks.c, alarm_events.c
HIDDEN_OF_CHANNEL = ("secret", "org_id", "test_at")


# channels


def insert_channel(tx: Tx, org_id: str, fields: Mapping[str, object], now: datetime) -> str:
    """Store a channel; returns its id. Raises Conflict for a name that exists."""
    times = {"test_at": next_test(fields, now), "created_at": now, "updated_at": now}
    empty = {"last_delivery_at": None, "last_status": None, "last_answer": None}
    row = {"id": new_id(), "org_id": org_id, **fields, **empty, **times}
    if not insert_new(tx, alarm_channels, [row], ("id",)):
        raise Conflict(f"alarm channel {fields['name']!r} already exists; choose another name or edit that channel")
    return str(row["id"])


def channel(tx: Tx, org_id: str, key: str) -> Any:
    """Return the row of a channel by its name or id, with its secret. Raises NotFound."""
    stmt = select(alarm_channels).where(c.org_id == org_id, or_(c.name == key, c.id == key)).order_by(c.name != key)
    row = tx.execute(stmt).first()
    if row is None:
        raise NotFound(f"alarm channel {key!r} not found")
    return row


def describe_channel(tx: Tx, org_id: str, key: str) -> Record:
    """Return a channel without its secret. Raises NotFound."""
    return channel_record(channel(tx, org_id, key))


def channel_record(row: Any) -> Record:
    """Return a channel as it is shown: without its secret, and without passwords and tokens of its address."""
    record = {name: value for name, value in dict_of(row).items() if name not in HIDDEN_OF_CHANNEL}
    return {**record, "address": redacted(row.address)}


def list_channels(tx: Tx, org_id: str) -> list[Record]:
    rows = tx.execute(select(alarm_channels).where(c.org_id == org_id).order_by(c.name))
    return [channel_record(row) for row in rows]


def change_channel(tx: Tx, org_id: str, key: str, fields: Mapping[str, object], now: datetime) -> str:
    """Change a channel; returns its id."""
    row = channel(tx, org_id, key)
    times = {"test_at": next_test(fields, now)} if "test_seconds" in fields else {}
    tx.execute(update(alarm_channels).where(c.id == row.id).values(**fields, **times, updated_at=now))
    return str(row.id)


def remove_channel(tx: Tx, org_id: str, key: str) -> None:
    """Delete a channel. Raises Conflict if alarms use it."""
    row = channel(tx, org_id, key)
    stmt = select(a.name, a.notify).where(a.org_id == org_id).order_by(a.name).with_for_update(read=True)
    users = [name for name, notify in tx.execute(stmt) if row.id in notify]
    if users:
        raise Conflict(f"alarm channel {row.name!r} is used by {', '.join(users[:5])}; change these alarms first")
    tx.execute(delete(alarm_channels).where(c.id == row.id))


def channels_by_id(tx: Tx, org_id: str, ids: Collection[str]) -> list[Any]:
    return list(tx.execute(select(alarm_channels).where(c.org_id == org_id, c.id.in_(sorted(ids))).order_by(c.name)))


def channel_ids(tx: Tx, org_id: str, names: Collection[str]) -> dict[str, str]:
    """Return the ids of channels by name; unknown names are left out. The channels stay until the transaction ends."""
    stmt = select(c.name, c.id).where(c.org_id == org_id, c.name.in_(sorted(names))).order_by(c.id)
    return {row.name: row.id for row in tx.execute(stmt.with_for_update(read=True))}


def due_tests(tx: Tx, now: datetime) -> list[Any]:
    """Return channels whose scheduled test is due."""
    stmt = select(alarm_channels).where(c.test_at.is_not(None), c.test_at <= now).order_by(c.test_at).limit(100)
    return list(tx.execute(stmt))


def claim_test(tx: Tx, row: Any, now: datetime) -> bool:
    """Set the next test of a channel; returns False if another process has done so."""
    following = now + timedelta(seconds=row.test_seconds)
    stmt = update(alarm_channels).where(c.id == row.id, c.test_at == row.test_at).values(test_at=following)
    return bool(tx.execute(stmt).rowcount)


def record_delivery(tx: Tx, channel_id: str, status: str, answer: str, now: datetime) -> None:
    values = {"last_delivery_at": now, "last_status": status, "last_answer": answer[:500]}
    tx.execute(update(alarm_channels).where(c.id == channel_id).values(values))


def next_test(fields: Mapping[str, Any], now: datetime) -> datetime | None:
    seconds = fields.get("test_seconds")
    return None if seconds is None else now + timedelta(seconds=seconds)


# alarms


def insert_alarm(tx: Tx, org_id: str, fields: Mapping[str, object], now: datetime) -> str:
    """Store an alarm and let it be evaluated at once; returns its id. Raises Conflict for a name that exists."""
    if len(tx.execute(select(a.id).where(a.org_id == org_id).limit(ALARMS_MAX)).all()) >= ALARMS_MAX:
        raise Conflict(f"the org has {ALARMS_MAX} alarms already; delete one that is not used")
    row = {"id": new_id(), "org_id": org_id, **fields, "created_at": now, "updated_at": now}
    if not insert_new(tx, alarms, [row], ("id",)):
        raise Conflict(f"alarm {fields['name']!r} already exists; choose another name or edit that alarm")
    if not is_local(row["rule"]):
        set_check(tx, str(row["id"]), now)
    return str(row["id"])


def is_local(rule: object) -> bool:
    """Whether a rule is measured on each machine."""
    kind = parse_when(rule).type
    return kind is not None and kind.local


def alarm(tx: Tx, org_id: str, key: str, *, lock: bool = False) -> Any:
    """Return the row of an alarm by its name or id. Raises NotFound."""
    stmt = select(alarms).where(a.org_id == org_id, or_(a.name == key, a.id == key)).order_by(a.name != key)
    row = tx.execute(stmt.with_for_update() if lock else stmt).first()
    if row is None:
        raise NotFound(f"alarm {key!r} not found")
    return row


def describe_alarm(tx: Tx, org_id: str, key: str) -> Record:
    """Return an alarm with the names of its channels and the number of its open events. Raises NotFound."""
    return alarm_record(tx, alarm(tx, org_id, key))


def list_alarms(tx: Tx, org_id: str) -> list[Record]:
    return [alarm_record(tx, row) for row in tx.execute(select(alarms).where(a.org_id == org_id).order_by(a.name))]


def alarm_record(tx: Tx, row: Any) -> Record:
    names = {channel.id: channel.name for channel in channels_by_id(tx, row.org_id, row.notify)}
    is_open = select(e.id).where(e.alarm_id == row.id, e.state != EventState.RESOLVED)
    record = {name: value for name, value in dict_of(row).items() if name not in ("org_id", "rule", "scope")}
    return record | {
        "when": row.rule,
        "on": row.scope,
        "notify": [names[channel_id] for channel_id in row.notify if channel_id in names],
        "firing": len(tx.execute(is_open).all()),
    }


def change_alarm(tx: Tx, org_id: str, key: str, fields: Mapping[str, object], now: datetime) -> str:
    """Change an alarm and let it be evaluated at once. Events of another rule or scope are resolved. Returns its id."""
    row = alarm(tx, org_id, key, lock=True)
    tx.execute(update(alarms).where(a.id == row.id).values(**fields, updated_at=now))
    if any(name in fields and fields[name] != getattr(row, name) for name in ("rule", "scope", "enabled")):
        resolve_all(tx, row.id, now)
    tx.execute(delete(alarm_checks).where(k.alarm_id == row.id))
    if not is_local(fields.get("rule", row.rule)):
        set_check(tx, row.id, now)
    return str(row.id)


def resolve_all(tx: Tx, alarm_id: str, now: datetime) -> None:
    is_open = (e.alarm_id == alarm_id, e.state != EventState.RESOLVED)
    values = {
        "state": EventState.RESOLVED.value,
        "resolved_at": now,
        "notify_at": None,
        "text": "the alarm was changed",
    }
    tx.execute(update(alarm_events).where(*is_open).values(values))


def remove_alarm(tx: Tx, org_id: str, key: str) -> None:
    """Delete an alarm with its events; its deliveries stay in the ledger."""
    row = alarm(tx, org_id, key, lock=True)
    tx.execute(delete(alarm_events).where(e.alarm_id == row.id))
    tx.execute(delete(alarm_checks).where(k.alarm_id == row.id))
    tx.execute(delete(alarms).where(a.id == row.id))


def declared(tx: Tx, org_id: str, source: str) -> dict[str, Record]:
    """Return the alarms that a program declares, by name."""
    rows = tx.execute(select(alarms).where(a.org_id == org_id, a.source == source))
    return {row.name: alarm_record(tx, row) for row in rows}


# evaluation


def set_check(tx: Tx, alarm_id: str, now: datetime, place: str = "") -> None:
    insert_new(
        tx, alarm_checks, [{"alarm_id": alarm_id, "place": place, "next_at": now, "read_until": now}], ("place",)
    )


def without_check(tx: Tx, place: str) -> list[str]:
    """Return the ids of alarms that are measured on each machine, and not yet evaluated on this one."""
    known = select(k.alarm_id).where(k.alarm_id == a.id, k.place == place).exists()
    local = or_(*(a.rule.startswith(name) for name, kind in RULES.items() if kind.local))
    return list(tx.execute(select(a.id).where(local, ~known)).scalars())


def due_checks(tx: Tx, now: datetime, place: str, limit: int = 500) -> list[Any]:
    """Return the evaluations that are due here, with their alarms: those of all machines and those of `place`."""
    stmt = (
        select(alarms, k.place, k.next_at, k.read_until)
        .select_from(alarm_checks.join(alarms, a.id == k.alarm_id))
        .where(k.next_at <= now, k.place.in_(["", place]), a.enabled)
        .order_by(k.next_at)
        .limit(limit)
    )
    return list(tx.execute(stmt))


def claim_check(tx: Tx, check: Any, next_at: datetime, read_until: datetime) -> bool:
    """Set when an alarm is evaluated next; returns False if another process has evaluated it since it was read."""
    same = (k.alarm_id == check.id, k.place == check.place, k.next_at == check.next_at)
    stmt = update(alarm_checks).where(*same).values(next_at=next_at, read_until=read_until)
    return bool(tx.execute(stmt).rowcount)


def claim_step(tx: Tx, name: str, period: timedelta, now: datetime) -> bool:
    """Return whether a step that is due once per period for the whole installation is this process's to do."""
    set_check(tx, name, now)
    due = (k.alarm_id == name, k.place == "", k.next_at <= now)
    return bool(tx.execute(update(alarm_checks).where(*due).values(next_at=now + period)).rowcount)


# events


def list_events(
    tx: Tx,
    org_id: str,
    *,
    limit: int = 50,
    cursor: str | None = None,
    state: str | None = None,
    alarm: str | None = None,
) -> Page:
    """Return a page of alarm events, newest first."""
    stmt = select(alarm_events, a.name.label("alarm"), a.rule.label("when")).join(alarms, a.id == e.alarm_id)
    stmt = stmt.where(e.org_id == org_id)
    if state is not None:
        stmt = stmt.where(e.state == state)
    if alarm is not None:
        stmt = stmt.where(or_(a.name == alarm, a.id == alarm))
    return page_by(tx, stmt, e.id, limit, cursor, event_record, descending=True)


def open_events(tx: Tx, org_id: str, limit: int = 50) -> list[Record]:
    """Return the alarm events that are not resolved, newest first."""
    stmt = select(alarm_events, a.name.label("alarm"), a.rule.label("when")).join(alarms, a.id == e.alarm_id)
    stmt = stmt.where(e.org_id == org_id, e.state != EventState.RESOLVED).order_by(e.id.desc()).limit(limit)
    return [event_record(row) for row in tx.execute(stmt)]


def event(tx: Tx, org_id: str, event_id: str) -> Record:
    """Return an alarm event. Raises NotFound."""
    stmt = select(alarm_events, a.name.label("alarm"), a.rule.label("when")).join(alarms, a.id == e.alarm_id)
    row = tx.execute(stmt.where(e.org_id == org_id, e.id == event_id)).first()
    if row is None:
        raise NotFound(f"alarm event {event_id!r} not found")
    return event_record(row)


def event_record(row: Any) -> Record:
    hidden = ("org_id", "place", "notify_at", "measured_at")
    return {name: value for name, value in dict_of(row).items() if name not in hidden}


def acknowledge(tx: Tx, org_id: str, event_id: str, user_id: str, note: str | None, now: datetime) -> str:
    """Acknowledge a firing event in the name of a user: it is not repeated. Raises NotFound, or Conflict if it is
    resolved."""
    by = tx.execute(select(users.c.name).where(users.c.id == user_id)).scalar_one()
    values = {"state": EventState.ACKNOWLEDGED.value, "acknowledged_at": now, "acknowledged_by": by, "note": note}
    is_open = (e.org_id == org_id, e.id == event_id, e.state != EventState.RESOLVED)
    if not tx.execute(update(alarm_events).where(*is_open).values(**values, notify_at=None)).rowcount:
        event(tx, org_id, event_id)
        raise Conflict(f"alarm event {event_id} is resolved already")
    return event_id


def prune_events(tx: Tx, before: datetime, limit: int) -> int:
    """Delete events that were resolved before `before`; returns their number."""
    old = select(e.id).where(e.state == EventState.RESOLVED, e.resolved_at < before).limit(limit)
    ids = list(tx.execute(old).scalars())
    if ids:
        tx.execute(delete(alarm_events).where(e.id.in_(ids)))
    return len(ids)


def insert_event(tx: Tx, row: Mapping[str, object]) -> None:
    insert_rows(tx, alarm_events, [dict(row)])
