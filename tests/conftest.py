"""Shared by all tests: a PostgreSQL server for the session, and fresh databases of either kind (tests.databases)."""

import os
import shutil
from pathlib import Path

import hypothesis
import pytest

from tests.databases import (
    clean_url,
    database_url,
    db,
    empty_url,
    migrated_url,
    postgres_template,
    shared_postgres,
    sqlite_template,
)
from tests.postgres import PostgresServer

__all__ = [
    "clean_url",
    "database_url",
    "db",
    "empty_url",
    "migrated_url",
    "postgres_template",
    "shared_postgres",
    "sqlite_template",
]

SERVER_URL = "ROTA_TEST_POSTGRES_URL"
MEMORY_DISK = Path("/dev/shm")
FORKING = ("test_crashes.py", "test_repair.py")

shared = pytest.StashKey[PostgresServer]()


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.register_profile("rota", deadline=None)  # a busy machine is slow, not wrong
    hypothesis.settings.load_profile("rota")
    for name in list(os.environ):
        if name.startswith("ROTA_") and not name.startswith("ROTA_TEST_"):
            del os.environ[name]  # tests do not depend on the developer's settings
    os.environ["ROTA_DRAIN_SECONDS"] = "0"  # stopped processes do not wait for active runs
    if "PYTEST_DEBUG_TEMPROOT" not in os.environ and _has_room(MEMORY_DISK):
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY_DISK)  # `tmp_path` is there: commits of SQLite cost no fsync
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no" or config.option.collectonly:
        return  # without pytest-xdist the first test that asks starts the server
    if SERVER_URL not in os.environ:
        config.stash[shared] = server = PostgresServer(fsync=False)
        server.start()
        os.environ[SERVER_URL] = server.url  # the workers inherit it: one server for all of them


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the tests of processes, which mostly wait, evenly over the first two thirds of the others, so that no core
    is idle. Tests that fork run first, while no library has started threads whose locks a child would inherit."""
    waiting = [item for item in items if "acceptance" in item.path.parts]
    others = [item for item in items if "acceptance" not in item.path.parts]
    position = {item: number / len(waiting) * 2 / 3 for number, item in enumerate(waiting)}
    position |= {item: number / len(others) for number, item in enumerate(others)}
    items.sort(key=lambda item: (item.path.name not in FORKING, position[item]))


def pytest_unconfigure(config: pytest.Config) -> None:
    if server := config.stash.get(shared, None):
        server.remove()


@pytest.fixture(scope="session")
def postgres_url(pytestconfig: pytest.Config) -> str:
    """The administrator's URL of the session's PostgreSQL server."""
    if SERVER_URL in os.environ:
        return os.environ[SERVER_URL]
    pytestconfig.stash[shared] = server = PostgresServer(fsync=False)
    server.start()
    return server.url


def _has_room(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 4 * 2**30
