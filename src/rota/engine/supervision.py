"""Keeps loops running: a loop that failed is logged and started again."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from rota.core.clock import real_sleep, stopwatch

FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 1.0, 30.0

log = structlog.get_logger("rota.supervision")


def start_supervised(name: str, loop: Callable[[], Awaitable[object]]) -> "asyncio.Task[None]":
    """Start `loop` as a task that ends when the loop returns or the task is canceled."""
    return asyncio.create_task(supervise(name, loop), name=name)


async def supervise(name: str, loop: Callable[[], Awaitable[object]]) -> None:
    """Run `loop` until it returns. When it raises, log that and start it again: after 1 s, then 2, 4, up to 30, and
    after 1 s again once it has run for longer than that."""
    delay = FIRST_DELAY_SECONDS
    while True:
        started = stopwatch()
        try:
            await loop()
        except Exception:
            with contextlib.suppress(Exception):  # a log that cannot be written must not end the loop
                log.exception("loop failed; starting it again", loop=name, after_seconds=delay)
        else:
            return
        if stopwatch() - started > LONGEST_DELAY_SECONDS:
            delay = FIRST_DELAY_SECONDS
        await real_sleep(delay)
        delay = min(2 * delay, LONGEST_DELAY_SECONDS)
