"""The program of nodes and containers: runs one function in a child process of its own and supervises it.

Its source travels to the nodes, and Rota need not be installed there: standard library only. The node's process
supervises; the child loads the function and calls it. A child process can be stopped, a thread cannot.
"""

import asyncio
import codecs
import contextlib
import ctypes
import inspect
import logging
import os
import pickle
import resource
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

POLL_SECONDS = 0.1  # between two looks whether to stop
FLUSH_SECONDS = 0.2  # between two messages with output
HEARTBEAT_SECONDS = 0.1  # between two heartbeats: a function may report them in a tight loop
DRAIN_SECONDS = 1.0  # wait for output after the exit: a process that was left behind may hold the pipes open
KILL_SECONDS = 5.0  # after SIGKILL, for processes that the system does not end
LIVE_CHARACTERS = 512 * 1024  # of output that is sent while the function runs; the rest waits for its end
TAIL_CHARACTERS = 512 * 1024  # of that rest, the last ones
HEADER = "!cQ"  # kind and length of a message of the child process; a Struct cannot be pickled
HEADER_BYTES = struct.calcsize(HEADER)
ANSWER, LINE, HEARTBEAT = b"a", b"l", b"h"
TAKE_SECONDS = 1.0  # until the client of a Ray actor that asks for messages gets an answer, also without any
SILENCE_SECONDS = 15.0  # without a question of its client, until an actor stops its function
LOST = "lost"  # the failure of a second start: the node of the first was lost

Order = Mapping[str, Any]  # see `functions.make_order`
Message = dict[str, Any]


class NodeError(Exception):
    """An error that another attempt would only repeat."""


class NotOnNode(NodeError, AttributeError):
    """A function on a node used what only a worker of Rota has."""


# in the node's process


def supervise(order: Order, should_stop: Callable[[], bool]) -> Iterator[Message]:
    """Run the function of an order. Yields messages with output (`stream`, `text`) and heartbeats, an empty one at
    least every POLL_SECONDS, and at last one with `ended`. When `should_stop` returns True the child gets SIGTERM and,
    after the grace, SIGKILL, with what it started; when the generator is closed, at once."""
    reading, writing = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", order["source"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        pass_fds=[writing],
        env={**os.environ, "ROTA_RUN_ID": order["context"]["run_id"]},
    )
    os.close(writing)
    try:
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError), child.stdin:  # it may die at its start
            pickle.dump({**order, "source": "", "path": sys.path, "result_fd": writing}, child.stdin)
        yield from Watch(order, child, reading, should_stop).messages()
    finally:
        kill_all(child.pid, order, signal.SIGKILL)
        if child.returncode is None:
            child.wait()
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()
        os.close(reading)


