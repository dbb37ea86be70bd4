"""Slots: the times at which schedules are due. The verdict of a fired slot follows from its job and runs; a slot that
did not fire has its verdict in its row, and consecutive ones share a row, a gap."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

from sqlalchemy import and_, bindparam, delete, func, literal, or_, select, update

from rota.core.effort import REQUEST_STEPS
from rota.core.errors import TooMuchEffort
from rota.core.model import Gap, Schedule
from rota.core.states import Status, Verdict
from rota.core.timing import stored, triggers
from rota.core.timing.counting import count_slots
from rota.core.timing.dst import TICK
from rota.core.timing.triggers import Timing
from rota.db.dialect import Tx
from rota.db.statement import insert_new, insert_rows
from rota.db.tables import clocks, jobs, runs, schedule_stats, schedules, slots, trigger_spans
from rota.engine.instruments import SLOTS
from rota.engine.metrics import count_on_commit
from rota.engine.records import AuditedSchedule, SlotRow, TriggerSpan

t = slots.c
GAP_COUNT_LIMIT = 10_000  # slots of a gap that are counted at once; maintenance counts longer gaps
ID_BATCH_ROWS = 500  # ids in one IN list
ADD_SKIPPED = (
    update(schedule_stats)
    .where(schedule_stats.c.schedule_id == bindparam("of_schedule"))
    .values(skipped_count=schedule_stats.c.skipped_count + bindparam("new_skips"))
)


def record_gaps(tx: Tx, gaps: Sequence[tuple[Schedule, Gap]]) -> None:
    """Store the verdict of slots that did not fire, and count those that were skipped."""
    values = [
        {
            "schedule_id": schedule.id,
            "slot": gap.first,
            "last_slot": gap.last,
            "count": gap.count,
            "verdict": str(gap.verdict),
            "reason": gap.reason,
            "note": gap.note,
            "into_slot": gap.into,
            "attempts": 0,
        }
        for schedule, gap in gaps
    ]
    inserted = set(insert_new(tx, slots, values, ("schedule_id", "slot")))
    for schedule, gap in gaps:
        if (schedule.id, gap.first) in inserted and gap.count:  # `set_count` counts those of a longer gap
            count_slots_on_commit(tx, gap.verdict, gap.count)
    # a gap too long to count while firing counts as one here
    count_skips(tx, [(schedule.id, gap.count or 1) for schedule, gap in gaps if gap.verdict == Verdict.SKIPPED])


def count_slots_on_commit(tx: Tx, verdict: str, number: int) -> None:
    count_on_commit(tx, lambda metrics: metrics.add(SLOTS, str(verdict), amount=number))


def count_skips(tx: Tx, skipped: Sequence[tuple[str, int]]) -> None:
    """Add (schedule id, number of skipped slots) to the counters of the schedules."""
    if not skipped:
        return
    counts: dict[str, int] = {}
    for schedule_id, count in skipped:
        counts[schedule_id] = counts.get(schedule_id, 0) + count
    tx.execute(ADD_SKIPPED, [{"of_schedule": key, "new_skips": count} for key, count in sorted(counts.items())])


def decide_slot(
    tx: Tx, schedule_id: str, slot: datetime | None, verdict: Verdict | None, reason: str | None, into: datetime | None
) -> None:
    """Store the verdict of a fired slot whose job was withdrawn."""
    if slot is not None and verdict is not None:
        home = and_(t.schedule_id == schedule_id, t.slot == slot)
        tx.execute(update(slots).where(home).values(verdict=verdict, reason=reason, into_slot=into))


def edge_of(tx: Tx, schedule_id: str, now: datetime) -> datetime:
    """Return the time from which an edited schedule is planned: `now`, or its last decided slot if the system clock was
    set back. Deletes an operator's skip of a future slot: it was meant for the old trigger."""
    ahead = and_(t.schedule_id == schedule_id, t.slot > now)
    tx.execute(delete(slots).where(ahead, t.reason == "operator"))
    last = select(func.max(func.coalesce(t.last_slot, t.slot, type_=t.slot.type))).where(t.schedule_id == schedule_id)
    decided: datetime | None = tx.execute(last.where(t.slot > now)).scalar()
    return now if decided is None else max(now, decided)


