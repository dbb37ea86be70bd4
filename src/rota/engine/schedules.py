"""Schedules with their clocks: create, read, edit, delete.

Every change of a schedule's slots locks its clock row first, so fire, edit, resume, backfill and retry of one schedule
are serialised; the primary key of `slots` rejects what is left.
"""

import functools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    and_,
    bindparam,
    delete,
    false,
    func,
    literal_column,
    or_,
    select,
    true,
    update,
)

from rota.core.errors import Conflict, NotFound, StaleRevision
from rota.core.freeze import FreezeWindow
from rota.core.kinds import traits_of
from rota.core.model import DueSchedule, Schedule
from rota.core.plan import next_run_at, passed_gap
from rota.core.states import Condition, State, Status, Verdict
from rota.core.timing import stored
from rota.db import tables
from rota.db.dialect import Query, Tx, escape_like, lock_keys, notify
from rota.db.statement import Statement, compiled, insert_columns, insert_rows
from rota.db.tables import clocks, orgs, schedule_stats, schedule_tags, schedules, trigger_spans
from rota.engine import catch_ups, freezes, grants, jobs, slot_order, slots
from rota.engine.schedule_rows import NewRows, clock_row, new_rows, row_of, schedule_of, span_row

s, k, tagged = schedules.c, clocks.c, schedule_tags.c
LIVING = s.deleted_at.is_(None)
INSERT_ROWS = 500  # schedules that one statement inserts; other requests run between two statements
STATEMENTS_MAX = 500  # combinations of filters whose statement is kept

FilterShape = tuple[frozenset[str], bool | None, bool | None, bool]


def insert(tx: Tx, new: Sequence[Schedule], now: datetime, rows: NewRows | None = None) -> None:
    """Store schedules with their clocks, counters and trigger spans; all or none. `rows` are those of `new_rows`;
    grants are read from `new`, as they may have been minted since. Raises Conflict for a name that exists."""
    rows = rows or new_rows(new, now)
    rows.columns["grant_id"] = [schedule.grant_id for schedule in new]
    refused = Counter(schedule.name for schedule in new)
    zero = {"failure_count": 0, "skipped_count": 0}
    for start in range(0, len(new), INSERT_ROWS):
        part = slice(start, start + INSERT_ROWS)
        columns = {name: values[part] for name, values in rows.columns.items()}
        refused -= Counter(name for (name,) in insert_columns(tx, schedules, columns, ("name",)))
    for name in refused:
        raise Conflict(f"schedule {name!r} already exists; choose another name or edit that schedule")
    for start in range(0, len(new), INSERT_ROWS):
        part = slice(start, start + INSERT_ROWS)
        insert_rows(tx, clocks, rows.clocks[part])
        insert_rows(tx, schedule_stats, [{"schedule_id": schedule.id, **zero} for schedule in new[part]])
        insert_rows(tx, trigger_spans, [span for span in rows.spans[part] if span is not None])
    set_tags(tx, None, new)
    if any(schedule.timing.after for schedule in new):
        slot_order.check(tx, new[0].org_id, new)
    notify(tx, "clocks")


def get(tx: Tx, org_id: str, key: str) -> Schedule:
    """Return a schedule of an org by its id or name. Raises NotFound."""
    row = tx.execute(select(schedules).where(by_id_or_name(org_id, key)).order_by(s.id != key)).first()
    if row is None:
        raise NotFound(f"schedule {key!r} not found")
    return schedule_of(row, readable=False)


def by_id_or_name(org_id: str, key: str) -> ColumnElement[bool]:
    """Match a schedule of an org by its id or name; `ORDER BY id <> key` puts the id first. Both branches of the OR are
    complete conditions: SQLite's planner then uses an index for each, and otherwise reads all schedules."""
    of_org = and_(s.org_id == org_id, LIVING)
    return or_(and_(of_org, s.id == key), and_(of_org, s.name == key))


def exists(tx: Tx, org_id: str, schedule_id: str) -> bool:
    """Return whether a schedule exists and is not deleted."""
    return tx.execute(select(s.id).where(s.id == schedule_id, s.org_id == org_id, LIVING)).first() is not None


