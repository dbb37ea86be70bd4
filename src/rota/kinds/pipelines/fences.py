"""Fences of tables: a run that lost its lease cannot replace what a later run wrote. Fences of an org only rise, also
over backups and moves of the database.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rota.core.errors import LeaseLost


@dataclass(frozen=True, slots=True)
class Fence:
    """The fence of a run."""

    org_id: str
    number: int

    def is_before(self, stored: str) -> bool:
        """Return whether a stored fence, as its text, is that of a later run."""
        owner, _, number = stored.partition(" ")
        return owner == self.org_id and number.isdecimal() and int(number) > self.number


def take_over(file: Path, fence: Fence) -> None:
    """Record that a run starts to write a table, in the file of its fence. Raises LeaseLost if a later run has started
    already."""
    with locked(file) as opened:
        require(opened, file, fence)
        os.ftruncate(opened, 0)
        os.pwrite(opened, f"{fence.org_id} {fence.number}".encode(), 0)


@contextlib.contextmanager
def still_newest(file: Path, fence: Fence) -> Iterator[None]:
    """Keep later runs from starting. Raises LeaseLost if one has started."""
    with locked(file) as opened:
        require(opened, file, fence)
        yield


@contextlib.contextmanager
def locked(file: Path) -> Iterator[int]:
    """Open a file and lock it against other processes and threads; it is created if it does not exist."""
    opened = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield opened
    finally:
        os.close(opened)


def require(opened: int, file: Path, fence: Fence) -> None:
    if fence.is_before(os.pread(opened, 200, 0).decode()):
        table = file.name.removeprefix(".").removesuffix(".fence")
        raise LeaseLost(f"the table {table} belongs to a later run: this one lost its lease and writes nothing")
