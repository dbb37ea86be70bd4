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
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
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
from rota.core.steps import Suspended, Suspension, WaitingData
from rota.engine.engine_settings import ObjectStoreSettings
from rota.engine.object_store import CREDENTIALS
from rota.engine.runner import Canceled, ChildCrashed, RunContext, Skipped, WorkFailed
from rota.user_code.child_process import ChildProcess, start_child
from rota.user_code.warden import announce, warden

ANSWER_LIMIT = 8 * PAYLOAD_LIMIT  # bytes of a child process's answer
OUTPUT_LIMIT = 64 * 1024  # characters of a process's output kept in its outcome; the log has more
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TMPDIR", "TERM", "VIRTUAL_ENV")
HEARTBEAT = b"heartbeat\n"  # a line that a child process writes before its answer, any number of times
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


class ObjectStoreOrder(TypedDict):
    """The object store of a child process; its credentials are in the environment."""

    url: str
    endpoint: str
    inline_bytes: int


class ChildOrder(ProgramOrder):
    """The input of a child process: its program, run and settings."""

    run_id: str
    attempt: int
    worker: str
    job_id: str
    org_id: str
    fence: int
    crashes: int
    rescues: int
    route: str
    queue: str
    waiting: WaitingData | None
    parent_id: str | None
    job_grant_id: str | None
    started_at: str
    trigger: str
    slot: str | None
    result_fd: int
    database_url: str
    artifact_limit: int
    capture_locals: bool
    objects: ObjectStoreOrder | None
    billing: str
    markup: str


class ChildFailure(FailureData):
    """A failure of the child process."""

    failure_class: str
    final: bool
    retry_after: float | None  # seconds


class ChildSuspension(TypedDict):
    """Why a run in a child process waits; see `Suspension`."""

    waiting: WaitingData
    run_at: str
    steps: list[str]


class ChildAnswer(TypedDict, total=False):
    """The answer of a child process."""

    suspended: ChildSuspension
    recorded_steps: bool

    outcome: object
    artifact_id: str | None
    skipped: str  # the reason
    canceled: str  # by whom
    failure: ChildFailure | None
    peak_memory_bytes: int | None


async def start(
    ctx: RunContext,
    command: str | Sequence[str],
    env: Mapping[str, str],
    cwd: str | None = None,
    memory_mb: int | None = None,
    pass_fds: Sequence[int] = (),
    user: str | None = None,
) -> ChildProcess:
    """Start a process group, as `user` if that is set. A command that is one text goes through the system's shell."""
    account = None if user is None else pwd.getpwnam(user)
    if account is not None:
        env = {**env, "HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    process = await start_child(
        words,
        preexec_fn=child_setup(memory_mb, ctx.run_id, account),
        cwd=cwd,
        pass_fds=pass_fds,
        env={**env, "ROTA_RUN_ID": ctx.run_id},
    )
    warden.add(process.pid, ctx.run_id)
    return process


async def supervise(ctx: RunContext, process: ChildProcess, stdin: bytes) -> dict[str, str]:
    """Write `stdin` to a process, log its output, and wait until it and what it started are gone. Returns the tails of
    its output, by stream, and sets the resources of the run. Raises CancelledError if it was canceled and did not exit
    with 0."""
    tails = {"stdout": Tail(OUTPUT_LIMIT), "stderr": Tail(OUTPUT_LIMIT)}
    readers = [
        asyncio.ensure_future(read_output(ctx, stream, name, tails[name]))
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr))
    ]
    writer = asyncio.ensure_future(write_input(process.stdin, stdin))
    sampler = asyncio.ensure_future(process.sample_memory())
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
        for task in (*readers, writer, sampler):
            task.cancel()
        ctx.info.resources = process.resources
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
        "crashes": job.crashes,
        "rescues": job.rescues,
        "route": job.route,
        "queue": job.queue,
        "waiting": job.waiting,
        "parent_id": job.parent_id,
        "job_grant_id": job.terms.grant_id,
        "started_at": ctx.started_at.isoformat(),
        "trigger": job.trigger,
        "slot": None if job.slot is None else job.slot.isoformat(),
        "result_fd": writing,
        "database_url": ctx.engine.db.url,
        "artifact_limit": settings.artifact_limit,
        "capture_locals": settings.capture_locals,
        "objects": dump_objects(settings.objects),
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
    answer = asyncio.ensure_future(read_answer(ctx, results))
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
    process.add_peak(result.get("peak_memory_bytes"))
    ctx.info.resources = process.resources
    ctx.info.recorded_steps = result.get("recorded_steps", False)
    failure = load_failure(result.get("failure"))
    if "skipped" in result:
        raise Skipped(result["skipped"], failure)
    if "canceled" in result:
        raise Canceled(result["canceled"])
    if "suspended" in result:
        ctx.suspension = load_suspension(result["suspended"])
        raise Suspended
    if failure is not None:
        raise WorkFailed(failure)
    return result


