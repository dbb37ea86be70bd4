"""Jobs of slots."""

from rota.core.model import Fire, NewJob, Schedule
from rota.core.overlap import terms_of
from rota.core.steps import NO_DUE_TIME
from rota.core.timing.triggers import Cron, Every, Once, Recurring


def new_job(schedule: Schedule, fire: Fire, job_id: str) -> NewJob:
    """Return the job of a slot."""
    return NewJob(
        id=job_id,
        org_id=schedule.org_id,
        kind=schedule.kind,
        target=schedule.target,
        route=schedule.route,
        payload=schedule.input,
        run_at=NO_DUE_TIME if fire.follows else fire.run_at,
        trigger=trigger_text(schedule),
        queue=schedule.queue,
        priority=schedule.priority,
        serial_key=schedule.serial_key,
        solo_key=schedule.id if fire.solo else None,
        job_key=f"{schedule.id}:{fire.slot.isoformat()}",
        schedule_id=schedule.id,
        slot=fire.slot,
        trace=fire.trace,
        terms=terms_of(schedule, fire),
    )


def trigger_text(schedule: Schedule) -> str:
    """Return the text by which runs show what triggered them."""
    match schedule.timing.trigger:
        case Cron(expression):
            return f"{'cron_dependency' if schedule.source.startswith('trigger:') else 'schedule'}:{expression}"
        case Every(span, _):
            return f"schedule:every {span.total_seconds():g}s"
        case Once():
            return "schedule:once"
        case Recurring(rule):
            return f"schedule:{rule}"