def grants_of(tx: Tx, ids: Collection[str]) -> list[str]:
    """Return the ids of the grants that these schedules run under."""
    if not ids:
        return []
    stmt = select(s.grant_id).where(s.id.in_(ids), s.grant_id.is_not(None)).distinct()
    return list(tx.execute(stmt).scalars())


def declared_by(tx: Tx, org_id: str, source: str) -> list[Schedule]:
    """Return the schedules that a program declared."""
    return [
        schedule_of(row) for row in tx.execute(select(schedules).where(s.org_id == org_id, s.source == source, LIVING))
    ]


@dataclass(frozen=True, slots=True)
class ScheduleFilters:
    """Which schedules are listed, counted or changed; None does not filter."""

    name: str | None = None  # a part of it
    kind: str | None = None
    tag: str | None = None
    enabled: bool | None = None
    paused: bool | None = None
    condition: str | None = None
    targets: Sequence[str] | None = None
    ids: Sequence[str] | None = None

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of a statement with `conditions`, beside `org_id`."""
        name = None if self.name is None else f"%{escape_like(self.name)}%"
        targets = None if self.targets is None else list(self.targets)
        ids = None if self.ids is None else list(self.ids)
        values = {
            "name": name, "kind": self.kind, "tag": self.tag, "condition": self.condition, "targets": targets,
            "ids": ids,
        }  # fmt: skip
        return {field: value for field, value in values.items() if value is not None}

    @property
    def shape(self) -> FilterShape:
        """What the text of a statement depends on."""
        return frozenset(self.params), self.enabled, self.paused, self.condition == Condition.BROKEN


def matching(columns: Sequence[ColumnElement[Any]], shape: FilterShape) -> tuple[Query, Any, Any]:
    """Return a query for these columns of the schedules of `org_id` that match, and the columns of name and id to sort
    by: by either of them in the order of an index. A list by tag reads no other schedules; one by a part of the name
    reads the names of the org's schedules in their order, until it has enough."""
    params, enabled, paused, broken = shape
    stmt = select(*columns).where(s.org_id == bindparam("org_id"), LIVING)
    name: Any = s.name
    schedule_id: Any = s.id
    if "tag" in params:
        of_tag = (tagged.org_id == bindparam("org_id"), tagged.tag == bindparam("tag"), tagged.schedule_id == s.id)
        stmt, name, schedule_id = stmt.where(*of_tag), tagged.name, tagged.schedule_id
    if "name" in params:
        stmt = stmt.where(func.lower(name).like(func.lower(bindparam("name")), escape="/"))
    if "kind" in params:
        stmt = stmt.where(s.kind == bindparam("kind"))
    if "condition" in params:  # literals, as below: a partial index serves no parameter
        stmt = stmt.where(s.condition == (literal_column("'broken'") if broken else bindparam("condition")))
    if "targets" in params:
        stmt = stmt.where(s.target.in_([literal_column("{list:targets}")]))
    if "ids" in params:
        stmt = stmt.where(s.id.in_([literal_column("{list:ids}")]))
    if enabled is not None:
        stmt = stmt.where(s.enabled == (true() if enabled else false()))
    if paused is not None:
        stmt = stmt.where(s.paused_at.is_not(None) if paused else s.paused_at.is_(None))
    return stmt, name, schedule_id


def ids_matching(tx: Tx, /, org_id: str, **filters: Any) -> list[str]:
    """Return the ids of all schedules that match `ScheduleFilters`, ascending."""
    wanted = ScheduleFilters(**filters)
    return [schedule_id for (schedule_id,) in ids_statement(wanted.shape).run(tx, org_id=org_id, **wanted.params)]


@functools.lru_cache(STATEMENTS_MAX)
def ids_statement(shape: FilterShape) -> Statement:
    stmt, _, schedule_id = matching([s.id], shape)
    return compiled("Return the ids of schedules that match.", stmt.order_by(schedule_id))


