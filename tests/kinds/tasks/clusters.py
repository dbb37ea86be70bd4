"""Local clusters of several processes, as an operator starts them: a scheduler, and three workers."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol

from tests.acceptance.cluster import Process

START_SECONDS = 180.0
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


CLUSTERS: dict[str, type[DaskProcesses]] = {"dask": DaskProcesses}
