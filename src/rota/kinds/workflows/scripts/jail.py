"""The inside of the sandbox: a Python process that locks itself up and then runs the script that it is given.

It is started by its path with nothing but the standard library, loads what scripts may import, and gives up everything
a process can give up. From then on the kernel lets it do little more than compute, ask the time, and read and write the
one socket it was started with: lines of JSON. It is never imported by the rest of Rota, and nothing that it says is
believed: `sandbox.py` is the other end.
"""

import contextlib
import ctypes
import dataclasses
import errno
import importlib
import inspect
import io
import json
import linecache
import logging
import os
import platform
import resource
import signal
import struct
import sys
import tempfile
import traceback
import types
import zoneinfo
from datetime import datetime
from pathlib import Path
from typing import Any

MODULES = (  # what a script may import, beside `rota`; loaded before the door is locked
    "abc", "ast", "asyncio", "base64", "binascii", "bisect", "calendar", "collections", "collections.abc", "contextlib",
    "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "email.utils", "enum", "fnmatch", "fractions",
    "functools", "graphlib", "hashlib", "heapq", "hmac", "html", "html.parser", "inspect", "io", "ipaddress",
    "itertools", "json", "logging", "math", "numbers", "operator", "pprint", "random", "re", "secrets", "statistics",
    "string", "struct", "textwrap", "time", "traceback", "types", "typing", "unicodedata", "urllib.parse", "uuid",
    "warnings", "xml.etree.ElementTree", "zlib", "zoneinfo",
)  # fmt: skip
WITHIN = ("_strptime", "locale", "xml.parsers.expat")  # and what those load when they are first used
ENCODINGS = ("ascii", "latin_1", "cp1252", "iso8859_15", "utf_8_sig", "utf_16", "utf_32", "idna", "punycode")

FILE = "<workflow>"
CPU_SECONDS = 60
MEMORY = 256 << 20
NOBODY = 65534

ARCH = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
CALLS = {  # everything the kernel still does for it, by the numbers of both machines
    "read": (0, 63), "write": (1, 64), "munmap": (11, 215), "brk": (12, 214), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233),
    "nanosleep": (35, 101), "getpid": (39, 172), "exit": (60, 93), "gettimeofday": (96, 169),
    "sigaltstack": (131, 132), "gettid": (186, 178), "futex": (202, 98), "restart_syscall": (219, 128),
    "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "exit_group": (231, 94), "epoll_wait": (232, None),
    "epoll_pwait": (281, 22), "getrandom": (318, 278), "epoll_pwait2": (441, 441),
}  # fmt: skip
MAPS = {"mmap": (9, 222), "mprotect": (10, 226)}  # also these, unless they ask for memory that can be executed


def main() -> None:
    link = Link()
    load_modules()
    asyncio = importlib.import_module("asyncio")
    loop = asyncio.new_event_loop()  # it cannot be made later
    asyncio.set_event_loop(loop)
    layers = lock()
    sys.stdout = sys.stderr = Speech(link)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", handlers=[Lines(link)])
    link.send({"layers": layers})
    flow: Workflow | None = None
    while (order := link.receive()) is not None:
        try:
            if "script" in order:
                flow = load(order["script"])
                told = {"declared": flow.dump()}
            else:
                assert flow is not None
                told = loop.run_until_complete(run(flow, link, order))
            link.send(told)
        except BaseException as error:  # whatever it is, it is the script's
            link.send({"raised": describe(error)})
    os._exit(0)


class Link:
    """The one socket: a line of JSON is a message."""

    def __init__(self) -> None:
        self.lines = open(0, "rb", closefd=False)  # noqa: SIM115

    def send(self, told: Any) -> None:
        line = memoryview(json.dumps(told, allow_nan=False).encode() + b"\n")
        while line:
            line = line[os.write(1, line) :]

    def receive(self) -> Any:
        line = self.lines.readline()
        return json.loads(line) if line else None

    def ask(self, what: str, params: dict[str, Any]) -> Any:
        self.send({"ask": what, "params": params})
        return self.receive()["answer"]  # a question that is refused ends the run, and this process


