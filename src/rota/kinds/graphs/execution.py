"""Runs a graph under a grant: admit it, log its events, charge each unit, save its content.

GRANT_NOT_SESSION and BILLING_VIA_GRANT: permission, billing account and caller of models follow from the grant, as it
is when the run begins.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from math import ceil
from typing import TypeVar

import orjson
import structlog

from rota.billing import store as billing_store
from rota.core.errors import WorkError
from rota.core.policy import Billing, Failure, FailureClass, classify
from rota.core.redact import redacted
from rota.db.dialect import Tx
from rota.db.retry import retry_until_available
from rota.engine.authority import check_may_begin, spent_failure
from rota.engine.commands import Engine
from rota.engine.runner import Canceled, RunLog, StopFlag, WorkFailed, storable
from rota.kinds.graphs.port import (
    Code,
    Event,
    Final,
    GraphError,
    GraphExecutor,
    GraphRequest,
    LlmCaller,
    Stream,
    TextDelta,
    ToolCallResult,
    ToolCallStart,
    UsageReport,
)
from rota.user_code.services import ArtifactManager

T = TypeVar("T")

TEXT_STREAM, TOOL_STREAM = "text", "tool"  # of a run's log
FAILURE_CLASSES = {
    Code.RATE_LIMIT: FailureClass.TRANSIENT,
    Code.TIMEOUT: FailureClass.TIMEOUT,
    Code.INVALID_REQUEST: FailureClass.LOGIC,
    Code.NOT_FOUND: FailureClass.LOGIC,
    Code.INTERNAL: FailureClass.INTERNAL,
    Code.INSUFFICIENT_CREDITS: FailureClass.BUDGET,
}

log = structlog.get_logger("rota.graphs")


@dataclass(frozen=True, slots=True)
class GraphOrder:
    """A run of a graph to be executed."""

    org_id: str
    graph_id: str
    input: Mapping[str, object]
    grant_id: str
    run_id: str
    attempt: int
    trace: str  # a `traceparent`
    request_id: str
    schedule_id: str | None = None
    canceled: StopFlag = field(default_factory=StopFlag)
    grace: timedelta = timedelta(seconds=10)

    @property
    def trace_id(self) -> str:
        return self.trace[3:35]


@dataclass(slots=True)
class UsageTotals:
    """What a run has used so far."""

    units: set[str] = field(default_factory=set)
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal = Decimal(0)
    credits: int = 0

    def add(self, usage: billing_store.Usage, price: int) -> None:
        if usage.unit not in self.units:
            self.units.add(usage.unit)
            self.input_tokens += usage.input_tokens
            self.output_tokens += usage.output_tokens
            self.cost_usd += usage.cost_usd
            self.credits += price

    def dump(self) -> dict[str, object]:
        return {
            "units": len(self.units),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost_usd": str(self.cost_usd),
            "credits": self.credits,
        }


@dataclass(frozen=True, slots=True)
class GraphResult:
    """The final content of a graph, and its artifact."""

    content: str
    artifact_id: str


class Execution:
    """Runs graphs through one port. Raises Skipped where a run may not begin, WorkFailed or Canceled where it fails."""

    def __init__(self, engine: Engine, graphs: GraphExecutor) -> None:
        self.engine, self.graphs = engine, graphs

    async def run(
        self, order: GraphOrder, run_log: RunLog, on_usage: Callable[[dict[str, object]], None]
    ) -> GraphResult:
        """Run a graph; calls `on_usage` with the totals after each unit."""
        tracing = self.engine.tracing
        if tracing is None:
            return await self.execute(order, run_log, on_usage)
        attributes: dict[str, str | int] = {
            "run_id": order.run_id,
            "attempt": order.attempt,
            "grant_id": order.grant_id,
        }
        with tracing.span(f"graph {order.graph_id}", order.trace, attributes):
            return await self.execute(order, run_log, on_usage)

    async def execute(
        self, order: GraphOrder, run_log: RunLog, on_usage: Callable[[dict[str, object]], None]
    ) -> GraphResult:
        caller = await retry_until_available(lambda: self.engine.db.read(self.admit, order))
        request = GraphRequest(order.graph_id, order.input, order.run_id, order.attempt, caller, order.canceled)
        stream, ending = self.graphs.run_graph(request)
        used = UsageTotals()
        try:
            async for event in stream:
                if isinstance(event, UsageReport):
                    spent = await self.charge(order, caller, event, used)
                    on_usage(used.dump())
                    if spent is not None:
                        order.canceled.set()
                        raise WorkFailed(spent_failure(spent))
                else:
                    log_event(run_log, event)
        finally:
            await stop_graph(stream, order)
        final = await ending
        if not final.ok:
            raise failure_of(final)
        return await self.save_content(order, storable(final.content or ""))

    def admit(self, tx: Tx, order: GraphOrder) -> LlmCaller:
        """VALIDATE_BEFORE_EXECUTE: check the grant, its account and its budget. Raises Skipped."""
        now, settings, targets = self.engine.clock.now(), self.engine.settings, [order.graph_id]
        needed = estimate(order.input, settings.markup)
        authority = check_may_begin(tx, order.org_id, order.grant_id, "graph", targets, settings.billing, now, needed)
        assert authority.key_id is not None
        grant = authority.grant
        return LlmCaller(grant.billing_account_id, authority.key_id, order.request_id, order.trace_id, grant.owner_id)

    async def charge(self, order: GraphOrder, caller: LlmCaller, report: UsageReport, used: UsageTotals) -> str | None:
        """IDEMPOTENT_CHARGES: charge a unit before the graph goes on. Returns the budget that is now used up, or
        None."""
        unit = report.unit
        if unit is None:
            unit = f"missing-{len(used.units) + 1}"
            log.error("a graph reported usage without a unit", run=order.run_id, graph=order.graph_id, unit=unit)
        if report.cost_usd is None and report.input_tokens + report.output_tokens:
            log.error("usage without a price; nothing is charged", graph=order.graph_id, model=report.model)
        markup, mode = self.engine.settings.markup, self.engine.settings.billing
        usage = billing_store.Usage(unit, report.model, report.input_tokens, report.output_tokens, report.cost)
        used.add(usage, 0 if mode is Billing.OFF else billing_store.credits_for(usage.cost_usd, markup))
        if mode is Billing.OFF:
            return None
        charge = billing_store.Charge(
            order.org_id,
            caller.billing_account_id,
            order.grant_id,
            order.schedule_id,
            order.graph_id,
            order.run_id,
            order.attempt,
        )
        now = self.engine.clock.now()
        return await finish_despite_cancel(
            retry_until_available(lambda: self.engine.db.tx(billing_store.charge, charge, usage, markup, now))
        )

    async def save_content(self, order: GraphOrder, content: str) -> GraphResult:
        manager = ArtifactManager(self.engine, order.org_id, order.run_id)
        return GraphResult(content, await retry_until_available(lambda: manager.store(content, None, "content", None)))


def log_event(run_log: RunLog, event: Event) -> None:
    """Write an event to the log that people follow; without costs."""
    match event:
        case TextDelta(text):
            run_log.speak(TEXT_STREAM, text)
        case ToolCallStart(call, name, args):
            run_log.line(
                TOOL_STREAM, to_json({"event": "tool_call_start", "id": call, "name": name, "args": redacted(args)})
            )
        case ToolCallResult(call, result, is_error):
            fields = {"event": "tool_call_result", "id": call, "result": redacted(result), "is_error": is_error}
            run_log.line(TOOL_STREAM, to_json(fields))
        case _:
            pass  # the end is in the run itself


def to_json(value: object) -> str:
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:  # half a surrogate pair, or keys that are not text
        return repr(value)


async def stop_graph(stream: Stream, order: GraphOrder) -> None:
    """Close the stream, which stops a graph that still runs; waits for it at most the grace."""
    try:
        async with asyncio.timeout(order.grace.total_seconds()):
            await stream.aclose()
    except TimeoutError:
        log.error("graph did not stop within the grace", run=order.run_id, graph=order.graph_id)


def failure_of(final: Final) -> Exception:
    """Return the exception of a run whose graph failed."""
    if isinstance(final.cause, WorkError):  # its class decides about retries
        return final.cause
    code = final.code or Code.INTERNAL
    if code is Code.INTERNAL and final.cause is not None and not isinstance(final.cause, GraphError):
        return WorkFailed(classify(final.cause))  # an exception of the graph's own code, classified as in a task
    if code is Code.ABORTED:
        return Canceled("aborted")
    failure = classify(final.cause) if final.cause else Failure(FailureClass.INTERNAL, "GraphFailed", code)
    return WorkFailed(replace(failure, failure_class=FAILURE_CLASSES[code], code=code.value))


def estimate(graph_input: Mapping[str, object], markup: Decimal) -> int:
    """Return the credits that a run needs at least: for its input, a short answer and overhead, at a low price."""
    tokens = ceil(len(orjson.dumps(graph_input, default=str)) / 4) + 512 + 500
    return billing_store.credits_for(Decimal(tokens) * Decimal("0.002") / 1000, markup)


async def finish_despite_cancel(step: Awaitable[T]) -> T:
    """Await a step to its end, also when the run is canceled in between; then raises CancelledError."""
    task = asyncio.ensure_future(step)
    canceled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            canceled = True
    if canceled:
        raise asyncio.CancelledError
    return task.result()
