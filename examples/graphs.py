"""Two graphs of LangGraph on a schedule, without a network or a key: the models are fake.

pip install 'rota-scheduler[langgraph]', then: rota up examples/graphs.py
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from rota import Rota


class PlayModel(BaseChatModel):
    """A fake model: calls the time tool first, if it has it, then streams a fixed answer word by word."""

    words: str
    has_tools: bool = False

    @property
    def _llm_type(self) -> str:
        return "play"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> "PlayModel":
        return self.model_copy(update={"has_tools": bool(tools)})

    def _stream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        asked = str(messages[0].text) or "nothing"
        heard = [message for message in messages if isinstance(message, ToolMessage)]
        if self.has_tools and not heard:
            call = {"name": "current_time", "args": {}, "id": f"call-{len(messages)}", "type": "tool_call"}
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_calls=[call]))
        else:
            time = str(heard[-1].text) if heard else ""
            for word in self.words.format(asked=asked, time=time).split(" "):
                yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))
        used = {"input_tokens": 10 * len(messages), "output_tokens": 20, "total_tokens": 10 * len(messages) + 20}
        last = AIMessageChunk(content="", usage_metadata=used, response_metadata={"model_name": "play-1"})
        yield ChatGenerationChunk(message=last)

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return generate_from_stream(self._stream(messages))


# To use a real model, change these two lines, and set its price in `prices` below:
#   from langchain_anthropic import ChatAnthropic
#   poet_model = ponderer_model = ChatAnthropic(model="claude-…")
poet_model = PlayModel(words="Roses are red, it is {time}, you spoke of {asked}, and it rhymes.")
ponderer_model = PlayModel(words="Is {asked} still {asked} at {time}?\nPerhaps.")


@tool
def current_time() -> str:
    """Return the time in UTC."""
    return f"{datetime.now(UTC):%H:%M}"


def agent(model: BaseChatModel) -> Any:
    """Build a graph of a model and its tools; it ends when the model calls no tool."""
    bound = model.bind_tools([current_time])

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode([current_time]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    return graph.compile()


app = Rota()
prices = {"play-1": (3, 15)}  # US dollars per million tokens, in and out
app.graph("poet", agent(poet_model), provider="langgraph", description="a poem about anything", prices=prices)
app.graph("ponderer", agent(ponderer_model), provider="langgraph", description="questions about it", prices=prices)

spring = {"messages": [{"role": "user", "content": "spring"}]}
app.schedule("weekday-poem", "langgraph:poet", kind="graph", cron="0 9 * * 1-5", timezone="Europe/Oslo", params=spring)
app.schedule("ponder-every-minute", "langgraph:ponderer", kind="graph", cron="* * * * *", params=spring)
