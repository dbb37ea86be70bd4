"""The engine with real tasks in it, step by step: what a test declares runs as it would in a worker."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rota.access.store import accounts
from rota.app.application import Rota, load_app
from rota.core.clock import ManualClock
from rota.db.connection import open_database
from rota.db.notify import Wake
from rota.engine import artifacts, run_reports
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.engine.scheduler import Scheduler
from rota.engine.worker import Worker
from rota.kinds.tasks import store as tasks_store
from rota.kinds.tasks.manager import TaskManager
from rota.kinds.tasks.registry import task_rows
from rota.kinds.tasks.runner import TaskRunner
from tests.engine.harness import NINE, FakeRunner, Harness

Record = dict[str, Any]


@dataclass
class TaskHarness(Harness):
    """A harness whose fake_runner are tasks."""

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
        """A task row, of a function unless said otherwise."""
        return await self.manager.create({"command": command, "task_type": "python", **fields})

    async def run(self, what: str | Callable[..., Any], /, **params: Any) -> Record:
        """Declare, make a job, work; returns the run."""
        await self.declare()
        name = what if isinstance(what, str) else what.__name__
        (job_id,) = await self.engine.enqueue(self.org_id, "task", name, [params or None])
        await self.work()
        return await self.last_run(job_id)

    async def execute(self, task: Record, **params: Any) -> Record:
        job_id = await self.manager.execute_task(task["id"], params or None)
        await self.work()
        return await self.last_run(job_id)

    async def last_run(self, job_id: str) -> Record:
        job = await self.db.read(run_reports.job, self.org_id, job_id)
        return await self.db.read(run_reports.run, self.org_id, job["run_ids"][-1])

    async def artifact(self, run: Record) -> Any:
        return (await self.db.read(artifacts.get, self.org_id, run["artifact_id"]))["data"]

    async def logs(self, run: Record) -> list[str]:
        lines, _ = await self.db.read(run_reports.run_logs, self.org_id, run["id"], limit=200)
        return [line["text"] for line in lines]

    async def work(self) -> None:
        """Run what is ready, also what that makes, and write down how it ended."""
        while True:
            more = await self.worker.prefetch.claim()
            running = [one.task for one in self.worker.active.values() if one.task is not None]
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
