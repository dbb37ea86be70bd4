"""API thread: API and dashboard of a process, the socket they listen on, and the files that announce their URL."""

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import structlog
import uvloop

from rota.access.store import logins
from rota.access.store.logins import LoginLink
from rota.app.alarm_worker import run_alarms
from rota.app.application import Rota
from rota.app.assembly import make_engine
from rota.app.data_dir import write_secret
from rota.app.node import DATABASE_START_SECONDS, Node, declared_tasks, set_up_installation, sync_clock
from rota.app.reports_replica import followed, open_replica
from rota.app.settings import Settings
from rota.app.transport import TLS_REMEDY, without_tls
from rota.core.addresses import is_loopback
from rota.core.clock import SystemClock, real_sleep
from rota.core.errors import RotaError, Unavailable
from rota.db.connection import Database, open_database
from rota.db.retry import retry_until_available
from rota.db.wake import ACCESS_TOPICS, Wake
from rota.engine import worker_metrics
from rota.engine.commands import Engine
from rota.engine.metrics import Metrics
from rota.engine.supervision import start_supervised
from rota.kinds.pipelines.manager import declare as declare_pipelines
from rota.kinds.tasks.declare import declare

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

STORE_METRICS_SECONDS = 10.0
NO_FIRST_KEY = (
    "admin.key is in the data directory of the process that started first; `rota admin reset-key` writes a new one"
)

log = structlog.get_logger("rota")


class ApiThread(threading.Thread):
    """Serves API and dashboard on its own event loop, so that tasks that block the node's loop do not block them."""

    def __init__(
        self, settings: Settings, program: Rota, app: str | None, sock: socket.socket, node: Node | None
    ) -> None:
        super().__init__(name="rota-api", daemon=True)
        self.settings, self.program, self.app, self.sock, self.node = settings, program, app, sock, node
        self.ready = threading.Event()
        self.server: uvicorn.Server | None = None
        self.api: FastAPI | None = None
        self.link: LoginLink | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self.serve())
        except RotaError as error:
            print(f"error: {error.message}", file=sys.stderr)
            os._exit(1)
        except BaseException:
            log.exception("API thread failed")
            os._exit(1)

    async def serve(self) -> None:
        import uvicorn  # imported here: a worker needs none of it, and starts sooner without

        from rota.app.asgi import create_site
        from rota.app.connections import HEAD_BYTES, Connection
        from rota.frame.http.exposure import Exposure

        settings = self.settings
        db = open_database(settings.database_url)
        clock = self.node.clock if self.node else SystemClock()
        wake = Wake(self.node.signal if self.node else None)
        metrics = self.node.metrics if self.node else Metrics()
        engine = make_engine(settings, self.program, None, db, clock, wake, metrics)
        await retry_until_available(
            lambda: prepare_site(engine, settings, self.program, self.app), DATABASE_START_SECONDS
        )
        if is_loopback(settings.host):  # elsewhere other people may read the log that the link is printed to
            self.link = await db.tx(logins.first_link, clock.now())
        replica = open_replica(settings, db, metrics)
        self.api = create_site(
            engine,
            db,
            replica=replica,
            loops=self.node.problems if self.node else None,
            service_token=settings.service_token,
            trace_url=settings.trace_url,
            guarded_hosts=settings.guarded_hosts(is_loopback(settings.host)),
            exposure=Exposure(settings.public_url, bool(settings.trusted_proxies)),
            login=settings.login_settings(),
        )
        self.loop = asyncio.get_running_loop()
        if self.node is not None:
            self.node.on_wake_up = self.receive_wake_up
        config = uvicorn.Config(
            self.api,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=5,
            lifespan="off",
            http=Connection,
            h11_max_incomplete_event_size=HEAD_BYTES,
            proxy_headers=bool(
                settings.trusted_proxies
            ),  # else clients could forge the address that login attempts are counted by
            forwarded_allow_ips=settings.trusted_proxies or [],
        )
        self.server = uvicorn.Server(config)
        loops = [start_supervised("clock", lambda: sync_clock(db, clock))]
        if self.node is None:  # long polls of agents wait for events of other processes
            loops.append(start_supervised("wake-ups", lambda: wake.listen(db)))
            loops.append(start_supervised("metrics", lambda: store_metrics(db, metrics)))
            loops.append(start_supervised("alarm worker", lambda: run_alarms(engine, settings.alarm_settings())))
        try:
            async with followed(replica):
                self.ready.set()
                await self.server.serve(sockets=[self.sock])
            if not self.api.state.closing:
                raise RuntimeError("the API server stopped unexpectedly")
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            if self.node is None:
                with contextlib.suppress(Unavailable):
                    await db.tx(worker_metrics.store_of_server, metrics)
            await db.close()

    def receive_wake_up(self, topic: str) -> None:
        """Wake the event streams, if any is open, and drop cached callers if access changed. Thread-safe; called for
        every wake-up of the node."""
        if self.api is None or self.loop is None or self.loop.is_closed():
            return
        if self.api.state.streams or topic in ACCESS_TOPICS:
            self.loop.call_soon_threadsafe(self.api.state.engine.wake.notify_followers, topic)

    def stop(self) -> None:
        """Close streams and connections; wait up to 10 s for the thread."""
        if self.server is not None and self.api is not None:
            self.server.should_exit = True
            self.api.state.closing = True
            self.receive_wake_up("anything")
        self.join(timeout=10)


