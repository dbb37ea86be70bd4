"""Connections that belong to a caller, as transactions for steps: a job commits, or vanishes, with the caller's rows.

Steps need a connection of SQLAlchemy. One of a driver (psycopg, asyncpg, sqlite3, Django's) is wrapped in such a
connection, which never commits, rolls back, closes or configures it. Drivers are recognised by the modules that the
program has imported: Rota does not depend on them.
"""

import functools
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import ResourceClosedError
from sqlalchemy.exc import SQLAlchemyError as SqlAlchemyError
from sqlalchemy.pool import NullPool, PoolProxiedConnection

from rota.core.errors import Invalid, Refused, Unavailable
from rota.db.dialect import Tx
from rota.db.driver_errors import translated
from rota.db.outages import first_line

SUPPORTED = (
    "a Connection, Session, AsyncConnection or AsyncSession of SQLAlchemy (psycopg 3, asyncpg, SQLite), a connection "
    "of psycopg 3, asyncpg or sqlite3, or Django's `connection`"
)
DRIVERS = ("psycopg", "asyncpg", "pysqlite", "aiosqlite")  # of SQLAlchemy's dialects
CLOSED = "the connection is closed; pass an open one"
AUTOCOMMIT = (
    "the connection is in autocommit mode and no transaction is open, so the job would not commit with your rows: "
    "{fix}, or enqueue without `connection`"
)


@dataclass(frozen=True, slots=True)
class CallersConnection:
    """`tx` runs statements on the caller's connection; `driver` is the connection of its driver."""

    tx: Tx
    driver: Any

    def check_transaction(self) -> None:
        """Begin SQLite's transaction as its driver does before a write. Raises Refused in autocommit mode; call it
        after the first statement, with which drivers begin their transactions."""
        if self.tx.dialect.name == "sqlite":
            self._begin_on_sqlite()
        elif not in_postgresql_transaction(self.driver):
            raise Refused(AUTOCOMMIT.format(fix="begin one, such as `with connection.transaction():`"))

    def _begin_on_sqlite(self) -> None:
        """The driver begins a transaction before INSERT, UPDATE and DELETE, but not before a text that begins with
        WITH, such as ours."""
        if self.driver.in_transaction:
            return
        level = self.driver.isolation_level
        if level is None or getattr(self.driver, "autocommit", None) is True:
            raise Refused(AUTOCOMMIT.format(fix="begin one with BEGIN IMMEDIATE"))
        self.tx.exec_driver_sql(f"BEGIN {level}").close()


class BorrowedConnection(PoolProxiedConnection):
    """A caller's driver connection in the place of one of SQLAlchemy's pool. It stays as it is: open, uncommitted."""

    def __init__(self, dbapi_connection: Any, driver: Any) -> None:
        self.dbapi_connection: Any = dbapi_connection
        self.driver_connection: Any = driver
        self._info: dict[str, Any] = {}

    @property
    def info(self) -> dict[str, Any]:
        return self._info

    @property
    def is_valid(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dbapi_connection, name)

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        return self.dbapi_connection.cursor(*args, **kwargs)

    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...
    def invalidate(self, e: BaseException | None = None, soft: bool = False) -> None: ...


class TupleCursors:
    """A driver connection whose cursors return tuples, whatever rows the caller has chosen."""

    def __init__(self, connection: Any, cursor: Callable[[], Any]) -> None:
        self._connection, self.cursor = connection, cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def is_awaited(connection: object) -> bool:
    """Return whether the caller awaits this connection. Raises Invalid for an object that is no connection."""
    if is_async_sqlalchemy(connection) or is_async_psycopg(connection) or is_asyncpg(connection):
        return True
    if isinstance(connection, Connection | sqlite3.Connection) or is_session(connection):
        return False
    if is_a(connection, "psycopg", "Connection") or is_django(connection):
        return False
    raise Invalid("connection", type(connection).__name__, f"is not supported; pass {SUPPORTED}")


def open_callers(connection: Any) -> CallersConnection:
    """Return the caller's connection as a transaction. One that the caller awaits is used inside `greenlet_spawn`.
    Raises Invalid for an unsupported driver, Refused for a closed connection."""
    try:
        return of_sqlalchemy(connection) or of_driver(connection)
    except ResourceClosedError as error:
        raise Refused(CLOSED) from error
    except SqlAlchemyError as error:  # a session with several databases, or whose transaction has failed
        raise Refused(f"the session has no connection to enqueue with: {first_line(error)}") from error


def of_sqlalchemy(connection: Any) -> CallersConnection | None:
    """Return a connection or session of SQLAlchemy; None for another object."""
    if is_async_sqlalchemy(connection):
        connection = getattr(connection, "sync_session", None) or connection.sync_connection
        if connection is None:
            raise Refused(
                "the AsyncConnection is not open yet; begin it with `async with engine.begin() as connection`"
            )
    if is_session(connection):
        connection = connection.connection()
    if not isinstance(connection, Connection):
        return None
    if connection.closed:
        raise Refused(CLOSED)
    if connection.dialect.driver.removesuffix("_async") not in DRIVERS:
        name = f"{connection.dialect.name}+{connection.dialect.driver}"
        raise Invalid("connection", name, "is not supported; use postgresql+psycopg, postgresql+asyncpg or sqlite")
    return CallersConnection(connection, connection.connection.driver_connection)