def set_tags(tx: Tx, old: Schedule | None, new: Sequence[Schedule]) -> None:
    """Store the tags of schedules that are new, or of one that replaces `old`. A deleted schedule has none."""
    if old is not None and old.tags:
        of_old = (tagged.org_id == old.org_id, tagged.tag.in_(old.tags), tagged.name == old.name)
        tx.execute(delete(schedule_tags).where(*of_old))
    rows = [
        {"org_id": schedule.org_id, "tag": tag, "name": schedule.name, "schedule_id": schedule.id}
        for schedule in new
        if schedule.deleted_at is None
        for tag in dict.fromkeys(schedule.tags)
    ]
    for start in range(0, len(rows), INSERT_ROWS):
        insert_rows(tx, schedule_tags, rows[start : start + INSERT_ROWS])


def lock(tx: Tx, org_id: str, key: str) -> DueSchedule:
    """Return a schedule and lock its clock row until the transaction ends. `next_slot` is None if none is planned."""
    schedule_id = get(tx, org_id, key).id
    clock = tx.execute(select(clocks).where(k.schedule_id == schedule_id).with_for_update()).one()
    o = orgs.c
    org = tx.execute(select(o.frozen_at, o.frozen_until, o.freeze_revision).where(o.id == org_id)).one()
    schedule = get(tx, org_id, schedule_id)  # read again: another transaction may have changed it before the lock
    windows: Sequence[FreezeWindow] = ()
    if org.freeze_revision and clock.next_slot is not None:
        windows = freezes.of_schedule(tx, schedule, clock.next_slot)
    return DueSchedule(
        schedule,
        clock.next_slot,
        clock.fired,
        org.frozen_at,
        org.frozen_until,
        freeze_revision=org.freeze_revision,
        windows=windows,
    )


def read_with_clock(tx: Tx, org_id: str, key: str) -> DueSchedule:
    """Return a schedule with its clock, as `lock` does, without locking."""
    schedule = get(tx, org_id, key)
    clock = tx.execute(select(k.next_slot, k.fired).where(k.schedule_id == schedule.id)).one()
    return DueSchedule(schedule, clock.next_slot, clock.fired, None, None)


def replace_schedule(tx: Tx, due: DueSchedule, new: Schedule, now: datetime, expected: int | None = None) -> Schedule:
    """Store an edited schedule. If its timing or `enabled` changed, its next slot is planned from now and jobs that
    never started are withdrawn. Raises StaleRevision, or Conflict for a name that exists."""
    old = due.schedule
    if expected is not None and expected != old.revision:
        raise StaleRevision(f"schedule {old.name!r} is at revision {old.revision}, not {expected}; read it again")
    same_name = select(s.id).where(s.org_id == old.org_id, s.name == new.name, s.id != old.id, LIVING)
    if new.name != old.name and tx.execute(same_name).first() is not None:
        raise Conflict(f"schedule {new.name!r} already exists; choose another name")
    new = replace(new, revision=old.revision + 1, updated_at=now)
    if new.deleted_at is not None:
        new = replace(new, enabled=False)
        grants.revoke_minted(tx, old.id, now)
        catch_ups.withdraw(tx, old.id, now)
    replanned = (new.timing, new.enabled) != (old.timing, old.enabled) or (
        old.condition is not Condition.OK and new.enabled
    )
    if replanned:
        reason = "superseded" if new.enabled else "disabled"
        record_passed_slots(tx, due, now, "paused" if old.paused_at else reason)
        withdraw_waiting(tx, old, reason, now)
        edge = slots.edge_of(tx, old.id, now)
        end_spans(tx, [(old.id, edge)])
        new = replace(new, condition=Condition.OK, condition_reason=None)
        if new.enabled:
            insert_rows(tx, trigger_spans, [span_row(new, stored.dump(new.timing), edge)])
        clock = clock_row(new, edge)
        planned = {"next_slot": clock["next_slot"], "next_run_at": clock["next_run_at"]}
        tx.execute(update(clocks).where(k.schedule_id == old.id).values(planned))
        notify(tx, "clocks")
    tx.execute(update(schedules).where(s.id == old.id).values(row_of(new)))
    if new.timing.after is not None and (new.timing.after, new.name) != (old.timing.after, old.name):
        slot_order.check(tx, old.org_id, [new])
    if (new.name, new.tags, new.deleted_at) != (old.name, old.tags, old.deleted_at):
        set_tags(tx, old, [new])
    return new


