"""Programs with a database driver of their own: one class per way of connecting, with the same methods."""

import os
import sqlite3
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import django
import psycopg
from django.conf import settings as django_settings
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from rota import Rota


class Caller:
    """A program with an open connection. Its methods are awaited, whether or not its driver is."""

    connection: Any

    async def execute(self, sql: str) -> None:
        self.connection.execute(sql)

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()

    async def close(self) -> None:
        self.connection.close()

    async def enqueue(self, app: Rota, *args: Any, **options: Any) -> str:
        return str(app.enqueue(*args, connection=self.connection, **options))

    async def enqueue_many(self, app: Rota, *args: Any, **options: Any) -> list[str]:
        return list(app.enqueue_many(*args, connection=self.connection, **options))


class AwaitedCaller(Caller):
    async def execute(self, sql: str) -> None:
        await self.connection.execute(sql)

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def close(self) -> None:
        await self.connection.close()

    async def enqueue(self, app: Rota, *args: Any, **options: Any) -> str:
        return str(await app.enqueue(*args, connection=self.connection, **options))

    async def enqueue_many(self, app: Rota, *args: Any, **options: Any) -> list[str]:
        return list(await app.enqueue_many(*args, connection=self.connection, **options))


class SqlAlchemyCaller(Caller):
    def __init__(self, connection: Any, dispose: Callable[[], None]) -> None:
        self.connection, self._dispose = connection, dispose

    async def execute(self, sql: str) -> None:
        self.connection.execute(text(sql))

    async def close(self) -> None:
        self.connection.close()
        self._dispose()


class AsyncSqlAlchemyCaller(AwaitedCaller):
    def __init__(self, connection: Any, engine: Any) -> None:
        self.connection, self._engine = connection, engine

    async def execute(self, sql: str) -> None:
        await self.connection.execute(text(sql))

    async def close(self) -> None:
        await self.connection.close()
        await self._engine.dispose()


class AsyncpgCaller(AwaitedCaller):
    def __init__(self, connection: Any, pool: Any = None) -> None:
        self.connection, self._pool = connection, pool
        self._transaction: Any = None

    async def begin(self) -> "AsyncpgCaller":
        self._transaction = self.connection.transaction()
        await self._transaction.start()
        return self

    async def commit(self) -> None:
        await self._transaction.commit()
        await self.begin()

    async def rollback(self) -> None:
        await self._transaction.rollback()
        await self.begin()

    async def close(self) -> None:
        await self._transaction.rollback()
        if self._pool is None:
            await self.connection.close()
        else:
            await self._pool.release(self.connection)
            await self._pool.close()


class DjangoCaller(Caller):
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, sql: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)


class PlainCaller(Caller):
    def __init__(self, connection: Any) -> None:
        self.connection = connection


class PlainAwaitedCaller(AwaitedCaller):
    def __init__(self, connection: Any) -> None:
        self.connection = connection


def sync_url(url: str, driver: str) -> str:
    return f"{driver}{url[url.index('://') :]}"


async def open_caller(kind: str, url: str) -> Caller:
    """Connect a program to a database, by one of POSTGRESQL_CALLERS or SQLITE_CALLERS."""
    path = url.removeprefix("sqlite:///")
    match kind:
        case "psycopg":
            return PlainCaller(psycopg.connect(url))
        case "psycopg dict rows":
            return PlainCaller(psycopg.connect(url, row_factory=dict_row))
        case "psycopg client cursor":
            return PlainCaller(psycopg.connect(url, cursor_factory=psycopg.ClientCursor))
        case "psycopg async":
            return PlainAwaitedCaller(await psycopg.AsyncConnection.connect(url, row_factory=dict_row))
        case "asyncpg":
            return await AsyncpgCaller(await asyncpg.connect(url)).begin()
        case "asyncpg pool":
            pool = await asyncpg.create_pool(url, min_size=1, max_size=1)
            return await AsyncpgCaller(await pool.acquire(), pool).begin()
        case "session" | "connection" | "scoped session" | "sqlite session" | "sqlite connection":
            engine = create_engine(url if path != url else sync_url(url, "postgresql+psycopg"), poolclass=NullPool)
            if "connection" in kind:
                return SqlAlchemyCaller(engine.connect(), engine.dispose)
            session = scoped_session(sessionmaker(engine)) if kind == "scoped session" else Session(engine)
            return SqlAlchemyCaller(session, engine.dispose)
        case "async session asyncpg" | "async session psycopg" | "async connection" | "async session aiosqlite":
            drivers = {"psycopg": "postgresql+psycopg", "aiosqlite": "sqlite+aiosqlite"}
            driver = drivers.get(kind.split()[-1], "postgresql+asyncpg")
            async_engine = create_async_engine(sync_url(url, driver), poolclass=NullPool)
            if kind == "async connection":
                return AsyncSqlAlchemyCaller(await async_engine.connect(), async_engine)
            return AsyncSqlAlchemyCaller(AsyncSession(async_engine), async_engine)
        case "django" | "sqlite django":
            return DjangoCaller(django_connection(url))
        case "sqlite3":
            return PlainCaller(sqlite3.connect(path))
        case "sqlite3 rows":
            connection = sqlite3.connect(path)
            connection.row_factory = lambda cursor, row: dict(zip([c[0] for c in cursor.description], row, strict=True))
            return PlainCaller(connection)
        case _:
            raise AssertionError(kind)


def django_connection(url: str, autocommit: bool = False) -> Any:
    """Return a connection of Django, inside a transaction as `atomic()` begins it."""
    if not django_settings.configured:
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # tests run on an event loop
        django_settings.configure(USE_TZ=True, TIME_ZONE="Pacific/Apia")
        django.setup()
    parts = urlsplit(url)
    engine = "django.db.backends.sqlite3" if parts.scheme == "sqlite" else "django.db.backends.postgresql"
    name = url.removeprefix("sqlite:///") if parts.scheme == "sqlite" else parts.path[1:]
    shape = {"ENGINE": engine, "NAME": name, "USER": parts.username, "HOST": parts.hostname, "PORT": parts.port}
    from django.db.utils import ConnectionHandler

    connection = ConnectionHandler({"default": shape})["default"]
    connection.inc_thread_sharing()
    connection.ensure_connection()
    connection.set_autocommit(autocommit)
    return connection


POSTGRESQL_CALLERS = (
    "psycopg",
    "psycopg dict rows",
    "psycopg client cursor",
    "psycopg async",
    "asyncpg",
    "asyncpg pool",
    "session",
    "scoped session",
    "connection",
    "async session asyncpg",
    "async session psycopg",
    "async connection",
    "django",
)
SQLITE_CALLERS = (
    "sqlite3",
    "sqlite3 rows",
    "sqlite session",
    "sqlite connection",
    "async session aiosqlite",
    "sqlite django",
)
