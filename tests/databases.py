"""Databases for tests: each test process migrates one and copies it, because migrating takes longer than most tests."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from rota.db.connection import Database, open_database
from rota.db.migrate import migrate
from rota.db.tables import metadata
from rota.db.transactions import Transaction
from tests.postgres import _execute as execute
from tests.postgres import create_database, database_name, drop_database

R = TypeVar("R")


@pytest.fixture(scope="session")
def postgres_template(postgres_url: str) -> Iterator[str | None]:
    """The name of a migrated database to copy. A file that overrides it with None has empty databases."""
    url = create_database(postgres_url)
    migrate(url)
    yield database_name(url)
    drop_database(postgres_url, url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file to copy."""
    path = tmp_path_factory.mktemp("template") / "rota.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of its own, once of each kind: a SQLite file that is not there yet, or a copy of the template."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'rota.db'}"
        return
    server = request.getfixturevalue("postgres_url")
    url = create_database(server, template=request.getfixturevalue("postgres_template"))
    yield url
    drop_database(server, url)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A second database, without tables, once of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty' / 'rota.db'}"
        return
    server = request.getfixturevalue("postgres_url")
    url = create_database(server)
    yield url
    drop_database(server, url)


@pytest.fixture
def migrated_url(database_url: str, sqlite_template: Path) -> str:
    """A fresh database with all tables, once of each kind."""
    if database_url.startswith("sqlite"):
        copy_sqlite(sqlite_template, database_url)
    return database_url


@pytest.fixture(scope="session")
def shared_postgres(postgres_url: str, postgres_template: str) -> Iterator[str]:
    """One database for many tests; `clean_url` empties it, which is quicker than making one."""
    url = create_database(postgres_url, template=postgres_template)
    yield url
    drop_database(postgres_url, url)


@pytest.fixture(params=["sqlite", "postgresql"])
def clean_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A migrated, empty database, once of each kind."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'rota.db'}"
        copy_sqlite(request.getfixturevalue("sqlite_template"), url)
        return url
    url = str(request.getfixturevalue("shared_postgres"))
    empty_postgres(url)
    return url


@pytest.fixture
async def db(clean_url: str) -> AsyncIterator[Database]:
    """A migrated, empty database, open, once of each kind."""
    database = open_database(clean_url)
    yield database
    await database.close()


def empty_postgres(url: str) -> None:
    execute(url, "; ".join(f"DELETE FROM {table.name}" for table in reversed(metadata.sorted_tables)))


def copy_sqlite(template: Path, url: str) -> None:
    for tail in ("", "-wal"):  # what the log holds is part of the database
        source = Path(f"{template}{tail}")
        if source.exists():
            shutil.copyfile(source, url.removeprefix("sqlite:///") + tail)


on_postgresql = pytest.mark.parametrize("clean_url", ["postgresql"], indirect=True)  # SQLite has one writer

LOCKS_WAITED_FOR = """
    SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN (
        SELECT pid FROM pg_stat_activity WHERE datname = current_database())"""


async def commit_when_awaited(db: Database, opened: Transaction, step: Awaitable[R]) -> R:
    """Start a step, commit the open transaction when the step waits for one of its locks, and return its result."""
    started = asyncio.ensure_future(step)
    async with asyncio.timeout(20):
        while not await db.read(lambda tx: tx.exec_driver_sql(LOCKS_WAITED_FOR).scalar_one()):
            assert not started.done(), "the step did not wait"
            await asyncio.sleep(0.01)
        await opened.commit()
        return await started
