"""A SQLite file, for what only files have."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rota.db.sqlite import SqliteDatabase


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    """A SQLite file without tables."""
    database = SqliteDatabase(f"sqlite:///{tmp_path}/rota.db")
    yield database
    await database.close()
