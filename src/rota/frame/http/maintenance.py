"""Maintenance of what requests leave behind."""

from datetime import datetime

from rota.engine.commands import Engine
from rota.engine.extensions import prune_in_chunks
from rota.frame.http import store


async def prune_idempotency_keys(engine: Engine, now: datetime) -> None:
    """Delete keys that are older than they are kept, and those beyond the number that an org may have."""
    await prune_in_chunks(engine.db, store.prune, now - store.KEY_RETENTION)
    await prune_in_chunks(engine.db, store.prune_excess)
