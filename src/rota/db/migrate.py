"""Bring a database to the schema that this code expects."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from rota.core.errors import Unavailable
from rota.db.dialect import Tx, on_sqlite
from rota.db.driver_errors import DATABASE_ERRORS, translated
from rota.db.postgres import async_url
from rota.db.schema import MIGRATIONS, check
from rota.db.sqlite import sync_transaction

LOCK = 0x_524F_5441  # one migration at a time


def migrate(url: str, step: Callable[[int], None] = lambda _: None) -> None:
    """Upgrade to the newest schema. Any number of processes may call this at once: one migrates, the others wait.
    `step` is called after each migration with 1."""
    file = Path(url.removeprefix("sqlite:///")).absolute() if url.startswith("sqlite:///") else None
    try:
        if file is not None:
            with sync_transaction(file) as tx:
                upgrade(tx, step)
        else:
            asyncio.run(migrate_postgres(url, step))
    except (*DATABASE_ERRORS, sqlite3.Error) as error:
        if isinstance(unusable := translated(error, file), Unavailable):
            raise unusable from error
        raise


async def migrate_postgres(url: str, step: Callable[[int], None]) -> None:
    engine = create_async_engine(async_url(url))
    try:
        async with engine.begin() as connection:
            await connection.run_sync(upgrade, step)
    finally:
        await engine.dispose()


def upgrade(tx: Tx, step: Callable[[int], None]) -> None:
    if not on_sqlite(tx):
        tx.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    stale = check(tx)
    if stale is not None and "newer" in stale:
        raise Unavailable(stale)
    config = config_for()
    config.attributes["connection"] = tx
    config.attributes["step"] = lambda **_: step(1)
    command.upgrade(config, "head")


def config_for() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config
