"""Due schedules: read them, turn their slots into jobs (`fire`), set their clocks to the next slot."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import and_, bindparam, func, or_, select, update

from rota.core.errors import Conflict
from rota.core.ids import new_id
from rota.core.kinds import traits_of
from rota.core.model import DueSchedule, Fire, FireResult, LeaseOffer, Plan, Schedule
from rota.core.overlap import coalesced_jobs, skips_for_overlap, stopped_jobs, without_fires
from rota.core.plan import passed_gap
from rota.core.policy import Overlap
from rota.core.states import Condition, State, Status, Verdict
from rota.core.timing import triggers
from rota.core.timing.dst import TICK
from rota.db import tables
from rota.db.dialect import Tx, lock_keys
from rota.db.statement import insert_new
from rota.db.tables import clocks, orgs, schedule_stats, schedules
from rota.engine import catch_ups, freezes, jobs, past_slots, slot_order, slots, statements
from rota.engine.instruments import CLAIMS, FIRED, FIRES, SLOTS, WITH_FIRE
from rota.engine.jobs import QueuedJob
from rota.engine.metrics import Metrics, count_on_commit
from rota.engine.schedule_rows import COLUMNS, schedule_of
from rota.engine.schedules import LIVING, end_spans, finish_schedules, set_clock, set_last_status_skipped
from rota.engine.slot_jobs import new_job

s, k = schedules.c, clocks.c
REVISION = COLUMNS.index("revision")
ORG_ID = COLUMNS.index("org_id")
NEXT_SLOT = len(s) + 1  # in a row of `read_clocks`
REASON_CHARS = 1000  # of an error that `condition_reason` keeps
REPAIR_BATCH_ROWS = 500
NEXT_DUE_OF_KIND = select(func.min(k.next_run_at)).where(
    k.next_run_at.is_not(None),  # implied, but SQLite's planner needs it to use the partial index
    k.next_run_at > bindparam("after"),
    k.kind == bindparam("kind"),
)


def next_due_at(tx: Tx, kinds: Collection[str], after: datetime) -> datetime | None:
    """Return when the next schedule of these kinds is due, after `after`."""
    firsts = [tx.execute(NEXT_DUE_OF_KIND, {"kind": kind, "after": after}).scalar_one() for kind in sorted(kinds)]
    return min((at for at in firsts if at is not None), default=None)


def read_clocks(
    tx: Tx, kinds: Collection[str], now: datetime, limit: int, only_orgs: Collection[str] | None = None
) -> list[tuple[object, ...]]:
    """Return the rows of due schedules, longest overdue first; of all orgs, or of the orgs with these slugs."""
    return statements.DUE_SCHEDULES.run(
        tx, kinds=list(kinds), now=now, any_org=only_orgs is None, slugs=list(only_orgs or ()), count=limit
    )


def windows_of(tx: Tx, rows: Sequence[tuple[Any, ...]], until: datetime) -> freezes.WindowsByOrg:
    """Return the freeze windows from the first slot of rows of `read_clocks` on that begin by `until`. Read them after
    the rows: `fire` then notices windows that changed in between."""
    frozen = [row for row in rows if row[-1]]  # orgs that ever had a window
    firsts = [slot for row in frozen if (slot := row[NEXT_SLOT]) is not None]
    return freezes.between(tx, {row[ORG_ID] for row in frozen}, min(firsts), until) if firsts else {}


def due_schedules_of(
    rows: Iterable[tuple[Any, ...]], windows: freezes.WindowsByOrg
) -> tuple[list[DueSchedule], list[tuple[str, int, str]]]:
    """Return the records of rows of `read_clocks` with the freeze windows that cover them, and the rows that cannot be
    parsed as (id, revision, error)."""
    due: list[DueSchedule] = []
    broken: list[tuple[str, int, str]] = []
    for row in rows:
        try:
            fired, next_slot, frozen_at, frozen_until, at, revision = row[len(s) :]
            schedule = schedule_of(row)
            covering = freezes.covering(schedule, windows.get(schedule.org_id, ()))
            due.append(DueSchedule(schedule, next_slot, fired, frozen_at, frozen_until, at, revision, covering))
        except Exception as error:  # a corrupt row must not stop the scheduler
            broken.append((row[0], row[REVISION], f"{type(error).__name__}: {error}"))
    return due, broken


def fire(
    tx: Tx, planned: Sequence[tuple[DueSchedule, Plan]], now: datetime, lease: LeaseOffer | None = None
) -> FireResult:
    """FIRE_IS_ONE_TRANSACTION: carry out the plans whose schedule did not change since it was read. With a `lease` its
    worker claims the jobs in the same transaction, unless a limit of the org or queue has to be counted first. Slots
    that are not due yet are fired only with a lease."""
    locked = statements.LOCK_CLOCKS.run(tx, [(due.schedule.id,) for due, _ in planned])
    current = {schedule_id: state for schedule_id, _, *state in locked}
    unchanged = [(due, plan) for due, plan in planned if current.get(due.schedule.id) == state_as_read(due)]
    following = [(due, plan) for due, plan in unchanged if due.schedule.timing.after is not None and plan.fires]
    if following:
        unchanged = [(due, plan) for due, plan in unchanged if due.schedule.timing.after is None or not plan.fires]
    fired = apply_plans(tx, unchanged, now, None if any(limited for _, limited, *_ in locked) else lease)
    return fired if not following else fire_following(tx, following, now, fired)


def fire_following(tx: Tx, planned: Sequence[tuple[DueSchedule, Plan]], now: datetime, fired: FireResult) -> FireResult:
    """Carry out plans of schedules that run after others, whose slots are decided; the others are due again shortly
    after those. Returns `fired` with what was fired."""
    ids, fires = list(fired.schedule_ids), list(fired.fires)
    waiting = [(due, plan) for due, plan in planned if due.is_due(now)]
    while waiting:  # a schedule may run after one of this batch
        held: list[tuple[DueSchedule, Plan]] = []
        for due, plan in waiting:
            before = slot_order.before(tx, due.schedule, [slot_fire.slot for slot_fire in plan.fires], now)
            if before.held_until is not None:
                held.append((due, plan))
                slot_order.hold(tx, due.schedule, before.held_until)
                continue
            parts = [replace(part, follows=not before.may_start(part.slot)) for part in plan.fires]
            result = apply_plans(tx, [(due, replace(plan, fires=tuple(parts)))], now)
            slot_order.record(tx, due.schedule, before, now)
            ids += result.schedule_ids
            fires += result.fires
        if len(held) == len(waiting):
            break
        waiting = held
    return FireResult(ids, fires, fired.leased_jobs)


def state_as_read(due: DueSchedule) -> list[object]:
    """Return the columns that LOCK_CLOCKS returns after `limited`, if the schedule did not change since it was read."""
    return [due.next_slot, due.schedule.revision, True, due.frozen_at, due.frozen_until, due.freeze_revision]


def apply_plans(
    tx: Tx, planned: Sequence[tuple[DueSchedule, Plan]], now: datetime, lease: LeaseOffer | None = None
) -> FireResult:
    """Write slots, jobs, gaps and clocks of plans. The caller has locked the clocks."""
    strict = [due.schedule.strict_serial_key for due, plan in planned if plan.catch_up is not None]
    lock_keys(tx, [*strict, *(due.schedule.serial_key for due, _ in planned if due.schedule.serial_key)])
    busy = jobs.of_schedules(tx, [due.schedule.id for due, _ in planned if due.schedule.overlap is not Overlap.ALLOW])
    planned = list(due_or_startable(planned, busy, now, lease))
    if not planned:
        return FireResult()
    fires = [(due.schedule, slot_fire, new_id()) for due, plan in planned for slot_fire in plan.fires]
    rows = [slot_row(schedule, slot_fire, job_id, busy) for schedule, slot_fire, job_id in fires]
    inserted = set(insert_new(tx, tables.slots, rows, ("schedule_id", "slot")))
    fires = [
        (schedule, slot_fire, job_id)
        for schedule, slot_fire, job_id in fires
        if (schedule.id, slot_fire.slot) in inserted and not skips_for_overlap(schedule, busy.get(schedule.id, ()))
    ]
    replace_older(tx, fires, busy, now)
    # a serial key that only this schedule uses has no waiting job; jobs of others may wait on a shared one
    unshared = {f"schedule:{schedule.id}" for schedule, _, _ in fires if schedule.id not in busy}
    idle = {schedule.serial_key for schedule, _, _ in fires if schedule.serial_key in unshared}
    leased = jobs.add(
        tx, [new_job(schedule, slot_fire, job_id) for schedule, slot_fire, job_id in fires], now, idle, lease
    )
    slots.record_gaps(tx, [(due.schedule, gap) for due, plan in planned for gap in plan.gaps])
    for due, plan in planned:
        if plan.catch_up is not None and plan.catch_up.waits_for:
            catch_ups.hold(tx, due.schedule, plan.catch_up, catch_ups.CatchUpSource.OUTAGE, now)
    skips = {due.schedule.id for due, _ in planned if skips_for_overlap(due.schedule, busy.get(due.schedule.id, ()))}
    skipped = [(due.schedule, plan) for due, plan in planned if plan.fires and due.schedule.id in skips]
    slots.count_skips(tx, [(schedule.id, len(plan.fires)) for schedule, plan in skipped])
    set_last_status_skipped(tx, [schedule for schedule, _ in skipped])
    advance(
        tx,
        [(due, without_fires(due, plan, now) if due.schedule.id in skips else plan) for due, plan in planned],
        now,
    )
    skipped_slots = sum(len(plan.fires) for _, plan in skipped)
    caught_up = []
    for due, plan in planned:
        if plan.catch_up is not None and not plan.catch_up.waits_for:
            past_slots.fire_caught_up(tx, due.schedule, plan.catch_up, now)
            spread = zip(plan.catch_up.slots, plan.catch_up.run_at, strict=True)
            caught_up += [Fire(slot, run_at, solo=False) for slot, run_at in spread]

    def count_slots(metrics: Metrics) -> None:
        for instrument, labels, amount in (
            (FIRES, (), len(fires) + len(caught_up)),
            (SLOTS, (FIRED,), len(fires) + len(caught_up)),
            (SLOTS, (Verdict.SKIPPED.value,), skipped_slots),
            (CLAIMS, (WITH_FIRE,), len(leased)),
        ):
            if amount:
                metrics.add(instrument, *labels, amount=amount)

    count_on_commit(tx, count_slots)
    resumed = [due.schedule.id for due, _ in planned if (due.schedule.paused_until or now + TICK) <= now]
    if resumed:
        unpaused = {"paused_at": None, "paused_until": None, "pause_reason": None}
        tx.execute(update(schedules).where(s.id.in_(resumed)).values(unpaused))
    fired = [*(slot_fire for _, slot_fire, _ in fires), *caught_up]
    return FireResult({due.schedule.id for due, _ in planned}, fired, leased)


def due_or_startable(
    planned: Sequence[tuple[DueSchedule, Plan]],
    busy: Mapping[str, Sequence[QueuedJob]],
    now: datetime,
    lease: LeaseOffer | None,
) -> Iterator[tuple[DueSchedule, Plan]]:
    """Yield plans that are due, and those ahead of time whose jobs the lease's worker could start when they are due."""
    room = lease.room if lease is not None else 0
    for due, plan in planned:
        schedule = due.schedule
        alone = schedule.id not in busy and schedule.serial_key in (None, f"schedule:{schedule.id}")
        if due.is_due(now) or (room > 0 and lease is not None and alone and lease.accepts(schedule)):
            room -= len(plan.fires)
            yield due, plan


