"""The executors of a process: which are configured, and the checks of tasks that name one."""

from collections.abc import Callable, Mapping

from rota.core.errors import Invalid, LogicError, together
from rota.engine.runner import RunContext
from rota.kinds.tasks.executors.dask_cluster import DaskCluster
from rota.kinds.tasks.executors.functions import RemoteCall, make_order
from rota.kinds.tasks.executors.port import ClusterExecutor
from rota.kinds.tasks.executors.settings import ExecutorSettings

CLUSTERS: dict[str, Callable[[str], ClusterExecutor]] = {"dask": DaskCluster}  # of functions
ADDRESSES: dict[str, Callable[[ExecutorSettings], str]] = {"dask": lambda settings: settings.dask_address}


class Executors:
    """The clusters of a process; connected when they are first used."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self.settings = settings
        self._clusters: dict[str, ClusterExecutor] = {}

    async def run(self, ctx: RunContext, call: RemoteCall, artifact_limit: int) -> object:
        """Run a function on the cluster of its executor; see `ClusterExecutor.run`."""
        cluster = self.cluster(call.executor)
        order = make_order(ctx, call, artifact_limit)
        return await cluster.run(ctx, order)

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
            Invalid("executor", executor, f"of task {name!r} {unset(executor)}")
            for name, executor in used.items()
            if executor in ADDRESSES and not ADDRESSES[executor](self.settings)
        ]
        if wrong:
            raise together(wrong)

    async def close(self) -> None:
        for cluster in self._clusters.values():
            await cluster.close()


def unset(executor: str) -> str:
    return f"has no address: set ROTA_{executor.upper()}_ADDRESS for the workers"
