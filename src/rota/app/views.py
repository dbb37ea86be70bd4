"""Next slots of a schedule, for API and dashboard."""

from datetime import datetime

from rota.core.timing import triggers
from rota.core.timing.cron import calendar_of
from rota.core.timing.dst import TICK
from rota.core.timing.triggers import Cron, Timing
from rota.db.paging import Record
from rota.engine import schedules
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
        return {"words": shown["words"], "slots": [], "warnings": [warning]}
    preview = await compute(preview_slots, schedule.timing, shown["next_slot"] - TICK, count)
    if schedule.paused_at is not None:
        preview["warnings"].append("it is paused: slots pass without firing until it is resumed")
    return preview


def preview_slots(timing: Timing, after: datetime, count: int, since: datetime | None = None) -> Record:
    """Return the next slots of a timing, with warnings; `since` as in `triggers.next_slot`."""
    slots = triggers.preview(timing, after, count, since)
    warnings = cron_warnings(timing)
    warnings += [f"{slot.local.isoformat()}: {slot.note}" for slot in slots if slot.note]
    if len(slots) < count:
        warnings.append(f"only {len(slots)} slots are left" if slots else "no slot is left")
    items = [{"at": slot.at, "local": slot.local, "note": slot.note} for slot in slots]
    return {"words": triggers.describe(timing), "slots": items, "warnings": warnings}


def cron_warnings(timing: Timing) -> list[str]:
    """Return warnings about cron expressions that are often misread."""
    if not isinstance(timing.trigger, Cron):
        return []
    calendar, warnings = calendar_of(timing.trigger.expression), []
    for position, size, unit, whole in STEPPED_FIELDS:
        start, slash, step = calendar.texts[position].partition("/")
        if start == "*" and slash and step.isdecimal() and size % int(step):
            warnings.append(
                f"*/{step} does not divide the {whole}: it starts anew at each {whole}, so the last step is only "
                f"{size % int(step)} {unit} long; use an interval for an even pace"
            )
    if calendar.texts[2] != "*" and calendar.texts[4] != "*" and not calendar.both_days:
        warnings.append("a day of the month OR a day of the week is enough, as cron has it; it need not be both")
    return warnings
