"""Node: scheduler, worker and maintenance of one process, and what it stores at its start."""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from rota.access.store import accounts
from rota.app.application import Rota
from rota.app.assembly import make_engine
from rota.app.data_dir import write_secret
from rota.app.idle import drain_when_idle
from rota.app.settings import Settings
from rota.app.signals import Shutdown
from rota.core.clock import SystemClock, real_sleep
from rota.core.errors import Unavailable
from rota.db.connection import Database, open_database
from rota.db.retry import retry_until_available
from rota.db.wake import Wake
from rota.engine import orgs, warmup, workers
from rota.engine.commands import Engine
from rota.engine.maintenance import Maintenance
from rota.engine.metrics import Metrics
from rota.engine.runner import Closes, capture_output
from rota.engine.scheduler import Scheduler
from rota.engine.supervision import start_supervised
from rota.engine.worker import Worker
from rota.engine.worker.active_run import ActiveRuns
from rota.engine.worker.worker import LAST_WRITE_SECONDS
from rota.kinds.alarms.evaluation import Evaluation
from rota.kinds.alarms.manager import declare_alarms
from rota.kinds.graphs.runner import GraphRunner
from rota.kinds.pipelines.manager import declare as declare_pipelines
from rota.kinds.tasks.declare import declare
from rota.kinds.tasks.executors.executors import Executors
from rota.kinds.tasks.manager import TaskManager
from rota.kinds.tasks.registry import task_rows
from rota.kinds.workflows.manager import deploy_all

if TYPE_CHECKING:
    from rota.kinds.graphs.remote import Remote

DATABASE_START_SECONDS = 20.0  # that a start waits for a database that is starting too
GRAPH_LIST_TIMEOUT_SECONDS = 5.0  # that a start waits for the graph endpoint
GRAPH_LIST_SECONDS = 30.0  # between polls of the graph endpoint
WARM_UP_POLL_SECONDS = 0.2  # between checks whether the worker has free places for the warm-up
CLOCK_SYNC_SECONDS = 10.0  # between measurements of the database's clock

log = structlog.get_logger("rota")


