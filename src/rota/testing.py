"""For tests of programs that use Rota: a whole installation in one process, with the clock in the test's hands.

    async with world(app, start=datetime(2026, 5, 4, 9, tzinfo=UTC)) as rota:
        await rota.publish("inbox-to-sheet", "mail", message_id="1", payload={"from": "Ada"})
        await rota.drain()
        await rota.advance(hours=24)

and a way to die: `dies_at(n, play)` plays in a child process that is killed at its n-th statement.
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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from rota.access.store import accounts
from rota.core.clock import ManualClock
from rota.db import schema
from rota.db.connection import open_database
from rota.db.crash_points import at_each_statement
from rota.db.dialect import Tx
from rota.db.migrate import migrate
from rota.db.notify import Wake
from rota.engine import orgs, run_reports, workers
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
from rota.kinds.workflows import reports as views
from rota.kinds.workflows.connectors.base import Connectors
from rota.kinds.workflows.declaration import Workflow
from rota.kinds.workflows.manager import WorkflowManager, deploy_all
from rota.kinds.workflows.runner import WorkflowRunner
from rota.kinds.workflows.scripts.repair import Repairer, RepairRunner
from rota.kinds.workflows.scripts.sandbox import Sandbox
from rota.user_code.injection import Injector

MONDAY = datetime(2026, 5, 4, 9, tzinfo=UTC)
TURNS = 100_000  # more steps than that at one moment are a loop without end


class Program(Protocol):
    """What is tested: a `Rota`."""

    org: str
    registry: TaskRegistry
    graphs: GraphRegistry
    workflows: dict[str, Workflow]
    connectors: Connectors
    injector: Injector
    schedules: list[dict[str, Any]]


@dataclass
class World:
    """An installation that does what is due when it is told to. Nothing happens between two calls."""

    engine: Engine
    clock: ManualClock
    worker: Worker
    scheduler: Scheduler
    org_id: str

    async def drain(self) -> None:
        """Do everything that is due now, and what follows from it now."""
        for _ in range(TURNS):
            moment = (await self.scheduler.poll()).next_due_at
            due = moment is not None and moment <= self.clock.now()
            if due:
                await self.scheduler.step()
            took = await self.worker.prefetch.claim() or bool(self.worker.active)
            while self.worker.active or self.worker.completer.results:
                await self.worker.cancellation.until_idle(60)
                if self.worker.completer.results:
                    await self.worker.completer.flush()
            if not took and not due:
                return
        raise AssertionError(f"still busy after {TURNS} steps at {self.clock.now()}: this is a loop without end")

    async def advance(self, **span: float) -> None:
        """Let time pass, doing each thing at its moment: `advance(minutes=5)`."""
        until = self.clock.now() + timedelta(**span)
        await self.drain()
        while True:
            moment = (await self.scheduler.poll()).next_due_at
            if moment is None or moment > until:
                break
            self.clock.set(max(moment, self.clock.now()))
            await self.drain()
        self.clock.set(until)
        await self.drain()

    async def take_over(self) -> None:
        """Find what a dead process left behind, as a new one does when the lease of the old one is over."""
        self.clock.set(self.clock.now() + self.engine.settings.lease)
        await self.engine.db.tx(workers.renew, self.worker.id, self.engine.settings.lease, self.clock.now())
        await Maintenance(self.engine, self.worker.id).rescue()

    # workflows

    @property
    def workflows(self) -> WorkflowManager:
        return WorkflowManager(self.engine, self.org_id)

    async def publish(self, workflow: str, topic: str, *, message_id: str, payload: Any = None) -> str:
        """An event from outside; tells whether it was `created`, `replaced` or `kept`."""
        body = {"message_id": message_id, "payload": payload}
        return (await self.workflows.publish(workflow, topic, body))[1]

    async def workflow(self, name: str) -> Mapping[str, Any]:
        """What people see of a workflow."""
        return await self.engine.db.read(views.workflow, self.org_id, name, self.clock.now())

    async def runs(self, **wanted: Any) -> list[dict[str, Any]]:
        """The ledger, oldest first."""
        found, _ = await self.engine.db.read(lambda tx: run_reports.list_runs(tx, self.org_id, limit=200, **wanted))
        return found[::-1]


@asynccontextmanager
async def world(
    program: Program, *, start: datetime = MONDAY, database_url: str | None = None, repairer: Repairer | None = None,
    **settings: Any,
) -> AsyncIterator[World]:  # fmt: skip
    """Set up a program over a database (a fresh SQLite file where none is named) at a moment of your choice."""
    with tempfile.TemporaryDirectory() as directory:
        url = database_url or f"sqlite:///{directory}/rota.db"
        db, clock = open_database(url), ManualClock(start)
        if await db.read(schema.check) is not None:
            await asyncio.to_thread(migrate, url)
        sandbox = Sandbox(spare=0)
        flows = WorkflowRunner(
            program.workflows, program.connectors, db, program.org, sandbox, repairs=repairer is not None
        )
        runners: tuple[Runner, ...] = (
            TaskRunner(program.registry, db, None, 50, program.injector, program.org),
            GraphRunner(program.graphs, db, clock, program.org),
            flows,
            RepairRunner(flows.scripts, repairer),
        )
        engine = Engine(db, clock, Wake(), {one.kind: one for one in runners}, EngineSettings(**settings))
        try:
            await db.tx(accounts.ensure_default_org, clock.now())
            rows = task_rows(program.registry, program.injector, "test")
            await declare(engine, program.org, "test.py", rows, program.schedules)
            await deploy_all(engine, program.org, "test.py", program.workflows)
            org_id = await db.read(orgs.org_by_slug, program.org)
            assert org_id is not None
            worker = Worker(engine)
            await worker.learn()
            await db.tx(sign_on, worker, engine)
            yield World(engine, clock, worker, Scheduler(engine), org_id)
        finally:
            await flows.close()
            await db.close()


def sign_on(tx: Tx, worker: Worker, engine: Engine) -> None:
    workers.register(
        tx, worker=worker.id, pid=os.getpid(), version="test", concurrency=engine.settings.concurrency,
        kinds=sorted(engine.runners), routes=worker.registration.routes, queues=None, lease=engine.settings.lease,
        now=engine.clock.now(),
    )  # fmt: skip


# crash points


class Countdown:
    """Kills this process when it reaches its last point."""

    def __init__(self, points: int) -> None:
        self.points = self.left = points

    def reached(self, _: str) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


countdown: Countdown | None = None


def crash_point(name: str) -> None:
    """A point of your own, in a fake service for instance. Outside `dies_at` it does nothing."""
    if countdown is not None:
        countdown.reached(name)


def count_from_here() -> None:
    """Forget the points so far: what was only set-up is not worth dying in."""
    if countdown is not None:
        countdown.left = countdown.points


def dies_at(point: int, play: Callable[[], Awaitable[None]], seconds: float = 60) -> bool:
    """Play in a child process that is killed at this point: before its n-th statement or commit, or a `crash_point`.
    True if it was; False if it came to its end alive: there are no more points. Not for use on an event loop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: the child uses nothing of theirs
        child = os.fork()
    if child == 0:
        gc.freeze()  # what the parent threw away may want threads to end it that are not here
        faulthandler.dump_traceback_later(seconds + 5, exit=True)  # should it not even heed its alarm
        signal.signal(signal.SIGALRM, tell_and_die)
        signal.alarm(int(seconds))
        os._exit(play_once(point, play))
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if status != 0:
        raise AssertionError(f"the child process failed at point {point}: wait status {status}; see its output")
    return False


def tell_and_die(alarm: int, frame: Any) -> None:
    """It takes too long: tell where it is, in all its threads, and end."""
    traceback.print_stack(frame)
    faulthandler.dump_traceback(2)
    with contextlib.suppress(RuntimeError):  # no loop runs
        for task in asyncio.all_tasks():
            task.print_stack()
    signal.signal(alarm, signal.SIG_DFL)
    signal.raise_signal(alarm)


def play_once(point: int, play: Callable[[], Awaitable[None]]) -> int:
    global countdown
    countdown = Countdown(point)
    try:
        with at_each_statement(crash_point):
            asyncio.run(asyncio.wait_for(play(), None))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
