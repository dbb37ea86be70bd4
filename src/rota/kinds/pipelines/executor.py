"""Where pipelines run: the port, and how it is found."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

Write = Callable[[Any], Awaitable[int]]  # makes the table from a result; how many rows it has
Work = Callable[[Any, Write], Awaitable[int]]  # of a connection and a way to write; how many rows it wrote


@dataclass(frozen=True, slots=True)
class Order:
    """A table to make: by SQL, or by a function that is given a connection and a way to write."""

    run_id: str
    org_id: str
    path: str
    reads: Sequence[str]
    work: str | Work


@dataclass(frozen=True, slots=True)
class Written:
    rows: int
    seconds: float


class Executor(Protocol):
    """What runs pipelines."""

    def capacity(self) -> int:
        """How many more orders it would take now."""
        ...

    async def submit(self, order: Order) -> Written:
        """Carry out an order. Raises Busy where there is no room: then nothing has happened."""
        ...

    async def cancel(self, run_id: str) -> None:
        """Stop an order soon; `submit` ends when it has stopped. Nothing of it is left."""
        ...

    def logs(self, run_id: str) -> list[str]:
        """What it has to say about an order, since it was asked last."""
        ...

    def check(self, sql: str) -> list[str]:
        """The paths of the tables that a query reads. Raises Invalid where it is none, or more than that."""
        ...

    async def preview(self, org_id: str, sql: str, limit: int) -> tuple[list[dict[str, str]], list[list[Any]]]:
        """The columns of a query and its first rows. Nothing is written."""
        ...


def executor_here(place: Path, slots: int) -> Executor | None:
    """DuckDB, where it is installed: `rota[duckdb]`. Loaded only then."""
    if find_spec("duckdb") is None:
        return None
    found: Executor = import_module("rota.kinds.pipelines.duckdb").DuckDB(place, slots)
    return found
