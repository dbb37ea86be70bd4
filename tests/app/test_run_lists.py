"""Lists of runs: their order does not depend on the order in which the database returns the rows."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from rota import Rota
from rota.db.statement import Statement
from rota.reports import runs as run_reports
from rota.testing import world
from tests.app.harness import Api


def waiting_and_ended() -> Rota:
    app = Rota()

    @app.task()
    def hello(number: int) -> int:
        return number

    return app


@pytest.mark.parametrize("limit", [2, 4, 50])
async def test_pages_of_runs_are_newest_first_in_whatever_order_the_rows_come(
    clean_url: str, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    shuffle = random.Random(limit).shuffle
    read_columns = Statement.columns

    def shuffled(statement: Statement, *args: Any, **params: Any) -> dict[str, Sequence[Any]]:
        columns = read_columns(statement, *args, **params)
        if not statement.summary.startswith("Return a page of runs"):
            return columns
        rows = list(zip(*columns.values(), strict=True))
        shuffle(rows)
        return dict(zip(columns, zip(*rows, strict=True), strict=True)) if rows else columns

    async with world(waiting_and_ended(), database_url=clean_url) as rota:
        for number in range(5):
            await rota.engine.enqueue(rota.org_id, "task", "hello", [{"number": number}])
            await rota.drain()
            await rota.advance(seconds=1)
        for number in range(5, 8):
            await rota.engine.enqueue(rota.org_id, "task", "hello", [{"number": number}])
        monkeypatch.setattr(Statement, "columns", shuffled)
        numbers: list[int] = []
        cursor: str | None = None
        while True:
            page, cursor = await rota.engine.db.read(run_reports.list_runs, rota.org_id, limit=limit, cursor=cursor)
            numbers += [run["input"]["number"] for run in page]
            if cursor is None:
                break
    assert numbers == [7, 6, 5, 4, 3, 2, 1, 0]


async def test_runs_that_were_never_prepared_are_found_by_the_name_of_their_task(api: Api) -> None:
    """They have only the id of the task."""
    task = (await api.call("POST", "/tasks", {"name": "disk", "command": "df"})).json()
    job_id = (await api.call("POST", "/jobs", {"target": "disk"})).json()["job_id"]
    assert (await api.call("POST", f"/runs/{job_id}/$cancel")).status_code == 202
    filters = [{"target": "disk"}, {"target": task["id"]}, {"target": "disk", "reason": "operator"}]
    for query in filters:
        assert [run["job_id"] for run in (await api.get("/runs", **query))["items"]] == [job_id], query
