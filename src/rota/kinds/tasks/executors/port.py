"""The port of executors of functions, and what all of them do with the messages of a node."""

import asyncio
import pickle
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from rota.core.errors import LogicError, TransientError, WorkError
from rota.core.model import Resources
from rota.core.process_groups import describe_exit
from rota.engine.runner import ChildCrashed, RunContext, WorkFailed
from rota.kinds.tasks.executors.functions import failure_from
from rota.kinds.tasks.executors.node import LOST

STOP_SECONDS = 7.0  # after the grace: until a node must have reported the end of a stopped function
PICKUP_SECONDS = 1.0  # after a cancellation: until a node must have reported that it started the function
MESSAGES_SECONDS = 2.0  # after the end of a function: until its last output must have come
FAILURE_BYTES = 1 << 20  # of an error with its traceback, which the limit of results does not concern
STREAMS = ("stdout", "stderr", "log", "system")


class ClusterExecutor(Protocol):
    """Runs functions on a cluster."""

    async def run(self, ctx: RunContext, order: Mapping[str, Any]) -> object:
        """Run an order and return the result of its function. Canceled, it stops the function before it raises. Raises
        TransientError, which names the address, if the cluster or the node is lost, ChildCrashed if the function's
        process died, WorkFailed if the function failed."""
        ...

    async def close(self) -> None:
        """Close the connection to the cluster."""
        ...


@dataclass(slots=True)
class RemoteRun:
    """A run on a cluster as its worker sees it."""

    ctx: RunContext
    cluster: str  # its name and address, for messages
    node: str = ""  # that started it
    started: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    received: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)  # set by each message

    def receive(self, message: Mapping[str, Any]) -> None:
        """Record a message of the node: its start or end, output, a heartbeat."""
        self.received += 1
        self.arrived.set()
        if "text" in message:
            self.write(str(message["stream"]), str(message["text"]))
        elif "heartbeat" in message:
            self.ctx.heartbeat()
        elif "node" in message:
            self.node = str(message["node"])
            self.ctx.log.line("system", f"started on node {self.node} of {self.cluster}")
            self.started.set()
        elif "stopped" in message:
            self.stopped.set()

    def write(self, stream: str, text: str) -> None:
        self.ctx.log.write(stream if stream in STREAMS else "stdout", text)

    async def end(self, ended: Mapping[str, Any], limit: int) -> object:
        """Return the result of a function that has ended. Raises as `ClusterExecutor.run` does, and LogicError for a
        result of more than `limit` bytes, which is not unpickled."""
        if ended.get("failure") == LOST:
            raise self.lost()
        if ended["dropped"]:
            self.ctx.log.line("system", f"… {ended['dropped']} characters left out …")
        for stream, text in ended["tail"]:
            self.write(str(stream), str(text))
        cpu_seconds = ended["cpu_seconds"]
        peak = ended["peak_memory_bytes"]
        self.ctx.info.resources = Resources(None if cpu_seconds is None else round(cpu_seconds, 6), peak)
        if ended["answer"] is None:
            if ended["stopped"]:  # not by this worker: the node left the cluster, or a person stopped it there
                raise TransientError(f"{self.cluster} stopped the run on node {self.node}")
            exit_text = describe_exit(ended["code"])
            raise ChildCrashed(f"the process of this run died on node {self.node} of {self.cluster} ({exit_text})")
        size = len(ended["answer"])
        if size > limit + FAILURE_BYTES:
            raise LogicError(f"node {self.node} of {self.cluster} returned {size} bytes; at most {limit} are allowed")
        answer = await asyncio.to_thread(pickle.loads, ended["answer"])
        if "failure" in answer:
            raise WorkFailed(failure_from(answer["failure"]))
        return answer["outcome"]

    def lost(self, reason: str = "") -> TransientError:
        node = f"node {self.node}" if self.node else "the node"
        return TransientError(f"{node} of {self.cluster} was lost while it ran{f': {reason}' if reason else ''}")

    async def wait_for_messages(self, count: int) -> None:
        """Wait until so many messages have come, for at most MESSAGES_SECONDS."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MESSAGES_SECONDS):
                while self.received < count:
                    self.arrived.clear()
                    await self.arrived.wait()

    async def wait_for_stop(self, pickup_seconds: float) -> None:
        """Wait until the node has reported that the function stopped; if it does not, the run's log says so. A function
        that has not started in `pickup_seconds` does not start any more. The node kills the function after the grace.
        """
        limit = self.ctx.cancel_grace.total_seconds() + STOP_SECONDS
        stopped = asyncio.ensure_future(self.stopped.wait())
        started = asyncio.ensure_future(self.started.wait())
        await asyncio.wait([stopped, started], timeout=pickup_seconds, return_when=asyncio.FIRST_COMPLETED)
        if self.started.is_set():
            await asyncio.wait([stopped], timeout=limit)
        started.cancel()
        stopped.cancel()
        if self.started.is_set() and not self.stopped.is_set():
            text = f"node {self.node} of {self.cluster} has not confirmed that the function stopped"
            self.ctx.log.line("system", text)


@dataclass(slots=True)
class StreamedRun(RemoteRun):
    """A run whose messages come in their order, its end among them."""

    ended: "asyncio.Future[Mapping[str, Any]]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def take(self, message: Mapping[str, Any]) -> None:
        if "ended" in message:
            self.stopped.set()
            if not self.ended.done():
                self.ended.set_result(message["ended"])
        elif "broken" in message:
            self.fail(WorkError(f"{self.cluster} could not run the function: {message['broken']}"))
        else:
            self.receive(message)

    def fail(self, error: Exception) -> None:
        """End the run with an error, unless it has ended."""
        self.stopped.set()
        if not self.ended.done():
            self.ended.set_exception(error)

    def close(self) -> None:
        if not self.ended.cancel() and not self.ended.cancelled():
            self.ended.exception()  # a canceled run has not looked at it


async def uninterrupted(steps: Coroutine[Any, Any, None]) -> None:
    """Await bounded steps to their end, also if the run is canceled again."""
    task = asyncio.ensure_future(steps)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    task.result()