class Node:
    """Scheduler, worker and maintenance of one process, on one event loop."""

    def __init__(self, settings: Settings, program: Rota, app: str | None) -> None:
        self.settings, self.program, self.app = settings, program, app
        self.clock = SystemClock()
        self.wake: Wake | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.scheduler: Scheduler | None = None
        self.worker: Worker | None = None
        self.stopping = False
        self.exit_when_idle: timedelta | None = None  # set for worker processes
        self.active_runs: ActiveRuns = {}  # by job, of all workers that this process has had
        self.closing: list[asyncio.Task[None]] = []  # workers that lost their lease and still record results
        self.metrics = Metrics()
        self.on_prepared: Callable[[], None] = lambda: None  # called when the program's declarations are stored
        self.on_wake_up: Callable[[str], None] = lambda _: None  # notifies the API of this process of a change

    def problems(self) -> Mapping[str, str]:
        """Return why this process does not fire or run anything, by code; see `rota.app.health`."""
        if self.stopping:
            return {"stopping": "this process is stopping"}
        if self.scheduler is None or self.worker is None or not self.worker.registration.registered:
            return {"starting": "this process is starting"}
        stalled = {"scheduler_stalled": self.scheduler.trouble(), "worker_stalled": self.worker.trouble()}
        return {code: reason for code, reason in stalled.items() if reason is not None}

    def signal(self, topic: str) -> None:
        """Pass a wake-up from another thread to the node's event loop."""
        if self.loop is not None and self.wake is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.wake.signal, topic)

    async def run(self, shutdown: Shutdown) -> None:
        """Store the program's declarations, then fire and run until `shutdown.drain` is set."""
        capture_output()
        self.loop, self.wake = asyncio.get_running_loop(), Wake(lambda topic: self.on_wake_up(topic))
        db = open_database(self.settings.database_url)
        engine = make_engine(self.settings, self.program, self.app, db, self.clock, self.wake, self.metrics)
        self.program.use(engine)
        try:
            await retry_until_available(lambda: self.prepare(engine), DATABASE_START_SECONDS)
            self.on_prepared()
            await self.work(engine, shutdown)
        finally:
            await db.close()

    async def prepare(self, engine: Engine) -> None:
        """Store what the program declares. Idempotent."""
        await set_up_installation(engine, self.settings)
        if (remote := graph_endpoint(engine)) is not None:
            with contextlib.suppress(TimeoutError):  # it may come up later
                await asyncio.wait_for(remote.learn(), GRAPH_LIST_TIMEOUT_SECONDS)
        Executors(self.settings.executor_settings()).check(self.program.registry.executors())
        await declare_pipelines(engine, self.program.org, self.program.pipelines)
        program, rows = self.program, declared_tasks(self.program, self.app)
        await declare(engine, program.org, self.app, rows, program.schedules, program.schedule_places)
        if self.app is not None:
            await TaskManager(engine, await program_org_id(engine, self.program)).disable_orphans(Path(self.app).stem)
        await deploy_all(engine, self.program.org, self.app, self.program.workflows)
        await declare_alarms(engine, self.program.org, self.app and Path(self.app).stem, self.program.alarms)

    async def work(self, engine: Engine, shutdown: Shutdown) -> None:
        """Fire and run what is due until `shutdown.drain` is set; restarts a worker that loses its lease."""
        self.scheduler = scheduler = Scheduler(engine, self.settings.orgs)
        loops = [
            start_supervised("wake-ups", lambda: engine.wake.listen(engine.db)),
            start_supervised("scheduler", scheduler.run),
            start_supervised("warm-up", lambda: self.warm_up(engine)),
            start_supervised("alarms", Evaluation(engine, self.settings.alarm_settings()).run),
        ]
        if (idle_limit := self.exit_when_idle) is not None:
            loops.append(start_supervised("idle", lambda: drain_when_idle(self, idle_limit, shutdown)))
        if (remote := graph_endpoint(engine)) is not None:
            loops.append(start_supervised("graph endpoint", lambda: self.refresh_graphs(remote)))
        try:
            while not shutdown.drain.is_set():
                await self.run_worker(engine, scheduler, shutdown)
            if self.closing:
                await asyncio.wait(self.closing, timeout=LAST_WRITE_SECONDS)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self.program.injector.process.close()
            for runner in engine.runners.values():
                if isinstance(runner, Closes):
                    await runner.close()

    async def warm_up(self, engine: Engine) -> None:
        """Prepare the hot statements as soon as the worker has free places: waiting jobs start first."""
        await real_sleep(WARM_UP_POLL_SECONDS)
        while self.worker is not None and not self.worker.prefetch.free_places:
            await real_sleep(WARM_UP_POLL_SECONDS)
        try:
            await warmup.warm_up(engine, self.program.org)
        except Unavailable as error:
            log.warning("statement warm-up interrupted; first runs may start late", error=error.message)
        except Exception:  # a defect in the warm-up must not stop the worker
            log.exception("statement warm-up failed; first runs may start late")
        else:
            log.debug("statement warm-up done")
        gc.collect()
        gc.freeze()  # long-lived objects: a full collection would scan them all and delay slots

    async def refresh_graphs(self, remote: "Remote") -> None:
        """Poll the graph endpoint for its graphs, and announce those that this worker can run."""
        while True:
            await real_sleep(GRAPH_LIST_SECONDS)
            if await remote.learn() and self.worker is not None:
                with contextlib.suppress(Unavailable):
                    await self.worker.registration.announce()

    async def run_worker(self, engine: Engine, scheduler: Scheduler, shutdown: Shutdown) -> None:
        """Run a worker until `shutdown.drain` is set or it loses its lease; the caller then starts a new one."""
        worker = self.worker = scheduler.worker = Worker(
            engine, self.settings.queues, self.settings.orgs, active=self.active_runs
        )
        maintenance = Maintenance(engine, worker.id, lambda: worker.heartbeat is None or worker.heartbeat.may_judge)
        worker_task = asyncio.ensure_future(worker.run())
        maintenance_task = start_supervised("maintenance", maintenance.run)
        drain_task = asyncio.ensure_future(shutdown.drain.wait())
        done, _ = await asyncio.wait([worker_task, maintenance_task, drain_task], return_when=asyncio.FIRST_COMPLETED)
        if drain_task in done and not worker.registration.lost:
            self.stopping = scheduler.stopping = True
            maintenance_task.cancel()
            await worker.drain(timedelta(seconds=self.settings.drain_seconds), shutdown.cancel)
            await asyncio.wait([worker_task])
        for task in (worker_task, maintenance_task, drain_task):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                if isinstance(error, Unavailable):  # `Outage` has logged it
                    log.debug("worker registration failed; retrying", error=error.message)
                else:
                    log.error("worker loop failed; restarting the worker", exc_info=error)
                await real_sleep(1)
            task.cancel()
        await asyncio.gather(worker_task, maintenance_task, drain_task, return_exceptions=True)
        if not worker.registration.draining:
            worker.abandon()
            self.closing = [task for task in self.closing if not task.done()]
            self.closing.append(asyncio.ensure_future(worker.close_out()))


async def set_up_installation(engine: Engine, settings: Settings) -> str:
    """Synchronise the clock with the database, create org `default` and `admin.key` if no org exists; return the id of
    org `default`."""
    assert isinstance(engine.clock, SystemClock)
    engine.clock.sync(await retry_until_available(lambda: engine.db.read(workers.measure), DATABASE_START_SECONDS))
    org_id, key = await engine.db.tx(accounts.ensure_default_org, engine.clock.now())
    if key is not None:
        write_secret(settings.data_dir / "admin.key", f"{key}\n")
    return org_id


async def program_org_id(engine: Engine, program: Rota) -> str:
    org_id = await engine.db.read(orgs.org_by_slug, program.org)
    assert org_id is not None  # `declare` has stored the program's tasks in it
    return org_id


def declared_tasks(program: Rota, app: str | None) -> list[dict[str, object]]:
    """Return the task rows of a program; their source is the stem of its file."""
    return task_rows(program.registry, program.injector, Path(app).stem if app else None)


def graph_endpoint(engine: Engine) -> "Remote | None":
    graphs = engine.runners[GraphRunner.kind]
    return graphs.remote if isinstance(graphs, GraphRunner) else None


async def sync_clock(db: Database, clock: SystemClock) -> None:
    """Measure the database's clock again and again, and correct `clock` by it."""
    while True:
        await real_sleep(CLOCK_SYNC_SECONDS)
        with contextlib.suppress(Unavailable):
            clock.sync(await db.read(workers.measure))
