"""Tasks over a fresh database of either kind."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rota.kinds.tasks import TaskRegistry
from tests.databases import clean_url, postgres_template, shared_postgres, sqlite_template
from tests.kinds.shop import Shop, open_shop

__all__ = ["clean_url", "postgres_template", "shared_postgres", "sqlite_template"]

PROGRAM = str(Path(__file__).with_name("program.py"))


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """What a test registers for everybody is nobody's after it."""
    before = dict(TaskRegistry.shared)
    yield
    TaskRegistry.shared.clear()
    TaskRegistry.shared.update(before)


@pytest.fixture
async def shop(clean_url: str) -> AsyncIterator[Shop]:
    one = await open_shop(clean_url)
    yield one
    await one.check()
    await one.close()


@pytest.fixture
async def isolated_shop(clean_url: str) -> AsyncIterator[Shop]:
    """One that runs `program.py`, whose functions have processes of their own."""
    one = await open_shop(clean_url, PROGRAM, artifact_limit=1000)
    yield one
    await one.close()