def replace_older(
    tx: Tx, fires: Sequence[tuple[Schedule, Fire, str]], busy: Mapping[str, Sequence[QueuedJob]], now: datetime
) -> None:
    """Coalesce waiting jobs into newer slots; the policy `replace` also stops running jobs."""
    into = {schedule.id: slot_fire.slot for schedule, slot_fire, _ in fires if slot_fire.solo}
    solo = [slot_fire for _, slot_fire, _ in fires if slot_fire.solo]
    older = {row.id: row for key in into for row in coalesced_jobs(solo, busy.get(key, []))}
    if older:
        withdrawn = jobs.withdraw(tx, tables.jobs.c.id.in_(list(older)), Status.COALESCED, None, now, promoting=False)
        for schedule_id, slot in withdrawn:
            slots.decide_slot(tx, schedule_id, slot, Verdict.COALESCED, None, into[schedule_id])
    for schedule in {schedule.id: schedule for schedule, _, _ in fires if schedule.overlap is Overlap.REPLACE}.values():
        stop_replaced(tx, [row for row in busy.get(schedule.id, []) if row.id not in older], now)


def stop_replaced(tx: Tx, rows: Iterable[QueuedJob], now: datetime) -> None:
    """Cancel the jobs that a replacing job replaces: through their worker, or in the queue."""
    ids = [row.id for row in stopped_jobs(rows)]
    jobs.request_cancel(tx, ids, "replaced", now)
    jobs.withdraw(tx, tables.jobs.c.id.in_(ids), Status.CANCELED, "replaced", now, promoting=False)


