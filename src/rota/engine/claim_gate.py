"""Steps under way that make jobs a worker's own: claims, and fires that hand over what they make.

Several may be under way at once. Whoever has to know all that the worker owns waits until none is.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Takings:
    def __init__(self) -> None:
        self.expected = 0  # the most jobs that may come of those under way
        self._under_way = 0
        self._open, self._calm, self._alone = asyncio.Event(), asyncio.Event(), asyncio.Lock()
        self._open.set()
        self._calm.set()

    @asynccontextmanager
    async def one(self) -> AsyncIterator["Expecting"]:
        while not self._open.is_set():
            await self._open.wait()
        self._under_way += 1
        self._calm.clear()
        mine = Expecting(self)
        try:
            yield mine
        finally:
            mine.expect(0)
            self._under_way -= 1
            if not self._under_way:
                self._calm.set()

    @asynccontextmanager
    async def none(self) -> AsyncIterator[None]:
        """Wait for those under way; nobody begins another one meanwhile."""
        async with self._alone:
            self._open.clear()
            try:
                await self._calm.wait()
                yield
            finally:
                self._open.set()


class Expecting:
    """How many jobs one of them may bring: their places are taken."""

    def __init__(self, among: Takings) -> None:
        self._among, self._count = among, 0

    def expect(self, count: int) -> None:
        self._among.expected += count - self._count
        self._count = count
