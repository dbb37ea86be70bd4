"""Maintenance of workflows: producers without a schedule, consumers that missed events, events that are done."""

from datetime import datetime

import structlog

from rota.core.errors import RotaError
from rota.engine.commands import Engine
from rota.engine.extensions import prune_in_chunks, record_repair
from rota.kinds.workflows.store import upkeep, workflows

log = structlog.get_logger("rota.maintenance")


async def reconcile(engine: Engine, now: datetime) -> None:
    """Plan producers again whose schedule was deleted, let consumers see events that they missed, and log events whose
    run is lost."""
    db = engine.db
    for event in await db.read(workflows.orphans):  # logged, not repaired: the cause is unknown
        log.error("a reserved event has no run; somebody must look", event=event.id, topic=event.topic)
    for lost in await db.read(upkeep.lost_producers):
        try:
            record_repair(engine, "producers without a schedule", await db.tx(upkeep.plan_again, lost, now))
        except RotaError as error:  # its name is taken, for instance; `rota doctor` names the producer
            log.error("a producer cannot be planned again", producer=lost.name, error=error.message)
    stranded = await db.read(upkeep.stranded_consumers)
    for consumer in stranded:
        record_repair(engine, "consumers that missed events", await db.tx(upkeep.look_again, consumer, now))
    waiting = await db.read(upkeep.waiting_consumers)
    for consumer in waiting:
        await db.tx(upkeep.queue_again, consumer, now)
    if stranded or waiting:
        engine.wake.signal("ready")


async def prune(engine: Engine, now: datetime) -> None:
    """Delete events that are done and older than successful runs are kept."""
    await prune_in_chunks(engine.db, workflows.prune, now - engine.settings.keep_success)
