"""A worker's side of the warden: the process beside it that ends its commands if the worker is killed.

A parent-death signal reaches only the process that the worker started, not what that started in turn.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PROGRAM = str(Path(__file__).with_name("warden_process.py"))


class Warden:
    """Starts the warden with the first command, and again if it died. One for each process."""

    def __init__(self) -> None:
        self._owner = 0
        self._pipe = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._running: dict[int, str] = {}  # runs under way, by the pid of their leader

    def pipe(self) -> int:
        """The descriptor that runs are announced on."""
        if self._owner != os.getpid():  # a copy of its process has a warden of its own
            self._owner, self._process, self._running = os.getpid(), None, {}
        if self._process is None or self._process.poll() is not None:
            self._start()
        return self._pipe

    def began(self, pid: int, run_id: str) -> None:
        self._running[pid] = run_id

    def ended(self, pid: int) -> None:
        """The run of this leader is over, and its group is gone."""
        if self._running.pop(pid, None) is not None:
            with suppress(OSError):  # it died; the next start tells a new one
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
    """Announce a run; a new process does so itself, before it executes anything."""
    with suppress(OSError):
        os.write(pipe, b"+%d %s\n" % (pid, run_id.encode()))


warden = Warden()
