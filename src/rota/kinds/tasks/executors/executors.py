"""The executors of a process: which are configured, and the checks of tasks that name one."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rota.core.errors import Invalid, LogicError, together
from rota.engine.runner import RunContext
from rota.kinds.tasks.executors.container_options import Container
from rota.kinds.tasks.executors.containers import Containers, engine_words
from rota.kinds.tasks.executors.dask_cluster import DaskCluster
from rota.kinds.tasks.executors.functions import RemoteCall, make_order
from rota.kinds.tasks.executors.kubernetes_access import find_access
from rota.kinds.tasks.executors.port import ClusterExecutor
from rota.kinds.tasks.executors.ray_cluster import RayCluster
from rota.kinds.tasks.executors.settings import ExecutorSettings

if TYPE_CHECKING:
    from rota.kinds.tasks.executors.kubernetes import Kubernetes

CLUSTERS: dict[str, Callable[[str], ClusterExecutor]] = {"dask": DaskCluster, "ray": RayCluster}
ADDRESSES: dict[str, Callable[[ExecutorSettings], str]] = {
    "dask": lambda settings: settings.dask_address,
    "ray": lambda settings: settings.ray_address,
}


class Executors:
    """The clusters of a process, connected when they are first used, and its containers."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self.settings = settings
        self._clusters: dict[str, ClusterExecutor] = {}
        self._kubernetes: Kubernetes | None = None

    async def run(self, ctx: RunContext, call: RemoteCall, artifact_limit: int) -> object:
        """Run a function where its executor does; see `ClusterExecutor.run`."""
        executor = self.containers() if call.executor == "container" else self.cluster(call.executor)
        order = await asyncio.to_thread(make_order, ctx, call, artifact_limit)
        return await executor.run(ctx, order)

    async def run_command(self, ctx: RunContext, container: Container, command: str, stdin: bytes) -> object:
        """Run a command in a container of this machine or of Kubernetes; see their `run_command`."""
        executor = self.containers() if container.place == "container" else await self.kubernetes()
        return await executor.run_command(ctx, container, command, stdin)

    async def kubernetes(self) -> "Kubernetes":
        if self._kubernetes is None:
            from rota.kinds.tasks.executors.kubernetes import Kubernetes  # imported here: httpx takes long to load

            self._kubernetes = await asyncio.to_thread(Kubernetes, self.settings.kubernetes_config)
        return self._kubernetes

    def containers(self) -> Containers:
        return Containers(self.settings.container_command)

    def cluster(self, executor: str) -> ClusterExecutor:
        """Return the cluster of an executor. Raises LogicError if no address is set."""
        if executor not in self._clusters:
            address = ADDRESSES[executor](self.settings)
            if not address:
                raise LogicError(f"executor {executor!r} {unset(executor)}")
            self._clusters[executor] = CLUSTERS[executor](address)
        return self._clusters[executor]

    def check(self, used: Mapping[str, str]) -> None:
        """Raises Invalid, with all errors, for tasks whose executor is not configured here; `used` are the executors
        by the names of tasks."""
        wrong = [
            Invalid("executor", executor, f"of task {name!r} {reason}")
            for name, executor in used.items()
            if (reason := self.missing(executor))
        ]
        if wrong:
            raise together(wrong)

    def missing(self, executor: str) -> str:
        """Return what an executor needs and does not have here; empty if nothing."""
        if executor in ADDRESSES:
            return "" if ADDRESSES[executor](self.settings) else unset(executor)
        try:
            if executor == "container":
                engine_words(self.settings.container_command)
            else:
                find_access(self.settings.kubernetes_config)
        except LogicError as error:
            return f"cannot run: {error.message}"
        return ""

    async def close(self) -> None:
        for cluster in self._clusters.values():
            await cluster.close()
        if self._kubernetes is not None:
            await self._kubernetes.close()


def unset(executor: str) -> str:
    return f"has no address: set ROTA_{executor.upper()}_ADDRESS for the workers"
