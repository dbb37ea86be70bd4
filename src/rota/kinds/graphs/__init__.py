"""Graphs: AI work that runs under a grant and is charged by what it uses."""

from rota.kinds.graphs.execution import Execution, Order
from rota.kinds.graphs.manager import GraphManager
from rota.kinds.graphs.registry import Graph, GraphRegistry
from rota.kinds.graphs.runner import GraphRunner

__all__ = ["Execution", "Graph", "GraphManager", "GraphRegistry", "GraphRunner", "Order"]
