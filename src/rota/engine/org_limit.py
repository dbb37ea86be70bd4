"""A limit of how many costly requests a process serves at once: in total, and of one org."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class OrgLimit:
    def __init__(self, total: int, per_org: int) -> None:
        self._total, self._per_org = asyncio.Semaphore(total), per_org
        self._orgs: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # of orgs that use or wait

    @asynccontextmanager
    async def place(self, org_id: str) -> AsyncIterator[None]:
        """Wait for a place and hold it. An org at its limit waits without holding a place that others could use."""
        org = self._orgs.get(org_id)
        if org is None:
            org = self._orgs[org_id] = asyncio.Semaphore(self._per_org)
        async with org, self._total:
            yield
