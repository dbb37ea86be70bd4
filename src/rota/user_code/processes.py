"""Processes that runs have to themselves: commands, and functions that must be killable.

A process gets its input on stdin; its output goes to the run's log as it comes. A canceled run is sent SIGTERM and,
after the grace, SIGKILL, with everything that it started, and ends only when all these processes are gone.
"""

import asyncio
import codecs
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
from typing import Required, TypedDict

import orjson

from rota.core.clock import real_sleep, stopwatch
from rota.core.errors import Invalid
from rota.core.model import PAYLOAD_LIMIT
from rota.core.policy import Failure, FailureClass, FailureData
from rota.core.process_groups import (
    OUTPUT_DRAIN_SECONDS,
    Tail,
    describe_exit,
    die_with_parent,
    kill_group,
    kill_processes,
)
from rota.engine.runner import Canceled, ChildCrashed, RunContext, Skipped, WorkFailed
from rota.user_code.warden import announce, warden

ANSWER_LIMIT = 8 * PAYLOAD_LIMIT  # bytes of a child process's answer
OUTPUT_LIMIT = 64 * 1024  # characters of a process's output kept in its outcome; the log has more
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TMPDIR", "TERM", "VIRTUAL_ENV")
KILL_TIMEOUT_SECONDS = 5.0  # after SIGKILL; then the run's log names the processes that remain


class ProgramOrder(TypedDict, total=False):
    """What a child process loads and calls: a function by its task, or a graph."""

    app: Required[str | None]
    payload: Required[object]
    task: str
    module: str  # its source file
    name: str
    graph: str
    grant_id: str | None
    schedule_id: str | None
    trace: str


class ChildOrder(ProgramOrder):
    """The input of a child process: its program, run and settings."""

    run_id: str
    attempt: int
    worker: str
    job_id: str
    org_id: str
    fence: int
    trigger: str
    slot: str | None
    result_fd: int
    database_url: str
    artifact_limit: int
    billing: str
    markup: str


class ChildFailure(FailureData):
    """A failure of the child process."""

    failure_class: str
    final: bool


class ChildAnswer(TypedDict, total=False):
    """The answer of a child process."""

    outcome: object
    artifact_id: str | None
    skipped: str  # the reason
    canceled: str  # by whom
    failure: ChildFailure | None


async def start(
    ctx: RunContext,
    command: str | Sequence[str],
    env: Mapping[str, str],
    cwd: str | None = None,
    memory_mb: int | None = None,
    pass_fds: Sequence[int] = (),
    user: str | None = None,
) -> asyncio.subprocess.Process:
    """Start a process group, as `user` if that is set. A command that is one text goes through the system's shell."""
    account = None if user is None else pwd.getpwnam(user)
    if account is not None:
        env = {**env, "HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=child_setup(memory_mb, ctx.run_id, account),
        cwd=cwd,
        pass_fds=pass_fds,
        env={**env, "ROTA_RUN_ID": ctx.run_id},
    )
    warden.add(process.pid, ctx.run_id)
    return process


