"""Runs functions and commands in containers, through the command line of Docker or Podman.

Parameters travel by stdin, variables in a file that only this user can read: neither is in a command line.
"""

import asyncio
import os
import pickle
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rota.core.errors import LogicError, TransientError
from rota.core.policy import Failure, FailureClass
from rota.core.process_groups import Tail, describe_exit, last_line
from rota.engine.runner import ChildCrashed, RunContext, WorkFailed
from rota.kinds.tasks.executors.container_options import Container
from rota.kinds.tasks.executors.node_code import places_source
from rota.kinds.tasks.executors.port import FAILURE_BYTES, STOP_SECONDS, StreamedRun, uninterrupted
from rota.user_code import processes
from rota.user_code.child_process import ChildProcess

ENGINES = ("docker", "podman")  # the first that is installed
COMMAND_SECONDS = 30.0  # of `kill`, `rm` and `ps`
EXIT_SECONDS = 5.0  # between the end of a function and that of its container
ERROR_CHARACTERS = 4000
LENGTH_BYTES = 8  # of the length of a function's message
ENGINE_FAILED, CANNOT_RUN, NOT_FOUND, KILLED = 125, 126, 127, 137  # exit codes of `run`, in both engines
START = (  # of a function: its program comes first on stdin, behind its length
    "import sys; n = {'__name__': 'rota_node'}; i = sys.stdin.buffer; "
    "exec(compile(i.read(int(i.readline())), '<string>', 'exec'), n); n['run_in_container']()"
)


