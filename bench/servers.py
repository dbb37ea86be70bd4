"""The benchmark's own PostgreSQL and Redis servers, and a system under test: a fresh store and its processes."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import asyncpg

from bench import dependencies
from bench.figures import OURS
from bench.installation import DatabaseKind, Marks, Postgres, Sqlite, WrongCount, on_this_machine
from bench.systems import System
from tests.postgres import create_database, drop_database, own_server

OWN_TIME_LIMIT = 60.0  # seconds in which Rota has to finish the jobs of a workload


class Servers:
    """Servers, each started at first use, on loopback and in temporary directories."""

    def __init__(self) -> None:
        self.resources = contextlib.ExitStack()
        self.kinds: dict[str, DatabaseKind] = {}

    def close(self) -> None:
        self.resources.close()

    @cached_property
    def home(self) -> Path:
        return Path(self.resources.enter_context(tempfile.TemporaryDirectory(prefix="rota-bench-")))

    @cached_property
    def postgres(self) -> str:
        return self.resources.enter_context(own_server()).url

    @cached_property
    def redis(self) -> "Redis":
        return self.resources.enter_context(contextlib.closing(Redis(self.home)))

    def kind(self, name: str) -> DatabaseKind:
        """Return the kind of database with this name, which creates fresh, migrated databases for Rota."""
        if name not in self.kinds:
            self.kinds[name] = Postgres(self.postgres) if name == "postgresql" else Sqlite(self.home)
        return self.kinds[name]

    async def settings(self) -> dict[str, str]:
        """Return a description of each server that was used: version and settings."""
        settings = {"sqlite": f"SQLite {sqlite3.sqlite_version}: synchronous=FULL for all"}
        if "postgres" in self.__dict__:
            connection = await asyncpg.connect(self.postgres)
            names = ("fsync", "synchronous_commit", "shared_buffers")
            values = [f"{name}={await connection.fetchval(f'SHOW {name}')}" for name in names]
            version = await connection.fetchval("SHOW server_version")
            await connection.close()
            settings["postgresql"] = f"PostgreSQL {version}: {', '.join(values)}, otherwise defaults"
        if "redis" in self.__dict__:
            settings["redis"] = (
                f"{self.redis.version}: default settings, no append-only file; a crash loses the latest jobs"
            )
        return settings


class Redis:
    """A Redis server and a minimal client."""

    def __init__(self, home: Path) -> None:
        program, environment = dependencies.redis_server()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(home)]
        self.process = subprocess.Popen(words, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
        self.version = subprocess.check_output(
            [str(program), "--version"], env={**os.environ, **environment}, text=True
        ).split(" sha=")[0]
        self.url = f"redis://127.0.0.1:{port}/0"
        for _ in range(100):
            with contextlib.suppress(ConnectionRefusedError):
                self.socket = socket.create_connection(("127.0.0.1", port))
                break
            time.sleep(0.1)
        else:
            self.process.kill()
            raise dependencies.Unavailable("redis-server did not start")
        self.answers = self.socket.makefile("rb")

    def ask(self, command: str) -> str:
        """Send a command in inline form and return its one-line answer."""
        self.socket.sendall(command.encode() + b"\r\n")
        line = self.answers.readline().decode().strip()
        if line.startswith("-"):
            raise WrongCount(f"Redis: {command}: {line}")
        return line[1:]

    def close(self) -> None:
        self.answers.close()
        self.socket.close()
        self.process.terminate()
        self.process.wait()


class SystemUnderTest:
    """One system on a fresh store, its processes, and the start marks of its jobs."""

    def __init__(
        self, servers: Servers, system: System, program: list[str], settings: Mapping[str, Any], home: Path, url: str
    ) -> None:
        self.servers, self.system, self.program, self.home, self.url = servers, system, program, home, url
        self.marks = Marks(home)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.connection: asyncpg.Connection | None = None
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ROTA_")},
            "BENCH_URL": url,
            "BENCH_HOME": str(home),
            "BENCH_SETTINGS": json.dumps(dict(settings)),
            "BENCH_MODULES": str(dependencies.MODULES),
            "C_FORCE_ROOT": "1",  # Celery does not run as root otherwise
            "NODE_NO_WARNINGS": "1",
            "PYTHONWARNINGS": "ignore",
        }

    # processes

    def spawn(self, command: str, **values: Any) -> "subprocess.Popen[bytes]":
        """Start a command that keeps running; `end` kills it."""
        with (self.home / "log").open("ab") as log:
            process = subprocess.Popen(
                [*self.program, command],
                cwd=dependencies.ROOT,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # its own process group: its descendants are killed with it
            )
        self.processes.append(process)
        assert process.stdin is not None
        process.stdin.write(json.dumps(values).encode())
        process.stdin.close()
        return process

    async def call(self, command: str, stay: bool = False, **values: Any) -> Any:
        """Run a command and return its answer. `stay`: the command is the system itself and keeps running."""
        process = self.spawn(command, **values)
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)  # ends when `end` kills the process after a time limit
        code: int = 0 if stay else await asyncio.to_thread(process.wait)
        if code or not line:
            raise WrongCount(f"{self.system.label}: {command} failed: {self.last_error()}")
        return json.loads(line)

    def last_error(self) -> str:
        lines = (self.home / "log").read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines if "rror" in line]
        return (errors or lines or ["no output"])[-1].strip()[:300]

    def end(self) -> None:
        for process in self.processes:
            if process.returncode is None:  # otherwise its pid may have been reused
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    # jobs

    async def unfinished(self) -> int:
        """Return the number of unfinished jobs in its store."""
        of, now = self.system.unfinished, time.time()
        if self.system.store == "redis":
            due = int(now * 1000) << 12  # BullMQ's score of delayed jobs
            return sum(int(self.servers.redis.ask(redis_command.format(due=due))) for redis_command in of)
        assert isinstance(of, str)
        if self.system.store == "postgresql":
            if self.connection is None:
                self.connection = await asyncpg.connect(self.url)
            return int(await self.connection.fetchval(of.format(now=now)))
        with contextlib.closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30)) as connection:
            return int(connection.execute(of.format(now=now)).fetchone()[0])

    async def until(self, reached: Callable[[], bool], condition: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > end:
                raise WrongCount(
                    f"{self.system.label}: waited {seconds:g} s until {condition}, without success; {self.last_error()}"
                )
            await asyncio.sleep(0.01)

    async def done(self, jobs: int, begin: float | None, time_limit: float) -> float:
        """Jobs per second from `begin` (or the first start) until all ran and nothing is unfinished in the store.

        A peer that is not ready after `time_limit` seconds is measured by the jobs it finished until then; Rota fails
        after OWN_TIME_LIMIT.
        """
        if self.system.name == OURS:
            time_limit = OWN_TIME_LIMIT
        await self.until(lambda: self.marks.count() > 0, "a job started", 60)
        begin = begin or min(self.marks.starts().values())
        while self.marks.count() < jobs or await self.unfinished() > 0:
            if time.time() - begin > time_limit:
                if self.system.name == OURS:
                    raise WrongCount(
                        f"rota: {self.marks.count()} of {jobs} jobs ran in {time_limit:g} s; {self.last_error()}"
                    )
                return self.marks.count() / (time.time() - begin)
            await asyncio.sleep(0.02)
        rate = jobs / (time.time() - begin)
        if len(self.marks.starts()) != jobs:
            raise WrongCount(f"{self.system.label}: {len(self.marks.starts())} jobs ran of {jobs}")
        return rate

    async def server_pids(self) -> list[int]:
        """Return the processes of the store's server, which serves only this system."""
        if self.system.store == "redis":
            return tree(self.servers.redis.process.pid)
        if self.system.store == "postgresql":
            if self.connection is None:
                self.connection = await asyncpg.connect(self.url)
            backend = int(await self.connection.fetchval("SELECT pg_backend_pid()"))
            if on_this_machine(str(backend)):
                return tree(parent(backend))
        return []


