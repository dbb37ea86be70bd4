"""The client of a Ray cluster: a process of its own, so that a worker does not load Ray.

It reads commands from stdin and writes events to the descriptor in its arguments, as pickles behind their lengths. Each
run is an actor, which is asked for messages until it has ended. When stdin ends, it stops its runs before it exits.
"""

import asyncio
import importlib
import os
import pickle
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from rota.core.clock import real_sleep, stopwatch
from rota.kinds.tasks.executors.node import SILENCE_SECONDS
from rota.kinds.tasks.executors.node_code import node_function

LENGTH = struct.Struct("!Q")  # of a message
CONNECT_SECONDS = 10.0
CONNECT_ATTEMPTS = 3
START_SECONDS = 1.0  # after a stop: until an actor must have started its function; else it is killed
STOP_SECONDS = 5.0  # after the grace: until an actor must have ended

Message = Mapping[str, Any]


class Client:
    """The runs of a worker on a Ray cluster."""

    def __init__(self, ray: Any, events: int) -> None:
        self.ray, self.events = ray, events
        self.actor_class = ray.remote(node_function("RotaRun"))
        self.runs: dict[str, Run] = {}

    async def serve(self) -> None:
        """Carry out commands until stdin ends, and stop the runs that are left."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
        tasks = set()
        with suppress(asyncio.IncompleteReadError):
            while True:
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                command = pickle.loads(await reader.readexactly(size))
                if "stop" in command:
                    if run := self.runs.get(command["stop"]):
                        run.stop()
                else:
                    run = self.runs[command["run_id"]] = Run(self, command)
                    tasks.add(task := asyncio.create_task(run.follow()))
                    task.add_done_callback(tasks.discard)
        for run in self.runs.values():
            run.stop()
        if tasks:
            await asyncio.wait(tasks)

    def send(self, event: Message) -> None:
        send(self.events, event)


class Run:
    """A run and its actor."""

    def __init__(self, client: Client, command: Message) -> None:
        self.client, self.run_id, self.grace = client, command["run_id"], command["grace"]
        self.started = self.ended = False
        self.answered_at = stopwatch()
        self.stopping: asyncio.Task[None] | None = None
        self.options = {"num_cpus": 1, "max_concurrency": 2, "max_restarts": 0, "name": command["key"]}
        self.content: bytes = command["content"]
        self.actor: Any = None

    async def follow(self) -> None:
        """Send the messages of the actor until the run has ended or is lost."""
        errors = importlib.import_module("ray.exceptions")
        try:
            self.actor = self.client.actor_class.options(**self.options).remote(self.content)
            self.content = b""
            while not self.ended:
                messages = await self.actor.take.remote()
                self.answered_at = stopwatch()
                self.started = True
                self.ended = any("ended" in message or "broken" in message for message in messages)
                if messages:
                    self.send(messages=messages)
        except errors.RayActorError as error:
            unborn = "creation task" in str(error)  # the class or the order could not be loaded
            self.send(**{"broken" if unborn else "lost": reason_of(error)})
        except ConnectionError as error:
            left = self.answered_at + SILENCE_SECONDS + self.grace - stopwatch()
            await real_sleep(max(0.0, left))  # until the actor has stopped the function
            self.send(disconnected=reason_of(error))
            os._exit(1)  # this connection does not come back
        except Exception as error:
            self.send(broken=reason_of(error))
        finally:
            del self.client.runs[self.run_id]
            self.kill()

    def stop(self) -> None:
        if self.stopping is None:
            self.stopping = asyncio.create_task(self.end())

    async def end(self) -> None:
        """Stop the function, or kill an actor that has not started, or does not end."""
        with suppress(Exception):
            self.actor.stop.remote()
        for seconds in (START_SECONDS, self.grace + STOP_SECONDS):
            await real_sleep(seconds)
            if self.ended or not self.started:
                break
        if not self.ended:
            self.kill()

    def kill(self) -> None:
        with suppress(Exception):
            self.client.ray.kill(self.actor)

    def send(self, **event: Any) -> None:
        self.client.send({"run_id": self.run_id, **event})


def reason_of(error: BaseException) -> str:
    """Return the first line of an error's message; if that only announces a traceback, with the last one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]


def send(descriptor: int, event: Message) -> None:
    content = pickle.dumps(event)
    rest = memoryview(LENGTH.pack(len(content)) + content)
    with suppress(BrokenPipeError):  # the worker has died
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def connect(address: str) -> Any:
    """Return the module of Ray, connected to a cluster."""
    parts = urlsplit(address)
    socket.create_connection((parts.hostname, parts.port), CONNECT_SECONDS).close()  # Ray would try for a minute
    os.environ.setdefault("RAY_CLIENT_RECONNECT_GRACE_PERIOD", f"{SILENCE_SECONDS:.0f}")
    ray = importlib.import_module("ray")
    for left in reversed(range(CONNECT_ATTEMPTS)):
        try:
            ray.init(address, log_to_driver=False, logging_level="error")
            break
        except ConnectionAbortedError:  # its server could not start a process for this client, a fork of it
            if not left:
                raise
    return ray


def main(address: str, events: int) -> None:
    os.dup2(2, 1)  # what Ray prints
    try:
        ray = connect(address)
    except Exception as error:
        names = [base.__name__ for base in type(error).__mro__]
        send(events, {"refused": reason_of(error), "classes": names})
        return
    send(events, {"connected": ray.__version__})
    asyncio.run(Client(ray, events).serve())
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
