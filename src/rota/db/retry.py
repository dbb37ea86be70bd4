"""Waiting out an outage: what must be read or written is asked for again until the database answers."""

import math
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from rota.core.clock import pause, stopwatch
from rota.core.errors import DatabaseMisconfigured, Unavailable

R = TypeVar("R")

log = structlog.get_logger("rota.database")


async def patiently(ask: Callable[[], Awaitable[R]], seconds: float = float("inf")) -> R:
    """Ask again until there is an answer. After so many seconds the error is raised; with such a limit also at once, if
    an operator must act (DatabaseMisconfigured)."""
    since = stopwatch()
    while True:
        try:
            return await ask()
        except Unavailable as error:
            if stopwatch() - since > seconds or (seconds < math.inf and isinstance(error, DatabaseMisconfigured)):
                raise
            log.debug("the database is out of reach; trying again", error=error.message)
            await pause(random.uniform(0.2, 1))
