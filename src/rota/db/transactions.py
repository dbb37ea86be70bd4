"""Transactions of several steps, for requests that commit with their Idempotency-Key.

Everything else is one step and uses `Database.tx`.
"""

import contextlib
import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import structlog
from sqlalchemy.util import greenlet_spawn

from rota.core.errors import Unavailable
from rota.db.commit_actions import begin_actions, call_actions
from rota.db.connection import P, R, Step
from rota.db.dialect import Tx
from rota.db.driver_errors import DATABASE_ERRORS, is_deadlock, translated
from rota.db.postgres import STATEMENT_TIMEOUT_MS
from rota.db.sqlite import SqliteDatabase
from rota.db.sqlite_lock import PendingWrite

log = structlog.get_logger("rota.database")


class Deadlock(Unavailable):
    """The transaction lost to another; all its steps may be tried again."""


class Transaction(Protocol):
    """An open transaction. Each method raises Unavailable when the database is out of reach, or rolled it back."""

    async def run(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None:
        """Undo all steps; a no-op after a commit or a rollback."""
        ...


class PostgresTransaction:
    """A connection of the pool, until the end of its transaction."""

    def __init__(self, connection: Tx, observer: object | None) -> None:
        self._connection: Tx | None = connection
        self._observer, self._actions = observer, begin_actions(connection)

    async def run(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._try(step, *args, **kwargs)

    async def commit(self) -> None:
        await self._try(Tx.commit)
        call_actions(self._actions, self._observer)
        await self._release()

    async def rollback(self) -> None:
        await self._release()

    async def _try(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        assert self._connection is not None, "the transaction has ended"
        try:
            return await greenlet_spawn(lambda connection: step(connection, *args, **kwargs), self._connection)
        except DATABASE_ERRORS as error:
            if is_deadlock(error):
                raise Deadlock("the database ended this transaction, which waited for another; try again") from error
            raise translated(error) from error

    async def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*DATABASE_ERRORS):  # the pool drops a connection that cannot be rolled back
                await greenlet_spawn(connection.close)


class RolledBack(Exception):
    """Ends the writer's block without a commit."""


class SqliteTransaction:
    """The writer thread, until the end of its transaction: other writers of this process and of others wait."""

    def __init__(self, db: SqliteDatabase) -> None:
        self._db = db
        self._notified: list[str] = []
        self._begun: Future[None] = Future()
        self._steps: queue.SimpleQueue[Callable[[Tx], None] | bool] = queue.SimpleQueue()
        self._pending = PendingWrite()
        self._ended = db.writer_thread.submit(self._hold)

    async def started(self) -> None:
        await self._db.answer(self._begun, self._pending)

    async def run(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._ended.done():
            raise Unavailable("the transaction was rolled back: it took too long; try again")
        answer: Future[R] = Future()

        def run_step(connection: Tx) -> None:
            try:
                answer.set_result(step(connection, *args, **kwargs))
            except BaseException as error:
                answer.set_exception(error)

        self._steps.put(run_step)
        return await self._db.answer(answer)

    async def commit(self) -> None:
        self._steps.put(True)
        try:
            await self._db.answer(self._ended)
        finally:
            for topic in self._notified:
                self._db.on_notify(topic)

    async def rollback(self) -> None:
        self._steps.put(False)
        with contextlib.suppress(RolledBack, Unavailable):
            await self._db.answer(self._ended)

    def _hold(self) -> None:
        """Run steps as they come, in the writer thread. Raises RolledBack unless the last item is a commit."""
        try:
            with self._db.writing(self._notified, self._pending) as connection:
                self._begun.set_result(None)
                while not isinstance(item := self._next(), bool):
                    item(connection)
                if not item:
                    raise RolledBack
        except BaseException as error:
            if not self._begun.done():
                self._begun.set_exception(error)
            raise

    def _next(self) -> Callable[[Tx], None] | bool:
        try:
            return self._steps.get(timeout=STATEMENT_TIMEOUT_MS / 1000)
        except queue.Empty:  # its caller is gone, or waits for this thread
            log.error(
                "a transaction was rolled back: no further step came in time", seconds=STATEMENT_TIMEOUT_MS / 1000
            )
            return False
