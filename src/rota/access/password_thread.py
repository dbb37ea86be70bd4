"""A single thread that hashes and verifies passwords. argon2 takes tens of milliseconds on all cores and 64 MiB: a
burst of logins queues up here instead of delaying other requests."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

PASSWORD_THREAD = ThreadPoolExecutor(1, "rota-passwords")


async def in_password_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in the password thread and return its result."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(PASSWORD_THREAD, lambda: function(*args, **kwargs))
