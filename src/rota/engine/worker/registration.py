"""A worker's registration: its id, what it serves, and whether it is still active. Shared by the parts of a worker.

A process whose worker loses its lease registers again, under a new id.
"""

import asyncio
import os
from collections.abc import Callable, Collection

import structlog

from rota.core.errors import Unavailable
from rota.core.ids import new_id
from rota.db.retry import retry_until_available
from rota.engine import finishing, workers
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
        self.registered = False
        self.draining = False
        self.lost = False  # its lease is lost: other workers may have its jobs
        self.finished = asyncio.Event()  # ends the loops of the worker

    @property
    def routes(self) -> list[str]:
        """What this process can run."""
        return sorted({route for runner in self.engine.runners.values() for route in runner.routes()})

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
        settings, kinds, routes = self.engine.settings, sorted(self.engine.runners), self.routes
        await self.engine.db.tx(
            lambda tx: workers.register(
                tx,
                worker=self.id,
                pid=os.getpid(),
                version=__version__,
                concurrency=settings.concurrency,
                kinds=kinds,
                routes=routes,
                queues=self.queues,
                lease=settings.lease,
                now=self.engine.clock.now(),
            )
        )
        self.registered = True

    async def announce(self) -> None:
        """Store the routes again, after they changed."""
        await self.engine.db.tx(workers.set_routes, self.id, self.routes)

    async def end(self) -> None:
        """End the registration in the database."""
        await self.engine.db.tx(workers.stop, self.id, self.engine.clock.now())
