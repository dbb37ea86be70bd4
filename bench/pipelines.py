"""Overhead of a run of a pipeline that selects one row, and the cost of firing one due schedule of a pipeline and
ending its run, among many that are not due."""

import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import duckdb

from bench.figures import Figure, Size
from bench.installation import DatabaseKind, Installation, installation
from bench.rota_workloads import write
from bench.run_overhead import figures_of, runs_per_second, single_runs, task_runs
from rota.core.clock import ManualClock, system_time
from rota.core.ids import new_id
from rota.core.model import AttemptResult, Job
from rota.core.states import Status
from rota.db.dialect import Tx
from rota.db.wake import Wake
from rota.engine import claiming, finishing
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.engine.scheduler import Scheduler
from rota.kinds.pipelines import store as pipelines_store
from rota.kinds.pipelines.executor import executor_here
from rota.kinds.pipelines.files import fsync
from rota.kinds.pipelines.manager import PipelineManager
from rota.kinds.pipelines.registry import PipelineRegistry
from rota.kinds.pipelines.runner import PipelineRunner

FEW, MANY = 10, 10_000
FIRES = 50
SLOTS = 4  # the default
SQL = "SELECT 1 AS x"
ROUTES = ["pipeline:sql"]


async def pipelines(kind: DatabaseKind, size: Size) -> AsyncIterator[Figure]:
    async for figure in runs(kind, size):
        yield figure
    async for figure in fires(kind):
        yield figure


# runs


async def runs(kind: DatabaseKind, size: Size) -> AsyncIterator[Figure]:
    """One run at a time, then a full queue; beside them what DuckDB takes for the same statement."""
    async with installation(kind) as here:
        runner = PipelineRunner(PipelineRegistry(), here.db, executor_here(here.home / "warehouse", SLOTS))
        engine = Engine(here.db, here.engine.clock, Wake(), {"pipeline": runner}, here.engine.settings)
        count = size.paced // 2
        paths = [f"sales/bronze/t{number}" for number in range(count)]
        await here.db.tx(fill, here.org_id, paths, engine.clock.now())

        async def enqueue(number: int) -> None:  # different targets: runs of the same pipeline wait for each other
            await engine.enqueue(here.org_id, "pipeline", paths[number % count], [None])

        task = await task_runs(here, count)
        cost = await single_runs(engine, "pipeline", enqueue, count)
        label = f"pipeline run, {kind.name}"
        for figure in figures_of(label, cost, task):
            yield figure
        for description, durable in (("connect, copy to Parquet, close", False), ("the same, fsync and rename", True)):
            median = statistics.median(bare_statement(here.home, durable) for _ in range(count))
            yield Figure(f"{label}: DuckDB alone, {description}, p50", median * 1000, "ms")
        rate = await runs_per_second(here, engine, enqueue, count)
        yield Figure(f"pipeline runs of one worker, {kind.name}", rate, "/s")


def bare_statement(home: Path, durable: bool) -> float:
    """Return the seconds that DuckDB takes for the table of a pipeline, without Rota."""
    draft, table = home / "draft.parquet", home / "table.parquet"
    begun = time.perf_counter()
    with duckdb.connect() as con:
        con.execute(f"COPY ({SQL}) TO '{draft}' (FORMAT parquet)")
    if durable:
        fsync(draft)
        draft.replace(table)
        fsync(home)
    return time.perf_counter() - begun


# fires


async def fires(kind: DatabaseKind) -> AsyncIterator[Figure]:
    """One schedule is due each minute; all others next year."""
    async with installation(kind) as small, installation(kind) as large:
        both = [(await installed(small, FEW)), (await installed(large, MANY))]
        spans: list[list[float]] = [[], []]
        for _ in range(FIRES):  # alternating, so that other load affects both
            for at, engine in enumerate(both):
                spans[at].append(await fire(engine))
        medians = [statistics.median(span) * 1000 for span in spans]
        label = f"one due fire of a pipeline, {kind.name}"
        for count, median in zip((FEW, MANY), medians, strict=True):
            yield Figure(f"{label}, among {count:,}", median, "ms")
        yield Figure(f"{label}, time among {MANY:,} ÷ among {FEW:,}", medians[1] / medians[0], "times", None, "< 1.5")


async def installed(here: Installation, count: int) -> Engine:
    """Create `count` pipelines, each with a schedule, and a trigger from the first to the second."""
    clock = ManualClock(system_time().replace(second=0, microsecond=0))
    runner = PipelineRunner(PipelineRegistry(), here.db, executor_here(Path(tempfile.gettempdir()), 4))
    engine = Engine(here.db, clock, Wake(), {"pipeline": runner}, EngineSettings())
    now = clock.now()
    paths = [f"sales/bronze/t{number}" for number in range(count)]
    await here.db.tx(fill, here.org_id, paths, now)
    later = {"run_at": (now + timedelta(days=365)).isoformat()}
    due = {"interval_seconds": 60, "anchor": now.isoformat()}
    bodies = [
        {"name": path.replace("/", "-"), "kind": "pipeline", "target": path, **(due if path == paths[0] else later)}
        for path in paths
    ]
    await engine.create_schedules(here.org_id, bodies)
    chained = {"type": "pipeline_success", "upstream": paths[0]}
    await PipelineManager(engine, here.org_id).add_trigger(paths[1], chained)
    if here.kind.name == "postgresql":
        await here.db.tx(write, ["ANALYZE"])
    return engine


def fill(tx: Tx, org_id: str, paths: Sequence[str], now: datetime) -> None:
    """Create pipelines that select one row."""
    fields: dict[str, object] = {
        "type": "sql",
        "sql": SQL,
        "function": None,
        "reads": [],
        "description": "",
        "owner_id": None,
        "max_runs": None,
        "max_age_days": None,
        "source": "api",
    }
    for path in paths:
        pipelines_store.insert(tx, org_id, {"path": path, **fields}, now)


async def fire(engine: Engine) -> float:
    """Return the seconds to find and fire the due schedule, claim its job, record its success and fire its trigger."""
    clock = engine.clock
    assert isinstance(clock, ManualClock)
    clock.set(clock.now() + timedelta(minutes=1))
    scheduler = Scheduler(engine)
    begun = time.perf_counter()
    await scheduler.step()
    for job in await engine.db.tx(take):
        await engine.db.tx(end, job, clock.now())
    took = time.perf_counter() - begun
    for job in await engine.db.tx(take):  # what the trigger made
        await engine.db.tx(end, job, clock.now())
    return took


def take(tx: Tx) -> list[Job]:
    return claiming.claim(tx, claiming.lanes(tx), worker="bench", routes=ROUTES, room=5, turn=0)


def end(tx: Tx, job: Job, now: datetime) -> None:
    ended = [AttemptResult(job, Status.SUCCESS, None, now, new_id(), 1, now)]
    finishing.finish(tx, ended, "bench", now)
    pipelines_store.follow(tx, ended, now)