def delete_if_exists(tx: Tx, org_id: str, schedule_id: str | None, now: datetime) -> None:
    """Delete the schedule of a trigger or handler; no-op if it is already deleted."""
    if schedule_id is not None and exists(tx, org_id, schedule_id):
        due = lock(tx, org_id, schedule_id)
        replace_schedule(tx, due, replace(due.schedule, deleted_at=now), now)


def record_passed_slots(tx: Tx, due: DueSchedule, now: datetime, reason: str) -> None:
    """Record slots that came due but did not fire as skipped, before the timing or `enabled` changes."""
    if due.next_slot is not None and (due.schedule.enabled or due.schedule.paused_at):
        gap = passed_gap(due.schedule.timing, due.next_slot, now, Verdict.SKIPPED, reason)
        if gap is not None:
            slots.record_gaps(tx, [(due.schedule, gap)])


def withdraw_waiting(tx: Tx, schedule: Schedule, reason: str, now: datetime) -> None:
    """Remove jobs that never started from the queue; their slots are skipped with this reason."""
    living = jobs.of_schedules(tx, [schedule.id]).get(schedule.id, [])
    lock_keys(tx, {schedule.strict_serial_key, *(row.serial_key for row in living if row.serial_key)})
    waiting = and_(
        tables.jobs.c.schedule_id == schedule.id,
        tables.jobs.c.state.in_([State.LATER, State.BLOCKED, State.READY, State.RETRY]),
        tables.jobs.c.last_run_id.is_(None),
        tables.jobs.c.waiting.is_(None),  # a suspended run has started
    )
    for schedule_id, slot in jobs.withdraw(tx, waiting, Status.SKIPPED, reason, now):
        slots.decide_slot(tx, schedule_id, slot, Verdict.SKIPPED, reason, None)


def set_last_status_skipped(tx: Tx, skipped: Sequence[Schedule]) -> None:
    """Set the last status of schedules whose slot was skipped, if their kind shows that instead of the last run."""
    ids = [schedule.id for schedule in skipped if traits_of(schedule.kind).shows_skips]
    if ids:
        stats = update(schedule_stats).where(schedule_stats.c.schedule_id.in_(ids))
        tx.execute(stats.values(last_run_status=Status.SKIPPED.value))


def finish_schedules(tx: Tx, exhausted: Sequence[tuple[str, datetime]], now: datetime) -> None:
    """Disable schedules that have no slot left, given as (id, last slot); their condition becomes `finished`."""
    if not exhausted:
        return
    ids = [schedule_id for schedule_id, _ in exhausted]
    values = {"enabled": False, "condition": Condition.FINISHED, "revision": s.revision + 1, "updated_at": now}
    tx.execute(update(schedules).where(s.id.in_(ids)).values(values))
    tx.execute(update(clocks).where(k.schedule_id.in_(ids)).values(next_slot=None, next_run_at=None))
    end_spans(tx, exhausted)


def end_spans(tx: Tx, ends: Sequence[tuple[str, datetime]]) -> None:
    """End the open trigger spans of schedules, given as (id, end)."""
    for schedule_id, at in ends:
        open_span = and_(trigger_spans.c.schedule_id == schedule_id, trigger_spans.c.until_at.is_(None))
        tx.execute(update(trigger_spans).where(open_span).values(until_at=at))


def set_clock(tx: Tx, schedule: Schedule, slot: datetime | None, now: datetime) -> None:
    """Plan `slot` as the next one of a schedule; None plans nothing."""
    at = schedule.paused_until if schedule.paused_at is not None else next_run_at(schedule, slot, now)
    at = None if slot is None else at
    tx.execute(update(clocks).where(k.schedule_id == schedule.id).values(next_slot=slot, next_run_at=at))
