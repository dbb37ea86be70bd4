"""Processes that runs have to themselves: commands, and functions that must be killable.

A process gets its input on stdin; what it says goes to the run's log as it comes. Cancelled: SIGTERM, the grace,
SIGKILL, to everything that it started, and the run is over only when all of it is gone.
"""

import asyncio
import codecs
import ctypes
import fnmatch
import os
import pwd
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from rota.core.clock import real_sleep, stopwatch
from rota.core.errors import Invalid
from rota.core.model import PAYLOAD_LIMIT
from rota.core.policy import Failure, FailureClass
from rota.engine.runner import Canceled, ChildCrashed, RunContext, Skipped, WorkFailed
from rota.user_code.warden import announce, warden

ANSWER_LIMIT = 8 * PAYLOAD_LIMIT  # bytes of what a child process answers
OUTPUT_LIMIT = 64 * 1024  # characters of a process's output kept in its outcome; the log has more
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TMPDIR", "TERM", "VIRTUAL_ENV")
SPOKEN_OUT = 1.0  # seconds that output is waited for after the end: somebody may have inherited the pipes
DYING = 5.0  # seconds until a killed process must be gone


async def start(
    ctx: RunContext, command: str | Sequence[str], env: Mapping[str, str], cwd: str | None = None,
    memory_mb: int | None = None, pass_fds: Sequence[int] = (), user: str | None = None,
) -> asyncio.subprocess.Process:  # fmt: skip
    """Start a process group, as another user where one is named: a text goes through the system's shell."""
    account = None if user is None else pwd.getpwnam(user)
    if account is not None:
        env = {**env, "HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
    how: dict[str, Any] = {
        "stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE,
        "start_new_session": True, "preexec_fn": limited(memory_mb, ctx.run_id, account), "cwd": cwd,
        "pass_fds": pass_fds, "env": {**env, "ROTA_RUN_ID": ctx.run_id},
    }  # fmt: skip
    if isinstance(command, str):
        process = await asyncio.create_subprocess_shell(command, **how)
    else:
        process = await asyncio.create_subprocess_exec(*command, **how)
    warden.began(process.pid, ctx.run_id)
    return process


async def supervise(ctx: RunContext, process: asyncio.subprocess.Process, feed: bytes) -> dict[str, str]:
    """Feed a process, log what it says, and see it out; returns the end of what it said, by stream."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    kept = {"stdout": Tail(), "stderr": Tail()}
    readers = [
        asyncio.ensure_future(pump(ctx, stream, name, kept[name]))
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr))
    ]
    writer = asyncio.ensure_future(pour(process.stdin, feed))
    canceled_at: float | None = None

    async def ending() -> None:
        await process.wait()
        if canceled_at is None:
            await asyncio.wait(readers, timeout=SPOKEN_OUT)
        if canceled_at is None:
            kill_group(process.pid)
        else:
            await see_out(process.pid, ctx, canceled_at)
            await asyncio.wait(readers, timeout=SPOKEN_OUT)

    ended = asyncio.ensure_future(ending())
    try:
        while not ended.done():  # however often it is cancelled: it may not leave anything behind
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError:
                kill(family(process.pid, ctx.run_id), signal.SIGTERM if canceled_at is None else signal.SIGKILL)
                canceled_at = canceled_at or stopwatch()
    finally:
        for task in (*readers, writer):
            task.cancel()
        warden.ended(process.pid)
    ended.result()
    if canceled_at is not None and process.returncode != 0:
        raise asyncio.CancelledError
    return {name: tail.text() for name, tail in kept.items()}


async def ask_child(
    ctx: RunContext, order: Mapping[str, Any], cwd: str | None = None, memory_mb: int | None = None,
    user: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Have a run done in a Python process of its own, where it can hurt only itself; returns what that answers."""
    reading, writing = os.pipe()
    job, settings = ctx.job, ctx.engine.settings
    full = {
        "run_id": ctx.run_id, "attempt": ctx.attempt, "worker": ctx.worker, "job_id": job.id, "org_id": job.org_id,
        "fence": job.fence, "trigger": job.trigger, "slot": job.slot and job.slot.isoformat(), "result_fd": writing,
        "database_url": ctx.engine.db.url, "artifact_limit": settings.artifact_limit,
        "billing": settings.billing.value, "markup": str(settings.markup), **order,
    }  # fmt: skip
    try:
        command = [sys.executable, "-P", "-m", "rota.app.child"]  # nothing is imported from its cwd
        process = await start(ctx, command, os.environ, cwd, memory_mb, [writing], user)
    finally:
        os.close(writing)
    results = asyncio.StreamReader(limit=ANSWER_LIMIT)
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(results), os.fdopen(reading, "rb"))
    answer = asyncio.ensure_future(results.readline())
    try:
        await supervise(ctx, process, orjson.dumps(full))
        await asyncio.wait([answer], timeout=SPOKEN_OUT)  # a process that it left behind may hold the pipe
        told = answer.result() if answer.done() else b""
    finally:
        answer.cancel()
        pipe.close()
    if not told:
        raise ChildCrashed(f"the process of this run died ({died_of(process.returncode)})")
    result: dict[str, Any] = orjson.loads(told)
    failure = load_failure(result.get("failure"))
    if "skipped" in result:
        raise Skipped(result["skipped"], failure)
    if "canceled" in result:
        raise Canceled(result["canceled"])
    if failure is not None:
        raise WorkFailed(failure)
    return result