def slot_row(schedule: Schedule, fire: Fire, job_id: str, busy: Mapping[str, Sequence[QueuedJob]]) -> dict[str, object]:
    skipped = skips_for_overlap(schedule, busy.get(schedule.id, ()))
    return {
        "schedule_id": schedule.id,
        "slot": fire.slot,
        "last_slot": fire.slot,
        "count": 1,
        "verdict": Verdict.SKIPPED.value if skipped else None,
        "reason": traits_of(schedule.kind).skip_reason if skipped else None,
        "job_id": None if skipped else job_id,
        "attempts": 0,
    }


def advance(tx: Tx, planned: Sequence[tuple[DueSchedule, Plan]], now: datetime) -> None:
    """Set the clocks to their next slots; finish schedules that have none."""
    rows = [(due.schedule.id, plan.next_slot, plan.next_run_at, len(plan.fires)) for due, plan in planned]
    statements.ADVANCE_CLOCKS.run(tx, rows)
    finish_schedules(tx, [(due.schedule.id, plan.handled) for due, plan in planned if plan.next_slot is None], now)


def fail_slots(tx: Tx, due: DueSchedule, plan: Plan, error: str, now: datetime) -> None:
    """Record the slots of a plan that made its batch fail as skipped, count one failure, and advance the clock."""
    if not fire(tx, [(due, replace(plan, fires=(), gaps=()))], now).schedule_ids:
        return
    schedule, first = due.schedule, due.next_slot
    gap = first and passed_gap(schedule.timing, first, plan.handled, Verdict.SKIPPED, "scheduler_failed")
    if gap:
        slots.record_gaps(tx, [(schedule, gap)])
    st = schedule_stats.c
    tx.execute(
        update(schedule_stats)
        .where(st.schedule_id == schedule.id)
        .values(failure_count=st.failure_count + 1, last_run_status="scheduler_failed")
    )
    tx.execute(update(schedules).where(s.id == schedule.id).values(condition_reason=error[:REASON_CHARS]))


