"""What a script can do to the machine it runs on: nothing. Each attempt is also made without the lock, where it gets
through: a test of a lock must be able to fail."""

import asyncio
import inspect
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rota.core.errors import Invalid, LogicError, Refused
from rota.core.policy import FailureClass
from rota.engine.runner import RunLog, WorkFailed, current_log
from rota.kinds.workflows import declaration
from rota.kinds.workflows.scripts import jail, sandbox
from rota.kinds.workflows.scripts.sandbox import Sandbox

NOW = datetime(2026, 5, 4, 9, tzinfo=UTC)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the lock is Linux's")
OPENED = "import importlib.util as u; s = u.spec_from_file_location('jail', {path!r}); m = u.module_from_spec(s);"
OPENED += "s.loader.exec_module(m); {change}; m.main()"

HEAD = """
import asyncio, ctypes, json, os, signal, socket, subprocess, sys, time
from rota import Prepare, TransientError, Workflow, every
seen = []
flow = Workflow("probe", topics=["a"])

@flow.producer(schedule=every("5m"), publishes=["a"])"""


def script(body: str) -> str:
    """A script whose only handler does this."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"{HEAD}\nasync def probe(ctx, values):\n{lines}\n{TAIL}"


TAIL = """
@flow.consumer(subscribe=["a"])
class Take:
    async def prepare(self, ctx, state):
        return Prepare(title="taken")
"""


def without(change: str) -> Sandbox:
    """Processes that were changed before they began."""
    code = OPENED.format(path=sandbox.JAIL, change=change)
    return Sandbox(True, 0, [sys.executable, "-I", "-S", "-B", "-c", code, sandbox.zones()])


async def nothing(method: str, params: Mapping[str, Any]) -> Any:
    return None


async def probe(box: Sandbox, body: str, values: Any = None, ask: Any = nothing) -> Any:
    return (await box.call(("w", body), script(body), "probe", "produce", [values], NOW, ask))["returned"]


@pytest.fixture
async def box() -> AsyncIterator[Sandbox]:
    box = Sandbox(spare=0)
    yield box
    await box.close()


ATTEMPTS = {
    "read a file": 'return open(values["file"]).read()',
    "read a file by a raw call": """
result = ctypes.CDLL(None).syscall(257, -100, values["file"].encode(), 0, 0)
if result < 0: raise PermissionError
return result""",
    "write a file": 'return open(values["file"], "w").write("x")',
    "list a folder": 'return os.listdir("/")',
    "read the environment of its worker": "return open(f\"/proc/{values['pid']}/environ\").read()[:10]",
    "send a signal to its worker": 'return os.kill(values["pid"], 0)',
    "connect to a service": 'return socket.create_connection(("127.0.0.1", values["port"])).fileno()',
    "open a socket": "return socket.socket(socket.AF_UNIX).fileno()",
    "fork": """
result = os.fork()
if result == 0: os._exit(0)
return result""",
    "start a command": 'return subprocess.run(["true"]).returncode',
    "start a thread": """
