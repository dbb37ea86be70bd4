"""Runs functions on a Ray cluster, through one client process per worker, which its first run there starts."""

import asyncio
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rota.core.errors import AuthError, LogicError, TransientError
from rota.engine.runner import RunContext
from rota.kinds.tasks.executors import ray_client
from rota.kinds.tasks.executors.port import StreamedRun, uninterrupted
from rota.kinds.tasks.executors.ray_client import LENGTH

CONNECT_SECONDS = 120.0  # Ray starts a process for each client
CLOSE_SECONDS = 5.0
LARGE_BYTES = 1 << 20  # of events that are unpickled in a thread
CLIENT = ray_client.__name__


class RayCluster:
    """The cluster of a Ray Client server."""

    def __init__(self, address: str) -> None:
        self.address, self.label = address, f"the Ray cluster at {address}"
        self._client: Client | None = None
        self._opening = asyncio.Lock()

    async def run(self, ctx: RunContext, order: Mapping[str, Any]) -> object:
        client = await self.client()
        run = client.runs[ctx.run_id] = StreamedRun(ctx, self.label)
        try:
            await client.send(
                {
                    "run_id": ctx.run_id,
                    "key": order["key"],
                    "grace": order["grace"],
                    "content": await asyncio.to_thread(pickle.dumps, order),
                }
            )
            ctx.log.line("system", f"sent to {self.label}")
            try:
                await asyncio.wait([run.ended])
            except asyncio.CancelledError:
                if not run.ended.done():
                    await uninterrupted(self.stop(client, run))
                    raise
            return await run.end(run.ended.result(), order["result_limit"])
        finally:
            run.close()
            del client.runs[ctx.run_id]

    async def stop(self, client: "Client", run: "StreamedRun") -> None:
        """Stop the function, and wait until it has ended; the client kills one that has not started."""
        await client.send({"stop": run.ctx.run_id})
        await run.wait_for_stop(ray_client.START_SECONDS + ray_client.STOP_SECONDS)

    async def client(self) -> "Client":
        """Return the connected client. Raises TransientError if the cluster cannot be reached, AuthError if it refuses
        the token, LogicError for another version of Ray or Python."""
        async with self._opening:
            if self._client is None or not self._client.connected:
                await self.close()
                client = Client(self.label)
                try:
                    await client.connect(self.address)
                except BaseException:
                    await client.close()
                    raise
                self._client = client
            return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


class Client:
    """The client process, which loads Ray. It ends with its worker."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.runs: dict[str, StreamedRun] = {}
        self.connected = False
        self._process: subprocess.Popen[bytes] | None = None
        self._following: asyncio.Task[None] | None = None

    async def connect(self, address: str) -> None:
        """Start the process and wait until it has connected; errors as those of `RayCluster.client`."""
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        self._process = start_process(address, writing)
        os.close(writing)
        self._events = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(self._events)
        self._reading, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(reading, "rb"))
        transport, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, self._process.stdin)
        self._commands = asyncio.StreamWriter(transport, flow, None, loop)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                event = await self.receive()
        except (TimeoutError, asyncio.IncompleteReadError) as error:
            reason = "no answer" if isinstance(error, TimeoutError) else "its client process died"
            raise TransientError(f"{self.label} cannot be reached: {reason}") from error
        if "refused" in event:
            raise self.refusal(event["refused"], event["classes"])
        self.connected = True
        self._following = asyncio.create_task(self.follow())

    def refusal(self, reason: str, classes: list[str]) -> Exception:
        if "AuthenticationError" in classes:
            return AuthError(f"{self.label} refused the token of this worker (RAY_AUTH_TOKEN): {reason}")
        if "RuntimeError" in classes and "version" in reason.lower():
            return LogicError(f"{self.label} needs the versions of Ray and Python of this worker: {reason}")
        return TransientError(f"{self.label} cannot be reached: {reason}")

    async def send(self, command: Mapping[str, Any]) -> None:
        """Send a command; without effect if the process has ended, which `follow` notices."""
        content = pickle.dumps(command)
        self._commands.write(LENGTH.pack(len(content)) + content)
        with suppress(OSError):
            await self._commands.drain()

    async def receive(self) -> Any:
        (size,) = LENGTH.unpack(await self._events.readexactly(LENGTH.size))
        content = await self._events.readexactly(size)
        return pickle.loads(content) if size < LARGE_BYTES else await asyncio.to_thread(pickle.loads, content)

    async def follow(self) -> None:
        """Pass events to their runs until the process ends, which all runs are lost with."""
        reason = "its client process died"
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                event = await self.receive()
                reason = event.get("disconnected", reason)
                if (run := self.runs.get(event["run_id"])) is not None:
                    take(run, event)
        self.connected = False
        for run in self.runs.values():
            run.fail(TransientError(f"{self.label} was lost while it ran: {reason}"))

    async def close(self) -> None:
        process = self._process
        if process is None:
            return
        self._commands.close()
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, CLOSE_SECONDS)
        process.kill()
        await asyncio.to_thread(process.wait)
        if self._following is not None:
            await self._following
        self._reading.close()


def take(run: StreamedRun, event: Mapping[str, Any]) -> None:
    """Pass on the messages of a node, and note the end of the run."""
    for message in event.get("messages", ()):
        run.take(message)
    if "broken" in event:
        run.take(event)
    elif "lost" in event:
        run.fail(run.lost(event["lost"]))


def start_process(address: str, writing: int) -> "subprocess.Popen[bytes]":
    """Start a client process that writes its events to a pipe. In a session of its own: a signal to the worker's group
    is not for it, because it stops the runs."""
    command = [sys.executable, "-m", CLIENT, address, str(writing)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[writing], start_new_session=True
    )
