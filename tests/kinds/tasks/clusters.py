"""Local clusters of several processes, as an operator starts them: a scheduler, and three workers."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Protocol

import pytest

from rota.core.process_groups import kill_processes
from tests.acceptance.cluster import Process

START_SECONDS = 180.0
NAMESPACE = Path(__file__).with_name("network_namespace.py")
STARTED = "Ray runtime started"
RAY_PORT, RAY_CLIENT_PORT = 6379, 10001  # in its namespace
RAY_NODE = ("--node-ip-address", "127.0.0.1", "--include-log-monitor", "false", "--object-store-memory", "200000000")
RAY_ENV = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "180",
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "180",
}
RAY_HEAD = ("--include-dashboard", "false", "--ray-client-server-port", str(RAY_CLIENT_PORT))
LOOPBACK = ("--no-dashboard", "--dashboard-address", "127.0.0.1:0")  # by default it listens everywhere


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Raises AssertionError if the condition does not become true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} within {seconds:g} s"
        time.sleep(0.02)


class Processes(Protocol):
    """The processes of a cluster."""

    executor: ClassVar[str]
    package: ClassVar[str]
    address: str

    def lose(self) -> None: ...

    def close(self) -> None: ...


class DaskProcesses:
    """A Dask scheduler and its workers."""

    executor: ClassVar[str] = "dask"
    package: ClassVar[str] = "distributed"

    def __init__(self, home: Path, workers: int = 3) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.address = ""
        self.scheduler = self.start("scheduler", "--host", "127.0.0.1", "--port", "0", *LOOPBACK)
        wait_until(lambda: "Scheduler at:" in self.scheduler.log_text(), START_SECONDS, "the scheduler listens")
        self.address = self.scheduler.log_text().split("Scheduler at:")[1].split()[0]
        self.workers = [self.add_worker(f"node{number}") for number in range(workers)]
        for worker in self.workers:
            wait_until(lambda worker=worker: "Registered to:" in worker.log_text(), START_SECONDS, "a worker registers")  # type: ignore[misc]

    def start(self, command: str, *options: str, name: str = "scheduler") -> Process:
        log = self.home / f"{name}.log"
        log.write_text("")
        words = [sys.executable, "-m", "distributed.cli.dask_" + command, *options]
        return Process(words, {**os.environ, "PYTHONPATH": ""}, log)

    def add_worker(self, name: str) -> Process:
        options = ("--no-nanny", "--nthreads", "1", "--name", name, "--host", "127.0.0.1", *LOOPBACK)
        local = ("--memory-limit", "0", "--local-directory", str(self.home / name))
        return self.start("worker", self.address, *options, *local, name=name)

    def lose(self) -> None:
        """The scheduler dies."""
        self.scheduler.kill()

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()


class RayProcesses:
    """A head and its nodes, in a network namespace of their own: Ray listens on all addresses of its machine, unless
    that has none but 127.0.0.1."""

    executor: ClassVar[str] = "ray"
    package: ClassVar[str] = "ray"

    def __init__(self, home: Path, workers: int = 3) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.session = tempfile.mkdtemp(prefix="rota-ray-", dir="/tmp")  # the path of a socket has at most 107 bytes
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.address = f"ray://127.0.0.1:{listener.getsockname()[1]}"
            command = ["unshare", "-rn", sys.executable, str(NAMESPACE), str(listener.fileno()), str(RAY_CLIENT_PORT)]
            self.namespace = subprocess.Popen(
                command, pass_fds=[listener.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        try:
            assert self.namespace.stdout is not None
            if self.namespace.stdout.readline() != b"ready\n":
                pytest.skip("no network namespace can be made here, which a Ray cluster is kept in")
            self.head = self.start("head", "--head", "--num-cpus", "0", "--port", str(RAY_PORT), *RAY_HEAD)
            self.workers = [self.add_worker(f"node{number}") for number in range(workers)]
        except BaseException:
            self.close()
            raise

    def start(self, name: str, *options: str) -> Process:
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *RAY_NODE, *options]
        words += ["--temp-dir", self.session] if name == "head" else []
        inside = ["nsenter", "-t", str(self.namespace.pid), "-U", "-n", "--preserve-credentials", *words]
        env = {**os.environ, "PYTHONPATH": "", **RAY_ENV, "ROTA_TEST_NODE": f"{self.home}/{name}"}
        process = Process(inside, env, self.home / f"{name}.log")
        wait_until(lambda: STARTED in process.log_text() or not process.alive, START_SECONDS, f"{name} starts")
        assert process.alive, process.log_text()
        return process

    def add_worker(self, name: str) -> Process:
        """Add a node. Several that start at the same time on one machine disturb each other."""
        return self.start(name, "--num-cpus", "1", "--address", f"127.0.0.1:{RAY_PORT}")

    def lose(self) -> None:
        """The head dies, with all its processes."""
        marker = f"ROTA_TEST_NODE={self.home}/head".encode()
        while pids := [pid for pid in self.pids() if marker in environ_of(pid)]:
            kill_processes(pids, signal.SIGKILL)
            time.sleep(0.02)

    def pids(self) -> list[int]:
        """Return the processes of the cluster: those in its namespace."""
        own = self.namespace.pid
        return [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != own and same_network(pid, own)
        ]

    def close(self) -> None:
        assert self.namespace.stdin is not None
        while pids := self.pids():
            kill_processes(pids, signal.SIGKILL)
            time.sleep(0.02)
        self.namespace.stdin.close()  # it ends
        self.namespace.wait(10)
        shutil.rmtree(self.session, ignore_errors=True)


def same_network(pid: int, other: int) -> bool:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net") == os.readlink(f"/proc/{other}/ns/net")
    return False


def environ_of(pid: int) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


CLUSTERS: dict[str, type[DaskProcesses] | type[RayProcesses]] = {"dask": DaskProcesses, "ray": RayProcesses}
