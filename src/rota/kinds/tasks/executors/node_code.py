"""The source of the program of nodes, and its functions as clusters take them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


@cache
def node_source() -> str:
    """Return the source of the program's child process."""
    return Path(__file__).with_name("node.py").read_text()


@cache
def places_source() -> str:
    """Return the source of the whole program, which is executed under another name than `__main__`."""
    return f"{node_source()}\n{Path(__file__).with_name('node_places.py').read_text()}"


@cache
def node_function(name: str) -> Callable[..., Any]:
    """Return a function of the node's program that is pickled by value: its module has no name that can be imported."""
    namespace: dict[str, Any] = {"__name__": "rota_node"}
    exec(compile(places_source(), "<string>", "exec"), namespace)
    return namespace[name]  # type: ignore[no-any-return]
