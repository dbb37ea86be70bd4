"""Group commit: requests that come while a transaction runs share the next one."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from rota.core.clock import real_sleep
from rota.core.errors import Unavailable

BATCH_ITEMS = 500  # also bounds the locks of one transaction

T = TypeVar("T")
R = TypeVar("R")


class GroupCommit(Generic[T, R]):
    """Stores items in batches, at most `parallel` at once. An item that comes alone is stored at once; items that come
    while all batches are under way are the next batch.

    `store` stores a batch in one transaction and returns a result or an error for each item. `subject` returns what an
    item is about: two items about the same thing are stored in their order, in different batches."""

    def __init__(
        self,
        store: Callable[[list[T]], Awaitable[Sequence[R | Exception]]],
        subject: Callable[[T], Hashable],
        parallel: int = 1,
    ) -> None:
        self._store, self._subject, self._parallel = store, subject, parallel
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._in_flight: set[Hashable] = set()  # the subjects of batches under way
        self._loops = 0  # that store batches
        self._tasks: set[asyncio.Task[None]] = set()  # of the loops

    async def add(self, item: T) -> R:
        """Store an item with the next batch; returns its own result or raises its own error."""
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, result))
        if self._loops < self._parallel:
            self._loops += 1  # in a context of its own: not that of the first request of the batch
            task = asyncio.get_running_loop().create_task(self._run(), context=contextvars.Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await result

    async def _run(self) -> None:
        try:
            while batch := self._next_batch():
                await self._store_batch(batch)
                await real_sleep(0)  # callers that go on now may add their next item: it belongs to the next batch
        finally:
            self._loops -= 1

    async def _store_batch(self, batch: dict[Hashable, tuple[T, asyncio.Future[R]]]) -> None:
        self._in_flight |= batch.keys()
        try:
            results = await self._results([item for item, _ in batch.values()])
        finally:
            self._in_flight -= batch.keys()
        for (_, future), result in zip(batch.values(), results, strict=True):
            if future.done():  # its request was canceled
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    def _next_batch(self) -> dict[Hashable, tuple[T, asyncio.Future[R]]]:
        """Remove and return the first items, at most one of each subject, and none of a batch under way."""
        batch: dict[Hashable, tuple[T, asyncio.Future[R]]] = {}
        later = []
        for entry in self._waiting:
            subject = self._subject(entry[0])
            if subject in batch or subject in self._in_flight or len(batch) == BATCH_ITEMS:
                later.append(entry)
            else:
                batch[subject] = entry
        self._waiting = later
        return batch

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
