"""Group commit: requests that come while a transaction runs share the next one."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from rota.core.errors import Unavailable

BATCH_ITEMS = 500  # also bounds the locks of one transaction

T = TypeVar("T")
R = TypeVar("R")


class GroupCommit(Generic[T, R]):
    """Stores items in batches, one after another. An item that comes alone is stored at once; items that come while a
    batch is stored are the next batch.

    `store` stores a batch in one transaction and returns a result or an error for each item. `subject` returns what an
    item is about: two items about the same thing are stored in their order, in different batches."""

    def __init__(
        self, store: Callable[[list[T]], Awaitable[Sequence[R | Exception]]], subject: Callable[[T], Hashable]
    ) -> None:
        self._store, self._subject = store, subject
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._storing: asyncio.Task[None] | None = None

    async def add(self, item: T) -> R:
        """Store an item with the next batch; returns its own result or raises its own error."""
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, result))
        if self._storing is None:  # in a context of its own: not that of the first request of the batch
            self._storing = asyncio.get_running_loop().create_task(self._run(), context=contextvars.Context())
        return await result

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = self._next_batch()
                for (_, future), result in zip(batch, await self._results([item for item, _ in batch]), strict=True):
                    if future.done():  # its request was canceled
                        continue
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
        finally:
            self._storing = None

    def _next_batch(self) -> list[tuple[T, asyncio.Future[R]]]:
        """Remove and return the first items, at most one of each subject."""
        batch: dict[Hashable, tuple[T, asyncio.Future[R]]] = {}
        later = []
        for entry in self._waiting:
            subject = self._subject(entry[0])
            if subject in batch or len(batch) == BATCH_ITEMS:
                later.append(entry)
            else:
                batch[subject] = entry
        self._waiting = later
        return list(batch.values())

    async def _results(self, items: list[T]) -> Sequence[R | Exception]:
        """Store items and return their results. A batch that fails is halved until the item that fails is alone."""
        try:
            return await self._store(items)
        except Unavailable as error:
            return [error] * len(items)
        except Exception as error:
            if len(items) == 1:
                return [error]
            half = len(items) // 2
            return [*await self._results(items[:half]), *await self._results(items[half:])]
