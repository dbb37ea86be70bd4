"""A graph run under a grant: admitted, listened to, charged unit by unit, and kept.

GRANT_NOT_SESSION and BILLING_VIA_GRANT: who may, who pays and for whom models are called all follow from the grant, as
it stands when the run begins.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from math import ceil
from typing import Any, TypeVar

import orjson
import structlog

from rota.billing import store as billing_store
from rota.core.errors import Conflict, NotFound, WorkError
from rota.core.policy import Billing, Failure, FailureClass, classify
from rota.core.redact import redacted
from rota.db.dialect import Tx
from rota.db.retry import retry_until_available
from rota.engine import billing_accounts, grants
from rota.engine.commands import Engine
from rota.engine.runner import Canceled, RunLog, Skipped, StopFlag, WorkFailed, storable
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

TEXT, TOOL = "text", "tool"  # streams of a run's log
ACCOUNT_CLOSED = "billing_account_closed"
CLASSES = {
    Code.RATE_LIMIT: FailureClass.TRANSIENT,
    Code.TIMEOUT: FailureClass.TIMEOUT,
    Code.INVALID_REQUEST: FailureClass.LOGIC,
    Code.NOT_FOUND: FailureClass.LOGIC,
    Code.INTERNAL: FailureClass.INTERNAL,
    Code.INSUFFICIENT_CREDITS: FailureClass.BUDGET,
}

log = structlog.get_logger("rota.graphs")


@dataclass(frozen=True, slots=True)
class Order:
    """A run that is wanted."""

    org_id: str
    graph_id: str
    input: Mapping[str, Any]
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
class Used:
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

    def told(self) -> dict[str, Any]:
        return {
            "units": len(self.units), "input_tokens": self.input_tokens, "output_tokens": self.output_tokens,
            "cost_usd": str(self.cost_usd), "credits": self.credits,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kept:
    """What a graph said in the end, and where it is kept."""

    content: str
    artifact_id: str


class Execution:
    """Runs graphs through one port. Raises Skipped where a run may not begin, and how it failed where it did."""

    def __init__(self, engine: Engine, graphs: GraphExecutor) -> None:
        self.engine, self.graphs = engine, graphs

    async def run(self, order: Order, run_log: RunLog, tell: Callable[[dict[str, Any]], None]) -> Kept:
        """`tell` hears what was used, whenever that grows."""
        tracing = self.engine.tracing
        if tracing is None:
            return await self.perform(order, run_log, tell)
        known = {"run_id": order.run_id, "attempt": order.attempt, "grant_id": order.grant_id}
        with tracing.span(f"graph {order.graph_id}", order.trace, known):
            return await self.perform(order, run_log, tell)

    async def perform(self, order: Order, run_log: RunLog, tell: Callable[[dict[str, Any]], None]) -> Kept:
        caller = await retry_until_available(lambda: self.engine.db.read(self.admit, order))
        request = GraphRequest(order.graph_id, order.input, order.run_id, order.attempt, caller, order.canceled)
        stream, ending = self.graphs.run_graph(request)
        used = Used()
        try:
            async for event in stream:
                if isinstance(event, UsageReport):
                    spent = await self.charge(order, caller, event, used)
                    tell(used.told())
                    if spent is not None:
                        order.canceled.set()
                        raise WorkFailed(spent_failure(spent))
                else:
                    write(run_log, event)
        finally:
            await close(stream, order)
        final = await ending
        if not final.ok:
            raise failure_of(final)
        return await self.keep(order, storable(final.content or ""))

    def admit(self, tx: Tx, order: Order) -> LlmCaller:
        """VALIDATE_BEFORE_EXECUTE: the grant is looked at again, here; then its account and its budget."""
        now, settings = self.engine.clock.now(), self.engine.settings
        wrong = grants.trouble(tx, order.org_id, order.grant_id, "graph", [order.graph_id], now)
        if wrong is not None:
            raise Skipped(wrong)
        grant = grants.get(tx, order.org_id, order.grant_id)
        if settings.billing is not Billing.OFF:
            try:
                account = billing_accounts.get(tx, order.org_id, grant.billing_account_id)
            except (NotFound, Conflict) as error:
                raise Skipped("budget", refusal(ACCOUNT_CLOSED, error.message)) from error
            spent = grants.used_up(tx, order.grant_id, now)
            if spent is not None:
                raise Skipped("budget", spent_failure(spent))
            needed = estimate(order.input, settings.markup)
            if settings.billing is Billing.ENFORCE and account.balance_credits < needed:
                text = f"the account has {account.balance_credits} credits where about {needed} are needed"
                raise Skipped("budget", refusal(Code.INSUFFICIENT_CREDITS, text))
        key = billing_store.default_key(tx, grant.billing_account_id)
        return LlmCaller(grant.billing_account_id, key, order.request_id, order.trace_id, grant.owner_id)

    async def charge(self, order: Order, caller: LlmCaller, report: UsageReport, used: Used) -> str | None:
        """IDEMPOTENT_CHARGES: charge a unit before the graph goes on. Returns which budget is used up by now."""
        unit = report.unit
        if unit is None:
            unit = f"missing-{len(used.units) + 1}"
            log.error("a graph reported usage without a unit", run=order.run_id, graph=order.graph_id, unit=unit)
        if report.cost_usd is None and report.input_tokens + report.output_tokens:
            log.error("nobody knows what a model costs; nothing is charged", graph=order.graph_id, model=report.model)
        markup, mode = self.engine.settings.markup, self.engine.settings.billing
        usage = billing_store.Usage(unit, report.model, report.input_tokens, report.output_tokens, report.cost)
        used.add(usage, 0 if mode is Billing.OFF else billing_store.credits_for(usage.cost_usd, markup))
        if mode is Billing.OFF:
            return None
        what = billing_store.Charge(
            order.org_id, caller.billing_account_id, order.grant_id, order.schedule_id, order.graph_id, order.run_id,
            order.attempt,
        )  # fmt: skip
        now = self.engine.clock.now()
        return await surely(
            retry_until_available(lambda: self.engine.db.tx(billing_store.charge, what, usage, markup, now))
        )

    async def keep(self, order: Order, content: str) -> Kept:
        manager = ArtifactManager(self.engine, order.org_id, order.run_id)
        return Kept(content, await retry_until_available(lambda: manager.store(content, None, "content", None)))


def write(run_log: RunLog, event: Event) -> None:
    """What people who follow a run may see; what it costs is not among it."""
    match event:
        case TextDelta(text):
            run_log.speak(TEXT, text)
        case ToolCallStart(call, name, args):
            run_log.line(TOOL, written({"event": "tool_call_start", "id": call, "name": name, "args": redacted(args)}))
        case ToolCallResult(call, result, is_error):
            told = {"event": "tool_call_result", "id": call, "result": redacted(result), "is_error": is_error}
            run_log.line(TOOL, written(told))
        case _:
            pass  # the end is told by the run itself


def written(value: Any) -> str:
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:  # half a surrogate pair, keys that are no text
        return repr(value)


async def close(stream: Stream, order: Order) -> None:
    """Stop a graph that may still be in the middle; it has the grace to clean up."""
    try:
        async with asyncio.timeout(order.grace.total_seconds()):
            await stream.aclose()
    except TimeoutError:
        log.error("a graph does not stop", run=order.run_id, graph=order.graph_id)


def failure_of(final: Final) -> Exception:
    """How a run failed whose graph did not come to its end."""
    if isinstance(final.cause, WorkError):  # it says itself what is to follow
        return final.cause
    code = final.code or Code.INTERNAL
    if code is Code.INTERNAL and final.cause is not None and not isinstance(final.cause, GraphError):
        return WorkFailed(classify(final.cause))  # an exception of the graph's own code, classified as in a task
    if code is Code.ABORTED:
        return Canceled("aborted")
    told = classify(final.cause) if final.cause is not None else Failure(FailureClass.INTERNAL, "GraphFailed", code)
    return WorkFailed(replace(told, failure_class=CLASSES[code], code=code.value))


def refusal(code: str, message: str) -> Failure:
    return Failure(FailureClass.BUDGET, "Refused", message, code=str(code))


def spent_failure(which: str) -> Failure:
    return Failure(FailureClass.BUDGET, "BudgetSpent", f"the grant's budget ({which}) is used up", code="budget")


def estimate(given: Mapping[str, Any], markup: Decimal) -> int:
    """Credits that a run will need at least: its input, a short answer and some overhead, at a low price."""
    tokens = ceil(len(orjson.dumps(given, default=str)) / 4) + 512 + 500
    return billing_store.credits_for(Decimal(tokens) * Decimal("0.002") / 1000, markup)


async def surely(step: Awaitable[T]) -> T:
    """What is under way is brought to its end, also when the run is cancelled meanwhile."""
    task = asyncio.ensure_future(step)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return task.result()
