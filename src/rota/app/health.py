"""Readiness: whether slots can fire, jobs can run and results can be stored. Problems have codes for programs:

database_unreachable    the database does not answer
database_not_writable   it answers, but a write failed or waits (full disk, read-only, frozen writer)
schema_mismatch         its schema is not the one that this version needs
no_worker               no worker of the installation is alive: nothing fires and nothing runs
scheduler_stalled       the scheduler of this process does not poll for due schedules
worker_stalled          the worker of this process does not claim, or cannot store results
starting, stopping      this process is starting or stopping
"""

import asyncio
from collections.abc import Callable, Mapping

from rota.core.clock import Clock, stopwatch
from rota.core.errors import RotaError
from rota.core.incidents import PAGES_OF_PROBLEMS, with_page
from rota.db import schema
from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.engine import workers
from rota.reports import diagnostics

READ_TIMEOUT_SECONDS = 3.0
WRITE_TIMEOUT_SECONDS = 2.0
PROBE_INTERVAL_SECONDS = 10.0

Problems = Mapping[str, str]  # code: sentence
NO_WORKER = "no worker is alive: nothing fires and nothing runs; start one with `rota worker`"


class Readiness:
    """Checks one installation from one process. `loops` returns the problems of the process itself, if it has a
    scheduler and worker."""

    def __init__(self, db: Database, clock: Clock, loops: Callable[[], Problems] | None = None) -> None:
        self.db, self.clock, self.loops = db, clock, loops
        self.probe = WriteProbe(db)
        self.stopping = False

    async def problems(self) -> Problems:
        """Return all problems by code, each in a sentence that names its page; empty if the installation is ready."""
        own = {"stopping": "this process is stopping"} if self.stopping else self.loops() if self.loops else {}
        problems = {**own, **await self.of_database(starting="starting" in own)}
        return {code: with_page(sentence, PAGES_OF_PROBLEMS.get(code)) for code, sentence in problems.items()}

    async def of_database(self, starting: bool) -> Problems:
        try:
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                mismatch, alive = await self.db.read(self.read_state)
        except RotaError as error:
            return {"database_unreachable": error.message}
        except TimeoutError:
            return {"database_unreachable": f"the database did not answer within {READ_TIMEOUT_SECONDS:g} s"}
        if mismatch is not None:
            return {"schema_mismatch": mismatch}
        problems = {} if alive or starting else {"no_worker": NO_WORKER}
        refused = await self.probe.problem()
        return problems if refused is None else {**problems, "database_not_writable": refused}

    def read_state(self, tx: Tx) -> tuple[str | None, bool]:
        """Return the schema's mismatch, if any, and whether a worker is alive."""
        mismatch = schema.check(tx)
        return mismatch, mismatch is None and workers.any_alive(tx, self.clock.now())


class WriteProbe:
    """Writes one row, on demand and at most every 10 s: reads succeed even on a full disk or a read-only database."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._running: asyncio.Task[None] | None = None
        self._started = float("-inf")
        self._problem: str | None = None

    async def problem(self) -> str | None:
        """Return why the last probe could not write to the database; None if it could."""
        if self._running is None and stopwatch() - self._started >= PROBE_INTERVAL_SECONDS:
            self._started = stopwatch()
            self._running = asyncio.create_task(self._write())
        if self._running is not None:
            done, _ = await asyncio.wait([self._running], timeout=WRITE_TIMEOUT_SECONDS)
            if not done:
                return f"a write has been waiting for {stopwatch() - self._started:.0f} s"
        return self._problem

    async def _write(self) -> None:
        try:
            await self.db.tx(diagnostics.write_probe)
            self._problem = None
        except RotaError as error:
            self._problem = error.message
        finally:
            self._running = None
