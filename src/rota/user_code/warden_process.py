"""The warden: a process beside a worker that kills the worker's commands when the worker dies.

Run as a script, so it imports only the standard library. It reads `+PID RUN_ID` and `-PID` on stdin until that is
closed or the worker is dead, then kills the runs that have not ended.
"""

import contextlib
import os
import select
import signal
import sys

PARENT_POLL_SECONDS = 1.0  # a fork of the worker may hold the pipe open after its death
KILL_ROUNDS = 500  # processes that are forked during a round are killed in the next
KILL_PAUSE_SECONDS = 0.02


def main() -> None:
    """Track the announced runs; when the worker is gone, kill those that have not ended."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)  # it ends only with its worker
    parent = int(sys.argv[1])
    running: dict[int, bytes] = {}
    rest = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], PARENT_POLL_SECONDS)[0]:
            continue
        chunk = os.read(0, 65_536)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            apply_line(running, line)
    for _ in range(KILL_ROUNDS if running else 0):
        pids = processes_of(running)
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        select.select([], [], [], KILL_PAUSE_SECONDS)


def apply_line(running: dict[int, bytes], line: bytes) -> None:
    pid, _, run_id = line[1:].partition(b" ")
    if line[:1] == b"+":
        running[int(pid)] = run_id
    else:
        running.pop(int(pid), None)


def processes_of(running: dict[int, bytes]) -> set[int]:
    """Return the living processes of these runs: their groups and sessions, and those with a ROTA_RUN_ID of one in
    their environment. Without /proc, kills the groups as a whole and returns an empty set."""
    if not os.path.isdir("/proc/self"):
        for leader in list(running):
            try:
                os.killpg(leader, signal.SIGKILL)
            except OSError:
                del running[leader]
        return set()
    variables = {b"ROTA_RUN_ID=" + run_id for run_id in running.values()}
    pids = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, _, group, session = file.read().rpartition(b")")[2].split()[:4]
            if state in b"ZX":
                continue
            if int(group) in running or int(session) in running:
                pids.add(int(name))
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                if variables & set(file.read().split(b"\0")):
                    pids.add(int(name))
        except (OSError, ValueError):  # it has ended, or belongs to another user
            continue
    return pids - {os.getpid()}


if __name__ == "__main__":
    main()