class Containers:
    """The containers of an engine. `command` is its command line; empty for the engine that is installed."""

    def __init__(self, command: str = "") -> None:
        self.engine = engine_words(command)
        self.label = Path(self.engine[0]).name

    async def run(self, ctx: RunContext, order: Mapping[str, Any]) -> object:
        """Run the function of an order; see `ClusterExecutor.run`."""
        container: Container = order["container"]
        content = await asyncio.to_thread(pickle.dumps, {**order, "container": None})
        source = places_source().encode()
        run = StreamedRun(ctx, f"image {container.image!r}")
        limit = order["result_limit"] + FAILURE_BYTES
        with variables_file(ctx, container.env) as path:
            process = await self.start(ctx, container, path, [container.python, "-u", "-c", START])
            stdin = b"%d\n%b%b" % (len(source), source, content)
            following = asyncio.ensure_future(self.follow(run, container, process, stdin, limit))
            try:
                await asyncio.wait([run.ended])
                await asyncio.wait([following], timeout=EXIT_SECONDS)
            except asyncio.CancelledError:
                if not run.ended.done():
                    await uninterrupted(self.stop(run))
                    raise
            finally:
                await uninterrupted(self.end(ctx, process, following))
                run.close()
        return await run.end(run.ended.result(), order["result_limit"])

    async def run_command(self, ctx: RunContext, container: Container, command: str, stdin: bytes) -> dict[str, Any]:
        """Run a command in a container; its outcome and failures are those of a command in the worker. Raises
        TransientError if the engine fails, LogicError if the image cannot run commands."""
        with variables_file(ctx, container.env) as path:
            process = await self.start(ctx, container, path, ["/bin/sh", "-c", command])
            try:
                output = await processes.supervise(ctx, process, stdin)
            finally:
                await uninterrupted(self.remove(name_of(ctx)))
        code = process.returncode
        last = last_line(output["stderr"])
        if code in (ENGINE_FAILED, CANNOT_RUN):
            raise self.failure(container, code, last)
        outcome = {"exit_code": code, **output}
        if code:
            text = f"command in image {container.image!r} exited with code {code}" + (f": {last}" if last else "")
            raise WorkFailed(Failure(FailureClass.LOGIC, "CommandFailed", text), outcome)
        return outcome

    async def start(self, ctx: RunContext, container: Container, path: str, words: Sequence[str]) -> ChildProcess:
        """Start a container. Those of earlier attempts, whose worker was lost, are removed first."""
        if ctx.attempt > 1 or ctx.job.rescues or ctx.job.crashes:
            await self.remove_earlier(ctx)
        options = ["--rm", "--interactive", "--name", name_of(ctx), "--label", f"rota.job={ctx.job.id}"]
        options += ["--env-file", path, "--pull", container.pull]
        for option, value in (
            ("--memory", container.memory_mb and f"{container.memory_mb}m"),
            ("--cpus", container.cpus and f"{container.cpus:g}"),
            ("--network", container.network),
            ("--workdir", container.cwd),
        ):
            options += [option, value] if value else []
        ctx.log.line("system", f"starts a container of image {container.image!r} by {self.label}")
        try:
            command = [*self.engine, "run", *options, container.image, *words]
            return await processes.start(ctx, command, engine_env(), str(Path(path).parent))  # conmon writes to its cwd
        except (OSError, subprocess.SubprocessError) as error:
            raise LogicError(f"{self.engine[0]} cannot be started: {error}") from error

    async def follow(
        self, run: StreamedRun, container: Container, process: ChildProcess, stdin: bytes, limit: int
    ) -> None:
        """Pass on the messages of a function, and what the engine prints, until the container has ended."""
        tail = Tail(ERROR_CHARACTERS)
        writer = asyncio.ensure_future(processes.write_input(process.stdin, stdin))
        errors = asyncio.ensure_future(processes.read_output(run.ctx, process.stderr, "stderr", tail))
        try:
            while True:
                size = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES))
                if size > limit:
                    run.fail(LogicError(f"image {container.image!r} wrote what is no message of a function"))
                    return
                content = await process.stdout.readexactly(size)
                run.take(await asyncio.to_thread(pickle.loads, content))
        except asyncio.IncompleteReadError:  # the container has ended
            code = await process.wait()
            await asyncio.wait([errors], timeout=1)
            run.fail(self.failure(container, code, last_line(tail.text())))
        finally:
            writer.cancel()
            errors.cancel()

    def failure(self, container: Container, code: int | None, last: str) -> Exception:
        """Return the error of a container that ended without a result."""
        reason = f": {last}" if last else ""
        if code == ENGINE_FAILED:
            return TransientError(f"{self.label} could not start a container of image {container.image!r}{reason}")
        if code in (CANNOT_RUN, NOT_FOUND):
            program = f"a function needs {container.python}, a command /bin/sh"
            return LogicError(f"image {container.image!r} does not have the program ({program}){reason}")
        limited = (
            f", perhaps by its limit of {container.memory_mb} MB" if code == KILLED and container.memory_mb else ""
        )
        exit_text = "signal SIGKILL" if code == KILLED else describe_exit(code)
        return ChildCrashed(f"the container of image {container.image!r} died ({exit_text}{limited}){reason}")

    async def stop(self, run: StreamedRun) -> None:
        """Stop the function by SIGTERM, and wait for the end of the container; `end` kills what is left."""
        await self.command("kill", "--signal", "TERM", name_of(run.ctx))
        limit = run.ctx.cancel_grace.total_seconds() + STOP_SECONDS
        await asyncio.wait([run.ended], timeout=limit)

    async def end(self, ctx: RunContext, process: ChildProcess, following: "asyncio.Future[None]") -> None:
        """Remove the container if it has not ended, and reap the engine's process."""
        if process.returncode is None:
            await self.remove(name_of(ctx))
        await asyncio.wait([following], timeout=EXIT_SECONDS)
        processes.release(process)
        await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=EXIT_SECONDS)

    async def remove_earlier(self, ctx: RunContext) -> None:
        containers = await self.command("ps", "--all", "--quiet", "--filter", f"label=rota.job={ctx.job.id}")
        if names := containers.split():
            ctx.log.line("system", f"removes {len(names)} container(s) of earlier attempts")
            await self.remove(*names)

    async def remove(self, *names: str) -> None:
        await self.command("rm", "--force", *names)

    async def command(self, *words: str) -> str:
        """Run a short command of the engine and return what it printed; its failure is none of the run's."""
        with suppress(OSError, subprocess.SubprocessError):
            done = await asyncio.to_thread(
                subprocess.run, [*self.engine, *words], env=engine_env(), capture_output=True, timeout=COMMAND_SECONDS
            )
            return done.stdout.decode(errors="replace")
        return ""

    async def close(self) -> None:
        """There is no connection."""


def engine_words(command: str) -> tuple[str, ...]:
    """Return the words of the engine's command line. Raises LogicError if none is installed."""
    words = tuple(shlex.split(command)) or tuple(filter(shutil.which, ENGINES))[:1]
    if not words or shutil.which(words[0]) is None:
        missing = f"{words[0]} is not installed" if words else "neither docker nor podman is installed"
        raise LogicError(f"{missing}: install one of them, or set ROTA_CONTAINER_COMMAND for the workers")
    return words


def name_of(ctx: RunContext) -> str:
    return f"rota-{ctx.run_id}-{ctx.attempt}".lower()


def engine_env() -> dict[str, str]:
    """Return the environment of the engine's command line; settings of Rota may hold secrets."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}


@contextmanager
def variables_file(ctx: RunContext, env: Mapping[str, str] | tuple[str, ...]) -> Iterator[str]:
    """Write the variables of a container to a file of this user: those that the task names, and the ids of its run.
    Raises LogicError for a value of several lines, which both engines would cut."""
    values = processes.variables_of_container(ctx, env)
    if wrong := [name for name, value in values.items() if "\n" in value or "\0" in value]:
        raise LogicError(f"env: {', '.join(wrong)} cannot have several lines in a container; pass it as a parameter")
    with tempfile.TemporaryDirectory(prefix="rota-container-") as folder:  # of mode 0700
        path = Path(folder, "env")
        path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        yield str(path)
