"""Alarms over a fresh database of either kind."""

from collections.abc import AsyncIterator

import pytest

from tests.kinds.alarms.harness import Alarms, open_alarms


@pytest.fixture
async def alarms(clean_url: str) -> AsyncIterator[Alarms]:
    async with open_alarms(clean_url) as alarms:
        yield alarms
