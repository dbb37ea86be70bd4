"""First key of an installation, which alone can create orgs: `rota admin reset-key` replaces a lost one."""

import asyncio
from pathlib import Path

from rota.access.store import accounts
from rota.app.data_dir import write_secret
from rota.app.settings import Settings
from rota.core.clock import system_time
from rota.core.errors import Unavailable
from rota.db import schema
from rota.db.connection import open_database


def reset(settings: Settings) -> Path:
    """Revoke all instance admin keys and write a new one to `admin.key` of the data directory; returns its path."""
    return asyncio.run(replace_key(settings))


async def replace_key(settings: Settings) -> Path:
    db = open_database(settings.database_url, pool=1)
    try:
        outdated = await db.read(schema.check)
        if outdated is not None:
            raise Unavailable(outdated)
        text = await db.tx(accounts.reset_first_key, system_time())
    finally:
        await db.close()
    path = settings.data_dir / "admin.key"
    write_secret(path, f"{text}\n")
    return path
