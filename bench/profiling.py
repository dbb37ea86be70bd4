"""CPU time and function calls of one job by phase: `python -m bench --profile`.

CPU time depends on the machine and its load. The number of function calls, and of instructions where valgrind is
installed, hardly does, so a loss of speed shows on a noisy machine too.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import uvloop

from bench.installation import ROOT, DatabaseKind, Sqlite, make_engine
from rota.core.timing.triggers import Timing, next_slot, parse_cron
from rota.db.connection import open_database
from rota.engine import workers
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.engine.scheduler import FIRE_BATCH_ROWS, Scheduler
from rota.engine.worker import Worker

JOBS = 500  # one batch
INSTRUCTED = (1, 3)  # batches whose difference is counted under valgrind: the start of the program falls out
Gauge = Callable[[], float]


async def phases(engine: Engine, org_id: str, gauge: Gauge) -> dict[str, float]:
    """Return the gauge's difference over each phase, per job or slot. The engine must have places for all jobs."""
    spent: dict[str, float] = {}

    @contextmanager
    def phase(name: str, count: int = JOBS) -> Iterator[None]:
        before = gauge()
        yield
        spent[name] = (gauge() - before) / count

    worker = Worker(engine)
    await engine.db.tx(
        lambda tx: workers.register(
            tx,
            worker=worker.id,
            pid=os.getpid(),
            version="bench",
            concurrency=JOBS,
            kinds=sorted(engine.runners),
            routes=worker.registration.routes,
            queues=None,
            lease=timedelta(hours=1),
            now=engine.clock.now(),
        )
    )  # a long lease and no heartbeat thread: heartbeats are not part of a job's cost
    with phase("enqueue"):
        await engine.enqueue(org_id, "task", "quiet", [{}] * JOBS)
    with mock.patch.object(worker.prefetch, "start_waiting", return_value=None), phase("claim"):  # measured next
        await worker.prefetch.claim()
    with phase("start"):
        worker.prefetch.start_waiting()
    with phase("run"):
        await worker.cancellation.until_idle(60)
    with phase("finish"):
        while worker.completer.results:
            await worker.completer.flush()
    await make_due(engine, org_id)
    with phase("fire", FIRE_BATCH_ROWS):
        await Scheduler(engine).step()
    while (
        await worker.prefetch.claim() or worker.active or worker.completer.results
    ):  # the next measurement begins with an empty queue
        await worker.cancellation.until_idle(60)
        while worker.completer.results:
            await worker.completer.flush()
    timing, at = Timing(parse_cron("*/5 9-17 * * MON-FRI"), "America/New_York"), datetime(2026, 3, 3, tzinfo=UTC)
    with phase("next slot"):
        for _ in range(JOBS):
            at = next_slot(timing, at) or at
    return spent


async def make_due(engine: Engine, org_id: str) -> None:
    """Create as many due schedules as one step fires."""
    slot = engine.clock.now() + timedelta(seconds=1)
    body = {"target": "quiet", "interval": "1h", "anchor": slot}
    await engine.create_schedules(
        org_id, [{**body, "name": f"due-{slot:%H%M%S%f}-{i}"} for i in range(FIRE_BATCH_ROWS)]
    )
    await asyncio.sleep(max(0.0, (slot - engine.clock.now()).total_seconds()) + 0.01)


@asynccontextmanager
async def engine_at(url: str) -> AsyncIterator[tuple[Engine, str]]:
    db = open_database(url)
    try:
        yield await make_engine(db, EngineSettings(concurrency=JOBS))
    finally:
        await db.close()


async def profile(kind: DatabaseKind) -> dict[str, dict[str, float]]:
    """CPU µs and function calls of each phase, on a fresh database with prepared statements."""
    calls: Counter[int] = Counter()

    def count(frame: object, event: str, arg: object) -> None:  # noqa: ARG001
        if event in ("call", "c_call"):
            calls[threading.get_ident()] += 1  # by thread: `+=` is not atomic

    with tempfile.TemporaryDirectory(prefix="rota-bench-") as home:
        url = kind.fresh(Path(home))
        try:
            async with engine_at(url) as (engine, org_id):
                await phases(engine, org_id, time.process_time)
                cpu = await phases(engine, org_id, time.process_time)
            threading.setprofile(count)  # applies to threads that start from now on: those of the database
            async with engine_at(url) as (engine, org_id):
                await phases(engine, org_id, calls.total)
                sys.setprofile(count)
                counted = await phases(engine, org_id, calls.total)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            kind.drop(url)
    return {name: {"cpu_us": cpu[name] * 1e6, "calls": counted[name]} for name in cpu}


def instructions() -> float | None:
    """Instructions of one job and 0.4 fires with everything around them, on SQLite; None without valgrind."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return None
    few, many = (counted_by(valgrind, batches) for batches in INSTRUCTED)
    return (many - few) / (INSTRUCTED[1] - INSTRUCTED[0]) / JOBS


def counted_by(valgrind: str, batches: int) -> int:
    with tempfile.NamedTemporaryFile(prefix="rota-bench-") as out:
        watch = [valgrind, "--tool=callgrind", f"--callgrind-out-file={out.name}"]
        program = [sys.executable, "-m", "bench.profiling", str(batches)]
        subprocess.run([*watch, *program], cwd=ROOT, check=True, capture_output=True)
        text = Path(out.name).read_text(errors="replace")
    total = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
    assert total is not None
    return int(total[1])


async def repeat(batches: int) -> None:
    """The program that runs under valgrind."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as home:
        async with engine_at(Sqlite(Path(home)).fresh(Path(home))) as (engine, org_id):
            for _ in range(batches):
                await phases(engine, org_id, time.process_time)


def shown(phases_of_job: dict[str, dict[str, float]], title: str) -> str:
    lines = [f"### {title}", "", "| phase | CPU µs | calls |", "|---|---:|---:|"]
    lines += [
        f"| {name} | {figures['cpu_us']:.1f} | {figures['calls']:.1f} |" for name, figures in phases_of_job.items()
    ]
    job = ("enqueue", "claim", "start", "run", "finish")
    cpu, calls = (sum(phases_of_job[name][column] for name in job) for column in ("cpu_us", "calls"))
    return "\n".join([*lines, f"| a job, enqueue to finish | {cpu:.1f} | {calls:.1f} |"])


if __name__ == "__main__":
    uvloop.run(repeat(int(sys.argv[1])))
