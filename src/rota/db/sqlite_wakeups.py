"""Wake-ups between the processes of a SQLite file: a counter per topic in the lock file, and inotify on that file.

A process that commits raises the counters of the topics that it notified; the others read them when the file is
written to, so that they need not poll the database.

A program that enqueues in its own transaction cannot raise the counters when that commits, because its driver reports
no commits. It stores a mark beside the counters when it enqueues; the others then look again and again, in growing
intervals.
"""

import asyncio
import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

COUNTED_TOPICS = ("ready", "later", "clocks", "cancel", "anything")  # the last one stands for all others
COUNTERS = struct.Struct(f"={len(COUNTED_TOPICS)}Q")
MARK_BYTES = 8  # behind the counters
IN_MODIFY = 0x2


class TopicCounters:
    """The counters at the start of a file that is open as `descriptor`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._own = [0] * len(COUNTED_TOPICS)  # what this process added

    def add(self, topics: Collection[str]) -> None:
        """Raise the counters of these topics. The caller holds the write lock."""
        if not topics:
            return
        counts = self._read()
        for place in {COUNTED_TOPICS.index(topic) if topic in COUNTED_TOPICS else -1 for topic in topics}:
            counts[place] = (counts[place] + 1) % 2**64
            self._own[place] += 1
        with contextlib.suppress(OSError):  # a full disk: the other processes also poll
            os.pwrite(self._descriptor, COUNTERS.pack(*counts), 0)

    def of_others(self) -> list[int]:
        """How often other processes raised each counter; `SqliteDatabase.on_notify` reports this process's own."""
        return [count - own for count, own in zip(self._read(), self._own, strict=True)]

    def mark(self) -> bytes:
        """Return the mark of the last program that enqueued in its own transaction."""
        return os.pread(self._descriptor, MARK_BYTES, COUNTERS.size)

    def _read(self) -> list[int]:
        return list(COUNTERS.unpack(os.pread(self._descriptor, COUNTERS.size, 0).ljust(COUNTERS.size, b"\0")))


def mark_pending_commit(file: Path) -> None:
    """Announce a transaction of a caller that enqueued and is about to commit. `file` is the lock file. Without the
    write lock: a writer that has it may wait for the caller's transaction."""
    with contextlib.suppress(OSError):  # no process has opened this database yet, or the disk is full
        descriptor = os.open(file, os.O_WRONLY)
        try:
            os.pwrite(descriptor, os.urandom(MARK_BYTES), COUNTERS.size)
        finally:
            os.close(descriptor)


@contextmanager
def watch_writes(path: Path, written: asyncio.Event) -> Iterator[bool]:
    """Set the event whenever the file is written to. Yields False where the system has no inotify."""
    descriptor = open_inotify(path)
    if descriptor is None:
        yield False
        return

    def on_write() -> None:
        os.read(descriptor, 65_536)
        written.set()

    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, on_write)
    try:
        yield True
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def open_inotify(path: Path) -> int | None:
    """An inotify descriptor for an existing file, or None on systems other than Linux."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor >= 0 and libc.inotify_add_watch(descriptor, os.fsencode(path), IN_MODIFY) >= 0:
        return descriptor
    if descriptor >= 0:
        os.close(descriptor)
    return None
