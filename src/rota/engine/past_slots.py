"""Jobs of slots that have passed: of backfills and catch-ups, one after the other, behind all others."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from sqlalchemy import select, update

from rota.core.catch_up import AWAITING_APPROVAL, CATCH_UP_TRIGGER, CatchUp
from rota.core.ids import new_id
from rota.core.model import Fire, Schedule
from rota.core.policy import Terms
from rota.core.states import Verdict
from rota.core.timing.dst import TICK
from rota.db.dialect import Tx, lock_keys
from rota.db.tables import clocks
from rota.db.tables import slots as slot_table
from rota.engine import catch_ups, jobs, slots
from rota.engine.schedules import finish_schedules
from rota.engine.slot_jobs import new_job

BACKFILL_PRIORITY = -1000  # below every priority that a schedule can have

k, t = clocks.c, slot_table.c


def fire_slots(
    tx: Tx, schedule: Schedule, plan: CatchUp, now: datetime, trigger: str, following: Collection[datetime] = ()
) -> None:
    """Fire past slots in order, each at its time of the plan; those of `following` wait for the jobs of other
    schedules. The caller has locked the clock."""
    if not plan.slots:
        return
    slots.cut_from_gaps(tx, schedule, plan.slots)
    serial_key = schedule.strict_serial_key  # in order, even where the schedule's own slots may overlap
    lock_keys(tx, [serial_key])
    new = []
    for slot, run_at in zip(plan.slots, plan.run_at, strict=True):
        job = new_job(schedule, Fire(slot, run_at, solo=False, follows=slot in following), new_id())
        attempts, last_run_id = slots.reopen(tx, schedule.id, slot, job.id)
        new.append(
            replace(
                job,
                serial_key=serial_key,
                trigger=trigger,
                priority=BACKFILL_PRIORITY,
                attempt=attempts,
                last_run_id=last_run_id,
                terms=without_deadlines(job.terms),
            )
        )
    jobs.add(tx, new, now)


def fire_caught_up(tx: Tx, schedule: Schedule, plan: CatchUp, now: datetime) -> None:
    """Fire past slots that count towards `max_runs`, in order, each at its time of the plan. The caller has locked the
    clock."""
    fire_slots(tx, schedule, plan, now, CATCH_UP_TRIGGER)
    if catch_ups.open_of(tx, schedule.id) is None:  # slots beyond `max_runs`: they wait for no decision
        beyond = (t.schedule_id == schedule.id, t.verdict == Verdict.MISSED, t.reason == AWAITING_APPROVAL)
        tx.execute(update(slot_table).where(*beyond).values(reason="limit"))
    of_schedule = k.schedule_id == schedule.id
    tx.execute(update(clocks).where(of_schedule).values(fired=k.fired + len(plan.slots)))
    if schedule.max_runs is not None:
        clock = tx.execute(select(k.fired, k.next_slot).where(of_schedule)).one()
        if clock.fired >= schedule.max_runs and clock.next_slot is not None:
            until = slots.edge_of(tx, schedule.id, min(now, clock.next_slot - TICK))
            finish_schedules(tx, [(schedule.id, until)], now)


def without_deadlines(terms: Terms) -> Terms:
    """Return the terms of a job that is requested after its slot: deadline and window have passed."""
    return replace(terms, deadline_at=None, window_until=None)
