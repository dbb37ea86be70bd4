"""The replica from which a server reads its reports (`ROTA_REPORTS_URL`)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rota.app.settings import Settings
from rota.db.connection import Database
from rota.db.replica import Replica
from rota.engine.instruments import REPORTS_FALLBACKS
from rota.engine.metrics import Metrics
from rota.engine.supervision import start_supervised


def open_replica(settings: Settings, db: Database, metrics: Metrics) -> Replica | None:
    """Return the replica of the settings, None without one. It is used while `followed` runs."""
    if not settings.reports_url:
        return None
    return Replica(
        db, settings.reports_url, settings.reports_max_lag_seconds, on_fallback=lambda: metrics.add(REPORTS_FALLBACKS)
    )


@asynccontextmanager
async def followed(replica: Replica | None) -> AsyncIterator[None]:
    """Measure the replica inside the block and close it at its end. Raises Invalid if its URL names something else than
    a replica of the database."""
    if replica is None:
        yield
        return
    try:
        await replica.check()
        loop = start_supervised("reports replica", replica.follow)
        try:
            yield
        finally:
            loop.cancel()
    finally:
        await replica.close()
