"""A database as plain blocking code, for commands that migrate or copy it: one connection, no event loop, no limits."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError, StatementError
from sqlalchemy.pool import NullPool
from sqlalchemy.util import await_only, greenlet_spawn

from rota.core.clock import real_sleep
from rota.core.errors import Conflict, NotFound
from rota.db.dialect import Tx, on_sqlite
from rota.db.driver_errors import DATABASE_ERRORS, DRIVER_ERRORS, translated
from rota.db.postgres import async_url
from rota.db.sqlite import begin_immediate, sqlite_engine, sync_transaction
from rota.db.sqlite_lock import WriteLock

P = ParamSpec("P")
R = TypeVar("R")

LOCK_TIMEOUT = "10s"
# pages by primary key are read from its index, also from tables without statistics
PAGING_SETTINGS = ("enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_incremental_sort")


def run_blocking(step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function that uses the context managers of this module, outside any event loop: asyncpg gets its own."""
    return asyncio.run(greenlet_spawn(partial(step, *args, **kwargs)))


def check_interrupt() -> None:
    """Raise CancelledError after a Ctrl-C, which otherwise waits for the next answer of PostgreSQL: SQLite gives none.
    For steps of `run_blocking` that take long."""
    await_only(real_sleep(0))


@contextlib.contextmanager
def writing(url: str) -> Iterator[Tx]:
    """One transaction, committed unless the block raises. `commit_part` commits a part of it."""
    path = sqlite_path(url)
    with translating(path):
        if path is not None:
            with sync_transaction(path) as tx:
                yield tx
        else:
            with postgres_connection(url) as tx:
                yield tx
                tx.commit()


def commit_part(tx: Tx) -> None:
    """Commit, and begin the next transaction of the same `writing` block."""
    tx.commit()
    if on_sqlite(tx):
        begin_immediate(tx)


@contextlib.contextmanager
def reading(url: str) -> Iterator[Tx]:
    """A snapshot that does not change while other processes write. Raises NotFound if a SQLite file does not exist."""
    path = existing_file(url)
    with translating(path):
        if path is not None:
            engine = sqlite_engine(path)
            with contextlib.closing(engine.connect()) as tx:
                tx.exec_driver_sql("BEGIN")
                tx.exec_driver_sql("SELECT count(*) FROM sqlite_master").close()  # the snapshot begins with a read
                yield tx
                tx.rollback()
        else:
            with postgres_connection(url, isolation_level="REPEATABLE READ", postgresql_readonly=True) as tx:
                page_by_index(tx)
                yield tx


@contextlib.contextmanager
def locked(url: str, tables: Callable[[Tx], list[str]]) -> Iterator[Tx]:
    """Read a database of which no other process can write these tables until the block ends; what the block writes
    itself is committed then. Raises NotFound for a missing SQLite file, Conflict if another process writes."""
    path = existing_file(url)
    with translating(path):
        if path is not None:
            with sync_transaction(path) as tx:  # its write lock
                yield tx
        else:
            with postgres_connection(url) as tx:
                page_by_index(tx)
                tx.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                try:
                    tx.exec_driver_sql(f"LOCK TABLE {', '.join(tables(tx))} IN SHARE MODE")
                except StatementError as error:
                    if "lock timeout" in str(error):
                        raise Conflict("another process writes to the database; stop it first") from error
                    raise
                yield tx
                tx.commit()


def users_of(tx: Tx) -> list[str]:
    """Return other Rota processes that are connected to a PostgreSQL database; none for SQLite, see `is_open`."""
    if on_sqlite(tx):
        return []
    connected = (
        "SELECT DISTINCT coalesce(host(client_addr), 'this machine') FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'rota' AND pid <> pg_backend_pid()"
    )
    return [f"a Rota process on {address}" for (address,) in tx.exec_driver_sql(connected)]


def is_open(url: str) -> bool:
    """Return whether another process has the SQLite file open: only then its journal mode cannot be changed."""
    path = existing_file(url)
    if path is None:
        return False
    lock = WriteLock(path)
    try:
        with translating(path), lock, contextlib.closing(sqlite_engine(path).connect()) as tx:
            try:
                tx.exec_driver_sql("PRAGMA busy_timeout=1000").close()
                tx.exec_driver_sql("PRAGMA journal_mode=DELETE").close()
                tx.exec_driver_sql("PRAGMA journal_mode=WAL").close()
            except OperationalError as error:
                if "locked" not in str(error.orig):
                    raise
                return True
            return False
    finally:
        lock.close()


def sqlite_path(url: str) -> Path | None:
    return Path(url.removeprefix("sqlite:///")).absolute() if url.startswith("sqlite:///") else None


def existing_file(url: str) -> Path | None:
    """Return the path of a SQLite file, None for PostgreSQL. Raises NotFound: to open a missing file creates it."""
    path = sqlite_path(url)
    if path is not None and not path.exists():
        raise NotFound(f"{path} does not exist")
    return path


def page_by_index(tx: Tx) -> None:
    for setting in PAGING_SETTINGS:
        tx.exec_driver_sql(f"SET LOCAL {setting} = off")


@contextlib.contextmanager
def postgres_connection(url: str, **options: object) -> Iterator[Tx]:
    engine = create_engine(
        async_url(url),
        poolclass=NullPool,
        connect_args={"timeout": 5, "server_settings": {"application_name": "rota command", "jit": "off"}},
        execution_options=options,
    )
    try:
        connection = engine.connect()
    except DATABASE_ERRORS as error:  # with those of the network, which a caller's block may raise for other reasons
        raise translated(error) from error
    with contextlib.closing(connection):
        yield connection


@contextlib.contextmanager
def translating(path: Path | None) -> Iterator[None]:
    try:
        yield
    except (*DRIVER_ERRORS, StatementError, sqlite3.Error) as error:
        raise translated(error, path) from error
