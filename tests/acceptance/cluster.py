"""Worker processes on one database, as an operator runs them, and a witness file that is independent of the database.

Tasks of the programs here append lines to that file: stored runs are compared with what really happened.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import select

from rota.access.store import accounts
from rota.app.programs import load_app
from rota.core.clock import SystemClock
from rota.core.errors import Unavailable
from rota.core.process_groups import die_with_parent
from rota.db.connection import open_database
from rota.db.dialect import Tx
from rota.db.migrate import migrate
from rota.db.tables import jobs, runs, schedules, slots
from rota.db.tables import workers as worker_rows
from rota.db.wake import Wake
from rota.engine import workers
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.engine.runner import Runners
from rota.engine.slot_audit import AuditReport, audit
from rota.kinds.graphs.runner import GraphRunner
from rota.kinds.pipelines.executor import executor_here
from rota.kinds.pipelines.runner import PipelineRunner
from rota.kinds.tasks.declare import declare
from rota.kinds.tasks.registry import task_rows
from rota.kinds.tasks.runner import TaskRunner

PRELUDE = """
import asyncio, os, signal, time
from rota import Rota, RunContext

app = Rota()

def note(ctx, what):
    slot = ctx.slot.isoformat() if ctx.slot else "-"
    line = f"{what} {ctx.job.id} {ctx.run_id} {ctx.attempt} {ctx.job.target} {slot} {os.getpid()} {time.time()}\\n"
    witness = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(witness, line.encode())
    os.close(witness)

@app.task
async def quick(ctx: RunContext):
    note(ctx, "begin")
    note(ctx, "end")

@app.task
async def sleeper(ctx: RunContext, seconds: float = 1.0):
    note(ctx, "begin")
    await asyncio.sleep(seconds)
    note(ctx, "end")
"""


@dataclass(frozen=True, slots=True)
class WitnessLine:
    """A line of the witness file."""

    event: str
    job_id: str
    run_id: str
    attempt: int
    target: str
    slot: str
    pid: int
    at: float


class Process:
    """One process under test. Signals go to its own pid only."""

    def __init__(self, command: list[str], env: Mapping[str, str], log: Path, into: Path | None = None) -> None:
        self.log = log
        with (into or log).open("ab") as out:
            self.popen = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=die_with_parent
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, also to a stopped process; return when it has ended."""
        if self.alive:
            self.popen.kill()
        self.popen.wait(10)

    async def ended(self, seconds: float) -> int:
        """Wait until the process ends; return its exit code."""
        await until(lambda: not self.alive, seconds, f"process {self.pid} ends")
        return self.popen.wait()

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")


