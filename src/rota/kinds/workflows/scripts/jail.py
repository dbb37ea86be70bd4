"""The process inside the sandbox: drops its rights, then loads and runs one script.

It is started by its path with the standard library only, loads the modules that scripts may import, and drops every
right that a process can drop. From then on seccomp allows little more than computing, reading the clock, and reading
and writing the one socket it was started with: lines of JSON. The rest of Rota never imports it and does not trust its
messages: `sandbox.py` is the other end.
"""

import contextlib
import ctypes
import errno
import importlib
import importlib.util
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
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

MODULES = (  # that a script may import, besides `rota`; loaded before the process is locked
    "abc", "ast", "asyncio", "base64", "binascii", "bisect", "calendar", "collections", "collections.abc", "contextlib",
    "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "email.utils", "enum", "fnmatch", "fractions",
    "functools", "graphlib", "hashlib", "heapq", "hmac", "html", "html.parser", "inspect", "io", "ipaddress",
    "itertools", "json", "logging", "math", "numbers", "operator", "pprint", "random", "re", "secrets", "statistics",
    "string", "struct", "textwrap", "time", "traceback", "types", "typing", "unicodedata", "urllib.parse", "uuid",
    "warnings", "xml.etree.ElementTree", "zlib", "zoneinfo",
)  # fmt: skip
LAZY_MODULES = ("_strptime", "locale", "xml.parsers.expat")  # that MODULES import at first use
ENCODINGS = ("ascii", "latin_1", "cp1252", "iso8859_15", "utf_8_sig", "utf_16", "utf_32", "idna", "punycode")

SCRIPT_FILE = "<workflow>"  # the file name in tracebacks
CPU_SECONDS = 60
MEMORY_BYTES = 256 << 20
NOBODY_UID = 65534

ARCH = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
SYSTEM_CALLS = {  # that seccomp allows: numbers on x86-64 and ARM64
    "read": (0, 63), "write": (1, 64), "munmap": (11, 215), "brk": (12, 214), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233),
    "nanosleep": (35, 101), "getpid": (39, 172), "exit": (60, 93), "gettimeofday": (96, 169),
    "sigaltstack": (131, 132), "gettid": (186, 178), "futex": (202, 98), "restart_syscall": (219, 128),
    "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "exit_group": (231, 94), "epoll_wait": (232, None),
    "epoll_pwait": (281, 22), "getrandom": (318, 278), "epoll_pwait2": (441, 441),
}  # fmt: skip
MEMORY_CALLS = {"mmap": (9, 222), "mprotect": (10, 226)}  # allowed except for executable memory


if TYPE_CHECKING:
    from rota.kinds.workflows.scripts import script_api
else:  # by its path: this process has no sys.path to Rota
    spec = importlib.util.spec_from_file_location("script_api", Path(__file__).with_name("script_api.py"))
    script_api = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script_api)


def main() -> None:
    """Lock the process, then serve orders from the socket until it is closed."""
    link = Link()
    load_modules()
    asyncio = importlib.import_module("asyncio")
    loop = asyncio.new_event_loop()  # needs system calls that seccomp refuses later
    asyncio.set_event_loop(loop)
    layers = lock()
    sys.stdout = sys.stderr = OutputStream(link)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", handlers=[LogSender(link)])
    link.send({"layers": layers})
    workflow: Workflow | None = None
    while (order := link.receive()) is not None:
        try:
            if "script" in order:
                workflow = load(order["script"])
                answer = {"declared": workflow.dump()}
            else:
                assert workflow is not None
                answer = loop.run_until_complete(run(workflow, link, order))
            link.send(answer)
        except BaseException as error:  # also SystemExit and KeyboardInterrupt of the script
            link.send({"raised": describe(error)})
    os._exit(0)


T = TypeVar("T")
Step = Callable[..., Awaitable[object]]  # of the script


