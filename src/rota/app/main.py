"""The processes: `up` is everything in one, `server` API and dashboard, `worker` scheduler and worker, any number."""

import asyncio
import contextlib
import gc
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import structlog
import uvloop

from rota.access.store import accounts, logins
from rota.access.store.logins import Link
from rota.app.application import Rota, make_engine
from rota.app.data_dir import close_to_others, write_secret
from rota.app.logs import configure_logs
from rota.app.programs import load_program
from rota.app.settings import Settings
from rota.app.signals import Shutdown, mind_processes, run_until_signal
from rota.app.transport import TLS_REMEDY, without_tls
from rota.core.addresses import is_loopback
from rota.core.clock import SystemClock, real_sleep
from rota.core.errors import Refused, RotaError, Unavailable
from rota.core.model import WORKFLOW
from rota.db import schema
from rota.db.connection import Database, open_database
from rota.db.notify import Wake
from rota.db.retry import retry_until_available
from rota.engine import orgs, tracing, workers
from rota.engine.commands import Engine
from rota.engine.maintenance import Maintenance
from rota.engine.metrics import Metrics
from rota.engine.runner import capture_output
from rota.engine.scheduler import Scheduler
from rota.engine.supervision import start_supervised
from rota.engine.warmup import warm_up
from rota.engine.worker import Worker
from rota.engine.worker.active_run import ActiveRuns
from rota.engine.worker.worker import LAST_WRITE_SECONDS
from rota.kinds.graphs.runner import GraphRunner
from rota.kinds.pipelines.manager import declare as declare_pipelines
from rota.kinds.tasks.declare import declare
from rota.kinds.tasks.manager import TaskManager
from rota.kinds.tasks.registry import task_rows
from rota.kinds.workflows.manager import deploy_all
from rota.kinds.workflows.runner import WorkflowRunner
from rota.user_code import processes

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from rota.kinds.graphs.remote import Remote

LEARN, RELEARN = 5.0, 30.0  # seconds that a start waits for the graph endpoint, and between looks at its graphs
STARTING = 20.0  # seconds that a start waits for a database that is just starting too
SETTLED = 0.2  # seconds after which a worker that is not full has time for other things
RESYNC = 10.0  # seconds between measurements of the database's clock

log = structlog.get_logger("rota")


def up(settings: Settings, app: str | None) -> None:
    """Everything in one process: migrate, then API, dashboard, scheduler and worker."""
    configure_logs(settings)
    check_users(settings)
    asyncio.run(retry_until_available(lambda: asyncio.to_thread(migrate, settings), STARTING))
    asyncio.run(refuse_exposure(settings))
    program = load_program(app)
    node = Node(settings, program, app)
    with listening(settings) as (sock, url):
        api = ApiThread(settings, program, app, sock, node)
        api.start()
        api.ready.wait()
        node.on_prepared = lambda: announce(settings, url, api.link)
        try:
            run_until_signal(node.run)
        finally:
            api.stop()
    leave()


def server(settings: Settings, app: str | None) -> None:
    """API and dashboard alone."""
    configure_logs(settings)
    close_to_others(settings)
    program = load_program(app)
    asyncio.run(refuse_old_schema(settings))
    asyncio.run(refuse_exposure(settings))
    with listening(settings) as (sock, url):
        api = ApiThread(settings, program, app, sock, None)
        api.start()
        api.ready.wait()
        announce(settings, url, api.link)
        try:
            run_until_signal(until_asked)
        finally:
            api.stop()


def worker(settings: Settings, app: str | None) -> None:
    """Scheduler and worker. With several processes, this one only looks after them."""
    configure_logs(settings)
    check_users(settings)
    close_to_others(settings)
    asyncio.run(refuse_old_schema(settings))
    if settings.processes > 1:
        mind_processes(settings.processes, settings.secrets())
        return
    program = load_program(app)
    run_until_signal(Node(settings, program, app).run)
    leave()


def check_users(settings: Settings) -> None:
    """Raises Invalid where a user of ROTA_RUN_AS cannot be used."""
    for user in (settings.run_as or {}).values():
        processes.check_user(user)


