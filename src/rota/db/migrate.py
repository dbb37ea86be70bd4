"""Bring a database to the schema that this code expects."""

import io
import sqlite3
from collections.abc import Callable
from functools import cache

import structlog
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, inspect, text

from rota.core.clock import blocking_sleep, stopwatch
from rota.core.errors import DatabaseMisconfigured, NotFound, Unavailable
from rota.db.blocking import check_interrupt, reading, run_blocking, writing
from rota.db.dialect import Tx, on_sqlite
from rota.db.driver_errors import is_deadlock, is_lock_timeout
from rota.db.online import LIVE, limit_lock_waits
from rota.db.schema import MIGRATIONS, VERSION_TABLE, check, revision_of, revisions

LOCK_RETRY_SECONDS = 1.0  # workers continue between two attempts to lock a table
LOCK_WAIT_SECONDS = 600.0
SCHEMA_POLL_SECONDS = 0.1
LOCK = 0x_524F_5441  # one migration at a time
COUNTERS_TABLE = "counters"  # numbers, not rows: on PostgreSQL the sequence is in use instead
SCRIPT_VERBS = ("CREATE", "ALTER", "DROP", "INSERT", "UPDATE", "DELETE")


log = structlog.get_logger("rota.migrate")


def migrate(url: str, step: Callable[[int], None] = lambda _: None) -> None:
    """Upgrade to the newest schema. Any number of processes may call this at once: one migrates, the others wait.
    `step` is called after each migration with 1. On PostgreSQL each migration is committed by itself; one that met a
    deadlock, or a table that another transaction uses, is tried again. Raises Unavailable after LOCK_WAIT_SECONDS."""
    deadline = stopwatch() + LOCK_WAIT_SECONDS
    while True:
        try:
            return run_blocking(migrate_blocking, url, step)
        except Unavailable as error:
            cause = error.__cause__
            if cause is None or not (is_deadlock(cause) or is_lock_timeout(cause)):
                raise
            if stopwatch() > deadline:
                raise Unavailable(
                    f"the database was not migrated: for {LOCK_WAIT_SECONDS:g} s other transactions have used a table "
                    "that a migration changes. End them (see pg_stat_activity; a backup is one), and repeat"
                ) from error
            log.warning("a migration waits for a table that another transaction uses; trying again")
        blocking_sleep(LOCK_RETRY_SECONDS)


def migrate_blocking(url: str, step: Callable[[int], None]) -> None:
    with writing(url) as tx:
        if not on_sqlite(tx):
            hold_schema(tx)
            limit_lock_waits(tx)
        mismatch = check(tx)
        if mismatch is None:
            return  # it is current, or a newer Rota has migrated it in a way that this one can work with
        if revision_of(tx) not in (None, *revisions()):
            raise DatabaseMisconfigured(mismatch)
        upgrade(tx, "head", step, live=not on_sqlite(tx))


def hold_schema(tx: Tx) -> None:
    """Wait until no other process migrates or fills this PostgreSQL database, and let none begin before the connection
    is closed. Polls: an index that is built concurrently would wait for a statement that waits here."""
    while not tx.execute(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": LOCK}).scalar_one():
        tx.commit()
        check_interrupt()
        blocking_sleep(SCHEMA_POLL_SECONDS)


def lock_schema(tx: Tx) -> None:
    """Wait until no other process migrates or fills this database, and let none begin before the transaction ends."""
    if not on_sqlite(tx):
        tx.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})


def upgrade(tx: Tx, revision: str, step: Callable[[int], None] = lambda _: None, live: bool = False) -> None:
    """Run migrations. With `live` workers of the PostgreSQL database continue, and each migration is committed."""

    def applied(**_: object) -> None:
        if live:
            tx.commit()
        step(1)

    config = config_for(tx)
    config.attributes |= {"step": applied, LIVE: live}
    command.upgrade(config, revision)


def rebuild(tx: Tx, revision: str) -> None:
    """Drop all tables of Rota, if there are any, and create those of a revision."""
    if revision_of(tx) is not None:
        command.downgrade(config_for(tx), "base")
    upgrade(tx, revision)


@cache
def tables_at(revision: str) -> frozenset[str]:
    """Return the names of the tables that a revision has, of those that hold rows of an installation."""
    with create_engine("sqlite://").connect() as memory:
        upgrade(memory, revision)
        return frozenset(inspect(memory).get_table_names()) - {VERSION_TABLE, COUNTERS_TABLE}


def sql_to_head(url: str) -> str:
    """Return the SQL that `migrate` would run on this database, as a script. A SQLite file that does not exist is
    an empty database."""
    return run_blocking(sql_to_head_blocking, url)


def sql_to_head_blocking(url: str) -> str:
    try:
        with reading(url) as tx:
            current, mismatch = revision_of(tx), check(tx)
    except NotFound:
        current, mismatch = None, "empty"
    if mismatch is None:
        return ""
    if current not in (None, *revisions()):
        raise Unavailable(mismatch)
    if url.startswith("sqlite"):
        return sqlite_script(current)
    script = io.StringIO()
    config = config_for(None)
    config.attributes["output"] = script
    command.upgrade(config, f"{current or 'base'}:head", sql=True)
    return script.getvalue()


def sqlite_script(current: str | None) -> str:
    """Return the statements that the migrations run on an empty file of this revision. Alembic cannot write them
    without a database, because SQLite's ALTER TABLE is a copy of the table as it is."""
    statements: list[str] = []
    with create_engine("sqlite://").connect() as memory:
        if current is not None:
            upgrade(memory, current)
        driver = memory.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.set_trace_callback(statements.append)  # with the values of their parameters
        upgrade(memory, "head")
    changes = [text.strip() for text in statements if text.lstrip().upper().startswith(SCRIPT_VERBS)]
    return "".join(f"{text};\n\n" for text in ["BEGIN IMMEDIATE", *changes, "COMMIT"])


def config_for(tx: Tx | None) -> Config:
    """Return Alembic's configuration on a connection; without one its commands only print."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = tx
    return config
