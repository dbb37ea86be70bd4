"""Workloads for Rota and its peers. Each is one round of one system on a fresh store; it yields figures."""

import asyncio
import json
import os
import random
import subprocess
import time
from collections.abc import AsyncIterator, Callable

from bench import baselines, dependencies
from bench.figures import OURS, Figure, Size, percentile
from bench.installation import WrongCount, cpu_seconds, resident_mib, used_since
from bench.servers import Servers, SystemUnderTest, system_under_test, tree
from bench.systems import System

LEAD = 10.0  # seconds between the command and the first due time: a program must start and create its jobs
BURST_RATE = 500  # jobs per second that the slowest system creates, at least
CRON_PACKAGES = ("apscheduler<4", "croniter", "cronsim")

Measure = Callable[[Servers, System, Size], AsyncIterator[Figure]]


def drain(way: str, processes: int = 1, best: bool = True) -> Measure:
    """W1: jobs per second into the queue, and out of it through handlers that do nothing."""

    async def measure(servers: Servers, system: System, size: Size) -> AsyncIterator[Figure]:
        jobs = min(size.jobs, system.jobs)
        label = system.label + (f" ({jobs:,} jobs)" if jobs < size.jobs else "")
        async with system_under_test(servers, system, system.best if best else system.default) as here:
            bare = await baselines.claims(here.url, processes) if system.name == OURS else None
            took = (await here.call("enqueue", count=jobs))["seconds"]
            for _ in range(processes):
                here.spawn("worker")
            rate = await here.done(jobs, None, size.time_limit)
            if best and processes == 1:
                yield Figure(f"W1 bulk enqueue, {system.group}", jobs / took, "/s", bare, system=label)
            yield Figure(f"W1 drain, {system.group}, {way}", rate, "/s", bare, system=label)

    return measure


async def durable(servers: Servers, system: System, size: Size) -> AsyncIterator[Figure]:
    """W10: durable tasks per second, enqueued before, with one and with five recorded steps."""
    jobs = size.jobs // 10
    for steps, way in ((1, "one step"), (2, "five steps")):
        async with system_under_test(servers, system, system.durable or system.best) as here:
            await here.call("enqueue", count=jobs, steps=steps)
            here.spawn("worker")
            rate = await here.done(jobs, None, size.time_limit)
            yield Figure(f"W10 durable tasks, {way}, {system.group}", rate, "/s", system=system.label)


async def pickup(servers: Servers, system: System, size: Size) -> AsyncIterator[Figure]:
    """W2: from the return (and from the call) of enqueue to the first line of the handler, with an idle worker."""
    async with system_under_test(servers, system, system.best) as here:
        bare = await baselines.pickups(here.url, size.gap) if system.name == OURS else (None, None)
        await warm(here)
        numbers = list(range(1, 1 + size.paced))
        sent = await here.call("paced", stay=system.single_process, numbers=numbers, gap=size.gap)
        warmed = 0 if system.single_process else 1
        await here.until(lambda: here.marks.count() >= size.paced + warmed, "all jobs started", 30)
        starts = here.marks.starts()
        waits = {
            "return → start": [(starts[i] - returned) * 1000 for i, _, returned in sent],
            "call → start": [(starts[i] - called) * 1000 for i, called, _ in sent],
        }
        for (interval, values), least in zip(waits.items(), bare, strict=True):
            for part in (50, 99):
                name = f"W2 pick-up, {system.group}, {interval}, p{part}"
                beside = least if part == 50 else None  # the bare driver's is a median
                yield Figure(name, percentile(values, part / 100), "ms", beside, system=system.label)


async def lateness(servers: Servers, system: System, size: Size) -> AsyncIterator[Figure]:
    """W3: how long after its due time a job starts; due times are scattered."""
    async with system_under_test(servers, system, system.best) as here:
        await warm(here)
        chance = random.Random(7)
        opens = time.time() + LEAD
        due_times = [(i, opens + chance.random() * size.span) for i in range(1, 1 + size.late)]
        await here.call("later", stay=system.single_process, due_times=due_times)
        check_in_time(system, opens)
        timers = await asyncio.gather(*(timer_lateness(at) for _, at in due_times))
        warmed = 0 if system.single_process else 1
        await here.until(lambda: here.marks.count() >= size.late + warmed, "all jobs started", 40)
        starts = here.marks.starts()
        late = [(starts[i] - at) * 1000 for i, at in due_times]
        if min(late) < -1:
            raise WrongCount(f"{system.label}: a job started {-min(late):.1f} ms before its due time")
        for part in (50, 99):
            name = f"W3 lateness, {system.group}, p{part}"
            bare = percentile(timers, part / 100) if system.name == OURS else None
            yield Figure(name, percentile(late, part / 100), "ms", bare, "< 50 ms" if part == 99 else "", system.label)


