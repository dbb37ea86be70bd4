"""Sessions for users' own queries. `rota.tables` has what there is to ask; their own tables are theirs."""

from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool

from rota.db.postgres import async_url
from rota.db.private_files import make_private_file

__all__ = ["AsyncSession", "Database"]


class Session(AsyncSession):
    """A session that closes quickly if it was not used: without a transaction it holds no connection."""

    async def aclose(self) -> None:
        if self.in_transaction():
            await super().aclose()


class Database:
    """The database as tasks may use it: `async with database.session() as session: …`

    On SQLite sessions write to a file of their own beside Rota's, which they see and can read as part of it: a task
    that forgets to commit must not keep every scheduler and worker from writing.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._made: tuple[AsyncEngine, async_sessionmaker[Session]] | None = None

    def session(self) -> AsyncSession:
        """A new session, to be closed by `async with`. Nothing is connected before its first query."""
        if self._made is None:
            engine = (
                sqlite_engine(self.url) if self.url.startswith("sqlite") else create_async_engine(async_url(self.url))
            )
            self._made = engine, async_sessionmaker(engine, class_=Session, expire_on_commit=False)
        return self._made[1]()

    async def close(self) -> None:
        if self._made is not None:
            made, self._made = self._made, None
            await made[0].dispose()


def sqlite_engine(url: str) -> AsyncEngine:
    path = Path(url.removeprefix("sqlite:///")).absolute()
    own = path.with_name(f"{path.stem}-own.db")
    make_private_file(own)
    engine = create_async_engine(f"sqlite+aiosqlite:///file:{own}?uri=true", poolclass=NullPool)

    @event.listens_for(engine.sync_engine, "connect")
    def attach(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("ATTACH DATABASE ? AS rota", (f"file:{path}?mode=ro",))
        cursor.close()

    return engine
