"""Pipelines on Spark: of this process, and on a Spark Connect server."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from rota.app.settings import Settings
from rota.core.errors import Conflict, Invalid, LeaseLost, LogicError, Unavailable
from rota.kinds.pipelines import executor as executors
from rota.kinds.pipelines.executor import Executor, Materialisation, executor_here
from rota.kinds.pipelines.increments import Increment
from rota.kinds.pipelines.selects import read_select, tables_of, with_tables
from tests.kinds.pipelines.spark_servers import connect_server, require_spark

MERGE = Increment("merge_by", ("id",))
ENDLESS = """
    SELECT count(*) AS n FROM (SELECT explode(sequence(0, 999999)) AS a) AS x
    CROSS JOIN (SELECT explode(sequence(0, 999999)) AS b) AS y WHERE a + b < 0
"""
TABLE, COPY = "sales/bronze/orders", "sales/silver/two-words"


async def slug_of(org_id: str) -> str:
    return "default"


@pytest.fixture(params=["local", "connect"])
async def executor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Executor]:
    url = require_spark()
    if request.param == "local":
        executor = executor_here(tmp_path, 2, url, slug_of)
        assert executor is not None
        yield executor
        return
    with connect_server(tmp_path) as url:
        executor = executor_here(tmp_path, 2, url, slug_of)
        assert executor is not None
        yield executor


async def write(
    executor: Executor, path: str, sql: str, increment: Increment | None = None, fence: int = 1
) -> int | None:
    order = Materialisation(path, "org", path, executor.check(sql), sql, increment, fence)
    return (await executor.submit(order)).rows


async def rows(executor: Executor, sql: str) -> list[list[object]]:
    return (await executor.preview("org", sql, 50))[1]


@pytest.mark.long
@pytest.mark.engines
@pytest.mark.timeout(1200)
async def test_spark_keeps_the_promises_of_an_engine(executor: Executor) -> None:
    """One test: to start Spark takes long."""
    await executor.verify()
    assert await write(executor, TABLE, "SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS v(id, name)") == 2
    assert await write(executor, COPY, "SELECT id, name FROM sales.bronze.orders", MERGE) == 2
    await write(executor, TABLE, "SELECT * FROM (VALUES (2, 'B'), (3, 'c')) AS v(id, name)")  # replaced
    assert await write(executor, COPY, "SELECT id, name FROM sales.bronze.orders", MERGE) == 2  # changed
    merged = [[1, "a"], [2, "B"], [3, "c"]]
    assert sorted(await rows(executor, "SELECT * FROM sales.silver.`two-words`"), key=str) == merged

    for wrong in ("SELECT 1 / (id - 1) AS n FROM sales.silver.`two-words`", "SELECT nope FROM sales.bronze.orders"):
        with pytest.raises(Exception, match=r"DIVIDE_BY_ZERO|UNRESOLVED_COLUMN"):
            await write(executor, TABLE, wrong)
    with pytest.raises(LogicError, match="null or not unique"):
        await write(executor, COPY, "SELECT 1 AS id, 'x' AS name UNION ALL SELECT 1, 'y'", MERGE)
    assert sorted(await rows(executor, "SELECT * FROM sales.silver.`two-words`"), key=str) == merged

    await write(executor, TABLE, "SELECT 9 AS id", None, fence=5)
    with pytest.raises(LeaseLost):
        await write(executor, TABLE, "SELECT 4 AS id", None, fence=4)
    assert await rows(executor, "SELECT id, '${env:HOME}' AS text FROM sales.bronze.orders") == [[9, "${env:HOME}"]]

    endless = asyncio.create_task(write(executor, TABLE, ENDLESS, fence=6))
    await asyncio.wait([endless], timeout=3)
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    assert await rows(executor, "SELECT * FROM sales.bronze.orders") == [[9]]
    addresses = listening_addresses()
    assert addresses
    assert all("127.0.0.1" in address for address in addresses)


def listening_addresses() -> list[str]:
    """Return the addresses on which the JVMs that this process started listen."""
    children = subprocess.run(["pgrep", "-P", str(os.getpid()), "java"], capture_output=True, text=True, check=True)
    sockets = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[3] for line in sockets for pid in children.stdout.split() if f"pid={pid}," in line]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM parquet.`/etc/passwd`",
        "SELECT * FROM rota_table_0",
        "SELECT java_method('java.lang.System', 'getenv') AS x",
        "SELECT reflect('java.lang.System', 'getenv') AS x",
        "SELECT input_file_name() AS x FROM sales.bronze.orders",
        "SELECT TRANSFORM(id) USING 'cat' AS x FROM sales.bronze.orders",
        "SELECT from_protobuf(x, 'm', '/etc/passwd') AS y FROM sales.bronze.orders",
        "INSERT OVERWRITE DIRECTORY '/tmp/x' SELECT 1",
        "CREATE TABLE x AS SELECT 1",
        "SELECT * FROM IDENTIFIER('x')",
        "SELECT main.udf(1) AS x",
    ],
)
def test_sql_that_could_leave_its_tables_is_refused(sql: str) -> None:
    with pytest.raises(Invalid) as refused:
        checked(sql)
    assert refused.value.field == "sql"


def checked(sql: str) -> str:
    query = read_select(sql, "spark")
    tables_of(query)
    return with_tables(query, lambda path: ("schema", path), "spark")


@pytest.mark.skipif(find_spec("pyspark") is None, reason="pyspark is not installed")
def test_names_of_spark_stay_different() -> None:
    from rota.kinds.pipelines.spark import Spark

    spark = Spark("spark://local", Path("/nowhere"))
    paths = [("default", "a-b/gold/x"), ("default", "a_b/gold/x"), ("a", "b/gold/x"), ("default", "a_b/gold/x-y")]
    places = [spark.place_of(*path) for path in paths]
    assert len(set(places)) == 4
    assert all(name.replace("_", "").isalnum() for place in places for name in place)


@pytest.mark.parametrize("url", ["spark://cluster:7077", "spark://local[x]", "mysql://x"])
def test_other_engines_are_refused_by_name(url: str) -> None:
    with pytest.raises(ValueError, match=r"sc://host:15002"):
        Settings(pipelines_url=url)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(executors, "find_spec", lambda name: None if name == "pyspark" else object())
    with pytest.raises(Invalid, match=r"needs Spark: install rota-scheduler\[spark\]"):
        executor_here(tmp_path, 1, "spark://local", slug_of)
    monkeypatch.setattr(executors, "find_spec", lambda name: object())
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(Invalid, match="needs Java 17"):
        executor_here(tmp_path, 1, "spark://local", slug_of)


@pytest.mark.skipif(find_spec("pyspark") is None or find_spec("grpc") is None, reason="Spark is not installed")
async def test_a_server_out_of_reach_is_named(tmp_path: Path) -> None:
    executor = executor_here(tmp_path, 1, "sc://127.0.0.1:1/;token=secret", slug_of)
    assert executor is not None
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 .*out of reach") as refused:
        await executor.verify()
    assert "secret" not in refused.value.message
    assert not isinstance(refused.value, Conflict)