class Speech(io.TextIOBase):
    """What is printed goes to the run's log."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def write(self, text: str) -> int:
        self.link.send({"said": str(text)})
        return len(text)


class Lines(logging.Handler):
    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link = link

    def emit(self, record: logging.LogRecord) -> None:
        self.link.send({"log": self.format(record)})


# what scripts are given: `from rota import Workflow, Prepare, every`


class WorkError(Exception):
    """What a handler raises to say how it failed."""

    code = "logic"


class TransientError(WorkError):
    code = "transient"


class LogicError(WorkError):
    pass


class AuthError(WorkError):
    code = "auth"


class PermissionDenied(WorkError):
    code = "permission"


@dataclasses.dataclass(frozen=True)
class Reservation:
    topic: str
    ids: Any


@dataclasses.dataclass
class Prepare:
    reservations: Any = dataclasses.field(default_factory=dict)
    data: Any = None
    wake_at: Any = None
    title: Any = None

    def dump(self) -> dict[str, Any]:
        given = self.reservations
        if isinstance(given, list | tuple) and all(isinstance(one, Reservation) for one in given):
            found: dict[str, list[str]] = {}
            for one in given:
                found.setdefault(one.topic, []).extend(one.ids)
            given = found
        wake = self.wake_at.isoformat() if isinstance(self.wake_at, datetime) else self.wake_at
        return {"reservations": given, "data": self.data, "wake_at": wake, "title": self.title}


@dataclasses.dataclass(frozen=True)
class Mutation:
    status: str
    result: Any = None


@dataclasses.dataclass(frozen=True)
class Event:
    id: str
    topic: str
    message_id: str
    payload: Any
    title: Any
    status: str
    attempt: int
    created_at: datetime

    @classmethod
    def load(cls, told: Any) -> "Event":
        return cls(**{**told, "created_at": datetime.fromisoformat(told["created_at"])})


def every(interval: Any) -> dict[str, Any]:
    return {"interval": interval}


def cron(expression: str, timezone: str = "UTC") -> dict[str, Any]:
    return {"cron_expression": expression, "timezone": timezone}


class Workflow:
    made: "list[Workflow]" = []  # noqa: RUF012

    def __init__(
        self, name: str, *, topics: Any = (), description: str = "", isolate: bool = False, version: Any = None,
        connectors: Any = None, repair: str = "auto",
    ) -> None:  # fmt: skip
        self.told = {
            "name": name, "topics": list(topics), "description": description, "isolate": isolate,
            "connectors": list(connectors or ()), "repair": repair,
        }  # fmt: skip
        self.handlers: dict[str, dict[str, Any]] = {}
        self.steps: dict[tuple[str, str], Any] = {}
        if version is not None:
            raise ValueError("version: that of a script is counted by Rota")
        Workflow.made.append(self)

    def producer(self, *, schedule: Any, publishes: Any, name: str | None = None) -> Any:
        def remember(function: Any) -> Any:
            self.add(name or function.__name__, "producer", {"produce": function}, (), publishes, schedule)
            return function

        return remember

    def consumer(self, *, subscribe: Any, publishes: Any = (), name: str | None = None) -> Any:
        def remember(cls: Any) -> Any:
            one = cls() if isinstance(cls, type) else cls
            steps = {step: getattr(one, step) for step in ("prepare", "mutate", "next") if hasattr(one, step)}
            called = str(name or getattr(cls, "__name__", type(one).__name__))
            self.add(called, "consumer", steps, subscribe, publishes, None)
            return cls

        return remember

    def add(self, name: str, kind: str, steps: dict[str, Any], subscribe: Any, publishes: Any, schedule: Any) -> None:
        if name in self.handlers:
            raise ValueError(f"{name} is the name of two handlers")
        for step, call in steps.items():
            if not inspect.iscoroutinefunction(call):
                raise TypeError(f"{kind} {name}: {step} is not an async function")
            self.steps[name, step] = call
        self.handlers[name] = {
            "name": name, "type": kind, "steps": list(steps), "subscribe": list(subscribe),
            "publishes": list(publishes), "schedule": schedule,
        }  # fmt: skip

    def dump(self) -> dict[str, Any]:
        return {**self.told, "handlers": list(self.handlers.values())}


class Context:
    """What a handler is given: `now`, `log`, and the ways to its host."""

    def __init__(self, link: Link, now: str) -> None:
        self._link = link
        self.now = datetime.fromisoformat(now)
        self.log = logging.getLogger("workflow")

    async def publish(self, topic: Any, *, message_id: str, payload: Any = None, title: str | None = None) -> None:
        self._link.ask("publish", {"topic": topic, "message_id": message_id, "payload": payload, "title": title})

    async def peek(self, topic: str, limit: int = 100) -> list[Event]:
        return [Event.load(one) for one in self._link.ask("peek", {"topic": topic, "limit": limit})]

    async def get(self, topic: str, ids: Any) -> list[Event]:
        return [Event.load(one) for one in self._link.ask("get", {"topic": topic, "ids": list(ids)})]

    async def call(self, name: str, /, **params: Any) -> Any:
        return self._link.ask("call", {"name": name, "params": params})


GIVEN = (
    Workflow, Prepare, Reservation, Mutation, Event, Context, every, cron, WorkError, TransientError, LogicError,
    AuthError, PermissionDenied,
)  # fmt: skip


def load(source: str) -> Workflow:
    """Run the file; it must make one workflow."""
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)  # for tracebacks
    module = types.ModuleType("workflow")
    sys.modules["workflow"] = module
    Workflow.made.clear()
    exec(compile(source, FILE, "exec"), vars(module))
    if len(Workflow.made) != 1:
        raise ValueError(f"it makes {len(Workflow.made)} workflows where one is expected")
    return Workflow.made[0]


async def run(flow: Workflow, link: Link, order: dict[str, Any]) -> dict[str, Any]:
    """One step of a handler."""
    step, given = order["step"], order["args"]
    shapes = {"mutate": (Prepare,), "next": (Prepare, Mutation)}.get(step, ())
    args = [shape(**one) for shape, one in zip(shapes, given, strict=True)] if shapes else given
    found = await flow.steps[order["handler"], step](Context(link, order["now"]), *args)
    return {"prepared": found.dump()} if isinstance(found, Prepare) else {"returned": found}


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as the parent tells it: from the script's first own line on."""
    frames = start = error.__traceback__
    line = error.lineno if isinstance(error, SyntaxError) else None
    found = False
    while frames is not None:
        if frames.tb_frame.f_code.co_filename == FILE:
            line, start, found = frames.tb_lineno, start if found else frames, True
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, start if found else None))
    transient = isinstance(error, ConnectionError | TimeoutError)
    code = getattr(error, "code", None) if isinstance(error, WorkError) else "transient" if transient else "logic"
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    kind = {"code": code, "type": type(error).__name__, "final": isinstance(error, LogicError)}
    return {**kind, "message": message, "line": line, "traceback": text}