def migrate(settings: Settings, step: Callable[[int], None] = lambda _: None) -> None:
    """Bring the database up to date; `step` hears of each migration that is done."""
    from rota.db.migrate import migrate  # here, because what comes with it takes long to load

    close_to_others(settings)
    migrate(settings.database_url, step)


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
        self.attempts: ActiveRuns = {}  # by job, of all registrations of this process
        self.closing: list[asyncio.Task[None]] = []  # registrations that lost their lease record what they came to
        self.metrics = Metrics()
        self.on_prepared: Callable[[], None] = lambda: None  # called when all that the program declares is stored
        self.heard: Callable[[], None] = lambda: None  # tells the API of this process that something happened

    def problems(self) -> Mapping[str, str]:
        """Why this process does not fire or run anything, by code; see `rota.app.health`."""
        if self.stopping:
            return {"stopping": "this process is stopping"}
        if self.scheduler is None or self.worker is None or not self.worker.registration.registered:
            return {"starting": "this process is starting"}
        stalled = {"scheduler_stalled": self.scheduler.trouble(), "worker_stalled": self.worker.trouble()}
        return {code: reason for code, reason in stalled.items() if reason is not None}

    def signal(self, what: str) -> None:
        """A wake-up from another thread."""
        if self.loop is not None and self.wake is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.wake.signal, what)

    async def run(self, shutdown: Shutdown) -> None:
        capture_output()
        self.loop, self.wake = asyncio.get_running_loop(), Wake(lambda _: self.heard())
        db = open_database(self.settings.database_url)
        engine = make_engine(self.settings, self.program, self.app, db, self.clock, self.wake, self.metrics)
        self.program.use(engine)
        try:
            await retry_until_available(lambda: self.prepare(engine), STARTING)
            self.on_prepared()
            await self.work(engine, shutdown)
        finally:
            await db.close()

    async def prepare(self, engine: Engine) -> None:
        """Make the database say what the program declares. Can be repeated."""
        await move_in(engine, self.settings)
        if (remote := remote_of(engine)) is not None:
            with contextlib.suppress(TimeoutError):  # it may come up later
                await asyncio.wait_for(remote.learn(), LEARN)
        await declare_pipelines(engine, self.program.org, self.program.pipelines)
        program, rows = self.program, rows_of(self.program, self.app)
        await declare(engine, program.org, self.app, rows, program.schedules, program.schedule_places)
        if self.app is not None:
            await TaskManager(engine, await org_of(engine, self.program)).disable_orphans(Path(self.app).stem)
        await deploy_all(engine, self.program.org, self.app, self.program.workflows)

    async def work(self, engine: Engine, shutdown: Shutdown) -> None:
        """Fire and run what is due, until asked to stop."""
        self.scheduler = scheduler = Scheduler(engine, self.settings.orgs)
        loops = [
            start_supervised("wake-ups", lambda: engine.wake.listen(engine.db)),
            start_supervised("scheduler", scheduler.run),
            start_supervised("warm-up", lambda: self.warm_up(engine)),
        ]
        if (remote := remote_of(engine)) is not None:
            loops.append(start_supervised("graph endpoint", lambda: self.learning(engine, remote)))
        try:
            while not shutdown.drain.is_set():
                await self.one_worker(engine, scheduler, shutdown)
            if self.closing:
                await asyncio.wait(self.closing, timeout=LAST_WRITE_SECONDS)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self.program.injector.process.close()
            if isinstance(workflows := engine.runners[WORKFLOW], WorkflowRunner):
                await workflows.close()

    async def warm_up(self, engine: Engine) -> None:
        """As soon as this worker is not full of jobs: those come first."""
        await real_sleep(SETTLED)
        while self.worker is not None and not self.worker.prefetch.free_places:
            await real_sleep(SETTLED)
        try:
            await warm_up(engine, self.program.org)
        except Unavailable as error:
            log.warning("the first slots may be late: the rehearsal was cut short", error=error.message)
        except Exception:  # our own bug; work goes on without it
            log.exception("the first slots may be late: the rehearsal failed")
        log.debug("rehearsed")
        gc.collect()
        gc.freeze()  # what is there now stays: a collection that looks through all of it makes slots late

    async def learning(self, engine: Engine, remote: "Remote") -> None:
        """Know which graphs the endpoint has, and say that they can be run here."""
        while True:
            await real_sleep(RELEARN)
            if await remote.learn() and self.worker is not None:
                with contextlib.suppress(Unavailable):
                    await engine.db.tx(workers.announce, self.worker.id, self.worker.registration.routes)

    async def one_worker(self, engine: Engine, scheduler: Scheduler, shutdown: Shutdown) -> None:
        """A worker until it is asked to stop or loses its lease; then the caller starts a new one, with a new id."""
        worker = self.worker = scheduler.worker = Worker(
            engine, self.settings.queues, self.settings.orgs, active=self.attempts
        )
        keeping = Maintenance(engine, worker.id, lambda: worker.keeper is None or worker.keeper.may_judge)
        working = asyncio.ensure_future(worker.run())
        minding = start_supervised("maintenance", keeping.run)
        stopping = asyncio.ensure_future(shutdown.drain.wait())
        done, _ = await asyncio.wait([working, minding, stopping], return_when=asyncio.FIRST_COMPLETED)
        if stopping in done and not worker.registration.lost:
            self.stopping = scheduler.stopping = True
            minding.cancel()
            await worker.drain(timedelta(seconds=self.settings.drain_seconds), shutdown.cancel)
            await asyncio.wait([working])
        for task in (working, minding, stopping):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                if isinstance(error, Unavailable):  # `Outage` has logged it
                    log.debug("the worker could not register; trying again", error=error.message)
                else:
                    log.error("a loop of the worker failed; starting it anew", exc_info=error)
                await real_sleep(1)
            task.cancel()
        await asyncio.gather(working, minding, stopping, return_exceptions=True)
        if not worker.registration.draining:
            worker.abandon()
            self.closing = [task for task in self.closing if not task.done()]
            self.closing.append(asyncio.ensure_future(worker.close_out()))


