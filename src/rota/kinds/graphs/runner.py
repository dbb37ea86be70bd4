"""Runs graphs in this process, in a child process, or through the endpoint of another service."""

import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from rota.billing import store as billing_store
from rota.core.clock import Clock
from rota.core.errors import Invalid
from rota.core.kinds import KindTraits, register
from rota.core.model import PAYLOAD_LIMIT
from rota.core.policy import Misfire
from rota.core.schedule_form import Defaults
from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.db.retry import retry_until_available
from rota.engine import orgs, workers
from rota.engine.runner import RunContext, Skipped, Work
from rota.kinds.graphs.execution import Execution, GraphOrder, GraphResult
from rota.kinds.graphs.registry import GraphRegistry, read_graph_id
from rota.user_code import processes

if TYPE_CHECKING:
    from rota.kinds.graphs.remote import Remote


class GraphRunner:
    """The Runner of kind `graph`. A graph belongs to the org of its program."""

    kind = "graph"
    defaults = Defaults(misfire=Misfire.SKIP)  # catching up costs money: only if a schedule asks for it
    under_grant = True
    traits = register(
        kind,
        KindTraits(
            grant_action="execute",
            grant_resource=re.compile(r"[a-z][a-z0-9_-]*:(\*|[^\s:*][^\s*]*)"),  # `provider:name` or `provider:*`
        ),
    )

    def __init__(
        self, registry: GraphRegistry, db: Database, clock: Clock, org: str = "default", remote: "Remote | None" = None,
        app: str | None = None,
    ) -> None:  # fmt: skip
        self.registry, self.db, self.clock, self.org, self.remote, self.app = registry, db, clock, org, remote, app

    def routes(self) -> Collection[str]:
        graph_ids = {*self.registry.graphs, *(self.remote.graphs if self.remote else ())}
        return {route_of(self.org, graph_id) for graph_id in graph_ids}

    async def resolve(self, org_id: str, target: str, payload: object) -> str:
        graph_id = read_graph_id(target, "target")
        read_input(payload, "input")
        route = route_of(await self.db.read(orgs.slug_of, org_id), graph_id)
        if route not in self.routes() and route not in await self.db.read(workers.live_routes, self.clock.now()):
            raise Invalid("target", target, "is not a known graph; see `rota graph list`")
        return route

    def known_as(self, tx: Tx, org_id: str, target: str, payload: object) -> Collection[str]:  # noqa: ARG002
        return {target}

    async def prepare(self, ctx: RunContext) -> Work:
        graph, info = self.registry.graphs.get(ctx.job.target), ctx.info
        info.name, info.version = ctx.job.target, graph.version if graph else None
        info.trace_id = ctx.job.traceparent[3:35]
        info.marks_first = True
        info.checks_grant = self.runs_here(ctx)
        return partial(self.execute, ctx)

    def runs_here(self, ctx: RunContext) -> bool:
        """Whether a run is executed in this process."""
        return self.remote is None and not (ctx.isolated and self.app is not None)

    async def execute(self, ctx: RunContext) -> object:
        job = ctx.job
        if job.terms.grant_id is None:
            raise Skipped("grant_not_found")
        order = GraphOrder(
            org_id=ctx.org_id,
            graph_id=job.target,
            input=read_input(job.payload, "input"),
            grant_id=job.terms.grant_id,
            run_id=ctx.run_id,
            attempt=ctx.attempt,
            trace=trace_of(ctx),
            request_id=job.id,
            schedule_id=job.schedule_id,
            canceled=ctx.canceled,
            grace=ctx.cancel_grace,
        )
        outcome = await self.run(ctx, order)
        # a started run may finish; its reason records that the grant ended in between
        ctx.info.reason = await retry_until_available(lambda: ctx.engine.trouble_with_grant(job, job.target))
        return outcome

    async def run(self, ctx: RunContext, order: GraphOrder) -> object:
        def on_usage(usage: dict[str, object]) -> None:
            ctx.info.usage = usage

        if self.runs_here(ctx):
            result = await Execution(ctx.engine, self.registry).run(order, ctx.log, on_usage)
        elif self.remote is not None:
            result = await self.remote.run(ctx, order, on_usage)
        else:
            return await self.run_child(ctx, order)
        ctx.info.artifact_id = result.artifact_id
        return outcome_of(result)

    async def run_child(self, ctx: RunContext, order: GraphOrder) -> object:
        """Run a graph that may have crashed a worker in a process of its own."""
        child_order: processes.ProgramOrder = {
            "app": self.app,
            "graph": order.graph_id,
            "payload": dict(order.input),
            "grant_id": order.grant_id,
            "schedule_id": order.schedule_id,
            "trace": order.trace,
        }
        try:
            answer = await processes.ask_child(ctx, child_order)
        finally:
            ctx.info.usage = await retry_until_available(
                lambda: self.db.read(billing_store.used_by, order.org_id, order.run_id)
            )
        ctx.info.artifact_id = answer["artifact_id"]
        return answer["outcome"]


def outcome_of(result: GraphResult) -> dict[str, object]:
    """Return the outcome of a run; a long content is only in its artifact."""
    short = len(result.content) <= PAYLOAD_LIMIT // 8  # JSON may escape a character as six bytes
    return {"content": result.content if short else None, "artifact_id": result.artifact_id}


def read_input(value: object, field: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Invalid(field, value, "is not an object")
    return value


def route_of(org: str, graph_id: str) -> str:
    return f"graph:{org}:{graph_id}"


def graph_of(route: str, org: str) -> str | None:
    """Return the graph id of a route; None if it is not a graph of this org."""
    prefix = route_of(org, "")
    return route.removeprefix(prefix) if route.startswith(prefix) else None


def trace_of(ctx: RunContext) -> str:
    """Return the parent of the graph's span: the run's span, or without tracing the job's."""
    return ctx.engine.current_trace() or ctx.job.traceparent