# before the door is locked


def load_modules() -> None:
    """Everything that scripts may need from files. What is not loaded now cannot be loaded later."""
    sys.modules["ssl"] = None  # type: ignore[assignment]  # asyncio goes without it
    for name in (*MODULES, *WITHIN, *(f"encodings.{one}" for one in ENCODINGS)):
        importlib.import_module(name)
    del sys.modules["ssl"]
    hashlib = importlib.import_module("hashlib")
    for name in hashlib.algorithms_guaranteed:  # what it needs of OpenSSL is loaded when it is first used
        hashlib.new(name, b"")
    zones = read_zones(sys.argv[1])
    zoneinfo.reset_tzpath(to=())
    vars(zoneinfo._common)["load_tzdata"] = lambda key: io.BytesIO(zones[key]) if key in zones else missing(key)
    rota = types.ModuleType("rota")
    vars(rota).update({one.__name__: one for one in GIVEN})
    sys.modules["rota"] = rota
    sys.meta_path[:] = [Refusal()]
    sys.path.clear()


def read_zones(place: str) -> dict[str, bytes]:
    """All time zones, by name."""
    zones: dict[str, bytes] = {}
    for path in Path(place).rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        if content.startswith(b"TZif"):
            zones[path.relative_to(place).as_posix()] = content
    return zones


