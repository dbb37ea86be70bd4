"""What API and dashboard both show: the coming slots of a schedule."""

from datetime import datetime
from typing import Any

from rota.core.timing import triggers
from rota.core.timing.cron import calendar_of
from rota.core.timing.dst import TICK
from rota.core.timing.triggers import Cron, Timing
from rota.engine import reports as engine_reports
from rota.engine import schedules
from rota.engine.commands import Engine
from rota.engine.compute import compute

STEPPED = ((0, 60, "minutes", "hour"), (1, 24, "hours", "day"))  # fields of cron that start anew at an edge


async def upcoming(engine: Engine, org_id: str, key: str, count: int) -> dict[str, Any]:
    """The coming slots of a schedule, from its clock on."""
    found = await engine.db.read(engine_reports.schedule, org_id, key)
    schedule = await engine.db.read(schedules.get, org_id, found["id"])
    if not schedule.enabled or found["next_slot"] is None:
        why = "it has no slot left" if found["condition"] == "finished" else "it is not enabled"
        return {"words": found["words"], "slots": [], "warnings": [why]}
    told = await compute(coming, schedule.timing, found["next_slot"] - TICK, count)
    if schedule.paused_at is not None:
        told["warnings"].append("it is paused: slots pass without firing until it is resumed")
    return told


def coming(timing: Timing, after: datetime, count: int, since: datetime | None = None) -> dict[str, Any]:
    """The next slots, with what people should know about them; `since` as in `triggers.next_slot`."""
    slots = triggers.preview(timing, after, count, since)
    warnings = cautions(timing)
    warnings += [f"{slot.local.isoformat()}: {slot.note}" for slot in slots if slot.note]
    if len(slots) < count:
        warnings.append(f"only {len(slots)} slots are left" if slots else "no slot is left")
    shown = [{"at": slot.at, "local": slot.local, "note": slot.note} for slot in slots]
    return {"words": triggers.describe(timing), "slots": shown, "warnings": warnings}


def cautions(timing: Timing) -> list[str]:
    """What cron says that many do not mean."""
    if not isinstance(timing.trigger, Cron):
        return []
    calendar, told = calendar_of(timing.trigger.expression), []
    for position, size, unit, whole in STEPPED:
        start, slash, step = calendar.texts[position].partition("/")
        if start == "*" and slash and step.isdecimal() and size % int(step):
            told.append(
                f"*/{step} does not divide the {whole}: it starts anew at each {whole}, so the last step is only "
                f"{size % int(step)} {unit} long; use an interval for an even pace"
            )
    if calendar.texts[2] != "*" and calendar.texts[4] != "*" and not calendar.both_days:
        told.append("a day of the month OR a day of the week is enough, as cron has it; it need not be both")
    return told
