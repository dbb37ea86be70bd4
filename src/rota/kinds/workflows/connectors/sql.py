"""The database behind the SQL connector, reached by a URL. Its tables are not Rota's.

A statement of a script must not be able to do more than read: queries have a connection of their own that is closed
afterwards, and the database itself refuses everything else. Inserts are built here, never by the caller.
"""

import asyncio
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
from sqlalchemy import column, insert, make_url, select, table
from sqlalchemy import text as sql
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from rota.core.errors import Invalid, LogicError, PermissionDenied, TransientError

QUERY_SECONDS = 30
QUERY_ROWS = 1000
QUERY_BYTES = 8 * 1024 * 1024  # of all values together, and of one value on SQLite
FETCH_ROWS = 50
SQLITE_STEPS = 10_000  # of its virtual machine, between two checks for cancellation
SQLITE_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
ROTA_TABLES = ("api_keys", "workflow_runs", "charge_receipts")  # together in no other database
FILE_ROLES = ("pg_read_server_files", "pg_write_server_files", "pg_execute_server_program")
ASYNCPG_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

POSTGRESQL_RIGHTS = """
    SELECT EXISTS (SELECT FROM pg_catalog.pg_roles
                   WHERE (rolsuper OR rolname = ANY($1)) AND pg_catalog.pg_has_role(session_user, oid, 'MEMBER')),
           (SELECT count(DISTINCT relname) FROM pg_catalog.pg_class
            WHERE relname = ANY($2) AND relkind = 'r' AND pg_catalog.has_table_privilege(oid, 'SELECT'))
"""
SQLITE_TABLES = f"SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN {ROTA_TABLES!r}"


