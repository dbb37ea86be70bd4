"""Providers of database sessions for a program's own queries. Imported once SQLAlchemy's asyncio is."""

from rota.db.user_session import AsyncSession, Database
from rota.engine.runner import RunContext

__all__ = ["AsyncSession", "Database", "own_database", "session"]


def own_database(ctx: RunContext) -> Database:
    return Database(ctx.engine.db.url)


def session(database: Database) -> AsyncSession:
    return database.session()
