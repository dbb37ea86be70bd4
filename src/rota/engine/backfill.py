"""Past slots: backfill a range of them, and retry a slot or a run."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy import func, select

from rota.core.catch_up import CatchUp, CatchUpChoice, CatchUpLimits, lowered, plan_catch_up
from rota.core.errors import Conflict
from rota.core.ids import new_id
from rota.core.model import DueSchedule, Fire, Schedule
from rota.core.states import Verdict
from rota.core.timing.dst import TICK
from rota.db.dialect import Tx, lock_keys
from rota.db.tables import clocks
from rota.db.tables import jobs as job_table
from rota.db.tables import runs as run_table
from rota.engine import catch_ups, jobs, past_slots, runs, slots, usual_runs
from rota.engine.records import RunRow, TriggerSpan
from rota.engine.schedules import lock
from rota.engine.slot_jobs import new_job

k = clocks.c
BACKFILL = "backfill"  # trigger of its jobs
COUNTED_FOR = timedelta(hours=24)  # earlier backfills that count towards the limits of one


@dataclass(frozen=True, slots=True)
class PastSlots:
    """A range of a schedule's past: its trigger spans, the slots that ran, those whose job is still in the queue and
    those that wait for the decision about a catch-up."""

    schedule: Schedule
    spans: Sequence[TriggerSpan]
    since: datetime
    until: datetime
    ran: Collection[datetime]
    living: Collection[datetime]
    waiting: Collection[datetime]

    def unfired(self, limit: int, *, reprocess: bool) -> list[datetime]:
        """Return the first `limit` slots that a backfill fires: those that never ran; with `reprocess` all."""
        past = slots.past_slots(self.schedule, self.spans, self.since, self.until)
        return list(islice((slot for slot in past if self.fires(slot, reprocess)), limit))

    def of(self, wanted: Sequence[datetime], *, reprocess: bool) -> list[datetime]:
        """Return which of these slots a backfill fires."""
        return [slot for slot in wanted if self.since <= slot <= self.until and self.fires(slot, reprocess)]

    def fires(self, slot: datetime, reprocess: bool) -> bool:
        return slot not in self.living and slot not in self.waiting and (reprocess or slot not in self.ran)


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
    waiting = catch_ups.open_of(tx, schedule.id)
    undecided = set(waiting.slots) if waiting is not None else set()
    return PastSlots(schedule, slots.spans_of(tx, schedule.id), since, until, ran, queued, undecided)


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """How a backfill is to run, and who asks for it."""

    choice: CatchUpChoice
    limits: CatchUpLimits
    reprocess: bool = False
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Backfilled:
    """The plan of a backfill; the slots that fired; the open catch-up if it waits for an approval instead."""

    plan: CatchUp
    fired: Sequence[datetime] = ()
    id: str | None = None  # of the catch-up: the audit log records it


def price(tx: Tx, schedule: Schedule, wanted: Sequence[datetime], request: BackfillRequest, now: datetime) -> CatchUp:
    """Return the plan of a backfill. Backfills of the schedule in the last day count towards its limits, and slots that
    a decision left out wait in any case."""
    usual = usual_runs.usual_run(tx, schedule.org_id, schedule.id)
    limits = lowered(request.limits, schedule.catch_up_approval_slots)
    earlier = backfilled_since(tx, schedule.id, now - COUNTED_FOR) if limits.any else 0
    plan = plan_catch_up(wanted, request.choice, usual, limits, now, earlier=earlier)
    if earlier and plan.waits_for:
        plan = replace(plan, waits_for=(*plan.waits_for, f"{earlier} of them backfilled in the last 24 hours"))
    refused = catch_ups.refused_ranges(tx, schedule.id, wanted[0], wanted[-1]) if wanted else []
    count = sum(any(first <= slot <= last for first, last in refused) for slot in plan.slots)
    reasons = (f"{count} slots that were not approved before",) if count else ()
    return replace(plan, waits_for=(*plan.waits_for, *reasons))


def backfilled_since(tx: Tx, schedule_id: str, since: datetime) -> int:
    """Return how many jobs of backfills a schedule has in the queue, or had that ended since."""
    queued = tx.execute(
        select(func.count()).where(job_table.c.schedule_id == schedule_id, job_table.c.trigger == BACKFILL)
    ).scalar_one()
    r = run_table.c
    ended = (r.schedule_id == schedule_id, r.recorded_at >= since, r.trigger == BACKFILL)
    alive = select(job_table.c.id).where(job_table.c.id == r.job_id).exists()
    return queued + tx.execute(select(func.count(r.job_id.distinct())).where(*ended, ~alive)).scalar_one()


def fire_past(
    tx: Tx, before: PastSlots, wanted: Sequence[datetime], request: BackfillRequest, now: datetime
) -> Backfilled:
    """Fire chosen past slots one after the other, behind all other jobs of the schedule, or store them as a catch-up
    that waits for an approval. Slots that ran or fired since `before` was read are left out. Raises Conflict if the
    schedule's timing changed, or it has a catch-up that waits already."""
    due = lock(tx, before.schedule.org_id, before.schedule.id)
    schedule = due.schedule
    if (schedule.timing, schedule.enabled) != (before.schedule.timing, before.schedule.enabled):
        raise Conflict(f"schedule {schedule.name!r} was edited while its slots were computed; repeat the backfill")
    current = read_past_slots(tx, due, wanted[0], wanted[-1], now)
    plan = price(tx, schedule, current.of(wanted, reprocess=request.reprocess), request, now)
    if plan.waits_for:
        open_catch_up = catch_ups.open_of(tx, schedule.id)
        if open_catch_up is not None:
            raise Conflict(
                f"this backfill of schedule {schedule.name!r} needs an approval, and its catch-up {open_catch_up.id} "
                "waits for one already; decide that first"
            )
        source, by = catch_ups.CatchUpSource.BACKFILL, request.by
        return Backfilled(plan, (), catch_ups.hold(tx, schedule, plan, source, now, by=by, reprocess=request.reprocess))
    past_slots.fire_slots(tx, schedule, plan, now, BACKFILL)
    return Backfilled(plan, plan.slots)


def retry_slot(
    tx: Tx, due: DueSchedule, slot: datetime, run: RunRow, now: datetime, payload: object | None = None
) -> str:
    """Add a job for another attempt of a slot, with the input of the schedule or `payload`; returns its id, or that of
    the job the slot already has."""
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
        payload=job.payload if payload is None else payload,
        terms=past_slots.without_deadlines(job.terms),
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
        terms=past_slots.without_deadlines(job.terms),
        trace=runs.trace_of(run),
    )
    return jobs.enqueue(tx, [job], now, "preserve")[0]