class Cluster:
    """Processes that share a database and an app file. Kills all of them at the end."""

    def __init__(self, home: Path, url: str, app: str = "", *, bare: bool = False, **settings: object) -> None:
        self.home, self.url, self.bare = home, url, bare  # bare: migrated, but nothing declared yet
        self.settings = {f"ROTA_{name.upper()}": str(value) for name, value in settings.items()}
        self.processes: list[Process] = []
        self.app = home / "app.py"
        self.app.write_text(PRELUDE + app)
        self.witness = home / "witness"
        self.db = open_database(url)
        self.clock = SystemClock()
        self.org = ""

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(migrate, self.url)
        self.clock.sync(await self.db.tx(workers.measure))
        if self.bare:
            return self
        self.org, _ = await self.db.tx(accounts.ensure_default_org, self.clock.now())
        program = load_app(str(self.app))
        runners: Runners = {
            "task": TaskRunner(program.registry, self.db),
            "graph": GraphRunner(program.graphs, self.db, self.clock),
            "pipeline": PipelineRunner(program.pipelines, self.db, executor_here(self.home / "data" / "warehouse", 4)),
        }
        self.engine = Engine(self.db, self.clock, Wake(), runners, EngineSettings())
        await declare(self.engine, "default", None, task_rows(program.registry, program.injector, None), [])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.kill()
        await self.db.close()
        if kind is not None:
            for process in self.processes:
                print(f"--- process {process.pid}, exit code {process.popen.returncode}\n{process.log_text()[-4000:]}")

    # processes

    def start(
        self, count: int = 1, *, url: str | None = None, log: Path | None = None, **settings: object
    ) -> list[Process]:
        """Start worker processes. Settings in capitals are environment variables."""
        env = {
            **os.environ,
            "ROTA_DATABASE_URL": url or self.url,
            "ROTA_DATA_DIR": str(self.home / "data"),
            "WITNESS": str(self.witness),
            **self.settings,
            **{name if name.isupper() else f"ROTA_{name.upper()}": str(value) for name, value in settings.items()},
        }
        command = [sys.executable, "-m", "rota.app.cli", "worker", str(self.app)]
        new = [Process(command, env, self.home / f"worker-{len(self.processes) + n}.log", log) for n in range(count)]
        self.processes += new
        return new

    async def up(self, count: int = 1, **settings: Any) -> list[Process]:
        """Start worker processes and wait until they are registered."""
        new = self.start(count, **settings)
        pids = {process.pid for process in new}

        async def registered() -> bool:
            gone = [process for process in new if not process.alive]
            assert not gone, f"a worker process ended at once: {gone[0].log_text()[-3000:]}"
            return pids <= {row.pid for row in await self.workers() if row.state == "alive"}

        await until(registered, 120, f"{count} workers register")
        return new

    # queries of the database

    async def runs(self, *where: Any) -> list[Any]:
        return await self.rows(select(runs).where(*where).order_by(runs.c.id))

    async def jobs(self, *where: Any) -> list[Any]:
        return await self.rows(select(jobs).where(*where).order_by(jobs.c.id))

    async def slots(self, *where: Any) -> list[Any]:
        return await self.rows(select(slots).where(*where).order_by(slots.c.slot))

    async def schedules(self, *where: Any) -> list[Any]:
        return await self.rows(select(schedules).where(*where).order_by(schedules.c.id))

    async def workers(self) -> list[Any]:
        return await self.rows(select(worker_rows).order_by(worker_rows.c.id))

    async def rows(self, stmt: Any) -> list[Any]:
        def step(tx: Tx) -> list[Any]:
            return list(tx.execute(stmt))

        deadline = time.monotonic() + 30
        while True:
            try:
                return await self.db.read(step)
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)

    async def audit(self) -> AuditReport:
        return await audit(self.db, self.org, None, None, self.clock.now())

    async def idle(self, seconds: float = 60) -> None:
        """Wait until the queue is empty."""

        async def empty() -> bool:
            return not await self.rows(select(jobs.c.id).limit(1))

        await until(empty, seconds, "the queue is empty")

    # commands

    async def enqueue(self, target: str, count: int = 1, **payload: Any) -> list[str]:
        return await self.engine.enqueue(self.org, "task", target, [payload or None] * count)

    async def schedule(self, name: str, target: str, **fields: Any) -> str:
        return (await self.schedule_all([{"name": name, "target": target, **fields}]))[0]

    async def schedule_all(self, bodies: list[dict[str, Any]]) -> list[str]:
        created = await self.engine.create_schedules(self.org, [{"kind": "task", **body} for body in bodies])
        return [schedule.id for schedule in created]

    # the witness

    def witness_lines(self, event: str | None = None, **traits: object) -> list[WitnessLine]:
        """Return the matching lines of the witness file, in order."""
        if not self.witness.exists():
            return []
        lines = []
        for line in self.witness.read_text().splitlines():
            verb, job_id, run_id, attempt, target, slot, pid, at = line.split()
            lines.append(WitnessLine(verb, job_id, run_id, int(attempt), target, slot, int(pid), float(at)))
        return [
            line
            for line in lines
            if event in (None, line.event) and all(getattr(line, name) == value for name, value in traits.items())
        ]

    async def wait_for_line(
        self, event: str, seconds: float = 20, count: int = 1, **traits: object
    ) -> list[WitnessLine]:
        """Wait until the witness file has `count` matching lines."""
        await until(
            lambda: len(self.witness_lines(event, **traits)) >= count, seconds, f"{count} times {event} {traits}"
        )
        return self.witness_lines(event, **traits)

    def log_text(self) -> str:
        """Return the logs of all processes."""
        return "\n".join(process.log_text() for process in self.processes)


async def until(
    true: Callable[[], bool | Awaitable[bool]], seconds: float, condition: str, every: float = 0.05
) -> None:
    """Wait until a condition is true; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = true()
        if answer is True or (not isinstance(answer, bool) and await answer):
            return
        assert time.monotonic() < deadline, f"after {seconds:g} s still waiting: {condition}"
        await asyncio.sleep(every)
