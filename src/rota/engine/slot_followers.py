"""Schedules that run after others: slots that were skipped because those of the others waited for an approval fire
again when these do."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select

from rota.core.catch_up import CATCH_UP_TRIGGER, NO_LIMITS, CatchUpChoice, plan_catch_up
from rota.core.model import Schedule
from rota.core.states import Status
from rota.db.dialect import Tx
from rota.db.tables import runs, schedules, slots
from rota.engine import past_slots, slot_order
from rota.engine.schedules import LIVING, lock

s, t, r = schedules.c, slots.c, runs.c


def fire_again(tx: Tx, schedule: Schedule, fired: Sequence[datetime], now: datetime) -> None:
    """Fire these slots of the schedules that run after this one, and of those after them, where they were skipped for
    it. Their jobs wait for the ones before them."""
    for follower_id in followers_of(tx, schedule):
        skipped = skipped_slots(tx, follower_id, fired)
        if not skipped:
            continue
        follower = lock(tx, schedule.org_id, follower_id).schedule
        before = slot_order.before(tx, follower, skipped, now)
        following = [slot for slot in skipped if not before.may_start(slot)]
        plan = plan_catch_up(skipped, CatchUpChoice(), None, NO_LIMITS, now)
        past_slots.fire_slots(tx, follower, plan, now, CATCH_UP_TRIGGER, following)
        slot_order.record(tx, follower, before, now)
        fire_again(tx, follower, skipped, now)


def followers_of(tx: Tx, schedule: Schedule) -> list[str]:
    """Return the ids of the schedules that run directly after this one."""
    rows = tx.execute(select(s.id, s.timing).where(s.org_id == schedule.org_id, LIVING, s.enabled).order_by(s.id))
    return [row.id for row in rows if schedule.name in (row.timing.get("after") or ())]


def skipped_slots(tx: Tx, schedule_id: str, wanted: Sequence[datetime]) -> list[datetime]:
    """Return which of these slots of a schedule were skipped because of those before them."""
    last = (r.job_id == t.job_id, r.status == Status.SKIPPED, r.reason == "dependency")
    stmt = select(t.slot).where(t.schedule_id == schedule_id, t.slot.in_(wanted), select(r.id).where(*last).exists())
    return list(tx.execute(stmt.order_by(t.slot)).scalars())
