"""Runs graphs, in this process or through the endpoint of another one. A graph belongs to the org of its program."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from rota.billing import store as billing_store
from rota.core.clock import Clock
from rota.core.errors import Invalid
from rota.core.model import PAYLOAD_LIMIT
from rota.core.parse import Defaults
from rota.core.policy import Misfire
from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.db.retry import retry_until_available
from rota.engine import orgs, workers
from rota.engine.runner import RunContext, Skipped
from rota.kinds.graphs.execution import Execution, Kept, Order
from rota.kinds.graphs.registry import GraphRegistry, read_graph_id
from rota.user_code import processes

if TYPE_CHECKING:
    from rota.kinds.graphs.remote import Remote


class GraphRunner:
    kind = "graph"
    defaults = Defaults(misfire=Misfire.SKIP)  # catching up on work that costs money needs somebody's consent
    under_grant = True

    def __init__(
        self, registry: GraphRegistry, db: Database, clock: Clock, org: str = "default", remote: "Remote | None" = None,
        app: str | None = None,
    ) -> None:  # fmt: skip
        self.registry, self.db, self.clock, self.org, self.remote, self.app = registry, db, clock, org, remote, app

    def routes(self) -> Collection[str]:
        known = {*self.registry.graphs, *(self.remote.graphs if self.remote else ())}
        return {route_of(self.org, graph_id) for graph_id in known}

    async def resolve(self, org_id: str, target: str, payload: Any) -> str:
        graph_id = read_graph_id(target, "target")
        read_input(payload, "input")
        route = route_of(await self.db.read(orgs.slug_of, org_id), graph_id)
        if route not in self.routes() and route not in await self.db.read(workers.live_routes, self.clock.now()):
            raise Invalid("target", target, "is not a known graph; `rota graph list` shows those there are")
        return route

    def known_as(self, tx: Tx, org_id: str, target: str, payload: Any) -> Collection[str]:  # noqa: ARG002
        return {target}

    async def prepare(self, ctx: RunContext) -> None:
        graph, info = self.registry.graphs.get(ctx.job.target), ctx.info
        info.name, info.version = ctx.job.target, graph.version if graph else None
        info.trace_id = ctx.job.traceparent[3:35]
        info.marks_first = True

    async def execute(self, ctx: RunContext) -> Any:
        job = ctx.job
        if job.terms.grant_id is None:
            raise Skipped("grant_not_found")
        order = Order(
            ctx.org_id, job.target, read_input(job.payload, "input"), job.terms.grant_id, ctx.run_id, ctx.attempt,
            trace_of(ctx), job.id, job.schedule_id, ctx.canceled, ctx.cancel_grace,
        )  # fmt: skip

        outcome = await self.perform(ctx, order)
        # what has begun may finish; the ledger tells if its authority ended meanwhile
        ctx.info.reason = await retry_until_available(lambda: ctx.engine.trouble_with_grant(job, job.target))
        return outcome

    async def perform(self, ctx: RunContext, order: Order) -> Any:
        def tell(usage: dict[str, Any]) -> None:
            ctx.info.usage = usage

        if ctx.isolated and self.remote is None and self.app is not None:
            return await self.run_child(ctx, self.app, order)
        if self.remote is not None:
            kept = await self.remote.run(ctx, order, tell)
        else:
            kept = await Execution(ctx.engine, self.registry).run(order, ctx.log, tell)
        ctx.info.artifact_id = kept.artifact_id
        return outcome_of(kept)

    async def run_child(self, ctx: RunContext, app: str, order: Order) -> Any:
        """A graph that crashed a worker before has a process to itself."""
        told = {
            "app": app, "graph": order.graph_id, "payload": dict(order.input), "grant_id": order.grant_id,
            "schedule_id": order.schedule_id, "trace": order.trace,
        }  # fmt: skip
        try:
            answer = await processes.ask_child(ctx, told)
        finally:
            ctx.info.usage = await retry_until_available(
                lambda: self.db.read(billing_store.used_by, order.org_id, order.run_id)
            )
        ctx.info.artifact_id = answer["artifact_id"]
        return answer["outcome"]


def outcome_of(kept: Kept) -> dict[str, Any]:
    """What the ledger keeps; a long text is in its artifact alone."""
    short = len(kept.content) <= PAYLOAD_LIMIT // 8  # JSON may write a character in six, and needs room around it
    return {"content": kept.content if short else None, "artifact_id": kept.artifact_id}


def read_input(value: Any, field: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Invalid(field, value, "is not an object")
    return value


def route_of(org: str, graph_id: str) -> str:
    return f"graph:{org}:{graph_id}"


def graph_of(route: str, org: str) -> str | None:
    """The graph that a route leads to, if it is one of this org."""
    prefix = route_of(org, "")
    return route.removeprefix(prefix) if route.startswith(prefix) else None


def trace_of(ctx: RunContext) -> str:
    """Below which span the graph's is: the run's, where there are any."""
    return ctx.engine.current_trace() or ctx.job.traceparent
