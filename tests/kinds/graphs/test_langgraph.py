"""Real LangGraph graphs: streamed, with a tool, stopped in the middle and failing, through schedules."""

import asyncio
import sys
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from rota.app.programs import load_app
from rota.core.errors import Invalid
from rota.graphs import (
    AssistantFinal,
    Code,
    Done,
    GraphRequest,
    LlmCaller,
    TextDelta,
    ToolCallResult,
    ToolCallStart,
    UsageReport,
)
from rota.kinds.graphs import registry
from rota.kinds.graphs.registry import GraphRegistry
from tests.engine.harness import at
from tests.kinds.graphs.harness import Graphs

EXAMPLES = Path(__file__).parents[3] / "examples"
SPRING = {"messages": [{"role": "user", "content": "spring"}]}
CALLER = LlmCaller("account", "key", "request", "trace", "user")


@pytest.fixture
def example() -> GraphRegistry:
    return load_app(str(EXAMPLES / "graphs.py")).graphs


def test_a_missing_langgraph_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with pytest.raises(Invalid, match=r"not installed: pip install 'rota-scheduler\[langgraph\]'"):
        GraphRegistry().add("poet", object(), "langgraph")


def asked(graph_id: str, run_id: str = "run-1", **fields: Any) -> GraphRequest:
    return GraphRequest(graph_id, fields or SPRING, run_id, 1, CALLER)


