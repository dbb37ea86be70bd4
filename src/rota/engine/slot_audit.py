"""Slot audit, the proof of EVERY_SLOT_HAS_ONE_VERDICT: recompute the slots of the trigger spans, compare them with
rows."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import TypedDict

from rota.core.timing import stored, triggers
from rota.core.timing.counting import count_slots
from rota.core.timing.dst import TICK
from rota.core.timing.triggers import Timing
from rota.db.connection import Database
from rota.engine import orgs, slots
from rota.engine.compute import compute
from rota.engine.records import AuditedSchedule, SlotRow, TriggerSpan

PROBLEM_LIMIT = 100
ROWS_PER_READ = 2_000


class AuditReport(TypedDict):
    """Result of the slot audit."""

    ok: bool
    schedules: int
    slots: int
    problems: list[str]
    overdue: list[str]


async def audit(
    db: Database,
    org_id: str,
    schedule: str | None,
    since: datetime | None,
    now: datetime,
    grace: timedelta = timedelta(seconds=60),
) -> AuditReport:
    """Check that every slot up to now is in exactly one row, and that every fired slot has a job or a run. `overdue`
    lists schedules that are overdue by more than the grace; their rows are correct, so `ok` may be true."""
    checked, problems, total = 0, [], 0
    overdue: list[str] = []
    after: str | None = ""
    while after is not None:
        page, after = await db.read(slots.audit_page, org_id, schedule, after)
        for row in page:
            count, wrong = await check_schedule(db, row, since, now)
            checked, total = checked + 1, total + count
            problems += wrong
            if row.deleted_at is None and row.next_run_at is not None and row.next_run_at < now - grace:
                late = (now - row.next_run_at).total_seconds()
                overdue.append(f"schedule {row.name}: due at {row.next_run_at.isoformat()}, not fired for {late:.0f} s")
    return {
        "ok": not problems,
        "schedules": checked,
        "slots": total,
        "problems": problems[:PROBLEM_LIMIT],
        "overdue": overdue[:PROBLEM_LIMIT],
    }


async def audit_all(db: Database, now: datetime) -> tuple[int, list[str]]:
    """Audit the slots of all orgs; returns their number, and the problems."""
    reports = [await audit(db, org.id, None, None, now) for org in sorted(await db.read(orgs.limits))]
    return sum(report["slots"] for report in reports), [text for report in reports for text in report["problems"]]


async def check_schedule(
    db: Database, schedule: AuditedSchedule, since: datetime | None, now: datetime
) -> tuple[int, list[str]]:
    """Check a schedule; returns the number of its slots, and the problems of their rows."""
    edge = now if schedule.next_slot is None else min(now, schedule.next_slot - TICK)
    floor = max((at for at in (since, schedule.decided_until) if at is not None), default=None)
    spans = await db.read(slots.spans_of, schedule.id)
    rows: list[SlotRow] = []
    orphaned: set[str] = set()
    after = floor
    while page := await db.read(slots.rows_between, schedule.id, after, edge, ROWS_PER_READ):
        rows += page
        orphaned |= await db.read(slots.without_job_or_run, page)
        after = page[-1].slot
    total, wrong = await compute(compare, spans, rows, orphaned, floor, edge, now)
    return total, [f"schedule {schedule.name}: {text}" for text in wrong]


def compare(
    spans: Sequence[TriggerSpan],
    rows: Sequence[SlotRow],
    orphaned: Collection[str],
    floor: datetime | None,
    edge: datetime,
    now: datetime,
) -> tuple[int, list[str]]:
    """Compare the slots of a schedule's spans with its rows; returns the number of slots, and the problems."""
    total, wrong = 0, []
    matched = [False] * len(rows)
    for span in spans:
        start = max(span.from_at, floor) if floor is not None else span.from_at
        end = min(span.until_at, edge) if span.until_at is not None else edge
        count, complaints = walk(stored.load(span.timing), span.from_at, start, end, rows, matched)
        total += count
        wrong += complaints
    for row, is_slot in zip(rows, matched, strict=True):
        ruled = any(span.from_at < row.slot <= (span.until_at or now) for span in spans)
        if not is_slot and (ruled or row.job_id is None):  # outside all trigger spans, only a backfill can fire it
            wrong.append(f"{row.slot.isoformat()} is no slot of its triggers")
        if row.verdict is None and (row.job_id is None or row.job_id in orphaned):
            wrong.append(f"slot {row.slot.isoformat()} has neither a job nor a run")
    return total, wrong


def walk(
    timing: Timing, since: datetime, start: datetime, end: datetime, rows: Sequence[SlotRow], matched: list[bool]
) -> tuple[int, list[str]]:
    """Compare the slots of a span that began at `since` with the rows, both ascending. A gap row stands for all slots
    from its first to its last."""
    total, wrong = 0, list[str]()
    slot = triggers.next_slot(timing, start, since)
    for position, row in enumerate(rows):
        last = row.last_slot or row.slot
        if row.slot <= start or row.slot > end:
            continue
        if slot is not None and slot < row.slot:
            count, complaints = without_row(timing, slot, row.slot - TICK)
            total, wrong = total + count, wrong + complaints
            slot = triggers.next_slot(timing, row.slot - TICK)
        if slot != row.slot:
            continue
        matched[position] = True
        inside = count_slots(timing, row.slot - TICK, last, 2_000_000)
        total += inside or 0
        if row.count is not None and row.count >= 0 and inside != row.count:
            wrong.append(f"gap from {row.slot.isoformat()} says {row.count} slots, the trigger has {inside}")
        slot = triggers.next_slot(timing, last)
    if slot is not None and slot <= end:
        count, complaints = without_row(timing, slot, end)
        total, wrong = total + count, wrong + complaints
    return total, wrong


def without_row(timing: Timing, first: datetime, until: datetime) -> tuple[int, list[str]]:
    """Return the number of slots without a row from `first` up to `until`, and a problem for the first of them."""
    missing = islice(triggers.slots_between(timing, first - TICK, until), PROBLEM_LIMIT)
    count = count_slots(timing, first - TICK, until, 2_000_000)
    return count or 0, [f"slot {slot.isoformat()} has no row" for slot in missing]
