"""The measurements. Each is one round on a fresh database and yields its figures."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from bench import yardsticks
from bench.site import Kind, Site, cpu_seconds, resident_mib, site, used_since

CHUNK = 1_000  # schedules made in one call


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured; `quick` is for a first look."""

    jobs: int = 20_000
    paced: int = 300
    gap: float = 0.02
    lateness: tuple[int, ...] = (100, 200)
    span: float = 20.0
    stored: tuple[int, ...] = (10_000, 100_000)
    window: float = 30.0
    burst: int = 5_000


FULL = Size()
QUICK = Size(jobs=10_000, paced=100, lateness=(100,), span=8.0, stored=(10_000,), window=10.0, burst=2_000)


@dataclass(frozen=True, slots=True)
class Figure:
    """One value of one round, what the yardstick showed beside it, and the bar that it should reach."""

    name: str
    value: float
    unit: str
    yardstick: float | None = None
    bar: str = ""


Measure = Callable[[Kind, Size], AsyncIterator[Figure]]


async def throughput(kind: Kind, size: Size) -> AsyncIterator[Figure]:
    """Jobs per second into the queue, and out of it through handlers that do nothing."""
    for processes in (1, 2):
        async with site(kind) as here:
            bare = await yardsticks.measure(here.url)
            begun = time.perf_counter()
            await here.engine.enqueue(here.org_id, "task", "tick", [{}] * size.jobs)
            took = time.perf_counter() - begun
            if processes == 1:
                yield Figure("yardstick: claim + complete", bare["claim"], "/s")
                yield Figure("yardstick: commit of one row", bare["commit"], "ms")
                yield Figure("enqueue, bulk", size.jobs / took, "/s", bare["claim"])
            for _ in range(processes):
                here.node()
            await drained(here, size.jobs)
            rate = size.jobs / (time.time() - here.first_start())
            await here.expect(size.jobs)
            name = f"drain, {processes} worker process" + ("es" if processes > 1 else "")
            yield Figure(name, rate, "/s", bare["claim"])


async def cost(kind: Kind, size: Size) -> AsyncIterator[Figure]:
    """Processor time per job, of a worker that is up already. On a busy machine this says more than jobs per second."""
    async with site(kind) as here:
        node = here.node()
        await here.registered(node)
        await asyncio.sleep(2)  # what a start does at leisure is not the jobs' cost
        servers = await here.server_pids()
        before, served = cpu_seconds([node.process.pid]), cpu_seconds(servers)
        await here.engine.enqueue(here.org_id, "task", "tick", [{}] * size.jobs)
        await drained(here, size.jobs)
        used = used_since(before, cpu_seconds([node.process.pid]))
        serving = used_since(served, cpu_seconds(await here.server_pids()))
        await here.expect(size.jobs)
        yield Figure("cost of a job, worker CPU", used / size.jobs * 1e6, "µs")
        if servers:
            yield Figure("cost of a job, PostgreSQL CPU", serving / size.jobs * 1e6, "µs")


async def pickup(kind: Kind, size: Size) -> AsyncIterator[Figure]:
    """From the return of enqueue to the first line of the handler, with an idle worker."""
    async with site(kind) as here:
        bare = await yardsticks.measure(here.url)
        await here.registered(here.node())
        await asyncio.sleep(1)  # its first looks are behind it
        sent: dict[int, float] = {}
        called: dict[int, float] = {}
        turn = time.perf_counter()
        for i in range(size.paced):
            turn += size.gap
            await asyncio.sleep(max(0, turn - time.perf_counter()))
            called[i] = time.time()
            await here.engine.enqueue(here.org_id, "task", "stamp", [{"i": i}])
            sent[i] = time.time()
        await stamped(here, size.paced)
        started = here.starts()
        waits = [(started[i] - sent[i]) * 1000 for i in sent]
        whole = [(started[i] - called[i]) * 1000 for i in sent]
        yield Figure("pick-up, return → start, p50", percentile(waits, 0.5), "ms", bare["commit"])
        yield Figure("pick-up, return → start, p99", percentile(waits, 0.99), "ms", bare["commit"])
        yield Figure("pick-up, call → start, p50", percentile(whole, 0.5), "ms", bare["commit"])
        yield Figure("pick-up, call → start, p99", percentile(whole, 0.99), "ms", bare["commit"])


async def lateness(kind: Kind, size: Size) -> AsyncIterator[Figure]:
    """How long after its slot a run starts: schedules due at scattered moments, half of them once, half repeating."""
    for count in size.lateness:
        async with site(kind) as here:
            bare = await yardsticks.measure(here.url)
            await here.registered(here.node())
            chance = random.Random(7)
            opens = here.engine.clock.now() + timedelta(seconds=3)
            slots = [opens + timedelta(seconds=chance.random() * size.span) for _ in range(count)]
            await here.engine.create_schedules(
                here.org_id,
                [
                    {"name": f"late-{i}", "target": "stamp", "input": {"i": i}}
                    | ({"run_at": slot} if i % 2 else {"interval": "1h", "anchor": slot})
                    for i, slot in enumerate(slots)
                ],
            )
            timers = await asyncio.gather(*(overslept(slot.timestamp()) for slot in slots))
            await stamped(here, count)
            late = [(here.starts()[i] - slot.timestamp()) * 1000 for i, slot in enumerate(slots)]
            if min(late) < -1:
                raise AssertionError(f"{kind.name}: a run started {-min(late):.1f} ms before its slot")
            label = f"lateness of {count} schedules in {size.span:g} s"
            yield Figure("yardstick: lateness of a bare timer meanwhile, p99", percentile(timers, 0.99), "ms")
            yield Figure(f"{label}, p50", percentile(late, 0.5), "ms", bare["commit"])
            yield Figure(f"{label}, p99", percentile(late, 0.99), "ms", bare["commit"], "< 50 ms")
            yield Figure(f"{label}, max", max(late), "ms", bare["commit"])


