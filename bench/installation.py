"""An installation of Rota to measure: a fresh database, an engine, worker processes, and their CPU and memory."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import text as sql

from bench.peers.rota import PROGRAM
from rota.access.store import accounts
from rota.app.application import Rota
from rota.app.programs import load_app
from rota.core.clock import SystemClock
from rota.db.connection import Database, open_database
from rota.db.migrate import migrate
from rota.db.wake import Wake
from rota.engine import workers
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.kinds.tasks.declare import declare
from rota.kinds.tasks.registry import task_rows
from rota.kinds.tasks.runner import TaskRunner
from tests.postgres import create_database, database_name, drop_database

ROOT = Path(__file__).parent.parent


class WrongCount(Exception):
    """Jobs did not run exactly once, or a wait timed out: the measurement is invalid."""


class DatabaseKind(Protocol):
    """A database product that creates fresh, migrated databases."""

    name: str

    def fresh(self, home: Path) -> str: ...

    def drop(self, url: str) -> None: ...


def migrate_in_thread(url: str) -> None:
    """Migrate a database for a caller that may run inside an event loop."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(migrate, url).result()


class Sqlite:
    name = "sqlite"

    def __init__(self, home: Path) -> None:
        self.template = home / "template.db"
        migrate_in_thread(f"sqlite:///{self.template}")

    def fresh(self, home: Path) -> str:
        shutil.copy(self.template, home / "rota.db")
        return f"sqlite:///{home / 'rota.db'}"

    def drop(self, url: str) -> None:
        """Nothing to do: the file is deleted with its directory."""


class Postgres:
    name = "postgresql"

    def __init__(self, server_url: str) -> None:
        self.server_url = server_url
        self.template = create_database(server_url)
        migrate_in_thread(self.template)

    def fresh(self, home: Path) -> str:  # noqa: ARG002
        return create_database(self.server_url, template=database_name(self.template))

    def drop(self, url: str) -> None:
        drop_database(self.server_url, url)


@dataclass
class Installation:
    """A fresh database with an engine on it."""

    kind: DatabaseKind
    url: str
    home: Path
    db: Database
    engine: Engine
    org_id: str
    processes: list["Process"] = field(default_factory=list)

    @property
    def marks(self) -> "Marks":
        return Marks(self.home)

    async def scalar(self, statement: str, **values: Any) -> Any:
        return await self.db.read(lambda tx: tx.execute(sql(statement), values).scalar())

    async def count(self, table: str) -> int:
        return int(await self.scalar(f"SELECT count(*) FROM {table}"))

    def start_process(self, *command: str) -> "Process":
        """Start a worker process, or the given command."""
        process = Process(self, command or ("-m", "bench.peers.rota", "worker"))
        self.processes.append(process)
        return process

    async def registered(self, process: "Process") -> float:
        """Wait until a worker process is registered; return the seconds since its start."""
        find = "SELECT count(*) FROM workers WHERE pid = :pid AND state = 'alive'"

        async def there() -> bool:
            return bool(await self.scalar(find, pid=process.process.pid))

        await self.until(there, "a worker registered", 60, 0.002)
        return time.time() - process.started

    async def until(self, reached: Callable[[], Awaitable[bool]], condition: str, seconds: float, every: float) -> None:
        end = time.monotonic() + seconds
        while not await reached():
            for process in self.processes:
                process.check()
            if time.monotonic() > end:
                raise WrongCount(f"{self.kind.name}: waited {seconds:g} s until {condition}, without success")
            await asyncio.sleep(every)

    def print_log(self) -> None:
        path = self.home / "log"
        if path.exists() and path.stat().st_size:
            print(f"{self.kind.name}: workers said:\n{path.read_text(errors='replace')[:2000]}", file=sys.stderr)

    async def expect(self, jobs: int) -> None:
        """Raise WrongCount unless handlers and ledger have exactly `jobs` runs and the queue is empty."""
        handled = len(self.marks.starts())
        ledger = await self.scalar("SELECT count(*) FROM runs WHERE status = 'success'")
        left, rows = await self.count("jobs"), await self.count("runs")
        if (handled, ledger, rows, left) != (jobs, jobs, jobs, 0):
            raise WrongCount(
                f"{self.kind.name}: {jobs} jobs, but {handled} handler runs, {rows} runs in the ledger, "
                f"{ledger} of them successful, {left} jobs left"
            )

    async def server_pids(self) -> list[int]:
        """Return the PostgreSQL backends of our workers, if the server is on this machine."""
        if self.kind.name != "postgresql":
            return []
        pids = "SELECT string_agg(pid::text, ' ') FROM pg_stat_activity WHERE datname = current_database()"
        ours = "client_port NOT IN (SELECT unnest(string_to_array(:ports, ' ')::int[]))"
        backends = str(await self.scalar(f"{pids} AND {ours}", ports=" ".join(map(str, own_ports()))) or "")
        return [int(pid) for pid in backends.split() if on_this_machine(pid)]


