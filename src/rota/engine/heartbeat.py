"""Heartbeat of a worker, in a thread with its own connection: user code that blocks the event loop does not lose the
lease.

Each beat renews the lease, stores the worker's metrics if they changed, measures the database's clock and reads which
runs are to be canceled.
"""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta

import structlog

from rota.core.clock import CLOCK_JUMP, SystemClock, stopwatch
from rota.core.errors import RotaError
from rota.core.incidents import DATABASE_AWAY, WORKER_DEAD
from rota.db.connection import Database, open_database
from rota.engine import workers
from rota.engine.instruments import HEARTBEAT_FAILURES
from rota.engine.metrics import Metrics, Snapshot

log = structlog.get_logger("rota.heartbeat")


class Heartbeat:
    def __init__(
        self,
        url: str,
        clock: SystemClock,
        worker: str,
        lease: timedelta,
        on_cancel: Callable[[dict[str, str]], None],
        on_lost: Callable[[], None],
        metrics: Metrics | None = None,
    ) -> None:
        self.url, self.clock, self.worker, self.lease = url, clock, worker, lease
        self.on_cancel, self.on_lost = on_cancel, on_lost
        self.metrics = metrics or Metrics()
        self._stored: Snapshot = []  # of the metrics
        self._renewed = stopwatch()
        # declare no worker dead before then: those that waited for the database during our start renew first
        self.quiet_until = self._renewed + min(2.0, lease.total_seconds() / 3)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name="rota-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; called from another thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=10)

    @property
    def may_judge(self) -> bool:
        """Whether this process may declare other workers dead: not just after a jump of the clock, and not if it could
        not reach the database itself, as then the others may not have reached it either."""
        now = stopwatch()
        return now >= self.quiet_until and now - self._renewed < self.lease.total_seconds() / 2

    def _main(self) -> None:
        try:
            asyncio.run(self._keep())
        except Exception:
            log.exception("heartbeat failed; stopping all jobs of this worker")
            self.on_lost()

    async def _keep(self) -> None:
        self._loop = asyncio.get_running_loop()
        db = open_database(self.url, pool=1)
        seconds = self.lease.total_seconds()
        try:
            while not self._stop.is_set():
                if not await self._beat(db):
                    self.on_lost()
                    return
                overdue = stopwatch() - self._renewed
                if db.survives_partition and overdue > seconds - min(5.0, seconds / 4):
                    log.error(
                        "the lease could not be renewed in time; stopping all work of this worker", page=DATABASE_AWAY
                    )
                    self.on_lost()
                    return
                await self.clock.wait(self._stop, seconds / 3 if overdue < seconds / 3 else min(0.5, seconds / 10))
        finally:
            await db.close()

    async def _beat(self, db: Database) -> bool:
        """Renew once; False when this worker was declared dead."""
        seconds, snapshot = self.lease.total_seconds(), self.metrics.snapshot()
        try:
            async with asyncio.timeout(seconds / 2 if db.survives_partition else None):
                changed = None if snapshot == self._stored else snapshot
                sample, holds, cancels = await db.tx(workers.beat, self.worker, self.lease, changed)
        except (RotaError, TimeoutError) as error:
            self.metrics.add(HEARTBEAT_FAILURES)
            log.debug("the lease was not renewed; trying again", error=str(error))
            return True
        if not holds:
            log.error("this worker was declared dead; its work goes to others", page=WORKER_DEAD)
            return False
        self._stored = snapshot
        if sample.received - self._renewed > seconds / 2:
            self.quiet_until = sample.received + seconds
        self._renewed = sample.sent  # the lease began no earlier than when the request was sent
        off = self.clock.sync(sample)
        if abs(off) > CLOCK_JUMP:
            log.warning("the clock jumped; no lease is judged for a while", by=off.total_seconds())
            self.quiet_until = sample.received + seconds
        if cancels:
            self.on_cancel(cancels)
        return True
