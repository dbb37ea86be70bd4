"""Impact of an edit of a schedule before it is saved: its slots in the next days, clashes, usual duration and cost."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from rota.core import schedule_form
from rota.core.catch_up import UsualRun
from rota.core.freeze import FreezeWindow
from rota.core.model import DueSchedule, Schedule
from rota.core.timing import presentation
from rota.core.timing.calendars import Calendar
from rota.core.timing.counting import count_slots
from rota.core.timing.describe import span_words
from rota.core.timing.slot_diff import (
    COMPARED_SLOTS_MAX,
    BlockedSpan,
    Clash,
    PlannedSlots,
    calendar_clashes,
    diff_slots,
    freeze_clashes,
    planned_slots,
    shortest_gap,
)
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.engine import calendars, freezes, pauses, schedules, usual_runs
from rota.engine.commands import Engine
from rota.engine.compute import compute
from rota.reports import schedules as schedule_reports

DIFF_DAYS = 30
SLOTS_SHOWN = 100  # of those added, removed and moved, each


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the slots of an org's schedules can meet from `now` to `until`."""

    now: datetime
    until: datetime
    calendars: list[Calendar]
    freezes: list[BlockedSpan]  # of all schedules
    windows: Sequence[FreezeWindow]


async def impact_of_edit(
    engine: Engine, org_id: str, key: str, changes: Mapping[str, object], *, whole: bool, days: int = DIFF_DAYS
) -> Record:
    """Return the impact of an edit; stores nothing. Raises NotFound, or Invalid as the edit would."""
    now = engine.clock.now()
    around = await engine.db.read(surroundings, org_id, now, now + timedelta(days=days))
    due = await engine.db.read(schedules.read_with_clock, org_id, key)
    usual = await engine.db.read(usual_runs.usual_run, org_id, due.schedule.id)
    known = await engine.calendars_named(org_id, [changes])
    parse = schedule_form.parse_put if whole else schedule_form.parse_patch

    def compare() -> Record:
        after = parse(due.schedule, changes, defaults=engine.defaults, now=now, calendars=known)
        return impact(due, after, around, usual)

    return await compute(compare)


def surroundings(tx: Tx, org_id: str, now: datetime, until: datetime) -> Surroundings:
    """Read the calendars of an org, and its freeze and freeze windows."""
    windows = freezes.between(tx, [org_id], now, until).get(org_id, [])
    return Surroundings(now, until, calendars.all_of(tx, org_id), blocked_spans(tx, org_id, now), windows)


def blocked_spans(tx: Tx, org_id: str, now: datetime) -> list[BlockedSpan]:
    """Return the freeze of an org, in which none of its slots fire."""
    freeze = pauses.freeze_of(tx, org_id, now)
    if not freeze["frozen"]:
        return []
    return [BlockedSpan(freeze["reason"] or "freeze", freeze["frozen_at"], freeze["until"])]


def impact(
    before: DueSchedule | None,
    after: Schedule,
    around: Surroundings,
    usual: UsualRun | None,
    most: int = COMPARED_SLOTS_MAX,
) -> Record:
    """Return what changes if `after` is stored in place of `before`, which is None for a new schedule. Of each timing
    `most` slots are compared. CPU-bound."""
    old = before.schedule if before else None
    fired = before.fired if before else 0
    slots_before, slots_after = slots_of(old, fired, around, most), slots_of(after, fired, around, most)
    zone = after.timing.zone
    diff = diff_slots(slots_before, slots_after, zone)
    total_before, total_after = count_of(old, fired, around), count_of(after, fired, around)
    gap = shortest_gap(slots_after.slots)
    clashes = clashes_of(after, slots_after, around)
    return {
        "words_before": presentation.describe(old.timing) if old else None,
        "words_after": presentation.describe(after.timing),
        "since": around.now,
        "until": around.until,
        "compared_until": diff.until,
        "slots_before": total_before,
        "slots_after": total_after,
        "added_count": len(diff.added),
        "removed_count": len(diff.removed),
        "moved_count": len(diff.moved),
        "added": diff.added[:SLOTS_SHOWN],
        "removed": diff.removed[:SLOTS_SHOWN],
        "moved": [{"from": source, "to": target} for source, target in diff.moved[:SLOTS_SHOWN]],
        "clashes": [{**asdict(clash), "days": [day.isoformat() for day in clash.days]} for clash in clashes],
        "left_out": [
            {"date": holiday.day.isoformat(), "moved_to": holiday.moved_to and holiday.moved_to.isoformat()}
            for holiday in presentation.left_out(after.timing, around.now, slots_after.until)
        ],
        "usual_run": None if usual is None else asdict(usual),
        "shortest_gap_seconds": None if gap is None else gap.total_seconds(),
        "cost": cost_of(usual, total_before, total_after),
        "fields": changed_fields(old, after),
        "warnings": warnings_of(old, after, around, usual, gap, diff.until, clashes),
    }


