"""Schedules after schedules: the job of a slot waits for the jobs that other schedules have for the same slot.

A schedule is fired when those before it have decided the slot: then their jobs are known, and its own becomes a job
after jobs (`dependencies.py`). A schedule without that slot, or a disabled one, is not waited for. A slot that passed
without a job (paused, skipped, missed) counts as not succeeded, and so does a schedule that was deleted.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, update

from rota.core.errors import Invalid
from rota.core.ids import new_id
from rota.core.model import Schedule
from rota.core.order import AFTER_LEVELS_MAX, When
from rota.core.states import State, Status
from rota.core.timing import stored, triggers
from rota.core.timing.dst import TICK
from rota.db.dialect import Tx, is_listed, lock_keys, notify
from rota.db.tables import clocks, jobs, schedules, slots
from rota.engine import dependencies
from rota.engine.job_states import is_in

HOLD = timedelta(milliseconds=100)  # until a schedule looks again whether those before it have fired
HOLD_MAX = timedelta(seconds=10)  # where one before it is overdue for long: no process fires it

s, k, j = schedules.c, clocks.c, jobs.c
LIVING = s.deleted_at.is_(None)


@dataclass(frozen=True, slots=True)
class Before:
    """What goes before the slots of a schedule: by slot, the last status of each job, None while it is in the queue. A
    schedule without a job for the slot has its own id there."""

    when: When
    held_until: datetime | None  # when to look again, if another schedule has not decided the slots
    statuses: dict[datetime, dict[str, str | None]] = field(default_factory=dict)

    def may_start(self, slot: datetime) -> bool:
        """Whether nothing has to be waited for."""
        statuses = self.statuses.get(slot)
        return not statuses or dependencies.decide(self.when, statuses.values()) is True


def before(tx: Tx, schedule: Schedule, wanted: Sequence[datetime], now: datetime) -> Before:
    """Return what goes before these slots of a schedule."""
    after = schedule.timing.after
    assert after is not None
    columns = (s.id, s.name, s.timing, s.paused_at, s.paused_until, k.next_slot, k.next_run_at)
    stmt = select(*columns).join(clocks, k.schedule_id == s.id)
    rows = {
        row.name: row
        for row in tx.execute(stmt.where(s.org_id == schedule.org_id, s.name.in_(after.schedules), LIVING))
    }
    undecided = [
        row.next_run_at
        for row in rows.values()
        if row.next_run_at is not None
        and row.next_slot is not None
        and row.next_slot <= wanted[-1]
        and not is_paused(row, now)
    ]
    if undecided:
        overdue = (now - min(undecided)) / 10
        return Before(after.when, max(now + min(max(HOLD, overdue), HOLD_MAX), *undecided))
    known = Before(after.when, None)
    for slot in wanted:
        statuses = known.statuses[slot] = {}
        for name in after.schedules:
            row = rows.get(name)
            if row is None:
                statuses[new_id()] = dependencies.DELETED
            else:
                statuses |= status_of(tx, schedule.org_id, row, slot)
    return known


def is_paused(row: Any, now: datetime) -> bool:
    """Return whether a schedule is paused: the slots of the pause pass without a job, also if its end is known."""
    return row.paused_at is not None and bool(row.paused_until is None or row.paused_until > now)


def status_of(tx: Tx, org_id: str, row: Any, slot: datetime) -> dict[str, str | None]:
    """Return the job of a schedule for a slot with its status, or the schedule if the slot passed without a job; empty
    if the schedule has no such slot."""
    passed = slots.c.schedule_id == row.id, slots.c.slot <= slot, slots.c.last_slot >= slot
    stored_slot = tx.execute(select(slots.c.job_id).where(*passed).order_by(slots.c.slot.desc()).limit(1)).one_or_none()
    if stored_slot is not None and stored_slot.job_id is not None:
        return dependencies.statuses_of(tx, org_id, [stored_slot.job_id])
    paused = row.next_slot is not None and row.next_slot <= slot
    if stored_slot is None and not paused:
        return {}
    has_slot = triggers.next_slot(stored.load(row.timing), slot - TICK) == slot
    return {row.id: Status.SKIPPED.value} if has_slot else {}


def record(tx: Tx, schedule: Schedule, before: Before, now: datetime) -> None:
    """Record what the jobs of these slots wait for, and wake those about which is decided already."""
    wanted = [slot for slot, statuses in before.statuses.items() if statuses]
    own = j.schedule_id == schedule.id, j.slot.in_(wanted)
    for job in list(tx.execute(select(j.id, j.slot).where(*own))):
        statuses = before.statuses[job.slot]
        living = [job_id for job_id, status in statuses.items() if status is None]
        tx.execute(update(jobs).where(is_listed(tx, j.id, living)).values(followed=True))
        dependencies.insert(tx, [job.id], statuses, before.when)
        if dependencies.decide(before.when, statuses.values()) is False:
            tx.execute(update(jobs).where(j.id == job.id, is_in(j.state, [State.LATER])).values(run_at=now))
            notify(tx, "later")


def hold(tx: Tx, schedule: Schedule, until: datetime) -> None:
    """Let the clock of a schedule wait, with its slot."""
    tx.execute(update(clocks).where(k.schedule_id == schedule.id, k.next_run_at.is_not(None)).values(next_run_at=until))


def check(tx: Tx, org_id: str, changed: Iterable[Schedule]) -> None:
    """Check stored schedules that run after others. Raises Invalid for a name that is no schedule of the org, for a
    cycle, and for too many levels."""
    following = [schedule for schedule in changed if schedule.timing.after is not None and schedule.deleted_at is None]
    if not following:
        return
    lock_keys(tx, [f"schedule order:{org_id}"])  # two changes at once could close a cycle
    edges: dict[str, tuple[str, ...]] = {}
    for schedule in following:
        assert schedule.timing.after is not None
        names = schedule.timing.after.schedules
        load(tx, org_id, {schedule.name, *names}, edges)
        for position, name in enumerate(names):
            if name not in edges:
                raise Invalid(f"after[{position}]", name, "is not a schedule; see `rota schedule list`")
        if schedule.name in reached(names, edges):
            raise Invalid("after", list(names), f"closes a cycle: these run after {schedule.name!r} themselves")


def load(tx: Tx, org_id: str, names: Collection[str], edges: dict[str, tuple[str, ...]]) -> None:
    """Read the schedules before these, and those before them, into `edges`. Raises Invalid for more than
    AFTER_LEVELS_MAX levels."""
    level, levels = set(names) - edges.keys(), 0
    while level:
        levels += 1
        if levels > AFTER_LEVELS_MAX:
            raise Invalid("after", sorted(names), f"has more than {AFTER_LEVELS_MAX} levels of schedules before it")
        rows = list(tx.execute(select(s.name, s.timing).where(s.org_id == org_id, s.name.in_(sorted(level)), LIVING)))
        edges |= {row.name: tuple(row.timing.get("after") or ()) for row in rows}
        level = {name for row in rows for name in row.timing.get("after") or ()} - edges.keys()


def reached(names: Collection[str], edges: dict[str, tuple[str, ...]]) -> set[str]:
    """Return all schedules before these, and these."""
    seen, level = set[str](), set(names)
    while level:
        seen |= level
        level = {other for name in level for other in edges.get(name, ())} - seen
    return seen
