"""Files that only their owner may read, whatever the umask is."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def make_private_dir(path: Path) -> None:
    """Create a directory of mode 0700 with all that lead to it; existing ones keep their modes."""
    if not path.exists():
        make_private_dir(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def make_private_file(path: Path) -> None:
    """Create an empty file of mode 0600 unless it exists. Where that is impossible, its first use fails instead.

    An existing file is not opened: to close a file drops all POSIX locks that this process has on it, and so those of
    SQLite.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file of mode 0600 under a temporary name. It is flushed to the disk and replaces an existing file or
    link, which is not followed, when the block ends; if the block raises, nothing remains of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()  # left by a crashed process with the same pid
    try:
        with open(temporary, "x+b", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as file:
            os.fchmod(file.fileno(), 0o600)  # independent of the umask
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the new name
    finally:
        os.close(directory)