class Watch:
    """What a child process has sent so far."""

    def __init__(
        self, order: Order, child: "subprocess.Popen[bytes]", reading: int, should_stop: Callable[[], bool]
    ) -> None:
        self.order, self.child, self.should_stop = order, child, should_stop
        self.selector = selectors.DefaultSelector()
        self.selector.register(reading, selectors.EVENT_READ, None)
        self.output: dict[str, str] = {}  # to be sent, by stream
        self.decoders: dict[str, codecs.IncrementalDecoder] = {}
        for name, pipe in (("stdout", child.stdout), ("stderr", child.stderr)):
            assert pipe is not None
            self.selector.register(pipe.fileno(), selectors.EVENT_READ, name)
            self.decoders[name] = codecs.getincrementaldecoder("utf-8")("replace")
        self.received = bytearray()  # of the pipe of results; an answer comes in thousands of parts
        self.answer: bytes | None = None
        self.heartbeat = False
        self.live_left = LIVE_CHARACTERS
        self.tail: list[tuple[str, str]] = []
        self.tail_size = self.dropped = 0
        self.usage: resource.struct_rusage | None = None

    def messages(self) -> Iterator[Message]:
        stopped_at = exited_at = None
        flushed_at, grace = time.monotonic(), float(self.order["grace"])
        with self.selector:
            while True:
                self.read()
                now = time.monotonic()
                if exited_at is None and self.reap():
                    exited_at = now
                    if stopped_at is None:
                        kill_all(self.child.pid, self.order, signal.SIGKILL)  # what it left behind
                if stopped_at is None and self.should_stop():
                    stopped_at = now
                    kill_all(self.child.pid, self.order, signal.SIGTERM)
                if stopped_at is not None and now - stopped_at >= grace:
                    kill_all(self.child.pid, self.order, signal.SIGKILL)
                drained = exited_at is not None and (not self.selector.get_map() or now - exited_at > DRAIN_SECONDS)
                if drained and (stopped_at is None or self.gone(now - stopped_at - grace)):
                    break
                yield from self.take_heartbeat()
                if now - flushed_at >= FLUSH_SECONDS:
                    flushed_at = now
                    yield from self.take_output()
                yield {}
        yield from self.take_output()
        yield self.ended(stopped_at is not None)

    def gone(self, seconds_after_grace: float) -> bool:
        """Whether what the child started is gone too, or ignores SIGKILL."""
        return seconds_after_grace > KILL_SECONDS or not processes_of(self.child.pid, self.order)

    def read(self) -> None:
        if not self.selector.get_map():
            time.sleep(POLL_SECONDS)
        for key, _ in self.selector.select(POLL_SECONDS):
            chunk = os.read(key.fd, 65_536)
            if not chunk:
                self.selector.unregister(key.fd)
            elif key.data is not None:
                self.add_output(key.data, self.decoders[key.data].decode(chunk))
            else:
                self.received += chunk
                self.read_messages()

    def read_messages(self) -> None:
        while len(self.received) >= HEADER_BYTES:
            kind, size = struct.unpack_from(HEADER, self.received)
            end = HEADER_BYTES + size
            if len(self.received) < end:
                return
            body = bytes(memoryview(self.received)[HEADER_BYTES:end])
            del self.received[:end]
            if kind == ANSWER:
                self.answer = body
            elif kind == HEARTBEAT:
                self.heartbeat = True
            else:
                stream, _, text = body.decode("utf-8", "replace").partition("\0")
                self.add_output(stream, text + "\n")

    def add_output(self, stream: str, text: str) -> None:
        if self.live_left > 0:
            self.live_left -= len(text)
            self.output[stream] = self.output.get(stream, "") + text
            return
        self.tail.append((stream, text))
        self.tail_size += len(text)
        while self.tail_size > TAIL_CHARACTERS and len(self.tail) > 1:
            gone = len(self.tail.pop(0)[1])
            self.tail_size -= gone
            self.dropped += gone

    def take_output(self) -> Iterator[Message]:
        output, self.output = self.output, {}
        for stream, text in output.items():
            yield {"stream": stream, "text": text}

    def take_heartbeat(self) -> Iterator[Message]:
        if self.heartbeat:
            self.heartbeat = False
            yield {"heartbeat": True}

    def reap(self) -> bool:
        """Whether the child has exited; its usage is known then."""
        pid, status, usage = os.wait4(self.child.pid, os.WNOHANG)
        if pid:
            self.child.returncode, self.usage = os.waitstatus_to_exitcode(status), usage
        return bool(pid)

    def ended(self, stopped: bool) -> Message:
        usage = self.usage
        unit = 1 if sys.platform == "darwin" else 1024
        peak = 0 if usage is None else usage.ru_maxrss
        if peak <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
            peak = 0  # it may be that of this process, which the child was a copy of
        return {
            "ended": {
                "answer": self.answer,
                "code": self.child.returncode,
                "stopped": stopped,
                "tail": self.tail,
                "dropped": self.dropped,
                "cpu_seconds": None if usage is None else usage.ru_utime + usage.ru_stime,
                "peak_memory_bytes": peak * unit or None,
            }
        }


def kill_all(leader: int, order: Order, signal_number: int) -> None:
    """Signal the child's process group, and the processes that have the id of the run in their environment."""
    with contextlib.suppress(OSError):
        os.killpg(leader, signal_number)
    for pid in processes_of(leader, order):
        with contextlib.suppress(OSError):
            os.kill(pid, signal_number)


def processes_of(leader: int, order: Order) -> list[int]:
    """Return the living processes of a run, also after `setsid`. Empty where the system has no /proc."""
    variable, pids = b"ROTA_RUN_ID=" + order["context"]["run_id"].encode(), []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        with contextlib.suppress(OSError, ValueError):  # it has ended, or belongs to another user
            if not name.isdigit() or int(name) == os.getpid():
                continue
            with open(f"/proc/{name}/stat", "rb") as file:
                state, _, group = file.read().rpartition(b")")[2].split()[:3]
            if state in b"ZX":
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                if int(group) == leader or variable in file.read().split(b"\0"):
                    pids.append(int(name))
    return pids