class ApiThread(threading.Thread):
    """API and dashboard on an event loop of its own: tasks that block theirs do not block them."""

    def __init__(
        self, settings: Settings, program: Rota, app: str | None, sock: socket.socket, node: Node | None
    ) -> None:
        super().__init__(name="rota-api", daemon=True)
        self.settings, self.program, self.app, self.sock, self.node = settings, program, app, sock, node
        self.ready = threading.Event()
        self.server: uvicorn.Server | None = None
        self.api: FastAPI | None = None
        self.link: Link | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self.serve())
        except RotaError as error:
            print(f"error: {error.message}", file=sys.stderr)
            os._exit(1)
        except BaseException:
            log.exception("the API failed")
            os._exit(1)

    async def serve(self) -> None:
        import uvicorn  # here, because a worker alone needs none of it: it is up sooner, and smaller

        from rota.app.asgi import create_site
        from rota.app.connections import HEAD_BYTES, Connection
        from rota.frame.http.exposure import Exposure

        settings = self.settings
        db = open_database(settings.database_url)
        clock = self.node.clock if self.node else SystemClock()
        wake = Wake(self.node.signal if self.node else None)
        metrics = self.node.metrics if self.node else Metrics()
        engine = make_engine(settings, self.program, None, db, clock, wake, metrics)
        await retry_until_available(lambda: self.prepare(engine), STARTING)
        if is_loopback(settings.host):  # who reads its terminal may log in; others read the logs of servers elsewhere
            self.link = await db.tx(logins.first_link, clock.now())
        self.api = create_site(
            engine,
            db,
            loops=self.node.problems if self.node else None,
            service_token=settings.service_token,
            trace_url=settings.trace_url,
            guarded_hosts=settings.guarded_hosts(is_loopback(settings.host)),
            exposure=Exposure(settings.public_url, bool(settings.trusted_proxies)),
        )
        self.loop = asyncio.get_running_loop()
        if self.node is not None:
            self.node.heard = self.stir
        config = uvicorn.Config(
            self.api,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=5,
            lifespan="off",
            http=Connection,
            h11_max_incomplete_event_size=HEAD_BYTES,
            proxy_headers=bool(settings.trusted_proxies),  # else anybody could name the address that guesses count by
            forwarded_allow_ips=settings.trusted_proxies or [],
        )
        self.server = uvicorn.Server(config)
        loops = [start_supervised("clock", lambda: keep_time(db, clock))]
        if self.node is None:  # agents wait here for what happens elsewhere
            loops.append(start_supervised("wake-ups", lambda: wake.listen(db)))
        self.ready.set()
        try:
            await self.server.serve(sockets=[self.sock])
            if not self.api.state.closing:
                raise RuntimeError("the API ended without being asked to")
        finally:
            for loop in loops:
                loop.cancel()
            await db.close()

    async def prepare(self, engine: Engine) -> None:
        await move_in(engine, self.settings)
        await declare_pipelines(engine, self.program.org, self.program.pipelines)
        await declare(engine, self.program.org, None, rows_of(self.program, self.app), [])

    def stir(self) -> None:
        """Let those look who follow what changes; called from other threads, often, and mostly for nobody."""
        if self.api is not None and self.api.state.streams and self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.api.state.engine.wake.notify_followers)

    def stop(self) -> None:
        if self.server is not None and self.api is not None:
            self.server.should_exit = True
            self.api.state.closing = True
            self.stir()
        self.join(timeout=10)