async def store_metrics(db: Database, metrics: Metrics) -> None:
    """Store what a server without a worker counts, again and again: a worker does so with its heartbeat."""
    while True:
        await real_sleep(STORE_METRICS_SECONDS)
        if metrics.current():
            with contextlib.suppress(Unavailable):
                await db.tx(worker_metrics.store_of_server, metrics)


def bind(host: str, port: int, setting: str) -> socket.socket:
    """Return a socket bound to host and port. Raises Unavailable, with the name of the setting to change."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror}; choose another with {setting}") from error
    return sock


async def prepare_site(engine: Engine, settings: Settings, program: Rota, app: str | None) -> None:
    """Store tasks and pipelines that the program declares. Idempotent."""
    await set_up_installation(engine, settings)
    await declare_pipelines(engine, program.org, program.pipelines)
    await declare(engine, program.org, None, declared_tasks(program, app), [])


@contextlib.contextmanager
def listening_socket(settings: Settings) -> Iterator[tuple[socket.socket, str]]:
    """Bind host and port, before anything else starts; yields socket and URL. Raises Unavailable."""
    sock = bind(settings.host, settings.port, "--port")
    url = f"http://{settings.host}:{sock.getsockname()[1]}"
    try:
        yield sock, url
    finally:
        for name in ("server.json", "login.url"):
            (settings.data_dir / name).unlink(missing_ok=True)
        sock.close()


def announce(settings: Settings, url: str, link: LoginLink | None) -> None:
    """Print the server's URL and write it to `server.json` of the data directory; name the first key if it is there."""
    note = orjson.dumps({"url": url, "pid": os.getpid()}).decode()
    write_secret(settings.data_dir / "server.json", note)  # written at once: a reader never sees half of it
    print(f"Rota is up at {url} (API docs: {url}/docs)", file=sys.stderr)
    if without_tls(settings):
        log.warning("keys and passwords reach this server without TLS", host=settings.host, remedy=TLS_REMEDY)
    if link is not None and sys.stderr.isatty():
        print(f"dashboard, for the next 15 minutes: {url}/login?token={link.token}", file=sys.stderr)
    elif link is not None:  # others may read the file or journal that stderr is written to
        write_secret(settings.data_dir / "login.url", f"{url}/login?token={link.token}\n")
        print(f"dashboard, for the next 15 minutes: the link in {settings.data_dir / 'login.url'}", file=sys.stderr)
    directory = Path(settings.data_dir).absolute()
    if (directory / "admin.key").exists():
        print(f"data and admin key: {directory}", file=sys.stderr)
    else:  # another process of the installation started first
        print(f"data: {directory}; {NO_FIRST_KEY}", file=sys.stderr)