import threading
thread = threading.Thread(target=print)
thread.start()
thread.join()""",
    "take hold of another process": 'return os.pidfd_open(values["victim"])',
    "make memory that can be executed": """
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_ssize_t
result = libc.mmap(None, 4096, 4, 0x22, -1, 0)
if result < 0: raise PermissionError
return result""",
    "have another file descriptor": "return os.pipe()[0]",
    "change its user": "return os.setuid(os.getuid())",
    "change its limits": "import resource as r\nreturn r.setrlimit(r.RLIMIT_CPU, r.getrlimit(r.RLIMIT_CPU))",
}


@LINUX
@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_what_a_script_cannot_do(attempt: str, box: Sandbox, tmp_path: Path) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    victim = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
    secret = tmp_path / "rota.db"
    secret.write_text("secret")
    tmp_path.chmod(0o755)  # noqa: ASYNC240
    targets = {"file": str(secret), "pid": os.getpid(), "port": listening.getsockname()[1], "victim": victim.pid}
    opened = without("m.lock = lambda: []")
    try:
        with pytest.raises(WorkFailed) as refused:
            await probe(box, ATTEMPTS[attempt], targets)
        assert refused.value.failure.failure_class is FailureClass.LOGIC
        assert refused.value.failure.type in ("PermissionError", "RuntimeError"), refused.value.failure
        assert secret.read_text() == "secret"
        assert await probe(box, "return values", "others are well") == "others are well"
        await probe(opened, ATTEMPTS[attempt], targets)  # it is the lock that held
    finally:
        victim.kill()
        victim.wait()
        listening.close()
        await opened.close()


DANGEROUS_CALLS = (  # by their numbers on x86-64
    2, 41, 42, 49, 53, 56, 57, 58, 59, 62, 76, 80, 82, 83, 85, 86, 87, 88, 90, 92, 101, 105, 106, 117, 133, 135, 155,
    157, 161, 165, 166, 169, 175, 200, 234, 246, 250, 257, 272, 298, 303, 304, 308, 310, 311, 313, 317, 319, 321, 322,
    323, 424, 425, 428, 429, 432, 434, 435, 437, 438, 447,
)  # fmt: skip
GETPID = 39
RAW_CALLS = """
libc = ctypes.CDLL(None, use_errno=True)
passed = []
for number in values:
    ctypes.set_errno(0)
    if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1:
        passed.append((number, ctypes.get_errno()))
return passed"""


@LINUX
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86-64")
async def test_the_kernel_refuses_raw_calls_of_a_script(box: Sandbox) -> None:
    """Open, connect, fork, execute, trace, mount, load code into the kernel: also by the numbers of the x32 ABI."""
    numbers = [*DANGEROUS_CALLS, *(number | 0x40000000 for number in DANGEROUS_CALLS)]
    assert await probe(box, RAW_CALLS, numbers) == []
    assert await probe(box, RAW_CALLS, [GETPID]) != []  # a call that is allowed is noticed


@LINUX
async def test_a_process_has_nothing_but_its_socket(box: Sandbox, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        assert await probe(box, "return dict(os.environ)") == {}
        child = box.idle[-1][1]
        place = Path(f"/proc/{child.process.pid}")
        descriptors = [os.readlink(path) for path in (place / "fd").iterdir()]
    if os.geteuid() == 0:  # other users may not read it
        assert "uid" in (place / "status").read_text().lower()
        assert re.search(r"^Uid:\t65534\t65534", (place / "status").read_text(), re.MULTILINE)
    assert {row.partition(":")[0] for row in descriptors} <= {"socket", "/dev/null", "anon_inode"}
    assert os.readlink(place / "cwd").endswith("(deleted)")
    status = (place / "status").read_text()
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    assert os.readlink(place / "ns/net") != os.readlink("/proc/self/ns/net")
    assert {"seccomp", "rlimits"} <= set(child.layers)


ENDINGS = {
    "memory by one request": ("return len(bytearray(10**10))", "MemoryError"),
    "memory bit by bit": ("while True: seen.append(bytearray(10**6))", "MemoryError"),
    "forks without end": ("while True: os.fork()", "PermissionError"),
    "recursion without end": ("f = lambda: f()\nf()", "RecursionError"),
    "an end of its own": ("os._exit(3)", "ScriptDied"),
    "an exit": ("sys.exit(3)", "SystemExit"),
    "a crash": ("ctypes.string_at(0)", "ScriptDied"),
    "a result that is no JSON": ("return object()", "TypeError"),
    "a result that is no number": ('return float("nan")', "ValueError"),
}


@LINUX
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_failing_script_is_classified_and_harms_no_other(ending: str, box: Sandbox) -> None:
    body, named = ENDINGS[ending]
    with pytest.raises(WorkFailed) as error:
        await probe(box, body)
    assert error.value.failure.failure_class is FailureClass.LOGIC
    assert error.value.failure.type == named
    assert await probe(box, "return values", 1) == 1


@LINUX
async def test_processor_time_is_limited() -> None:
    hasty = without("m.CPU_SECONDS = 1")
    with pytest.raises(WorkFailed) as error:
        await probe(hasty, "while True: pass")
    assert error.value.failure.failure_class is FailureClass.TIMEOUT
    await hasty.close()


def children() -> set[int]:
    pids = set()
    for row in os.listdir("/proc"):
        with suppress(OSError):  # other processes start and end
            if row.isdigit() and Path(f"/proc/{row}/stat").read_text().split()[3] == str(os.getpid()):
                pids.add(int(row))
    return pids


@LINUX
async def test_a_script_that_never_returns_is_killed(box: Sandbox) -> None:
    assert await probe(box, "return os.getpid()") > 0
    before, began = children(), asyncio.Event()

    async def ask(method: str, params: Mapping[str, Any]) -> None:
        began.set()

    body = """
