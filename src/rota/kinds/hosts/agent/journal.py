"""The journal of an agent: a directory per claim, named by job and fence.

    order.json    what is to be done; on disk before anything happens
    started       written by the run itself, right before it begins
    log           what it said, a JSON line each
    result.json   how it ended; on disk before anybody is told
    done          the server has it

Whoever holds the lock file of a claim is its run, and alive. So the question "did it happen?" has an answer after any
crash: `never` (not started), `running`, `ended`, or `unknown`: it started, and machine or run died before its end.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEPT = 200  # claims that are over, and still remembered


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

    def order(self) -> dict[str, Any]:
        return dict(json.loads((self.home / "order.json").read_bytes()))

    def result(self) -> dict[str, Any] | None:
        try:
            return dict(json.loads((self.home / "result.json").read_bytes()))
        except FileNotFoundError:
            return None

    def pid(self) -> int | None:
        """The run's process; only as long as it lives."""
        with contextlib.suppress(OSError, ValueError):
            if not self.dead():
                return int((self.home / "started").read_text())
        return None

    def state(self) -> str:
        """What this host knows of it. The lock is looked at first: a run that ends meanwhile is seen as ended."""
        dead = self.dead()
        if (self.home / "result.json").exists():
            return "ended"
        if not dead:
            return "running"
        return "unknown" if (self.home / "started").exists() else "never"

    def lock(self, how: int = fcntl.LOCK_EX) -> int:
        """Hold the claim: a file to be handed to the run."""
        file = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, how)
        except BlockingIOError:
            os.close(file)
            raise
        return file

    def dead(self) -> bool:
        """Whether nobody holds it. Shared: any number may look at once."""
        try:
            os.close(self.lock(fcntl.LOCK_SH | fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """The server has it."""
        write_down(self.home / "done", b"")


class Journal:
    def __init__(self, home: Path) -> None:
        self.home = home / "runs"
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(self, order: dict[str, Any]) -> Claim | None:
        """Write an order down; None if it was there already."""
        name = f"{order['job_id']}.{order['fence']}"
        if (self.home / name).exists():
            return None
        fresh = self.home / f"new-{name}"  # whole, or not at all
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        write_down(fresh / "order.json", json.dumps(order).encode())
        fresh.rename(self.home / name)
        sync_directory(self.home)
        return Claim(self.home / name)

    def claims(self) -> list[Claim]:
        return [Claim(one) for one in sorted(self.home.iterdir()) if not one.name.startswith("new-")]

    def open_claims(self) -> list[Claim]:
        """Those of which the server has not heard the end."""
        return [one for one in self.claims() if not one.done]

    def prune(self) -> None:
        """Forget the oldest of those that are over."""
        over = [one for one in self.claims() if one.done]
        for one in over[:-KEPT]:
            shutil.rmtree(one.home, ignore_errors=True)


def write_down(path: Path, content: bytes) -> None:
    """Write a file so that after a power cut it is there with all of its content, or not at all."""
    part = path.with_name(f".{path.name}")
    with open(part, "wb", opener=private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    sync_directory(path.parent)


def private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def sync_directory(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextlib.contextmanager
def alone(home: Path) -> Iterator[bool]:
    """Hold the directory of an agent; False if another one does."""
    file = os.open(home / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(file)
