"""Where a measurement happens: a fresh database, an engine to command it, worker processes, and what they cost."""

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
from rota.app.application import Rota, load_app
from rota.core.clock import SystemClock
from rota.db.connection import Database, open_database
from rota.db.migrate import migrate
from rota.db.notify import Wake
from rota.engine import workers
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.kinds.tasks.declare import declare
from rota.kinds.tasks.registry import task_rows
from rota.kinds.tasks.runner import TaskRunner
from tests.postgres import create_database, database_name, drop_database

ROOT = Path(__file__).parent.parent


class WrongCount(Exception):
    """Jobs ran more or less often than they were promised: no figure counts then."""


class Kind(Protocol):
    """A database product that can make fresh, migrated databases."""

    name: str

    def fresh(self, home: Path) -> str: ...

    def drop(self, url: str) -> None: ...


class Sqlite:
    name = "sqlite"

    def __init__(self, home: Path) -> None:
        self.template = home / "template.db"
        migrate(f"sqlite:///{self.template}")

    def fresh(self, home: Path) -> str:
        shutil.copy(self.template, home / "rota.db")
        return f"sqlite:///{home / 'rota.db'}"

    def drop(self, url: str) -> None:
        """Goes with its directory."""


class Postgres:
    name = "postgresql"

    def __init__(self, server_url: str) -> None:
        self.server_url = server_url
        self.template = create_database(server_url)
        with ThreadPoolExecutor(1) as thread:  # the caller may itself be inside an event loop
            thread.submit(migrate, self.template).result()

    def fresh(self, home: Path) -> str:  # noqa: ARG002
        return create_database(self.server_url, template=database_name(self.template))

    def drop(self, url: str) -> None:
        drop_database(self.server_url, url)


@dataclass
class Site:
    """A fresh database with an engine on it."""

    kind: Kind
    url: str
    home: Path
    db: Database
    engine: Engine
    org_id: str
    nodes: list["Node"] = field(default_factory=list)

    @property
    def marks(self) -> "Marks":
        return Marks(self.home)

    async def scalar(self, statement: str, **values: Any) -> Any:
        return await self.db.read(lambda tx: tx.execute(sql(statement), values).scalar())

    async def count(self, table: str) -> int:
        return int(await self.scalar(f"SELECT count(*) FROM {table}"))

    def node(self, *command: str) -> "Node":
        """Start a worker process, or what the command says."""
        one = Node(self, command or ("-m", "bench.peers.rota", "worker"))
        self.nodes.append(one)
        return one

    async def registered(self, node: "Node") -> float:
        """Wait until a worker process is in the database; returns the seconds since it was started."""
        find = "SELECT count(*) FROM workers WHERE pid = :pid AND state = 'alive'"

        async def there() -> bool:
            return bool(await self.scalar(find, pid=node.process.pid))

        await self.until(there, "a worker registered", 60, 0.002)
        return time.time() - node.started

    async def until(self, reached: Callable[[], Awaitable[bool]], what: str, seconds: float, every: float) -> None:
        end = time.monotonic() + seconds
        while not await reached():
            for node in self.nodes:
                node.check()
            if time.monotonic() > end:
                raise WrongCount(f"{self.kind.name}: waited {seconds:g} s in vain until {what}")
            await asyncio.sleep(every)

    def pass_on_complaints(self) -> None:
        path = self.home / "log"
        if path.exists() and path.stat().st_size:
            print(f"{self.kind.name}: workers said:\n{path.read_text(errors='replace')[:2000]}", file=sys.stderr)

    async def expect(self, jobs: int) -> None:
        """The handlers and the ledger must both tell of exactly so many runs, and the queue be empty."""
        handled = len(self.marks.starts())
        ledger = await self.scalar("SELECT count(*) FROM runs WHERE status = 'success'")
        left, rows = await self.count("jobs"), await self.count("runs")
        if (handled, ledger, rows, left) != (jobs, jobs, jobs, 0):
            raise WrongCount(
                f"{self.kind.name}: {jobs} jobs, but {handled} handler runs, {rows} runs in the ledger, "
                f"{ledger} of them successful, {left} jobs left"
            )

    async def server_pids(self) -> list[int]:
        """The PostgreSQL backends that serve our workers, where they can be seen: a server on this machine."""
        if self.kind.name != "postgresql":
            return []
        pids = "SELECT string_agg(pid::text, ' ') FROM pg_stat_activity WHERE datname = current_database()"
        ours = "client_port NOT IN (SELECT unnest(string_to_array(:ports, ' ')::int[]))"
        found = str(await self.scalar(f"{pids} AND {ours}", ports=" ".join(map(str, own_ports()))) or "")
        return [int(pid) for pid in found.split() if on_this_machine(pid)]


