"""For tests of programs that use Rota: an installation in one process, with a clock that the test sets.

    async with world(app, start=datetime(2026, 5, 4, 9, tzinfo=UTC)) as rota:
        await rota.publish("inbox-to-sheet", "mail", message_id="1", payload={"from": "Ada"})
        await rota.drain()
        await rota.advance(hours=24)

Crash tests: `dies_at(n, play)` runs `play` in a child process that is killed before its n-th statement.
"""

import asyncio
import contextlib
import faulthandler
import gc
import os
import signal
import tempfile
import traceback
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any, Protocol

from rota.access.store import accounts
from rota.core.clock import ManualClock
from rota.core.states import Status
from rota.db import schema
from rota.db.connection import open_database
from rota.db.crash_points import at_each_statement
from rota.db.dialect import Tx
from rota.db.migrate import migrate
from rota.db.paging import Record
from rota.db.wake import Wake
from rota.engine import orgs, workers
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.engine.maintenance import Maintenance
from rota.engine.runner import Runner
from rota.engine.scheduler import Scheduler
from rota.engine.worker import Worker
from rota.kinds.graphs.registry import GraphRegistry
from rota.kinds.graphs.runner import GraphRunner
from rota.kinds.tasks.declare import declare
from rota.kinds.tasks.registry import TaskRegistry, task_rows
from rota.kinds.tasks.runner import TaskRunner
from rota.kinds.workflows import reports as workflow_reports
from rota.kinds.workflows.connectors.base import Connectors
from rota.kinds.workflows.declaration import Workflow
from rota.kinds.workflows.manager import WorkflowManager, deploy_all
from rota.kinds.workflows.runner import WorkflowRunner
from rota.kinds.workflows.scripts.repair import Repairer, RepairRunner
from rota.kinds.workflows.scripts.sandbox import Sandbox
from rota.reports import run_search
from rota.user_code.injection import Injector

MONDAY = datetime(2026, 5, 4, 9, tzinfo=UTC)
MAX_STEPS = 100_000  # more at one point in time are an endless loop


class Program(Protocol):
    """The program under test: a `Rota`."""

    org: str
    registry: TaskRegistry
    graphs: GraphRegistry
    workflows: dict[str, Workflow]
    connectors: Connectors
    injector: Injector
    schedules: list[dict[str, object]]


@dataclass
class World:
    """An installation that runs only inside calls of `drain` and `advance`."""

    engine: Engine
    clock: ManualClock
    worker: Worker
    scheduler: Scheduler
    org_id: str

    async def drain(self) -> None:
        """Fire and run everything that is due now, including what follows from it."""
        self.worker.registration.refresh_routes()  # a test may have declared more since the last call
        for _ in range(MAX_STEPS):
            next_due_at = (await self.scheduler.poll()).next_due_at
            due = next_due_at is not None and next_due_at <= self.clock.now()
            if due:
                await self.scheduler.step()
            claimed = await self.worker.prefetch.claim() or bool(self.worker.active)
            while self.worker.active or self.worker.completer.results:
                await self.worker.cancellation.until_idle(60)
                if self.worker.completer.results:
                    await self.worker.completer.flush()
            if not claimed and not due:
                return
        raise AssertionError(f"still busy after {MAX_STEPS} steps at {self.clock.now()}: endless loop")

    async def advance(self, **span: float) -> None:
        """Advance the clock, running everything at its due time: `advance(minutes=5)`."""
        until = self.clock.now() + timedelta(**span)
        await self.drain()
        while True:
            next_due_at = (await self.scheduler.poll()).next_due_at
            if next_due_at is None or next_due_at > until:
                break
            self.clock.set(max(next_due_at, self.clock.now()))
            await self.drain()
        self.clock.set(until)
        await self.drain()

    async def take_over(self) -> None:
        """Rescue the jobs of a dead process, as a new one does after the lease of the old one has expired."""
        self.clock.set(self.clock.now() + self.engine.settings.lease)
        await self.engine.db.tx(workers.renew, self.worker.id, self.engine.settings.lease, self.clock.now())
        await Maintenance(self.engine, self.worker.id).rescue_dead_workers()

    # workflows

    @property
    def workflows(self) -> WorkflowManager:
        return WorkflowManager(self.engine, self.org_id)

    async def publish(self, workflow: str, topic: str, *, message_id: str, payload: object = None) -> str:
        """Publish an event from outside; return `created`, `replaced` or `kept`."""
        return (await self.workflows.publish(workflow, topic, message_id=message_id, payload=payload))[1]

    async def workflow(self, name: str) -> Record:
        """Return a workflow as the API shows it."""
        return await self.engine.db.read(workflow_reports.workflow, self.org_id, name, self.clock.now())

    async def runs(self, **filters: Any) -> list[Record]:
        """Return the newest 200 runs, oldest first."""
        if filters.get("status") is not None:
            filters["status"] = Status(filters["status"])
        page = await run_search.search(self.engine.db, self.org_id, self.clock.now(), limit=200, **filters)
        return page.items[::-1]