async def schedules(servers: Servers, system: System, size: Size) -> AsyncIterator[Figure]:
    """W4: cost of stored schedules that are not due: creation, restart, memory, idle CPU. Default settings: frequent
    polling costs idle CPU."""
    count = min(size.schedules, system.schedules)
    fewer = f" ({count:,} of them)" if count < size.schedules else ""
    label = f"W4 {size.schedules:,} schedules, {system.group}"
    async with system_under_test(servers, system, {**system.default, **system.scheduling}) as here:
        took = (await here.call("schedules", count=count))["seconds"]
        await here.call("enqueue", count=1)
        begun = time.time()
        worker = here.spawn("worker")
        await here.until(lambda: here.marks.count() > 0, "a job started", 120)
        ready = here.marks.starts()[0] - begun
        await asyncio.sleep(3)  # deferred start-up work is not idle CPU
        used, serving = await idle(here, worker.pid, size.window)
        values = {
            "create": (count / took, "/s"),
            "restart → first job ran": (ready, "s"),
            "memory": (sum(map(resident_mib, tree(worker.pid))), "MiB"),
            "idle CPU": (used, "%"),
            "idle CPU of the server": (serving, "%"),
        }
        for measure, (value, unit) in values.items():
            if measure != "idle CPU of the server" or system.store != "sqlite":
                target = "< 0.5 %" if measure == "idle CPU" else ""
                yield Figure(f"{label}, {measure}", value, unit, None, target, system.label + fewer)


async def crons(servers: Servers, system: System, size: Size) -> AsyncIterator[Figure]:  # noqa: ARG001
    """W5: the next slot of a parsed cron expression in a zone; no database, so once, not for each system."""
    for expression, microseconds in microseconds_per_slot(size.cron_seconds).items():
        for name, value in microseconds.items():
            yield Figure(f"W5 next slot of {expression}", value, "µs", system=name)


async def burst(servers: Servers, system: System, size: Size) -> AsyncIterator[Figure]:
    """W6: many jobs due at the same second: from that second until all of them ran and are recorded."""
    async with system_under_test(servers, system, system.best) as here:
        slot = float(int(time.time() + LEAD + size.burst / BURST_RATE))
        if not system.single_process:
            here.spawn("worker")
        await here.call("later", stay=system.single_process, due_times=[(i, slot) for i in range(size.burst)])
        check_in_time(system, slot)
        await asyncio.sleep(slot - time.time())
        rate = await here.done(size.burst, slot, 2 * size.time_limit)
        yield Figure(f"W6 fires, {system.group}, {size.burst:,} due in one second", rate, "/s", system=system.label)


# helpers


def microseconds_per_slot(seconds: float) -> dict[str, dict[str, float]]:
    """Return microseconds per slot by expression and system, measured in one process with all libraries."""
    path = os.pathsep.join([str(dependencies.ROOT / "src"), str(dependencies.ROOT)])
    done = subprocess.run(
        [dependencies.python_with(CRON_PACKAGES), "-m", "bench.peers.crons", "measure"],
        input=json.dumps({"seconds": seconds}),
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    microseconds: dict[str, dict[str, float]] = json.loads(done.stdout)
    return microseconds


async def warm(here: SystemUnderTest) -> None:
    """Start a worker and wait until it has run job 0 and idles. A single-process system starts with its command."""
    if not here.system.single_process:
        await here.call("enqueue", count=1)
        here.spawn("worker")
        await here.until(lambda: here.marks.count() > 0, "a job started", 60)
        await asyncio.sleep(1.5)


def check_in_time(system: System, due_time: float) -> None:
    if time.time() > due_time - 0.2:
        raise WrongCount(f"{system.label}: the jobs were created after their due time")


async def timer_lateness(due_time: float) -> float:
    """Return how many milliseconds late a bare timer wakes up on this machine."""
    await asyncio.sleep(max(0, due_time - time.time()))
    return (time.time() - due_time) * 1000


async def idle(here: SystemUnderTest, pid: int, seconds: float) -> tuple[float, float]:
    """Return the CPU time of a system and of its server over some seconds, in percent of one core."""
    before, served = cpu_seconds(tree(pid)), cpu_seconds(await here.server_pids())
    await asyncio.sleep(seconds)
    used = used_since(before, cpu_seconds(tree(pid)))
    serving = used_since(served, cpu_seconds(await here.server_pids()))
    return used / seconds * 100, serving / seconds * 100
