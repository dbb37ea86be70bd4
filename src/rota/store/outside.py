"""Somebody else's tables, reached by a URL: what the SQL connector does. They are none of ours."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import column, insert, select, table
from sqlalchemy import text as sql
from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

from rota.core.errors import LogicError, TransientError


class Outside:
    def __init__(self, url: str) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine  # here, because it takes long to load

        scheme, _, rest = url.partition("://")
        drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
        self._engine = create_async_engine(f"{drivers.get(scheme, scheme)}://{rest}", pool_size=2)

    async def fetch(self, statement: str, params: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
        """The rows of a statement, in a transaction that is rolled back: reading changes nothing."""
        async with self._engine.connect() as connection:
            found = await connection.execute(sql(statement), dict(params))
            if not found.returns_rows:
                raise LogicError("a query must return rows")
            return [dict(row) for row in found.mappings().fetchmany(limit)]

    async def insert(self, name: str, row: Mapping[str, Any]) -> None:
        """One row. A row that the database refuses is a mistake; a database that does not answer says nothing."""
        target = table(name, *map(column, row))
        try:
            async with self._engine.begin() as connection:
                await connection.execute(insert(target).values(dict(row)))
        except (IntegrityError, ProgrammingError) as error:
            raise LogicError(f"{name}: {error.orig}") from error
        except (SQLAlchemyError, OSError) as error:
            raise TransientError(f"{name}: {error}") from error

    async def find(self, name: str, key: str, value: str, columns: Sequence[str]) -> dict[str, Any] | None:
        target = table(name, column(key), *map(column, columns))
        async with self._engine.connect() as connection:
            found = (await connection.execute(select(target).where(target.c[key] == value))).mappings().first()
            return None if found is None else dict(found)

    async def close(self) -> None:
        await self._engine.dispose()
