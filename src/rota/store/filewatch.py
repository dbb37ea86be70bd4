"""Tells when a file is written to, also by another process. Linux tells by itself (inotify); elsewhere nobody does."""

import asyncio
import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IN_MODIFY = 0x2
HEADER = 16  # bytes of an event before its name: watch, mask, cookie, length of the name


@contextmanager
def writes_to(path: Path, touched: asyncio.Event) -> Iterator[bool]:
    """Set the event whenever the file is written to. Gives False where the system cannot tell."""
    descriptor = watch(path.parent)
    if descriptor is None:
        yield False
        return
    name = os.fsencode(path.name)

    def heard() -> None:
        if name in names(os.read(descriptor, 65_536)):
            touched.set()

    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, heard)
    try:
        yield True
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def watch(directory: Path) -> int | None:
    """An inotify descriptor for a directory: the file itself may come and go."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor >= 0 and libc.inotify_add_watch(descriptor, os.fsencode(directory), IN_MODIFY) >= 0:
        return descriptor
    if descriptor >= 0:
        os.close(descriptor)
    return None


def names(events: bytes) -> Iterator[bytes]:
    """The names of the files that a read of events tells of."""
    while len(events) >= HEADER:
        length = int.from_bytes(events[HEADER - 4 : HEADER], sys.byteorder)
        yield events[HEADER : HEADER + length].rstrip(b"\0")
        events = events[HEADER + length :]
