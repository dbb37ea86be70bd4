"""Schedules, their clocks and their slots: create, edit, fire, pause, resume, skip, backfill.

Whoever changes what a schedule's slots become locks its clock first, so fire, edit, resume, backfill and retry of
one schedule follow each other; the primary key of `slots` decides whatever is left.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Integer, Select, Text, and_, bindparam, func, or_, select, update

from rota.core.errors import Conflict, NotFound, StaleRevision
from rota.core.ids import new_id
from rota.core.model import HOST_JOB, DueSchedule, Fire, FireResult, Gap, Lease, NewJob, Plan, Schedule
from rota.core.plan import first_plan, next_run_at, passed_gap, plan
from rota.core.policy import Misfire, Overlap, Terms, parse_retry
from rota.core.states import Condition, State, Status, Verdict
from rota.core.timing import triggers
from rota.core.timing.dst import TICK
from rota.core.timing.triggers import Cron, Every, Once, Timing
from rota.db.column_types import Instant
from rota.db.dialect import (
    Batch,
    Given,
    Tx,
    hot,
    insert_columns,
    insert_new,
    insert_rows,
    is_listed,
    listed,
    lock_keys,
    notify,
    once,
    processors,
    records_of,
)
from rota.db.tables import clocks, jobs, orgs, queues, schedule_stats, schedules, slots, trigger_spans
from rota.engine import grants, runs
from rota.engine import jobs as queue
from rota.engine import slots as slot_rows

s, k = schedules.c, clocks.c
LIVING = s.deleted_at.is_(None)
INSERT_ROWS = 500  # schedules that one statement inserts; between two statements other requests have their turn


@dataclass(frozen=True, slots=True)
class Past:
    """A stretch of a schedule's past: its triggers, the slots that ran and those whose job is still in the queue."""

    schedule: Schedule
    spans: Sequence[Any]
    since: datetime
    until: datetime
    ran: Collection[datetime]
    living: Collection[datetime]

    def unfired(self, limit: int, *, reprocess: bool) -> list[datetime]:
        """The first `limit` slots that a backfill fires: those that never ran, or with `reprocess` also those that
        did."""
        slots = slot_rows.slots_that_were(self.schedule, self.spans, self.since, self.until)
        return list(islice((slot for slot in slots if self.fires(slot, reprocess)), limit))

    def fires(self, slot: datetime, reprocess: bool) -> bool:
        return slot not in self.living and (reprocess or slot not in self.ran)


@dataclass(frozen=True, slots=True)
class NewRows:
    """What is stored of new schedules, in their order: columns of their table, rows of their clocks and spans."""

    columns: dict[str, list[Any]]
    clocks: list[dict[str, Any]]
    spans: list[dict[str, Any] | None]


def new_rows(new: Sequence[Schedule], now: datetime) -> NewRows:
    """What `insert` stores: their first slots are computed here, outside the transaction."""
    columns = {name: [read(one) for one in new] for name, read in FIELDS.items()}
    timings = zip(new, columns["timing"], strict=True)
    spans = [span_row(one, timing, now) if one.enabled else None for one, timing in timings]
    return NewRows(columns, [clock_row(one, now) for one in new], spans)


def insert(tx: Tx, new: Sequence[Schedule], now: datetime, rows: NewRows | None = None) -> None:
    """Store schedules with their clocks, counters and spans, all or none. `rows` are those of `new_rows`, whose grants
    may have changed since."""
    rows = rows or new_rows(new, now)
    rows.columns["grant_id"] = [one.grant_id for one in new]
    refused = Counter(one.name for one in new)
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
        insert_rows(tx, schedule_stats, [{"schedule_id": one.id, **zero} for one in new[part]])
        insert_rows(tx, trigger_spans, [span for span in rows.spans[part] if span is not None])
    notify(tx, "clocks")


def get(tx: Tx, org_id: str, key: str) -> Schedule:
    """A living schedule of an org by its id or name."""
    found = tx.execute(select(schedules).where(called(org_id, key)).order_by(s.id != key)).first()
    if found is None:
        raise NotFound(f"schedule {key!r} not found")
    return schedule_of(found, readable=False)


def called(org_id: str, key: str) -> ColumnElement[bool]:
    """A living schedule of an org by its id or name; `ORDER BY id <> key` puts the id first. Each way is spelt in full:
    SQLite finds an index for each then, and otherwise reads all schedules."""
    mine = and_(s.org_id == org_id, LIVING)
    return or_(and_(mine, s.id == key), and_(mine, s.name == key))


def stands(tx: Tx, org_id: str, schedule_id: str) -> bool:
    """Whether a schedule is still there."""
    return tx.execute(select(s.id).where(s.id == schedule_id, s.org_id == org_id, LIVING)).first() is not None


def grants_of(tx: Tx, ids: Collection[str]) -> list[str]:
    """The grants that schedules run under, by the schedules' ids."""
    if not ids:
        return []
    stmt = select(s.grant_id).where(s.id.in_(ids), s.grant_id.is_not(None)).distinct()
    return list(tx.execute(stmt).scalars())


