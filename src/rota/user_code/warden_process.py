"""The process beside a worker that ends the worker's commands when the worker is gone.

Run as a script, with the standard library alone. It reads `+PID RUN_ID` and `-PID` on stdin until that ends or the
worker is dead, then kills the runs that have not ended.
"""

import contextlib
import os
import select
import signal
import sys

LOOK_SECONDS = 1.0  # between looks whether the parent lives: a copy of it may hold the pipe open
KILL_ROUNDS = 500  # what appears anew is killed too
KILL_PAUSE_SECONDS = 0.02


def main() -> None:
    """Follow what the worker announces; at its end kill every announced run that has not ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its worker
    parent = int(sys.argv[1])
    running: dict[int, bytes] = {}
    rest = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], LOOK_SECONDS)[0]:
            continue
        chunk = os.read(0, 65_536)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            follow(running, line)
    for _ in range(KILL_ROUNDS if running else 0):
        left = members(running)
        if not left:
            break
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        select.select([], [], [], KILL_PAUSE_SECONDS)


def follow(running: dict[int, bytes], line: bytes) -> None:
    pid, _, run_id = line[1:].partition(b" ")
    if line[:1] == b"+":
        running[int(pid)] = run_id
    else:
        running.pop(int(pid), None)


def members(running: dict[int, bytes]) -> set[int]:
    """The living processes of these runs: of their groups and sessions, and those that carry a run's mark. Where the
    system does not list processes, the groups are killed as a whole."""
    if not os.path.isdir("/proc/self"):
        for leader in list(running):
            try:
                os.killpg(leader, signal.SIGKILL)
            except OSError:
                del running[leader]
        return set()
    marks = {b"ROTA_RUN_ID=" + run_id for run_id in running.values()}
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, _, group, session = file.read().rpartition(b")")[2].split()[:4]
            if state in b"ZX":
                continue
            if int(group) in running or int(session) in running:
                found.add(int(name))
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                if marks & set(file.read().split(b"\0")):
                    found.add(int(name))
        except (OSError, ValueError):  # gone by now, or of another user
            continue
    return found - {os.getpid()}


if __name__ == "__main__":
    main()