class Link:
    """The socket to the host. A message is a line of JSON."""

    def __init__(self) -> None:
        self.lines = open(0, "rb", closefd=False)  # noqa: SIM115

    def send(self, message: object) -> None:
        line = memoryview(json.dumps(message, allow_nan=False).encode() + b"\n")
        while line:
            line = line[os.write(1, line) :]

    def receive(self) -> Any:
        line = self.lines.readline()
        return json.loads(line) if line else None

    async def ask(self, request: str, params: Mapping[str, object]) -> object:
        """Send a request and return the answer. The host kills this process instead of answering a refused one."""
        self.send({"ask": request, "params": params})
        return self.receive()["answer"]


class OutputStream(io.TextIOBase):
    """Sends printed text to the run's log."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def write(self, text: str) -> int:
        self.link.send({"said": str(text)})
        return len(text)


class LogSender(logging.Handler):
    """Sends log records to the run's log."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link = link

    def emit(self, record: logging.LogRecord) -> None:
        self.link.send({"log": self.format(record)})


# the module `rota` of scripts: these, and those of script_api


class WorkError(Exception):
    """Base of the errors that classify a failure."""

    code = "logic"


class TransientError(WorkError):
    code = "transient"


class LogicError(WorkError):
    pass


class AuthError(WorkError):
    code = "auth"


class PermissionDenied(WorkError):
    code = "permission"


class Workflow:
    """A workflow that a script declares. The host checks the declaration (see `declaration.Workflow`)."""

    instances: "list[Workflow]" = []  # noqa: RUF012

    def __init__(
        self,
        name: str,
        *,
        topics: Iterable[str] = (),
        description: str = "",
        isolate: bool = False,
        version: object = None,
        connectors: Iterable[str] | None = None,
        repair: str = "auto",
    ) -> None:
        self.fields = {
            "name": name,
            "topics": list(topics),
            "description": description,
            "isolate": isolate,
            "connectors": list(connectors or ()),
            "repair": repair,
        }
        self.handlers: dict[str, dict[str, object]] = {}
        self.steps: dict[tuple[str, str], Step] = {}
        if version is not None:
            raise ValueError("version: Rota numbers the versions of scripts; omit it")
        Workflow.instances.append(self)

    def producer(
        self, *, schedule: object, publishes: Iterable[str], name: str | None = None
    ) -> Callable[[Step], Step]:
        def declare(function: Step) -> Step:
            self.add(name or function.__name__, "producer", {"produce": function}, (), publishes, schedule)
            return function

        return declare

    def consumer(
        self, *, subscribe: Iterable[str], publishes: Iterable[str] = (), name: str | None = None
    ) -> Callable[[T], T]:
        def declare(cls: T) -> T:
            consumer = cls() if isinstance(cls, type) else cls
            steps = {step: getattr(consumer, step) for step in script_api.STEPS if hasattr(consumer, step)}
            handler_name = str(name or getattr(cls, "__name__", type(consumer).__name__))
            self.add(handler_name, "consumer", steps, subscribe, publishes, None)
            return cls

        return declare

    def add(
        self,
        name: str,
        kind: str,
        steps: Mapping[str, Step],
        subscribe: Iterable[str],
        publishes: Iterable[str],
        schedule: object,
    ) -> None:
        if name in self.handlers:
            raise ValueError(f"{name} is the name of two handlers")
        for step, call in steps.items():
            if not inspect.iscoroutinefunction(call):
                raise TypeError(f"{kind} {name}: {step} is not an async function")
            self.steps[name, step] = call
        self.handlers[name] = {
            "name": name,
            "type": kind,
            "steps": list(steps),
            "subscribe": list(subscribe),
            "publishes": list(publishes),
            "schedule": schedule,
        }

    def dump(self) -> dict[str, object]:
        return {**self.fields, "handlers": list(self.handlers.values())}


ROTA_NAMES = (
    Workflow,
    script_api.Prepare,
    script_api.Reservation,
    script_api.Mutation,
    script_api.Event,
    script_api.Context,
    script_api.every,
    script_api.cron,
    WorkError,
    TransientError,
    LogicError,
    AuthError,
    PermissionDenied,
)


