"""The graphs of a program, and their providers: the id of a graph is `provider:name`."""

import inspect
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypedDict, Unpack

from rota.core.errors import Invalid
from rota.kinds.graphs.port import Code, GraphError, GraphRequest, GraphRun, Stream

GRAPH_ID = re.compile(r"[a-z][a-z0-9_-]*:[^\s:*/][^\s*/]*")
GRAPH_ID_CHARACTERS = 200
PRICE_TOKENS = 1_000_000  # prices are per million tokens

OpenEvents = Callable[["Graph", GraphRequest], AsyncIterator[object]]


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph that a program declares."""

    id: str
    work: Any
    version: str | None = None
    description: str | None = None
    prices: Mapping[str, tuple[Decimal, Decimal]] = field(default_factory=dict)  # USD per input, output token

    def cost(self, model: str | None, input_tokens: int, output_tokens: int) -> Decimal | None:
        """Return the cost of a call in US dollars; None if the price of its model is not declared."""
        price = self.prices.get(model or "")
        return None if price is None else price[0] * input_tokens + price[1] * output_tokens


def open_python(graph: Graph, request: GraphRequest) -> AsyncIterator[object]:
    """Call `async def poet(request, caller)`, which yields events."""
    events: AsyncIterator[object] = graph.work(request, request.caller)
    return events


def open_langgraph(graph: Graph, request: GraphRequest) -> AsyncIterator[object]:
    """Imported on first use: most programs have no LangGraph."""
    events: AsyncIterator[object] = import_module("rota.kinds.graphs.langgraph").events(graph, request)
    return events


PROVIDERS: dict[str, OpenEvents] = {"python": open_python, "langgraph": open_langgraph}


Prices = Mapping[str, tuple[float | str, float | str]]  # of input and output, in US dollars per million tokens


class GraphOptions(TypedDict, total=False):
    """Options of a declared graph."""

    version: str | None
    description: str | None
    prices: Prices | None  # by model, for models that do not report their cost


class GraphRegistry:
    """The declared graphs; the GraphExecutor over all providers."""

    def __init__(self) -> None:
        self.graphs: dict[str, Graph] = {}

    def __contains__(self, graph_id: str) -> bool:
        return graph_id in self.graphs

    def add(self, name: str, work: Any, provider: str, **options: Unpack[GraphOptions]) -> Graph:
        """Declare a graph. Raises Invalid."""
        if provider not in PROVIDERS:
            raise Invalid("provider", provider, f"is not one of {', '.join(PROVIDERS)}")
        if provider == "langgraph" and find_spec("langgraph") is None:
            raise Invalid(
                "provider", provider, "needs LangGraph, which is not installed: pip install 'rota-scheduler[langgraph]'"
            )
        graph_id = read_graph_id(f"{provider}:{name}", "name")
        if graph_id in self.graphs:
            raise Invalid("name", name, "is already declared")
        fits = {"python": inspect.isasyncgenfunction, "langgraph": lambda graph: hasattr(graph, "astream")}
        if not fits[provider](work):
            expected = {"python": "an async generator function", "langgraph": "a compiled graph"}[provider]
            raise Invalid("graph", work, f"is not {expected}, which provider {provider} needs")
        graph = self.graphs[graph_id] = Graph(
            graph_id,
            work,
            version=options.get("version"),
            description=options.get("description", first_line(work) if provider == "python" else None),
            prices=read_prices(options.get("prices") or {}),
        )
        return graph

    def run_graph(self, request: GraphRequest) -> GraphRun:
        stream = Stream(partial(self.open, request), request.run_id)
        return GraphRun(stream, stream.final)

    def open(self, request: GraphRequest) -> AsyncIterator[object]:
        graph = self.graphs.get(request.graph_id)
        if graph is None:
            raise GraphError(Code.NOT_FOUND, f"graph {request.graph_id!r} is not declared in this worker")
        return PROVIDERS[graph.id.partition(":")[0]](graph, request)


def read_graph_id(value: object, field: str) -> str:
    if not isinstance(value, str) or len(value) > GRAPH_ID_CHARACTERS or not GRAPH_ID.fullmatch(value):
        raise Invalid(field, value, "is not a graph id of the form provider:name")
    return value


def read_prices(prices: Prices) -> dict[str, tuple[Decimal, Decimal]]:
    try:
        return {
            model: (Decimal(str(tokens_in)) / PRICE_TOKENS, Decimal(str(tokens_out)) / PRICE_TOKENS)
            for model, (tokens_in, tokens_out) in prices.items()
        }
    except (TypeError, ValueError, InvalidOperation) as error:
        raise Invalid("prices", prices, "is not {model: (input, output)} in US dollars per million tokens") from error


def first_line(work: object) -> str | None:
    return (inspect.getdoc(work) or "").partition("\n")[0] or None
