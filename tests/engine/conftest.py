"""An engine over a fresh database of either kind, with the clock in the test's fake_runner."""

from collections.abc import AsyncIterator

import pytest

from tests.engine.harness import Harness, open_harness


@pytest.fixture
async def harness(clean_url: str) -> AsyncIterator[Harness]:
    """A harness; at the end of the test every slot must have one verdict."""
    harness = await open_harness(clean_url)
    yield harness
    try:
        await harness.check()
    finally:
        await harness.close()
