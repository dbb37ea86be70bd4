"""Waiting out an outage: what must be read or written is asked for again until the database answers."""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from rota.core.clock import pause, stopwatch
from rota.core.errors import Unavailable

R = TypeVar("R")

log = structlog.get_logger("rota.database")


async def patiently(ask: Callable[[], Awaitable[R]], seconds: float = float("inf")) -> R:
    """The answer, as soon as there is one; after so many seconds without, the error stands."""
    since = stopwatch()
    while True:
        try:
            return await ask()
        except Unavailable as error:
            if stopwatch() - since > seconds:
                raise
            log.warning("the database is out of reach; trying again", error=error.message)
            await pause(random.uniform(0.2, 1))
