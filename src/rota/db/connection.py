"""The way to the database: `await db.tx(step, …)` runs a step as one transaction.

PostgreSQL: through asyncpg, on the caller's event loop. SQLite: the whole step in the one writer thread of this
process, in turn with the writers of other processes; reads go to threads of their own and never wait for a writer.
"""

import asyncio
import contextlib
import random
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

import asyncpg
import structlog
from sqlalchemy import Engine, create_engine, event
from sqlalchemy import text as sql
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ResourceClosedError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import NullPool
from sqlalchemy.util import greenlet_spawn

from rota.core.clock import pause, stopwatch
from rota.core.errors import DataRefused, Invalid, Unavailable
from rota.db.dialect import SAYS, Straight, Tx
from rota.db.outages import Outage, first_line, is_misconfiguration, outage_of, unavailable
from rota.db.private_files import make_private_dir, make_private_file
from rota.db.sqlite_lock import GivenUp, Ticket, Turn

if TYPE_CHECKING:
    from rota.db.transactions import Transaction

P = ParamSpec("P")
R = TypeVar("R")
Step = Callable[Concatenate[Tx, P], R]

TRIES = 6  # of a transaction that lost to a deadlock
STATEMENT_TIMEOUT_MS = 30_000
BUSY_PATIENCE = 120.0  # seconds that a SQLite writer waits for a foreign transaction
TURN_WAIT_SECONDS = 20.0  # that a caller waits for its write to begin while another process writes
LOG_PAGES = 2000  # of SQLite's log until it is written anew: a file that grows takes longer to reach the disk
LOG_LIMIT = 64 * 1024 * 1024  # bytes of a log that readers kept from being written anew
TIDY_EVERY = 1.0  # seconds
# A connection keeps its plans. One that was made while the queue was short reads all of it when it is long, so every
# row is looked up by an index: no batch of ours is larger than what a look at the whole table costs.
BY_INDEX = {"enable_seqscan": "off", "enable_mergejoin": "off", "jit": "off"}
CONNECT: dict[str, Any] = {
    "timeout": 5,
    "command_timeout": STATEMENT_TIMEOUT_MS / 1000 + 5,
    "server_settings": {
        "application_name": "rota",
        "statement_timeout": str(STATEMENT_TIMEOUT_MS),
        "idle_in_transaction_session_timeout": str(STATEMENT_TIMEOUT_MS),
        **BY_INDEX,
    },
}

# InternalClientError: what it says when a connection is used in the moment in which its server ends it
FROM_THE_DRIVER = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
FAILURES = (*FROM_THE_DRIVER, StatementError, OSError, TimeoutError, PoolTimeout, ResourceClosedError)
OUT_OF_REACH = (InterfaceError, asyncpg.InterfaceError, asyncpg.InternalClientError, sqlite3.InterfaceError)

TOO_MUCH_FOR_SQLITE = ("too complex", "too many", "too large", "too big")  # its limits of patterns, variables and texts

log = structlog.get_logger("rota.database")


