"""Sessions for a program's own queries, as they are injected. Loaded when a function could ask for one."""

from rota.db.user_session import AsyncSession, Database
from rota.engine.runner import RunContext

__all__ = ["AsyncSession", "Database", "own_database", "session"]


def own_database(ctx: RunContext) -> Database:
    return Database(ctx.engine.db.url)


def session(database: Database) -> AsyncSession:
    return database.session()