def single_slots(tx: Tx, schedule_id: str, since: datetime, until: datetime) -> dict[datetime, SlotRow]:
    """Return the rows of single slots in a range, without gaps. Raises TooMuchEffort if they are more than one request
    may read."""
    stmt = select(slots).where(t.schedule_id == schedule_id, t.slot.between(since, until)).order_by(t.slot)
    rows = tx.execute(stmt.limit(REQUEST_STEPS + 1)).all()
    if len(rows) > REQUEST_STEPS:
        raise TooMuchEffort(
            "from", since.isoformat(), f"begins a range with more than {REQUEST_STEPS} slots; choose a shorter range"
        )
    single = [SlotRow(**row._asdict()) for row in rows if row.last_slot is None or row.last_slot == row.slot]
    return {row.slot: row for row in single}


def past_slots(
    schedule: Schedule, spans: Sequence[TriggerSpan], since: datetime, until: datetime
) -> Iterator[datetime]:
    """Yield past slots by the trigger in effect at the time; before the schedule was created and while it was disabled,
    by its current trigger."""
    after = since - TICK
    present = triggers.reaching_back(schedule.timing, since)
    for span in spans:
        yield from triggers.slots_between(present, after, min(span.from_at, until))
        after = max(after, span.from_at)
        end = until if span.until_at is None else min(span.until_at, until)
        yield from triggers.slots_between(stored.load(span.timing), after, end, span.from_at)
        after = max(after, end)
    yield from triggers.slots_between(present, after, until)


def skipped_jobs(tx: Tx, job_ids: Collection[str]) -> set[str]:
    """Return which of these jobs ended as skipped, for any reason: a deadline, a grant, a newer job."""
    stmt = select(runs.c.job_id).where(runs.c.job_id.in_(job_ids), runs.c.status == Status.SKIPPED)
    return set(tx.execute(stmt).scalars())


def cut_from_gaps(tx: Tx, schedule: Schedule, wanted: Sequence[datetime]) -> None:
    """Remove slots that are about to run from the gap rows that contain them; the rest of a gap remains as gaps."""
    first, last = wanted[0], wanted[-1]
    stmt = select(slots).where(t.schedule_id == schedule.id, t.slot <= last, t.last_slot >= first, t.last_slot > t.slot)
    inside = set(wanted)
    spans = spans_of(tx, schedule.id)
    for row in tx.execute(stmt).all():
        ruled = [span.timing for span in spans if span.from_at < row.slot]
        timing = stored.load(ruled[-1]) if ruled else schedule.timing
        tx.execute(delete(slots).where(t.schedule_id == schedule.id, t.slot == row.slot))
        removed = sorted(slot for slot in inside if row.slot <= slot <= row.last_slot)
        pieces: list[Gap] = []
        start: datetime | None = row.slot
        for slot in removed:
            before = triggers.last_slot(timing, slot - TICK, start - TICK) if start else None
            if start is not None and before is not None and start <= before:
                pieces.append(Gap(start, before, None, row.verdict, row.reason, row.into_slot))
            start = triggers.next_slot(timing, slot)
        if start is not None and start <= row.last_slot:
            pieces.append(Gap(start, row.last_slot, None, row.verdict, row.reason, row.into_slot))
        values = [
            {
                "schedule_id": schedule.id,
                "slot": piece.first,
                "last_slot": piece.last,
                "count": count_slots(timing, piece.first - TICK, piece.last, GAP_COUNT_LIMIT),
                "verdict": piece.verdict,
                "reason": piece.reason,
                "into_slot": piece.into,
                "attempts": 0,
            }
            for piece in pieces
        ]
        insert_rows(tx, slots, values)


def reopen(tx: Tx, schedule_id: str, slot: datetime, job_id: str) -> tuple[int, str | None]:
    """Give a slot a new job; returns its number of attempts and the id of its last run."""
    home = and_(t.schedule_id == schedule_id, t.slot == slot)
    row = tx.execute(select(slots).where(home).with_for_update()).one_or_none()
    if row is None:
        new = {"schedule_id": schedule_id, "slot": slot, "last_slot": slot, "count": 1, "job_id": job_id, "attempts": 0}
        insert_rows(tx, slots, [new])
        return 0, None
    attempts, last_run_id = row.attempts, None
    if row.job_id is not None:
        last = select(runs.c.id, runs.c.attempt).where(runs.c.job_id == row.job_id, runs.c.lost_fence == 0)
        run = tx.execute(last.order_by(runs.c.attempt.desc()).limit(1)).one_or_none()
        if run is not None:
            attempts, last_run_id = max(attempts, run.attempt), run.id
    values = {"verdict": None, "reason": None, "into_slot": None, "job_id": job_id, "attempts": attempts}
    tx.execute(update(slots).where(home).values(values))
    return attempts, last_run_id