await ctx.publish("a", message_id="1", payload=None)
while True:
    try:
        os.fork()
    except OSError: pass"""
    endless = asyncio.ensure_future(probe(box, body, ask=ask))
    await began.wait()
    assert len(children() - before) == 1
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    assert children() <= before
    assert await probe(box, "return values", 1) == 1


@LINUX
async def test_a_process_whose_call_was_given_up_serves_the_next(box: Sandbox) -> None:
    """Also if the call is cancelled just when its process became ready: it is not leaked."""
    before = children()
    box.ready.append(started := asyncio.ensure_future(box._start()))
    call = asyncio.ensure_future(probe(box, "return values"))
    started.add_done_callback(lambda _: call.cancel())
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await probe(box, "return values", 1) == 1
    assert children() - before == {started.result().process.pid}


TALK = {
    "that never ends": 'while True: print("x" * 1000)',
    "of nothing": "while True: print()",
    "without an end of line": 'while True: os.write(1, b"x" * 100000)',
    "that is no JSON": 'os.write(1, b"{\\n")',
    "that is no message": 'os.write(1, b"[1]\\n")',
    "of wrong shape": 'os.write(1, json.dumps({"ask": 1, "params": []}).encode() + b"\\n")',
    "full of questions": 'while True: await ctx.publish("a", message_id="1", payload="x" * 10000)',
}


@pytest.mark.parametrize("talk", TALK)
async def test_talk(talk: str, box: Sandbox) -> None:
    with pytest.raises(LogicError):
        await asyncio.wait_for(probe(box, TALK[talk]), 60)
    assert await probe(box, "return values", 1) == 1


async def test_a_flood_of_talk_does_not_starve_others(box: Sandbox) -> None:
    await probe(box, "return values")
    flood = asyncio.ensure_future(probe(box, 'while True: print("x")'))
    slowest = 0.0
    while not flood.done():
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(0)
        slowest = max(slowest, asyncio.get_running_loop().time() - began)
    assert isinstance(flood.exception(), LogicError)
    assert slowest < 0.5


async def test_a_refused_question_ends_the_process_that_asked(box: Sandbox) -> None:
    async def refuse(method: str, params: Mapping[str, Any]) -> Any:
        raise LogicError(f"{method} is refused")

    with pytest.raises(LogicError, match="publish is refused"):
        await probe(box, 'try: await ctx.publish("a", message_id="1")\nexcept BaseException: return 1', ask=refuse)
    assert box.idle == []


async def test_a_process_serves_one_version_and_keeps_its_hands_off_others(box: Sandbox) -> None:
    count = "seen.append(1)\nreturn [os.getpid(), len(seen)]"
    first, again = await probe(box, count), await probe(box, count)
    other = await probe(box, count + " ")
    assert again == [first[0], 2]
    assert (other[0] != first[0], other[1]) == (True, 1)


async def test_a_process_is_replaced_after_a_while(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "PROCESS_CALLS", 2)
    pids = [await probe(box, "return os.getpid()") for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]


async def test_idle_processes_are_few(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "IDLE_PROCESSES", 1)
    for text in ("1", "2", "1"):
        await probe(box, f"return {text}")
    assert [key for key, _ in box.idle] == [("w", "return 1")]


async def test_what_a_script_says_is_in_the_log_of_its_run(box: Sandbox) -> None:
    log = RunLog("run", lambda: NOW)
    token = current_log.set(log)
    try:
        await probe(box, 'print("one", "two")\nctx.log.info("three %s", 4)')
    finally:
        current_log.reset(token)
    assert [(stream, text) for _, _, stream, text in log.take(last=True)] == [
        ("stdout", "one two"),
        ("log", "INFO three 4"),
    ]


async def test_what_a_script_raises_says_where_and_of_which_class(box: Sandbox) -> None:
    body = 'raise TransientError("busy")'
    with pytest.raises(WorkFailed) as error:
        await probe(box, body)
    line = 1 + script(body).splitlines().index(f"    {body}")
    assert error.value.failure.failure_class is FailureClass.TRANSIENT
    assert error.value.failure.message == f"busy (line {line})"
    assert error.value.failure.traceback == (
        f'Traceback (most recent call last):\n  File "<workflow>", line {line}, in probe\n    {body}\n'
        "TransientError: busy\n"
    )


async def test_the_standard_library_works_behind_the_lock(box: Sandbox) -> None:
    body = """