async def supervise(ctx: RunContext, process: asyncio.subprocess.Process, stdin: bytes) -> dict[str, str]:
    """Write `stdin` to a process, log its output, and wait until it and what it started are gone. Returns the tails of
    its output, by stream. Raises CancelledError if it was canceled and did not exit with 0."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    tails = {"stdout": Tail(OUTPUT_LIMIT), "stderr": Tail(OUTPUT_LIMIT)}
    readers = [
        asyncio.ensure_future(read_output(ctx, stream, name, tails[name]))
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr))
    ]
    writer = asyncio.ensure_future(write_input(process.stdin, stdin))
    canceled_at: float | None = None

    async def wait_for_end() -> None:
        await process.wait()
        if canceled_at is None:
            await asyncio.wait(readers, timeout=OUTPUT_DRAIN_SECONDS)
        if canceled_at is None:
            kill_group(process.pid)  # what it left behind
        else:
            await wait_until_gone(process.pid, ctx, canceled_at)
            await asyncio.wait(readers, timeout=OUTPUT_DRAIN_SECONDS)

    ended = asyncio.ensure_future(wait_for_end())
    try:
        while not ended.done():  # also when canceled repeatedly: no process may be left behind
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError:
                signal_number = signal.SIGTERM if canceled_at is None else signal.SIGKILL
                kill_processes(processes_of_run(process.pid, ctx.run_id), signal_number)
                canceled_at = canceled_at or stopwatch()
    finally:
        for task in (*readers, writer):
            task.cancel()
        warden.remove(process.pid)
    ended.result()
    if canceled_at is not None and process.returncode != 0:
        raise asyncio.CancelledError
    return {name: tail.text() for name, tail in tails.items()}


async def ask_child(
    ctx: RunContext,
    order: ProgramOrder,
    cwd: str | None = None,
    memory_mb: int | None = None,
    user: str | None = None,
) -> ChildAnswer:
    """Execute a run in a Python process of its own (`rota.app.child`), so that a crash does not affect the worker.
    Returns the answer of that process. Raises Skipped, Canceled or WorkFailed as it answers, ChildCrashed if it
    died."""
    reading, writing = os.pipe()
    job, settings = ctx.job, ctx.engine.settings
    full_order: ChildOrder = {
        **order,
        "run_id": ctx.run_id,
        "attempt": ctx.attempt,
        "worker": ctx.worker,
        "job_id": job.id,
        "org_id": job.org_id,
        "fence": job.fence,
        "trigger": job.trigger,
        "slot": None if job.slot is None else job.slot.isoformat(),
        "result_fd": writing,
        "database_url": ctx.engine.db.url,
        "artifact_limit": settings.artifact_limit,
        "billing": settings.billing.value,
        "markup": str(settings.markup),
    }
    try:
        command = [sys.executable, "-P", "-m", "rota.app.child"]  # -P: no imports from its cwd
        process = await start(ctx, command, os.environ, cwd, memory_mb, [writing], user)
    finally:
        os.close(writing)
    results = asyncio.StreamReader(limit=ANSWER_LIMIT)
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(results), os.fdopen(reading, "rb"))
    answer = asyncio.ensure_future(results.readline())
    try:
        await supervise(ctx, process, orjson.dumps(full_order))
        await asyncio.wait([answer], timeout=OUTPUT_DRAIN_SECONDS)  # a process that it left behind may hold the pipe
        line = answer.result() if answer.done() else b""
    finally:
        answer.cancel()
        pipe.close()
    if not line:
        raise ChildCrashed(f"the process of this run died ({describe_exit(process.returncode)})")
    result: ChildAnswer = orjson.loads(line)
    failure = load_failure(result.get("failure"))
    if "skipped" in result:
        raise Skipped(result["skipped"], failure)
    if "canceled" in result:
        raise Canceled(result["canceled"])
    if failure is not None:
        raise WorkFailed(failure)
    return result


def dump_failure(failure: Failure) -> ChildFailure:
    """Serialise a failure in the child process; `load_failure` restores it in the worker."""
    return {"failure_class": failure.failure_class.value, "final": failure.final, **failure.dump()}


def load_failure(fields: ChildFailure | None) -> Failure | None:
    if fields is None:
        return None
    failure_class = FailureClass(fields["failure_class"])
    texts = (fields["type"], fields["message"], fields["traceback"], fields["code"])
    return Failure(failure_class, *texts, final=fields["final"])


async def wait_until_gone(leader: int, ctx: RunContext, canceled_at: float) -> None:
    """Wait until every process of a canceled run is gone; after the grace send SIGKILL to those that remain."""
    grace, poll_seconds = ctx.cancel_grace.total_seconds(), 0.01
    while (rest := processes_of_run(leader, ctx.run_id)) and stopwatch() - canceled_at < grace + KILL_TIMEOUT_SECONDS:
        if stopwatch() - canceled_at >= grace:
            kill_processes(rest, signal.SIGKILL)
        await real_sleep(poll_seconds)
        poll_seconds = min(poll_seconds * 2, 0.2)
    if rest:
        ctx.log.line("system", f"processes still alive after SIGKILL: {', '.join(map(str, sorted(rest)))}")


def processes_of_run(leader: int, run_id: str) -> set[int]:
    """Return the living processes of a run: its process group, and those with its ROTA_RUN_ID in their environment,
    also after `setsid`. Empty where the system has no /proc."""
    pids: set[int] = set()
    variable = f"ROTA_RUN_ID={run_id}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):  # it has ended, or belongs to another user
            state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if state in "ZX":
                continue
            if int(group) == leader or variable in (entry / "environ").read_bytes().split(b"\0"):
                pids.add(int(entry.name))
    return pids - {os.getpid()}


async def read_output(ctx: RunContext, stream: asyncio.StreamReader, name: str, tail: Tail) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may be split between two chunks
    while chunk := await stream.read(65_536):
        text = decoder.decode(chunk)
        ctx.log.write(name, text)
        tail.add(text)


async def write_input(stdin: asyncio.StreamWriter, content: bytes) -> None:
    try:
        stdin.write(content)
        await stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the process closed its stdin
    finally:
        stdin.close()


def environment(
    ctx: RunContext, allowed: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment of a command: the INHERITED variables, those that match `allowed`, `variables`, and the
    ids of its run. ROTA_* settings may hold secrets and are never inherited."""
    patterns = (*INHERITED, *allowed)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ROTA_") and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
    job = ctx.job
    run_ids = {
        "ROTA_RUN_ID": ctx.run_id,
        "ROTA_JOB_ID": job.id,
        "ROTA_ATTEMPT": str(ctx.attempt),
        "ROTA_FENCE": str(job.fence),
        "ROTA_SLOT": job.slot.isoformat() if job.slot else "",
    }
    return inherited | dict(variables or {}) | run_ids


def child_setup(memory_mb: int | None, run_id: str, account: pwd.struct_passwd | None = None) -> Callable[[], None]:
    """Return what a new process does before exec: announce itself to the warden, which kills it if the worker dies,
    change its user, and limit its memory."""
    pipe = warden.pipe()

    def setup() -> None:
        announce(pipe, os.getpid(), run_id)
        if account is not None:
            change_user(account)
        die_with_parent()  # last: a change of user resets it
        if memory_mb is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (memory_mb << 20, memory_mb << 20))

    return setup


def change_user(account: pwd.struct_passwd) -> None:
    """Drop to the user, group and supplementary groups of `account`."""
    os.initgroups(account.pw_name, account.pw_gid)
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)


def check_user(user: str) -> None:
    """Raises Invalid if this process cannot start processes as `user`."""
    try:
        account = pwd.getpwnam(user)
        subprocess.run(["/bin/sh", "-c", "true"], check=True, preexec_fn=lambda: change_user(account))
    except KeyError:
        raise Invalid("run_as", user, "is not a user of this machine") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise Invalid(
            "run_as", user, f"cannot be used: this process has no permission to change to it ({error})"
        ) from error
