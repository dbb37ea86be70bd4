"""A worker's registration: its id, what it serves, and whether it is still active. Shared by the parts of a worker.

A process whose worker loses its lease registers again, under a new id.
"""

import asyncio
import os
from collections.abc import Callable, Collection

import structlog

from rota.core.errors import Unavailable
from rota.core.ids import new_id
from rota.db.dialect import Tx
from rota.db.retry import retry_until_available
from rota.engine import finishing, worker_metrics, workers
from rota.engine.commands import Engine
from rota.version import __version__

POLL_SECONDS = 30.0  # between two reads of the database without a wake-up, which may be lost

log = structlog.get_logger("rota.worker")


class Registration:
    """`queues` are names and `org_slugs` slugs of what it serves; None: all."""

    def __init__(self, engine: Engine, queues: Collection[str] | None, org_slugs: Collection[str] | None) -> None:
        self.engine, self.queues, self.org_slugs = engine, queues, org_slugs
        self.id = new_id()
        self.org_ids: Collection[str] | None = None  # of `org_slugs`, as last read
        self.routes: list[str] = []  # what it claims
        self.refresh_routes()
        self.registered = False
        self.draining = False
        self.lost = False  # its lease is lost: other workers may have its jobs
        self.finished = asyncio.Event()  # ends the loops of the worker

    def refresh_routes(self) -> None:
        """Read from the runners what this process can run now. Not done for each claim: it takes 0.06 ms."""
        self.routes = sorted({route for runner in self.engine.runners.values() for route in runner.routes()})

    @property
    def stopping(self) -> bool:
        """Whether it claims and starts nothing more."""
        return self.draining or self.lost

    @property
    def serves_all(self) -> bool:
        """Whether it serves all orgs and queues."""
        return self.queues is None and self.org_slugs is None

    async def hand_back(self, job_ids: Collection[str]) -> None:
        """Return jobs that did not start to the queue; if the database is unavailable their lease expires."""
        if job_ids:
            try:
                await self.engine.db.tx(finishing.hand_back, self.id, job_ids)
            except Unavailable as error:
                log.warning("could not hand jobs back; their lease will expire", error=error.message)

    async def hand_back_all_but(self, known_jobs: Callable[[], Collection[str]]) -> None:
        """Return every job that the database has under this registration and that did not start, except the
        known ones. Waits until the database is available."""
        await retry_until_available(lambda: self.engine.db.tx(finishing.hand_back, self.id, None, known_jobs()))

    async def store(self) -> None:
        """Register in the database: from now on this worker may hold jobs."""
        self.refresh_routes()
        settings, kinds, metrics = self.engine.settings, sorted(self.engine.runners), self.engine.metrics

        def register(tx: Tx) -> object:
            workers.register(
                tx,
                worker=self.id,
                pid=os.getpid(),
                version=__version__,
                concurrency=settings.concurrency,
                kinds=kinds,
                routes=self.routes,
                queues=self.queues,
                lease=settings.lease,
                now=self.engine.clock.now(),
            )
            self.engine.apply_version_rules(tx)
            return worker_metrics.snapshot_of(tx, metrics.source)

        metrics.begin_registration(self.id, await self.engine.db.tx(register))
        self.registered = True

    async def announce(self) -> None:
        """Claim and store the current routes, after they changed."""
        self.refresh_routes()

        def announce(tx: Tx) -> None:
            workers.set_routes(tx, self.id, self.routes)
            self.engine.apply_version_rules(tx)

        await self.engine.db.tx(announce)

    async def end(self) -> None:
        """End the registration in the database. If its lease was lost, a later registration of this process stores the
        metrics."""
        metrics = None if self.lost else self.engine.metrics.snapshot()

        def stop(tx: Tx) -> None:
            workers.stop(tx, self.id, self.engine.clock.now(), metrics)
            self.engine.apply_version_rules(tx)

        await self.engine.db.tx(stop)
