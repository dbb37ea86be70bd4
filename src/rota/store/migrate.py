"""Bring a database to the schema that this code expects, and say when it is not there yet."""

import asyncio
from collections.abc import Callable
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from rota.core.errors import Unavailable
from rota.store.database import async_url, sync_transaction
from rota.store.dialect import Tx, on_sqlite

LOCK = 0x_524F_5441  # one migration at a time


def migrate(url: str, step: Callable[[int], None] = lambda _: None) -> None:
    """Upgrade to the newest schema. Any number of processes may call this at once: one migrates, the others wait.
    `step` is called after each migration with 1."""
    if url.startswith("sqlite:///"):
        with sync_transaction(Path(url.removeprefix("sqlite:///")).absolute()) as tx:
            upgrade(tx, step)
    else:
        asyncio.run(migrate_postgres(url, step))


async def migrate_postgres(url: str, step: Callable[[int], None]) -> None:
    engine = create_async_engine(async_url(url))
    try:
        async with engine.begin() as connection:
            await connection.run_sync(upgrade, step)
    except OSError as error:
        raise Unavailable(f"the database is out of reach: {error}") from error
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


def check(tx: Tx) -> str | None:
    """What is wrong with the schema, if anything."""
    newest, known = revisions()
    current = MigrationContext.configure(tx).get_current_revision()
    if current == newest:
        return None
    if current is None:
        return "the database has no tables of Rota yet; run `rota migrate`"
    if current not in known:
        return f"the database was made by a newer Rota (schema {current}); upgrade this one"
    return f"the database has an old schema ({current}, this Rota needs {newest}); run `rota migrate`"


@cache
def revisions() -> tuple[str | None, frozenset[str]]:
    """The newest one that this Rota has, and all: reading their files takes longer than most pages."""
    scripts = ScriptDirectory.from_config(config_for())
    return scripts.get_current_head(), frozenset(script.revision for script in scripts.walk_revisions())


def known_migrations() -> int:
    return len(revisions()[1])


def config_for() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config
