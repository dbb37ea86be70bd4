"""The graphs of a program, and who runs them: the text before the first colon of an id names the provider."""

import inspect
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import partial
from importlib import import_module
from typing import Any

from rota.core.errors import Invalid
from rota.kinds.graphs.port import Code, GraphError, GraphRequest, GraphRun, Stream

GRAPH_ID = re.compile(r"[a-z][a-z0-9_-]*:[^\s:*/][^\s*/]*")
ID_LIMIT = 200
MILLION = 1_000_000

Open = Callable[["Graph", GraphRequest], AsyncIterator[object]]


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph that a program declares."""

    id: str
    work: Any
    version: str | None = None
    description: str | None = None
    prices: Mapping[str, tuple[Decimal, Decimal]] = field(
        default_factory=dict
    )  # of models: per token in, per token out

    def cost(self, model: str | None, input_tokens: int, output_tokens: int) -> Decimal | None:
        """What a call cost, if the price of its model was told."""
        price = self.prices.get(model or "")
        return None if price is None else price[0] * input_tokens + price[1] * output_tokens


def open_python(graph: Graph, request: GraphRequest) -> AsyncIterator[object]:
    """`async def poet(request, caller)`, which yields events."""
    events: AsyncIterator[object] = graph.work(request, request.caller)
    return events


def open_langgraph(graph: Graph, request: GraphRequest) -> AsyncIterator[object]:
    """Loaded when it is first needed: most programs do without."""
    events: AsyncIterator[object] = import_module("rota.kinds.graphs.langgraph").events(graph, request)
    return events


PROVIDERS: dict[str, Open] = {"python": open_python, "langgraph": open_langgraph}


class GraphRegistry:
    """What is declared; and the executor over all providers."""

    def __init__(self) -> None:
        self.graphs: dict[str, Graph] = {}

    def __contains__(self, graph_id: str) -> bool:
        return graph_id in self.graphs

    def add(self, name: str, work: Any, provider: str, prices: Mapping[str, Any] | None = None, **about: Any) -> Graph:
        """`prices` are US dollars per million tokens: `{"model": (input, output)}`."""
        if provider not in PROVIDERS:
            raise Invalid("provider", provider, f"is not one of {', '.join(PROVIDERS)}")
        graph_id = read_graph_id(f"{provider}:{name}", "name")
        if graph_id in self.graphs:
            raise Invalid("name", name, "is declared twice")
        fits = {"python": inspect.isasyncgenfunction, "langgraph": lambda one: hasattr(one, "astream")}
        if not fits[provider](work):
            right = {"python": "an async generator function", "langgraph": "a compiled graph"}[provider]
            raise Invalid("graph", work, f"is not {right}, which the provider {provider} runs")
        told = {"description": first_line(work) if provider == "python" else None, **about}
        self.graphs[graph_id] = Graph(graph_id, work, prices=read_prices(prices or {}), **told)
        return self.graphs[graph_id]

    def run_graph(self, request: GraphRequest) -> GraphRun:
        stream = Stream(partial(self.open, request), request.run_id)
        return GraphRun(stream, stream.final)

    def open(self, request: GraphRequest) -> AsyncIterator[object]:
        graph = self.graphs.get(request.graph_id)
        if graph is None:
            raise GraphError(Code.NOT_FOUND, f"graph {request.graph_id}: it is not known to this worker")
        return PROVIDERS[graph.id.partition(":")[0]](graph, request)


def read_graph_id(value: Any, field: str) -> str:
    if not isinstance(value, str) or len(value) > ID_LIMIT or not GRAPH_ID.fullmatch(value):
        raise Invalid(field, value, "is not a graph's id, which has the form provider:name")
    return value


def read_prices(prices: Mapping[str, Any]) -> dict[str, tuple[Decimal, Decimal]]:
    try:
        return {
            model: (Decimal(str(tokens_in)) / MILLION, Decimal(str(tokens_out)) / MILLION)
            for model, (tokens_in, tokens_out) in prices.items()
        }
    except (TypeError, ValueError, InvalidOperation) as error:
        raise Invalid("prices", prices, "is not {model: (input, output)} in US dollars per million tokens") from error


def first_line(work: Any) -> str | None:
    return (inspect.getdoc(work) or "").partition("\n")[0] or None