def load(source: str) -> Workflow:
    """Run the file and return the one workflow that it makes. Raises ValueError for another number."""
    linecache.cache[SCRIPT_FILE] = (len(source), None, source.splitlines(keepends=True), SCRIPT_FILE)  # for tracebacks
    module = types.ModuleType("workflow")
    sys.modules["workflow"] = module
    Workflow.instances.clear()
    exec(compile(source, SCRIPT_FILE, "exec"), vars(module))
    if len(Workflow.instances) != 1:
        raise ValueError(f"it makes {len(Workflow.instances)} workflows instead of one")
    return Workflow.instances[0]


async def run(workflow: Workflow, link: Link, order: Mapping[str, Any]) -> dict[str, object]:
    """Run one step of a handler; returns the message with its result."""
    step, args = order["step"], order["args"]
    arguments: dict[str, list[Callable[..., object]]]
    arguments = {"mutate": [script_api.Prepare], "next": [script_api.Prepare, script_api.Mutation]}
    if step in arguments:
        args = [cls(**fields) for cls, fields in zip(arguments[step], args, strict=True)]
    context = script_api.Context(link.ask, datetime.fromisoformat(order["now"]), logging.getLogger("workflow"))
    result = await workflow.steps[order["handler"], step](context, *args)
    return {"prepared": result.dump()} if isinstance(result, script_api.Prepare) else {"returned": result}


def describe(error: BaseException) -> dict[str, object]:
    """Return an exception as a message, with the traceback from the first line of the script on."""
    frame, first = error.__traceback__, None
    line = error.lineno if isinstance(error, SyntaxError) else None
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == SCRIPT_FILE:
            line, first = frame.tb_lineno, first or frame
        frame = frame.tb_next
    text = "".join(traceback.format_exception(type(error), error, first))
    transient = isinstance(error, ConnectionError | TimeoutError)
    code = getattr(error, "code", None) if isinstance(error, WorkError) else "transient" if transient else "logic"
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return {
        "code": code,
        "type": type(error).__name__,
        "final": isinstance(error, LogicError),
        "message": message,
        "line": line,
        "traceback": text,
    }


# before the lock


def load_modules() -> None:
    """Load everything that scripts may need from files, because no file can be read after the lock."""
    sys.modules["ssl"] = None  # type: ignore[assignment]  # asyncio works without it
    for name in (*MODULES, *LAZY_MODULES, *(f"encodings.{encoding}" for encoding in ENCODINGS)):
        importlib.import_module(name)
    del sys.modules["ssl"]
    hashlib = importlib.import_module("hashlib")
    for name in hashlib.algorithms_guaranteed:  # OpenSSL loads its parts at first use
        hashlib.new(name, b"")
    zones = read_zones(sys.argv[1])
    zoneinfo.reset_tzpath(to=())
    vars(zoneinfo._common)["load_tzdata"] = lambda key: io.BytesIO(zones[key]) if key in zones else raise_missing(key)
    rota = types.ModuleType("rota")
    vars(rota).update({exported.__name__: exported for exported in ROTA_NAMES})
    sys.modules["rota"] = rota
    sys.meta_path[:] = [ImportRefusal()]
    sys.path.clear()


def read_zones(folder: str) -> dict[str, bytes]:
    """Return the data of all time zones, by name."""
    zones: dict[str, bytes] = {}
    for path in Path(folder).rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        if content.startswith(b"TZif"):
            zones[path.relative_to(folder).as_posix()] = content
    return zones


def raise_missing(key: str) -> object:
    raise zoneinfo.ZoneInfoNotFoundError(f"No time zone found with key {key}")