def of_driver(connection: Any) -> CallersConnection:
    if is_django(connection):
        connection = of_django(connection)
    if isinstance(connection, sqlite3.Connection):
        return borrowed("sqlite://", TupleCursors(connection, functools.partial(sqlite_cursor, connection)), connection)
    if is_asyncpg(connection):
        if connection.is_closed():
            raise Refused(CLOSED)
        return of_asyncpg(connection)
    if connection.closed:
        raise Refused(CLOSED)
    from psycopg.rows import tuple_row

    cursors = TupleCursors(connection, functools.partial(connection.cursor, row_factory=tuple_row))
    if not is_async_psycopg(connection):
        return borrowed("postgresql+psycopg://", cursors, connection)
    from sqlalchemy.dialects.postgresql.psycopg import AsyncAdapt_psycopg_connection

    url = "postgresql+psycopg_async://"
    adapted = AsyncAdapt_psycopg_connection(borrowing_engine(url).dialect.dbapi, cursors)
    return borrowed(url, adapted, connection)


def of_asyncpg(connection: Any) -> CallersConnection:
    from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_connection

    dbapi = borrowing_engine("postgresql+asyncpg://").dialect.dbapi
    adapted = AsyncAdapt_asyncpg_connection(dbapi, connection)  # type: ignore[no-untyped-call]
    adapted.autocommit = True  # the adapter begins no transaction of its own
    return borrowed("postgresql+asyncpg://", adapted, connection)


def of_django(connection: Any) -> Any:
    """Return the driver's connection of Django's. Raises Refused outside `transaction.atomic()`."""
    connection.validate_no_broken_transaction()
    connection.ensure_connection()
    if connection.get_autocommit():
        raise Refused(AUTOCOMMIT.format(fix="enqueue inside `with transaction.atomic():`"))
    driver = connection.connection
    if isinstance(driver, sqlite3.Connection) or is_a(driver, "psycopg", "Connection"):
        return driver
    raise Invalid("connection", type(driver).__module__, "is not supported as Django's driver; install psycopg 3")


def borrowed(url: str, dbapi_connection: Any, driver: Any) -> CallersConnection:
    return CallersConnection(Connection(borrowing_engine(url), BorrowedConnection(dbapi_connection, driver)), driver)


@functools.cache
def borrowing_engine(url: str) -> Engine:
    """Return an engine that only knows the dialect of a driver; it never connects."""
    return create_engine(url, poolclass=NullPool)


def sqlite_cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def in_postgresql_transaction(driver: Any) -> bool:
    if is_asyncpg(driver):
        return bool(driver.is_in_transaction())
    status: str = driver.info.transaction_status.name
    return status != "IDLE"


def translated_callers(error: Exception) -> Exception:
    """Translate an error of a statement on a caller's connection."""
    text = first_line(getattr(error, "orig", None) or error)
    if "current transaction is aborted" in text:
        return Refused("the connection's transaction has failed; roll it back before you enqueue")
    if "another operation is in progress" in text:
        return Refused("the connection is in use: another operation of it is in progress; await that first")
    if ("closed" in text and "connection" in text) or "closed database" in text:
        return Refused(CLOSED)
    translation = translated(error)
    return Unavailable(f"enqueueing on the given connection failed: {text}") if translation is error else translation


def file_of(tx: Tx) -> Path | None:
    """Return the main file of a SQLite connection; None for a database in memory."""
    rows = tx.exec_driver_sql("PRAGMA database_list").all()
    path = next((row[2] for row in rows if row[1] == "main"), "")
    return Path(path) if path else None


def is_a(value: object, module: str, name: str) -> bool:
    """Return whether a value is an instance of a class whose module the program has imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def is_session(value: object) -> bool:
    return is_a(value, "sqlalchemy.orm", "Session") or is_a(value, "sqlalchemy.orm", "scoped_session")


def is_async_sqlalchemy(value: object) -> bool:
    names = ("AsyncConnection", "AsyncSession", "async_scoped_session")
    return any(is_a(value, "sqlalchemy.ext.asyncio", name) for name in names)


def is_async_psycopg(value: object) -> bool:
    return is_a(value, "psycopg", "AsyncConnection")


def is_asyncpg(value: object) -> bool:
    return is_a(value, "asyncpg", "Connection") or is_a(value, "asyncpg.pool", "PoolConnectionProxy")


def is_django(value: object) -> bool:
    return is_a(value, "django.db.backends.base.base", "BaseDatabaseWrapper") or is_a(
        value, "django.utils.connection", "ConnectionProxy"
    )
