"""One run on a host: `python -m rota.kinds.hosts.agent.supervisor DIRECTORY`, started in a session of its own.

It outlives the agent: after a restart the agent reads from its files how the run ended. It enforces the timeout of the
run and, at the timeout or on SIGTERM, ends its process group: SIGTERM, the grace, SIGKILL.
"""

import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path

from rota.agent import Order, Refused, TransientError
from rota.core.clock import stopwatch, system_time_ms
from rota.core.process_groups import (
    OUTPUT_DRAIN_SECONDS,
    Tail,
    describe_exit,
    die_with_parent,
    kill_group,
    last_line,
)
from rota.core.redact import HIDDEN, hidden_values
from rota.kinds.hosts.agent.job_types import Allowed
from rota.kinds.hosts.agent.journal import JsonObject, write_durably

LOG_FILE_BYTES = 1024 * 1024  # of the log of a run
LOG_LINE_CHARACTERS = 16 * 1024
TAIL_CHARACTERS = 16 * 1024  # of stdout and of stderr, in the outcome
OUTCOME_BYTES = 512 * 1024  # of JSON
READ_BYTES = 65_536  # of a pipe at a time, and of a line


def main(home: str) -> None:
    os.chdir(home)
    order = json.loads(Path("order.json").read_bytes())
    if "reconcile" in sys.argv:
        write_durably(Path("answer"), json.dumps(reconcile(order)).encode())
        return
    result = RunSupervisor(order).run()
    write_durably(Path("result.json"), json.dumps(result).encode())


class RunSupervisor:
    """Forks a child that does the work; reads its output through two pipes, its result through a third."""

    def __init__(self, order: JsonObject) -> None:
        self.order, self.secrets = order, sorted(hidden_values([order["payload"], order["server"]["config"]]), key=len)
        self.stop_reason: str | None = None
        self.log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.log_bytes_left = LOG_FILE_BYTES
        self.tails = {"stdout": Tail(TAIL_CHARACTERS), "stderr": Tail(TAIL_CHARACTERS)}

    def run(self) -> JsonObject:
        """Run the order to its end, and return its result as the server is sent it."""
        began, timeout, grace = stopwatch(), self.order["timeout_seconds"], self.order["grace_seconds"]
        pipes = {name: os.pipe() for name in ("stdout", "stderr", "result")}
        supervisor = os.getpid()
        write_durably(Path("started"), str(supervisor).encode())
        child = os.fork()  # this process has no other threads
        if child == 0:
            run_child(self.order, {name: writing for name, (_, writing) in pipes.items()}, supervisor)
        signal.signal(signal.SIGTERM, lambda *_: self.stop("canceled"))
        for _, writing in pipes.values():
            os.close(writing)
        readers = {reading: name for name, (reading, _) in pipes.items()}
        parts: dict[str, bytes] = dict.fromkeys(pipes, b"")
        kill_at, ended_at, status = 0.0, 0.0, None
        while readers or status is None:
            if timeout and stopwatch() - began > timeout:
                self.stop("timeout")
            if self.stop_reason and not kill_at:
                kill_at = stopwatch() + grace
                kill_group(child, signal.SIGTERM)
            if kill_at and stopwatch() > kill_at:
                kill_group(child)
            ready, _, _ = select.select(list(readers), [], [], 0.1) if readers else ([], [], [])
            for file in ready:
                chunk = os.read(file, READ_BYTES)
                if not chunk:
                    os.close(file)
                    name = readers.pop(file)
                    if name != "result":
                        self.write_line(name, parts[name])
                elif readers[file] == "result":
                    parts["result"] += chunk
                else:
                    *lines, rest = (parts[readers[file]] + chunk).split(b"\n")
                    parts[readers[file]] = rest[-READ_BYTES:]
                    for line in lines:
                        self.write_line(readers[file], line)
            if status is None:
                pid, code = os.waitpid(child, os.WNOHANG)
                if pid:
                    status, ended_at = os.waitstatus_to_exitcode(code), stopwatch()
            elif stopwatch() - ended_at > OUTPUT_DRAIN_SECONDS:
                break
        kill_group(child)  # what it left behind
        return self.result(status or 0, parts["result"], began)

    def stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason

    def result(self, code: int, answer: bytes, began: float) -> JsonObject:
        """Return what the child answered, with the reason of a stop, the tails of its output and its duration."""
        times = {"duration_ms": round((stopwatch() - began) * 1000), "ended_at_ms": system_time_ms()}
        output = {name: tail.text() for name, tail in self.tails.items() if tail.text()}
        if answer:
            result = json.loads(self.hide(answer.decode()))
        else:
            text = f"the run's process died ({describe_exit(code)})"
            result = {"status": "failed", "error": {"code": "logic", "type": "ProcessDied", "message": text}}
        if result["status"] != "success" and self.stop_reason == "timeout":
            limit = self.order["timeout_seconds"]
            result["error"] = {"code": "timeout", "type": "Timeout", "message": f"still running after {limit:g} s"}
        elif result["status"] != "success" and self.stop_reason == "canceled":
            result["status"] = "canceled"
        if isinstance(result.get("outcome"), dict) and self.order["job_type"] == "shell":
            result["outcome"] |= output
            last = last_line(output.get("stderr", ""))
            if result.get("error") and last:
                result["error"]["message"] += f": {last}"
        return {**result, **times}

    def write_line(self, stream: str, line: bytes) -> None:
        """Append a line of output to the log, without secrets, up to LOG_FILE_BYTES."""
        if not line:
            return
        text = self.hide(line.decode("utf-8", "replace")).replace("\0", "␀")
        self.tails[stream].add(text + "\n")
        entry = json.dumps([stream, text[:LOG_LINE_CHARACTERS]]).encode() + b"\n"
        if 0 < self.log_bytes_left <= len(entry):
            entry, self.log_bytes_left = b'["system", "\\u2026 the rest is left out \\u2026"]\n', 0
        if self.log_bytes_left or entry.startswith(b'["system"'):
            os.write(self.log, entry)
            self.log_bytes_left = max(0, self.log_bytes_left - len(entry))

    def hide(self, text: str) -> str:
        for secret in reversed(self.secrets):
            text = text.replace(secret, HIDDEN)
        return text


