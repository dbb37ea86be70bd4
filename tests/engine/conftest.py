"""An engine over a fresh database of either kind, with the clock in the test's fake_runner."""

from collections.abc import AsyncIterator

import pytest

from tests.databases import clean_url, postgres_template, shared_postgres, sqlite_template
from tests.engine.harness import Harness, open_harness

__all__ = ["clean_url", "postgres_template", "shared_postgres", "sqlite_template"]


@pytest.fixture
async def harness(clean_url: str) -> AsyncIterator[Harness]:
    """Whatever a test did, at its end every slot must have its one verdict."""
    one = await open_harness(clean_url)
    yield one
    try:
        await one.check()
    finally:
        await one.close()
