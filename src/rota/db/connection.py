"""How a database is reached: `await db.tx(step, …)` runs a step as one transaction."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from rota.core.errors import Invalid
from rota.db.dialect import Tx
from rota.db.statement import BoundStatement

if TYPE_CHECKING:
    from rota.db.transactions import Transaction

P = ParamSpec("P")
R = TypeVar("R")
Step = Callable[Concatenate[Tx, P], R]


class Reads(Protocol):
    """A database that runs steps that only read."""

    async def read(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a step that only reads."""
        ...


class Database(Protocol):
    """A database that runs steps: functions over an open transaction, without `await`."""

    url: str
    survives_partition: bool  # other processes may still reach it when this one cannot, and expire our lease
    writers: int  # how many transactions of this process can write at once
    observer: object | None  # gets what transactions count when they commit; see `db/commit_actions.py`

    async def tx(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step as one transaction. Raises Unavailable when the database is out of reach, and then the step
        may or may not have happened; DataRefused when the database refused a row."""
        ...

    async def statement(self, bound: BoundStatement[R]) -> R:
        """Run a single statement, which is a transaction by itself. Saves PostgreSQL two round trips."""
        ...

    async def read(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a step that only reads."""
        ...

    async def begin(self) -> "Transaction":
        """Begin a transaction of several steps. Its caller commits it or rolls it back."""
        ...

    def after_commit(self, action: Callable[[], None]) -> None:
        """Call the action when what was written so far is committed: here at once, as each step commits by itself."""
        ...

    async def close(self) -> None: ...


def open_database(url: str, pool: int = 10) -> Database:
    """Return the database of a URL; connects with the first step. Raises Invalid for an unknown scheme."""
    from rota.db.postgres import PostgresDatabase  # here: both are built on this module
    from rota.db.sqlite import SqliteDatabase

    if url.startswith("sqlite:///"):
        return SqliteDatabase(url)
    if url.startswith(("postgresql://", "postgres://")):
        return PostgresDatabase(url, pool)
    raise Invalid("database_url", url.split("://")[0], "is not known; use sqlite:///path or postgresql://user@host/db")
