"""The works that Rota does beside its peers. Each is one round of one system on a fresh store; it yields figures."""

import asyncio
import json
import os
import random
import subprocess
import time
from collections.abc import AsyncIterator, Callable

from bench import equipment, yardsticks
from bench.figures import OURS, Figure, Size, percentile
from bench.lab import Arena, Lab, arena, tree
from bench.site import WrongCount, cpu_seconds, resident_mib, used_since
from bench.systems import System

LEAD = 10.0  # seconds between the order and the first moment: a program must start and make its jobs
CRON_PACKAGES = ("apscheduler<4", "croniter", "cronsim")

Measure = Callable[[Lab, System, Size], AsyncIterator[Figure]]


def drain(way: str, processes: int = 1, best: bool = True) -> Measure:
    """W1: jobs per second into the queue, and out of it through handlers that do nothing."""

    async def measure(lab: Lab, system: System, size: Size) -> AsyncIterator[Figure]:
        async with arena(lab, system, system.best if best else system.default) as here:
            bare = await yardsticks.claims(here.url) if system.name == OURS else None
            took = here.call("enqueue", count=size.jobs)["seconds"]
            for _ in range(processes):
                here.spawn("worker")
            rate = await here.done(size.jobs, None, size.patience)
            if best and processes == 1:
                yield Figure(f"W1 bulk enqueue, {system.group}", size.jobs / took, "/s", bare, system=system.label)
            yield Figure(f"W1 drain, {system.group}, {way}", rate, "/s", bare, system=system.label)

    return measure


async def pickup(lab: Lab, system: System, size: Size) -> AsyncIterator[Figure]:
    """W2: from the return (and from the call) of enqueue to the first line of the handler, with an idle worker."""
    async with arena(lab, system, system.best) as here:
        bare = await yardsticks.pickups(here.url, size.gap) if system.name == OURS else (None, None)
        await warm(here)
        numbers = list(range(1, 1 + size.paced))
        sent = here.call("paced", stay=system.alone, numbers=numbers, gap=size.gap)
        warmed = 0 if system.alone else 1
        await here.until(lambda: here.marks.count() >= size.paced + warmed, "all jobs started", 30)
        starts = here.marks.starts()
        waits = {
            "return → start": [(starts[i] - returned) * 1000 for i, _, returned in sent],
            "call → start": [(starts[i] - called) * 1000 for i, called, _ in sent],
        }
        for (what, values), least in zip(waits.items(), bare, strict=True):
            for part in (50, 99):
                name = f"W2 pick-up, {system.group}, {what}, p{part}"
                beside = least if part == 50 else None  # the bare driver's is a median
                yield Figure(name, percentile(values, part / 100), "ms", beside, system=system.label)


async def lateness(lab: Lab, system: System, size: Size) -> AsyncIterator[Figure]:
    """W3: how long after its moment a job starts; the moments are scattered."""
    async with arena(lab, system, system.best) as here:
        await warm(here)
        chance = random.Random(7)
        opens = time.time() + LEAD
        moments = [(i, opens + chance.random() * size.span) for i in range(1, 1 + size.late)]
        here.call("later", stay=system.alone, moments=moments)
        in_time(system, opens)
        timers = await asyncio.gather(*(overslept(at) for _, at in moments))
        warmed = 0 if system.alone else 1
        await here.until(lambda: here.marks.count() >= size.late + warmed, "all jobs started", 40)
        starts = here.marks.starts()
        late = [(starts[i] - at) * 1000 for i, at in moments]
        if min(late) < -1:
            raise WrongCount(f"{system.label}: a job started {-min(late):.1f} ms before its moment")
        for part in (50, 99):
            name = f"W3 lateness, {system.group}, p{part}"
            bare = percentile(timers, part / 100) if system.name == OURS else None
            yield Figure(name, percentile(late, part / 100), "ms", bare, "< 50 ms" if part == 99 else "", system.label)


