"""PostgreSQL: a pool of asyncpg connections. Single statements run in autocommit, which saves two round trips."""

import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from sqlalchemy import Engine, create_engine
from sqlalchemy.util import greenlet_spawn

from rota.core.clock import real_sleep
from rota.db.connection import P, R, Step
from rota.db.dialect import Tx
from rota.db.driver_errors import DATABASE_ERRORS, is_deadlock, translated_outage
from rota.db.outages import outage_of

if TYPE_CHECKING:
    from rota.db.transactions import Transaction

DEADLOCK_ATTEMPTS = 6
STATEMENT_TIMEOUT_MS = 30_000
# A connection keeps its plans. A plan made while the queue was short would scan the whole table when it is long, so
# every row is looked up by an index.
PLANNER_SETTINGS = {"enable_seqscan": "off", "enable_mergejoin": "off", "jit": "off"}
SERVER_SETTINGS = {
    "application_name": "rota",
    "statement_timeout": str(STATEMENT_TIMEOUT_MS),
    "idle_in_transaction_session_timeout": str(STATEMENT_TIMEOUT_MS),
    **PLANNER_SETTINGS,
}
CONNECT_ARGUMENTS: dict[str, object] = {
    "timeout": 5,
    "command_timeout": STATEMENT_TIMEOUT_MS / 1000 + 5,
    "server_settings": SERVER_SETTINGS,
}


class PostgresDatabase:
    """Runs steps through asyncpg, on the caller's event loop."""

    survives_partition = True

    def __init__(self, url: str, pool: int) -> None:
        self.url, self.writers, self.outage = url, pool, outage_of(url)
        self._engine = pooled_engine(url, pool, CONNECT_ARGUMENTS)
        self._autocommit = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        # Hot statements alone, on connections that plan each of them once: planning a claim takes longer than running
        # it. Other statements are planned for their parameters, for example to use a partial index.
        hot_settings = {**SERVER_SETTINGS, "plan_cache_mode": "force_generic_plan"}
        hot = pooled_engine(url, pool, {**CONNECT_ARGUMENTS, "server_settings": hot_settings})
        self._hot = hot.execution_options(isolation_level="AUTOCOMMIT")

    async def tx(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(self._engine.begin, step, *args, **kwargs)

    async def statement(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(self._hot.connect, step, *args, **kwargs)

    async def read(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(self._autocommit.connect, step, *args, **kwargs)

    async def begin(self) -> "Transaction":
        from rota.db.transactions import PostgresTransaction  # here, because it is built on this module

        return PostgresTransaction(await self._retry_deadlocks(greenlet_spawn, self._engine.connect))

    def after_commit(self, action: Callable[[], None]) -> None:
        action()

    async def _run(
        self, begin: Callable[[], AbstractContextManager[Tx]], step: Step[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        def run_step() -> R:
            with begin() as connection:
                return step(connection, *args, **kwargs)

        return await self._retry_deadlocks(greenlet_spawn, run_step)

    async def _retry_deadlocks(self, go: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a transaction; repeat it when it lost to a deadlock. Raises Unavailable or DataRefused."""
        for attempt in range(1, DEADLOCK_ATTEMPTS + 1):
            try:
                result = await go(*args, **kwargs)
            except DATABASE_ERRORS as error:
                if not is_deadlock(error) or attempt == DEADLOCK_ATTEMPTS:
                    raise translated_outage(self.outage, error) from error
            else:
                if self.outage.since is not None:
                    self.outage.back()
                return result
            await real_sleep(random.uniform(0, 0.02 * 2**attempt))
        raise AssertionError("unreachable")

    async def close(self) -> None:
        await greenlet_spawn(self._engine.dispose)
        await greenlet_spawn(self._hot.dispose)


def pooled_engine(url: str, pool: int, connect_arguments: dict[str, object]) -> Engine:
    """Return an engine with up to twice `pool` connections. It is no AsyncEngine: a step runs as a whole in a greenlet,
    and importing that class slows the start."""
    return create_engine(
        async_url(url),
        pool_size=pool,
        max_overflow=pool,
        pool_timeout=STATEMENT_TIMEOUT_MS / 1000,  # a burst of requests waits for a connection
        pool_use_lifo=True,  # the connection used last has its statements prepared
        connect_args=connect_arguments,
    )


def async_url(url: str) -> str:
    """The URL with asyncpg as its driver."""
    return "postgresql+asyncpg://" + url.split("://", 1)[1]
