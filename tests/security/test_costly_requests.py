"""Small requests with a high cost."""

import asyncio
from typing import Any

import pytest

from rota.core.errors import Invalid
from rota.kinds.pipelines.duckdb import DuckDB, walk
from rota.kinds.workflows.runner import WorkflowRunner
from rota.kinds.workflows.scripts.sandbox import Sandbox
from tests.app.harness import Api

ORDERS = {"namespace": "sales", "layer": "bronze", "name": "orders"}


async def test_an_org_checks_two_scripts_at_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    loading, most = 0, 0
    full, release = asyncio.Event(), asyncio.Event()

    async def declare(self: Sandbox, source: str) -> Any:
        nonlocal loading, most
        loading += 1
        most = max(most, loading)
        if loading >= 2:
            full.set()
        await release.wait()
        loading -= 1
        raise Invalid("script", "…", "is refused")

    monkeypatch.setattr(Sandbox, "declare", declare)
    runner = api.engine.runners["workflow"]
    assert isinstance(runner, WorkflowRunner)
    body = {"script": "while True: pass"}
    paths = ["/workflows/$check", "/workflows"] * 4
    asked = [asyncio.ensure_future(api.call("POST", path, body)) for path in paths]
    async with asyncio.timeout(60):
        await full.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        release.set()
        answers = await asyncio.gather(*asked)
    assert [answer.status_code for answer in answers] == [422] * 8
    assert most == 2


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + "CASE WHEN true THEN " * 900 + "1" + " END" * 900 + " AS a",
        "SELECT " + "[" * 900 + "1" + "]" * 900 + " AS a",
        "SELECT " + "(" * 5000 + "1" + ")" * 5000 + " AS a",
        "SELECT * FROM " + "(SELECT * FROM " * 300 + "range(1)" + ")" * 300,
    ],
)
async def test_deeply_nested_sql_is_refused_or_taken_and_never_a_fault(api: Api, sql: str) -> None:
    answer = await api.call("POST", "/pipelines", {**ORDERS, "sql": sql})
    assert answer.status_code in (201, 422), answer.text
    preview = await api.call("POST", "/pipelines/sales/bronze/orders/$preview", {"sql": sql})
    assert preview.status_code in (200, 404, 422), preview.text


def test_a_syntax_tree_is_walked_however_deep_it_is() -> None:
    tree: dict[str, Any] = {}
    for _ in range(5000):
        tree = {"child": [tree]}
    assert sum(1 for _ in walk(tree)) == 5001


async def test_an_org_has_one_preview_at_a_time(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = DuckDB(tmp_path, 2)
    running, most = 0, 0
    original = executor.run

    async def run(con: Any, call: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await original(con, call)
        finally:
            running -= 1

    monkeypatch.setattr(executor, "run", run)
    await asyncio.gather(*(executor.preview("org", "SELECT 1 AS a", 10) for _ in range(4)))
    assert most == 1
