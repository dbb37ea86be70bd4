"""What all tests share: a PostgreSQL server for the session, and a fresh database of either kind per test."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import PostgresServer, create_database, drop_database

SERVER_URL = "ROTA_TEST_POSTGRES_URL"
FORKING = ("test_crashes.py", "test_repair.py")

shared = pytest.StashKey[PostgresServer]()


def pytest_configure(config: pytest.Config) -> None:
    for name in list(os.environ):
        if name.startswith("ROTA_") and not name.startswith("ROTA_TEST_"):
            del os.environ[name]  # tests do not depend on the developer's settings
    os.environ["ROTA_DRAIN_SECONDS"] = "0"  # stopped processes do not wait for active runs
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no" or config.option.collectonly:
        return  # without pytest-xdist the first test that asks starts the server
    if SERVER_URL not in os.environ:
        config.stash[shared] = server = PostgresServer()
        server.start()
        os.environ[SERVER_URL] = server.url  # the workers inherit it: one server for all of them


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long tests first, to keep all test processes busy; before them those that fork, while no library has started
    threads whose locks a child would inherit."""
    items.sort(key=lambda item: (item.path.name not in FORKING, "acceptance" not in item.path.parts))


def pytest_unconfigure(config: pytest.Config) -> None:
    if server := config.stash.get(shared, None):
        server.remove()


@pytest.fixture(scope="session")
def postgres_url(pytestconfig: pytest.Config) -> str:
    """The administrator's URL of the session's PostgreSQL server."""
    if SERVER_URL in os.environ:
        return os.environ[SERVER_URL]
    pytestconfig.stash[shared] = server = PostgresServer()
    server.start()
    return server.url


@pytest.fixture(scope="session")
def postgres_template() -> str | None:
    """The name of a database to copy for each test. A folder's conftest may offer a migrated one."""
    return None


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh database, once of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'rota.db'}"
        return
    server = request.getfixturevalue("postgres_url")
    url = create_database(server, template=request.getfixturevalue("postgres_template"))
    yield url
    drop_database(server, url)
