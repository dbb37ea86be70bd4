"""Files of the data directory: they hold keys, password hashes and results, and only their owner may read them."""

import contextlib
import os
from pathlib import Path


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read. It replaces what has its name; a link is not followed."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()  # left by a process that had the same id and died
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever the umask takes away
        file.write(text + "\n")
    fresh.replace(path)
