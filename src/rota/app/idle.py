"""A worker process that ends once it has had nothing to do for a while."""

from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from rota.app.signals import Shutdown
from rota.core.clock import real_sleep, stopwatch
from rota.db.outages import outage_of
from rota.engine.instruments import CLAIMS

if TYPE_CHECKING:
    from rota.app.node import Node

CHECK_SECONDS = 1.0

log = structlog.get_logger("rota")


async def drain_when_idle(node: "Node", limit: timedelta, shutdown: Shutdown) -> None:
    """Request the drain of a node that has had no job for `limit`. The time that it cannot work (while it registers, or
    the database is away) does not count."""
    idle_since, claims = stopwatch(), -1.0
    while not shutdown.drain.is_set():
        claimed = sum(node.metrics.by_labels(CLAIMS).values())  # also jobs that began and ended since the last check
        if claimed != claims or not is_idle(node):
            idle_since, claims = stopwatch(), claimed
        elif stopwatch() - idle_since >= limit.total_seconds():
            log.info("worker had no job; stopping", idle_seconds=round(stopwatch() - idle_since))
            shutdown.drain.set()
        await real_sleep(min(CHECK_SECONDS, limit.total_seconds()))


def is_idle(node: "Node") -> bool:
    """Return whether the node's worker could run jobs and has none."""
    worker = node.worker
    if worker is None or not worker.registration.registered or worker.trouble() is not None:
        return False
    if outage_of(node.settings.database_url).since is not None:
        return False
    return not (worker.known_jobs() or worker.completer.logs or any_closing(node))


def any_closing(node: "Node") -> bool:
    """Return whether an earlier registration of the process still records results."""
    return any(not task.done() for task in node.closing)
