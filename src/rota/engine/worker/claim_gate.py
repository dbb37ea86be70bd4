"""Tracks the claims of a worker that are in flight, so that the jobs it holds can be listed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ClaimGate:
    """Several claims may be in flight at once. `drain()` waits for them and blocks new ones."""

    def __init__(self) -> None:
        self.expected = 0  # jobs that the claims in flight may bring, at most
        self._in_flight = 0
        self._open, self._drained, self._drain_lock = asyncio.Event(), asyncio.Event(), asyncio.Lock()
        self._open.set()
        self._drained.set()

    @asynccontextmanager
    async def claim(self) -> AsyncIterator["ClaimInFlight"]:
        """One claim. Waits while the gate is drained."""
        while not self._open.is_set():
            await self._open.wait()
        self._in_flight += 1
        self._drained.clear()
        claim = ClaimInFlight(self)
        try:
            yield claim
        finally:
            claim.expect(0)
            self._in_flight -= 1
            if not self._in_flight:
                self._drained.set()

    @asynccontextmanager
    async def drain(self) -> AsyncIterator[None]:
        """Wait for the claims in flight; no other begins before the block ends."""
        async with self._drain_lock:
            self._open.clear()
            try:
                await self._drained.wait()
                yield
            finally:
                self._open.set()


class ClaimInFlight:
    """How many jobs one claim may bring: their places are reserved until it ends."""

    def __init__(self, gate: ClaimGate) -> None:
        self._gate, self._count = gate, 0

    def expect(self, count: int) -> None:
        self._gate.expected += count - self._count
        self._count = count