def drop(tx: Tx, org_id: str, schedule_id: str | None, now: datetime) -> None:
    """Delete a schedule that belongs to something else, if it is still there."""
    if schedule_id is not None and stands(tx, org_id, schedule_id):
        due = lock(tx, org_id, schedule_id)
        replace_schedule(tx, due, replace(due.schedule, deleted_at=now), now)


def of_source(tx: Tx, org_id: str, source: str) -> list[Schedule]:
    """The living schedules that a program declared."""
    return [
        schedule_of(row) for row in tx.execute(select(schedules).where(s.org_id == org_id, s.source == source, LIVING))
    ]


def lock(tx: Tx, org_id: str, key: str) -> DueSchedule:
    """A schedule with its clock held until the transaction ends. `next_slot` is None when nothing is planned."""
    found = get(tx, org_id, key)
    clock = tx.execute(select(clocks).where(k.schedule_id == found.id).with_for_update()).one()
    org = tx.execute(select(orgs.c.frozen_at, orgs.c.frozen_until).where(orgs.c.id == org_id)).one()
    fresh = get(tx, org_id, found.id)  # as it is now that nobody else can change it
    return DueSchedule(fresh, clock.next_slot, clock.fired, org.frozen_at, org.frozen_until)


def replace_schedule(tx: Tx, due: DueSchedule, new: Schedule, now: datetime, expected: int | None = None) -> Schedule:
    """Store an edited schedule. Its next slot is planned from now, and jobs that never started are withdrawn, if what
    decides its slots has changed."""
    old = due.schedule
    if expected is not None and expected != old.revision:
        raise StaleRevision(f"schedule {old.name}: it is at revision {old.revision}, not {expected}; read it again")
    taken = select(s.id).where(s.org_id == old.org_id, s.name == new.name, s.id != old.id, LIVING)
    if new.name != old.name and tx.execute(taken).first() is not None:
        raise Conflict(f"schedule {new.name!r} already exists; choose another name")
    new = replace(new, revision=old.revision + 1, updated_at=now)
    if new.deleted_at is not None:
        new = replace(new, enabled=False)
        grants.revoke_minted(tx, old.id, now)
    replanned = (new.timing, new.enabled) != (old.timing, old.enabled) or (
        old.condition is not Condition.OK and new.enabled
    )
    if replanned:
        reason = "superseded" if new.enabled else "disabled"
        close_past(tx, due, now, "paused" if old.paused_at else reason)
        withdraw_waiting(tx, [old], reason, now)
        edge = slot_rows.edge_of(tx, old.id, now)
        end_span(tx, [(old.id, edge)])
        new = replace(new, condition=Condition.OK, condition_reason=None)
        if new.enabled:
            insert_rows(tx, trigger_spans, [span_row(new, triggers.dump(new.timing), edge)])
        clock = clock_row(new, edge)
        moment = {"next_slot": clock["next_slot"], "next_run_at": clock["next_run_at"]}
        tx.execute(update(clocks).where(k.schedule_id == old.id).values(moment))
        notify(tx, "clocks")
    tx.execute(update(schedules).where(s.id == old.id).values(row_of(new)))
    return new


def pause(tx: Tx, due: DueSchedule, reason: str, until: datetime | None, now: datetime) -> Schedule:
    """Let slots pass from now on. The clock keeps its slot, so that the gap is known at resume."""
    old = due.schedule
    new = replace(
        old,
        paused_at=old.paused_at or now,
        paused_until=until,
        pause_reason=reason,
        revision=old.revision + 1,
        updated_at=now,
    )
    tx.execute(update(schedules).where(s.id == old.id).values(row_of(new)))
    if due.next_slot is not None:
        tx.execute(update(clocks).where(k.schedule_id == old.id).values(next_run_at=until))
        notify(tx, "clocks")
    return new


def resume(tx: Tx, due: DueSchedule, gap: Misfire, now: datetime) -> Schedule:
    """End a pause: the slots that passed in it are skipped, or the latest or all of them fire now."""
    old = due.schedule
    if old.paused_at is None:
        raise Conflict(f"schedule {old.name}: it is not paused")
    fire_passed = gap is not Misfire.SKIP and due.next_slot is not None and due.next_slot <= now
    if fire_passed:
        open_again = replace(old, paused_at=None, paused_until=None, misfire=gap)
        apply(
            tx, [(replace(due, schedule=open_again), plan(replace(due, schedule=open_again), now, timedelta(0)))], now
        )
    elif due.next_slot is not None:
        close_past(tx, due, now, "paused")
        upcoming = due.next_slot if due.next_slot > now else triggers.next_slot(old.timing, now)
        set_clock(tx, replace(old, paused_at=None), upcoming, now)
        if upcoming is None:
            finish_schedules(tx, [(old.id, now)], now)
    cleared = {"paused_at": None, "paused_until": None, "pause_reason": None}
    tx.execute(update(schedules).where(s.id == old.id).values(**cleared, revision=s.revision + 1, updated_at=now))
    notify(tx, "clocks")
    return get(tx, old.org_id, old.id)


