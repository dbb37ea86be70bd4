"""Slots that pass without a job on request: pause and resume a schedule, skip its next slot, freeze an org."""

from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, or_, select, update

from rota.core.catch_up import NO_LIMITS, CatchUpChoice, CatchUpLimits, lowered, plan_catch_up
from rota.core.errors import Conflict
from rota.core.model import DueSchedule, Gap, Schedule
from rota.core.plan import plan, plan_of_late
from rota.core.policy import Misfire
from rota.core.states import Verdict
from rota.core.timing import triggers
from rota.db.dialect import Tx, notify
from rota.db.paging import Record
from rota.db.tables import clocks, orgs, schedules
from rota.engine import catch_ups, past_slots, slots, usual_runs
from rota.engine.firing import apply_plans
from rota.engine.schedule_rows import row_of
from rota.engine.schedules import finish_schedules, get, record_passed_slots, set_clock, set_last_status_skipped

s, k = schedules.c, clocks.c
NO_GRACE = timedelta(0)


def pause(tx: Tx, due: DueSchedule, reason: str, until: datetime | None, now: datetime) -> Schedule:
    """Pause a schedule, or change the end of its pause. The clock keeps its slot: the gap at resume begins there."""
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


def resume(
    tx: Tx,
    due: DueSchedule,
    choice: CatchUpChoice,
    now: datetime,
    limits: CatchUpLimits = NO_LIMITS,
    by: str | None = None,
) -> Schedule:
    """End a pause. `choice` decides which of the slots that passed fire and when; a catch-up beyond the limits waits
    for an approval. Raises Conflict if the schedule is not paused."""
    old = due.schedule
    if old.paused_at is None:
        raise Conflict(f"schedule {old.name!r} is not paused")
    fire_passed = choice.gap is not Misfire.SKIP and due.next_slot is not None and due.next_slot <= now
    if fire_passed:
        limit = choice.limit or old.catch_up_limit
        unpaused = replace(old, paused_at=None, paused_until=None, misfire=choice.gap, catch_up_limit=limit)
        fire_passed_slots(tx, replace(due, schedule=unpaused), choice, now, limits, by)
    elif due.next_slot is not None:
        record_passed_slots(tx, due, now, "paused")
        upcoming = due.next_slot if due.next_slot > now else triggers.next_slot(old.timing, now)
        set_clock(tx, replace(old, paused_at=None), upcoming, now)
        if upcoming is None:
            finish_schedules(tx, [(old.id, now)], now)
    cleared = {"paused_at": None, "paused_until": None, "pause_reason": None}
    tx.execute(update(schedules).where(s.id == old.id).values(**cleared, revision=s.revision + 1, updated_at=now))
    notify(tx, "clocks")
    return get(tx, old.org_id, old.id)


def fire_passed_slots(
    tx: Tx, due: DueSchedule, choice: CatchUpChoice, now: datetime, limits: CatchUpLimits, by: str | None
) -> None:
    """Fire the slots that passed while a schedule was paused, now or spread over some time, or hold them."""
    planned = plan(due, now, NO_GRACE)
    several = choice.gap is Misfire.ALL and len(planned.fires) > 1
    choice = choice.with_default_spread(due.schedule.catch_up_spread)
    limits = lowered(limits, due.schedule.catch_up_approval_slots)
    if not several or not (limits.any or choice.spread):
        apply_plans(tx, [(due, planned)], now)
        return
    usual = usual_runs.usual_run(tx, due.schedule.org_id, due.schedule.id)
    held = plan_of_late(due, now, NO_GRACE, usual, limits)
    if held is not None and held.catch_up is not None:
        apply_plans(tx, [(due, replace(held, catch_up=None))], now)
        catch_ups.hold(tx, due.schedule, held.catch_up, catch_ups.CatchUpSource.RESUME, now, by=by)
    elif choice.spread:
        apply_plans(tx, [(due, plan(due, now, NO_GRACE, hold_late=True))], now)
        late = [fire.slot for fire in planned.fires if fire.run_at < now]
        past_slots.fire_caught_up(tx, due.schedule, plan_catch_up(late, choice, usual, NO_LIMITS, now), now)
    else:
        apply_plans(tx, [(due, planned)], now)


def skip_next(tx: Tx, due: DueSchedule, reason: str, now: datetime) -> datetime:
    """Skip the next slot and return it. Raises Conflict if none is planned."""
    schedule, slot = due.schedule, due.next_slot
    if slot is None:
        raise Conflict(f"schedule {schedule.name!r} has no planned slot to skip")
    slots.record_gaps(tx, [(schedule, Gap(slot, slot, 1, Verdict.SKIPPED, "operator", note=reason or None))])
    set_last_status_skipped(tx, [schedule])
    upcoming = triggers.next_slot(schedule.timing, slot)
    set_clock(tx, schedule, upcoming, now)
    if upcoming is None:
        finish_schedules(tx, [(schedule.id, slot)], now)
    notify(tx, "clocks")
    return slot


def freeze(tx: Tx, org_id: str, reason: str, until: datetime | None, now: datetime) -> None:
    """Freeze an org: its slots pass without jobs. A freeze in effect gets a new end and reason."""
    org = tx.execute(select(orgs).where(orgs.c.id == org_id).with_for_update()).one()
    frozen = org.frozen_at is not None and (org.frozen_until is None or org.frozen_until > now)
    values = {"frozen_at": org.frozen_at if frozen else now, "frozen_until": until, "freeze_reason": reason}
    tx.execute(update(orgs).where(orgs.c.id == org_id).values(values))
    if frozen:
        tx.execute(update(clocks).where(waits_for_unfreeze(org_id, org.frozen_until, now)).values(next_run_at=until))
        notify(tx, "clocks")


def unfreeze(tx: Tx, org_id: str, now: datetime) -> None:
    """End a freeze: the clocks that waited for it are due at once, and firing records their gaps. Raises Conflict if
    the org is not frozen."""
    org = tx.execute(select(orgs).where(orgs.c.id == org_id).with_for_update()).one()
    if org.frozen_at is None or (org.frozen_until is not None and org.frozen_until <= now):
        raise Conflict("the org is not frozen")
    tx.execute(update(orgs).where(orgs.c.id == org_id).values(frozen_until=now))
    # also clocks whose slot is not due yet: the scheduler plans them again
    tx.execute(update(clocks).where(waits_for_unfreeze(org_id, org.frozen_until, now)).values(next_run_at=now))
    notify(tx, "clocks")


def waits_for_unfreeze(org_id: str, frozen_until: datetime | None, now: datetime) -> ColumnElement[bool]:
    """Match the clocks that wait for the end of an org's freeze and not for that of a pause."""
    unpaused = or_(s.paused_at.is_(None), s.paused_until <= now)
    waiting = or_(k.next_run_at.is_(None), k.next_run_at == frozen_until)
    of_org = and_(k.org_id == org_id, k.next_slot.is_not(None))
    return and_(of_org, waiting, select(s.id).where(s.id == k.schedule_id, unpaused).exists())


def freeze_of(tx: Tx, org_id: str, now: datetime) -> Record:
    """Return whether an org is frozen, since when, until when and why."""
    o = orgs.c
    row = tx.execute(select(o.frozen_at, o.frozen_until, o.freeze_reason).where(o.id == org_id)).one()
    frozen = row.frozen_at is not None and (row.frozen_until is None or row.frozen_until > now)
    if not frozen:
        return {"frozen": False, "frozen_at": None, "until": None, "reason": None}
    return {"frozen": True, "frozen_at": row.frozen_at, "until": row.frozen_until, "reason": row.freeze_reason}
