"""PostgreSQL: SQLAlchemy's pool for transactions and reads, plain asyncpg connections for single hot statements."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import asyncpg
from sqlalchemy import create_engine
from sqlalchemy.util import greenlet_spawn

from rota.core.clock import real_sleep
from rota.core.errors import DataRefused
from rota.db.commit_actions import begin_actions, call_actions
from rota.db.connection import P, R, Step
from rota.db.driver_errors import DATABASE_ERRORS, is_deadlock, translated_outage
from rota.db.outages import outage_of
from rota.db.statement import BoundStatement

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
# Sessions of single statements plan each of them once: planning a claim takes longer than running it. What they read in
# order is in the order of an index; with other statistics, sorting all of it may look as cheap. Other sessions plan for
# the parameters, for example to use a partial index.
SINGLE_STATEMENT_SETTINGS = {
    **SERVER_SETTINGS,
    "plan_cache_mode": "force_generic_plan",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
}
TIMEOUTS = {"timeout": 5, "command_timeout": STATEMENT_TIMEOUT_MS / 1000 + 5}


class PostgresDatabase:
    """Runs steps through asyncpg, on the caller's event loop."""

    survives_partition = True

    def __init__(self, url: str, pool: int) -> None:
        self.url, self.writers, self.outage = url, pool, outage_of(url)
        self.observer: object | None = None
        # no AsyncEngine: a step runs as a whole in a greenlet, and importing that class slows the start
        self._engine = create_engine(
            async_url(url),
            pool_size=pool,
            max_overflow=pool,
            pool_timeout=STATEMENT_TIMEOUT_MS / 1000,  # a burst of requests waits for a connection
            pool_use_lifo=True,  # the connection used last has its statements prepared
            connect_args={**TIMEOUTS, "server_settings": SERVER_SETTINGS},
        )
        self._autocommit = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._idle: list[asyncpg.Connection] = []  # for single statements, the one used last at the end
        self._places = asyncio.Semaphore(pool)  # limits the connections for single statements

    async def tx(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        def run_step() -> R:
            with self._engine.begin() as connection:
                actions = begin_actions(connection)
                result = step(connection, *args, **kwargs)
            call_actions(actions, self.observer)
            return result

        return await self._retry_deadlocks(greenlet_spawn, run_step)

    async def statement(self, bound: BoundStatement[R]) -> R:
        async with self._places:
            return await self._retry_deadlocks(self._run_single, bound)

    async def read(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        def run_step() -> R:
            with self._autocommit.connect() as connection:
                return step(connection, *args, **kwargs)

        return await self._retry_deadlocks(greenlet_spawn, run_step)

    async def begin(self) -> "Transaction":
        from rota.db.transactions import PostgresTransaction  # here, because it is built on this module

        connection = await self._retry_deadlocks(greenlet_spawn, self._engine.connect)
        return PostgresTransaction(connection, self.observer)

    def after_commit(self, action: Callable[[], None]) -> None:
        action()

    async def _run_single(self, bound: BoundStatement[R]) -> R:
        self._idle = [driver for driver in self._idle if not driver.is_closed()]
        driver = self._idle.pop() if self._idle else await self._connect()
        try:
            return await bound.fetch(driver, self._engine.dialect)
        except BaseException as error:
            if not isinstance(error, asyncpg.PostgresError | DataRefused):
                driver.terminate()  # its protocol state is unknown
            raise
        finally:
            if not driver.is_closed():
                self._idle.append(driver)

    async def _connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(self.url, **TIMEOUTS, server_settings=SINGLE_STATEMENT_SETTINGS)

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
        for driver in self._idle:
            await driver.close(timeout=1)
        self._idle.clear()
        await greenlet_spawn(self._engine.dispose)


def async_url(url: str) -> str:
    """The URL with asyncpg as its driver."""
    return "postgresql+asyncpg://" + url.split("://", 1)[1]
