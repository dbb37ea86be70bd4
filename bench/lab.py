"""Where systems are measured: the benchmark's own servers, a fresh store each time, and a system's processes."""

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

from bench import equipment
from bench.figures import OURS
from bench.site import Kind, Marks, Postgres, Sqlite, WrongCount, on_this_machine
from bench.systems import System
from tests.postgres import create_database, drop_database, own_server


class Lab:
    """The servers, each started when it is first needed, on loopback and in temporary directories."""

    def __init__(self) -> None:
        self.things = contextlib.ExitStack()
        self.kinds: dict[str, Kind] = {}

    def close(self) -> None:
        self.things.close()

    @cached_property
    def home(self) -> Path:
        return Path(self.things.enter_context(tempfile.TemporaryDirectory(prefix="rota-bench-")))

    @cached_property
    def postgres(self) -> str:
        return self.things.enter_context(own_server()).url

    @cached_property
    def redis(self) -> "Redis":
        return self.things.enter_context(contextlib.closing(Redis(self.home)))

    def kind(self, name: str) -> Kind:
        """Fresh, migrated databases for Rota."""
        if name not in self.kinds:
            self.kinds[name] = Postgres(self.postgres) if name == "postgresql" else Sqlite(self.home)
        return self.kinds[name]

    async def settings(self) -> dict[str, str]:
        """What the servers that were needed are set to."""
        told = {"sqlite": f"SQLite {sqlite3.sqlite_version}: synchronous=FULL for all"}
        if "postgres" in self.__dict__:
            connection = await asyncpg.connect(self.postgres)
            names = ("fsync", "synchronous_commit", "shared_buffers")
            values = [f"{name}={await connection.fetchval(f'SHOW {name}')}" for name in names]
            version = await connection.fetchval("SHOW server_version")
            await connection.close()
            told["postgresql"] = f"PostgreSQL {version}: {', '.join(values)}, the rest as it comes"
        if "redis" in self.__dict__:
            told["redis"] = f"{self.redis.version}: as it comes, no append-only file; a crash loses the latest jobs"
        return told


class Redis:
    """A server of our own, and the little that we ask of it."""

    def __init__(self, home: Path) -> None:
        program, environment = equipment.redis_server()
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
            raise equipment.Missing("redis-server did not start")
        self.answers = self.socket.makefile("rb")

    def ask(self, command: str) -> str:
        """A command in its inline form, whose answer is one line."""
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


