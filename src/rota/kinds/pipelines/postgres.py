"""PostgreSQL as the engine of pipelines. A run is one transaction: its rows are built in a table of their own, then the
table is replaced or changed, then committed. A process that dies ends its connection, and so its transaction.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
from ibis.backends.postgres import Backend
from psycopg import errors, sql
from psycopg.abc import Query

from rota.core.errors import Conflict, TransientError
from rota.core.ids import new_id
from rota.kinds.pipelines.fences import Fence
from rota.kinds.pipelines.ibis_executor import Place, place_of
from rota.kinds.pipelines.increments import Increment, check_columns
from rota.kinds.pipelines.previews import shortened_values

CONNECT_SECONDS = 10
CANCEL_SECONDS = 5.0
# Names without a schema are those of PostgreSQL itself: functions of extensions and of users are out of reach.
OPTIONS = "-c search_path=pg_catalog -c client_connection_check_interval=2s -c standard_conforming_strings=on"
REFUSED_RIGHTS = ("pg_read_server_files", "pg_write_server_files", "pg_execute_server_program")
RIGHTS = sql.SQL(
    "SELECT rolname FROM pg_roles WHERE rolname = current_user AND rolsuper UNION ALL "
    "SELECT rolname FROM pg_roles WHERE rolname = ANY({}) AND pg_has_role(current_user, oid, 'MEMBER')"
).format(sql.Literal(list(REFUSED_RIGHTS)))
OUT_OF_REACH = (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow, errors.TooManyConnections)
MISCONFIGURED = (
    *(errors.InvalidPassword, errors.InvalidAuthorizationSpecification),
    *(errors.InvalidCatalogName, errors.InsufficientPrivilege),
)


class Postgres:
    """A Warehouse in a PostgreSQL database."""

    dialect = "postgres"
    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def address(self) -> str:
        """The URL without its password."""
        parts = urlsplit(self.url)
        return f"{parts.hostname or ''}:{parts.port or 5432}{parts.path}"

    def place_of(self, slug: str, path: str) -> Place:
        return place_of(slug, path)

    def open(self, run_id: str) -> "PostgresSession":
        try:
            con = psycopg.connect(
                self.url,
                autocommit=True,
                connect_timeout=CONNECT_SECONDS,
                options=OPTIONS,
                application_name=f"rota pipeline {run_id}",
            )
        except psycopg.Error as error:
            raise self.refusal(error) from error
        try:
            rights = [row[0] for row in con.execute(RIGHTS)]
            if rights:
                raise Conflict(
                    f"pipelines on PostgreSQL {self.address} need a role without rights on the server; this one is a "
                    f"superuser or a member of {rights[0]}: create a role of its own (docs/pipelines.md)"
                )
            return PostgresSession(con)
        except BaseException:
            con.close()
            raise

    def refusal(self, error: psycopg.Error) -> Exception:
        """Return the error of a failed connection: Conflict if an operator must act, else TransientError."""
        message = str(error).strip()
        refused = isinstance(error, MISCONFIGURED) or any(
            text in message for text in ("authentication failed", "does not exist", "no password supplied", "pg_hba")
        )
        if refused:
            return Conflict(f"PostgreSQL {self.address} refuses pipelines: {message}; check ROTA_PIPELINES_URL")
        return TransientError(f"PostgreSQL {self.address} of pipelines is out of reach: {message}")


class PostgresSession:
    """A Session on a connection."""

    def __init__(self, con: "psycopg.Connection[Any]") -> None:
        self.con = con
        self.backend = Backend.from_connection(con)

    def begin(self, place: Place, fence: Fence) -> None:
        """The lock of the table, which a run keeps until it ends, orders the runs."""

    def locate(self, place: Place) -> Place | None:
        with self.repeatable():
            (row,) = self.con.execute("SELECT to_regclass(%s) IS NOT NULL", [text(place)])
            return place if row[0] else None

    def build(self, path: str, place: Place, query: str, increment: Increment | None) -> int:
        with self.repeatable():
            self.create_schema(place.schema)
            self.con.execute("BEGIN")
            self.con.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [text(place)])
            return self.write(path, place, query, increment)

    @contextlib.contextmanager
    def repeatable(self) -> Iterator[None]:
        """Raise TransientError for statements that fail because the server or the connection was lost."""
        try:
            yield
        except (*OUT_OF_REACH, errors.SerializationFailure, errors.DeadlockDetected) as error:
            raise TransientError(f"PostgreSQL ended the transaction: {error}") from error
        except psycopg.OperationalError as error:
            if not self.con.broken:
                raise
            raise TransientError(f"the connection to PostgreSQL was lost: {error}") from error

    def write(self, path: str, place: Place, query: str, increment: Increment | None) -> int:
        """Write the rows of a query into the open transaction; returns their count."""
        target, draft = text(place), text(Place(place.schema, f"rota_{new_id().lower()}"))
        exists = self.locate(place) is not None
        if increment is not None:
            query = increment.new_rows(query, target if exists else None, quoted)
        rows = self.execute(f"CREATE TABLE {draft} AS {query}").rowcount
        if increment is not None and (wrong_keys := increment.wrong_keys(draft, quoted)):
            (row,) = self.execute(wrong_keys)
            increment.check_keys(row[0])
        if increment is None or not exists:
            self.execute(f"DROP TABLE IF EXISTS {target}")
            self.execute(f"ALTER TABLE {draft} RENAME TO {quoted(place.name)}")
            return rows
        columns = self.columns(target)
        check_columns(path, columns, self.columns(draft))
        if (replaced := increment.replaced_rows(draft, quoted)) is not None:
            self.execute(f"DELETE FROM {target} AS old_rows WHERE {replaced}")
        names = ", ".join(map(quoted, columns))
        self.execute(f"INSERT INTO {target} ({names}) SELECT {names} FROM {draft}")
        self.execute(f"DROP TABLE {draft}")
        return rows

    def create_schema(self, schema: str) -> None:
        """Create a schema if it does not exist; by one process at a time, since PostgreSQL reports a race as an
        error."""
        (row,) = self.con.execute("SELECT count(*) FROM pg_namespace WHERE nspname = %s", [schema])
        if row[0] == 0:
            with self.con.transaction():
                self.con.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"schema {schema}"])
                self.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")

    def columns(self, table: str) -> list[str]:
        return [column.name for column in self.execute(f"SELECT * FROM {table} LIMIT 0").description or ()]

    def commit(self) -> None:
        with self.repeatable():  # it may be committed: an attempt that repeats it changes no rows twice
            self.con.execute("COMMIT")

    def first_rows(
        self, query: str, limit: int, seconds: float
    ) -> tuple[list[dict[str, str]], list[tuple[object, ...]]]:
        self.con.execute("BEGIN READ ONLY")
        self.execute(f"SET LOCAL statement_timeout = '{seconds:g}s'")
        described = self.execute(f"SELECT * FROM (\n{query}\n) AS preview LIMIT 0").description or ()
        columns = [{"name": column.name, "type": column.type_display} for column in described]
        names = [f"c{number}" for number in range(len(columns))]
        short = ", ".join(shortened_values(names, [column["type"] for column in columns], "text"))
        cursor = self.execute(f"SELECT {short} FROM (\n{query}\n) AS preview({', '.join(names)}) LIMIT {limit}")
        return columns, cursor.fetchall()

    def execute(self, statement: str) -> "psycopg.Cursor[Any]":
        query: Query = sql.SQL(statement)  # generated from a syntax tree
        return self.con.execute(query)

    def cancel(self) -> None:
        with contextlib.suppress(psycopg.Error):  # it is repeated until the statement has ended
            self.con.cancel_safe(timeout=CANCEL_SECONDS)

    def close(self) -> None:
        self.con.close()


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def text(place: Place) -> str:
    return f"{quoted(place.schema)}.{quoted(place.name)}"
