"""The journal of an agent: a directory per claim, named by job and fence.

    order.json    the order of the server; on disk before the run starts
    started       pid of the supervisor, written right before the run begins
    log           its output, one JSON line each
    result.json   how it ended; on disk before it is sent
    done          the server has the result

The supervisor of a run holds the lock file of its claim while it lives. So the state of a claim is known after any
crash: `never` (not started), `running`, `ended`, or `unknown`: it started, and the machine or the run died before its
end.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DONE_CLAIMS_KEPT = 200


JsonObject = dict[str, Any]  # of the server, or of a run's own files


class Claim:
    """One claim on disk."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @property
    def job_id(self) -> str:
        return self.home.name.partition(".")[0]

    @property
    def fence(self) -> int:
        return int(self.home.name.partition(".")[2])

    @property
    def done(self) -> bool:
        return (self.home / "done").exists()

    def order(self) -> JsonObject:
        return dict(json.loads((self.home / "order.json").read_bytes()))

    def result(self) -> JsonObject | None:
        try:
            return dict(json.loads((self.home / "result.json").read_bytes()))
        except FileNotFoundError:
            return None

    def pid(self) -> int | None:
        """The pid of the supervisor, or None if it is not alive."""
        with contextlib.suppress(OSError, ValueError):
            if not self.is_dead():
                return int((self.home / "started").read_text())
        return None

    def state(self) -> str:
        """`never`, `running`, `ended` or `unknown`. Checks the lock first, so that a run that ends in between is
        `ended`."""
        dead = self.is_dead()
        if (self.home / "result.json").exists():
            return "ended"
        if not dead:
            return "running"
        return "unknown" if (self.home / "started").exists() else "never"

    def lock(self, operation: int = fcntl.LOCK_EX) -> int:
        """Lock the claim; returns the file descriptor, which the supervisor inherits. Raises BlockingIOError with
        LOCK_NB."""
        file = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, operation)
        except BlockingIOError:
            os.close(file)
            raise
        return file

    def is_dead(self) -> bool:
        """Whether no supervisor holds the lock. Takes it shared, so that several readers can check at once."""
        try:
            os.close(self.lock(fcntl.LOCK_SH | fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def mark_done(self) -> None:
        """Record that the server has the result, or needs none."""
        write_durably(self.home / "done", b"")


class Journal:
    """The claims of an agent, in the directory `runs`."""

    def __init__(self, home: Path) -> None:
        self.home = home / "runs"
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(self, order: JsonObject) -> Claim | None:
        """Store an order; returns None if its claim is stored already."""
        name = f"{order['job_id']}.{order['fence']}"
        if (self.home / name).exists():
            return None
        draft = self.home / f"new-{name}"  # renamed when complete: a crash leaves no half claim
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        write_durably(draft / "order.json", json.dumps(order).encode())
        draft.rename(self.home / name)
        sync_directory(self.home)
        return Claim(self.home / name)

    def claims(self) -> list[Claim]:
        return [Claim(path) for path in sorted(self.home.iterdir()) if not path.name.startswith("new-")]

    def open_claims(self) -> list[Claim]:
        """The claims whose result the server does not have yet."""
        return [claim for claim in self.claims() if not claim.done]

    def prune(self) -> None:
        """Delete all claims that are done but the newest DONE_CLAIMS_KEPT."""
        done = [claim for claim in self.claims() if claim.done]
        for claim in done[:-DONE_CLAIMS_KEPT]:
            shutil.rmtree(claim.home, ignore_errors=True)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file atomically and fsync it: after a power cut it has its whole content, or does not exist."""
    part = path.with_name(f".{path.name}")
    with open(part, "wb", opener=open_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    sync_directory(path.parent)


def open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def sync_directory(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextlib.contextmanager
def lock_home(home: Path) -> Iterator[bool]:
    """Lock the directory of an agent; yields False if another agent holds it."""
    file = os.open(home / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(file)