def load_failure(told: Mapping[str, Any] | None) -> Failure | None:
    return None if told is None else Failure(**{**told, "failure_class": FailureClass(told["failure_class"])})


async def see_out(pid: int, ctx: RunContext, since: float) -> None:
    """Wait until everything that a cancelled process started is gone, what left its group too; what is there after the
    grace is killed."""
    grace, look = ctx.cancel_grace.total_seconds(), 0.01
    while (rest := family(pid, ctx.run_id)) and stopwatch() - since < grace + DYING:
        if stopwatch() - since >= grace:
            kill(rest, signal.SIGKILL)
        await real_sleep(look)
        look = min(look * 2, 0.2)
    if rest:
        ctx.log.line("system", f"processes that do not die: {', '.join(map(str, sorted(rest)))}")


def family(leader: int, run_id: str) -> set[int]:
    """The living processes of a run: those of its group and those that carry its mark, wherever they went. Where the
    system does not list processes, only the leader, whose group is signalled as a whole."""
    found: set[int] = set()
    mark = f"ROTA_RUN_ID={run_id}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):  # it may be gone by now, or somebody else's
            state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if state not in "ZX" and (int(group) == leader or mark in (entry / "environ").read_bytes().split(b"\0")):
                found.add(int(entry.name))
    return found - {os.getpid()}


def kill(pids: set[int], how: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, how)


def kill_group(leader: int) -> None:
    """What is left of a group when its leader has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


async def pump(ctx: RunContext, stream: asyncio.StreamReader, name: str, tail: "Tail") -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may come in two parts
    while chunk := await stream.read(65_536):
        text = decoder.decode(chunk)
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


def environment(ctx: RunContext, allowed: Sequence[str] = (), given: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a command sees: a few plain variables, those that its task lets through, and facts about its run. Rota's own
    settings may hold secrets and are never passed on."""
    patterns = (*INHERITED, *allowed)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ROTA_") and any(fnmatch.fnmatchcase(name, one) for one in patterns)
    }
    job = ctx.job
    facts = {
        "ROTA_RUN_ID": ctx.run_id, "ROTA_JOB_ID": job.id, "ROTA_ATTEMPT": str(ctx.attempt),
        "ROTA_FENCE": str(job.fence), "ROTA_SLOT": job.slot.isoformat() if job.slot else "",
    }  # fmt: skip
    return inherited | dict(given or {}) | facts


def limited(memory_mb: int | None, run_id: str, account: pwd.struct_passwd | None = None) -> Callable[[], None]:
    """What a new process does first: it announces itself to the warden, which ends it with its worker, becomes another
    user where one is named, and limits its memory."""
    pipe = warden.pipe()

    def first() -> None:
        announce(pipe, os.getpid(), run_id)
        if account is not None:
            become(account)
        die_with_parent()  # after that: a change of user resets it
        if memory_mb is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (memory_mb << 20, memory_mb << 20))

    return first


def become(account: pwd.struct_passwd) -> None:
    """Give this process the rights of a user, and no others."""
    os.initgroups(account.pw_name, account.pw_gid)
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)


def check_user(user: str) -> None:
    """Raises Invalid where no process can be started as a user."""
    try:
        account = pwd.getpwnam(user)
        subprocess.run(["/bin/sh", "-c", "true"], check=True, preexec_fn=lambda: become(account))
    except KeyError:
        raise Invalid("run_as", user, "is not a user of this machine") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise Invalid("run_as", user, f"cannot be used by this process, which has no right to it: {error}") from error


def die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def died_of(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
