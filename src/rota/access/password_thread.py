"""One thread in which passwords are hashed and compared. Each takes tens of milliseconds of all cores and 64 MiB: a
burst of logins waits for itself, not the requests of others."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

PASSWORD_THREAD = ThreadPoolExecutor(1, "rota-passwords")


async def in_password_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what the function returns, called in the thread of passwords."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(PASSWORD_THREAD, lambda: function(*args, **kwargs))
