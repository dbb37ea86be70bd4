"""Calls functions of a program: with their own parameters and what is injected, on the loop or in a thread."""

import asyncio
import contextvars
import ctypes
import functools
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rota.core.policy import classify
from rota.engine.runner import RunContext, WorkFailed
from rota.user_code.injection import Injector, Made, Signature


class Fork:
    """Tells a copy of a process from its original, at no cost to those who ask: a `getpid` is a system call."""

    generation = 0

    def made(self) -> None:
        self.generation += 1


fork = Fork()
os.register_at_fork(after_in_child=fork.made)


async def call(
    injector: Injector, threads: ThreadPoolExecutor, ctx: RunContext, function: Callable[..., Any], given: Any,
    keep: Callable[[Any], Awaitable[Any]],
) -> Any:  # fmt: skip
    """Call a function. `keep` makes what it returns what the ledger keeps, while what was injected is still open."""
    signature = injector.signature(function)
    arguments = signature.check(given, "input")
    made = Made(injector, ctx) if signature.injected else None
    try:
        if made is not None:
            for name, wanted in signature.injected.items():
                arguments[name] = await made.get(wanted)
        result = await enter(threads, signature, function, arguments)
        return None if result is None else await keep(result)
    finally:
        if made is not None:
            await made.close()


async def enter(
    threads: ThreadPoolExecutor, signature: Signature, function: Callable[..., Any], arguments: Mapping[str, Any]
) -> Any:
    process = fork.generation
    try:
        if signature.awaited:
            return await function(**arguments)
        return await in_thread(threads, functools.partial(function, **arguments))
    except (SystemExit, KeyboardInterrupt) as error:  # asyncio would end the worker
        raise WorkFailed(classify(error)) from error
    finally:
        if fork.generation != process:  # the function forked, and this is the copy: no second worker
            os._exit(0)


class Interrupted(BaseException):
    """Raised inside a thread whose run was cancelled and went on past the grace."""


async def in_thread(threads: ThreadPoolExecutor, call: Callable[[], Any]) -> Any:
    """Run a sync function in a thread. A cancelled one is asked through `ctx.canceled`, then interrupted at its next
    Python instruction; it is over only when it has really ended."""
    ident: list[int] = []

    def body() -> Any:
        ident.append(threading.get_ident())
        process = fork.generation
        try:
            return call()
        except StopIteration as error:  # no future can carry it: the run would never end
            raise RuntimeError("the function raised StopIteration") from error
        finally:
            if fork.generation != process:  # see `enter`
                os._exit(0)

    future = asyncio.get_running_loop().run_in_executor(threads, contextvars.copy_context().run, body)
    told = False
    while True:
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if future.done():
                return future.result()
            if told and ident:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident[0]), ctypes.py_object(Interrupted))
            told = True