@asynccontextmanager
async def world(
    program: Program,
    *,
    start: datetime = MONDAY,
    database_url: str | None = None,
    repairer: Repairer | None = None,
    **settings: Any,
) -> AsyncIterator[World]:
    """Set up a program on a database (default: a new SQLite file), with the clock at `start`. Jobs that crashed run in
    this process, too: a child process would have another clock, and may not find a program that a test defines."""
    with tempfile.TemporaryDirectory() as directory:
        url = database_url or f"sqlite:///{directory}/rota.db"
        db, clock = open_database(url), ManualClock(start)
        if await db.read(schema.check) is not None:
            await asyncio.to_thread(migrate, url)
        sandbox = Sandbox(spare=0)
        workflows = WorkflowRunner(
            program.workflows, program.connectors, db, program.org, sandbox, repairs=repairer is not None
        )
        runners: tuple[Runner, ...] = (
            TaskRunner(program.registry, db, None, 50, program.injector, program.org),
            GraphRunner(program.graphs, db, clock, program.org),
            workflows,
            RepairRunner(workflows.scripts, repairer),
        )
        engine_settings = EngineSettings(**settings | {"isolates_suspects": False})
        engine = Engine(db, clock, Wake(), {runner.kind: runner for runner in runners}, engine_settings)
        try:
            await db.tx(accounts.ensure_default_org, clock.now())
            rows = task_rows(program.registry, program.injector, "test")
            await declare(engine, program.org, "test.py", rows, program.schedules)
            await deploy_all(engine, program.org, "test.py", program.workflows)
            org_id = await db.read(orgs.org_by_slug, program.org)
            assert org_id is not None
            worker = Worker(engine)
            await worker.learn()
            await db.tx(register_worker, worker, engine)
            yield World(engine, clock, worker, Scheduler(engine), org_id)
        finally:
            await workflows.close()
            await db.close()


def register_worker(tx: Tx, worker: Worker, engine: Engine) -> None:
    workers.register(
        tx,
        worker=worker.id,
        pid=os.getpid(),
        version="test",
        concurrency=engine.settings.concurrency,
        kinds=sorted(engine.runners),
        routes=worker.registration.routes,
        queues=None,
        lease=engine.settings.lease,
        now=engine.clock.now(),
    )
    engine.apply_version_rules(tx)


# crash points


class Countdown:
    """Kills this process at the last of `points` crash points; with `paused`, none is counted before `resume`."""

    def __init__(self, points: int, paused: bool = False) -> None:
        self.points = points
        self.left = -1 if paused else points  # it only falls, so that a negative number never becomes 0

    def resume(self) -> None:
        self.left = self.points

    def reached(self, name: str) -> None:  # noqa: ARG002  # subclasses and sweeps record it
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


countdown: Countdown | None = None


def crash_point(name: str) -> None:
    """Mark a crash point of your own, for instance in a fake service. No-op outside `dies_at`."""
    if countdown is not None:
        countdown.reached(name)


def count_from_here() -> None:
    """Count crash points from here: skips those of the set-up."""
    if countdown is not None:
        countdown.resume()


def dies_at(
    point: int, play: Callable[[], Awaitable[object]], seconds: float = 60, *, after_set_up: bool = False
) -> bool:
    """Run `play` in a child process that is killed at a crash point: before its n-th statement or commit, or at a
    `crash_point`. Return True if it was killed, False if it ended before that point. With `after_set_up` it survives
    until `play` calls `count_from_here()`. Not for use on an event loop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads: the child does not use theirs
        child = os.fork()
    if child == 0:
        gc.freeze()  # finalisers of the parent's garbage may need threads that do not exist here
        faulthandler.dump_traceback_later(seconds + 5, exit=True)  # if it does not handle its alarm
        signal.signal(signal.SIGALRM, dump_and_exit)
        signal.alarm(int(seconds))
        os._exit(run_with_countdown(point, play, after_set_up))
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if status != 0:
        raise AssertionError(f"the child process failed at point {point}: wait status {status}; see its output")
    return False


def dump_and_exit(alarm: int, frame: FrameType | None) -> None:
    """On timeout: print the stacks of all threads and tasks, and exit."""
    traceback.print_stack(frame)
    faulthandler.dump_traceback(2)
    with contextlib.suppress(RuntimeError):  # no running loop
        for task in asyncio.all_tasks():
            task.print_stack()
    signal.signal(alarm, signal.SIG_DFL)
    signal.raise_signal(alarm)


def run_with_countdown(point: int, play: Callable[[], Awaitable[object]], after_set_up: bool) -> int:
    global countdown
    countdown = Countdown(point, paused=after_set_up)
    try:
        with at_each_statement(crash_point):
            asyncio.run(asyncio.wait_for(play(), None))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
