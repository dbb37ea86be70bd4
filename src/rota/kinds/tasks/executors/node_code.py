"""The source of the program of nodes, and its functions as clusters take them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


@cache
def node_source() -> str:
    return Path(__file__).with_name("node.py").read_text()


@cache
def node_function(name: str) -> Callable[..., Any]:
    """Return a function of the node's program that is pickled by value: its module has no name that can be imported."""
    namespace: dict[str, Any] = {"__name__": "rota_node"}
    exec(compile(node_source(), "<string>", "exec"), namespace)
    return namespace[name]  # type: ignore[no-any-return]