import base64, csv, decimal, hashlib, io, statistics, uuid, xml.etree.ElementTree as tree, zoneinfo
from datetime import datetime
from email.utils import parsedate_to_datetime
oslo = datetime(2026, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo("Europe/Oslo"))
both = await asyncio.gather(asyncio.sleep(0.001, "a"), asyncio.sleep(0.001, "b"))
return [
    oslo.utcoffset().total_seconds(), datetime.strptime("4 May 2026", "%d %B %Y").isoformat(), both,
    hashlib.sha256(b"x").hexdigest()[:4], hashlib.blake2b(b"x").hexdigest()[:4], str(decimal.Decimal("1.1") * 3),
    list(csv.reader(io.StringIO("a,b"))), tree.fromstring("<a>é</a>").text, statistics.mean([1, 3]),
    "é".encode("latin-1").hex(), len(str(uuid.uuid4())), parsedate_to_datetime("Mon, 04 May 2026 09:00:00 +0000").hour,
    ctx.now.isoformat(),
]"""
    assert await probe(box, body) == [
        7200.0,
        "2026-05-04T00:00:00",
        ["a", "b"],
        "2d71",
        "0909",
        "3.3",
        [["a", "b"]],
        "é",
        2,
        "e9",
        36,
        9,
        NOW.isoformat(),
    ]


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("def (", r"invalid syntax.*\(line 1\)"),
        ("x = 1\nx.y", r"no attribute 'y' \(line 2\)"),
        ("import sqlite3", r"cannot import sqlite3; it can import rota, abc, .*zoneinfo \(line 1\)"),
        ("from rota import Rota", r"cannot import name 'Rota'"),
        ("x = 1", r"makes 0 workflows instead of one"),
        ("while True: pass", r"took longer than 5 s to load"),
        ("import os; os._exit(0)", r"ended its own process"),
        ('from rota import Workflow\nWorkflow("a", version="1")', r"versions of scripts; omit it \(line 2\)"),
        ("x" * 70_000, r"is longer than 60000"),
        ("import os; os.write(1, b'{\"ask\": \"call\", \"params\": {}}\\n')", r"call is only available to handlers"),
        ("import os; os.write(1, b'{\"declared\": 1}\\n')", r"does not return a valid declaration"),
    ],
)  # fmt: skip
async def test_a_script_that_cannot_be_loaded_is_refused(box: Sandbox, source: str, wrong: str) -> None:
    with pytest.raises(Invalid, match=wrong):
        await box.declare(source)


async def test_where_nothing_contains_a_script_it_is_refused() -> None:
    opened = without('m.lock = lambda: ["rlimits"]')
    opened.trusting = False
    with pytest.raises(Refused, match="ROTA_TRUST_SCRIPTS"):
        await opened.declare(script("return 1"))
    opened.trusting = True
    assert (await opened.declare(script("return 1")))["name"] == "probe"
    await opened.close()


def test_scripts_and_programs_declare_with_the_same_words() -> None:
    def names(call: Any) -> list[tuple[str, Any]]:
        return [(parameter.name, parameter.kind) for parameter in inspect.signature(call).parameters.values()]

    assert names(jail.Workflow) == names(declaration.Workflow)
    for name in ("producer", "consumer"):
        assert names(getattr(jail.Workflow, name)) == names(getattr(declaration.Workflow, name)), name
