"""Process types: `up` runs everything in one, `server` API and dashboard, `worker` scheduler and worker."""

import asyncio
import os
from collections.abc import Callable

from rota.access.store import accounts
from rota.app.api_thread import ApiThread, announce, listening_socket
from rota.app.data_dir import close_to_others
from rota.app.logs import configure_logs
from rota.app.node import DATABASE_START_SECONDS, Node
from rota.app.programs import load_program
from rota.app.settings import Settings
from rota.app.signals import Shutdown, run_until_signal, supervise_processes
from rota.core.addresses import is_loopback
from rota.core.errors import Refused, Unavailable
from rota.db import schema
from rota.db.connection import open_database
from rota.db.retry import retry_until_available
from rota.engine import tracing
from rota.user_code import processes


def up(settings: Settings, app: str | None) -> None:
    """Run everything in one process: migrate, then API, dashboard, scheduler and worker."""
    configure_logs(settings)
    check_users(settings)
    asyncio.run(retry_until_available(lambda: asyncio.to_thread(migrate, settings), DATABASE_START_SECONDS))
    asyncio.run(check_exposure(settings))
    program = load_program(app)
    node = Node(settings, program, app)
    with listening_socket(settings) as (sock, url):
        api = ApiThread(settings, program, app, sock, node)
        api.start()
        api.ready.wait()
        node.on_prepared = lambda: announce(settings, url, api.link)
        try:
            run_until_signal(node.run)
        finally:
            api.stop()
    exit_process()


def server(settings: Settings, app: str | None) -> None:
    """Run API and dashboard, without scheduler and worker."""
    configure_logs(settings)
    close_to_others(settings)
    program = load_program(app)
    asyncio.run(check_schema(settings))
    asyncio.run(check_exposure(settings))
    with listening_socket(settings) as (sock, url):
        api = ApiThread(settings, program, app, sock, None)
        api.start()
        api.ready.wait()
        announce(settings, url, api.link)
        try:
            run_until_signal(wait_for_drain)
        finally:
            api.stop()


def worker(settings: Settings, app: str | None) -> None:
    """Run scheduler and worker; with several processes, this one only supervises them."""
    configure_logs(settings)
    check_users(settings)
    close_to_others(settings)
    asyncio.run(check_schema(settings))
    if settings.processes > 1:
        supervise_processes(settings.processes, settings.secrets())
        return
    program = load_program(app)
    run_until_signal(Node(settings, program, app).run)
    exit_process()


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


async def wait_for_drain(shutdown: Shutdown) -> None:
    await shutdown.drain.wait()


def exit_process() -> None:
    """Flush traces and exit at once: a task's thread that never ends must not keep the process alive."""
    tracing.flush()
    os._exit(0)
