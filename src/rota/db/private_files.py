"""Files that only their owner may read, whatever the umask is."""

import contextlib
import os
from pathlib import Path


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
