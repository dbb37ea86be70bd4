"""Past slots: backfill a range of them, and retry a slot or a run."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice

from sqlalchemy import select

from rota.core.errors import Conflict
from rota.core.ids import new_id
from rota.core.model import DueSchedule, Fire, Schedule
from rota.core.policy import Terms
from rota.core.states import Verdict
from rota.core.timing.dst import TICK
from rota.db.dialect import Tx, lock_keys
from rota.db.tables import clocks
from rota.engine import jobs, runs, slots
from rota.engine.firing import new_job
from rota.engine.records import RunRow, TriggerSpan
from rota.engine.schedules import lock

k = clocks.c
BACKFILL_PRIORITY = -1000  # below every priority that a schedule can have


@dataclass(frozen=True, slots=True)
class PastSlots:
    """A range of a schedule's past: its trigger spans, the slots that ran and those whose job is still in the queue."""

    schedule: Schedule
    spans: Sequence[TriggerSpan]
    since: datetime
    until: datetime
    ran: Collection[datetime]
    living: Collection[datetime]

    def unfired(self, limit: int, *, reprocess: bool) -> list[datetime]:
        """Return the first `limit` slots that a backfill fires: those that never ran; with `reprocess` all."""
        past = slots.past_slots(self.schedule, self.spans, self.since, self.until)
        return list(islice((slot for slot in past if self.fires(slot, reprocess)), limit))

    def fires(self, slot: datetime, reprocess: bool) -> bool:
        return slot not in self.living and (reprocess or slot not in self.ran)


def read_past_slots(tx: Tx, due: DueSchedule, since: datetime, until: datetime, now: datetime) -> PastSlots:
    """Return the past of a schedule in a range, without slots at or after its clock and slots that retention pruned."""
    schedule = due.schedule
    decided = tx.execute(select(k.decided_until).where(k.schedule_id == schedule.id)).scalar_one()
    since = max(since, decided + TICK) if decided is not None else since
    until = min(until, (due.next_slot or now) - TICK)
    rows = slots.single_slots(tx, schedule.id, since, until)
    skipped = slots.skipped_jobs(tx, [row.job_id for row in rows.values() if row.job_id is not None])
    fired = {slot: row for slot, row in rows.items() if row.verdict in (None, Verdict.RAN)}
    ran = {slot for slot, row in fired.items() if row.job_id not in skipped}
    queued_jobs = jobs.of_schedules(tx, [schedule.id]).get(schedule.id, [])
    queued = {job.slot for job in queued_jobs if job.slot is not None}
    return PastSlots(schedule, slots.spans_of(tx, schedule.id), since, until, ran, queued)


def fire_past(
    tx: Tx, before: PastSlots, wanted: Sequence[datetime], *, reprocess: bool, now: datetime
) -> list[datetime]:
    """Fire chosen past slots one after the other, behind all other jobs of the schedule; returns those that fired.
    Slots that ran or fired since `before` was read are left out. Raises Conflict if the schedule's timing changed."""
    due = lock(tx, before.schedule.org_id, before.schedule.id)
    schedule = due.schedule
    if (schedule.timing, schedule.enabled) != (before.schedule.timing, before.schedule.enabled):
        raise Conflict(f"schedule {schedule.name!r} was edited while its slots were computed; repeat the backfill")
    current = read_past_slots(tx, due, wanted[0], wanted[-1], now)
    wanted = [slot for slot in wanted if current.since <= slot <= current.until and current.fires(slot, reprocess)]
    if not wanted:
        return []
    slots.cut_from_gaps(tx, schedule, wanted)
    serial_key = schedule.strict_serial_key  # in order, even where the schedule's own slots may overlap
    lock_keys(tx, [serial_key])
    new = []
    for slot in wanted:
        job = new_job(schedule, Fire(slot, now, solo=False), new_id())
        attempts, last_run_id = slots.reopen(tx, schedule.id, slot, job.id)
        new.append(
            replace(
                job,
                serial_key=serial_key,
                trigger="backfill",
                priority=BACKFILL_PRIORITY,
                attempt=attempts,
                last_run_id=last_run_id,
                terms=without_deadlines(job.terms),
            )
        )
    jobs.add(tx, new, now)
    return wanted


def retry_slot(tx: Tx, due: DueSchedule, slot: datetime, run: RunRow, now: datetime) -> str:
    """Add a job for another attempt of a slot; returns its id, or that of the job the slot already has."""
    schedule = due.schedule
    living = [row for row in jobs.of_schedules(tx, [schedule.id]).get(schedule.id, []) if row.slot == slot]
    if living:
        return str(living[0].id)
    if schedule.serial_key:
        lock_keys(tx, [schedule.serial_key])
    job = new_job(schedule, Fire(slot, now, solo=False), new_id())
    slots.cut_from_gaps(tx, schedule, [slot])
    attempts, last_run_id = slots.reopen(tx, schedule.id, slot, job.id)
    job = replace(
        job,
        trigger="retry",
        terms=without_deadlines(job.terms),
        attempt=attempts,
        last_run_id=last_run_id or run.id,
        trace=runs.trace_of(run),
    )
    jobs.add(tx, [job], now)
    return job.id


def retry_run(tx: Tx, schedule: Schedule, run: RunRow, attempts: int, now: datetime) -> str:
    """Add a job for another attempt of a run outside the slots, in order with the schedule's other jobs."""
    job = new_job(schedule, Fire(now, now, solo=False), new_id())
    job = replace(
        job,
        slot=None,
        job_key=f"retry:{run.job_id}",
        payload=run.input,
        trigger="retry",
        attempt=attempts,
        last_run_id=run.id,
        terms=without_deadlines(job.terms),
        trace=runs.trace_of(run),
    )
    return jobs.enqueue(tx, [job], now, "preserve")[0]


def without_deadlines(terms: Terms) -> Terms:
    """Return the terms of a job that is requested after its slot: deadline and window have passed."""
    return replace(terms, deadline_at=None, window_until=None)
