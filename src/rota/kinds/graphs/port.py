"""The port that all graphs run behind: what is asked, what is told meanwhile, and how it ended.

`run_graph(request)` returns at once; reading the stream drives the run. The stream never raises, tells exactly one
`Done`, and `final` always resolves, whatever the graph does. Whoever wants it stopped closes the stream.
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

NAME_LIMIT = 200  # characters of a unit, a model, a tool
MOST_TOKENS = 2**53
MOST_USD = Decimal(1_000_000)

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
    """What a graph raises to say how it failed."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = Code(code)


# what is asked


@dataclass(frozen=True, slots=True)
class LlmCaller:
    """For whom models are called: from the grant that the run has, never from a session."""

    billing_account_id: str
    virtual_key_id: str
    request_id: str
    trace_id: str
    user_id: str


@dataclass(frozen=True, slots=True)
class GraphRequest:
    graph_id: str
    input: Mapping[str, Any]
    run_id: str
    attempt: int
    caller: LlmCaller
    canceled: StopFlag = field(default_factory=StopFlag)  # set when it is to stop


# what is told


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    tool_call_id: str
    tool_name: str
    args: Any = None


@dataclass(frozen=True, slots=True)
class ToolCallResult:
    tool_call_id: str
    result: Any = None
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What one call of a model cost. The unit names the call within its run: told twice, it is charged once."""

    unit: str | None
    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal | float | int | str | None = None  # None: nobody knows

    @property
    def cost(self) -> Decimal:
        return Decimal(str(self.cost_usd or 0))


@dataclass(frozen=True, slots=True)
class AssistantFinal:
    content: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The code and nothing else: what people may see of an error is decided elsewhere."""

    code: Code


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing comes after it."""


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


# how it is kept


class Stream:
    """What a graph tells, made safe. Closing it stops the graph; `final` is resolved by then at the latest."""

    def __init__(self, opened: Callable[[], AsyncIterator[object]], run_id: str) -> None:
        self.final: asyncio.Future[Final] = asyncio.get_running_loop().create_future()
        self._run_id = run_id
        self._closing = False
        self._told = self._tell(opened)

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Event:
        return await anext(self._told)

    async def aclose(self) -> None:
        self._closing = True
        try:
            await self._told.aclose()
        finally:
            self._end(False, code=Code.ABORTED)

    async def _tell(self, opened: Callable[[], AsyncIterator[object]]) -> AsyncGenerator[Event]:
        texts: list[str] = []
        content: str | None = None
        over, error = False, None
        try:
            async with contextlib.aclosing(closable(opened())) as events:
                async for event in events:
                    told = checked(event)
                    if over:
                        raise GraphError(Code.INTERNAL, f"the graph told {event!r:.80} after it was done")
                    if isinstance(told, Done):
                        over = True
                        continue
                    if isinstance(told, TextDelta):
                        texts.append(told.text)
                    elif isinstance(told, AssistantFinal):
                        if content is not None:
                            raise GraphError(Code.INTERNAL, "the graph told its final content twice")
                        content = told.content
                    yield told
        except (Exception, asyncio.CancelledError) as failed:
            if self._closing:
                log.warning("a graph failed while it was stopped", run=self._run_id, error=repr(failed))
                return
            if is_cancelled():  # the reader is, not only the graph
                self._end(False, code=Code.ABORTED)
                raise asyncio.CancelledError from failed
            error = failed
        if error is not None:
            code = normalised(error)
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


def is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def closable(events: Any) -> AsyncGenerator[object]:
    """What a graph answered with, if that is a stream of events at all."""
    if not hasattr(events, "__anext__") or not hasattr(events, "aclose"):
        if hasattr(events, "close"):
            events.close()  # a coroutine that nobody will await
        raise GraphError(Code.INTERNAL, f"the graph answered with a {type(events).__name__}; it must yield events")
    return events  # type: ignore[no-any-return]


def checked(event: object) -> Event:
    """An event as it may be told; nonsense is the graph's failure."""
    match event:
        case TextDelta(text=str()) | AssistantFinal(content=str()) | Done():
            return event
        case ToolCallStart(tool_call_id=str(), tool_name=str()) | ToolCallResult(tool_call_id=str()):
            return event
        case UsageReport(unit, model, input_tokens, output_tokens) if (
            short(unit) and short(model) and is_count(input_tokens) and is_count(output_tokens) and is_cost(event)
        ):
            return event
        case Failed(code=Code() as code):
            raise GraphError(code)
        case _:
            raise GraphError(Code.INTERNAL, f"the graph told what is no event: {event!r:.200}")


def short(name: object) -> bool:
    return name is None or (isinstance(name, str) and 0 < len(name) <= NAME_LIMIT)


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS


def is_cost(report: UsageReport) -> bool:
    try:
        return bool(0 <= report.cost <= MOST_USD)
    except InvalidOperation:  # no number, or not a number
        return False


def normalised(error: BaseException) -> Code:
    """The code of an error: an abort, what it says itself, what HTTP said, else our bug."""
    if isinstance(error, asyncio.CancelledError):
        return Code.ABORTED
    said = getattr(error, "code", None)
    if isinstance(said, str) and said in Code._value2member_map_:
        return Code(said)
    answer = getattr(error, "response", None)
    statuses = (
        getattr(error, "status_code", None),
        getattr(error, "status", None),
        getattr(answer, "status_code", None),
    )
    if 429 in statuses:
        return Code.RATE_LIMIT
    return Code.TIMEOUT if 408 in statuses else Code.INTERNAL