def uncounted_gaps(tx: Tx, limit: int) -> list[tuple[Timing, SlotRow]]:
    """Return gaps whose slots are not counted yet, with the timing in effect at their first slot."""
    gaps = []
    rows = tx.execute(select(slots).where(t.count.is_(None)).limit(limit)).all()
    for gap in [SlotRow(**row._asdict()) for row in rows]:
        spans = [span for span in spans_of(tx, gap.schedule_id) if span.from_at <= gap.slot]
        gaps.append((stored.load(spans[-1].timing), gap))
    return gaps


def set_count(tx: Tx, gap: SlotRow, count: int) -> None:
    """Store the number of slots of a gap that was too long to count while firing; -1: still too long."""
    if count > 0 and gap.verdict is not None:
        count_slots_on_commit(tx, gap.verdict, count)
    home = and_(t.schedule_id == gap.schedule_id, t.slot == gap.slot)
    tx.execute(update(slots).where(home).values(count=count))


def prune(tx: Tx, before: datetime, limit: int) -> int:
    """Delete decided slots older than `before`, up to `limit`; returns their number. Those whose runs are kept longer
    are kept with them. `decided_until` of the clock keeps the last one: no slot up to it can fire again."""
    alive = select(jobs.c.id).where(jobs.c.id == t.job_id).exists()
    has_runs = select(runs.c.id).where(runs.c.job_id == t.job_id).exists()
    old = select(t.schedule_id, t.slot, t.last_slot).where(
        func.coalesce(t.last_slot, t.slot) < before, ~alive, ~has_runs
    )
    rows = list(tx.execute(old.limit(limit)))
    k = clocks.c
    for row in rows:
        tx.execute(delete(slots).where(t.schedule_id == row.schedule_id, t.slot == row.slot))
        last = row.last_slot or row.slot
        later = or_(k.decided_until.is_(None), k.decided_until < last)
        tx.execute(update(clocks).where(k.schedule_id == row.schedule_id, later).values(decided_until=last))
    return len(rows)


def audit_page(
    tx: Tx, org_id: str, key: str | None, after: str, limit: int = 500
) -> tuple[list[AuditedSchedule], str | None]:
    """Return a page of schedules for the slot audit, also deleted ones, with their clocks; and the last id, None at the
    end."""
    s, k = schedules.c, clocks.c
    stmt = (
        select(s.id, s.name, s.deleted_at, k.next_slot, k.next_run_at, k.decided_until)
        .select_from(schedules.join(clocks, k.schedule_id == s.id))
        .where(s.org_id == org_id, s.id > after)
    )
    if key is not None:
        known = select(literal(1)).where(s.org_id == org_id, s.id == key).exists()
        stmt = stmt.where(or_(s.id == key, and_(s.name == key, ~known)))
    rows = [AuditedSchedule(**row._asdict()) for row in tx.execute(stmt.order_by(s.id).limit(limit))]
    return rows, rows[-1].id if len(rows) == limit else None


def spans_of(tx: Tx, schedule_id: str) -> list[TriggerSpan]:
    """Return the trigger spans of a schedule, oldest first."""
    spans = trigger_spans.c
    rows = tx.execute(select(trigger_spans).where(spans.schedule_id == schedule_id).order_by(spans.from_at))
    return [TriggerSpan(**row._asdict()) for row in rows]


def rows_between(tx: Tx, schedule_id: str, since: datetime | None, until: datetime, limit: int) -> list[SlotRow]:
    """Return the rows of a schedule with `since < slot <= until`, ascending, up to `limit`."""
    stmt = select(slots).where(t.schedule_id == schedule_id, t.slot <= until)
    stmt = stmt if since is None else stmt.where(t.slot > since)
    return [SlotRow(**row._asdict()) for row in tx.execute(stmt.order_by(t.slot).limit(limit))]


def without_job_or_run(tx: Tx, rows: Sequence[SlotRow]) -> set[str]:
    """Return the job ids of these slot rows that have neither a job nor a run."""
    ids = [row.job_id for row in rows if row.verdict is None and row.job_id is not None]
    known: set[str] = set()
    for start in range(0, len(ids), ID_BATCH_ROWS):
        part = ids[start : start + ID_BATCH_ROWS]
        known |= set(tx.execute(select(jobs.c.id).where(jobs.c.id.in_(part))).scalars())
        known |= set(tx.execute(select(runs.c.job_id).where(runs.c.job_id.in_(part))).scalars())
    return set(ids) - known
