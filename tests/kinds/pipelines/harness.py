"""Harness with pipelines: on DuckDB, or on an executor whose runs end when the test decides."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from rota.access.store import accounts
from rota.app.application import Rota
from rota.core.clock import ManualClock
from rota.db.connection import open_database
from rota.db.tables import jobs, runs
from rota.db.wake import Wake
from rota.engine import jobs as queue
from rota.engine import orgs
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.engine.runner import Busy
from rota.engine.scheduler import Scheduler
from rota.engine.worker import Worker
from rota.kinds.pipelines.executor import Executor, Materialisation, MaterialisationResult, executor_here
from rota.kinds.pipelines.manager import PipelineManager
from rota.kinds.pipelines.manager import declare as declare_pipelines
from rota.kinds.pipelines.runner import PipelineRunner
from tests.engine.harness import NINE, FakeRunner, Harness

Record = dict[str, Any]


@dataclass
class FakeExecutor:
    """Executor with a number of places. Orders wait while `shut`, then fail with the next of `errors`, if any."""

    places: int = 4
    shut: bool = False
    errors: list[Exception] = field(default_factory=list)
    inside: dict[str, asyncio.Event] = field(default_factory=dict)
    most: int = 0  # maximum of concurrent orders
    asked: int = 0
    real: Executor | None = None  # checks SQL

    def capacity(self) -> int:
        return self.places - len(self.inside)

    async def submit(self, order: Materialisation) -> MaterialisationResult:
        self.asked += 1
        if self.capacity() <= 0:
            raise Busy("full")
        gate = self.inside[order.run_id] = asyncio.Event()
        self.most = max(self.most, len(self.inside))
        try:
            while self.shut and not gate.is_set():
                await gate.wait()
        finally:
            del self.inside[order.run_id]
        if self.errors:
            raise self.errors.pop(0)
        return MaterialisationResult(1, 0.5)

    async def cancel(self, run_id: str) -> None: ...

    async def verify(self) -> None: ...

    async def close(self) -> None: ...

    def logs(self, run_id: str) -> list[str]:
        return []

    def check(self, sql: str) -> list[str]:
        assert self.real is not None
        return self.real.check(sql)

    async def preview(self, org_id: str, sql: str, limit: int) -> Any:
        raise NotImplementedError


@dataclass
class PipelineHarness(Harness):
    fake_executor: FakeExecutor | None = None
    program: Rota = field(default_factory=Rota)

    @property
    def manager(self) -> PipelineManager:
        return PipelineManager(self.engine, self.org_id)

    async def pipeline(self, path: str, sql: str | None = "SELECT 1 AS one", **fields: Any) -> Record:
        namespace, layer, name = path.split("/")
        return await self.manager.create({"namespace": namespace, "layer": layer, "name": name, "sql": sql, **fields})

    async def plan(self, path: str, cron: str = "0 * * * *", name: str = "job", **fields: Any) -> str:
        return await self.schedule(name, cron, kind="pipeline", target=path, **fields)

    async def trigger(self, path: str, kind: str, **fields: Any) -> tuple[Record, str | None]:
        return await self.manager.add_trigger(path, {"type": kind, **fields})

    async def declare(self) -> None:
        await declare_pipelines(self.engine, "default", self.program.pipelines)
        await self.db.tx(orgs.system_user, self.org_id, NINE)
        self.worker.registration.refresh_routes()

    async def run(self, path: str, payload: Any = None) -> Record:
        """Run a pipeline and what it triggers; return its run."""
        job_id = await self.manager.run(path, payload)
        await self.run_due()
        (row,) = await self.rows(select(runs).where(runs.c.job_id == job_id))
        return dict(row._mapping)

    async def work(self) -> None:
        """Run ready jobs and those that follow, until only orders in the shut executor are left."""
        while True:
            self.worker.cancellation.cancel(await self.db.read(queue.cancel_requests, self.worker.id))
            more = await self.worker.prefetch.claim()
            for _ in range(60_000):
                if all(self.waits(run.ctx.run_id) for run in self.worker.active.values()):
                    break
                await asyncio.sleep(0.001)
            ended = bool(self.worker.completer.results)
            while self.worker.completer.results:
                await self.worker.completer.flush()
            if not more and not ended:
                return

    def waits(self, run_id: str) -> bool:
        return self.fake_executor is not None and self.fake_executor.shut and run_id in self.fake_executor.inside

    async def release_executor(self) -> None:
        assert self.fake_executor is not None
        self.fake_executor.shut = False
        for gate in self.fake_executor.inside.values():
            gate.set()
        await self.work()

    async def ran(self) -> list[str]:
        """Return the runs as text: target, trigger, status."""
        rows = await self.rows(select(runs).order_by(runs.c.finished_at, runs.c.id))
        return [f"{row.target} {row.trigger} {row.status}{f': {row.reason}' if row.reason else ''}" for row in rows]

    async def waiting(self) -> list[str]:
        """Return the queue as text: target, trigger, state."""
        rows = await self.rows(select(jobs).order_by(jobs.c.id))
        return [f"{row.target} {row.trigger} {row.state}" for row in rows]

    async def close(self) -> None:
        if self.fake_executor is not None:
            await self.release_executor()
        await super().close()


async def open_pipeline_harness(
    url: str, place: Path, fake_executor: FakeExecutor | None = None, slots: int = 4, engine: str = "", **settings: Any
) -> PipelineHarness:
    db, clock, program = open_database(url), ManualClock(NINE), Rota()
    real = executor_here(place, slots, engine, lambda org_id: db.read(orgs.slug_of, org_id))
    if fake_executor is not None:
        fake_executor.real = real
    runner = PipelineRunner(program.pipelines, db, fake_executor or real, injector=program.injector)
    commands = Engine(db, clock, Wake(), {"task": FakeRunner(), "pipeline": runner}, EngineSettings(**settings))
    org_id, _ = await db.tx(accounts.ensure_default_org, NINE)
    worker = Worker(commands)
    await worker.register()
    return PipelineHarness(
        commands, clock, FakeRunner(), Scheduler(commands), worker, org_id, fake_executor=fake_executor, program=program
    )