def slots_of(schedule: Schedule | None, fired: int, around: Surroundings, most: int) -> PlannedSlots:
    if schedule is None or not schedule.enabled:
        return PlannedSlots((), around.until)
    return planned_slots(schedule.timing, around.now, around.until, slots_left(schedule, fired), most)


def count_of(schedule: Schedule | None, fired: int, around: Surroundings) -> int | None:
    """Return the number of slots; None if there are too many to count."""
    if schedule is None or not schedule.enabled:
        return 0
    count = count_slots(schedule.timing, around.now, around.until, COMPARED_SLOTS_MAX)
    left = slots_left(schedule, fired)
    return count if count is None or left is None else min(count, left)


def slots_left(schedule: Schedule, fired: int) -> int | None:
    return None if schedule.max_runs is None else max(0, schedule.max_runs - fired)


def clashes_of(schedule: Schedule, slots: PlannedSlots, around: Surroundings) -> list[Clash]:
    """Return clashes with the freeze and freeze windows that cover a schedule, and with holidays: of the calendar that
    it follows, else of any."""
    timing = schedule.timing
    own = [timing.holidays.calendar] if timing.holidays else around.calendars
    windows = [
        BlockedSpan(window.note, window.starts_at, window.ends_at)
        for window in freezes.covering(schedule, around.windows)
    ]
    return [
        *calendar_clashes(slots.slots, timing.zone, own),
        *freeze_clashes(slots.slots, timing.zone, [*around.freezes, *windows]),
    ]


def cost_of(usual: UsualRun | None, before: int | None, after: int | None) -> Record | None:
    """Return the estimated cost of all slots; None if no run was charged or there are too many slots to count."""
    if usual is None or before is None or after is None or usual.credits_per_run is None:
        return None
    dollars = usual.usd_per_run
    return {
        "credits_before": round(before * usual.credits_per_run),
        "credits_after": round(after * usual.credits_per_run),
        "usd_before": None if dollars is None else round(before * dollars, 4),
        "usd_after": None if dollars is None else round(after * dollars, 4),
    }


def changed_fields(old: Schedule | None, new: Schedule) -> list[Record]:
    """Return the fields that differ, without secrets."""
    before = schedule_reports.with_redacted_input(schedule_form.flat(old)) if old else {}
    after = schedule_reports.with_redacted_input(schedule_form.flat(new))
    return [
        {"field": field, "before": before.get(field), "after": value}
        for field, value in after.items()
        if before.get(field) != value
    ]


def warnings_of(
    old: Schedule | None,
    new: Schedule,
    around: Surroundings,
    usual: UsualRun | None,
    gap: timedelta | None,
    compared_until: datetime,
    clashes: list[Clash],
) -> list[str]:
    warnings = presentation.clock_warnings(new.timing, around.now)
    if usual is not None and gap is not None and usual.p95_seconds >= gap.total_seconds():
        taken = span_words(timedelta(seconds=max(1, round(usual.p95_seconds))), single="1 ")
        warnings.append(
            f"it overlaps itself: 95 of 100 runs end within {taken}, and its slots are "
            f"{span_words(gap, single='1 ')} apart (overlap: {new.overlap.value})"
        )
    for clash in clashes:
        where = "a freeze" if clash.type == "freeze" else "holidays"
        slots = "1 slot falls" if clash.count == 1 else f"{clash.count} slots fall"
        warnings.append(f"{slots} {'into' if clash.type == 'freeze' else 'on'} {where} of {clash.name}")
    if old is not None and old.timing.jitter != new.timing.jitter and new.timing.jitter:
        warnings.append(f"its runs start up to {span_words(new.timing.jitter, single='1 ')} after their slots")
    if new.paused_at is not None:
        warnings.append("it is paused: slots pass without firing until it is resumed")
    if not new.enabled:
        warnings.append("it is disabled: it has no slots")
    if compared_until < around.until:
        warnings.append(
            f"slots after {compared_until.isoformat(timespec='seconds')} are not compared: there are too many"
        )
    return warnings
