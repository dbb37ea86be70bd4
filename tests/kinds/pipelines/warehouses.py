"""PostgreSQL databases for pipelines, each with a role of its own that has no rights on the server."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

from tests.postgres import _execute as execute
from tests.postgres import create_database, database_name, drop_database


@contextmanager
def postgres_warehouse(server: str) -> Iterator[str]:
    """Yield the URL of a new database, as a role that may create schemas in it."""
    admin, role = create_database(server), f"pipelines_{secrets.token_hex(6)}"
    execute(admin, f"CREATE ROLE {role} LOGIN PASSWORD 'secret word'")
    execute(admin, f'GRANT CREATE, TEMPORARY ON DATABASE "{database_name(admin)}" TO {role}')
    parts = urlsplit(admin)
    try:
        yield urlunsplit(parts._replace(netloc=f"{role}:secret%20word@{parts.hostname}:{parts.port}"))
    finally:
        drop_database(server, admin)
        execute(server, f"DROP ROLE {role}")


def rows(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as con:
        return con.execute(sql.encode()).fetchall()


def drop_schemas(url: str) -> None:
    """Drop what the role of a warehouse has created."""
    with psycopg.connect(url) as con:
        owned = "SELECT nspname FROM pg_namespace WHERE pg_get_userbyid(nspowner) = current_user"
        for (schema,) in con.execute(owned).fetchall():
            con.execute(f'DROP SCHEMA "{schema}" CASCADE'.encode())
