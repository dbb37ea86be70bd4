"""Harness with real tasks: functions that a test declares run as in a worker."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rota.access.store import accounts
from rota.app.application import Rota
from rota.app.programs import load_app
from rota.core.clock import ManualClock
from rota.db.connection import open_database
from rota.db.wake import Wake
from rota.engine import artifacts
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.engine.scheduler import Scheduler
from rota.engine.worker import Worker
from rota.kinds.tasks import store as tasks_store
from rota.kinds.tasks.manager import TaskManager
from rota.kinds.tasks.registry import TaskRegistry, task_rows
from rota.kinds.tasks.runner import TaskRunner
from rota.reports import jobs as job_reports
from rota.reports import runs as run_reports
from tests.engine.harness import NINE, FakeRunner, Harness

Record = dict[str, Any]

ISOLATED_PROGRAM = str(Path(__file__).with_name("isolated_program.py"))


@dataclass
class TaskHarness(Harness):
    """Harness whose runner executes tasks."""

    program: Rota = field(default_factory=Rota)

    @property
    def manager(self) -> TaskManager:
        return TaskManager(self.engine, self.org_id)

    @property
    def runner(self) -> TaskRunner:
        return self.manager.runner

    async def declare(self, program: str | None = None) -> None:
        rows = task_rows(self.program.registry, self.program.injector, program)
        await self.db.tx(tasks_store.sync, self.org_id, rows, self.clock.now())

    async def store(self, command: str, **fields: Any) -> Record:
        """Create a task row, by default of a Python function."""
        return await self.manager.create({"command": command, "task_type": "python", **fields})

    async def run(self, task: str | Callable[..., Any], /, **params: Any) -> Record:
        """Declare the program's tasks, enqueue one, run it; return the run."""
        await self.declare()
        name = task if isinstance(task, str) else task.__name__
        (job_id,) = await self.engine.enqueue(self.org_id, "task", name, [params or None])
        await self.work()
        return await self.last_run(job_id)

    async def execute(self, task: Record, **params: Any) -> Record:
        job_id = await self.manager.execute_task(task["id"], params or None)
        await self.work()
        return await self.last_run(job_id)

    async def last_run(self, job_id: str) -> Record:
        job = await self.db.read(job_reports.job, self.org_id, job_id)
        return await self.db.read(run_reports.run, self.org_id, job["run_ids"][-1])

    async def artifact(self, run: Record) -> Any:
        return (await self.db.read(artifacts.get, self.org_id, run["artifact_id"]))["data"]

    async def logs(self, run: Record) -> list[str]:
        lines, _ = await self.db.read(run_reports.run_logs, self.org_id, run["id"], limit=200)
        return [line["text"] for line in lines]

    async def claim(self) -> bool:
        """Claim jobs, also of tasks that were declared since the worker registered."""
        self.worker.registration.refresh_routes()
        return await self.worker.prefetch.claim()

    async def work(self) -> None:
        """Run ready jobs and those that they enqueue; store the results."""
        while True:
            more = await self.claim()
            running = [run.task for run in self.worker.active.values() if run.task is not None]
            if running:
                await asyncio.wait(running)
                await asyncio.sleep(0)  # their callbacks
            while self.worker.completer.results:
                await self.worker.completer.flush()
            if not more and not running:
                return

    async def close(self) -> None:
        await self.program.injector.process.close()
        await super().close()


async def open_task_harness(url: str, app: str | None = None, **settings: Any) -> TaskHarness:
    db, clock, program = open_database(url), ManualClock(NINE), load_app(app) if app else Rota()
    runner = TaskRunner(program.registry, db, app, 8, program.injector)
    engine = Engine(db, clock, Wake(), {"task": runner}, EngineSettings(**settings))
    org_id, _ = await db.tx(accounts.ensure_default_org, NINE)
    worker = Worker(engine)
    await worker.register()
    return TaskHarness(engine, clock, FakeRunner(), Scheduler(engine), worker, org_id, program=program)


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Remove what a test registered for all programs."""
    before = dict(TaskRegistry.shared)
    yield
    TaskRegistry.shared.clear()
    TaskRegistry.shared.update(before)


@pytest.fixture
async def harness(clean_url: str) -> AsyncIterator[TaskHarness]:
    harness = await open_task_harness(clean_url)
    yield harness
    await harness.check()
    await harness.close()


@pytest.fixture
async def isolated_harness(clean_url: str) -> AsyncIterator[TaskHarness]:
    """Harness of `isolated_program.py`, whose tasks run in their own processes."""
    harness = await open_task_harness(clean_url, ISOLATED_PROGRAM, artifact_limit=1000)
    yield harness
    await harness.close()