class Database(Protocol):
    """What the layers above may ask of a database."""

    url: str
    judged_from_afar: bool  # others can reach it, and judge our lease, while we cannot
    writers: int  # how many transactions of this process can write at once

    async def tx(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step as one transaction. Raises Unavailable when the database is out of reach, and then the step
        may or may not have happened; DataRefused when the database refused a row."""
        ...

    async def statement(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a step that is one statement, and so a transaction by itself. Spares PostgreSQL two round trips."""
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
    """A database by its URL; nothing is connected before the first step."""
    if url.startswith("sqlite:///"):
        return SqliteDatabase(url)
    if url.startswith(("postgresql://", "postgres://")):
        return PostgresDatabase(url, pool)
    raise Invalid("database_url", url.split("://")[0], "is not known; use sqlite:///path or postgresql://user@host/db")


class PostgresDatabase:
    judged_from_afar = True

    def __init__(self, url: str, pool: int) -> None:
        self.url, self.writers, self.outage = url, pool, outage_of(url)
        # no AsyncEngine: a step is run as a whole in a greenlet, and what comes with that class takes long to load
        self._engine = create_engine(
            async_url(url),
            pool_size=pool,
            max_overflow=pool,
            pool_timeout=STATEMENT_TIMEOUT_MS / 1000,  # a crowd of requests waits its turn
            pool_use_lifo=True,  # a connection that was just used has its statements prepared
            connect_args=CONNECT,
        )
        self._autocommit = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._straight: list[asyncpg.Connection[Any]] = []  # idle ones, the last used last
        self._places = asyncio.Semaphore(pool)  # of those: a crowd of callers waits here too

    async def tx(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(self._engine.begin, step, *args, **kwargs)

    async def statement(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        async with self._places:
            return await self._insist(self._go_straight, step, *args, **kwargs)

    async def read(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(self._autocommit.connect, step, *args, **kwargs)

    async def begin(self) -> "Transaction":
        from rota.db.transactions import PostgresTransaction  # here, because it is built on this module

        return PostgresTransaction(await self._insist(greenlet_spawn, self._engine.connect))

    def after_commit(self, action: Callable[[], None]) -> None:
        action()

    async def _run(
        self, begin: Callable[[], AbstractContextManager[Tx]], step: Callable[..., R], *args: Any, **kwargs: Any
    ) -> R:
        def once() -> R:
            with begin() as connection:
                return step(connection, *args, **kwargs)

        return await self._insist(greenlet_spawn, once)

    async def _go_straight(self, step: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        self._straight = [one for one in self._straight if not one.is_closed()]  # its server may have gone meanwhile
        connection = self._straight.pop() if self._straight else await asyncpg.connect(self.url, **CONNECT)
        try:
            result: R = await greenlet_spawn(step, Straight(self._engine.dialect, connection), *args, **kwargs)
        except asyncpg.PostgresError:
            self._straight.append(connection)
            raise
        except BaseException:  # who knows in what state it is
            connection.terminate()
            raise
        self._straight.append(connection)
        return result

    async def _insist(self, go: Callable[..., Awaitable[R]], *args: Any, **kwargs: Any) -> R:
        """Try a transaction again that lost to a deadlock."""
        for attempt in range(1, TRIES + 1):
            try:
                result = await go(*args, **kwargs)
            except FAILURES as error:
                if not is_deadlock(error) or attempt == TRIES:
                    raise noted(self.outage, error) from error
            else:
                if self.outage.since is not None:
                    self.outage.back()
                return result
            await pause(random.uniform(0, 0.02 * 2**attempt))
        raise AssertionError("unreachable")

    async def close(self) -> None:
        for connection in self._straight:
            await connection.close(timeout=1)
        self._straight.clear()
        await greenlet_spawn(self._engine.dispose)


class SqliteDatabase:
    judged_from_afar = False  # whoever holds us up holds up everybody
    writers = 1

    def __init__(self, url: str) -> None:
        self.url = url
        self.path = Path(url.removeprefix("sqlite:///")).absolute()
        self.outage = outage_of(url)
        self._log = Path(f"{self.path}-wal")  # where commits are written first
        self._tidied = stopwatch()
        self._log_warned = LOG_LIMIT // 2  # bytes; the next warning comes at twice as many
        self.writer_thread = ThreadPoolExecutor(1, "rota-sqlite-writer")
        self._readers = ThreadPoolExecutor(2, "rota-sqlite-reader")
        # by thread. Not a `threading.local`: a forked copy of this process empties those of the threads that it lost,
        # and closing a connection there waits for ever where one of them was inside SQLite
        self._connections: dict[int, Tx] = {}
        self._engine = sqlite_engine(self.path)
        self.turn = Turn(self.path)
        self.on_notify: Callable[[str], None] = lambda _: None  # for the listener of this process; see Wake

    async def tx(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        notified: list[str] = []
        ticket = Ticket()
        try:
            writing = self.writer_thread.submit(lambda: self._write(ticket, notified, step, *args, **kwargs))
            result: R = await self.answer(writing, ticket)
            if self.outage.since is not None:
                self.outage.back()
            return result
        except Unavailable as error:
            self.outage.lost(error, "")
            raise
        finally:  # before the caller goes on: where it also signals, both wake a loop once
            for topic in notified:
                self.on_notify(topic)

    statement = tx

    async def read(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.answer(self._readers.submit(lambda: self._read(step, *args, **kwargs)))

    async def begin(self) -> "Transaction":
        from rota.db.transactions import SqliteTransaction  # here, because it is built on this module

        transaction = SqliteTransaction(self)
        await transaction.started()
        return transaction

    def after_commit(self, action: Callable[[], None]) -> None:
        action()

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        for threads in (self.writer_thread, self._readers):
            await loop.run_in_executor(None, threads.shutdown)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._engine.dispose()
        self.turn.close()

    async def answer(self, future: "Future[R]", ticket: Ticket | None = None) -> R:
        """The result of a thread. With a ticket, raises Unavailable when another process keeps this one from writing
        for too long; the step is not carried out later."""
        # shielded: a cancelled caller must not leave the thread's answer without a reader
        result = asyncio.wrap_future(future)
        try:
            while ticket is not None:
                try:
                    async with asyncio.timeout(TURN_WAIT_SECONDS):
                        return await asyncio.shield(result)
                except TimeoutError:
                    if not result.done() and self.turn.waited() >= TURN_WAIT_SECONDS and ticket.give_up():
                        raise Unavailable(self.blocked()) from None
                    if result.done():
                        break
            return await asyncio.shield(result)
        except (StatementError, sqlite3.Error) as error:
            raise translated(error, self.path) from error
        except (UnicodeEncodeError, OverflowError) as error:  # the driver lets these through as they are
            raise DataRefused(f"a value cannot be stored: {error}") from error

    def blocked(self) -> str:
        holder, seconds = self.turn.holder(), self.turn.waited()
        return f"the database cannot be written: {holder} has held the write lock of {self.path} for {seconds:.0f} s"

    def _write(self, ticket: Ticket, notified: list[str], step: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        with self.writing(notified, ticket) as connection:
            return step(connection, *args, **kwargs)

    @contextlib.contextmanager
    def writing(self, notified: list[str], ticket: Ticket) -> Iterator[Tx]:
        """One transaction of the writer thread, committed unless the block raises; then the topics that it notified are
        in `notified`. Raises GivenUp if its caller no longer waits when it could begin."""
        if ticket.decided:
            raise GivenUp
        connection = self._connection()
        self.turn.waiting_since = stopwatch()
        with self.turn:
            try:
                begin_immediate(connection)
            finally:
                self.turn.waiting_since = None
            words = connection.info[SAYS] = set[str]()
            try:
                ticket.begin()
                yield connection
                connection.commit()
            except BaseException:
                connection.rollback()
                raise
            self.turn.say(words)
            notified.extend(words)
            self._tidy(connection)

    def _read(self, step: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        connection = self._connection()
        connection.exec_driver_sql("BEGIN")
        try:
            return step(connection, *args, **kwargs)
        finally:
            connection.rollback()

    def _connection(self) -> Tx:
        """This thread's own connection, opened on first use."""
        thread = threading.get_ident()
        if thread not in self._connections:
            self._connections[thread] = self._engine.connect()
        return self._connections[thread]

    def _tidy(self, connection: Tx) -> None:
        """SQLite moves its log into the file by itself, as a part of a commit: then no other writer of ours commits,
        which matters before 3.51.3, where a commit that races it can be lost. While readers never rest, it cannot begin
        the log anew unless we wait for them: not often, and not for long, as one may take hours."""
        if stopwatch() < self._tidied + TIDY_EVERY:
            return
        self._tidied = stopwatch()
        with contextlib.suppress(FileNotFoundError):
            if self._log.stat().st_size > LOG_LIMIT:
                for pragma in ("busy_timeout=50", "wal_checkpoint(TRUNCATE)", "busy_timeout=5000"):
                    connection.exec_driver_sql(f"PRAGMA {pragma}").close()
                connection.rollback()
            if (size := self._log.stat().st_size) > 2 * self._log_warned:  # a reader kept it from being truncated
                self._log_warned = size
                log.warning(
                    "SQLite's write-ahead log grows: a transaction that reads keeps it; end it, or the disk fills up",
                    file=str(self._log), megabytes=size >> 20,
                )  # fmt: skip
            elif size <= LOG_LIMIT:
                self._log_warned = LOG_LIMIT // 2


def sqlite_engine(path: Path) -> Engine:
    """`synchronous=FULL`: what was acknowledged survives power loss. Transactions begin where we say."""
    make_private_dir(path.parent)
    make_private_file(path)  # its log and shared memory get the same mode
    engine = create_engine(
        f"sqlite:///{path}",
        poolclass=NullPool,
        connect_args={"isolation_level": None, "check_same_thread": False, "timeout": 5, "cached_statements": 512},
    )

    @event.listens_for(engine, "connect")
    def settings(connection: Any, _: Any) -> None:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"wal_autocheckpoint={LOG_PAGES}"):
            connection.execute(f"PRAGMA {pragma}").close()

    return engine


def begin_immediate(connection: Tx) -> None:
    """Take SQLite's write lock; wait as long as it takes for a transaction that is not ours."""
    until = stopwatch() + BUSY_PATIENCE
    while True:
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            return
        except OperationalError as error:
            connection.rollback()
            if "locked" not in str(error.orig) or stopwatch() > until:
                raise


def async_url(url: str) -> str:
    return "postgresql+asyncpg://" + url.split("://", 1)[1]


def is_deadlock(error: BaseException) -> bool:
    """Deadlock or serialization failure: the same transaction may simply be tried again."""
    return getattr(orig(error), "sqlstate", None) in ("40P01", "40001")


def orig(error: BaseException) -> BaseException:
    """The driver's own error."""
    found = error.orig if isinstance(error, DBAPIError) else None
    return found or error


def noted(outage: Outage, error: BaseException) -> Exception:
    """The driver's error in our words; an outage that begins with it is logged."""
    ours = translated(error)
    if isinstance(ours, Unavailable):
        outage.lost(ours, getattr(orig(error), "sqlstate", None) or "")
    return ours


def translated(error: BaseException, file: Path | None = None) -> Exception:
    """The driver's error in our words: out of reach, or a row refused. `file`: of SQLite, for the message."""
    if isinstance(error, StatementError) and not isinstance(error, DBAPIError):
        return DataRefused(f"a value cannot be stored: {first_line(error.orig)}")
    if isinstance(error, (DBAPIError, sqlite3.Error, *FROM_THE_DRIVER)):
        driver = orig(error)
        state = getattr(driver, "sqlstate", None) or ""
        if isinstance(driver.__cause__ or driver, asyncpg.DataError | ValueError) and not state:
            return DataRefused(f"a value cannot be stored: {first_line(driver)}")
        if isinstance(driver, sqlite3.Error) and any(text in str(driver) for text in TOO_MUCH_FOR_SQLITE):
            return Invalid("request", "…", f"is too long for the database: {first_line(driver)}; shorten it")
        lost = isinstance(error, DBAPIError) and error.connection_invalidated
        gone = state[:2] in ("08", "57", "53", "55", "25") or isinstance(error, OUT_OF_REACH) or is_deadlock(error)
        locked = isinstance(error, OperationalError | sqlite3.OperationalError) and not state
        if not (lost or gone or locked or is_misconfiguration(driver)):
            return DataRefused(f"the database refused a row: {first_line(driver)}")
        return unavailable(driver, file)
    return unavailable(error, file)


@contextlib.contextmanager
def sync_transaction(path: Path) -> Iterator[Tx]:
    """One transaction on a SQLite file, for set-up work that runs outside any event loop."""
    engine = sqlite_engine(path)
    turn = Turn(path)
    try:
        with turn, engine.connect() as connection:
            begin_immediate(connection)
            yield connection
            connection.commit()
    finally:
        engine.dispose()
        turn.close()


__all__ = ["Database", "PostgresDatabase", "SqliteDatabase", "open_database", "sql"]