def skip_next(tx: Tx, due: DueSchedule, reason: str, now: datetime) -> datetime:
    """Skip the next slot, once."""
    schedule, slot = due.schedule, due.next_slot
    if slot is None:
        raise Conflict(f"schedule {schedule.name}: no slot is planned that could be skipped")
    slot_rows.record_gaps(tx, [(schedule, Gap(slot, slot, 1, Verdict.SKIPPED, "operator", note=reason or None))])
    tell_skipped(tx, [schedule])
    upcoming = triggers.next_slot(schedule.timing, slot)
    set_clock(tx, schedule, upcoming, now)
    if upcoming is None:
        finish_schedules(tx, [(schedule.id, slot)], now)
    notify(tx, "clocks")
    return slot


def tell_skipped(tx: Tx, of: Sequence[Schedule]) -> None:
    """For hosts a slot that was skipped is also the last thing that happened."""
    ids = [one.id for one in of if one.kind == HOST_JOB]
    if ids:
        mine = schedule_stats.c.schedule_id.in_(ids)
        tx.execute(update(schedule_stats).where(mine).values(last_run_status=Status.SKIPPED.value))


def freeze(tx: Tx, org_id: str, reason: str, until: datetime | None, now: datetime) -> None:
    """Let all slots of an org pass from now on; a freeze that holds already gets a new end."""
    org = tx.execute(select(orgs).where(orgs.c.id == org_id).with_for_update()).one()
    holds = org.frozen_at is not None and (org.frozen_until is None or org.frozen_until > now)
    values = {"frozen_at": org.frozen_at if holds else now, "frozen_until": until, "freeze_reason": reason}
    tx.execute(update(orgs).where(orgs.c.id == org_id).values(values))
    if holds:
        tx.execute(update(clocks).where(held_by_freeze(org, now)).values(next_run_at=until))
        notify(tx, "clocks")


def unfreeze(tx: Tx, org_id: str, now: datetime) -> None:
    """End a freeze: the org's held clocks are due at once, and firing closes their gaps."""
    org = tx.execute(select(orgs).where(orgs.c.id == org_id).with_for_update()).one()
    if org.frozen_at is None or (org.frozen_until is not None and org.frozen_until <= now):
        raise Conflict("the org is not frozen")
    tx.execute(update(orgs).where(orgs.c.id == org_id).values(frozen_until=now))
    # those not due yet are set right when they fire
    tx.execute(update(clocks).where(held_by_freeze(org, now)).values(next_run_at=now))
    notify(tx, "clocks")


def held_by_freeze(org: Any, now: datetime) -> ColumnElement[bool]:
    """The clocks that wait for the end of an org's freeze, and for no pause."""
    unpaused = or_(s.paused_at.is_(None), s.paused_until <= now)
    waiting = or_(k.next_run_at.is_(None), k.next_run_at == org.frozen_until)
    of_org = and_(k.org_id == org.id, k.next_slot.is_not(None))
    return and_(of_org, waiting, select(s.id).where(s.id == k.schedule_id, unpaused).exists())


def next_run(tx: Tx, kinds: Collection[str], after: datetime) -> datetime | None:
    """When the next schedule of these kinds is due after a moment."""
    firsts = [tx.execute(first_of_kind(tx), {"kind": kind, "after": after}).scalar_one() for kind in sorted(kinds)]
    return min((moment for moment in firsts if moment is not None), default=None)


@once
def first_of_kind(_: Tx) -> Select[Any]:
    later = k.next_run_at > bindparam("after", type_=Instant)
    planned = k.next_run_at.is_not(None)  # said for the sake of SQLite's planner
    return select(func.min(k.next_run_at)).where(planned, later, k.kind == bindparam("kind"))


def due(
    tx: Tx, kinds: Collection[str], now: datetime, limit: int, only_orgs: Collection[str] | None = None
) -> list[tuple[Any, ...]]:
    """The rows of schedules whose moment has come, oldest first; of all orgs, or of those with these slugs."""
    moment = processors(tx.dialect, clocks)["next_run_at"]
    given = {"kinds": listed(tx, kinds), "now": moment(now) if moment else now, "most": limit}
    if only_orgs is not None:
        given["orgs"] = listed(tx, only_orgs)
    return records_of(tx, DUE, come_due(tx, Given(given, (only_orgs is not None,))))


DUE = (*s, k.fired, k.next_slot, orgs.c.frozen_at, orgs.c.frozen_until, k.next_run_at)


@hot
def come_due(tx: Tx, chosen_orgs: bool) -> Any:
    of_orgs = [is_listed(tx, orgs.c.slug, "orgs")] if chosen_orgs else []
    return (
        select(*DUE)
        .select_from(clocks.join(schedules, s.id == k.schedule_id).join(orgs, orgs.c.id == s.org_id))
        .where(is_listed(tx, k.kind, "kinds"), k.next_run_at <= bindparam("now", type_=Instant), *of_orgs)
        .order_by(k.next_run_at)
        .limit(bindparam("most", type_=Integer))
    )


