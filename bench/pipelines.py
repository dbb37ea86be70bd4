"""Cost of firing one due schedule of a pipeline and ending its run, among many that are not due."""

import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

from bench.figures import Figure, Size
from bench.installation import DatabaseKind, Installation, installation
from bench.rota_workloads import write
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
from rota.kinds.pipelines.manager import PipelineManager
from rota.kinds.pipelines.registry import PipelineRegistry
from rota.kinds.pipelines.runner import PipelineRunner

FEW, MANY = 10, 10_000
FIRES = 50
ROUTES = ["pipeline:sql"]


async def pipelines(kind: DatabaseKind, size: Size) -> AsyncIterator[Figure]:  # noqa: ARG001
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
    fields: dict[str, object] = {
        "type": "sql",
        "sql": "SELECT 1 AS one",
        "function": None,
        "reads": [],
        "description": "",
        "owner_id": None,
        "max_runs": None,
        "max_age_days": None,
        "source": "api",
    }
    paths = [f"sales/bronze/t{number}" for number in range(count)]

    def fill(tx: Tx) -> None:
        for path in paths:
            pipelines_store.insert(tx, here.org_id, {"path": path, **fields}, now)

    await here.db.tx(fill)
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
