"""Whose turn it is to write to a SQLite file, and what its processes say to each other.

One small file beside it serves for both. Whoever writes to the database locks it; and it has a count for each word that
other processes may want to hear, raised when a commit can be seen. So nobody need look at the database to learn that
nothing happened.
"""

import contextlib
import fcntl
import os
import struct
import threading
from collections.abc import Collection
from pathlib import Path

from rota.core.clock import stopwatch
from rota.db.private_files import make_private_dir

WORDS = ("ready", "later", "clocks", "cancel", "anything")  # the last one stands for all others
COUNTS = struct.Struct(f"={len(WORDS)}Q")


class GivenUp(Exception):
    """The caller of a write has stopped waiting for its turn."""


class Ticket:
    """A write that waits for its turn. Either it begins or its caller gives it up, never both."""

    def __init__(self) -> None:
        self._decided = threading.Lock()

    def begin(self) -> None:
        """Raises GivenUp if the caller no longer waits."""
        if not self._decided.acquire(blocking=False):
            raise GivenUp

    def give_up(self) -> bool:
        """False if the write has begun."""
        return self._decided.acquire(blocking=False)

    @property
    def decided(self) -> bool:
        return self._decided.locked()


class Turn:
    """Two locks make a queue of it: a writer waits for `current` while it holds `next`, so one that just wrote cannot
    overtake it. Busy timeouts alone starve processes."""

    def __init__(self, path: Path) -> None:
        make_private_dir(path.parent)
        self.path = Path(f"{path}-turn")
        self._next = os.open(f"{path}-next", os.O_RDWR | os.O_CREAT, 0o600)
        self._current = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        self._said = [0] * len(WORDS)
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

    def say(self, words: Collection[str]) -> None:
        """Let the other processes hear it. For the one whose turn it is."""
        if not words:
            return
        counts = self._counts()
        for place in {WORDS.index(word) if word in WORDS else -1 for word in words}:
            counts[place] = (counts[place] + 1) % 2**64
            self._said[place] += 1
        with contextlib.suppress(OSError):  # a full disk: the others look by themselves once in a while
            os.pwrite(self._current, COUNTS.pack(*counts), 0)

    def heard(self) -> list[int]:
        """How often each word was said, but for what was said here: `SqliteDatabase.on_notify` has that."""
        return [count - ours for count, ours in zip(self._counts(), self._said, strict=True)]

    def _counts(self) -> list[int]:
        return list(COUNTS.unpack(os.pread(self._current, COUNTS.size, 0).ljust(COUNTS.size, b"\0")))

    def close(self) -> None:
        os.close(self._next)
        os.close(self._current)