async def burst(kind: Kind, size: Size) -> AsyncIterator[Figure]:
    """Many schedules due at the same second: from that second until all their runs are in the ledger."""
    async with site(kind) as here:
        bare = await yardsticks.measure(here.url)
        slot = here.engine.clock.now().replace(microsecond=0) + timedelta(seconds=5 + size.burst / 1000)
        for chunk in chunks(range(size.burst)):
            await here.engine.create_schedules(
                here.org_id,
                [{"name": f"burst-{i}", "target": "tick", "interval": "1h", "anchor": slot} for i in chunk],
            )
        await here.registered(here.node())
        ahead = slot.timestamp() - time.time()
        if ahead < 0.5:
            raise AssertionError(f"{kind.name}: the schedules were made too slowly; their slot had come")
        await asyncio.sleep(ahead)
        await drained(here, size.burst)
        took = time.time() - slot.timestamp()
        await here.expect(size.burst)
        name = f"burst: {size.burst:,} schedules of one second, fired and run"
        yield Figure(name, size.burst / took, "/s", bare["claim"])


async def scale(kind: Kind, size: Size, rounds: int) -> AsyncIterator[Figure]:
    """What schedules cost that are stored but not due: to make, to restart with, to have."""
    async with site(kind) as here:
        stored = 0
        for goal in size.stored:
            label = f"{goal:,} schedules"
            bare = await yardsticks.measure(here.url)
            for chunk in chunks(range(stored, goal)):
                begun = time.perf_counter()
                await here.engine.create_schedules(here.org_id, [distant(i) for i in chunk])
                rate = len(chunk) / (time.perf_counter() - begun)
                yield Figure(f"{label}: create, {CHUNK:,} a call", rate, "/s", bare["claim"])
            stored = goal
            for _ in range(rounds):
                async for figure in restart(here, size, label):
                    yield figure


async def restart(here: Site, size: Size, label: str) -> AsyncIterator[Figure]:
    """A new worker on a database as it is: until it has run a job, then what it costs to keep it."""
    known = len(here.starts())
    await here.engine.enqueue(here.org_id, "task", "stamp", [{"i": known}])
    node = here.node()
    await stamped(here, known + 1, left=False)
    yield Figure(f"{label}: restart → first job ran", here.starts()[known] - node.started, "s")
    await asyncio.sleep(3)  # what a start does at leisure is not idling
    servers = await here.server_pids()
    before, served = cpu_seconds([node.process.pid]), cpu_seconds(servers)
    await asyncio.sleep(size.window)
    used = used_since(before, cpu_seconds([node.process.pid]))
    serving = used_since(served, cpu_seconds(await here.server_pids()))
    yield Figure(f"{label}: idle CPU of the worker", used / size.window * 100, "%", None, "< 0.5 %")
    if servers:
        yield Figure(f"{label}: idle CPU of PostgreSQL", serving / size.window * 100, "%")
    yield Figure(f"{label}: memory of the worker", resident_mib(node.process.pid), "MiB")
    node.stop()
    here.nodes.remove(node)


async def start(kind: Kind, size: Size) -> AsyncIterator[Figure]:  # noqa: ARG001
    """From the start of the process until its worker is registered."""
    async with site(kind) as here:
        yield Figure("start: process → registered", await here.registered(here.node()), "s")


# helpers


async def drained(here: Site, jobs: int) -> None:
    async def empty() -> bool:
        return here.ran() >= jobs and await here.scalar("SELECT id FROM jobs LIMIT 1") is None

    await here.until(empty, f"{jobs} jobs were done", 300, 0.02)


async def stamped(here: Site, jobs: int, left: bool = True) -> None:
    async def done() -> bool:
        return len(here.starts()) >= jobs and (not left or await here.count("jobs") == 0)

    await here.until(done, f"{jobs} jobs were done", 60, 0.02)
    if left:
        await here.expect(jobs, stamped=True)


async def overslept(moment: float) -> float:
    """How many milliseconds after a moment a process that only waits for it wakes up: what this machine allows."""
    await asyncio.sleep(max(0, moment - time.time()))
    return (time.time() - moment) * 1000


def distant(i: int) -> dict[str, Any]:
    """A cron schedule somewhere in the year: of 100,000 of these about one is due in five minutes."""
    chance = random.Random(i)
    minute, hour, day, month = (chance.randrange(low, high) for low, high in ((0, 60), (0, 24), (1, 29), (1, 13)))
    return {"name": f"distant-{i}", "target": "quiet", "cron_expression": f"{minute} {hour} {day} {month} *"}


def chunks(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for at in range(0, len(numbers), CHUNK):
        yield numbers[at : at + CHUNK]


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


ROUNDS: dict[str, Measure] = {
    "start": start,
    "throughput": throughput,
    "cost": cost,
    "pickup": pickup,
    "lateness": lateness,
    "burst": burst,
}
