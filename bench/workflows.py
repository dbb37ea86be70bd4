"""Workflows: events per second through one consumer and through a hundred workflows, and how soon an event is seen.

Publisher, scheduler and worker share one process and one event loop; every event is published in a transaction of its
own, as from outside.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.figures import Figure, Size, percentile
from bench.site import Kind, Site, WrongCount, site
from rota import Prepare, Rota, Workflow
from rota.db.notify import Wake
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
    """When each event was first looked at, and how many were taken."""

    at: dict[str, float] = field(default_factory=dict)
    taken: int = 0


def taker(app: Rota, name: str, limit: int, seen: Seen) -> None:
    flow = app.workflow(Workflow(name, topics=["in"], version="1"))

    @flow.consumer(subscribe=["in"])
    class Take:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:  # noqa: ARG002
            now = time.perf_counter()
            found = await ctx.peek("in", limit=limit)
            for one in found:
                seen.at.setdefault(one.message_id, now)
            seen.taken += len(found)
            return Prepare(reservations={"in": [one.id for one in found]})


@asynccontextmanager
async def working(here: Site, app: Rota) -> AsyncIterator[WorkflowManager]:
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


async def through(kind: Kind, names: list[str], events: int, limit: int) -> float:
    """Events per second, from the first that is published to the last that is taken."""
    app, seen = Rota(), Seen()
    for name in names:
        taker(app, name, limit, seen)
    async with site(kind) as here, working(here, app) as manager:
        begun = time.perf_counter()
        for number in range(events):
            body = {"message_id": str(number), "payload": number}
            await manager.publish(names[number % len(names)], "in", body)
        await all_taken(here, events)
        if seen.taken != events:
            raise WrongCount(f"{kind.name}: {events} events, but {seen.taken} were taken")
        return events / (time.perf_counter() - begun)


async def all_taken(here: Site, events: int) -> None:
    async def taken() -> bool:
        return bool(await here.scalar("SELECT count(*) FROM events WHERE status = 'consumed'") == events)

    await here.until(taken, "all events are taken", 300, 0.02)


async def workflows(kind: Kind, size: Size) -> AsyncIterator[Figure]:
    """W9: what a consumer takes one by one, what it takes by the hundred, a hundred side by side, and the wake-up."""
    events = size.jobs // 10
    for name, names, limit in (
        ("one consumer, one event a run", ["one"], 1),
        ("one consumer, up to 100 a run", ["one"], BATCH),
        ("100 workflows, one event a run", [f"w{number}" for number in range(SIDE_BY_SIDE)], 1),
    ):
        yield Figure(f"W9 workflows: {name}, {kind.name}", await through(kind, names, events, limit), "/s")
    app, seen, called = Rota(), Seen(), {}
    taker(app, "one", 1, seen)
    async with site(kind) as here, working(here, app) as manager:
        for number in range(size.paced):
            await asyncio.sleep(size.gap)
            called[str(number)] = time.perf_counter()
            await manager.publish("one", "in", {"message_id": str(number)})
        await all_taken(here, size.paced)
    waits = [(seen.at[one] - at) * 1000 for one, at in called.items()]
    for part in (50, 99):
        yield Figure(f"W9 workflows: publish → prepare, p{part}, {kind.name}", percentile(waits, part / 100), "ms")
