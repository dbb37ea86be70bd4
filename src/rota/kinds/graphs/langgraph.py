"""Runs graphs of LangGraph, nested ones included. Text is streamed by token; each call of a model is a unit, charged by
its usage metadata."""

from collections import deque
from collections.abc import AsyncIterator, Iterator
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
    usage = UsageCallback(graph)
    work = graph.work
    if not getattr(work, "checkpointer", None):  # state of this run only, unless the author sets a checkpointer
        work = work.copy(update={"checkpointer": InMemorySaver()})
    config = {
        "configurable": {"thread_id": request.run_id, "caller": request.caller, "canceled": request.canceled},
        "callbacks": [usage],
    }
    state: object = None
    seen: set[str] = set()  # ids of messages: a nested graph passes its own on to its parent
    modes = ["messages", "updates", "values"]
    parts = work.astream(dict(request.input), config, stream_mode=modes, subgraphs=True)
    try:
        async for subgraph, mode, part in parts:
            for report in usage.drain():
                yield report
            if mode == "messages":
                if isinstance(part[0], AIMessageChunk | AIMessage) and part[0].text:
                    yield TextDelta(str(part[0].text))
            elif mode == "values":
                seen.update(message.id for message in messages_in(part) if message.id)
                state = state if subgraph else part
            else:
                if "__interrupt__" in part:
                    raise GraphError(
                        Code.INVALID_REQUEST,
                        "the graph interrupted to ask a person, which scheduled runs do not support",
                    )
                for message in messages_in(part):
                    for event in () if message.id in seen else tool_events(message):
                        yield event
    finally:
        await parts.aclose()  # cancels its tasks
    for report in usage.drain():
        yield report
    yield AssistantFinal(content_of(state))


class UsageCallback(BaseCallbackHandler):
    """Collects a usage report of each call of a model, from any thread."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.reports: deque[UsageReport] = deque()

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: object) -> None:
        generations = [generation for row in response.generations for generation in row]
        messages = [
            generation.message
            for generation in generations
            if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage)
        ]
        metadata = [message.usage_metadata for message in messages if message.usage_metadata is not None]
        tokens_in = sum(usage["input_tokens"] for usage in metadata)
        tokens_out = sum(usage["output_tokens"] for usage in metadata)
        models = (message.response_metadata.get("model_name") for message in messages if message.usage_metadata)
        model = next((str(name) for name in models if name is not None), None)
        cost = self.graph.cost(model, tokens_in, tokens_out)
        self.reports.append(UsageReport(str(run_id), model, tokens_in, tokens_out, cost))

    def drain(self) -> list[UsageReport]:
        """Remove and return the collected reports."""
        return [self.reports.popleft() for _ in range(len(self.reports))]


def messages_in(update: object) -> Iterator[BaseMessage]:
    """Yield the messages of an update, under any key of the graph's state."""
    match update:
        case BaseMessage():
            yield update
        case dict():
            for value in update.values():
                yield from messages_in(value)
        case list() | tuple():
            for value in update:
                yield from messages_in(value)
        case _:
            pass


def tool_events(message: BaseMessage) -> Iterator[object]:
    if isinstance(message, AIMessage):
        for call in message.tool_calls:
            yield ToolCallStart(call["id"] or "", call["name"], call["args"])
    elif isinstance(message, ToolMessage):
        yield ToolCallResult(message.tool_call_id, message.content, message.status == "error")


def content_of(state: object) -> str:
    """Return the text of the last message; of a graph without messages, its state as JSON."""
    messages = state.get("messages") if isinstance(state, dict) else None
    if messages and isinstance(messages[-1], BaseMessage):
        return str(messages[-1].text)
    return orjson.dumps(state, default=str).decode()
