"""Calls functions of a program with their parameters and injected values, on the event loop or in a thread."""

import asyncio
import contextvars
import ctypes
import functools
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rota.core.clock import thread_cpu_seconds
from rota.core.errors import LogicError, NotFound
from rota.core.model import Resources, RunInfo
from rota.core.policy import classify
from rota.engine import artifact_contents
from rota.engine.runner import RunContext, WorkFailed
from rota.engine.step_calls import Caller
from rota.user_code.frames import from_parquet
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
    injected values are still open. Raises Invalid for a payload that does not fit, LogicError for a data frame that
    cannot be loaded."""
    signature = injector.signature(function)
    arguments = signature.check(payload, "input")
    scope = InjectionScope(injector, ctx) if signature.injected else None
    try:
        if scope is not None:
            for name, injected_type in signature.injected.items():
                arguments[name] = await scope.get(injected_type)
            ctx.caller = Caller(
                asyncio.get_running_loop(),
                asyncio.current_task(),
                signature.is_async,
                functools.partial(run_in_thread, threads, info=ctx.info),
            )
        for name, cls in signature.frames.items():
            if arguments.get(name) is not None:
                arguments[name] = await load_frame(threads, ctx, cls, name, arguments[name])
        result = await invoke(threads, signature, function, arguments, ctx.info)
        await ctx.finish_steps()
        return None if result is None else await save_result(result)
    finally:
        if scope is not None:
            await scope.close()


async def load_frame(threads: ThreadPoolExecutor, ctx: RunContext, cls: type, name: str, reference: Any) -> object:
    """Return the data frame of an artifact of the run's org, in the type of the parameter. Raises LogicError if the
    artifact does not exist, is not Parquet or is too large to load."""
    artifact_id = reference if isinstance(reference, str) else str(reference["artifact_id"])
    try:
        content_type, content = await artifact_contents.read_all(ctx.engine, ctx.org_id, artifact_id)
    except NotFound as error:
        raise LogicError(f"parameter {name!r}: {error.message}") from error
    limit = ctx.engine.settings.artifact_limit
    load = functools.partial(from_parquet, cls, content_type, content, artifact_id, limit)
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, load)
    except LogicError as error:
        raise LogicError(f"parameter {name!r}: {error.message}") from error


async def invoke(
    threads: ThreadPoolExecutor,
    signature: Signature,
    function: UserFunction,
    arguments: Mapping[str, object],
    info: RunInfo,
) -> object:
    """Await an async function here, run a sync one in a thread, whose CPU time is recorded. Raises WorkFailed for
    SystemExit."""
    generation = forks.generation
    try:
        if signature.is_async:
            return await function(**arguments)
        return await run_in_thread(threads, functools.partial(function, **arguments), info)
    except (SystemExit, KeyboardInterrupt) as error:  # asyncio would stop the worker's loop
        raise WorkFailed(classify(error)) from error
    finally:
        if forks.generation != generation:  # the function forked: the child must not go on as a second worker
            os._exit(0)


class Interrupted(BaseException):
    """Raised inside a thread that still runs when its run is canceled for the second time, after the grace."""


async def run_in_thread(threads: ThreadPoolExecutor, call: Callable[[], object], info: RunInfo) -> object:
    """Run a sync function in a thread, and return only when it has ended. On the first cancellation it sees
    `ctx.canceled`; on the second it is interrupted at its next Python instruction."""
    thread_ids: list[int] = []
    cpu_seconds: list[float] = []

    def body() -> object:
        thread_ids.append(threading.get_ident())
        generation, started = forks.generation, thread_cpu_seconds()
        try:
            return call()
        except StopIteration as error:  # a future cannot hold it: the run would never end
            raise RuntimeError("the function raised StopIteration") from error
        finally:
            if forks.generation != generation:  # see `invoke`
                os._exit(0)
            cpu_seconds.append(thread_cpu_seconds() - started)

    future = asyncio.get_running_loop().run_in_executor(threads, contextvars.copy_context().run, body)
    canceled = False
    try:
        while True:
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                if future.done():
                    return future.result()
                if canceled and thread_ids:
                    interrupted = ctypes.py_object(Interrupted)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_ids[0]), interrupted)
                canceled = True
    finally:  # a run may have several functions in threads: its own, or its steps
        before = 0.0 if info.resources is None else info.resources.cpu_seconds or 0.0
        info.resources = Resources(cpu_seconds=round(before + sum(cpu_seconds), 6))
