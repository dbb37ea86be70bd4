"""Which database a connection reaches: a caller's connection must reach the one that this program's workers use.

On PostgreSQL: the cluster, the database in it, and the table `jobs` that the search path finds. An id in a table would
be copied with a dump; these are not. On SQLite: the file.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from sqlalchemy.exc import DBAPIError

from rota.core.errors import Refused, RotaError, Unavailable
from rota.db.blocking import reading, run_blocking, sqlite_path
from rota.db.callers_connection import file_of
from rota.db.dialect import Tx, database_now, on_sqlite, run_postgresql_text
from rota.db.driver_errors import driver_error
from rota.db.schema import VERSION_TABLE, check_revision

R = TypeVar("R")

INSUFFICIENT_PRIVILEGE = "42501"
SYSTEM_IDENTIFIER = "(SELECT system_identifier FROM pg_control_system())"
IDENTITY = f"""
    SELECT {{server}} AS server, pg_database.oid::bigint AS database, pg_database.datname AS name,
           to_regclass('jobs')::oid::bigint AS jobs, to_regclass('{VERSION_TABLE}') IS NOT NULL AS migrated,
           (SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE pg_class.oid = to_regclass('jobs')) AS schema, clock_timestamp() AS now
    FROM pg_database WHERE datname = current_database()"""
NOT_MIGRATED = "the database of this connection has no tables of Rota; run `rota migrate`, or pass another connection"


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """A PostgreSQL database as a connection sees it. `server` is None where the role may not read it."""

    server: int | None
    database: int
    name: str
    jobs: int | None
    schema: str | None
    migrated: bool
    now: datetime

    def difference(self, other: "DatabaseIdentity") -> str | None:
        """Return how the database of a connection, `other`, differs from this one, which the settings name."""
        if (self.server, self.database) != (other.server, other.database):
            same_name = " of another server" if self.name == other.name else ""
            return (
                f"goes to database {other.name!r}{same_name}, but the settings name {self.name!r} (ROTA_DATABASE_URL)"
            )
        if self.jobs != other.jobs:
            seen = "no schema" if other.schema is None else f"schema {other.schema!r}"
            return f"finds the tables of Rota in {seen}, but they are in {self.schema!r}: set its search_path"
        return None


Identity = Path | DatabaseIdentity


def identity_of(url: str) -> Identity:
    """Return the identity of the database that a URL names, by a connection of its own. Raises Unavailable if it is out
    of reach or not migrated."""
    path = sqlite_path(url)
    if path is not None:
        return path
    return in_thread(lambda: run_blocking(read_own, url))


def read_own(url: str) -> DatabaseIdentity:
    try:
        with reading(url) as tx:
            identity = read(tx)
    except RotaError as error:
        if not is_denied(error.__cause__):
            raise
        with reading(url) as tx:
            identity = read(tx, server=False)
    if not identity.migrated or identity.jobs is None:
        raise Unavailable("the database that the settings name has no tables of Rota yet; run `rota migrate`")
    return identity


def check_callers(tx: Tx, expected: Identity) -> datetime:
    """Return the time of the caller's database. Raises Refused if that is not the expected one, Unavailable if its
    schema is not the one that this Rota needs."""
    now = check_file(tx, expected) if on_sqlite(tx) else check_database(tx, expected)
    current: str | None = tx.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar()
    if (mismatch := check_revision(current)) is not None:
        raise Unavailable(mismatch)
    return now


def check_file(tx: Tx, expected: Identity) -> datetime:
    file = file_of(tx)
    if not isinstance(expected, Path):
        raise Refused(f"the connection goes to SQLite, but the settings name database {expected.name!r} of PostgreSQL")
    if file is None or not expected.exists() or not file.samefile(expected):
        seen = file or "a database in memory"
        raise Refused(f"the connection goes to {seen}, but the settings name {expected} (ROTA_DATABASE_URL)")
    if tx.exec_driver_sql(f"SELECT 1 FROM sqlite_master WHERE name = '{VERSION_TABLE}'").scalar() is None:
        raise Unavailable(NOT_MIGRATED)
    return database_now(tx)


def check_database(tx: Tx, expected: Identity) -> datetime:
    if isinstance(expected, Path):
        raise Refused(f"the connection goes to PostgreSQL, but the settings name {expected}: set ROTA_DATABASE_URL")
    seen = read(tx, server=expected.server is not None)
    difference = expected.difference(seen)
    if difference is not None:
        raise Refused(f"the connection {difference}")
    return seen.now


def read(tx: Tx, server: bool = True) -> DatabaseIdentity:
    text = IDENTITY.format(server=SYSTEM_IDENTIFIER if server else "NULL::bigint")
    row = run_postgresql_text(tx, text).one()
    return DatabaseIdentity(
        row.server, row.database, row.name, row.jobs, row.schema, row.migrated, row.now.astimezone(UTC)
    )


def is_denied(error: BaseException | None) -> bool:
    return isinstance(error, DBAPIError) and getattr(driver_error(error), "sqlstate", "") == INSUFFICIENT_PRIVILEGE


def in_thread(function: Callable[[], R]) -> R:
    """Run a function in a thread of its own: it may start an event loop, and the caller may have one."""
    with ThreadPoolExecutor(1, "rota-identity") as threads:
        return threads.submit(function).result()
