"""The port of pipeline executors, and the default executor."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

Write = Callable[[object], Awaitable[int]]  # writes a result as the table; returns its row count
Materialise = Callable[[Any, Write], Awaitable[int | None]]  # of a connection and a Write; returns the row count


@dataclass(frozen=True, slots=True)
class Materialisation:
    """A table to build: by SQL, or by a function of a connection and a Write."""

    run_id: str
    org_id: str
    path: str
    reads: Sequence[str]
    work: str | Materialise


@dataclass(frozen=True, slots=True)
class MaterialisationResult:
    """What an executor wrote."""

    rows: int | None  # None: the function returned no table
    seconds: float


class Executor(Protocol):
    """Builds the tables of pipelines."""

    def capacity(self) -> int:
        """Return how many more materialisations can start now."""
        ...

    async def submit(self, order: Materialisation) -> MaterialisationResult:
        """Build a table. Raises Busy, without effect, if the capacity is used up."""
        ...

    async def cancel(self, run_id: str) -> None:
        """Interrupt a materialisation; `submit` ends when it has stopped. The table stays as it was."""
        ...

    def logs(self, run_id: str) -> list[str]:
        """Return the log lines of a materialisation since the last call."""
        ...

    def check(self, sql: str) -> list[str]:
        """Return the paths of the tables that a query reads. Raises Invalid unless it is one SELECT."""
        ...

    async def preview(self, org_id: str, sql: str, limit: int) -> tuple[list[dict[str, str]], list[list[object]]]:
        """Return the columns and the first rows of a query. Writes nothing."""
        ...


def executor_here(place: Path, slots: int) -> Executor | None:
    """Return the DuckDB executor with its files in `place`; None if `rota[duckdb]` is not installed."""
    if find_spec("duckdb") is None:
        return None
    executor: Executor = import_module("rota.kinds.pipelines.duckdb").DuckDB(place, slots)
    return executor
