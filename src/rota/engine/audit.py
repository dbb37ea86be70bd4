"""EVERY_SLOT_HAS_ONE_VERDICT, proven: recompute the slots of the recorded spans and compare them with the rows."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rota.core import triggers
from rota.core.plan import TICK
from rota.core.triggers import Timing
from rota.store import slots
from rota.store.database import Database
from rota.store.dialect import Tx

PROBLEM_LIMIT = 100


async def audit(
    db: Database, org_id: str, schedule: str | None, since: datetime | None, now: datetime
) -> dict[str, Any]:
    """Whether every slot up to now stands in exactly one row, and every fired one has a job or a run."""
    checked, problems, total = 0, [], 0
    after: str | None = ""
    while after is not None:
        found, after = await db.read(slots.audit_page, org_id, schedule, after)
        for one in found:
            count, wrong = await db.read(check_schedule, one, since, now)
            checked, total = checked + 1, total + count
            problems += wrong
    return {"ok": not problems, "schedules": checked, "slots": total, "problems": problems[:PROBLEM_LIMIT]}


def check_schedule(tx: Tx, schedule: Any, since: datetime | None, now: datetime) -> tuple[int, list[str]]:
    """One schedule: the number of slots it had, and what is wrong with their rows."""
    edge = now if schedule.next_slot is None else min(now, schedule.next_slot - TICK)
    floor = max((one for one in (since, schedule.decided_until) if one is not None), default=None)
    spans = slots.spans_of(tx, schedule.id)
    rows = slots.rows_between(tx, schedule.id, floor, edge)
    total, wrong = 0, []
    claimed = [False] * len(rows)
    for span in spans:
        timing = triggers.load(span.timing)
        start = max(span.from_at, floor) if floor is not None else span.from_at
        end = min(span.until_at, edge) if span.until_at is not None else edge
        count, complaints = walk(timing, start, end, rows, claimed)
        total += count
        wrong += [f"schedule {schedule.name}: {text}" for text in complaints]
    orphaned = slots.without_job_or_run(tx, rows)
    for row, mine in zip(rows, claimed, strict=True):
        ruled = any(one.from_at < row.slot <= (one.until_at or now) for one in spans)
        if not mine and (ruled or row.job_id is None):  # where no trigger ruled, only a backfill can have fired it
            wrong.append(f"schedule {schedule.name}: {row.slot.isoformat()} is no slot of its triggers")
        if row.verdict is None and (row.job_id is None or row.job_id in orphaned):
            wrong.append(f"schedule {schedule.name}: slot {row.slot.isoformat()} has neither a job nor a run")
    return total, wrong


def walk(
    timing: Timing, start: datetime, end: datetime, rows: Sequence[Any], claimed: list[bool]
) -> tuple[int, list[str]]:
    """The slots of one span against the rows, both ascending. A gap row stands for all slots from its first to last."""
    total, wrong = 0, []
    slot = triggers.next_slot(timing, start)
    for position, row in enumerate(rows):
        last = row.last_slot or row.slot
        if row.slot <= start or row.slot > end:
            continue
        while slot is not None and slot < row.slot:
            wrong.append(f"slot {slot.isoformat()} has no row")
            total += 1
            slot = triggers.next_slot(timing, slot)
        if slot != row.slot:
            continue
        claimed[position] = True
        inside = triggers.count_slots(timing, row.slot - TICK, last, 2_000_000)
        total += inside or 0
        if row.count is not None and row.count >= 0 and inside != row.count:
            wrong.append(f"gap from {row.slot.isoformat()} says {row.count} slots, the trigger has {inside}")
        slot = triggers.next_slot(timing, last)
    while slot is not None and slot <= end and len(wrong) < PROBLEM_LIMIT:
        wrong.append(f"slot {slot.isoformat()} has no row")
        total += 1
        slot = triggers.next_slot(timing, slot)
    return total, wrong