def missing(key: str) -> Any:
    raise zoneinfo.ZoneInfoNotFoundError(f"No time zone found with key {key}")


class Refusal:
    """Stands where modules are looked for."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:  # noqa: ARG002
        raise ImportError(f"a script cannot import {name}; it can import rota, {', '.join(MODULES)}", name=name)


# the lock


def lock() -> list[str]:
    """Give up everything, as far as this machine lets us; tells what was done. `seccomp` is what everything rests on:
    the rest stands behind it in case it has a hole."""
    layers = ["rlimits"]
    os.environ.clear()  # Python puts its locale there
    empty_directory()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        layers += hide(libc)
        libc.prctl(1, signal.SIGKILL)  # die with the parent; after the change of user, which would undo it
        libc.prctl(4, 0, 0, 0, 0)  # nobody may look into it
    limits = {
        "CPU": CPU_SECONDS, "AS": MEMORY, "NPROC": 0, "NOFILE": 0, "FSIZE": 0, "CORE": 0, "MEMLOCK": 0, "MSGQUEUE": 0,
    }  # fmt: skip
    if sys.platform == "linux" and libc.prctl(38, 1, 0, 0, 0) == 0:  # nothing it could start would have more rights
        layers += ["landlock"] if landlock(libc) else []
    for name, most in limits.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is not None:
            resource.setrlimit(number, (most, most + (name == "CPU")))
    if sys.platform == "linux" and seccomp(libc):
        layers.append("seccomp")
    return layers


def empty_directory() -> None:
    """Stand in a directory that is gone: nothing is in it, and nothing can be put there."""
    place = tempfile.mkdtemp()
    os.chdir(place)
    os.rmdir(place)


def hide(libc: ctypes.CDLL) -> list[str]:
    """Namespaces of its own, the empty directory as the root of its files, and nobody as its user."""
    layers = []
    with contextlib.suppress(OSError):  # a machine without /proc
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, this goes first
    apart = 0x40000000 | 0x08000000 | 0x04000000 | 0x00020000  # network, IPC, host name, mounts
    root = os.geteuid() == 0
    if libc.unshare(apart if root else apart | 0x10000000) == 0:  # who is not root needs a user namespace for that
        layers.append("namespaces")
    if libc.chroot(b".") == 0:
        layers.append("chroot")
    if root:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        layers.append("nobody")
    return layers


def landlock(libc: ctypes.CDLL) -> bool:
    """No file, no port, no signal to others: a set of rules that allows nothing."""
    version = libc.syscall(444, None, 0, 1)
    if version < 1:
        return False
    files = (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1
    rules = struct.pack("QQQ", files, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    made = libc.syscall(444, ctypes.create_string_buffer(rules, 24), size, 0)
    if made < 0:
        return False
    done: bool = libc.syscall(446, made, 0) == 0
    os.close(made)
    return done


def seccomp(libc: ctypes.CDLL) -> bool:
    """From here on the kernel refuses every call that is not in the list."""
    known = ARCH.get(platform.machine())
    if known is None:
        return False
    arch, column = known
    allow, refuse, kill = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
    load, equal, has, give = 0x20, 0x15, 0x45, 0x06  # instructions: load a word, compare, test a bit, answer
    program = [(load, 0, 0, 4), (equal, 1, 0, arch), (give, 0, 0, kill), (load, 0, 0, 0)]
    for numbers in CALLS.values():
        if (number := numbers[column]) is not None:
            program += [(equal, 0, 1, number), (give, 0, 0, allow)]
    for pair in MAPS.values():
        wants_code = [(load, 0, 0, 32), (has, 0, 1, 4), (give, 0, 0, refuse), (give, 0, 0, allow)]
        program += [(equal, 0, len(wants_code), pair[column]), *wants_code]
    program.append((give, 0, 0, refuse))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in program))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
    return bool(libc.prctl(22, 2, head, 0, 0) == 0)


if __name__ == "__main__":
    main()
