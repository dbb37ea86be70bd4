"""Tells when a file is written to, also by another process. Linux tells by itself (inotify); elsewhere nobody does."""

import asyncio
import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IN_MODIFY = 0x2


@contextmanager
def writes_to(path: Path, touched: asyncio.Event) -> Iterator[bool]:
    """Set the event whenever the file is written to. Gives False where the system cannot tell."""
    descriptor = watch(path)
    if descriptor is None:
        yield False
        return

    def heard() -> None:
        os.read(descriptor, 65_536)
        touched.set()

    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, heard)
    try:
        yield True
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def watch(path: Path) -> int | None:
    """An inotify descriptor for a file that is there."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor >= 0 and libc.inotify_add_watch(descriptor, os.fsencode(path), IN_MODIFY) >= 0:
        return descriptor
    if descriptor >= 0:
        os.close(descriptor)
    return None
