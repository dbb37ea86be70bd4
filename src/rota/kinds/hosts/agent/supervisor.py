"""One run on a host: `python -m rota.kinds.hosts.agent.supervisor DIRECTORY`, started in a session of its own.

It outlives the agent: whoever starts the agent again finds here how the run ended. It gives the run its time limit, and
on SIGTERM climbs the ladder: SIGTERM to everything that the run started, the grace, SIGKILL.
"""

import contextlib
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from rota.agent import Order, Refused, TransientError
from rota.core.clock import stopwatch, system_time_ms
from rota.core.redact import HIDDEN, hidden_values
from rota.kinds.hosts.agent.job_types import Allowed
from rota.kinds.hosts.agent.journal import write_down

LOG_LIMIT = 1024 * 1024  # bytes of the log that are kept
TAIL = 16 * 1024  # characters of each stream that the outcome keeps
OUTCOME_LIMIT = 512 * 1024  # bytes of JSON
SPOKEN_OUT = 1.0  # seconds that output is waited for after the end: somebody may have inherited the pipes


def main(home: str) -> None:
    os.chdir(home)
    told = json.loads(Path("order.json").read_bytes())
    if "reconcile" in sys.argv:
        write_down(Path("answer"), json.dumps(reconciled(told)).encode())
        return
    run = Run(told)
    result = run.watch()
    write_down(Path("result.json"), json.dumps(result).encode())


class Run:
    """The watcher of a run: a child does the work, its output comes through two pipes, its result through a third."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told, self.secrets = told, sorted(hidden_values([told["payload"], told["server"]["config"]]), key=len)
        self.stopped: str | None = None
        self.log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.left = LOG_LIMIT
        self.tails = {"stdout": "", "stderr": ""}

    def watch(self) -> dict[str, Any]:
        began, timeout, grace = stopwatch(), self.told["timeout_seconds"], self.told["grace_seconds"]
        pipes = {name: os.pipe() for name in ("stdout", "stderr", "result")}
        write_down(Path("started"), str(os.getpid()).encode())
        mine = os.getpid()
        child = os.fork()  # this process has no other threads
        if child == 0:
            work(self.told, {name: writing for name, (_, writing) in pipes.items()}, mine)
        signal.signal(signal.SIGTERM, lambda *_: self.stop("canceled"))
        for _, writing in pipes.values():
            os.close(writing)
        readers = {reading: name for name, (reading, _) in pipes.items()}
        parts: dict[str, bytes] = dict.fromkeys(pipes, b"")
        killed_at, ended, status = 0.0, 0.0, None
        while readers or status is None:
            if timeout and stopwatch() - began > timeout:
                self.stop("timeout")
            if self.stopped and not killed_at:
                killed_at = stopwatch() + grace
                kill_group(child, signal.SIGTERM)
            if killed_at and stopwatch() > killed_at:
                kill_group(child, signal.SIGKILL)
            ready, _, _ = select.select(list(readers), [], [], 0.1) if readers else ([], [], [])
            for file in ready:
                chunk = os.read(file, 65_536)
                if not chunk:
                    os.close(file)
                    name = readers.pop(file)
                    if name != "result":
                        self.say(name, parts[name])
                elif readers[file] == "result":
                    parts["result"] += chunk
                else:
                    *lines, rest = (parts[readers[file]] + chunk).split(b"\n")
                    parts[readers[file]] = rest[-65_536:]
                    for line in lines:
                        self.say(readers[file], line)
            if status is None:
                pid, code = os.waitpid(child, os.WNOHANG)
                if pid:
                    status, ended = os.waitstatus_to_exitcode(code), stopwatch()
            elif stopwatch() - ended > SPOKEN_OUT:
                break
        kill_group(child, signal.SIGKILL)  # what it left behind
        return self.result(status or 0, parts["result"], began)

    def stop(self, why: str) -> None:
        self.stopped = self.stopped or why

    def result(self, code: int, told: bytes, began: float) -> dict[str, Any]:
        times = {"duration_ms": round((stopwatch() - began) * 1000), "ended_at_ms": system_time_ms()}
        said = {name: text for name, text in self.tails.items() if text}
        if told:
            found = json.loads(self.hide(told.decode()))
        else:
            text = f"the run's process died (exit code {code})"
            found = {"status": "failed", "error": {"code": "logic", "type": "ProcessDied", "message": text}}
        if found["status"] != "success" and self.stopped == "timeout":
            limit = self.told["timeout_seconds"]
            found["error"] = {"code": "timeout", "type": "Timeout", "message": f"still running after {limit:g} s"}
        elif found["status"] != "success" and self.stopped == "canceled":
            found["status"] = "canceled"
        if isinstance(found.get("outcome"), dict) and self.told["job_type"] == "shell":
            found["outcome"] |= said
            last = next((line for line in reversed(said.get("stderr", "").splitlines()) if line.strip()), None)
            if found.get("error") and last:
                found["error"]["message"] += f": {last}"
        return {**found, **times}

    def say(self, stream: str, line: bytes) -> None:
        if not line:
            return
        text = self.hide(line.decode("utf-8", "replace")).replace("\0", "␀")
        self.tails[stream] = (self.tails[stream] + text + "\n")[-TAIL:]
        entry = json.dumps([stream, text[:16_384]]).encode() + b"\n"
        if 0 < self.left <= len(entry):
            entry, self.left = b'["system", "\\u2026 the rest is left out \\u2026"]\n', 0
        if self.left or entry.startswith(b'["system"'):
            os.write(self.log, entry)
            self.left = max(0, self.left - len(entry))

    def hide(self, text: str) -> str:
        for secret in reversed(self.secrets):
            text = text.replace(secret, HIDDEN)
        return text


def work(told: dict[str, Any], pipes: dict[str, int], watcher: int) -> None:
    """The child: do it, tell how it went, and be gone. It holds the claim's lock too: while it lives, the run does."""
    os.setsid()
    die_with_parent()
    if os.getppid() != watcher:  # it died before it could take this process with it
        os._exit(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(pipes["stdout"], 1)
    os.dup2(pipes["stderr"], 2)
    os.chdir(told["cwd"])
    found: dict[str, Any]
    try:
        types = Allowed(**told["allowed"]).load()
        found = {"status": "success", "outcome": types[told["job_type"]].function(order_of(told))}
        if len(json.dumps(found)) > OUTCOME_LIMIT:
            raise ValueError(f"the outcome has more than {OUTCOME_LIMIT} bytes of JSON")
    except BaseException as error:
        code = "transient" if isinstance(error, TransientError | ConnectionError | TimeoutError) else "logic"
        trace = None if isinstance(error, Refused) or hasattr(error, "outcome") else traceback.format_exc()
        text = {"code": code, "type": type(error).__name__, "message": str(error) or type(error).__name__}
        found = {"status": "failed", "outcome": getattr(error, "outcome", None), "error": {**text, "traceback": trace}}
    sys.stdout.flush()
    sys.stderr.flush()
    with os.fdopen(pipes["result"], "wb") as file:
        file.write(json.dumps(found).encode())
    os._exit(0)


def reconciled(told: dict[str, Any]) -> bool | None:
    """Ask the job type whether it happened, if it can tell."""
    job_type = Allowed(**told["allowed"]).load().get(told["job_type"])
    ask = job_type.reconcile if job_type is not None else None
    return None if ask is None else ask(order_of(told))


def order_of(told: dict[str, Any]) -> Order:
    return Order(**{name: told[name] for name in Order.__slots__})


def kill_group(leader: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, how)


def die_with_parent() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
