"""Runs untrusted scripts, each in a locked process (`jail.py`).

Spare locked processes are started ahead, because a start takes a quarter of a second. A process that has loaded a
script serves only that version of that workflow, for a limited number of calls. Its messages are untrusted: lines of
JSON, limited in size and number. On any error, of the script or of the host, the process is killed and replaced.
"""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from rota.core.clock import real_sleep, stopwatch
from rota.core.errors import Invalid, LogicError, Refused, RotaError
from rota.core.model import PAYLOAD_LIMIT
from rota.core.policy import Failure, FailureClass
from rota.engine.runner import WorkFailed, current_log

SCRIPT_LIMIT = 60_000  # characters of one script
LOAD_LIMIT = timedelta(seconds=5)
START_LIMIT = timedelta(seconds=30)
MESSAGE_BYTES = 2 * PAYLOAD_LIMIT
CALL_MESSAGES = 50_000
CALL_BYTES = 32 * PAYLOAD_LIMIT  # of all messages of one call
SPARE_PROCESSES = 2  # started ahead, without a script
IDLE_PROCESSES = 8  # kept for the next call of their script
PROCESS_CALLS, PROCESS_SECONDS = 500, 5.0  # calls, and their run time, after which a process is replaced

Ask = Callable[[str, Mapping[str, object]], Awaitable[object]]
Key = tuple[str, str]  # a workflow and its version

FAILURE_CLASSES = {  # that a script can raise; anything else is a logic failure
    "transient": FailureClass.TRANSIENT,
    "auth": FailureClass.AUTH,
    "permission": FailureClass.PERMISSION,
}
JAIL = str(Path(__file__).with_name("jail.py"))


def zones() -> str:
    """Return the folder of the time zone data."""
    spec = find_spec("tzdata")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).with_name("zoneinfo"))


def command() -> list[str]:
    return [sys.executable, "-I", "-S", "-B", "-X", "utf8", JAIL, zones()]


