"""Calls the functions of steps: async ones on the event loop, sync ones in a thread, with a time limit."""

import asyncio
import contextvars
import ctypes
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from rota.core.errors import LogicError

POLL_SECONDS = 0.5  # how often a thread that waits for a step looks whether its run is canceled

RunInThread = Callable[[Callable[[], object]], Awaitable[object]]

# the step whose function runs here: steps cannot be nested
current_step: contextvars.ContextVar[str | None] = contextvars.ContextVar("current_step", default=None)


@dataclass(slots=True)
class Caller:
    """How the function of a task is called."""

    loop: asyncio.AbstractEventLoop
    task: "asyncio.Task[Any] | None"  # that awaits it
    is_async: bool
    run_in_thread: RunInThread
    thread_id: int | None = None  # of a sync function, once it has called a step


class StepTimeout(BaseException):
    """Raised in the thread of a sync function that exceeds the time limit of its step."""


class StepCanceled(BaseException):
    """Ends a thread that waits for a step of a run that is canceled."""


async def call_with_limit(
    function: Callable[[], object], name: str, seconds: float | None, run_in_thread: RunInThread
) -> object:
    """Call the function of a step. Raises TimeoutError after so many seconds."""
    token = current_step.set(name)
    try:
        async with asyncio.timeout(seconds if is_async(function) else None) as limit:
            if is_async(function):
                return await function()  # type: ignore[misc]
            result = await run_in_thread(partial(interruptible, function, seconds, asyncio.get_running_loop()))
            return await result if inspect.isawaitable(result) else result
    except TimeoutError as error:
        if limit.expired():
            raise exceeded(name, seconds) from error
        raise
    except StepTimeout:
        raise exceeded(name, seconds) from None
    finally:
        current_step.reset(token)


class LimitExceeded(TimeoutError):
    """A step ran longer than its timeout."""


def exceeded(name: str, seconds: float | None) -> LimitExceeded:
    return LimitExceeded(f"step {name!r} still running after {seconds:g} s")


def is_async(function: Callable[..., object]) -> bool:
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def interruptible(function: Callable[[], object], seconds: float | None, loop: asyncio.AbstractEventLoop) -> object:
    """Call a function in this thread; after so many seconds StepTimeout is raised at its next Python instruction."""
    if seconds is None:
        return function()
    thread, lock, active = threading.get_ident(), threading.Lock(), True

    def interrupt() -> None:
        with lock:
            if active:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(StepTimeout))

    timers: list[asyncio.TimerHandle] = []
    loop.call_soon_threadsafe(lambda: timers.append(loop.call_later(seconds, interrupt)))
    try:
        return function()
    finally:
        with lock:
            active = False
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)  # one that is not raised yet
        loop.call_soon_threadsafe(cancel_all, timers)


def cancel_all(timers: list[asyncio.TimerHandle]) -> None:
    for timer in timers:
        timer.cancel()


def block(
    loop: asyncio.AbstractEventLoop,
    is_canceled: Callable[[], bool],
    make: Callable[[RunInThread], Coroutine[Any, Any, object]],
) -> object:
    """Run a coroutine on the event loop from a thread and return its result. Sync functions that it calls run in this
    thread: a second one might not be free. Raises StepCanceled if the run is canceled."""
    inbox: queue.SimpleQueue[tuple[Callable[[], object], asyncio.Future[object]] | None] = queue.SimpleQueue()

    async def run_here(function: Callable[[], object]) -> object:
        answer: asyncio.Future[object] = loop.create_future()
        inbox.put((function, answer))
        return await answer

    ended: Future[object] = asyncio.run_coroutine_threadsafe(make(run_here), loop)
    ended.add_done_callback(lambda _: inbox.put(None))
    while True:
        try:
            item = inbox.get(timeout=POLL_SECONDS)
        except queue.Empty:
            if is_canceled():
                ended.cancel()
                raise StepCanceled from None
            continue
        if item is None:
            return ended.result()
        function, answer = item
        try:
            outcome = partial(settle, answer, function(), None)
        except BaseException as error:
            outcome = partial(settle, answer, None, error)
        loop.call_soon_threadsafe(outcome)


def settle(answer: "asyncio.Future[object]", result: object, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    elif isinstance(error, StopIteration):  # a future cannot hold it
        answer.set_exception(RuntimeError("the function raised StopIteration"))
    else:
        answer.set_exception(error)


def on_this_loop(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this is the thread of the loop. Raises LogicError on another event loop."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return False
    if running is not loop:
        raise LogicError("steps are called from the task itself or its threads, not from another event loop")
    return True