def remote_of(engine: Engine) -> "Remote | None":
    graphs = engine.runners["graph"]
    return graphs.remote if isinstance(graphs, GraphRunner) else None


async def move_in(engine: Engine, settings: Settings) -> str:
    """Before anything else: know the database's time, and make the first org and its key where there is none. Returns
    the id of the org `default`."""
    assert isinstance(engine.clock, SystemClock)
    engine.clock.sync(await retry_until_available(lambda: engine.db.read(workers.measure), STARTING))
    org_id, key = await engine.db.tx(accounts.ensure_default_org, engine.clock.now())
    if key is not None:
        write_secret(settings.data_dir / "admin.key", f"{key}\n")
    return org_id


async def org_of(engine: Engine, program: Rota) -> str:
    found = await engine.db.read(orgs.org_by_slug, program.org)
    assert found is not None  # its tasks were declared in it
    return found


def rows_of(program: Rota, app: str | None) -> list[dict[str, Any]]:
    return task_rows(program.registry, program.injector, Path(app).stem if app else None)


async def keep_time(db: Database, clock: SystemClock) -> None:
    while True:
        await real_sleep(RESYNC)
        with contextlib.suppress(Unavailable):
            clock.sync(await db.read(workers.measure))


async def refuse_old_schema(settings: Settings) -> None:
    db = open_database(settings.database_url)
    try:
        wrong = await retry_until_available(lambda: db.read(schema.check), STARTING)
        if wrong is not None:
            raise Unavailable(wrong)
    finally:
        await db.close()


async def refuse_exposure(settings: Settings) -> None:
    """Whoever can reach a server that nobody has set up yet must be on this machine."""
    if settings.allow_remote or is_loopback(settings.host):
        return
    db = open_database(settings.database_url)
    try:
        if await retry_until_available(lambda: db.read(accounts.only_first_key), STARTING):
            raise Refused(
                f"{settings.host} can be reached from other machines, and only the first key guards this server: start "
                "it on 127.0.0.1 and make a user or a key (`rota user add`, `rota key add`), or say --allow-remote"
            )
    finally:
        await db.close()


async def until_asked(shutdown: Shutdown) -> None:
    await shutdown.drain.wait()


def leave() -> None:
    """End at once: a thread that never ends must not keep the process."""
    tracing.flush()
    os._exit(0)


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[tuple[socket.socket, str]]:
    """The port, taken before anything else starts."""
    sock = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.port))
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another with --port"
        ) from error
    url = f"http://{settings.host}:{sock.getsockname()[1]}"
    try:
        yield sock, url
    finally:
        for name in ("server.json", "login.url"):
            (settings.data_dir / name).unlink(missing_ok=True)
        sock.close()


def announce(settings: Settings, url: str, link: Link | None) -> None:
    """Tell people and, by `server.json` beside the data, programs where the API is; the admin key is there by now."""
    note = orjson.dumps({"url": url, "pid": os.getpid()}).decode()
    write_secret(settings.data_dir / "server.json", note)  # whoever waits for it reads all of it or nothing
    print(f"Rota is up at {url} (API docs: {url}/docs)", file=sys.stderr)
    if without_tls(settings):
        log.warning("keys and passwords reach this server without TLS", host=settings.host, remedy=TLS_REMEDY)
    if link is not None and sys.stderr.isatty():
        print(f"dashboard, for the next 15 minutes: {url}/login?token={link.token}", file=sys.stderr)
    elif link is not None:  # others may read the file or journal that standard error goes to
        write_secret(settings.data_dir / "login.url", f"{url}/login?token={link.token}\n")
        print(f"dashboard, for the next 15 minutes: the link in {settings.data_dir / 'login.url'}", file=sys.stderr)
    print(f"data and admin key: {Path(settings.data_dir).absolute()}", file=sys.stderr)