@dataclass(slots=True)
class Child:
    """A locked process, and the host's end of its socket."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    layers: Sequence[str] = ()
    calls: int = 0
    seconds: float = 0.0

    async def send(self, message: object) -> None:
        self.writer.write(orjson.dumps(message) + b"\n")
        with suppress(ConnectionError):  # it died; `receive` raises with the reason
            await self.writer.drain()

    async def receive(self) -> Any:
        """Return the next message, or None for an invalid one. Raises WorkFailed if the process died."""
        try:
            line = await self.reader.readline()
        except (ValueError, ConnectionError):  # longer than MESSAGE_BYTES
            line = b"\n"
        if not line.endswith(b"\n"):
            raise WorkFailed(failure_of_exit(await asyncio.to_thread(self.process.wait)))
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            return None
        return {**message, "size": len(line)} if isinstance(message, dict) else None

    def kill(self) -> None:
        with suppress(RuntimeError):  # its event loop is closed
            self.writer.close()
        self.process.kill()
        self.process.wait()


class Sandbox:
    """The locked processes of this worker. With `trusting`, scripts run also where the platform cannot contain them."""

    def __init__(self, trusting: bool = False, spare: int = SPARE_PROCESSES, start: Sequence[str] = ()) -> None:
        self.trusting, self.spare, self.command = trusting, spare, start or command()
        self.ready: list[asyncio.Task[Child]] = []  # spare processes
        self.idle: list[tuple[Key, Child]] = []  # with a loaded script, the last used at the end

    async def declare(self, source: str) -> dict[str, object]:
        """Return what a script declares; its requests to the host are refused. Raises Invalid with the line."""
        if len(source) > SCRIPT_LIMIT:
            raise Invalid("script", f"{len(source)} characters", f"is longer than {SCRIPT_LIMIT}")
        child = await self._fresh()
        try:
            async with asyncio.timeout(LOAD_LIMIT.total_seconds()):
                declared = (await self._converse(child, {"script": source}, refuse_request))["declared"]
        except TimeoutError as error:
            text = f"took longer than {LOAD_LIMIT.total_seconds():g} s to load: move work into its handlers"
            raise Invalid("script", "…", text) from error
        except (WorkFailed, LogicError) as error:
            shown = dict(enumerate(source.splitlines(), 1)).get(getattr(error, "line", 0), "…").strip()
            raise Invalid("script", shown, f"cannot be loaded: {error}") from error
        finally:
            child.kill()
        if not isinstance(declared, dict):
            raise Invalid("script", "…", "does not return a valid declaration")
        return declared

    async def call(
        self, key: Key, source: str, handler: str, step: str, args: Sequence[object], now: datetime, ask: Ask
    ) -> dict[str, object]:
        """Run one step of a handler; returns `{"returned": …}` or `{"prepared": …}`. Raises the failure of the script,
        after which its process is used again, or that of a request to the host."""
        child, began = await self._loaded(key, source), stopwatch()
        order = {"handler": handler, "step": step, "args": args, "now": now.isoformat()}
        try:
            result = await self._converse(child, order, ask)
        except ScriptRaised:
            self._keep(key, child, began)
            raise
        except BaseException:
            child.kill()
            raise
        self._keep(key, child, began)
        return result

    async def close(self) -> None:
        """Kill all processes."""
        for task in self.ready:
            task.cancel()
        for result in await asyncio.gather(*self.ready, return_exceptions=True):
            if isinstance(result, Child):
                result.kill()
        for _, child in self.idle:
            child.kill()
        self.ready, self.idle = [], []

    # messages

    async def _converse(self, child: Child, order: object, ask: Ask) -> dict[str, object]:
        """Send an order and serve requests until the result. Raises ScriptRaised, WorkFailed or LogicError."""
        await child.send(order)
        size = 0
        for _ in range(CALL_MESSAGES):
            match message := await child.receive():
                case {"ask": str(request), "params": dict(params)}:
                    await child.send({"answer": await ask(request, params)})
                case {"log": str(text)} if (log := current_log.get()) is not None:
                    log.line("log", text)
                case {"said": str(text)} if (log := current_log.get()) is not None:
                    log.write("stdout", text)
                case {"log": _} | {"said": _}:
                    pass
                case {"returned": _} | {"prepared": _} | {"declared": _}:
                    return dict(message)
                case {"raised": dict(error)}:
                    raise ScriptRaised(failure_in(error), error.get("line"))
                case _:
                    raise LogicError("the script sent the host a message that is too long or invalid")
            size += message["size"]
            if size > CALL_BYTES:
                break
            await real_sleep(0)  # yield: a script that sends without pause must not block the event loop
        raise LogicError("the script sent too many messages in one call")

    # processes

    async def _loaded(self, key: Key, source: str) -> Child:
        """Return a process that has loaded this version of a script."""
        for entry in [entry for entry in self.idle if entry[0] == key][::-1]:
            self.idle.remove(entry)
            if entry[1].process.poll() is None:
                return entry[1]
            entry[1].kill()
        child = await self._fresh()
        try:
            async with asyncio.timeout(LOAD_LIMIT.total_seconds()):
                await self._converse(child, {"script": source}, refuse_request)
        except BaseException:
            child.kill()
            raise
        return child

    async def _fresh(self) -> Child:
        """Return a process without a script, and start spare ones for the next callers. Raises Refused if the platform
        cannot contain scripts."""
        while len(self.ready) <= self.spare:
            self.ready.append(asyncio.ensure_future(self._start()))
        started = self.ready.pop(0)
        try:
            child = await asyncio.shield(started)
        except asyncio.CancelledError:  # the next caller gets it
            self.ready.insert(0, started)
            raise
        if "seccomp" not in child.layers and not self.trusting:
            child.kill()
            raise Refused(
                f"this machine ({sys.platform}) cannot contain a script: seccomp is not available. "
                "ROTA_TRUST_SCRIPTS=true runs script workflows anyway, with the rights of the worker"
            )
        return child

    async def _start(self) -> Child:
        process, ours = spawn(self.command)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MESSAGE_BYTES)
            child = Child(process, reader, writer)
            async with asyncio.timeout(START_LIMIT.total_seconds()):
                child.layers = (await child.receive())["layers"]
        except BaseException as error:
            process.kill()
            process.wait()
            ours.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise SandboxBroken(f"a process of the sandbox did not start: {error!r}") from error
        return child

    def _keep(self, key: Key, child: Child, began: float) -> None:
        """Keep a process for the next call of its script, or replace it after its limit; the least recently used one is
        killed if there are too many."""
        child.calls, child.seconds = child.calls + 1, child.seconds + stopwatch() - began
        if child.calls >= PROCESS_CALLS or child.seconds >= PROCESS_SECONDS:
            child.kill()
            return
        self.idle.append((key, child))
        if len(self.idle) > IDLE_PROCESSES:
            self.idle.pop(0)[1].kill()


class ScriptRaised(WorkFailed):
    """The script raised an exception, in this line."""

    def __init__(self, failure: Failure, line: object) -> None:
        super().__init__(failure)
        self.line = line if isinstance(line, int) else 0


class SandboxBroken(RotaError):
    """A process of the sandbox could not be started."""


def spawn(start: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process that inherits nothing but its end of a socket; returns it and the other end."""
    ours, theirs = socket.socketpair()
    with theirs:
        end = theirs.fileno()
        process = subprocess.Popen(
            start, stdin=end, stdout=end, stderr=subprocess.DEVNULL, env={}, cwd="/", start_new_session=True
        )
    return process, ours


async def refuse_request(request: str, params: Mapping[str, object]) -> object:  # noqa: ARG001
    raise LogicError(f"{request} is only available to handlers, not while the script is loaded")


def failure_in(error: Mapping[str, object]) -> Failure:
    """Return the failure of an untrusted message about an exception."""
    failure_class = FAILURE_CLASSES.get(str(error.get("code")), FailureClass.LOGIC)
    name, message, line = (str(error.get(field) or "")[:5000] for field in ("type", "message", "line"))
    where = f" (line {line})" if line else ""
    traceback, final = str(error.get("traceback") or "")[-20_000:], error.get("final") is True
    message = f"{name}: {message}" if name == "KeyError" else message or name
    return Failure(failure_class, name[:200], f"{message}{where}", traceback, final=final)


def failure_of_exit(code: int) -> Failure:
    """Return the failure of a script whose process died with this exit code."""
    match -code:
        case signal.SIGXCPU:
            return Failure(FailureClass.TIMEOUT, "Timeout", "the script exceeded its limit of processor time")
        case signal.SIGKILL:
            text = "the script's process was killed: it exceeded its limit of memory or processor time"
        case number if number > 0:
            text = f"the script's process crashed ({signal.Signals(number).name})"
        case _:
            text = f"the script ended its own process (exit code {code})"
    return Failure(FailureClass.LOGIC, "ScriptDied", text)
