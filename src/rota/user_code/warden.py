"""The worker's side of the warden, a process beside it that kills the worker's commands if the worker is killed.

A parent-death signal reaches only the direct child of the worker, not its descendants.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PROGRAM = str(Path(__file__).with_name("warden_process.py"))


class Warden:
    """Starts the warden with the first command, and again if it died. One per worker process."""

    def __init__(self) -> None:
        self._owner = 0
        self._pipe = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._running: dict[int, str] = {}  # ids of current runs, by the pid of their group leader

    def pipe(self) -> int:
        """Return the file descriptor on which runs are announced; starts the warden if it is not running."""
        if self._owner != os.getpid():  # a fork has a warden of its own
            self._owner, self._process, self._running = os.getpid(), None, {}
        if self._process is None or self._process.poll() is not None:
            self._start()
        return self._pipe

    def add(self, pid: int, run_id: str) -> None:
        """Remember a run, for a warden that must be started again."""
        self._running[pid] = run_id

    def remove(self, pid: int) -> None:
        """Announce that the run of this leader has ended."""
        if self._running.pop(pid, None) is not None:
            with suppress(OSError):  # the warden died; the next one is started without this run
                os.write(self._pipe, b"-%d\n" % pid)

    def _start(self) -> None:
        if self._process is not None:
            os.close(self._pipe)
        reading, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", PROGRAM, str(os.getpid())], stdin=reading, stdout=subprocess.DEVNULL,
                start_new_session=True, cwd="/", env={},
            )  # fmt: skip
        finally:
            os.close(reading)
        for pid, run_id in self._running.items():
            announce(self._pipe, pid, run_id)


def announce(pipe: int, pid: int, run_id: str) -> None:
    """Announce a run to the warden; called by the new process itself, before exec."""
    with suppress(OSError):
        os.write(pipe, b"+%d %s\n" % (pid, run_id.encode()))


warden = Warden()