def compiled(node: Any, **how: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph.compile(**how)


async def test_a_graph_with_a_tool_emits_its_events_in_order(example: GraphRegistry) -> None:
    stream, final = example.run_graph(asked("langgraph:poet"))
    events = [event async for event in stream]
    kinds = [type(event) for event in events]
    assert kinds.index(ToolCallStart) < kinds.index(ToolCallResult) < kinds.index(TextDelta)
    words = [event.text for event in events if isinstance(event, TextDelta)]
    assert len(words) > 5  # word by word, not at the end
    first, second = [event for event in events if isinstance(event, UsageReport)]
    assert first.unit != second.unit
    assert (first.model, first.input_tokens, first.output_tokens) == ("play-1", 10, 20)
    assert first.cost == Decimal("0.00033")
    assert kinds[-2:] == [AssistantFinal, Done]
    assert kinds.count(Done) == kinds.count(AssistantFinal) == 1
    result = await final
    assert (result.ok, result.content, result.run_id) == (True, "".join(words), "run-1")
    assert result.content is not None
    assert "spring" in result.content


@pytest.mark.parametrize("how", ["as a node", "called by a node"])
async def test_a_nested_graph_is_heard_while_it_runs_and_once(example: GraphRegistry, how: str) -> None:
    poet = example.graphs["langgraph:poet"].work

    async def call(state: MessagesState) -> dict[str, Any]:
        return {"messages": (await poet.ainvoke({"messages": state["messages"]}))["messages"]}

    example.add("outer", compiled(poet if how == "as a node" else call), "langgraph")
    call_before = {"role": "ai", "content": "", "tool_calls": [{"name": "look", "args": {}, "id": "old"}]}
    before = [call_before, {"role": "tool", "content": "seen", "tool_call_id": "old"}]
    for history, calls, units in (([], 1, 2), (before, 0, 1)):  # what was called before is no news
        stream, final = example.run_graph(asked("langgraph:outer", messages=[*history, *SPRING["messages"]]))
        events = [event async for event in stream]
        kinds = [type(event) for event in events]
        assert [kinds.count(kind) for kind in (ToolCallStart, ToolCallResult, UsageReport)] == [calls, calls, units]
        words = [event.text for event in events if isinstance(event, TextDelta)]
        assert len(words) > 5
        assert (await final).content == "".join(words)


async def test_each_run_remembers_for_itself(example: GraphRegistry) -> None:
    """A checkpointer per run: messages of one slot are not in the thread of the next."""
    for run_id in ("one", "two"):
        stream, _ = example.run_graph(asked("langgraph:ponderer", run_id))
        reports = [event async for event in stream if isinstance(event, UsageReport)]
        assert [report.input_tokens for report in reports] == [10, 30]  # one message, then three


async def test_a_graphs_own_checkpointer_is_used_with_a_thread_per_run() -> None:
    saver, registry = InMemorySaver(), GraphRegistry()
    registry.add("own", compiled(lambda state: {"messages": [("ai", "x")]}, checkpointer=saver), "langgraph")
    stream, final = registry.run_graph(asked("langgraph:own", "run-9"))
    assert [event async for event in stream][-1] == Done()
    assert (await final).content == "x"
    assert saver.get({"configurable": {"thread_id": "run-9"}}) is not None


async def test_closing_the_stream_stops_the_graph(example: GraphRegistry) -> None:
    reached, stopped = asyncio.Event(), asyncio.Event()

    async def endless(state: MessagesState) -> dict[str, Any]:
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise
        return {}

    example.add("endless", compiled(endless), "langgraph")
    stream, final = example.run_graph(asked("langgraph:endless"))
    reading = asyncio.ensure_future(read_all(stream))
    await reached.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await stream.aclose()
    await asyncio.wait_for(stopped.wait(), 5)
    assert (await final).code is Code.ABORTED


async def test_a_stream_that_is_closed_before_it_is_read_has_ended(example: GraphRegistry) -> None:
    stream, final = example.run_graph(asked("langgraph:poet"))
    await stream.aclose()
    assert (await final).code is Code.ABORTED


async def test_a_graph_that_interrupts_for_a_person_fails() -> None:
    registry = GraphRegistry()
    registry.add("asker", compiled(lambda state: interrupt("may I?")), "langgraph")
    stream, final = registry.run_graph(asked("langgraph:asker"))
    assert [type(event).__name__ async for event in stream][-2:] == ["Failed", "Done"]
    assert (await final).code is Code.INVALID_REQUEST


async def test_unknown_providers_and_graphs_are_not_found(example: GraphRegistry) -> None:
    for unknown in ("unknown:poet", "langgraph:unknown", "poet", "langgraph:poet:more"):
        stream, final = example.run_graph(asked(unknown))
        assert [type(event).__name__ async for event in stream] == ["Failed", "Done"]
        assert (await final).code is Code.NOT_FOUND


async def test_the_examples_run_through_schedules(graphs: Graphs, example: GraphRegistry) -> None:
    graphs.registry.graphs |= example.graphs
    await graphs.schedule(target="langgraph:poet", input=SPRING)
    await graphs.harness.run_until(at("9:10"))
    (run,) = await graphs.runs()
    assert (run.status, run.usage["units"], run.usage["credits"]) == ("success", 2, 14_400)
    assert "spring" in run.outcome["content"]
    said = await graphs.said()
    assert [orjson.loads(text)["event"] for stream, text in said if stream == "tool"] == [
        "tool_call_start",
        "tool_call_result",
    ]
    assert "".join(text for stream, text in said if stream == "text") == run.outcome["content"]
    assert {receipt.unit for receipt in await graphs.receipts()} != set()


async def test_a_failing_node_fails_its_run_with_what_it_raised(graphs: Graphs) -> None:
    class Busy(Exception):
        status_code = 429

    def break_it(state: MessagesState) -> dict[str, Any]:
        raise KeyError("no such thing")

    async def refuse(state: MessagesState) -> dict[str, Any]:
        raise Busy("slow down")

    graphs.registry.add("broken", compiled(break_it), "langgraph")
    graphs.registry.add("busy", compiled(refuse), "langgraph")
    await graphs.schedule("broken", "langgraph:broken", input=SPRING, cron=None, run_at=at("9:10").isoformat())
    await graphs.schedule("busy", "langgraph:busy", input=SPRING, cron=None, run_at=at("9:11").isoformat())
    await graphs.harness.run_until(at("9:11"))
    broken, busy = await graphs.runs()
    assert (broken.status, broken.reason, broken.error["type"]) == ("failed", "logic", "KeyError")
    assert "break_it" in broken.error["traceback"]
    assert (busy.status, busy.reason, busy.error["code"]) == ("paused", "transient", "rate_limit")


async def test_a_run_is_stopped_in_the_middle_of_a_model_that_talks(graphs: Graphs, example: GraphRegistry) -> None:
    talking = asyncio.Event()
    PlayModel = sys.modules["rota_app_graphs"].PlayModel

    class Talker(PlayModel):  # type: ignore[misc, valid-type]
        async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[Any]:
            while True:
                yield ChatGenerationChunk(message=AIMessageChunk(content="and "))
                talking.set()
                await asyncio.sleep(0.01)

    async def talk(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await Talker(words="").ainvoke(state["messages"])]}

    graphs.registry.add("talker", compiled(talk), "langgraph")
    await graphs.schedule(target="langgraph:talker", input=SPRING)
    graphs.harness.clock.set(at("9:10"))
    await graphs.harness.fire()
    (job,) = await graphs.harness.queue()
    working = asyncio.ensure_future(graphs.harness.work())
    await talking.wait()
    await graphs.harness.engine.cancel(graphs.harness.org_id, job.id)
    graphs.harness.worker.cancellation.cancel({job.id: "operator"})
    await working
    (run,) = await graphs.runs()
    assert (run.status, run.reason) == ("canceled", "operator")
    assert (await graphs.said())[0][1].startswith("and ")


async def read_all(stream: Any) -> list[Any]:
    return [event async for event in stream]
