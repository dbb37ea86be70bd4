"""Workflows: events per second through one consumer and through a hundred workflows, and event latency.

Publisher, scheduler and worker share one process and one event loop; every event is published in its own
transaction, as from outside.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.figures import Figure, Size, percentile
from bench.installation import DatabaseKind, Installation, WrongCount, installation
from rota import Prepare, Rota, Workflow
from rota.db.wake import Wake
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.engine.scheduler import Scheduler
from rota.engine.worker import Worker
from rota.kinds.workflows.manager import WorkflowManager, deploy_all
from rota.kinds.workflows.runner import WorkflowRunner

SIDE_BY_SIDE = 100
BATCH = 100


@dataclass
class Seen:
    """When each event was first seen by `prepare`, and how many were consumed."""

    at: dict[str, float] = field(default_factory=dict)
    consumed: int = 0


def add_consumer(app: Rota, name: str, limit: int, seen: Seen) -> None:
    flow = app.workflow(Workflow(name, topics=["in"], version="1"))

    @flow.consumer(subscribe=["in"])
    class Consume:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:  # noqa: ARG002
            now = time.perf_counter()
            events = await ctx.peek("in", limit=limit)
            for event in events:
                seen.at.setdefault(event.message_id, now)
            seen.consumed += len(events)
            return Prepare(reservations={"in": [event.id for event in events]})


@asynccontextmanager
async def working(here: Installation, app: Rota) -> AsyncIterator[WorkflowManager]:
    runner = WorkflowRunner(app.workflows, app.connectors, here.db)
    engine = Engine(here.db, here.engine.clock, Wake(), {runner.kind: runner}, EngineSettings())
    await deploy_all(engine, "default", None, app.workflows)
    worker, scheduler = Worker(engine), Scheduler(engine)
    steps = (worker.run(), scheduler.run(), engine.wake.listen(here.db))
    loops = [asyncio.ensure_future(step) for step in steps]
    try:
        yield WorkflowManager(engine, here.org_id)
    finally:
        scheduler.stopping = True
        await worker.drain(engine.settings.cancel_grace)
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def through(kind: DatabaseKind, names: list[str], events: int, limit: int) -> float:
    """Return events per second, from the first publication to the last consumed event."""
    app, seen = Rota(), Seen()
    for name in names:
        add_consumer(app, name, limit, seen)
    async with installation(kind) as here, working(here, app) as manager:
        begun = time.perf_counter()
        for number in range(events):
            await manager.publish(names[number % len(names)], "in", message_id=str(number), payload=number)
        await all_consumed(here, events)
        if seen.consumed != events:
            raise WrongCount(f"{kind.name}: {events} events, but {seen.consumed} were consumed")
        return events / (time.perf_counter() - begun)


async def all_consumed(here: Installation, events: int) -> None:
    async def consumed() -> bool:
        return bool(await here.scalar("SELECT count(*) FROM events WHERE status = 'consumed'") == events)

    await here.until(consumed, "all events are consumed", 300, 0.02)


async def workflows(kind: DatabaseKind, size: Size) -> AsyncIterator[Figure]:
    """W9: one event per run, batches of 100 events per run, 100 workflows in parallel, and the wake-up latency."""
    events = size.jobs // 10
    for name, names, limit in (
        ("one consumer, one event a run", ["one"], 1),
        ("one consumer, up to 100 a run", ["one"], BATCH),
        ("100 workflows, one event a run", [f"w{number}" for number in range(SIDE_BY_SIDE)], 1),
    ):
        yield Figure(f"W9 workflows: {name}, {kind.name}", await through(kind, names, events, limit), "/s")
    app, seen, called = Rota(), Seen(), {}
    add_consumer(app, "one", 1, seen)
    async with installation(kind) as here, working(here, app) as manager:
        for number in range(size.paced):
            await asyncio.sleep(size.gap)
            called[str(number)] = time.perf_counter()
            await manager.publish("one", "in", message_id=str(number))
        await all_consumed(here, size.paced)
    waits = [(seen.at[message_id] - at) * 1000 for message_id, at in called.items()]
    for part in (50, 99):
        yield Figure(f"W9 workflows: publish → prepare, p{part}, {kind.name}", percentile(waits, part / 100), "ms")