class Marks:
    """The file to which every job appends its number and start time: see peers/kit.py."""

    LINE = 27  # bytes

    def __init__(self, home: Path) -> None:
        self.path = home / "marks"

    def count(self) -> int:
        return self.path.stat().st_size // self.LINE if self.path.exists() else 0

    def starts(self) -> dict[int, float]:
        """Return the start time of each job. Raises WrongCount if a job started twice."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        start_times = {int(i): float(at) for i, at in (line.split() for line in lines)}
        if len(start_times) != len(lines):
            raise WrongCount(f"{len(lines)} runs of {len(start_times)} jobs")
        return start_times


class Process:
    """A process of an installation, by default a worker."""

    def __init__(self, installation: Installation, command: Sequence[str]) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ROTA_")},
            "BENCH_URL": installation.url,
            "BENCH_HOME": str(installation.home),
            "ROTA_DATABASE_URL": installation.url,
            "ROTA_DATA_DIR": str(installation.home),
            "ROTA_LOG_LEVEL": "warning",
        }
        self.log = installation.home / "log"
        with self.log.open("ab") as log:
            self.started = time.time()
            self.process = subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def check(self) -> None:
        if self.process.poll() is not None:
            raise WrongCount(f"a process died:\n{self.log.read_text(errors='replace')[-4000:]}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@asynccontextmanager
async def installation(kind: DatabaseKind) -> AsyncIterator[Installation]:
    """Create a fresh database with an engine; at the end stop all processes and drop the database."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as home:
        url = kind.fresh(Path(home))
        db = open_database(url)
        try:
            engine, org_id = await make_engine(db)
            new = Installation(kind, url, Path(home), db, engine, org_id)
            try:
                yield new
                new.print_log()
            finally:
                for process in new.processes:
                    process.stop()
        finally:
            await db.close()
            kind.drop(url)


async def make_engine(db: Database, settings: EngineSettings | None = None) -> tuple[Engine, str]:
    program: Rota = load_app(str(PROGRAM))
    clock = SystemClock()
    clock.sync(await db.read(workers.measure))
    org_id, _ = await db.tx(accounts.ensure_default_org, clock.now())
    runner = TaskRunner(program.registry, db, injector=program.injector)
    engine = Engine(db, clock, Wake(), {runner.kind: runner, **program.runners}, settings or EngineSettings())
    await declare(engine, program.org, None, task_rows(program.registry, program.injector, None), [])
    return engine, org_id


# CPU and memory of processes; Linux only


def cpu_seconds(pids: list[int]) -> dict[str, float]:
    """Return the CPU time of these processes so far, by thread."""
    seconds = {}
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # it has ended
                seconds[str(thread)] = int(thread.read_text().split()[0]) / 1e9
    return seconds


def used_since(before: dict[str, float], after: dict[str, float]) -> float:
    """Return the CPU seconds between two samples: new threads start at 0, ended threads are not counted."""
    return sum(seconds - before.get(thread, 0) for thread, seconds in after.items())


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def on_this_machine(pid: str) -> bool:
    return Path(f"/proc/{pid}/task").exists()


def own_ports() -> list[int]:
    """Return the local ports of this process's connections; all other sessions of the server belong to workers."""
    ports = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed already
            if stat.S_ISSOCK(os.fstat(int(number)).st_mode):
                with socket.socket(fileno=os.dup(int(number))) as connection:
                    if connection.family in (socket.AF_INET, socket.AF_INET6):
                        ports.append(connection.getsockname()[1])
    return ports