def mark_broken(tx: Tx, schedule_id: str, revision: int, error: str, now: datetime) -> None:
    """Set a schedule that cannot be evaluated to `broken`: it has no slots until it is edited."""
    first = tx.execute(select(k.next_slot).where(k.schedule_id == schedule_id).with_for_update()).scalar()
    stmt = update(schedules).where(s.id == schedule_id, s.revision == revision)
    values = {
        "condition": Condition.BROKEN,
        "condition_reason": error[:REASON_CHARS],
        "revision": revision + 1,
        "updated_at": now,
    }
    if tx.execute(stmt.values(values)).rowcount:
        tx.execute(update(clocks).where(k.schedule_id == schedule_id).values(next_run_at=None, next_slot=None))
        until = slots.edge_of(tx, schedule_id, now if first is None else min(now, first - TICK))
        end_spans(tx, [(schedule_id, until)])


def hold_frozen(tx: Tx, held: Sequence[DueSchedule]) -> None:
    """Let the clocks of frozen orgs wait for the end of the freeze, when their slots are recorded as one gap."""
    org_ids = sorted({due.schedule.org_id for due in held})
    stmt = select(orgs.c.id, orgs.c.frozen_at, orgs.c.frozen_until).where(orgs.c.id.in_(org_ids)).order_by(orgs.c.id)
    freezes = {row.id: (row.frozen_at, row.frozen_until) for row in tx.execute(stmt.with_for_update(read=True))}
    for due in sorted(held, key=lambda due: due.schedule.id):
        if freezes.get(due.schedule.org_id) == (due.frozen_at, due.frozen_until):
            same = and_(k.schedule_id == due.schedule.id, k.next_slot == due.next_slot, k.next_run_at.is_not(None))
            tx.execute(update(clocks).where(same).values(next_run_at=due.frozen_until))


