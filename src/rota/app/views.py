"""Next slots of a schedule, for API and dashboard."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime

from rota.core.freeze import FreezeMode, FreezeWindow, window_at
from rota.core.timing import presentation
from rota.core.timing.dst import TICK
from rota.core.timing.presentation import Preview
from rota.core.timing.triggers import Cron, Timing, cron_pattern
from rota.db.paging import Record
from rota.engine import freezes, schedules
from rota.engine.commands import Engine
from rota.engine.compute import compute
from rota.reports import schedules as schedule_reports

STEPPED_FIELDS = ((0, 60, "minutes", "hour"), (1, 24, "hours", "day"))  # cron fields whose steps restart


async def upcoming(engine: Engine, org_id: str, key: str, count: int) -> Record:
    """Return the next slots of a schedule, from its clock on."""
    shown = await engine.db.read(schedule_reports.schedule, org_id, key)
    schedule = await engine.db.read(schedules.get, org_id, shown["id"])
    if not schedule.enabled or shown["next_slot"] is None:
        warning = "it has no slot left" if shown["condition"] == "finished" else "it is not enabled"
        return {**preview_of([], schedule.timing), "words": shown["words"], "warnings": [warning]}
    windows = await engine.db.read(freezes.of_schedule, schedule, shown["next_slot"])
    preview = await compute(
        preview_slots, schedule.timing, shown["next_slot"] - TICK, count, engine.clock.now(), windows=windows
    )
    if schedule.paused_at is not None:
        preview["warnings"].append("it is paused: slots pass without firing until it is resumed")
    return preview


def preview_slots(
    timing: Timing,
    after: datetime,
    count: int,
    now: datetime,
    since: datetime | None = None,
    windows: Sequence[FreezeWindow] = (),
) -> Record:
    """Return the next slots of a timing, with what freeze windows do to them, and warnings; `since` as in
    `triggers.next_slot`."""
    slots = [with_freeze(slot, windows) for slot in presentation.preview(timing, after, count, since)]
    shown = [window for window in windows if slots and window.starts_at <= slots[-1].at]
    warnings = presentation.clock_warnings(timing, now) + cron_warnings(timing)
    warnings += presentation.calendar_warnings(timing, slots)
    warnings += [f"{slot.local.isoformat()}: {slot.note}" for slot in slots if slot.note]
    if len(slots) < count:
        warnings.append(f"only {len(slots)} slots are left" if slots else "no slot is left")
    left_out = presentation.left_out(timing, after, slots[-1].at) if slots else []
    preview = preview_of(slots, timing)
    return {
        **preview,
        "words": "; ".join([preview["words"], *(window.words for window in shown)]),
        "warnings": warnings,
        "left_out": [
            {"date": holiday.day.isoformat(), "moved_to": holiday.moved_to and holiday.moved_to.isoformat()}
            for holiday in left_out
        ],
    }


def with_freeze(slot: Preview, windows: Sequence[FreezeWindow]) -> Preview:
    """Return a slot with a note if a freeze window covers it."""
    window = window_at(windows, slot.at)
    if window is None:
        return slot
    until = f"until {window.ends_at:%Y-%m-%d %H:%M} UTC"
    effect = f"held {until}" if window.mode is FreezeMode.HOLD else "skipped"
    text = f"{effect} by freeze {window.note}"
    return replace(slot, note=f"{slot.note}; {text}" if slot.note else text)


def preview_of(slots: Sequence[Preview], timing: Timing) -> Record:
    changes = presentation.clock_changes(timing)
    return {
        "words": presentation.describe(timing),
        "slots": [{"at": slot.at, "local": slot.local, "note": slot.note} for slot in slots],
        "warnings": [],
        "cron_resolved": presentation.resolved_expression(timing),
        "clock_changes": None if changes is None else asdict(changes),
        "left_out": [],
    }


def cron_warnings(timing: Timing) -> list[str]:
    """Return warnings about cron expressions that are often misread."""
    if not isinstance(timing.trigger, Cron):
        return []
    pattern, warnings = cron_pattern(timing.trigger), []
    for position, size, unit, whole in STEPPED_FIELDS:
        start, slash, step = pattern.texts[position].partition("/")
        if start == "*" and slash and step.isdecimal() and size % int(step):
            warnings.append(
                f"*/{step} does not divide the {whole}: it starts anew at each {whole}, so the last step is only "
                f"{size % int(step)} {unit} long; use an interval for an even pace"
            )
    if pattern.texts[2] != "*" and pattern.texts[4] != "*" and not pattern.both_days:
        warnings.append("a day of the month OR a day of the week is enough, as cron has it; it need not be both")
    return warnings