def due_of(rows: Iterable[tuple[Any, ...]]) -> tuple[list[DueSchedule], list[tuple[str, int, str]]]:
    """The records of such rows; and those that cannot be read: (id, revision, why)."""
    found: list[DueSchedule] = []
    broken: list[tuple[str, int, str]] = []
    for row in rows:
        try:
            fired, next_slot, frozen_at, frozen_until, at = row[len(s) :]
            found.append(DueSchedule(schedule_of(row), next_slot, fired, frozen_at, frozen_until, at))
        except Exception as error:  # whatever is wrong with one row stops no loop
            broken.append((row[0], row[POSITIONS["revision"]], f"{type(error).__name__}: {error}"))
    return found, broken


def fire(tx: Tx, planned: Sequence[tuple[DueSchedule, Plan]], now: datetime, lease: Lease | None = None) -> FireResult:
    """FIRE_IS_ONE_TRANSACTION: of these plans, carry out those whose schedule is still as it was read. A worker with a
    lease has their jobs at once, unless a limit of the org or the queue has to be counted first. What is ahead of its
    moment is only fired for such a worker."""
    rows = held_clocks(tx, Given({"ids": listed(tx, [one.schedule.id for one, _ in planned])}))
    found = records_of(tx, (k.schedule_id, LIMITED, *AS_READ), rows)
    now_so = {schedule_id: rest for schedule_id, _, *rest in found}
    won = [(one, what) for one, what in planned if now_so.get(one.schedule.id) == as_read(one)]
    return apply(tx, won, now, None if any(limited for _, limited, *_ in found) else lease)


def as_read(one: DueSchedule) -> list[Any]:
    return [one.next_slot, one.schedule.revision, True, one.frozen_at, one.frozen_until]


AS_READ = (k.next_slot, s.revision, s.enabled, orgs.c.frozen_at, orgs.c.frozen_until)
LIMITED = or_(
    orgs.c.max_running.is_not(None), queues.c.max_running.is_not(None), queues.c.paused_at.is_not(None)
).label("limited")


@hot
def held_clocks(tx: Tx) -> Any:
    return (
        select(k.schedule_id, LIMITED, *AS_READ)
        .select_from(
            clocks.join(schedules, s.id == k.schedule_id)
            .join(orgs, orgs.c.id == s.org_id)
            .outerjoin(queues, and_(queues.c.org_id == s.org_id, queues.c.name == s.queue))
        )
        .where(is_listed(tx, k.schedule_id, "ids"))
        .order_by(k.schedule_id)
        .with_for_update(of=clocks, skip_locked=True)  # whoever holds one is firing or editing it
    )


def apply(tx: Tx, won: Sequence[tuple[DueSchedule, Plan]], now: datetime, lease: Lease | None = None) -> FireResult:
    """Write slots, jobs, gaps and clocks of plans whose clocks the caller holds."""
    lock_keys(tx, [one.schedule.serial_key for one, _ in won if one.schedule.serial_key])
    busy = queue.of_schedules(tx, [one.schedule.id for one, _ in won if one.schedule.overlap is not Overlap.ALLOW])
    won = list(in_time(won, busy, now, lease))
    if not won:
        return FireResult()
    fires = [(one.schedule, fire, new_id()) for one, what in won for fire in what.fires]
    rows = [slot_row(schedule, fire, job_id, busy) for schedule, fire, job_id in fires]
    stands = set(insert_new(tx, slots, rows, ("schedule_id", "slot")))
    fires = [one for one in fires if (one[0].id, one[1].slot) in stands and not is_busy(one[0], busy)]
    make_room(tx, fires, busy, now)
    own = {f"schedule:{one.id}" for one, _, _ in fires if one.id not in busy}  # others may wait on a shared lane
    idle = {one.serial_key for one, _, _ in fires if one.serial_key in own}
    taken = queue.add(tx, [job_of(schedule, fire, job_id) for schedule, fire, job_id in fires], now, idle, lease)
    slot_rows.record_gaps(tx, [(one.schedule, gap) for one, what in won for gap in what.gaps])
    slot_rows.count_skips(
        tx, [(one.schedule.id, len(what.fires)) for one, what in won if what.fires and is_busy(one.schedule, busy)]
    )
    tell_skipped(tx, [one.schedule for one, what in won if what.fires and is_busy(one.schedule, busy)])
    advance(
        tx, [(one, without_fires(one, what, now) if is_busy(one.schedule, busy) else what) for one, what in won], now
    )
    over = [one.schedule.id for one, _ in won if (one.schedule.paused_until or now + TICK) <= now]
    if over:
        tx.execute(update(schedules).where(s.id.in_(over)).values(paused_at=None, paused_until=None, pause_reason=None))
    return FireResult({one.schedule.id for one, _ in won}, [fire for _, fire, _ in fires], taken)


def in_time(
    won: Sequence[tuple[DueSchedule, Plan]], busy: dict[str, list[Any]], now: datetime, lease: Lease | None
) -> Iterator[tuple[DueSchedule, Plan]]:
    """Those whose moment has come, and those whose job nothing but the time keeps from starting."""
    room = lease.room if lease is not None else 0
    for one, what in won:
        schedule = one.schedule
        alone = schedule.id not in busy and schedule.serial_key in (None, f"schedule:{schedule.id}")
        if one.is_due(now) or (room > 0 and lease is not None and alone and lease.accepts(schedule)):
            room -= len(what.fires)
            yield one, what


