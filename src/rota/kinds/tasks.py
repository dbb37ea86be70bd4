"""Tasks: Python functions and shell commands."""

import asyncio
import contextvars
import ctypes
import functools
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, get_type_hints

import orjson

from rota.core import parse
from rota.core.clock import stopwatch
from rota.core.errors import Conflict, Invalid, LogicError, NotFound
from rota.core.model import PAYLOAD_LIMIT, Job
from rota.core.parse import Defaults
from rota.core.policy import Failure, FailureClass, Retry
from rota.engine.runner import ChildCrashed, RunContext, WorkFailed
from rota.store import tasks
from rota.store.database import Database

SHELL_ROUTE = "shell"  # commands that are stored, not declared: any worker can run them
OUTPUT_LIMIT = 64 * 1024  # characters of a command's output kept in its outcome; the log has more
RESOLVED_FOR = 1.0  # seconds that a look-up of a task is trusted
ISOLATED_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Task:
    """What can run: a function, or a command."""

    name: str
    function: Callable[..., Any] | None = None
    command: str | None = None
    retry: Retry | None = None
    timeout: timedelta | None = None
    isolation: str = "none"
    version: str | None = None

    @property
    def type(self) -> str:
        return "shell" if self.function is None else "python"


class TaskRegistry:
    """The functions that may run. Only what is registered runs: nothing is imported or evaluated by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def register(self, name: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def remember(function: Callable[..., Any]) -> Callable[..., Any]:
            self.register_function(name, function, **options)
            return function

        return remember

    def register_function(self, name: str, function: Callable[..., Any], **options: Any) -> None:
        self.add(Task(name, function=function, **options))

    def add(self, task: Task) -> None:
        parse.name(task.name, "name")
        if task.name in self._tasks:
            raise Conflict(f"task {task.name}: a task of this name is registered already")
        self._tasks[task.name] = task

    def get(self, name: str) -> Task:
        return self._tasks[name]

    def find(self, name: str) -> Task | None:
        return self._tasks.get(name)

    def list_all(self) -> list[str]:
        return sorted(self._tasks)

    def clear(self) -> None:
        self._tasks.clear()


class TaskRunner:
    """Runs tasks: async functions on the loop, sync ones in threads, commands in processes of their own."""

    kind = "task"
    defaults = Defaults()

    def __init__(self, registry: TaskRegistry, db: Database, app: str | None = None, threads: int = 50) -> None:
        self.registry, self.db, self.app = registry, db, app
        self._threads = ThreadPoolExecutor(threads, "rota-task")
        self._resolved: dict[tuple[str, str], tuple[float, Any]] = {}
        self._isolated = asyncio.Semaphore(ISOLATED_AT_ONCE)

    def routes(self) -> Collection[str]:
        return {SHELL_ROUTE, *(f"task:{name}" for name in self.registry.list_all())}

    async def resolve(self, org_id: str, target: str, payload: Any) -> str:
        row = await self.look_up(org_id, target)
        task = self.registry.find(row.name)
        if task is not None and task.function is not None:
            arguments(task, payload, None)
        elif payload is not None and row.task_type == "python" and not isinstance(payload, Mapping):
            raise Invalid("input", payload, "is not an object of parameters")
        return SHELL_ROUTE if row.source != tasks.CODE else f"task:{row.name}"

    def marks_first(self, job: Job) -> bool:
        task = self.declared(job)
        return task is None or task.function is None or task.isolation == "process"

    def limits(self, job: Job) -> timedelta | None:
        task = self.declared(job)
        return task.timeout if task is not None else None

    async def execute(self, ctx: RunContext) -> Any:
        task = self.declared(ctx.job) or await self.stored(ctx)
        if task.command is not None:
            return await run_command(ctx, task.command)
        if ctx.isolated:  # its worker has counted it already
            return await run_child(ctx, self.app, task.name)
        if task.isolation == "process":
            async with self._isolated:
                return await run_child(ctx, self.app, task.name)
        assert task.function is not None
        call = bound(task, ctx)
        if inspect.iscoroutinefunction(task.function):
            return checked(await call())
        return checked(await in_thread(self._threads, call))

    def declared(self, job: Job) -> Task | None:
        return self.registry.find(job.route.removeprefix("task:"))

    async def stored(self, ctx: RunContext) -> Task:
        """A command that is stored, or a function that this worker no longer has."""
        try:
            row = await self.db.read(tasks.get, ctx.org_id, ctx.job.target)
        except NotFound as error:
            raise LogicError(f"{error.message}; it was deleted after the job was made") from error
        if row.task_type != "shell":
            raise LogicError(f"task {row.name}: its function is not known to this worker")
        return Task(row.name, command=row.command)

    async def look_up(self, org_id: str, target: str) -> Any:
        found = self._resolved.get((org_id, target))
        if found is None or stopwatch() - found[0] > RESOLVED_FOR:
            try:
                row = await self.db.read(tasks.get, org_id, target)
            except NotFound as error:
                raise Invalid(
                    "target", target, "is not a known task; `rota task list` shows those there are"
                ) from error
            found = self._resolved[(org_id, target)] = (stopwatch(), row)
        return found[1]


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes, analysed once."""

    accepted: frozenset[str]
    required: frozenset[str]
    open_ended: bool  # it has **kwargs
    contexts: tuple[str, ...]  # parameters that want the run context

    @classmethod
    @functools.cache
    def of(cls, function: Callable[..., Any]) -> "Signature":
        hints = get_type_hints(function)
        contexts = tuple(name for name, hint in hints.items() if hint is RunContext and name != "return")
        named = {
            name: one
            for name, one in inspect.signature(function).parameters.items()
            if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        }
        return cls(
            accepted=frozenset(named),
            required=frozenset(name for name, one in named.items() if one.default is one.empty),
            open_ended=any(one.kind is one.VAR_KEYWORD for one in inspect.signature(function).parameters.values()),
            contexts=contexts,
        )


