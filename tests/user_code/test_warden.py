"""The process beside a worker that ends its commands when the worker is gone."""

import os
import signal
import subprocess
import sys

from rota.user_code.warden import PROGRAM, announce

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; print(flush=True); time.sleep(600)"]


def start(env: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
    """A process that lives; it has executed its program."""
    process = subprocess.Popen(SLEEP, stdout=subprocess.PIPE, start_new_session=True, env=env)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_announced_runs_are_killed_and_others_left_alone() -> None:
    reading, writing = os.pipe()
    command = [sys.executable, "-I", "-S", PROGRAM, str(os.getpid())]
    warden = subprocess.Popen(command, stdin=reading, start_new_session=True)
    os.close(reading)
    announced, ended, unknown = start(), start(), start()
    marked = start(env={**os.environ, "ROTA_RUN_ID": "run-1"})  # it left the group and the session of its run
    processes = (announced, ended, unknown, marked)
    try:
        announce(writing, announced.pid, "run-1")
        announce(writing, ended.pid, "run-2")
        os.write(writing, b"-%d\n" % ended.pid)
        os.kill(warden.pid, signal.SIGTERM)  # it ends with its worker, not before
        os.close(writing)
        assert warden.wait(30) == 0
        assert (announced.wait(20), marked.wait(20)) == (-signal.SIGKILL, -signal.SIGKILL)
        assert (ended.poll(), unknown.poll()) == (None, None)
    finally:
        for process in processes:
            process.kill()
            process.wait(20)
