"""The port of pipeline executors, and the choice of the executor by configuration."""

import os
import re
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from rota.core.errors import Invalid
from rota.kinds.pipelines.increments import Increment
from rota.kinds.pipelines.tables import PipelineTables
from rota.version import DISTRIBUTION

POSTGRES_SCHEMES = ("postgresql://", "postgres://")
SPARK_SCHEMES = ("spark://", "sc://")
SPARK_HERE = re.compile(r"spark://(local(?:\[(?:\d+|\*)\])?)/?")  # of this process
Write = Callable[[object], Awaitable[int]]  # writes a result as the table; returns its row count
Materialise = Callable[["Connection", Write], Awaitable[int | None]]  # returns the row count
SlugOf = Callable[[str], Awaitable[str]]  # returns the slug of an org, of its id


class Connection(Protocol):
    """The connection of a run, in the types that functions can ask for. Its methods block."""

    def duckdb_connection(self) -> Any:
        """Return a DuckDB connection in which the tables that the function reads can be read."""
        ...

    def pipeline_tables(self) -> PipelineTables:
        """Return the tables that the function reads as Ibis tables."""
        ...


@dataclass(frozen=True, slots=True)
class Materialisation:
    """A table to build: by SQL, or by a function of a connection and a Write."""

    run_id: str
    org_id: str
    path: str
    reads: Sequence[str]
    work: str | Materialise
    increment: Increment | None = None  # None: the result replaces the table
    fence: int = 0  # of its job: a run with a lower one than the last that started writes nothing


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

    async def verify(self) -> None:
        """Check that the engine accepts the configuration. Raises Conflict if an operator must change something, and
        Unavailable if the engine is out of reach."""
        ...

    async def close(self) -> None:
        """Close what is kept between materialisations."""
        ...

    async def preview(self, org_id: str, sql: str, limit: int) -> tuple[list[dict[str, str]], list[list[object]]]:
        """Return the columns and the first rows of a query. Writes nothing."""
        ...


def executor_here(place: Path, slots: int, url: str = "", slug_of: SlugOf | None = None) -> Executor | None:
    """Return the executor of an engine, by default DuckDB with its files in `place`; None if DuckDB is not installed.
    Raises Invalid for the URL of an engine whose extra is not installed."""
    if url:
        assert slug_of is not None
        scheme = url.split(":")[0]
        if url.startswith(SPARK_SCHEMES):
            for module in ("ibis", "pyspark", *(["grpc"] if scheme == "sc" else [])):
                if find_spec(module) is None:
                    raise Invalid("pipelines_url", scheme, f"needs Spark: install {DISTRIBUTION}[spark]")
            if scheme == "spark" and "JAVA_HOME" not in os.environ and shutil.which("java") is None:
                raise Invalid("pipelines_url", scheme, "needs Java 17 or newer, in PATH or JAVA_HOME")
            warehouse = import_module("rota.kinds.pipelines.spark").Spark(url, place)
        else:
            if find_spec("ibis") is None or find_spec("psycopg") is None:
                raise Invalid("pipelines_url", scheme, f"needs Ibis: install {DISTRIBUTION}[ibis]")
            warehouse = import_module("rota.kinds.pipelines.postgres").Postgres(url)
        ibis_executor: Executor = import_module("rota.kinds.pipelines.ibis_executor").IbisExecutor(
            warehouse, slots, slug_of
        )
        return ibis_executor
    if find_spec("duckdb") is None:
        return None
    executor: Executor = import_module("rota.kinds.pipelines.duckdb").DuckDB(place, slots)
    return executor
