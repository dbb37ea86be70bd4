"""Runs CPU-bound functions in threads, so that they do not block the event loop."""

import asyncio
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

COMPUTE_THREADS = 2

_threads = ThreadPoolExecutor(COMPUTE_THREADS, "rota-compute")


def renew_threads() -> None:
    """A forked copy of this process has none of its threads."""
    global _threads
    _threads = ThreadPoolExecutor(COMPUTE_THREADS, "rota-compute")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew_threads)


async def compute(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function that reads and writes nothing outside in a compute thread, under the caller's effort budget."""
    step = partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads, step)