def without_fires(one: DueSchedule, what: Plan, now: datetime) -> Plan:
    """A plan whose slots were skipped for overlap: they do not count, and so cannot have been the last."""
    upcoming = what.next_slot or triggers.next_slot(one.schedule.timing, what.handled)
    return replace(what, fires=(), next_slot=upcoming, next_run_at=next_run_at(one.schedule, upcoming, now))


def advance(tx: Tx, won: Sequence[tuple[DueSchedule, Plan]], now: datetime) -> None:
    """Set the clocks to what comes next; a schedule with nothing left is finished."""
    moved = [(one.schedule.id, what.next_slot, what.next_run_at, len(what.fires)) for one, what in won]
    advancing(tx, ADVANCED.given(tx, moved))
    finish_schedules(tx, [(one.schedule.id, what.handled) for one, what in won if what.next_slot is None], now)


ADVANCED = Batch("advanced", id=Text(), slot=Instant(), at=Instant(), fires=Integer())


@hot
def advancing(tx: Tx, alike: tuple[str, ...]) -> Any:
    moved = ADVANCED.table(tx, alike)
    values = {"next_slot": moved.c.slot, "next_run_at": moved.c.at, "fired": k.fired + moved.c.fires}
    return update(clocks).where(k.schedule_id == moved.c.id).values(values)


def fail_slots(tx: Tx, one: DueSchedule, what: Plan, error: str, now: datetime) -> None:
    """The culprit of a batch: its slots are told as skipped, counted once, and its clock goes on."""
    if not fire(tx, [(one, replace(what, fires=(), gaps=()))], now).schedule_ids:
        return
    first = one.next_slot
    gap = first and passed_gap(one.schedule.timing, first, what.handled, Verdict.SKIPPED, "scheduler_failed")
    if gap:
        slot_rows.record_gaps(tx, [(one.schedule, gap)])
    st = schedule_stats.c
    tx.execute(
        update(schedule_stats)
        .where(st.schedule_id == one.schedule.id)
        .values(failure_count=st.failure_count + 1, last_run_status="scheduler_failed")
    )
    tx.execute(update(schedules).where(s.id == one.schedule.id).values(condition_reason=error[:1000]))


def mark_broken(tx: Tx, schedule_id: str, revision: int, why: str, now: datetime) -> None:
    """A schedule that cannot be evaluated is put aside until somebody edits it."""
    first = tx.execute(select(k.next_slot).where(k.schedule_id == schedule_id).with_for_update()).scalar()
    stmt = update(schedules).where(s.id == schedule_id, s.revision == revision)
    values = {
        "condition": Condition.BROKEN,
        "condition_reason": why[:1000],
        "revision": revision + 1,
        "updated_at": now,
    }
    if tx.execute(stmt.values(values)).rowcount:
        tx.execute(update(clocks).where(k.schedule_id == schedule_id).values(next_run_at=None, next_slot=None))
        until = slot_rows.edge_of(tx, schedule_id, now if first is None else min(now, first - TICK))
        end_span(tx, [(schedule_id, until)])  # no slots while broken


def hold(tx: Tx, held: Sequence[DueSchedule]) -> None:
    """Slots of a frozen org wait for the end of the freeze, to be told as one gap."""
    which = sorted({one.schedule.org_id for one in held})
    stmt = select(orgs.c.id, orgs.c.frozen_at, orgs.c.frozen_until).where(orgs.c.id.in_(which)).order_by(orgs.c.id)
    as_read = {row.id: (row.frozen_at, row.frozen_until) for row in tx.execute(stmt.with_for_update(read=True))}
    for one in sorted(held, key=lambda one: one.schedule.id):
        if as_read.get(one.schedule.org_id) == (one.frozen_at, one.frozen_until):
            same = and_(k.schedule_id == one.schedule.id, k.next_slot == one.next_slot, k.next_run_at.is_not(None))
            tx.execute(update(clocks).where(same).values(next_run_at=one.frozen_until))


def repair(tx: Tx, now: datetime) -> list[str]:
    """RECONCILER_GUARANTEES_CHAIN: enabled schedules with nothing planned get their next slot again."""
    frozen = and_(orgs.c.frozen_at.is_not(None), or_(orgs.c.frozen_until.is_(None), orgs.c.frozen_until > now))
    unpaused = or_(s.paused_at.is_(None), s.paused_until <= now)
    stmt = (
        select(*s, k.next_slot)
        .select_from(clocks.join(schedules, s.id == k.schedule_id).join(orgs, orgs.c.id == s.org_id))
        .where(k.next_run_at.is_(None), s.enabled, LIVING, unpaused, s.condition == Condition.OK, ~frozen)
        .order_by(k.schedule_id)
        .limit(queue.CHUNK)
        .with_for_update(of=clocks, skip_locked=True)
    )
    mended = []
    for row in tx.execute(stmt).all():
        schedule = schedule_of(row)
        upcoming = row.next_slot or triggers.next_slot(schedule.timing, now)
        if upcoming is None:
            finish_schedules(tx, [(schedule.id, now)], now)
        else:
            set_clock(tx, schedule, upcoming, now)
            mended.append(schedule.id)
    return mended


