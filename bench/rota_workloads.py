"""Workloads for Rota only. Each is one round on fresh databases and yields its figures."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from sqlalchemy import text as sql

from bench import profiling
from bench.figures import Figure, Size
from bench.installation import (
    DatabaseKind,
    Installation,
    WrongCount,
    cpu_seconds,
    installation,
    make_engine,
    used_since,
)
from bench.program import SHARED_KIND
from rota.access.store import accounts
from rota.core.ids import new_id
from rota.db.dialect import Tx
from rota.engine.engine_settings import EngineSettings

SEED = 200_000  # runs written to the ledger in one statement
REPEATS = 5
TURNS = 20  # of phases that last some milliseconds
BACKLOG_FROM = 1_000  # jobs below this number are the single jobs of the other org


async def start(kind: DatabaseKind, size: Size) -> AsyncIterator[Figure]:  # noqa: ARG001
    """From the start of the process until its worker is registered."""
    async with installation(kind) as here:
        yield Figure(f"start of a worker process, {kind.name}", await here.registered(here.start_process()), "s")


async def cost(kind: DatabaseKind, size: Size) -> AsyncIterator[Figure]:
    """CPU time per job of a running worker. On a busy machine this is more stable than jobs per second."""
    async with installation(kind) as here:
        worker = here.start_process()
        await here.registered(worker)
        await asyncio.sleep(2)  # deferred start-up work is not part of a job's cost
        servers = await here.server_pids()
        before, served = cpu_seconds([worker.process.pid]), cpu_seconds(servers)
        for at in range(0, size.jobs, 1000):
            await here.engine.enqueue(here.org_id, "task", "mark", [{"i": i} for i in range(at, at + 1000)])
        await here.until(partial(drained, here, size.jobs), f"{size.jobs} jobs were done", 300, 0.02)
        used = used_since(before, cpu_seconds([worker.process.pid]))
        serving = used_since(served, cpu_seconds(await here.server_pids()))
        await here.expect(size.jobs)
        yield Figure(f"CPU of a job, worker, {kind.name}", used / size.jobs * 1e6, "µs")
        if servers:
            yield Figure("CPU of a job, PostgreSQL's sessions", serving / size.jobs * 1e6, "µs")


async def growth(kind: DatabaseKind, size: Size) -> AsyncIterator[Figure]:
    """W7: time of the phases of jobs and slots with a long ledger, divided by that with a short one, alternating."""
    small, large = size.ledgers
    async with installation(kind) as short, installation(kind) as long:
        few, many = [await grown(here, count) for here, count in ((short, small), (long, large))]
        rounds = [(await few(), await many()) for _ in range(TURNS)]
        for name in ("enqueue", "claim", "finish", "fire"):
            label = f"W7 {name}, {kind.name}, time with {large:,} runs in the ledger ÷ with {small:,}"
            ratio = statistics.median(after[name] / before[name] for before, after in rounds)
            yield Figure(label, ratio, "times", None, "< 1.2")


async def grown(here: Installation, runs: int) -> Callable[[], Awaitable[dict[str, float]]]:
    """Fill the ledger; return a function that measures the phases."""
    engine, org_id = await make_engine(here.db, EngineSettings(concurrency=profiling.JOBS))
    await profiling.phases(engine, org_id, time.perf_counter)  # its runs are the template of the copies
    for at in range(0, runs, SEED):
        await here.db.tx(write, seeds(here.kind, min(SEED, runs - at)))
    await here.db.tx(write, ["ANALYZE"])  # as autovacuum would do
    return lambda: profiling.phases(engine, org_id, time.perf_counter)


def write(tx: Tx, statements: list[str]) -> None:
    for statement in statements:
        tx.execute(sql(statement))


def seeds(kind: DatabaseKind, count: int) -> list[str]:
    """Return statements that insert `count` past runs, half of them with slots of a thousand schedules."""
    tag = new_id()[:14]  # ids sort by time, like real ids
    if kind.name == "postgresql":
        numbers = f"SELECT n, lpad(n::text, 12, '0') AS id FROM generate_series(1, {count}) AS n"
        slot = "finished_at - n * interval '1 minute'"
    else:
        series = f"WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count})"
        numbers = f"{series} SELECT n, printf('%012d', n) AS id FROM s"
        slot = "finished_at - n * 60000000"
    source = f"FROM ({numbers}) AS numbers, (SELECT * FROM runs ORDER BY id LIMIT 1) AS pattern"
    copied = "org_id, kind, target, route, input, trigger, status, queued_at, started_at, finished_at, recorded_at"
    scheduled = f"'{tag}' || 'schedule' || (n % 1000)"
    return [
        f"INSERT INTO runs (id, job_id, attempt, schedule_id, slot, {copied}) SELECT '{tag}' || numbers.id, "
        f"'{tag}' || numbers.id, 1, CASE WHEN n % 2 = 0 THEN {scheduled} END, "
        f"CASE WHEN n % 2 = 0 THEN {slot} END, {copied} {source}",
        f"INSERT INTO slots (schedule_id, slot, count, job_id, attempts) SELECT {scheduled}, {slot}, 1, "
        f"'{tag}' || numbers.id, 1 {source} WHERE n % 2 = 0",
    ]


async def fairness(kind: DatabaseKind, size: Size) -> AsyncIterator[Figure]:
    """W8: how many jobs of an org with a long queue start before the only job of another org does."""
    for target, description in (("mark", "jobs that do nothing"), ("linger", "jobs of 20 ms")):
        async with installation(kind) as here:
            other, _ = await here.db.tx(accounts.create_org, "Other", "other", here.engine.clock.now())
            for at in range(0, size.backlog, 10_000):
                backlog = [{"i": BACKLOG_FROM + i} for i in range(at, min(size.backlog, at + 10_000))]
                await here.engine.enqueue(here.org_id, SHARED_KIND, target, backlog)
            here.start_process()
            await here.until(partial(some, here, 100), "100 jobs of the backlog started", 60, 0.01)
            sent = {}
            for i in range(REPEATS):
                await here.engine.enqueue(other, SHARED_KIND, target, [{"i": i}])
                sent[i] = time.time()
                await here.until(partial(started, here, i), "the single job started", 60, 0.05)
            starts = here.marks.starts()
            if len(starts) >= size.backlog:
                raise WrongCount("the backlog was finished before the last single job was sent: make it larger")
            before = [sum(at < when < starts[i] for when in starts.values()) for i, at in sent.items()]
            label = (
                f"W8 of {size.backlog:,} waiting jobs started before another org's only one, {kind.name}, {description}"
            )
            yield Figure(f"{label}, median", statistics.median(before), "jobs")
            yield Figure(f"{label}, max", max(before), "jobs")


# helpers


async def drained(here: Installation, jobs: int) -> bool:
    return here.marks.count() >= jobs and await here.count("jobs") == 0


async def some(here: Installation, jobs: int) -> bool:
    return here.marks.count() >= jobs


async def started(here: Installation, i: int) -> bool:
    return i in here.marks.starts()
