"""Retry through an outage of the database."""

import math
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from rota.core.clock import real_sleep, stopwatch
from rota.core.errors import DatabaseMisconfigured, Unavailable

R = TypeVar("R")

log = structlog.get_logger("rota.database")


async def retry_until_available(step: Callable[[], Awaitable[R]], seconds: float = float("inf")) -> R:
    """Repeat the step while it raises Unavailable. With a limit in seconds the error is raised when it has passed, and
    at once if an operator must act (DatabaseMisconfigured)."""
    since = stopwatch()
    while True:
        try:
            return await step()
        except Unavailable as error:
            if stopwatch() - since > seconds or (seconds < math.inf and isinstance(error, DatabaseMisconfigured)):
                raise
            log.debug("the database is out of reach; trying again", error=error.message)
            await real_sleep(random.uniform(0.2, 1))