def run_now(
    tx: Tx, schedule: Schedule, payload: Any, overlap: Overlap, trace: str | None, now: datetime,
    trigger: str = "manual",
) -> str:  # fmt: skip
    """A job beside the slots, under the schedule's overlap policy; the next slot stays where it is. Where at most one
    job may wait and one does, that is the job, if it has the same input; else raises Conflict."""
    own_input = payload != schedule.input
    schedule = replace(schedule, overlap=overlap, input=payload)
    if schedule.serial_key:
        lock_keys(tx, [schedule.serial_key])
    busy = queue.of_schedules(tx, [schedule.id]).get(schedule.id, [])
    if is_busy(schedule, {schedule.id: busy}):
        raise Conflict(f"schedule {schedule.name}: job {busy[0].id} is not done yet, and its overlap policy is skip")
    waiting = next((row.id for row in busy if row.solo_key is not None or is_waiting_request(row)), None)
    if schedule.keeps_one_waiting and waiting is not None:
        if queue.payload_of(tx, waiting) != payload:
            raise Conflict(
                f"schedule {schedule.name}: job {waiting} waits with another input, and the overlap policy lets one "
                "job wait; cancel that job, wait until it starts, or run with overlap queue_all"
            )
        return str(waiting)
    if overlap is Overlap.REPLACE:
        clear_the_way(tx, busy, now)
    # a slot may take the place of a job that waits, but not of one with an input of its own
    job = job_of(schedule, Fire(now, now, schedule.keeps_one_waiting and not own_input), new_id())
    job = replace(job, slot=None, job_key=None, trigger=trigger, trace=trace)
    queue.add(tx, [job], now)
    return job.id


def is_waiting_request(row: Any) -> bool:
    """Whether a job was asked for beside the slots and has not started."""
    return row.trigger == "manual" and row.state in (State.READY, State.BLOCKED, State.LATER)


def past(tx: Tx, due: DueSchedule, since: datetime, until: datetime, now: datetime) -> Past:
    """What decides which slots of a stretch a backfill fires. Only slots before the clock's own are in it, and none
    that retention has pruned."""
    schedule = due.schedule
    decided = tx.execute(select(k.decided_until).where(k.schedule_id == schedule.id)).scalar_one()
    since = max(since, decided + TICK) if decided is not None else since
    until = min(until, (due.next_slot or now) - TICK)
    homes = slot_rows.homes_of(tx, schedule.id, since, until)
    too_late = slot_rows.never_ran(tx, [home.job_id for home in homes.values() if home.job_id is not None])
    ran = {
        slot for slot, home in homes.items()
        if home.verdict in (None, Verdict.RAN) and home.job_id not in too_late
    }  # fmt: skip
    living = {row.slot for row in queue.of_schedules(tx, [schedule.id]).get(schedule.id, [])}
    return Past(schedule, slot_rows.spans_of(tx, schedule.id), since, until, ran, living)


def clock_of(tx: Tx, org_id: str, key: str) -> DueSchedule:
    """A schedule with its clock, as `lock`, but only read."""
    schedule = get(tx, org_id, key)
    clock = tx.execute(select(k.next_slot, k.fired).where(k.schedule_id == schedule.id)).one()
    return DueSchedule(schedule, clock.next_slot, clock.fired, None, None)


def backfill(tx: Tx, before: Past, wanted: Sequence[datetime], *, reprocess: bool, now: datetime) -> list[datetime]:
    """Fire slots that were chosen from the past; those that ran or were fired since then are left out. One after the
    other, behind everything else that the schedule has to do. Raises Conflict if the schedule's timing changed."""
    due = lock(tx, before.schedule.org_id, before.schedule.id)
    schedule = due.schedule
    if (schedule.timing, schedule.enabled) != (before.schedule.timing, before.schedule.enabled):
        raise Conflict(f"schedule {schedule.name!r} was edited while its slots were computed; ask again")
    current = past(tx, due, wanted[0], wanted[-1], now)
    wanted = [slot for slot in wanted if current.since <= slot <= current.until and current.fires(slot, reprocess)]
    if not wanted:
        return []
    slot_rows.take_from_gaps(tx, schedule, wanted)
    serial = schedule.strict_serial_key  # serial, also where live slots may overlap
    lock_keys(tx, [serial])
    made = []
    for slot in wanted:
        job = job_of(schedule, Fire(slot, now, solo=False), new_id())
        base, previous = slot_rows.reopen(tx, schedule.id, slot, job.id)
        made.append(
            replace(
                job, serial_key=serial, trigger="backfill", priority=-1000, attempt=base, last_run_id=previous,
                terms=replace(job.terms, deadline_at=None, window_until=None),
            )
        )  # fmt: skip
    queue.add(tx, made, now)
    return wanted


