"""A cluster on a fresh database of either kind; on PostgreSQL a copy of one that is migrated already."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cluster import Cluster
from tests.postgres import create_database, drop_database

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def postgres_database(postgres_url: str, postgres_template: str) -> Iterator[str]:
    """A fresh PostgreSQL database."""
    url = create_database(postgres_url, postgres_template)
    yield url
    drop_database(postgres_url, url)


@pytest.fixture
def sqlite_database(tmp_path: Path) -> str:
    """A fresh SQLite file."""
    return f"sqlite:///{tmp_path / 'rota.db'}"


@pytest.fixture
def cluster(tmp_path: Path, database_url: str) -> MakeCluster:
    """Makes a cluster, once on each kind of database."""

    def make(app: str = "", **settings: Any) -> Cluster:
        return Cluster(tmp_path, database_url, app, **settings)

    return make


@pytest.fixture
def sqlite_cluster(tmp_path: Path, sqlite_database: str) -> MakeCluster:
    """Makes a cluster on SQLite, for what does not depend on the database."""

    def make(app: str = "", **settings: Any) -> Cluster:
        return Cluster(tmp_path, sqlite_database, app, **settings)

    return make