def repair_clocks(tx: Tx, now: datetime) -> list[str]:
    """RECONCILER_GUARANTEES_CHAIN: plan the next slot of enabled schedules that have none; return their ids."""
    frozen = and_(orgs.c.frozen_at.is_not(None), or_(orgs.c.frozen_until.is_(None), orgs.c.frozen_until > now))
    unpaused = or_(s.paused_at.is_(None), s.paused_until <= now)
    stmt = (
        select(*s, k.next_slot)
        .select_from(clocks.join(schedules, s.id == k.schedule_id).join(orgs, orgs.c.id == s.org_id))
        .where(k.next_run_at.is_(None), s.enabled, LIVING, unpaused, s.condition == Condition.OK, ~frozen)
        .order_by(k.schedule_id)
        .limit(REPAIR_BATCH_ROWS)
        .with_for_update(of=clocks, skip_locked=True)
    )
    repaired = []
    for row in tx.execute(stmt).all():
        schedule = schedule_of(row)
        upcoming = row.next_slot or triggers.next_slot(schedule.timing, now)
        if upcoming is None:
            finish_schedules(tx, [(schedule.id, now)], now)
        else:
            set_clock(tx, schedule, upcoming, now)
            repaired.append(schedule.id)
    return repaired


def run_now(
    tx: Tx,
    schedule: Schedule,
    payload: object,
    overlap: Overlap,
    trace: str | None,
    now: datetime,
    trigger: str = "manual",
) -> str:
    """Add a job outside the slots, under an overlap policy; the next slot is unchanged. Returns its id, or the id of a
    waiting job with the same input where one job may wait. Raises Conflict if the policy allows no job now."""
    own_input = payload != schedule.input
    schedule = replace(schedule, overlap=overlap, input=payload)
    if schedule.serial_key:
        lock_keys(tx, [schedule.serial_key])
    busy = jobs.of_schedules(tx, [schedule.id]).get(schedule.id, [])
    if skips_for_overlap(schedule, busy):
        raise Conflict(f"schedule {schedule.name}: job {busy[0].id} is not done yet, and its overlap policy is skip")
    waiting = next((row.id for row in busy if row.solo_key is not None or is_waiting_request(row)), None)
    if schedule.keeps_one_waiting and waiting is not None:
        if jobs.payload_of(tx, waiting) != payload:
            raise Conflict(
                f"schedule {schedule.name}: job {waiting} waits with another input, and the overlap policy lets one "
                "job wait; cancel that job, wait until it starts, or run with overlap queue_all"
            )
        return str(waiting)
    if overlap is Overlap.REPLACE:
        stop_replaced(tx, busy, now)
    # the next slot may replace this job while it waits (solo), unless it has an input of its own
    job = new_job(schedule, Fire(now, now, schedule.keeps_one_waiting and not own_input), new_id())
    job = replace(job, slot=None, job_key=None, trigger=trigger, trace=trace)
    jobs.add(tx, [job], now)
    return job.id


def is_waiting_request(row: QueuedJob) -> bool:
    """Return whether a job was requested outside the slots and has not started."""
    return row.trigger == "manual" and row.state in (State.READY, State.BLOCKED, State.LATER)