def run_child(order: JsonObject, pipes: dict[str, int], supervisor: int) -> None:
    """The forked child: call the job type, write its result to the pipe, and exit. It inherits the lock of the claim,
    so the run counts as alive as long as this process lives."""
    os.setsid()
    die_with_parent()
    if os.getppid() != supervisor:  # it died before the parent-death signal was set
        os._exit(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(pipes["stdout"], 1)
    os.dup2(pipes["stderr"], 2)
    os.chdir(order["cwd"])
    result: JsonObject
    try:
        types = Allowed(**order["allowed"]).load()
        result = {"status": "success", "outcome": types[order["job_type"]].function(public_order(order))}
        if len(json.dumps(result)) > OUTCOME_BYTES:
            raise ValueError(f"the outcome has more than {OUTCOME_BYTES} bytes of JSON")
    except BaseException as error:
        code = "transient" if isinstance(error, TransientError | ConnectionError | TimeoutError) else "logic"
        trace = None if isinstance(error, Refused) or hasattr(error, "outcome") else traceback.format_exc()
        name = type(error).__name__
        failure = {"code": code, "type": name, "message": str(error) or name, "traceback": trace}
        result = {"status": "failed", "outcome": getattr(error, "outcome", None), "error": failure}
    sys.stdout.flush()
    sys.stderr.flush()
    with os.fdopen(pipes["result"], "wb") as file:
        file.write(json.dumps(result).encode())
    os._exit(0)


def reconcile(order: JsonObject) -> bool | None:
    """Return what the job type's `reconcile` says: whether the work was applied; None if it cannot know."""
    job_type = Allowed(**order["allowed"]).load().get(order["job_type"])
    function = job_type.reconcile if job_type is not None else None
    return None if function is None else function(public_order(order))


def public_order(order: JsonObject) -> Order:
    """Return the part of an order that job types see."""
    return Order(**{name: order[name] for name in Order.__slots__})


if __name__ == "__main__":
    main(sys.argv[1])