def dump_objects(settings: ObjectStoreSettings | None) -> ObjectStoreOrder | None:
    """Serialise the settings of the object store; `load_objects` restores them in the child process."""
    if settings is None:
        return None
    return {"url": settings.url, "endpoint": settings.endpoint, "inline_bytes": settings.inline_bytes}


def load_objects(order: ObjectStoreOrder | None) -> ObjectStoreSettings | None:
    return None if order is None else ObjectStoreSettings(**order)


def dump_suspension(suspension: Suspension) -> ChildSuspension:
    """Serialise a suspension in the child process; `load_suspension` restores it in the worker."""
    return {
        "waiting": suspension.waiting,
        "run_at": suspension.run_at.isoformat(),
        "steps": list(suspension.steps),
    }


def load_suspension(fields: ChildSuspension) -> Suspension:
    return Suspension(fields["waiting"], datetime.fromisoformat(fields["run_at"]), tuple(fields["steps"]))


async def read_answer(ctx: RunContext, results: asyncio.StreamReader) -> bytes:
    """Return the answer of a child process, the first line that is no heartbeat; empty if it has none."""
    while (line := await results.readline()) == HEARTBEAT:
        ctx.heartbeat()
    return line


def dump_failure(failure: Failure) -> ChildFailure:
    """Serialise a failure in the child process; `load_failure` restores it in the worker."""
    retry_after = None if failure.retry_after is None else failure.retry_after.total_seconds()
    return {
        "failure_class": failure.failure_class.value,
        "final": failure.final,
        "retry_after": retry_after,
        **failure.dump(),
    }


def load_failure(fields: ChildFailure | None) -> Failure | None:
    if fields is None:
        return None
    failure_class = FailureClass(fields["failure_class"])
    texts = (fields["type"], fields["message"], fields["traceback"], fields["code"])
    seconds = fields["retry_after"]
    retry_after = None if seconds is None else timedelta(seconds=seconds)
    variables = fields.get("locals")
    return Failure(failure_class, *texts, final=fields["final"], retry_after=retry_after, variables=variables)


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
    ctx: RunContext,
    allowed: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    hidden: Collection[str] = (),
) -> dict[str, str]:
    """Return the environment of a command: the INHERITED variables, those that match `allowed` and are not `hidden`,
    `variables`, and the ids of its run. ROTA_* settings may hold secrets and are never inherited."""
    return inherited((*INHERITED, *allowed), hidden) | dict(variables or {}) | ids_of(ctx)


def variables_of_container(ctx: RunContext, env: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Return the variables of a container: those of `environment` but the INHERITED ones, which fit this machine."""
    chosen = env if isinstance(env, Mapping) else inherited(env, hidden_variables(ctx))
    return {**chosen, **ids_of(ctx)}


def hidden_variables(ctx: RunContext) -> Collection[str]:
    """Return the names of the variables with the credentials of the object store, which has the results of all orgs."""
    objects = ctx.engine.objects
    return () if objects is None else CREDENTIALS.get(objects.scheme, ())


def inherited(patterns: Sequence[str], hidden: Collection[str] = ()) -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ROTA_")
        and name not in hidden
        and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


def ids_of(ctx: RunContext) -> dict[str, str]:
    """Return the variables with the ids of a run."""
    job = ctx.job
    return {
        "ROTA_RUN_ID": ctx.run_id,
        "ROTA_JOB_ID": job.id,
        "ROTA_ATTEMPT": str(ctx.attempt),
        "ROTA_FENCE": str(job.fence),
        "ROTA_SLOT": job.slot.isoformat() if job.slot else "",
    }


def release(process: ChildProcess) -> None:
    """Kill what is left of a process that `start` started, and end the watch over it."""
    kill_group(process.pid)
    warden.remove(process.pid)


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
