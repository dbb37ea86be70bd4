"""W9, workflows: events per second through one consumer and through a hundred workflows, and event latency.

Events are published in bulk before the worker starts, and counted from the first `prepare` until all are consumed:
publishing one by one would measure the publisher. Beside it DBOS runs enqueued workflows with one step, enqueued in
bulk (`enqueue_in_transaction`), and the bare driver inserts one row per transaction, one after the other.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from bench.baselines import sqlite_file
from bench.figures import OURS, Figure, Size, percentile
from bench.installation import DatabaseKind, Installation, WrongCount, installation
from bench.peers.kit import chunks
from bench.servers import Servers, system_under_test
from bench.systems import System
from rota import Prepare, Rota, Workflow
from rota.app.cli.processes import GC_THRESHOLD
from rota.db.wake import Wake
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.engine.scheduler import Scheduler
from rota.engine.worker import Worker
from rota.kinds.workflows.manager import WorkflowManager, deploy_all
from rota.kinds.workflows.runner import WorkflowRunner
from rota.kinds.workflows.store.records import NewEvent

SIDE_BY_SIDE = 100
BATCH = 100
FIGURES = ("one workflow, one event a run", "one workflow, up to 100 a run", "100 workflows, one event a run")


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
async def working(
    here: Installation, app: Rota, before: Callable[[WorkflowManager], Awaitable[None]] | None = None
) -> AsyncIterator[WorkflowManager]:
    """Run a worker with these workflows; `before` is called before it starts. It runs in this process, with the garbage
    collection of a `rota worker`."""
    runner = WorkflowRunner(app.workflows, app.connectors, here.db)
    engine = Engine(
        here.db, here.engine.clock, Wake(), {runner.kind: runner}, EngineSettings(concurrency=SIDE_BY_SIDE + 1)
    )
    await deploy_all(engine, "default", None, app.workflows)
    manager = WorkflowManager(engine, here.org_id)
    if before is not None:
        await before(manager)
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    worker, scheduler = Worker(engine), Scheduler(engine)
    steps = (worker.run(), scheduler.run(), engine.wake.listen(here.db))
    loops = [asyncio.ensure_future(step) for step in steps]
    try:
        yield manager
    finally:
        scheduler.stopping = True
        await worker.drain(engine.settings.cancel_grace)
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def through(kind: DatabaseKind, names: list[str], events: int, limit: int) -> float:
    """Return events per second, from the first `prepare` that sees one to the last consumed event."""
    app, seen = Rota(), Seen()
    for name in names:
        add_consumer(app, name, limit, seen)
    async with installation(kind) as here, working(here, app, publish_all(names, events)):
        await all_consumed(here, seen, events)
        if seen.consumed != events:
            raise WrongCount(f"{kind.name}: {events} events, but {seen.consumed} were consumed")
        return events / (time.perf_counter() - min(seen.at.values()))


def publish_all(names: list[str], events: int) -> Callable[[WorkflowManager], Awaitable[None]]:
    """Return a function that publishes events in bulk, the same number to each workflow."""

    async def publish(manager: WorkflowManager) -> None:
        for index, name in enumerate(names):
            own = [NewEvent("in", str(number), number) for number in range(index, events, len(names))]
            for part in chunks(len(own)):
                await manager.publish_many(name, [own[at] for at in part])

    return publish


async def one_by_one(kind: DatabaseKind, events: int) -> float:
    """Return events per second that are published by themselves, one after the other, while the worker runs."""
    app, seen = Rota(), Seen()
    add_consumer(app, "one", 1, seen)
    async with installation(kind) as here, working(here, app) as manager:
        begun = time.perf_counter()
        for number in range(events):
            await manager.publish("one", "in", message_id=str(number), payload=number)
        await all_consumed(here, seen, events)
        return events / (time.perf_counter() - begun)


async def all_consumed(here: Installation, seen: Seen, events: int) -> None:
    async def consumed() -> bool:
        if seen.consumed < events:
            return False
        return bool(await here.scalar("SELECT count(*) FROM events WHERE status = 'consumed'") == events)

    await here.until(consumed, "all events are consumed", 300, 0.005)


async def latencies(kind: DatabaseKind, size: Size) -> list[float]:
    """Return milliseconds from the call of publish to the first line of `prepare`, with an idle worker."""
    app, seen, called = Rota(), Seen(), {}
    add_consumer(app, "one", 1, seen)
    async with installation(kind) as here, working(here, app) as manager:
        for number in range(size.paced):
            await asyncio.sleep(size.gap)
            called[str(number)] = time.perf_counter()
            await manager.publish("one", "in", message_id=str(number))
        await all_consumed(here, seen, size.paced)
    return [(seen.at[message_id] - at) * 1000 for message_id, at in called.items()]


async def workflows(servers: Servers, system: System, size: Size) -> AsyncIterator[Figure]:
    """W9: one event per run, up to 100 events per run, 100 workflows in parallel, and the wake-up latency."""
    events = size.jobs // 10
    names = [f"W9 {figure}, {system.group}" for figure in FIGURES]
    waiting = f"W9 publish → prepare, {system.group}"
    if system.name != OURS:
        async for figure in of_peer(servers, system, size, names, waiting):
            yield figure
        return
    kind = servers.kind(system.store)
    values = (
        await through(kind, ["one"], events, 1),
        await through(kind, ["one"], 10 * events, BATCH),
        await through(kind, [f"w{number}" for number in range(SIDE_BY_SIDE)], events, 1),
    )
    for name, value, bare in zip(names, values, (await commits(kind, events), None, None), strict=True):
        yield Figure(name, value, "/s", bare)
    yield Figure(f"W9 each event published by itself, {system.group}", await one_by_one(kind, events // 2), "/s")
    waits = await latencies(kind, size)
    for part in (50, 99):
        yield Figure(f"{waiting}, p{part}", percentile(waits, part / 100), "ms")


async def of_peer(
    servers: Servers, system: System, size: Size, names: Sequence[str], waiting: str
) -> AsyncIterator[Figure]:
    """Measure workflows with one step. A peer has no events that several runs could share, and its workflows always run
    in parallel: the same figure stands beside each of Rota's."""
    async with system_under_test(servers, system, system.best) as here:
        await here.call("enqueue", count=size.jobs // 10, steps=True)
        here.spawn("worker")
        rate = await here.done(size.jobs // 10, None, size.time_limit)
    for name in names:
        yield Figure(name, rate, "/s", system=system.label)
    async with system_under_test(servers, system, system.best) as here:
        await here.call("enqueue", count=1, steps=True)
        here.spawn("worker")
        await here.until(lambda: here.marks.count() > 0, "a job started", 60)
        await asyncio.sleep(1.5)
        sent = await here.call("paced", numbers=list(range(1, 1 + size.paced)), gap=size.gap, steps=True)
        await here.until(lambda: here.marks.count() > size.paced, "all jobs started", 30)
        starts = here.marks.starts()
    waits = [(starts[i] - called) * 1000 for i, called, _ in sent]
    for part in (50, 99):
        yield Figure(f"{waiting}, p{part}", percentile(waits, part / 100), "ms", system=system.label)


async def commits(kind: DatabaseKind, count: int) -> float:
    """Return how many transactions with one inserted row the bare driver commits per second, one after the other."""
    async with installation(kind) as here:
        if here.url.startswith("sqlite"):
            return await asyncio.to_thread(sqlite_commits, here.url, count)
        connection = await asyncpg.connect(here.url)
        try:
            await connection.execute("CREATE TABLE bare (id bigint PRIMARY KEY, payload text)")
            begun = time.perf_counter()
            for number in range(count):
                async with connection.transaction():
                    await connection.execute("INSERT INTO bare VALUES ($1, $2)", number, "{}")
            return count / (time.perf_counter() - begun)
        finally:
            await connection.close()


def sqlite_commits(url: str, count: int) -> float:
    with sqlite_file(url) as (connection, _):
        begun = time.perf_counter()
        for _ in range(count):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO baseline (run_at, payload) VALUES (0, '{}')")
            connection.execute("COMMIT")
        return count / (time.perf_counter() - begun)