@asynccontextmanager
async def system_under_test(
    servers: Servers, system: System, settings: Mapping[str, Any]
) -> AsyncIterator[SystemUnderTest]:
    """Prepare a system on a fresh store; at the end kill its processes and drop the store."""
    program = system.program()  # first: an unavailable system needs no store
    home = Path(tempfile.mkdtemp(prefix="rota-arena-", dir=servers.home))
    url = f"sqlite:///{home / 'store.db'}"
    if system.store == "postgresql":
        url = create_database(servers.postgres)
    elif system.store == "redis":
        url = servers.redis.url
        servers.redis.ask("FLUSHALL")
    try:
        here = SystemUnderTest(servers, system, program, settings, home, url)
        try:
            await here.call("prepare")
            os.sync()  # pending writes of the previous system must not delay commits of this one
            yield here
        finally:
            here.end()
            if here.connection is not None:
                await here.connection.close()
    finally:
        if system.store == "postgresql":
            drop_database(servers.postgres, url)
        shutil.rmtree(home)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def tree(pid: int) -> list[int]:
    """Return the pids of a process and all its descendants."""
    pids = [pid]
    for ancestor in pids:
        for path in Path(f"/proc/{ancestor}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it has ended
                pids += [int(child) for child in path.read_text().split()]
    return pids