def retry_slot(tx: Tx, due: DueSchedule, slot: datetime, run: Any, now: datetime) -> str:
    """Another attempt of a slot that somebody asked for; joins the one that is on its way already."""
    schedule = due.schedule
    living = [row for row in queue.of_schedules(tx, [schedule.id]).get(schedule.id, []) if row.slot == slot]
    if living:
        return str(living[0].id)
    if schedule.serial_key:
        lock_keys(tx, [schedule.serial_key])
    job = job_of(schedule, Fire(slot, now, solo=False), new_id())
    slot_rows.take_from_gaps(tx, schedule, [slot])
    base, previous = slot_rows.reopen(tx, schedule.id, slot, job.id)
    terms = replace(job.terms, deadline_at=None, window_until=None)
    job = replace(
        job, trigger="retry", terms=terms, attempt=base, last_run_id=previous or run.id, trace=runs.trace_of(run)
    )
    queue.add(tx, [job], now)
    return job.id


def retry_run(tx: Tx, schedule: Schedule, run: Any, attempts: int, now: datetime) -> str:
    """Another attempt of a run beside the slots, in turn with the schedule's other jobs."""
    job = job_of(schedule, Fire(now, now, solo=False), new_id())
    terms = replace(job.terms, deadline_at=None, window_until=None)
    again = replace(
        job, slot=None, job_key=f"retry:{run.job_id}", payload=run.input, trigger="retry", attempt=attempts,
        last_run_id=run.id, terms=terms, trace=runs.trace_of(run),
    )  # fmt: skip
    return queue.enqueue(tx, [again], now, "preserve")[0]


# what became of slots


def close_past(tx: Tx, due: DueSchedule, now: datetime, reason: str) -> None:
    """Slots that came due but were not fired yet get their verdict before what decides slots changes."""
    if due.next_slot is not None and (due.schedule.enabled or due.schedule.paused_at):
        gap = passed_gap(due.schedule.timing, due.next_slot, now, Verdict.SKIPPED, reason)
        if gap is not None:
            slot_rows.record_gaps(tx, [(due.schedule, gap)])


def withdraw_waiting(tx: Tx, of: Sequence[Schedule], reason: str, now: datetime) -> None:
    """Jobs that never started leave the queue; their slots say why."""
    living = queue.of_schedules(tx, [one.id for one in of]).values()
    theirs = {row.serial_key for found in living for row in found if row.serial_key}
    lock_keys(tx, {*theirs, *(one.strict_serial_key for one in of)})
    waiting = and_(
        jobs.c.schedule_id.in_([one.id for one in of]),
        jobs.c.state.in_([State.LATER, State.BLOCKED, State.READY, State.RETRY]),
        jobs.c.last_run_id.is_(None),
    )
    for schedule_id, slot in queue.withdraw(tx, waiting, Status.SKIPPED, reason, now):
        slot_rows.decide_slot(tx, schedule_id, slot, Verdict.SKIPPED, reason, None)


def make_room(tx: Tx, fires: Sequence[tuple[Schedule, Fire, str]], busy: dict[str, list[Any]], now: datetime) -> None:
    """Newer slots take the place of waiting ones; `replace` also stops what runs."""
    into = {schedule.id: fire.slot for schedule, fire, _ in fires if fire.solo}
    older = {row.id: row for key in into for row in busy.get(key, []) if row.solo_key is not None}
    if older:
        gone = queue.withdraw(tx, jobs.c.id.in_(list(older)), Status.COALESCED, None, now, promoting=False)
        for schedule_id, slot in gone:
            slot_rows.decide_slot(tx, schedule_id, slot, Verdict.COALESCED, None, into[schedule_id])
    for schedule in {schedule.id: schedule for schedule, _, _ in fires if schedule.overlap is Overlap.REPLACE}.values():
        clear_the_way(tx, [row for row in busy.get(schedule.id, []) if row.id not in older], now)


def clear_the_way(tx: Tx, rows_of: Iterable[Any], now: datetime) -> None:
    """Stop what a replacing job replaces: ask its worker, or take it out of the queue at once. What somebody asked for
    and what has not begun yet stays."""
    begun = (State.RUNNING, State.RETRY, State.PARKED)
    ids = [row.id for row in rows_of if row.state in begun or row.trigger not in ("backfill", "retry")]
    queue.request_cancel(tx, ids, "replaced", now)
    queue.withdraw(tx, jobs.c.id.in_(ids), Status.CANCELED, "replaced", now, promoting=False)


def finish_schedules(tx: Tx, over: Sequence[tuple[str, datetime]], now: datetime) -> None:
    """No slot is left: not enabled any more, and nobody has to wonder why."""
    if not over:
        return
    ids = [schedule_id for schedule_id, _ in over]
    values = {"enabled": False, "condition": Condition.FINISHED, "revision": s.revision + 1, "updated_at": now}
    tx.execute(update(schedules).where(s.id.in_(ids)).values(values))
    tx.execute(update(clocks).where(k.schedule_id.in_(ids)).values(next_slot=None, next_run_at=None))
    end_span(tx, over)


def end_span(tx: Tx, over: Sequence[tuple[str, datetime]]) -> None:
    """From then on the schedule has no slots by this trigger."""
    for schedule_id, at in over:
        open_span = and_(trigger_spans.c.schedule_id == schedule_id, trigger_spans.c.until_at.is_(None))
        tx.execute(update(trigger_spans).where(open_span).values(until_at=at))