def arguments(task: Task, payload: Any, ctx: RunContext | None) -> dict[str, Any]:
    """The keyword arguments of a function: the payload's fields, and the run context where it asks for one."""
    if payload is not None and not isinstance(payload, Mapping):
        raise Invalid("input", payload, "is not an object of parameters")
    assert task.function is not None
    known = Signature.of(task.function)
    given = dict(payload or {}, **dict.fromkeys(known.contexts, ctx))
    if missing := known.required - given.keys():
        raise Invalid("input", payload, f"does not fit task {task.name}: {', '.join(sorted(missing))} is missing")
    if not known.open_ended and (unknown := given.keys() - known.accepted):
        raise Invalid("input", payload, f"does not fit task {task.name}: it takes no {', '.join(sorted(unknown))}")
    return given


def bound(task: Task, ctx: RunContext) -> Callable[[], Any]:
    function = task.function
    assert function is not None
    given = arguments(task, ctx.job.payload, ctx)
    return lambda: function(**given)


def checked(outcome: Any) -> Any:
    """An outcome that can be stored, or a clear error: the side effects of the function are its author's."""
    try:
        size = len(orjson.dumps(outcome))
    except (TypeError, ValueError) as error:
        raise LogicError(f"the task's result cannot be written as JSON: {error}") from error
    if size > PAYLOAD_LIMIT:
        raise LogicError(f"the task's result has {size} bytes of JSON; at most {PAYLOAD_LIMIT} are kept")
    return outcome


# threads


class Interrupted(BaseException):
    """Raised inside a thread whose run was cancelled and went on past the grace."""


async def in_thread(threads: ThreadPoolExecutor, call: Callable[[], Any]) -> Any:
    """Run a sync function in a thread. A cancelled one is asked through `ctx.canceled`, then interrupted at its next
    Python instruction; it is over only when it has really ended."""
    ident: list[int] = []

    def body() -> Any:
        ident.append(threading.get_ident())
        return call()

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


# processes


async def run_command(ctx: RunContext, command: str) -> dict[str, Any]:
    """Run a command through the system's shell, in a process group of its own. Its input comes as JSON on stdin."""
    process = await asyncio.create_subprocess_shell(command, env=environment(ctx), **STREAMS)
    kept = await supervise(ctx, process, orjson.dumps(ctx.job.payload) if ctx.job.payload is not None else b"")
    outcome = {"exit_code": process.returncode, **kept}
    if process.returncode:
        last = next((line for line in reversed(kept["stderr"].splitlines()) if line.strip()), "")
        text = f"exit code {process.returncode}" + (f": {last}" if last else "")
        raise WorkFailed(Failure(FailureClass.LOGIC, "CommandFailed", text), outcome)
    return outcome


