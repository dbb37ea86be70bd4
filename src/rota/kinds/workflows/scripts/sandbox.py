"""Runs scripts that nobody trusts, each in a process that has locked itself up (`jail.py`), and survives what they do.

Some locked processes stand ready, because starting one takes a quarter of a second. One that has loaded a script
serves that version of that workflow alone, and not for ever. What comes out of it is hostile: lines of JSON of bounded
size and number. Whatever goes wrong with it, by its own fault or by ours, it is killed and another takes its place.
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
CHECK_LIMIT = timedelta(seconds=5)
START_LIMIT = timedelta(seconds=30)
LINE_LIMIT = 2 * PAYLOAD_LIMIT  # bytes of one message
LINES_LIMIT = 50_000  # messages of one call
BYTES_LIMIT = 32 * PAYLOAD_LIMIT
SPARE = 2  # processes that wait for a script
IDLE = 8  # processes that wait for another call of theirs
CALLS, SECONDS = 500, 5.0  # after so many calls, or such a time, a process has served

Ask = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
Key = tuple[str, str]  # a workflow and its version

CLASSES = {one.value: one for one in (FailureClass.TRANSIENT, FailureClass.AUTH, FailureClass.PERMISSION)}
JAIL = str(Path(__file__).with_name("jail.py"))


def zones() -> str:
    found = find_spec("tzdata")
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).with_name("zoneinfo"))


def command() -> list[str]:
    return [sys.executable, "-I", "-S", "-B", "-X", "utf8", JAIL, zones()]


@dataclass(slots=True)
class Child:
    """A locked process, and this end of its socket."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    layers: Sequence[str] = ()
    calls: int = 0
    seconds: float = 0.0

    async def tell(self, message: Any) -> None:
        self.writer.write(orjson.dumps(message) + b"\n")
        with suppress(ConnectionError):  # it is dead; what it says next tells why
            await self.writer.drain()

    async def hear(self) -> Any:
        """Its next message. None if it is no message at all."""
        try:
            line = await self.reader.readline()
        except (ValueError, ConnectionError):  # longer than is read
            line = b"\n"
        if not line.endswith(b"\n"):
            raise WorkFailed(died(await asyncio.to_thread(self.process.wait)))
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError:
            return None
        return {**found, "size": len(line)} if isinstance(found, dict) else None

    def kill(self) -> None:
        with suppress(RuntimeError):  # its event loop is closed
            self.writer.close()
        self.process.kill()
        self.process.wait()