class Marks:
    """The file in which every job leaves its number and the moment of its start: see peers/kit.py."""

    LINE = 27  # bytes

    def __init__(self, home: Path) -> None:
        self.path = home / "marks"

    def count(self) -> int:
        return self.path.stat().st_size // self.LINE if self.path.exists() else 0

    def starts(self) -> dict[int, float]:
        """When each job started; none may have started twice."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        found = {int(i): float(at) for i, at in (line.split() for line in lines)}
        if len(found) != len(lines):
            raise WrongCount(f"{len(lines)} runs of {len(found)} jobs")
        return found


class Node:
    """A process on a site."""

    def __init__(self, site: Site, command: Sequence[str]) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ROTA_")},
            "BENCH_URL": site.url,
            "BENCH_HOME": str(site.home),
            "ROTA_DATABASE_URL": site.url,
            "ROTA_DATA_DIR": str(site.home),
            "ROTA_LOG_LEVEL": "warning",
        }
        self.log = site.home / "log"
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
async def site(kind: Kind) -> AsyncIterator[Site]:
    """A fresh database, an engine on it, and an end of both and of all workers."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as home:
        url = kind.fresh(Path(home))
        db = open_database(url)
        try:
            engine, org_id = await make_engine(db)
            one = Site(kind, url, Path(home), db, engine, org_id)
            try:
                yield one
                one.pass_on_complaints()
            finally:
                for node in one.nodes:
                    node.stop()
        finally:
            await db.close()
            kind.drop(url)


async def make_engine(db: Database, settings: EngineSettings | None = None) -> tuple[Engine, str]:
    program: Rota = load_app(str(PROGRAM))
    clock = SystemClock()
    clock.sync(await db.read(workers.measure))
    org_id, _ = await db.tx(accounts.ensure_default_org, clock.now())
    runner = TaskRunner(program.registry, db, injector=program.injector)
    engine = Engine(db, clock, Wake(), {runner.kind: runner}, settings or EngineSettings())
    await declare(engine, program.org, None, task_rows(program.registry, program.injector, None), [])
    return engine, org_id


# what processes cost: Linux tells, elsewhere there is no figure


def cpu_seconds(pids: list[int]) -> dict[str, float]:
    """The processor time of these processes so far, thread by thread."""
    found = {}
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                found[str(thread)] = int(thread.read_text().split()[0]) / 1e9
    return found


def used_since(before: dict[str, float], after: dict[str, float]) -> float:
    """Seconds used in between: a thread that came later began at nothing, one that ended is not counted."""
    return sum(seconds - before.get(thread, 0) for thread, seconds in after.items())


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def on_this_machine(pid: str) -> bool:
    return Path(f"/proc/{pid}/task").exists()


def own_ports() -> list[int]:
    """The local ports of this process's connections: the server's other sessions are the workers'."""
    ports = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor is gone already
            if stat.S_ISSOCK(os.fstat(int(number)).st_mode):
                with socket.socket(fileno=os.dup(int(number))) as one:
                    if one.family in (socket.AF_INET, socket.AF_INET6):
                        ports.append(one.getsockname()[1])
    return ports
