"""Maintenance of workflows: producers without a schedule, consumers that missed events, events that are done."""

from datetime import datetime

import structlog

from rota.core.errors import RotaError
from rota.engine.commands import Engine
from rota.engine.extensions import prune_in_chunks, record_repair
from rota.kinds.workflows.store import upkeep

log = structlog.get_logger("rota.maintenance")


async def reconcile(engine: Engine, now: datetime) -> None:
    """Restore the schedules of producers, wake consumers that missed events, and log reserved events without a run."""
    db = engine.db
    for event in await db.read(upkeep.orphaned_events):  # logged, not repaired: the cause is unknown
        log.error("a reserved event has no run; an operator must check it", event=event.id, topic=event.topic)
    for lost in await db.read(upkeep.lost_producers):
        try:
            record_repair(engine, "producers without a schedule", await db.tx(upkeep.restore_schedule, lost, now))
        except RotaError as error:  # its name is taken, for instance; `rota doctor` names the producer
            log.error("the schedule of a producer cannot be restored", producer=lost.name, error=error.message)
    stranded = await db.read(upkeep.stranded_consumers)
    for consumer in stranded:
        record_repair(engine, "consumers that missed events", await db.tx(upkeep.wake_stranded, consumer, now))
    without_job = await db.read(upkeep.consumers_without_job)
    for consumer in without_job:
        await db.tx(upkeep.queue_consumer, consumer, now)
    if stranded or without_job:
        engine.wake.signal("ready")


async def prune(engine: Engine, now: datetime) -> None:
    """Delete events that are done and older than successful runs are kept."""
    await prune_in_chunks(engine.db, upkeep.prune_events, now - engine.settings.keep_success)
