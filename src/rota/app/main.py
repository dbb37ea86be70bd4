"""Process types: `up` runs everything in one, `server` API and dashboard, `worker` scheduler and worker."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from rota.access.store import accounts
from rota.app import sentry
from rota.app.api_thread import ApiThread, announce, bind, listening_socket
from rota.app.application import Rota
from rota.app.data_dir import close_to_others
from rota.app.logs import configure_logs
from rota.app.node import DATABASE_START_SECONDS, Node
from rota.app.otel import set_up_exporters
from rota.app.programs import load_program
from rota.app.settings import Settings
from rota.app.signals import Shutdown, run_until_signal, supervise_processes
from rota.core.addresses import is_loopback
from rota.core.errors import Refused, Unavailable
from rota.db import schema
from rota.db.connection import open_database
from rota.db.retry import retry_until_available
from rota.engine import otel_metrics, tracing
from rota.engine.artifact_contents import check_store
from rota.engine.object_store import ObjectStore
from rota.user_code import processes

if TYPE_CHECKING:
    from rota.app.metrics_endpoint import MetricsEndpoint

FLUSH_SECONDS = 5.0  # that a process that exits waits for receivers of traces, metrics and reports


def up(
    settings: Settings,
    app: str | None,
    started: Callable[[], None] = lambda: None,
    stopped: Callable[[], None] = lambda: None,
) -> None:
    """Run everything in one process: migrate, then API, dashboard, scheduler and worker. Calls `started` when the
    URL has been printed, `stopped` before the process exits."""
    configure_logs(settings)
    check_users(settings)
    asyncio.run(retry_until_available(lambda: asyncio.to_thread(migrate, settings), DATABASE_START_SECONDS))
    asyncio.run(check_exposure(settings))
    asyncio.run(check_object_store(settings))
    program = load(app)
    node = Node(settings, program, app)
    with listening_socket(settings) as (sock, url):
        api = ApiThread(settings, program, app, sock, node)
        api.start()
        api.ready.wait()

        def prepared() -> None:
            announce(settings, url, api.link)
            started()

        node.on_prepared = prepared
        try:
            run_until_signal(node.run)
        finally:
            api.stop()
    stopped()
    exit_process()


def server(settings: Settings, app: str | None) -> None:
    """Run API and dashboard, without scheduler and worker."""
    configure_logs(settings)
    close_to_others(settings)
    program = load(app)
    asyncio.run(check_schema(settings))
    asyncio.run(check_exposure(settings))
    asyncio.run(check_object_store(settings))
    with listening_socket(settings) as (sock, url):
        api = ApiThread(settings, program, app, sock, None)
        api.start()
        api.ready.wait()
        announce(settings, url, api.link)
        try:
            run_until_signal(wait_for_drain)
        finally:
            api.stop()
    exit_process()


def worker(settings: Settings, app: str | None) -> None:
    """Run scheduler and worker; with several processes, this one only supervises them."""
    configure_logs(settings)
    check_users(settings)
    close_to_others(settings)
    ports = [] if settings.metrics_port is None else [settings.metrics_port + n for n in range(settings.processes)]
    with contextlib.ExitStack() as sockets:  # bound before anything starts: a taken port is an error at once
        bound = [sockets.enter_context(bind(settings.metrics_host, port, "ROTA_METRICS_PORT")) for port in ports]
        asyncio.run(check_schema(settings))
        asyncio.run(check_object_store(settings))
        if settings.processes > 1:
            sockets.close()  # each process binds its own
            ends = settings.exit_when_idle is not None
            supervise_processes(settings.processes, settings.secrets(), metrics_ports=ports, may_end=ends)
            return
        node = Node(settings, load(app), app)
        node.exit_when_idle = settings.exit_when_idle
        endpoint = None if not bound else start_endpoint(node, bound[0])
        run_until_signal(node.run)
        if endpoint is not None:
            endpoint.stop()
    exit_process()


def start_endpoint(node: Node, sock: socket.socket) -> "MetricsEndpoint":
    """Serve metrics and health of the node on a bound socket."""
    from rota.app.metrics_endpoint import MetricsEndpoint  # imported here: a worker without the port needs none of it

    endpoint = MetricsEndpoint(node, sock)
    endpoint.start()
    return endpoint


def load(app: str | None) -> Rota:
    """Load the program, then export what it does not export itself to the OTLP endpoint of the environment."""
    program = load_program(app)
    set_up_exporters()
    return program


def check_users(settings: Settings) -> None:
    """Raise Invalid if this process cannot start processes as a user of ROTA_RUN_AS."""
    for user in (settings.run_as or {}).values():
        processes.check_user(user)


def migrate(settings: Settings, step: Callable[[int], None] = lambda _: None) -> None:
    """Bring the database up to date; calls `step` after each migration."""
    from rota.db.migrate import migrate  # imported here: alembic takes long to load

    close_to_others(settings)
    migrate(settings.database_url, step)


async def check_schema(settings: Settings) -> None:
    """Raise Unavailable if the database's schema is not the one that this version needs."""
    db = open_database(settings.database_url)
    try:
        mismatch = await retry_until_available(lambda: db.read(schema.check), DATABASE_START_SECONDS)
        if mismatch is not None:
            raise Unavailable(mismatch)
    finally:
        await db.close()


async def check_exposure(settings: Settings) -> None:
    """Raise Refused if other machines can reach the server while only the first key protects it."""
    if settings.allow_remote or is_loopback(settings.host):
        return
    db = open_database(settings.database_url)
    try:
        if await retry_until_available(lambda: db.read(accounts.only_first_key), DATABASE_START_SECONDS):
            raise Refused(
                f"{settings.host} can be reached from other machines, and only the first key protects this server: "
                "start it on 127.0.0.1 and create a user or a key (`rota user add`, `rota key add`), or pass "
                "--allow-remote"
            )
    finally:
        await db.close()


async def check_object_store(settings: Settings) -> None:
    """Raise ObjectStoreUnavailable if the object store of artifacts cannot be used; see `check_store`."""
    if (objects := settings.object_store_settings()) is None:
        return
    db = open_database(settings.database_url)
    try:
        await check_store(ObjectStore(objects), db)
    finally:
        await db.close()


async def wait_for_drain(shutdown: Shutdown) -> None:
    await shutdown.drain.wait()


def exit_process() -> None:
    """Flush traces, metrics and reports, and exit at once: neither a receiver that is away nor a task's thread that
    never ends must keep the process alive."""
    pool = ThreadPoolExecutor()
    wait([pool.submit(flush) for flush in (otel_metrics.flush, tracing.flush, sentry.flush)], FLUSH_SECONDS)
    os._exit(0)
