"""Graphs of LangGraph, and those nested in them. Text comes token by token; a call of a model is a unit, charged by its
usage metadata."""

from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID

import orjson
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langgraph.checkpoint.memory import InMemorySaver

from rota.kinds.graphs.port import (
    AssistantFinal,
    Code,
    GraphError,
    GraphRequest,
    TextDelta,
    ToolCallResult,
    ToolCallStart,
    UsageReport,
)
from rota.kinds.graphs.registry import Graph


async def events(graph: Graph, request: GraphRequest) -> AsyncIterator[object]:
    meter = Meter(graph)
    work = graph.work
    if not getattr(work, "checkpointer", None):  # what it remembers is this run's alone, unless its author says where
        work = work.copy(update={"checkpointer": InMemorySaver()})
    config = {
        "configurable": {"thread_id": request.run_id, "caller": request.caller, "canceled": request.canceled},
        "callbacks": [meter],
    }
    state: Any = None
    told: set[str] = set()  # messages that are known: a nested graph hands its own on to the one around it
    modes = ["messages", "updates", "values"]
    parts = work.astream(dict(request.input), config, stream_mode=modes, subgraphs=True)
    try:
        async for where, mode, part in parts:
            for report in meter.taken():
                yield report
            if mode == "messages":
                if isinstance(part[0], AIMessageChunk | AIMessage) and part[0].text:
                    yield TextDelta(str(part[0].text))
            elif mode == "values":
                told.update(message.id for message in messages_in(part) if message.id)
                state = state if where else part
            else:
                if "__interrupt__" in part:
                    raise GraphError(Code.INVALID_REQUEST, "the graph asks a person, and nobody is there")
                for message in messages_in(part):
                    for event in () if message.id in told else tool_events(message):
                        yield event
    finally:
        await parts.aclose()  # what it started ends with it
    for report in meter.taken():
        yield report
    yield AssistantFinal(content_of(state))


class Meter(BaseCallbackHandler):
    """Hears of each call of a model, from whichever thread it was made."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.reports: deque[UsageReport] = deque()

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        found = [one.message for row in response.generations for one in row if isinstance(one, ChatGeneration)]
        used = [one for one in found if isinstance(one, AIMessage) and one.usage_metadata is not None]
        tokens_in = sum(one.usage_metadata["input_tokens"] for one in used if one.usage_metadata)
        tokens_out = sum(one.usage_metadata["output_tokens"] for one in used if one.usage_metadata)
        model = next(
            (str(one.response_metadata["model_name"]) for one in used if "model_name" in one.response_metadata), None
        )
        cost = self.graph.cost(model, tokens_in, tokens_out)
        self.reports.append(UsageReport(str(run_id), model, tokens_in, tokens_out, cost))

    def taken(self) -> list[UsageReport]:
        return [self.reports.popleft() for _ in range(len(self.reports))]


def messages_in(update: Any) -> Iterator[BaseMessage]:
    """The messages of an update, under whatever names the graph's state keeps them."""
    match update:
        case BaseMessage():
            yield update
        case dict():
            for one in update.values():
                yield from messages_in(one)
        case list() | tuple():
            for one in update:
                yield from messages_in(one)
        case _:
            pass


def tool_events(message: BaseMessage) -> Iterator[object]:
    if isinstance(message, AIMessage):
        for call in message.tool_calls:
            yield ToolCallStart(call["id"] or "", call["name"], call["args"])
    elif isinstance(message, ToolMessage):
        yield ToolCallResult(message.tool_call_id, message.content, message.status == "error")


def content_of(state: Any) -> str:
    """The last message, or the whole state of a graph that has none."""
    said = state.get("messages") if isinstance(state, dict) else None
    if said and isinstance(said[-1], BaseMessage):
        return str(said[-1].text)
    return orjson.dumps(state, default=str).decode()