class Sandbox:
    """The locked processes of this worker. `trusting` runs scripts also where the platform cannot contain them."""

    def __init__(self, trusting: bool = False, spare: int = SPARE, start: Sequence[str] = ()) -> None:
        self.trusting, self.spare, self.command = trusting, spare, start or command()
        self.ready: list[asyncio.Task[Child]] = []  # that wait for a script
        self.idle: list[tuple[Key, Child]] = []  # that wait for another call of theirs, the latest last

    async def declare(self, source: str) -> dict[str, Any]:
        """What a script declares. Raises Invalid, with the line; every question that it asks its host is refused."""
        if len(source) > SCRIPT_LIMIT:
            raise Invalid("script", f"{len(source)} characters", f"is longer than {SCRIPT_LIMIT}")
        child = await self._fresh()
        try:
            async with asyncio.timeout(CHECK_LIMIT.total_seconds()):
                declared = (await self._converse(child, {"script": source}, nobody))["declared"]
        except TimeoutError as error:
            text = f"has not been loaded after {CHECK_LIMIT.total_seconds():g} s: it does too much outside its handlers"
            raise Invalid("script", "…", text) from error
        except (WorkFailed, LogicError) as error:
            shown = dict(enumerate(source.splitlines(), 1)).get(getattr(error, "line", 0), "…").strip()
            raise Invalid("script", shown, f"cannot be loaded: {error}") from error
        finally:
            child.kill()
        if not isinstance(declared, dict):
            raise Invalid("script", "…", "declares nothing that can be understood")
        return declared

    async def call(
        self, key: Key, source: str, handler: str, step: str, args: Sequence[Any], now: datetime, ask: Ask
    ) -> dict[str, Any]:
        """One step of a handler: `{"returned": …}`, or `{"prepared": …}`. Raises what the script raised, or what its
        host did; a process that raised the one may be used again."""
        child, began = await self._loaded(key, source), stopwatch()
        order = {"handler": handler, "step": step, "args": args, "now": now.isoformat()}
        try:
            found = await self._converse(child, order, ask)
        except Raised:
            self._keep(key, child, began)
            raise
        except BaseException:
            child.kill()
            raise
        self._keep(key, child, began)
        return found

    async def close(self) -> None:
        for task in self.ready:
            task.cancel()
        for found in await asyncio.gather(*self.ready, return_exceptions=True):
            if isinstance(found, Child):
                found.kill()
        for _, child in self.idle:
            child.kill()
        self.ready, self.idle = [], []

    # the conversation

    async def _converse(self, child: Child, order: Any, ask: Ask) -> dict[str, Any]:
        """Give an order and answer questions until it is done."""
        await child.tell(order)
        size = 0
        for _ in range(LINES_LIMIT):
            match told := await child.hear():
                case {"ask": str(what), "params": dict(params)}:
                    await child.tell({"answer": await ask(what, params)})
                case {"log": str(text)} if (log := current_log.get()) is not None:
                    log.line("log", text)
                case {"said": str(text)} if (log := current_log.get()) is not None:
                    log.write("stdout", text)
                case {"log": _} | {"said": _}:
                    pass
                case {"returned": _} | {"prepared": _} | {"declared": _}:
                    return dict(told)
                case {"raised": dict(error)}:
                    raise Raised(failure_in(error), error.get("line"))
                case _:
                    raise LogicError("the script broke the talk with its host: what it sent is too long, or no message")
            size += told["size"]
            if size > BYTES_LIMIT:
                break
            await real_sleep(0)  # a script that never stops talking must not keep others from being heard
        raise LogicError("the script said and asked for too much in one call")

    # processes

    async def _loaded(self, key: Key, source: str) -> Child:
        for one in [one for one in self.idle if one[0] == key][::-1]:
            self.idle.remove(one)
            if one[1].process.poll() is None:
                return one[1]
            one[1].kill()
        child = await self._fresh()
        try:
            async with asyncio.timeout(CHECK_LIMIT.total_seconds()):
                await self._converse(child, {"script": source}, nobody)
        except BaseException:
            child.kill()
            raise
        return child

    async def _fresh(self) -> Child:
        """A process that has seen nothing yet; others are started for whoever comes next."""
        while len(self.ready) <= self.spare:
            self.ready.append(asyncio.ensure_future(self._start()))
        started = self.ready.pop(0)
        try:
            child = await asyncio.shield(started)
        except asyncio.CancelledError:  # whoever comes next has it
            self.ready.insert(0, started)
            raise
        if "seccomp" not in child.layers and not self.trusting:
            child.kill()
            raise Refused(
                f"this machine ({sys.platform}) cannot contain a script: its kernel has no seccomp that Rota knows. "
                "ROTA_TRUST_SCRIPTS=true runs script workflows all the same, with the rights of the worker"
            )
        return child

    async def _start(self) -> Child:
        process, ours = spawn(self.command)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=LINE_LIMIT)
            child = Child(process, reader, writer)
            async with asyncio.timeout(START_LIMIT.total_seconds()):
                child.layers = (await child.hear())["layers"]
        except BaseException as error:
            process.kill()
            process.wait()
            ours.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise SandboxBroken(f"a process for scripts did not start: {error!r}") from error
        return child

    def _keep(self, key: Key, child: Child, began: float) -> None:
        """For its next call, unless it has served; who was not asked for the longest makes room."""
        child.calls, child.seconds = child.calls + 1, child.seconds + stopwatch() - began
        if child.calls >= CALLS or child.seconds >= SECONDS:
            child.kill()
            return
        self.idle.append((key, child))
        if len(self.idle) > IDLE:
            self.idle.pop(0)[1].kill()


class Raised(WorkFailed):
    """The script raised an exception, in this line of it."""

    def __init__(self, failure: Failure, line: Any) -> None:
        super().__init__(failure)
        self.line = line if isinstance(line, int) else 0


class SandboxBroken(RotaError):
    """No process for scripts could be started."""


def spawn(start: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A process with nothing but its end of a socket."""
    ours, theirs = socket.socketpair()
    with theirs:
        end = theirs.fileno()
        process = subprocess.Popen(
            start, stdin=end, stdout=end, stderr=subprocess.DEVNULL, env={}, cwd="/", start_new_session=True
        )
    return process, ours


async def nobody(what: str, params: Mapping[str, Any]) -> Any:  # noqa: ARG001
    raise LogicError(f"{what} is for handlers: while a script is loaded, nothing can be asked")


def failure_in(told: Mapping[str, Any]) -> Failure:
    """What a script raised, as it says."""
    kind = CLASSES.get(str(told.get("code")), FailureClass.LOGIC)
    named, message, line = (str(told.get(name) or "")[:5000] for name in ("type", "message", "line"))
    where = f" (line {line})" if line else ""
    traceback, final = str(told.get("traceback") or "")[-20_000:], told.get("final") is True
    message = f"{named}: {message}" if named == "KeyError" else message or named
    return Failure(kind, named[:200], f"{message}{where}", traceback, final=final)


def died(code: int) -> Failure:
    """What became of a process that is not there any more, in plain words."""
    match -code:
        case signal.SIGXCPU:
            return Failure(FailureClass.TIMEOUT, "Timeout", "the script used more processor time than it is given")
        case signal.SIGKILL:
            text = "the script's process was killed: it used up the memory, or the processor time it is given"
        case number if number > 0:
            text = f"the script's process crashed ({signal.Signals(number).name})"
        case _:
            text = f"the script ended its own process (exit code {code})"
    return Failure(FailureClass.LOGIC, "ScriptDied", text)
