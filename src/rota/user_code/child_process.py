"""A child process with asyncio streams whose resource usage is known: it is reaped with `wait4`.

asyncio and uvloop reap the processes that they start themselves, and the system then adds their usage to that of all
children; so a run's process is started without them.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rota.core.clock import real_sleep
from rota.core.model import Resources
from rota.core.process_groups import kill_group

FAMILY_PROCESSES = 100  # of a run whose memory is read
SAMPLE_SECONDS = (0.02, 1.0)  # between two readings of the peak memory: at first, and at most
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # of `ru_maxrss`, in bytes


class ChildProcess:
    """A started process; `wait` reaps it. `cpu_seconds` includes the processes that it waited for."""

    def __init__(self, popen: "subprocess.Popen[bytes]", worker_bytes: int) -> None:
        self.pid = popen.pid
        self.returncode: int | None = None
        self.cpu_seconds: float | None = None
        self.peak_memory_bytes: int | None = None
        self._popen = popen
        self._worker_bytes = worker_bytes
        self._exited: asyncio.Future[tuple[int, float, int]] | None = None

    async def open_streams(self) -> None:
        loop, popen = asyncio.get_running_loop(), self._popen
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()
        for reader, pipe in ((self.stdout, popen.stdout), (self.stderr, popen.stderr)):
            await loop.connect_read_pipe(lambda reader=reader: asyncio.StreamReaderProtocol(reader), pipe)  # type: ignore[misc]
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, popen.stdin)
        self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        self._exited = loop.run_in_executor(None, self._reap) if not hasattr(os, "pidfd_open") else self._watch(loop)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> "asyncio.Future[tuple[int, float, int]]":
        """Return a future of the exit that needs no thread (Linux)."""
        exited: asyncio.Future[tuple[int, float, int]] = loop.create_future()
        descriptor = os.pidfd_open(self.pid)

        def on_exit() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            exited.set_result(self._reap())

        loop.add_reader(descriptor, on_exit)
        return exited

    def _reap(self) -> tuple[int, float, int]:
        _, status, usage = os.wait4(self.pid, 0)
        self._popen.returncode = os.waitstatus_to_exitcode(status)  # or it would wait for a process that is gone
        return self._popen.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * MAXRSS_UNIT

    async def wait(self) -> int:
        """Wait until the process has exited; return its exit code, negative for a signal."""
        assert self._exited is not None
        code, self.cpu_seconds, largest = await asyncio.shield(self._exited)
        if self.returncode is None:
            self.returncode = code
            if largest > self._worker_bytes:  # else it may be that of the worker, which the new process was a copy of
                self.add_peak(largest)
        return code

    def add_peak(self, number: int | None) -> None:
        """Keep the largest peak that is known."""
        if number is not None:
            self.peak_memory_bytes = max(self.peak_memory_bytes or 0, number)

    async def sample_memory(self) -> None:
        """Read the peaks of this process and its descendants until canceled. The system keeps the peak of each process,
        so only growth after the last reading is missed."""
        pause, longest = SAMPLE_SECONDS
        while True:
            await real_sleep(pause)  # first: the new process may still be a copy of the worker
            for pid in family_of(self.pid):
                self.add_peak(peak_of(pid))
            pause = min(pause * 2, longest)

    @property
    def resources(self) -> Resources:
        return Resources(None if self.cpu_seconds is None else round(self.cpu_seconds, 6), self.peak_memory_bytes)


async def start_child(
    words: Sequence[str],
    *,
    preexec_fn: Callable[[], None],
    cwd: str | None,
    pass_fds: Sequence[int],
    env: Mapping[str, str],
) -> ChildProcess:
    """Start a process in a session of its own. Raises OSError or SubprocessError if it cannot be started."""
    worker_bytes = resident_bytes()
    popen = subprocess.Popen(  # noqa: ASYNC220  asyncio starts processes in the loop, too
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=preexec_fn,
        cwd=cwd,
        pass_fds=pass_fds,
        env=env,
    )
    child = ChildProcess(popen, worker_bytes)
    try:
        await child.open_streams()
    except BaseException:  # canceled: the process must not go on without its run
        kill_group(popen.pid)
        popen.wait()
        raise
    return child


def peak_of(pid: int | str) -> int | None:
    """Return the peak resident memory of a process since its program was loaded, in bytes; None where it is unknown."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def family_of(pid: int) -> list[int]:
    """Return a process and its descendants, up to FAMILY_PROCESSES; where the system does not list them, itself."""
    family = [pid]
    for member in family:
        with suppress(OSError, ValueError):
            family += map(int, Path(f"/proc/{member}/task/{member}/children").read_text().split())
        if len(family) >= FAMILY_PROCESSES:
            break
    return family[:FAMILY_PROCESSES]


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where it is unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
