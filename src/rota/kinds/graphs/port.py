"""The port of graph executors: the request, the events of the stream, and the final result.

`run_graph(request)` returns at once; reading the stream drives the run. The stream never raises, yields exactly one
`Done`, and `final` always resolves, whatever the graph does. Closing the stream stops the graph.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import structlog

from rota.engine.runner import StopFlag

NAME_CHARACTERS = 200  # of a unit, a model, a tool
MAX_TOKENS = 2**53  # of one report
MAX_COST_USD = Decimal(1_000_000)  # of one report

log = structlog.get_logger("rota.graphs")


class Code(StrEnum):
    """Why a graph failed."""

    INVALID_REQUEST = "invalid_request"
    NOT_FOUND = "not_found"
    TIMEOUT = "timeout"
    ABORTED = "aborted"
    RATE_LIMIT = "rate_limit"
    INTERNAL = "internal"
    INSUFFICIENT_CREDITS = "insufficient_credits"


class GraphError(Exception):
    """Raised by a graph to fail with a code."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = Code(code)


# the request


@dataclass(frozen=True, slots=True)
class LlmCaller:
    """On whose behalf models are called: from the grant of the run, never from a login session."""

    billing_account_id: str
    virtual_key_id: str
    request_id: str
    trace_id: str
    user_id: str


@dataclass(frozen=True, slots=True)
class GraphRequest:
    """A run of a graph, as its code sees it."""

    graph_id: str
    input: Mapping[str, object]
    run_id: str
    attempt: int
    caller: LlmCaller
    canceled: StopFlag = field(default_factory=StopFlag)  # set to stop the graph


# events


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    tool_call_id: str
    tool_name: str
    args: object = None


@dataclass(frozen=True, slots=True)
class ToolCallResult:
    tool_call_id: str
    result: object = None
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Usage of one call of a model. `unit` names the call within its run: repeated, it is charged once."""

    unit: str | None
    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal | float | int | str | None = None  # None: unknown

    @property
    def cost(self) -> Decimal:
        return Decimal(str(self.cost_usd or 0))


@dataclass(frozen=True, slots=True)
class AssistantFinal:
    content: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The graph failed; only the code, because messages may hold secrets."""

    code: Code


@dataclass(frozen=True, slots=True)
class Done:
    """The last event."""


Event = TextDelta | ToolCallStart | ToolCallResult | UsageReport | AssistantFinal | Failed | Done


@dataclass(frozen=True, slots=True)
class Final:
    ok: bool
    run_id: str
    content: str | None = None
    code: Code | None = None
    cause: BaseException | None = None


class GraphRun(NamedTuple):
    stream: "Stream"
    final: Awaitable[Final]


class GraphExecutor(Protocol):
    def run_graph(self, request: GraphRequest) -> GraphRun: ...


# the stream


class Stream:
    """The validated events of a graph. Closing it stops the graph, and resolves `final`."""

    def __init__(self, open_events: Callable[[], AsyncIterator[object]], run_id: str) -> None:
        self.final: asyncio.Future[Final] = asyncio.get_running_loop().create_future()
        self._run_id = run_id
        self._closing = False
        self._events = self._validated(open_events)

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def aclose(self) -> None:
        self._closing = True
        try:
            await self._events.aclose()
        finally:
            self._end(False, code=Code.ABORTED)

    async def _validated(self, open_events: Callable[[], AsyncIterator[object]]) -> AsyncGenerator[Event]:
        texts: list[str] = []
        content: str | None = None
        done, error = False, None
        try:
            async with contextlib.aclosing(closable(open_events())) as events:
                async for event in events:
                    valid = check_event(event)
                    if done:
                        raise GraphError(Code.INTERNAL, f"the graph yielded {event!r:.80} after Done")
                    if isinstance(valid, Done):
                        done = True
                        continue
                    if isinstance(valid, TextDelta):
                        texts.append(valid.text)
                    elif isinstance(valid, AssistantFinal):
                        if content is not None:
                            raise GraphError(Code.INTERNAL, "the graph yielded AssistantFinal twice")
                        content = valid.content
                    yield valid
        except (Exception, asyncio.CancelledError) as failed:
            if self._closing:
                log.warning("graph failed while it was being stopped", run=self._run_id, error=repr(failed))
                return
            if is_canceled():  # the reader is canceled, not only the graph
                self._end(False, code=Code.ABORTED)
                raise asyncio.CancelledError from failed
            error = failed
        if error is not None:
            code = code_of_error(error)
            self._end(False, content, code, error)
            yield Failed(code)
        else:
            if content is None:
                content = "".join(texts)
                yield AssistantFinal(content)
            self._end(True, content)
        yield Done()

    def _end(
        self, ok: bool, content: str | None = None, code: Code | None = None, cause: BaseException | None = None
    ) -> None:
        if not self.final.done():
            self.final.set_result(Final(ok, self._run_id, content, code, cause))


def is_canceled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def closable(events: Any) -> AsyncGenerator[object]:
    """Return the graph's stream of events. Raises GraphError if it returned something else."""
    if not hasattr(events, "__anext__") or not hasattr(events, "aclose"):
        if hasattr(events, "close"):
            events.close()  # a coroutine that is never awaited
        raise GraphError(Code.INTERNAL, f"the graph returned a {type(events).__name__}; it must yield events")
    return events  # type: ignore[no-any-return]


def check_event(event: object) -> Event:
    """Return a valid event. Raises GraphError for `Failed`, and for anything that is not an event."""
    match event:
        case TextDelta(text=str()) | AssistantFinal(content=str()) | Done():
            return event
        case ToolCallStart(tool_call_id=str(), tool_name=str()) | ToolCallResult(tool_call_id=str()):
            return event
        case UsageReport(unit, model, input_tokens, output_tokens) if (
            is_name(unit) and is_name(model) and is_count(input_tokens) and is_count(output_tokens) and is_cost(event)
        ):
            return event
        case Failed(code=Code() as code):
            raise GraphError(code)
        case _:
            raise GraphError(Code.INTERNAL, f"the graph yielded something that is not an event: {event!r:.200}")


def is_name(name: object) -> bool:
    return name is None or (isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS)


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS


def is_cost(report: UsageReport) -> bool:
    try:
        return bool(0 <= report.cost <= MAX_COST_USD)
    except InvalidOperation:  # not a number, or NaN
        return False


def code_of_error(error: BaseException) -> Code:
    """Return the code of an exception: aborted, its own `code`, its HTTP status, else internal."""
    if isinstance(error, asyncio.CancelledError):
        return Code.ABORTED
    code = getattr(error, "code", None)
    if isinstance(code, str) and code in Code._value2member_map_:
        return Code(code)
    response = getattr(error, "response", None)
    statuses = (
        getattr(error, "status_code", None),
        getattr(error, "status", None),
        getattr(response, "status_code", None),
    )
    if 429 in statuses:
        return Code.RATE_LIMIT
    return Code.TIMEOUT if 408 in statuses else Code.INTERNAL
