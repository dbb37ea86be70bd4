"""A process that is killed while it writes a table leaves the old table or the new one, and the next run is right."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.kinds.pipelines.warehouses import postgres_warehouse, rows

ROOT = Path(__file__).parents[3]
POINTS = 10
OLD, NEW = [(1, "a"), (2, "b")], [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


class Killed:
    """Runs of pipelines in processes of their own."""

    def __init__(self, place: Path, url: str) -> None:
        self.place, self.url = place, url
        command = [sys.executable, "-m", "tests.kinds.pipelines.killed_run", str(place), url]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "Killed":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate(timeout=60)  # closes its input: it ends

    def run(self, path: str, new_rows: list[tuple[int, str]], increment: object, point: int = 0) -> int:
        """Run one, killed at this point; returns how many points the process passed, 0 if it was killed."""
        values = ", ".join(map(str, new_rows))
        sql = f"SELECT * FROM (VALUES {values}) AS v(id, name)"
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = {"path": path, "sql": sql, "increment": increment, "point": point}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        code, calls = json.loads(self.process.stdout.readline())
        if point and code == -signal.SIGKILL:
            return 0
        assert code == 0
        return int(calls)

    def table(self, path: str) -> list[tuple[Any, ...]]:
        namespace, layer, name = path.split("/")
        if self.url:
            return rows(self.url, f"SELECT * FROM {namespace}_{layer}.{name} ORDER BY id")
        return duckdb.execute(f"SELECT * FROM '{self.place}/org/{path}.parquet' ORDER BY id").fetchall()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("increment", [None, {"append_by": ["id"]}, {"merge_by": ["id"]}])
@pytest.mark.parametrize("engine", ["duckdb", "postgresql"])
def test_a_kill_at_any_point_leaves_a_whole_table(
    engine: str, increment: object, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if engine == "duckdb":
        with Killed(tmp_path, "") as runs:
            kill_at_points(runs, increment)
        return
    with postgres_warehouse(request.getfixturevalue("postgres_url")) as url:
        with Killed(tmp_path, url) as runs:
            kill_at_points(runs, increment)
        assert rows(url, "SELECT relname FROM pg_class WHERE relname LIKE 'rota%'") == []


def kill_at_points(runs: Killed, increment: object) -> None:
    runs.run("a/gold/counted", OLD, increment)
    calls = runs.run("a/gold/counted", NEW, increment)
    kills = 0
    for number in range(1, POINTS + 1):
        path = f"a/gold/t{number}"
        runs.run(path, OLD, increment)
        kills += runs.run(path, NEW, increment, point=calls * number // (POINTS + 1)) == 0
        assert runs.table(path) in (OLD, NEW)
        runs.run(path, NEW, increment)
        assert runs.table(path) == NEW
    assert kills == POINTS
