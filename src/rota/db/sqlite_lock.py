"""The lock that lets the processes of a SQLite file write in turn. SQLite's own busy timeout starves processes."""

import contextlib
import fcntl
import os
import threading
from pathlib import Path

from rota.core.clock import stopwatch
from rota.db.private_files import make_private_dir
from rota.db.sqlite_wakeups import TopicCounters


class WriteAbandoned(Exception):
    """The caller of a write no longer waits for it."""


class PendingWrite:
    """A write that waits for the lock. Either it begins or its caller abandons it, never both."""

    def __init__(self) -> None:
        self._decided = threading.Lock()

    def begin(self) -> None:
        """Raises WriteAbandoned if the caller no longer waits."""
        if not self._decided.acquire(blocking=False):
            raise WriteAbandoned

    def abandon(self) -> bool:
        """False if the write has begun."""
        return self._decided.acquire(blocking=False)

    @property
    def decided(self) -> bool:
        return self._decided.locked()


class WriteLock:
    """Two file locks form a queue: a writer waits for `current` while it holds `next`, so a process that just wrote
    cannot overtake it."""

    def __init__(self, path: Path) -> None:
        make_private_dir(path.parent)
        self.path = lock_file(path)
        self._next = os.open(f"{path}-next", os.O_RDWR | os.O_CREAT, 0o600)
        self._current = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        self.counters = TopicCounters(self._current)
        self.waiting_since: float | None = None  # of the writer of this process, on the stopwatch

    def __enter__(self) -> None:
        fcntl.flock(self._next, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._current, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._current, fcntl.LOCK_UN)

    def waited(self) -> float:
        """Seconds for which the writer of this process has been waiting to begin its transaction."""
        return 0.0 if (since := self.waiting_since) is None else stopwatch() - since

    def holder(self) -> str:
        """Which process holds the lock, as far as the system knows: from /proc/locks, on Linux only."""
        number = str(os.fstat(self._current).st_ino)
        with contextlib.suppress(OSError):
            for line in Path("/proc/locks").read_text().splitlines():
                fields = line.split()
                if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == number:
                    pid = fields[4]
                    if pid == str(os.getpid()):  # another connection of it, which waits for a program other than Rota
                        return "this process"
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                    return f"process {pid} ({name})"
        return "another process"

    def close(self) -> None:
        os.close(self._next)
        os.close(self._current)


def lock_file(path: Path) -> Path:
    """Return the file of the lock, with the counters of wake-ups, of a SQLite file."""
    return Path(f"{path}-turn")
