"""Process groups of runs: signals, parent death, the end of their output, and how an exit status is described.

Standard library only: the host agent, which has neither engine nor database, uses it too.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress

OUTPUT_DRAIN_SECONDS = 1.0  # wait for output after the exit: a surviving child process may hold the pipes open
PR_SET_PDEATHSIG = 1  # of prctl


def die_with_parent() -> None:
    """Have the kernel send SIGKILL to this process when its parent dies (Linux; elsewhere a no-op). A change of user
    resets it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_group(leader: int, signal_number: signal.Signals = signal.SIGKILL) -> None:
    """Signal the process group of `leader`; a no-op if the group is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal_number)


def kill_processes(pids: Iterable[int], signal_number: signal.Signals) -> None:
    """Signal each of these processes; those that are gone are skipped."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal_number)


def describe_exit(code: int | None) -> str:
    """Return `exit code N` or, for a negative code, `signal NAME`."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"signal {-code}"


def last_line(text: str) -> str:
    """Return the last line of `text` that is not blank, or an empty text."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


class Tail:
    """Keeps the last `limit` characters of a text."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._text = ""

    def add(self, text: str) -> None:
        self._text = (self._text + text)[-self._limit :]

    def text(self) -> str:
        return self._text.replace("\0", "␀")  # PostgreSQL stores no NUL
