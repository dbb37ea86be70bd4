"""Calls functions of a program with their parameters and injected values, on the event loop or in a thread."""

import asyncio
import contextvars
import ctypes
import functools
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rota.core.policy import classify
from rota.engine.runner import RunContext, WorkFailed
from rota.user_code.injection import InjectionScope, Injector, Signature, UserFunction


class ForkCounter:
    """Detects that this process is a fork of the one that began a call, without the system call of `getpid`."""

    generation = 0

    def count(self) -> None:
        self.generation += 1


R = TypeVar("R")

forks = ForkCounter()
os.register_at_fork(after_in_child=forks.count)


async def call(
    injector: Injector,
    threads: ThreadPoolExecutor,
    ctx: RunContext,
    function: UserFunction,
    payload: object,
    save_result: Callable[[object], Awaitable[R]],
) -> R | None:
    """Call a function with the parameters of `payload`, and return what `save_result` makes of its result while the
    injected values are still open. Raises Invalid for a payload that does not fit."""
    signature = injector.signature(function)
    arguments = signature.check(payload, "input")
    scope = InjectionScope(injector, ctx) if signature.injected else None
    try:
        if scope is not None:
            for name, injected_type in signature.injected.items():
                arguments[name] = await scope.get(injected_type)
        result = await invoke(threads, signature, function, arguments)
        return None if result is None else await save_result(result)
    finally:
        if scope is not None:
            await scope.close()


async def invoke(
    threads: ThreadPoolExecutor, signature: Signature, function: UserFunction, arguments: Mapping[str, object]
) -> object:
    """Await an async function here, run a sync one in a thread. Raises WorkFailed for SystemExit."""
    generation = forks.generation
    try:
        if signature.is_async:
            return await function(**arguments)
        return await run_in_thread(threads, functools.partial(function, **arguments))
    except (SystemExit, KeyboardInterrupt) as error:  # asyncio would stop the worker's loop
        raise WorkFailed(classify(error)) from error
    finally:
        if forks.generation != generation:  # the function forked: the child must not go on as a second worker
            os._exit(0)


class Interrupted(BaseException):
    """Raised inside a thread that still runs when its run is canceled for the second time, after the grace."""


async def run_in_thread(threads: ThreadPoolExecutor, call: Callable[[], object]) -> object:
    """Run a sync function in a thread, and return only when it has ended. On the first cancellation it sees
    `ctx.canceled`; on the second it is interrupted at its next Python instruction."""
    thread_ids: list[int] = []

    def body() -> object:
        thread_ids.append(threading.get_ident())
        generation = forks.generation
        try:
            return call()
        except StopIteration as error:  # a future cannot hold it: the run would never end
            raise RuntimeError("the function raised StopIteration") from error
        finally:
            if forks.generation != generation:  # see `invoke`
                os._exit(0)

    future = asyncio.get_running_loop().run_in_executor(threads, contextvars.copy_context().run, body)
    canceled = False
    while True:
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if future.done():
                return future.result()
            if canceled and thread_ids:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_ids[0]), ctypes.py_object(Interrupted))
            canceled = True
