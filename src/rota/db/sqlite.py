"""SQLite: one writer thread per process, in turn with the writers of other processes; readers beside it."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import OperationalError, StatementError
from sqlalchemy.pool import NullPool

from rota.core.clock import stopwatch
from rota.core.errors import DataRefused, Unavailable
from rota.db.commit_actions import begin_actions, call_actions
from rota.db.connection import P, R, Step
from rota.db.dialect import NOTIFIED_TOPICS, Tx
from rota.db.driver_errors import translated
from rota.db.outages import outage_of
from rota.db.private_files import make_private_dir, make_private_file
from rota.db.sqlite_lock import PendingWrite, WriteAbandoned, WriteLock
from rota.db.statement import BoundStatement

if TYPE_CHECKING:
    from rota.db.transactions import Transaction

BUSY_TIMEOUT_SECONDS = 120.0  # for a writer that is not Rota
WRITE_WAIT_SECONDS = 20.0  # that a caller waits for its write to begin while another process writes
WAL_PAGES = 2000  # after which SQLite checkpoints: a log that grows takes longer to reach the disk
WAL_BYTES_LIMIT = 64 * 1024 * 1024  # of a log that readers keep from being restarted
CHECKPOINT_SECONDS = 1.0

log = structlog.get_logger("rota.database")


class SqliteDatabase:
    """Runs writing steps in the one writer thread of this process, in turn with the writers of other processes. Reads
    have threads of their own and never wait for a writer."""

    survives_partition = False  # a process that cannot write keeps the others from writing, too
    writers = 1

    def __init__(self, url: str) -> None:
        self.url = url
        self.path = Path(url.removeprefix("sqlite:///")).absolute()
        self.outage = outage_of(url)
        self.observer: object | None = None
        self._wal = Path(f"{self.path}-wal")  # the write-ahead log
        self._checked_at = stopwatch()
        self._wal_warned = WAL_BYTES_LIMIT // 2  # bytes; the next warning is logged at twice as many
        self.writer_thread = ThreadPoolExecutor(1, "rota-sqlite-writer")
        self._readers = ThreadPoolExecutor(2, "rota-sqlite-reader")
        # by thread. Not a `threading.local`: a forked copy of this process empties those of the threads that it lost,
        # and closing a connection there blocks for ever if a thread was inside SQLite when it forked
        self._connections: dict[int, Tx] = {}
        self._engine = sqlite_engine(self.path)
        self.write_lock = WriteLock(self.path)
        self.on_notify: Callable[[str], None] = lambda _: None  # for the listener of this process; see Wake

    async def tx(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        notified: list[str] = []
        pending = PendingWrite()
        try:
            writing = self.writer_thread.submit(lambda: self._write(pending, notified, step, *args, **kwargs))
            result: R = await self.answer(writing, pending)
            if self.outage.since is not None:
                self.outage.back()
            return result
        except Unavailable as error:
            self.outage.lost(error, "")
            raise
        finally:  # before the caller continues: if it also signals, a loop wakes once for both
            for topic in notified:
                self.on_notify(topic)

    async def statement(self, bound: BoundStatement[R]) -> R:
        return await self.tx(bound)

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
        self.write_lock.close()

    async def answer(self, future: "Future[R]", pending: PendingWrite | None = None) -> R:
        """The result of a thread. With a pending, raises Unavailable when another process keeps this one from writing
        for too long; the step is not carried out later."""
        # shielded: a canceled caller must not leave the thread's answer without a reader
        result = asyncio.wrap_future(future)
        try:
            while pending is not None:
                try:
                    async with asyncio.timeout(WRITE_WAIT_SECONDS):
                        return await asyncio.shield(result)
                except TimeoutError:
                    if not result.done() and self.write_lock.waited() >= WRITE_WAIT_SECONDS and pending.abandon():
                        result.add_done_callback(lambda future: future.cancelled() or future.exception())  # retrieved
                        raise Unavailable(self.blocked()) from None
                    if result.done():
                        break
            return await asyncio.shield(result)
        except (StatementError, sqlite3.Error) as error:
            raise translated(error, self.path) from error
        except (UnicodeEncodeError, OverflowError) as error:  # the driver lets these through as they are
            raise DataRefused(f"a value cannot be stored: {error}") from error

    def blocked(self) -> str:
        holder, seconds = self.write_lock.holder(), self.write_lock.waited()
        return f"the database cannot be written: {holder} has held the write lock of {self.path} for {seconds:.0f} s"

    def _write(
        self, pending: PendingWrite, notified: list[str], step: Step[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        with self.writing(notified, pending) as connection:
            return step(connection, *args, **kwargs)

    @contextlib.contextmanager
    def writing(self, notified: list[str], pending: PendingWrite) -> Iterator[Tx]:
        """One transaction of the writer thread, committed unless the block raises; then the topics that it notified are
        in `notified`. Raises WriteAbandoned if its caller no longer waits when it could begin."""
        if pending.decided:
            raise WriteAbandoned
        connection = self._connection()
        self.write_lock.waiting_since = stopwatch()
        with self.write_lock:
            try:
                begin_immediate(connection)
            finally:
                self.write_lock.waiting_since = None
            topics = connection.info[NOTIFIED_TOPICS] = set[str]()
            actions = begin_actions(connection)
            try:
                pending.begin()
                yield connection
                connection.commit()
            except BaseException:
                connection.rollback()
                raise
            call_actions(actions, self.observer)
            self.write_lock.counters.add(topics)
            notified.extend(topics)
            self._checkpoint(connection)

    def _read(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
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

    def _checkpoint(self, connection: Tx) -> None:
        """Truncate the write-ahead log when it is too large. SQLite checkpoints by itself as part of a commit, which
        is safe here because no other writer of ours commits at that time (before SQLite 3.51.3 a commit that races a
        checkpoint can be lost). Constant readers keep it from restarting the log, so this waits for them, at most once
        a second and for 50 ms, because a reader may take hours."""
        if stopwatch() < self._checked_at + CHECKPOINT_SECONDS:
            return
        self._checked_at = stopwatch()
        with contextlib.suppress(FileNotFoundError):
            if self._wal.stat().st_size > WAL_BYTES_LIMIT:
                for pragma in ("busy_timeout=50", "wal_checkpoint(TRUNCATE)", "busy_timeout=5000"):
                    connection.exec_driver_sql(f"PRAGMA {pragma}").close()
                connection.rollback()
            if (size := self._wal.stat().st_size) > 2 * self._wal_warned:  # a reader prevented truncation
                self._wal_warned = size
                log.warning(
                    "SQLite's write-ahead log grows: a transaction that reads keeps it; end it, or the disk fills up",
                    file=str(self._wal), megabytes=size >> 20,
                )  # fmt: skip
            elif size <= WAL_BYTES_LIMIT:
                self._wal_warned = WAL_BYTES_LIMIT // 2


def sqlite_engine(path: Path) -> Engine:
    """An engine without a pool. `synchronous=FULL`: commits survive power loss. The driver issues no BEGIN."""
    make_private_dir(path.parent)
    make_private_file(path)  # its -wal and -shm files get the same mode
    engine = create_engine(
        f"sqlite:///{path}",
        poolclass=NullPool,
        connect_args={"isolation_level": None, "check_same_thread": False, "timeout": 5, "cached_statements": 512},
    )

    @event.listens_for(engine, "connect")
    def settings(connection: Any, _: Any) -> None:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"wal_autocheckpoint={WAL_PAGES}"):
            connection.execute(f"PRAGMA {pragma}").close()

    return engine


def begin_immediate(connection: Tx) -> None:
    """Acquire SQLite's write lock; waits up to BUSY_TIMEOUT_SECONDS for a writer that is not Rota."""
    until = stopwatch() + BUSY_TIMEOUT_SECONDS
    while True:
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            return
        except OperationalError as error:
            connection.rollback()
            if "locked" not in str(error.orig) or stopwatch() > until:
                raise


@contextlib.contextmanager
def sync_transaction(path: Path) -> Iterator[Tx]:
    """One transaction on a SQLite file, for set-up work that runs outside any event loop."""
    engine = sqlite_engine(path)
    lock = WriteLock(path)
    try:
        with lock, engine.connect() as connection:
            begin_immediate(connection)
            yield connection
            connection.commit()
    finally:
        engine.dispose()
        lock.close()
