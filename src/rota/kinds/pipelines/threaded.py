"""What executors share whose statements block a thread."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from rota.engine.org_limit import OrgLimit
from rota.kinds.pipelines.executor import Materialisation

P = ParamSpec("P")
T = TypeVar("T")

PREVIEW_SECONDS = 30.0
MAX_PREVIEWS, MAX_PREVIEWS_PER_ORG = 2, 1  # concurrent
INTERRUPT_SECONDS = 0.1  # between interrupts: one that comes before its statement is lost


class ThreadedExecutor:
    """Slots, log lines and threads of an executor. `running` has the connections of runs, by run id."""

    def __init__(self, slots: int, name: str) -> None:
        self.slots = slots
        self.running: dict[str, Any] = {}
        self.log_lines: dict[str, list[str]] = {}
        # a run ends with two calls at once, another opens the spare database, and previews do not wait for them
        self.threads = ThreadPoolExecutor(2 * slots + 1 + MAX_PREVIEWS, name)
        self.previews = OrgLimit(MAX_PREVIEWS, MAX_PREVIEWS_PER_ORG)

    def capacity(self) -> int:
        return self.slots - len(self.running)

    def logs(self, run_id: str) -> list[str]:
        return self.log_lines.pop(run_id, [])

    def log(self, order: Materialisation, line: str) -> None:
        self.log_lines.setdefault(order.run_id, []).append(line)

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, lambda: call(*args, **kwargs))

    async def to_the_end(self, *calls: Callable[[], None]) -> None:
        """Make calls in threads, at the same time, and wait for their end. Cancellation is ignored from here."""
        pending = [asyncio.ensure_future(self.in_thread(call)) for call in calls]
        while not all(future.done() for future in pending):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(pending)
        for future in pending:
            future.result()

    async def interruptible(self, call: Callable[[], T], interrupt: Callable[[], Awaitable[None]]) -> T:
        """Make a call in a thread; when canceled, interrupt it until it has ended."""
        future = asyncio.get_running_loop().run_in_executor(self.threads, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):  # already canceled
                    await interrupt()
                    await asyncio.wait([future], timeout=INTERRUPT_SECONDS)
            future.exception()  # retrieved, so that asyncio does not log it
            raise


def plain(value: object) -> object:
    """Return a JSON value as it is, any other value as text."""
    if isinstance(value, bool | str | float | None) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return str(value)
