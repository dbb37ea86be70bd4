"""A run that lost its lease cannot replace what a later run wrote."""

import asyncio
from pathlib import Path

import duckdb
import pytest

from rota.core.errors import LeaseLost
from rota.kinds.pipelines.executor import Connection, Materialisation, Write, executor_here

PATH = "sales/gold/report"


async def test_a_late_run_does_not_replace_the_table_of_a_later_one(tmp_path: Path) -> None:
    executor = executor_here(tmp_path, 2)
    assert executor is not None
    started, freed = asyncio.Event(), asyncio.Event()

    async def late(connection: Connection, write: Write) -> int | None:
        count = await write("SELECT 'late' AS text")
        started.set()
        await freed.wait()
        return count

    def order(run: str, work: object, fence: int) -> Materialisation:
        return Materialisation(run, "org", PATH, [], work, None, fence)  # type: ignore[arg-type]

    def table() -> object:
        return duckdb.execute(f"SELECT * FROM '{tmp_path}/org/{PATH}.parquet'").fetchall()

    running = asyncio.create_task(executor.submit(order("late", late, 7)))
    await started.wait()
    await executor.submit(order("next", "SELECT 'next' AS text", 8))
    freed.set()
    with pytest.raises(LeaseLost, match="report belongs to a later run"):
        await running
    with pytest.raises(LeaseLost):  # one that even starts late
        await executor.submit(order("later", "SELECT 'late' AS text", 7))
    assert table() == [("next",)]
    await executor.submit(order("retry", "SELECT 'retry' AS text", 9))
    assert table() == [("retry",)]
    assert [file.name for file in (tmp_path / "org/sales/gold").iterdir() if "next" in file.name] == []
    await executor.close()
