"""A process that is killed while it writes a table leaves the old table or the new one, and the next run is right."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rota.kinds.pipelines.executor import executor_here
from tests.kinds.pipelines.killed_run import slug_of
from tests.kinds.pipelines.spark_servers import connect_server, require_spark
from tests.kinds.pipelines.warehouses import postgres_warehouse, rows

ROOT = Path(__file__).parents[3]
POINTS = 10
NEVER = 10**9  # a point that no run reaches
OLD, NEW = [(1, "a"), (2, "b")], [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.kinds.pipelines.killed_run", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Killed:
    """Runs of pipelines in processes of their own."""

    def __init__(self, place: Path, url: str) -> None:
        self.place, self.url = place, url
        self.process = start(str(place), url)
        self.unharmed = start(str(place), url, "here") if url.startswith("spark:") else self.process

    def __enter__(self) -> "Killed":
        return self

    def __exit__(self, *error: object) -> None:
        for process in {self.process, self.unharmed}:
            process.communicate(timeout=60)  # closes its input: it ends

    def count(self, path: str, new_rows: list[tuple[int, str]], increment: object) -> int:
        """Run one in a process of its own; returns how many points it passed."""
        return self.run(path, new_rows, increment, point=NEVER)

    def run(self, path: str, new_rows: list[tuple[int, str]], increment: object, point: int = 0) -> int:
        """Run one, killed at this point unless it is 0; returns how many points the process passed, 0 if it was
        killed."""
        values = ", ".join(map(str, new_rows))
        sql = f"SELECT * FROM (VALUES {values}) AS v(id, name)"
        process = self.process if point else self.unharmed
        assert process.stdin is not None
        assert process.stdout is not None
        order = {"path": path, "sql": sql, "increment": increment, "point": point}
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        code, calls = json.loads(process.stdout.readline())
        if point and code == -signal.SIGKILL:
            return 0
        assert code == 0
        return int(calls)

    def table(self, path: str) -> list[tuple[Any, ...]]:
        namespace, layer, name = path.split("/")
        if self.url.startswith("spark:"):
            file = f"{self.place}/spark/{namespace}_{layer}/{name}/current/*.parquet"
            return duckdb.execute(f"SELECT * FROM '{file}' ORDER BY id").fetchall()
        if self.url.startswith("sc:"):
            executor = executor_here(self.place, 1, self.url, slug_of)
            assert executor is not None
            query = f"SELECT * FROM {namespace}.{layer}.{name} ORDER BY id"
            return [tuple(row) for row in asyncio.run(executor.preview("org", query, 50))[1]]
        if self.url:
            return rows(self.url, f"SELECT * FROM {namespace}_{layer}.{name} ORDER BY id")
        return duckdb.execute(f"SELECT * FROM '{self.place}/org/{path}.parquet' ORDER BY id").fetchall()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("increment", [None, {"append_by": ["id"]}, {"merge_by": ["id"]}])
@pytest.mark.parametrize(
    "engine",
    ["duckdb", "postgresql", *(pytest.param(name, marks=pytest.mark.engines) for name in ("spark", "spark connect"))],
)
def test_a_kill_at_any_point_leaves_a_whole_table(
    engine: str, increment: object, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if engine == "duckdb":
        with Killed(tmp_path, "") as runs:
            kill_at_points(runs, increment)
        return
    if engine == "spark":
        with Killed(tmp_path, require_spark()) as runs:
            kill_at_points(runs, increment)
        return
    if engine == "spark connect":
        require_spark()
        with connect_server(tmp_path) as url, Killed(tmp_path, url) as runs:
            kill_at_points(runs, increment)
        return
    with postgres_warehouse(request.getfixturevalue("postgres_url")) as url:
        with Killed(tmp_path, url) as runs:
            kill_at_points(runs, increment)
        assert rows(url, "SELECT relname FROM pg_class WHERE relname LIKE 'rota%'") == []


def kill_at_points(runs: Killed, increment: object) -> None:
    runs.run("a/gold/counted", OLD, increment)
    calls = runs.count("a/gold/counted", NEW, increment)
    kills = 0
    for number in range(1, POINTS + 1):
        path = f"a/gold/t{number}"
        runs.run(path, OLD, increment)
        kills += runs.run(path, NEW, increment, point=calls * number // (POINTS + 1)) == 0
        assert runs.table(path) in (OLD, NEW)
        runs.run(path, NEW, increment)
        assert runs.table(path) == NEW
    assert kills == POINTS
