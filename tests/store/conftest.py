"""A migrated, empty database of either kind."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rota.db.connection import Database, open_database
from rota.db.sqlite import SqliteDatabase
from tests.databases import clean_url, migrated_url, postgres_template, shared_postgres, sqlite_template

__all__ = ["clean_url", "migrated_url", "postgres_template", "shared_postgres", "sqlite_template"]


@pytest.fixture
async def db(clean_url: str) -> AsyncIterator[Database]:
    one = open_database(clean_url)
    yield one
    await one.close()


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    """A SQLite file without tables, for what only files have."""
    one = SqliteDatabase(f"sqlite:///{tmp_path}/rota.db")
    yield one
    await one.close()
