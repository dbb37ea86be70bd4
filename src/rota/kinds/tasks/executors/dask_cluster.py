"""Runs functions on a Dask cluster. A worker has one client, opened by its first run there."""

import asyncio
import importlib
import pickle
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rota.core.errors import LogicError, TransientError, WorkError
from rota.engine.runner import RunContext
from rota.kinds.tasks.executors.functions import missing_extra
from rota.kinds.tasks.executors.node_code import node_function
from rota.kinds.tasks.executors.port import PICKUP_SECONDS, RemoteRun, uninterrupted

CONNECT_SECONDS = 10.0
CANCEL_SECONDS = 5.0  # until the scheduler must have accepted a cancellation


class DaskCluster:
    """The cluster of a Dask scheduler."""

    def __init__(self, address: str) -> None:
        self.address, self.label = address, f"the Dask cluster at {address}"
        self.runs: dict[str, RemoteRun] = {}
        self._client: Any = None
        self._opening = asyncio.Lock()

    async def run(self, ctx: RunContext, order: Mapping[str, Any]) -> object:
        client = await self.client()
        run = self.runs[ctx.run_id] = RemoteRun(ctx, self.label)
        try:
            future = client.submit(
                node_function("run_on_dask"),
                pickle.dumps(order),  # as one object: Dask logs what it cannot serialise
                self.topic(client),
                key=order["key"],
                pure=False,
                retries=0,
            )
            ctx.log.line("system", f"sent to {self.label}")
            work = asyncio.ensure_future(self.result(run, future))
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:
                if not work.done():
                    await uninterrupted(self.stop(run, future))
                    work.cancel()
                    raise
            finally:
                await self.forget(client, order["key"])
            return await run.end(work.result(), order["result_limit"])
        finally:
            del self.runs[ctx.run_id]

    async def result(self, run: RemoteRun, future: Any) -> Mapping[str, Any]:
        """Return what the node returns. Raises TransientError if the cluster or the node is lost."""
        dask = importlib.import_module("distributed")
        try:
            ended: Mapping[str, Any] = await future.result()
        except dask.scheduler.KilledWorker as error:
            raise run.lost() from error
        except (dask.client.FutureCancelledError, OSError) as error:  # TimeoutError is an OSError
            raise TransientError(f"{self.label} was lost while it ran: {error}") from error
        except Exception as error:
            raise WorkError(f"{self.label} could not run the function: {type(error).__name__}: {error}") from error
        await run.wait_for_messages(ended.get("sent", 0))
        return ended

    async def stop(self, run: RemoteRun, future: Any) -> None:
        """Cancel the task, and wait until its node has stopped the function. A cluster that is lost stops it itself."""
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await future.cancel(force=True)
        except (OSError, RuntimeError) as error:  # TimeoutError is an OSError
            run.ctx.log.line("system", f"{self.label} did not accept the cancellation: {error}")
        await run.wait_for_stop(PICKUP_SECONDS)

    async def forget(self, client: Any, key: str) -> None:
        """Delete the mark of the start, which the scheduler keeps."""
        with suppress(OSError, RuntimeError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await importlib.import_module("distributed").Event(key, client=client).clear()

    async def client(self) -> Any:
        """Return the connected client. Raises TransientError if the scheduler cannot be reached, LogicError without
        the extra."""
        async with self._opening:
            if self._client is None or self._client.status != "running":
                await self.close()
                self._client = await self.connect()
            return self._client

    async def connect(self) -> Any:
        try:
            dask = await asyncio.to_thread(importlib.import_module, "distributed")  # it takes a while
        except ImportError as error:
            raise LogicError(f"executor 'dask' {missing_extra('dask')}") from error
        client = dask.Client(
            self.address, asynchronous=True, timeout=CONNECT_SECONDS, set_as_default=False, name="rota"
        )
        try:
            await client
        except Exception as error:  # of any class: its transports have their own
            with suppress(Exception):
                await client.close(timeout=1)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise TransientError(f"{self.label} cannot be reached: {reason}") from error
        client.subscribe_topic(self.topic(client), self.receive)
        return client

    def topic(self, client: Any) -> str:
        return f"rota-{client.id}"

    def receive(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Pass a message of a node to its run; those of runs that have ended are dropped."""
        _, message = event
        run = self.runs.get(message["run_id"])
        if run is not None:
            run.receive(message)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(OSError, RuntimeError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    await client.close(timeout=1)