class Arena:
    """One system on a fresh store, its processes, and the marks of its jobs."""

    def __init__(
        self, lab: Lab, system: System, program: list[str], settings: Mapping[str, Any], home: Path, url: str
    ) -> None:
        self.lab, self.system, self.program, self.home, self.url = lab, system, program, home, url
        self.marks = Marks(home)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.connection: asyncpg.Connection | None = None
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ROTA_")},
            "BENCH_URL": url,
            "BENCH_HOME": str(home),
            "BENCH_SETTINGS": json.dumps(dict(settings)),
            "BENCH_MODULES": str(equipment.MODULES),
            "C_FORCE_ROOT": "1",  # else Celery refuses to work for root
            "NODE_NO_WARNINGS": "1",
            "PYTHONWARNINGS": "ignore",
        }

    # processes

    def spawn(self, command: str, **values: Any) -> "subprocess.Popen[bytes]":
        """Start a command that stays; it is ended with the arena."""
        with (self.home / "log").open("ab") as log:
            one = subprocess.Popen(
                [*self.program, command],
                cwd=equipment.ROOT,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a group of its own: whatever it starts ends with it
            )
        self.processes.append(one)
        assert one.stdin is not None
        one.stdin.write(json.dumps(values).encode())
        one.stdin.close()
        return one

    def call(self, command: str, stay: bool = False, **values: Any) -> Any:
        """Have a command done; returns its answer. `stay`: it is the system itself, and goes on."""
        one = self.spawn(command, **values)
        assert one.stdout is not None
        line = one.stdout.readline()
        if (not stay and one.wait()) or not line:
            raise WrongCount(f"{self.system.label}: {command} failed: {self.complaints()}")
        return json.loads(line)

    def complaints(self) -> str:
        lines = (self.home / "log").read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines if "rror" in line]
        return (errors or lines or ["it said nothing"])[-1].strip()[:300]

    def end(self) -> None:
        for process in self.processes:
            if process.returncode is None:  # else its number may be somebody else's by now
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    # jobs

    async def unfinished(self) -> int:
        """How many jobs its store still has to see to."""
        of, now = self.system.unfinished, time.time()
        if self.system.store == "redis":
            due = int(now * 1000) << 12  # how BullMQ orders what is delayed
            return sum(int(self.lab.redis.ask(one.format(due=due))) for one in of)
        assert isinstance(of, str)
        if self.system.store == "postgresql":
            if self.connection is None:
                self.connection = await asyncpg.connect(self.url)
            return int(await self.connection.fetchval(of.format(now=now)))
        with contextlib.closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30)) as connection:
            return int(connection.execute(of.format(now=now)).fetchone()[0])

    async def until(self, reached: Callable[[], bool], what: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > end:
                raise WrongCount(f"{self.system.label}: waited {seconds:g} s in vain until {what}; {self.complaints()}")
            await asyncio.sleep(0.01)

    async def done(self, jobs: int, begin: float | None, patience: float) -> float:
        """Jobs per second from `begin` (or the first start) until all ran and nothing is unfinished in the store.

        A system that is not ready after `patience` seconds is judged by what it did until then; not so Rota.
        """
        await self.until(lambda: self.marks.count() > 0, "a job started", 60)
        begin = begin or min(self.marks.starts().values())
        while self.marks.count() < jobs or await self.unfinished() > 0:
            if time.time() - begin > patience:
                if self.system.name == OURS:
                    raise WrongCount(
                        f"rota: {self.marks.count()} of {jobs} jobs ran in {patience:g} s; {self.complaints()}"
                    )
                return self.marks.count() / (time.time() - begin)
            await asyncio.sleep(0.02)
        rate = jobs / (time.time() - begin)
        if len(self.marks.starts()) != jobs:
            raise WrongCount(f"{self.system.label}: {len(self.marks.starts())} jobs ran of {jobs}")
        return rate

    async def server_pids(self) -> list[int]:
        """The processes that serve it: all of the store's server, which serves nobody else."""
        if self.system.store == "redis":
            return tree(self.lab.redis.process.pid)
        if self.system.store == "postgresql":
            if self.connection is None:
                self.connection = await asyncpg.connect(self.url)
            backend = int(await self.connection.fetchval("SELECT pg_backend_pid()"))
            if on_this_machine(str(backend)):
                return tree(parent(backend))
        return []


@asynccontextmanager
async def arena(lab: Lab, system: System, settings: Mapping[str, Any]) -> AsyncIterator[Arena]:
    """A system on a fresh store with its tables made; its processes and its store end with it."""
    program = system.program()  # first: what cannot be had needs no store
    home = Path(tempfile.mkdtemp(prefix="rota-arena-", dir=lab.home))
    url = f"sqlite:///{home / 'store.db'}"
    if system.store == "postgresql":
        url = create_database(lab.postgres)
    elif system.store == "redis":
        url = lab.redis.url
        lab.redis.ask("FLUSHALL")
    try:
        here = Arena(lab, system, program, settings, home, url)
        try:
            here.call("prepare")
            os.sync()  # what the system before left to be written does not hold up the commits of this one
            yield here
        finally:
            here.end()
            if here.connection is not None:
                await here.connection.close()
    finally:
        if system.store == "postgresql":
            drop_database(lab.postgres, url)
        shutil.rmtree(home)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def tree(pid: int) -> list[int]:
    """A process and everything that it started."""
    found = [pid]
    for one in found:
        for path in Path(f"/proc/{one}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                found += [int(child) for child in path.read_text().split()]
    return found