def set_clock(tx: Tx, schedule: Schedule, slot: datetime | None, now: datetime) -> None:
    at = schedule.paused_until if schedule.paused_at is not None else next_run_at(schedule, slot, now)
    at = None if slot is None else at
    tx.execute(update(clocks).where(k.schedule_id == schedule.id).values(next_slot=slot, next_run_at=at))


def is_busy(schedule: Schedule, busy: dict[str, list[Any]]) -> bool:
    return schedule.overlap is Overlap.SKIP and bool(busy.get(schedule.id))


def skip_reason(schedule: Schedule) -> str:
    """What a slot is skipped for while the schedule has a job: a host is busy, or away."""
    return "busy" if schedule.kind == HOST_JOB else "overlap"


# rows and records


def slot_row(schedule: Schedule, fire: Fire, job_id: str, busy: dict[str, list[Any]]) -> dict[str, Any]:
    skipped = is_busy(schedule, busy)
    return {
        "schedule_id": schedule.id, "slot": fire.slot, "last_slot": fire.slot, "count": 1,
        "verdict": Verdict.SKIPPED.value if skipped else None, "reason": skip_reason(schedule) if skipped else None,
        "job_id": None if skipped else job_id, "attempts": 0,
    }  # fmt: skip


def job_of(schedule: Schedule, fire: Fire, job_id: str) -> NewJob:
    timing = schedule.timing
    return NewJob(
        id=job_id,
        org_id=schedule.org_id,
        kind=schedule.kind,
        target=schedule.target,
        route=schedule.route,
        payload=schedule.input,
        run_at=fire.run_at,
        trigger=trigger_text(schedule),
        queue=schedule.queue,
        priority=schedule.priority,
        serial_key=schedule.serial_key,
        solo_key=schedule.id if fire.solo else None,
        job_key=f"{schedule.id}:{fire.slot.isoformat()}",
        schedule_id=schedule.id,
        slot=fire.slot,
        trace=fire.trace,
        terms=Terms(
            timeout=schedule.timeout,
            retry=schedule.retry,
            deadline_at=fire.run_at + schedule.start_deadline if schedule.start_deadline is not None else None,
            window_until=triggers.window_close(timing, fire.slot) if timing.window else None,
            window=timing.window,
            zone=timing.zone,
            grant_id=schedule.grant_id,
        ),
    )


def trigger_text(schedule: Schedule) -> str:
    match schedule.timing.trigger:
        case Cron(expression):
            return f"{'cron_dependency' if schedule.source.startswith('trigger:') else 'schedule'}:{expression}"
        case Every(span, _):
            return f"schedule:every {span.total_seconds():g}s"
        case Once():
            return "schedule:once"


def clock_row(schedule: Schedule, now: datetime) -> dict[str, Any]:
    slot, at = first_plan(schedule, now) if schedule.enabled else (None, None)
    if schedule.paused_at is not None:
        at = schedule.paused_until
    return {
        "schedule_id": schedule.id, "org_id": schedule.org_id, "kind": schedule.kind, "next_slot": slot,
        "next_run_at": at, "fired": 0,
    }  # fmt: skip


def span_row(one: Schedule, timing: dict[str, Any], now: datetime) -> dict[str, Any]:
    return {"schedule_id": one.id, "revision": one.revision, "timing": timing, "from_at": now, "until_at": None}


def row_of(one: Schedule) -> dict[str, Any]:
    return {name: read(one) for name, read in FIELDS.items()}


def schedule_of(row: Any, readable: bool = True) -> Schedule:
    """The record of a row that begins with the columns of a schedule, which stand in the order of its fields. One whose
    timing cannot be read is still there to be edited or deleted, if asked so."""
    values = list(row[: len(s)])
    for position, read in READ:
        values[position] = read(values[position])
    try:
        values[TIMING] = triggers.load(values[TIMING])
    except Exception:
        if readable:
            raise
        values[TIMING] = Timing(Once(values[POSITIONS["created_at"]]))
    return Schedule(*values)


def seconds(span: timedelta | None) -> int | None:
    return None if span is None else int(span.total_seconds())


def span(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


POSITIONS = {column.name: position for position, column in enumerate(s)}
TIMING = POSITIONS["timing"]
READ: Sequence[tuple[int, Callable[[Any], Any]]] = [
    (POSITIONS["misfire"], Misfire),
    (POSITIONS["overlap"], Overlap),
    (POSITIONS["start_deadline_seconds"], span),
    (POSITIONS["timeout_seconds"], span),
    (POSITIONS["retry"], parse_retry),
    (POSITIONS["condition"], Condition),
]
FIELDS: dict[str, Callable[[Schedule], Any]] = {  # what stands in each column
    **{column.name: attrgetter(column.name) for column in s},
    "timing": lambda one: triggers.dump(one.timing),
    "start_deadline_seconds": lambda one: seconds(one.start_deadline),
    "timeout_seconds": lambda one: seconds(one.timeout),
    "retry": lambda one: one.retry and one.retry.dump(),
}