async def run_child(ctx: RunContext, app: str | None, name: str) -> Any:
    """Run a function in a Python process of its own, where it can hurt only itself."""
    if app is None:
        raise LogicError(f"task {name}: it must run in a process of its own, but no app file was given to load it from")
    reading, writing = os.pipe()
    job = ctx.job
    order = {
        "app": app, "task": name, "payload": job.payload, "run_id": ctx.run_id, "attempt": ctx.attempt,
        "worker": ctx.worker, "job_id": job.id, "org_id": job.org_id, "fence": job.fence, "trigger": job.trigger,
        "slot": job.slot and job.slot.isoformat(), "result_fd": writing,
    }  # fmt: skip
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rota.app.child", pass_fds=(writing,), env=dict(os.environ), **STREAMS
        )
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as results:
        answer = asyncio.get_running_loop().run_in_executor(None, results.read)
        await supervise(ctx, process, orjson.dumps(order))
        told = await answer
    if not told:
        raise ChildCrashed(f"the process of this run died ({died_of(process.returncode)})")
    result = orjson.loads(told)
    if "failure" in result:
        raise WorkFailed(Failure(**{**result["failure"], "kind": FailureClass(result["failure"]["kind"])}))
    return result["outcome"]


async def supervise(ctx: RunContext, process: asyncio.subprocess.Process, feed: bytes) -> dict[str, str]:
    """Feed a process, log what it says, and see it out. Cancelled: SIGTERM, the grace, SIGKILL, the whole group."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    kept = {"stdout": Tail(), "stderr": Tail()}
    readers = [
        asyncio.ensure_future(pump(ctx, stream, name, kept[name]))
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr))
    ]
    writer = asyncio.ensure_future(pour(process.stdin, feed))
    ended = asyncio.ensure_future(process.wait())
    canceled = False
    try:
        while not ended.done():
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError:
                kill_group(process.pid, signal.SIGKILL if canceled else signal.SIGTERM)
                canceled = True
        await asyncio.wait(readers, timeout=1.0)  # somebody else may have inherited the pipes and keep them open
    finally:
        kill_group(process.pid, signal.SIGKILL)
        for task in (*readers, writer):
            task.cancel()
    if canceled and process.returncode != 0:
        raise asyncio.CancelledError
    return {name: tail.text() for name, tail in kept.items()}


async def pump(ctx: RunContext, stream: asyncio.StreamReader, name: str, tail: "Tail") -> None:
    while chunk := await stream.read(65_536):
        text = chunk.decode("utf-8", "replace")
        ctx.log.write(name, text)
        tail.add(text)


async def pour(stdin: asyncio.StreamWriter, feed: bytes) -> None:
    try:
        stdin.write(feed)
        await stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it did not want to read
    finally:
        stdin.close()


class Tail:
    """The last part of a text that may be long."""

    def __init__(self) -> None:
        self._text = ""

    def add(self, text: str) -> None:
        self._text = (self._text + text)[-OUTPUT_LIMIT:]

    def text(self) -> str:
        return self._text.replace("\0", "␀")


def environment(ctx: RunContext) -> dict[str, str]:
    """What a command inherits: everything but Rota's own settings, which may hold secrets, and facts about its run."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    job = ctx.job
    facts = {
        "ROTA_RUN_ID": ctx.run_id, "ROTA_JOB_ID": job.id, "ROTA_ATTEMPT": str(ctx.attempt),
        "ROTA_FENCE": str(job.fence), "ROTA_SLOT": job.slot.isoformat() if job.slot else "",
    }  # fmt: skip
    return inherited | facts


def kill_group(pid: int, how: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it may be gone already
        os.killpg(pid, how)


def die_with_parent() -> None:
    """Called in a new process: it must not outlive its worker. Linux only; elsewhere its result is refused."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def died_of(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


STREAMS: dict[str, Any] = {
    "stdin": asyncio.subprocess.PIPE,
    "stdout": asyncio.subprocess.PIPE,
    "stderr": asyncio.subprocess.PIPE,
    "start_new_session": True,
    "preexec_fn": die_with_parent,
}