class ImportRefusal:
    """The only finder on `sys.meta_path`: refuses every module that is not loaded."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        raise ImportError(f"a script cannot import {name}; it can import rota, {', '.join(MODULES)}", name=name)


# the lock


def lock() -> list[str]:
    """Drop all rights that this machine lets a process drop; returns the layers that hold. `seccomp` is required, the
    others are defence in depth."""
    layers = ["rlimits"]
    os.environ.clear()  # Python sets LC_CTYPE
    empty_directory()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        layers += isolate(libc)
        libc.prctl(
            1, signal.SIGKILL
        )  # PR_SET_PDEATHSIG: die with the parent; after the change of user, which resets it
        libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no ptrace and no /proc/PID/mem by other processes
    limits = {
        "CPU": CPU_SECONDS,
        "AS": MEMORY_BYTES,
        "NPROC": 0,
        "NOFILE": 0,
        "FSIZE": 0,
        "CORE": 0,
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
    }
    if sys.platform == "linux" and libc.prctl(38, 1, 0, 0, 0) == 0:  # PR_SET_NO_NEW_PRIVS, for Landlock and seccomp
        layers += ["landlock"] if landlock(libc) else []
    for name, limit in limits.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is not None:
            resource.setrlimit(number, (limit, limit + (name == "CPU")))
    if sys.platform == "linux" and seccomp(libc):
        layers.append("seccomp")
    return layers


def empty_directory() -> None:
    """Change to a deleted directory: it is empty, and no file can be created in it."""
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


def isolate(libc: ctypes.CDLL) -> list[str]:
    """Enter own namespaces, make the empty directory the root, and become the user nobody if root."""
    layers = []
    with contextlib.suppress(OSError):  # a machine without /proc
        Path("/proc/self/oom_score_adj").write_text("1000")  # the OOM killer takes this process first
    namespaces = 0x40000000 | 0x08000000 | 0x04000000 | 0x00020000  # network, IPC, host name, mounts
    root = os.geteuid() == 0
    if libc.unshare(namespaces if root else namespaces | 0x10000000) == 0:  # without root, in a user namespace
        layers.append("namespaces")
    if libc.chroot(b".") == 0:
        layers.append("chroot")
    if root:
        os.setgroups([])
        os.setresgid(NOBODY_UID, NOBODY_UID, NOBODY_UID)
        os.setresuid(NOBODY_UID, NOBODY_UID, NOBODY_UID)
        layers.append("nobody")
    return layers


def landlock(libc: ctypes.CDLL) -> bool:
    """Enforce an empty Landlock ruleset: no file, no port, no signal to other processes. False without Landlock."""
    version = libc.syscall(444, None, 0, 1)
    if version < 1:
        return False
    files = (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1
    rules = struct.pack("QQQ", files, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = libc.syscall(444, ctypes.create_string_buffer(rules, 24), size, 0)
    if ruleset < 0:
        return False
    enforced: bool = libc.syscall(446, ruleset, 0) == 0
    os.close(ruleset)
    return enforced


def seccomp(libc: ctypes.CDLL) -> bool:
    """Install a filter that refuses every system call except SYSTEM_CALLS and MEMORY_CALLS. False if it cannot."""
    machine = ARCH.get(platform.machine())
    if machine is None:
        return False
    arch, column = machine
    allow, refuse, kill = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
    load, equal, has, give = 0x20, 0x15, 0x45, 0x06  # BPF instructions: load a word, compare, test a bit, return
    program = [(load, 0, 0, 4), (equal, 1, 0, arch), (give, 0, 0, kill), (load, 0, 0, 0)]
    for numbers in SYSTEM_CALLS.values():
        if (number := numbers[column]) is not None:
            program += [(equal, 0, 1, number), (give, 0, 0, allow)]
    for pair in MEMORY_CALLS.values():
        wants_code = [(load, 0, 0, 32), (has, 0, 1, 4), (give, 0, 0, refuse), (give, 0, 0, allow)]
        program += [(equal, 0, len(wants_code), pair[column]), *wants_code]
    program.append((give, 0, 0, refuse))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
    return bool(libc.prctl(22, 2, head, 0, 0) == 0)


if __name__ == "__main__":
    main()
