"""The places in which the program of nodes runs: a Dask worker, a Ray actor, a container. Executed behind `node.py`, in
its namespace and never imported; standard library only."""

import contextlib
import importlib
import os
import pickle
import queue
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rota.kinds.tasks.executors.node import LOST, SILENCE_SECONDS, TAKE_SECONDS, Message, Order, supervise


def run_on_dask(content: bytes, topic: str) -> Message:
    """Run an order in a thread of a Dask worker. Messages go to `topic` by way of the scheduler. Dask starts a task of
    a lost worker again: that start is refused, because only Rota decides about another attempt."""
    distributed: Any = importlib.import_module("distributed")
    worker, order = distributed.get_worker(), pickle.loads(content)
    key, run_id = worker.get_current_task(), order["context"]["run_id"]
    started = distributed.Event(order["key"])
    if started.is_set():
        return {"failure": LOST}
    started.set()
    sent = 0

    def send(message: Message) -> None:
        nonlocal sent
        sent += 1
        worker.log_event(topic, {"run_id": run_id, **message})

    def should_stop() -> bool:
        task = worker.state.tasks.get(key)
        is_wanted = task is not None and task.state in ("executing", "long-running")
        return not is_wanted or worker.status.name not in ("running", "paused")

    ended: Message = {}
    send({"node": f"{worker.address} ({worker.name})"})
    try:
        for message in supervise(order, should_stop):
            if "ended" in message:
                ended = message["ended"]
            elif message:
                send(message)
    finally:
        send({"stopped": True})
    return {**ended, "sent": sent}


class RotaRun:
    """A run on a Ray cluster: an actor, whose process supervises the function. It stops the function if its client asks
    for no messages for SILENCE_SECONDS, because the client or the cluster may be lost."""

    def __init__(self, content: bytes) -> None:
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.stopped, self.asked_at = False, time.monotonic()
        threading.Thread(target=self._run, args=(pickle.loads(content),), daemon=True).start()

    def take(self) -> list[Message]:
        """Wait for messages, at most TAKE_SECONDS, and return them."""
        self.asked_at, messages = time.monotonic(), []
        with contextlib.suppress(queue.Empty):
            messages.append(self.messages.get(timeout=TAKE_SECONDS))
            while True:
                messages.append(self.messages.get_nowait())
        return messages

    def stop(self) -> None:
        self.stopped = True

    def _run(self, order: Order) -> None:
        context: Any = importlib.import_module("ray").get_runtime_context()
        address = importlib.import_module("ray.util").get_node_ip_address()
        self.messages.put({"node": f"{address} ({context.get_node_id()[:8]})"})
        try:
            for message in supervise(order, self._should_stop):
                if message:
                    self.messages.put(message)
        except Exception as error:
            self.messages.put({"broken": f"{type(error).__name__}: {error}"})

    def _should_stop(self) -> bool:
        return self.stopped or time.monotonic() - self.asked_at > SILENCE_SECONDS


def run_in_container() -> None:
    """Run an order that stdin has, as the first process of a container. Messages go to stdout, each behind its length;
    SIGTERM stops the function."""
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    order = pickle.load(sys.stdin.buffer)
    with open(os.dup(1), "wb") as output:
        os.dup2(2, 1)

        def send(message: Message) -> None:
            content = pickle.dumps(message)
            output.write(len(content).to_bytes(8) + content)
            output.flush()

        send({"node": os.uname().nodename})
        for message in supervise(order, lambda: bool(signals)):
            if message:
                send(message)