# in the child process


def main() -> None:
    """Read an order from stdin, call its function, write the answer to its pipe."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: die with the node's process
    order = pickle.load(sys.stdin.buffer)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    pipe = Pipe(order["result_fd"])
    sys.path[:] = order["path"]
    if order["memory_mb"] is not None:
        limit = order["memory_mb"] << 20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        answer = pickle.dumps({"outcome": call(order, pipe)})
        if len(answer) > order["result_limit"]:
            text = f"the result has {len(answer)} bytes as a pickle; at most {order['result_limit']} are allowed"
            answer = pickle.dumps({"failure": failure_of(NodeError(text))})
    except asyncio.CancelledError:
        os._exit(1)  # stopped
    except BaseException as error:
        answer = pickle.dumps({"failure": failure_of(error)})
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    pipe.send(ANSWER, answer)
    os._exit(0)  # threads that the function left behind end with it


class Pipe:
    """Sends messages to the node's process; any thread may."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self.file, self.lock = os.fdopen(descriptor, "wb"), threading.Lock()
        self.heartbeat_at = 0.0

    def send(self, kind: bytes, body: bytes = b"") -> None:
        with self.lock:
            self.file.write(struct.pack(HEADER, kind, len(body)) + body)
            self.file.flush()

    def heartbeat(self) -> None:
        now = time.monotonic()
        if now - self.heartbeat_at >= HEARTBEAT_SECONDS:
            self.heartbeat_at = now
            self.send(HEARTBEAT)


def call(order: Order, pipe: Pipe) -> object:
    """Load the function of an order and call it, an async one on an event loop."""
    try:
        function, arguments = pickle.loads(order["call"])
    except Exception as error:
        here = ".".join(map(str, sys.version_info[:2]))
        raise NodeError(
            f"the function cannot be loaded on the node: {type(error).__name__}: {error}; a node needs the packages of "
            f"the program in the same versions, and the same Python: it has {here}, the worker {order['python']}"
        ) from error
    for name, injected in order["injected"].items():
        arguments[name] = NodeContext(order, pipe) if injected == "context" else logging.getLogger(order["logger"])
    pipe.heartbeat()
    if inspect.iscoroutinefunction(function):
        return asyncio.run(call_async(function, arguments))
    return function(**arguments)


async def call_async(function: Callable[..., Any], arguments: Mapping[str, object]) -> object:
    """Call an async function; SIGTERM cancels it."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await function(**arguments)


class NodeContext:
    """What a function on a node has of its RunContext. After SIGTERM `canceled` is set, and it has the grace to end."""

    def __init__(self, order: Order, pipe: Pipe) -> None:
        self._executor = order["executor"]
        self.run_id = order["context"]["run_id"]
        self.attempt = order["context"]["attempt"]
        self.slot = order["context"]["slot"]
        self.fence = order["context"]["fence"]
        self.org_id = order["context"]["org_id"]
        self.log = NodeLog(pipe)
        self.canceled = threading.Event()
        self.heartbeat = pipe.heartbeat
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)
        signal.signal(signal.SIGTERM, lambda *_: None)  # a handler must not set an event that the thread waits for
        threading.Thread(target=self._wait_for_stop, args=(reading,), daemon=True).start()

    def _wait_for_stop(self, reading: int) -> None:
        while os.read(reading, 1) != bytes([signal.SIGTERM]):
            pass
        self.canceled.set()

    def __getattr__(self, name: str) -> Any:
        raise NotOnNode(
            f"ctx.{name} is not available with executor={self._executor!r}: there ctx has run_id, attempt, slot, "
            "fence, org_id, canceled, log and heartbeat; for the rest use a task without an executor"
        )


class NodeLog:
    """The log of the run."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def line(self, stream: str, text: str) -> None:
        self._pipe.send(LINE, f"{stream}\0{text}".encode("utf-8", "backslashreplace"))


def failure_of(error: BaseException) -> Message:
    """Return an error as plain data; the worker knows its class by the names of its base classes."""
    start = error.__traceback__
    while start is not None and start.tb_frame.f_code.co_filename == "<string>":  # of this program
        start = start.tb_next
    return {
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(type(error), error, start)),
        "classes": [f"{base.__module__}.{base.__qualname__}" for base in type(error).__mro__],
        "code": getattr(error, "code", None),
        "seconds": getattr(error, "seconds", None),
    }


if __name__ == "__main__":
    main()