class OutsideDatabase:
    """A SQLite file or a PostgreSQL database. Raises Invalid for any other URL."""

    def __init__(self, url: str) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine  # here, because its import is slow

        parts = make_url(url)
        if parts.drivername not in {*DRIVERS, *DRIVERS.values()}:
            raise Invalid("url", parts.drivername, "is not a database of the SQL connector: sqlite or postgresql")
        parts = parts.set(drivername=DRIVERS.get(parts.drivername, parts.drivername))
        self._path: Path | None = None
        if parts.drivername.startswith("sqlite"):
            name = parts.database or ""
            if not name or name.startswith((":", "file:")) or parts.query:
                raise Invalid("url", url, "does not name a file, as sqlite:///folder/shop.db does")
            self._path = Path(name).absolute()
        self._engine = create_async_engine(parts, poolclass=NullPool)
        self._accepted = False

    async def fetch(self, statement: str, params: Mapping[str, object]) -> list[dict[str, object]]:
        """Return the rows of one statement that only reads, at most QUERY_ROWS. Raises LogicError if it would do
        anything else or returns too much, PermissionDenied if the connection has too many rights."""
        canceled = threading.Event()
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                if self._path is None:
                    return await self._fetch_postgresql(statement, params)
                return await asyncio.to_thread(self._fetch_sqlite, statement, params, canceled)
        except TimeoutError as error:
            raise TransientError(f"the query took longer than {QUERY_SECONDS} s and was canceled") from error
        finally:
            canceled.set()

    def _fetch_sqlite(
        self, statement: str, params: Mapping[str, object], canceled: threading.Event
    ) -> list[dict[str, object]]:
        with self._open_sqlite() as connection:
            connection.set_authorizer(lambda action, *_: int(action not in SQLITE_READS))  # 1 refuses the statement
            connection.set_progress_handler(canceled.is_set, SQLITE_STEPS)
            cursor = connection.execute(statement, dict(params))
            if cursor.description is None:
                raise LogicError("a query must return rows")
            names = [name for name, *_ in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in bounded(cursor)]

    @contextmanager
    def _open_sqlite(self) -> Iterator[sqlite3.Connection]:
        """A connection that cannot write and closes at the end."""
        assert self._path is not None
        if not self._path.is_file():
            raise LogicError(f"{self._path.name}: the database file does not exist")
        try:
            uri = f"file:{quote(str(self._path))}?mode=ro"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("PRAGMA query_only = ON")
                connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, QUERY_BYTES)
                (tables,) = connection.execute(SQLITE_TABLES).fetchone()
                accept(False, tables, self._path.name)
                yield connection
            finally:
                connection.close()
        except (sqlite3.Error, sqlite3.Warning) as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            kind = TransientError if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) else LogicError
            reason = "a query can only read; " if code == sqlite3.SQLITE_AUTH else ""
            raise kind(f"{self._path.name}: {reason}{error}") from error

    async def _fetch_postgresql(self, statement: str, params: Mapping[str, object]) -> list[dict[str, object]]:
        compiled = sql(statement).compile(dialect=self._engine.dialect)
        wanted = list(compiled.positiontup or ())
        if missing := [name for name in wanted if name not in params]:
            raise LogicError(f"the query has no value for {', '.join(missing)}")
        async with self._open_postgresql() as connection:
            await connection.execute(f"SET LOCAL statement_timeout = '{QUERY_SECONDS}s'")
            prepared = await connection.prepare(str(compiled))
            if not prepared.get_attributes():
                raise LogicError("a query must return rows")
            cursor = await prepared.cursor(*(params[name] for name in wanted))
            rows: list[dict[str, object]] = []
            size = 0
            while len(rows) < QUERY_ROWS and (batch := await cursor.fetch(min(FETCH_ROWS, QUERY_ROWS - len(rows)))):
                rows += [dict(row) for row in batch]
                size += sum(map(size_of, batch))
                check_size(size)
            return rows

    @asynccontextmanager
    async def _open_postgresql(self) -> AsyncIterator[Any]:
        """A connection in a read-only transaction, which is rolled back; the connection closes at the end."""
        try:
            async with self._engine.connect() as borrowed:
                connection = (await borrowed.get_raw_connection()).driver_connection
                assert connection is not None
                transaction = connection.transaction(readonly=True)
                await transaction.start()
                try:
                    trusted, tables = await connection.fetchrow(POSTGRESQL_RIGHTS, FILE_ROLES, ROTA_TABLES)
                    accept(trusted, tables, self._engine.url.database or "")
                    yield connection
                except asyncio.CancelledError:
                    connection.terminate()  # the server rolls back, also where it does not answer
                    raise
                finally:
                    if not connection.is_closed():
                        await transaction.rollback()
        except (*ASYNCPG_ERRORS, DBAPIError) as error:
            raise query_error(error) from error
        except OSError as error:
            raise TransientError(f"the database is not reachable: {error}") from error

    async def insert(self, name: str, row: Mapping[str, object]) -> None:
        """Insert one row. Raises LogicError if the database refuses it, TransientError if it does not answer."""
        target = table(name, *map(column, row))
        await self._check_rights()
        try:
            async with self._engine.begin() as connection:
                await connection.execute(insert(target).values(dict(row)))
        except (IntegrityError, ProgrammingError) as error:
            raise LogicError(f"{name}: {error.orig}") from error
        except (SQLAlchemyError, OSError) as error:
            raise TransientError(f"{name}: {error}") from error

    async def find(self, name: str, key: str, value: str, columns: Sequence[str]) -> dict[str, object] | None:
        target = table(name, column(key), *map(column, columns))
        await self._check_rights()
        async with self._engine.connect() as connection:
            row = (await connection.execute(select(target).where(target.c[key] == value))).mappings().first()
            return None if row is None else dict(row)

    async def _check_rights(self) -> None:
        """Check once that the database may be used. Queries check it each time, on their own connection."""
        if not self._accepted:
            await self.fetch("SELECT 1", {})
            self._accepted = True

    async def close(self) -> None:
        await self._engine.dispose()


def accept(trusted: bool, tables: int, name: str) -> None:
    """Raise PermissionDenied for a role that reaches files of the server, or a database that has Rota's own tables."""
    if trusted:
        raise PermissionDenied(
            f"database {name}: the connector's role is a superuser or may read files of the server; "
            "create a role that has only the tables it needs"
        )
    if tables == len(ROTA_TABLES):
        raise PermissionDenied(
            f"database {name}: Rota's own tables are in it and this connection can read them; "
            "use another database, or a role without rights on them"
        )


def bounded(rows: Iterator[tuple[object, ...]]) -> Iterator[tuple[object, ...]]:
    """The first QUERY_ROWS rows. Raises LogicError once they exceed QUERY_BYTES."""
    size = 0
    for _, row in zip(range(QUERY_ROWS), rows, strict=False):
        size += size_of(row)
        check_size(size)
        yield row


def size_of(row: Sequence[object]) -> int:
    return sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)


def check_size(size: int) -> None:
    if size > QUERY_BYTES:
        raise LogicError(f"the query returned more than {QUERY_BYTES // 1024**2} MiB; select less")


def query_error(error: BaseException) -> LogicError | TransientError:
    """The class of a driver's error: connections, resources and operators (SQLSTATE 08, 53, 57) are transient."""
    state = getattr(getattr(error, "orig", error), "sqlstate", None) or ""
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    transient = lost or re.match("08|53|57", state)
    return (TransientError if transient else LogicError)(str(getattr(error, "orig", None) or error))