async def schedules(lab: Lab, system: System, size: Size) -> AsyncIterator[Figure]:
    """W4: what schedules cost that are stored but not due: to make, to restart with, to have. Default settings: an
    eager poll costs idle CPU."""
    count = min(size.schedules, system.schedules)
    fewer = f" ({count:,} of them)" if count < size.schedules else ""
    label = f"W4 {size.schedules:,} schedules, {system.group}"
    async with arena(lab, system, {**system.default, **system.scheduling}) as here:
        took = here.call("schedules", count=count)["seconds"]
        here.call("enqueue", count=1)
        begun = time.time()
        worker = here.spawn("worker")
        await here.until(lambda: here.marks.count() > 0, "a job started", 120)
        ready = here.marks.starts()[0] - begun
        await asyncio.sleep(3)  # what a start does at leisure is not idling
        used, serving = await idle(here, worker.pid, size.window)
        values = {
            "create": (count / took, "/s"),
            "restart → first job ran": (ready, "s"),
            "memory": (sum(map(resident_mib, tree(worker.pid))), "MiB"),
            "idle CPU": (used, "%"),
            "idle CPU of the server": (serving, "%"),
        }
        for what, (value, unit) in values.items():
            if what != "idle CPU of the server" or system.store != "sqlite":
                bar = "< 0.5 %" if what == "idle CPU" else ""
                yield Figure(f"{label}, {what}", value, unit, None, bar, system.label + fewer)


async def crons(lab: Lab, system: System, size: Size) -> AsyncIterator[Figure]:  # noqa: ARG001
    """W5: the next slot of a parsed cron expression in a zone; no database, so once, not for each system."""
    for expression, found in walked(size.cron_seconds).items():
        for name, value in found.items():
            yield Figure(f"W5 next slot of {expression}", value, "µs", system=name)


async def burst(lab: Lab, system: System, size: Size) -> AsyncIterator[Figure]:
    """W6: many due at the same second: from that second until all of them ran and are written down."""
    async with arena(lab, system, system.best) as here:
        slot = float(int(time.time() + LEAD + size.burst / 250))
        if not system.alone:
            here.spawn("worker")
        here.call("later", stay=system.alone, moments=[(i, slot) for i in range(size.burst)])
        in_time(system, slot)
        await asyncio.sleep(slot - time.time())
        rate = await here.done(size.burst, slot, 2 * size.patience)
        yield Figure(f"W6 fires, {system.group}, {size.burst:,} due in one second", rate, "/s", system=system.label)


# helpers


def walked(seconds: float) -> dict[str, dict[str, float]]:
    """One process with all systems in it. Of Rota it needs the core, which needs nothing."""
    path = os.pathsep.join([str(equipment.ROOT / "src"), str(equipment.ROOT)])
    done = subprocess.run(
        [equipment.python_with(CRON_PACKAGES), "-m", "bench.peers.crons", "measure"],
        input=json.dumps({"seconds": seconds}),
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


async def warm(here: Arena) -> None:
    """A worker that has run a job, number 0, and idles. Where the system is one process, the next command is it."""
    if not here.system.alone:
        here.call("enqueue", count=1)
        here.spawn("worker")
        await here.until(lambda: here.marks.count() > 0, "a job started", 60)
        await asyncio.sleep(1.5)


def in_time(system: System, moment: float) -> None:
    if time.time() > moment - 0.2:
        raise WrongCount(f"{system.label}: the jobs were made too slowly; their moment had come")


async def overslept(moment: float) -> float:
    """How many milliseconds after a moment a process that only waits for it wakes up: what this machine allows."""
    await asyncio.sleep(max(0, moment - time.time()))
    return (time.time() - moment) * 1000


async def idle(here: Arena, pid: int, seconds: float) -> tuple[float, float]:
    """Processor time of a system and of its server over a while, in percent of one core."""
    before, served = cpu_seconds(tree(pid)), cpu_seconds(await here.server_pids())
    await asyncio.sleep(seconds)
    used = used_since(before, cpu_seconds(tree(pid)))
    serving = used_since(served, cpu_seconds(await here.server_pids()))
    return used / seconds * 100, serving / seconds * 100
