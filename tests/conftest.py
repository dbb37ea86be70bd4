"""Shared by all tests: a PostgreSQL server for the session, and fresh databases of either kind (tests.databases)."""

import os
import shutil
import sys
from functools import cache
from pathlib import Path

import hypothesis
import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# Else each test process rewrites the assertions of all tests, and each `rota` process compiles all modules it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from tests.databases import (  # noqa: E402  compiled with the setting above
    clean_url,
    database_url,
    db,
    empty_url,
    migrated_url,
    postgres_template,
    shared_postgres,
    sqlite_template,
)
from tests.postgres import PostgresServer  # noqa: E402

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
    is idle. Tests that fork run first, while no library has started threads whose locks a child would inherit. Files
    whose tests stay together in one process follow, because no other process can help with the last of them."""
    waiting = [item for item in items if "acceptance" in item.path.parts]
    others = [item for item in items if "acceptance" not in item.path.parts]
    position = {item: number / len(waiting) * 2 / 3 for number, item in enumerate(waiting)}
    position |= {item: number / len(others) for number, item in enumerate(others)}
    items.sort(key=lambda item: (item.path.name not in FORKING, not _has_module_fixtures(item.path), position[item]))


class SharedFixtures(LoadScopeScheduling):  # type: ignore[misc]
    """Sends the tests of a file with fixtures of module scope to one process, so that their server, say, starts once.
    All other tests go, one at a time, to the process that is free."""

    def _split_scope(self, nodeid: str) -> str:
        path, _, test = nodeid.partition("::")
        if not _has_module_fixtures(self.config.rootpath / path):
            return nodeid
        kinds = [kind for kind in ("sqlite", "postgresql") if kind in test.partition("[")[2]]
        return f"{path}@{'-'.join(kinds)}"  # such a fixture often has a database as parameter


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SharedFixtures:
    config.option.loadscopereorder = False  # tests that fork stay first
    return SharedFixtures(config, log)


@cache
def _has_module_fixtures(path: Path) -> bool:
    return 'scope="module"' in path.read_text()


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
