"""Runs that change a part of their table: the same on DuckDB, PostgreSQL and Spark."""

from collections.abc import AsyncIterator, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import duckdb
import ibis
import pytest
from sqlalchemy import select

from rota import PipelineTables
from rota.core.errors import Invalid
from rota.db.tables import runs
from rota.kinds.pipelines import store
from tests.engine.harness import NINE, at
from tests.kinds.pipelines.harness import PipelineHarness, open_pipeline_harness
from tests.kinds.pipelines.spark_servers import require_spark
from tests.kinds.pipelines.warehouses import drop_schemas, postgres_warehouse

ORDERS, COPY = "sales/bronze/orders", "sales/silver/copy"
EMPTY = "SELECT * FROM (VALUES (1, 'a')) AS v(id, name) WHERE id > 1"


@pytest.fixture(scope="module")
def warehouse(postgres_url: str) -> Iterator[str]:
    with postgres_warehouse(postgres_url) as url:
        yield url


@pytest.fixture(params=["duckdb", "postgresql", pytest.param("spark", marks=[pytest.mark.long, pytest.mark.engines])])
async def harness(
    request: pytest.FixtureRequest, clean_url: str, warehouse: str, tmp_path: Path
) -> AsyncIterator[PipelineHarness]:
    engine = {"postgresql": warehouse, "duckdb": "", "spark": ""}[request.param]
    if request.param == "spark":
        engine = require_spark()
    drop_schemas(warehouse)
    harness = await open_pipeline_harness(clean_url, tmp_path, engine=engine)
    yield harness
    try:
        await harness.check()
    finally:
        await harness.close()


def values(*rows: tuple[object, ...], names: str = "id, name") -> str:
    return f"SELECT * FROM (VALUES {', '.join(str(row) for row in rows)}) AS v({names})"


async def write(harness: PipelineHarness, sql: str, **fields: Any) -> dict[str, Any]:
    """Save the SQL of the pipeline of orders, run it and return its run."""
    if (await harness.db.read(store.unknown, harness.org_id, [ORDERS])) == [ORDERS]:
        await harness.pipeline(ORDERS, sql, **fields)
        await harness.pipeline(COPY, "SELECT * FROM sales.bronze.orders")
    else:
        await harness.manager.edit(ORDERS, {"sql": sql, **fields})
    return await harness.run(ORDERS)


async def rows(harness: PipelineHarness) -> list[tuple[Any, ...]]:
    preview = await harness.manager.preview(COPY)
    return sorted(tuple(row) for row in preview["rows"])


async def test_append_adds_the_rows_above_the_last_value(harness: PipelineHarness) -> None:
    first = await write(harness, values((1, "a"), (2, "b")), append_by="id")
    assert first["outcome"]["rows_written"] == 2
    second = await write(harness, values((1, "x"), (2, "b"), (3, "c")), append_by="id")
    assert second["outcome"]["rows_written"] == 1
    assert (await harness.run(ORDERS))["outcome"]["rows_written"] == 0  # as a retry after a crash
    assert await rows(harness) == [(1, "a"), (2, "b"), (3, "c")]


async def test_append_to_an_empty_table_leaves_out_nulls(harness: PipelineHarness) -> None:
    await write(harness, EMPTY, append_by="id")
    sql = values((1, "a"), (2, "b")) + " UNION ALL SELECT CAST(NULL AS INTEGER), 'n'"
    assert (await write(harness, sql, append_by="id"))["outcome"]["rows_written"] == 2
    assert await rows(harness) == [(1, "a"), (2, "b")]


async def test_merge_replaces_rows_with_the_same_key(harness: PipelineHarness) -> None:
    await write(harness, values((1, "a", 1), (1, "b", 2), (2, "c", 3), names="id, name, n"), merge_by=["id", "name"])
    later = values((1, "b", 20), (3, "d", 4), names="id, name, n")
    assert (await write(harness, later, merge_by=["id", "name"]))["outcome"]["rows_written"] == 2
    assert await rows(harness) == [(1, "a", 1), (1, "b", 20), (2, "c", 3), (3, "d", 4)]


@pytest.mark.parametrize("wrong", ["(1, 'x'), (1, 'y')", "(5, 'x'), (NULL, 'y')"])
async def test_merge_refuses_keys_that_are_null_or_not_unique(harness: PipelineHarness, wrong: str) -> None:
    await write(harness, values((1, "a")), merge_by=["id"])
    failed = await write(harness, f"SELECT * FROM (VALUES {wrong}) AS v(id, name)", merge_by=["id"])
    assert (
        failed["error"]["message"] == "merge_by id: 1 keys of the new rows are null or not unique; nothing is written"
    )
    assert await rows(harness) == [(1, "a")]


async def test_changed_columns_are_refused_until_a_full_refresh(harness: PipelineHarness) -> None:
    await write(harness, values((1, "a")), append_by="id")
    failed = await write(harness, values((2, 3), names="id, total"), append_by="id")
    assert "columns of pipeline 'sales/bronze/orders' changed (name, total)" in failed["error"]["message"]
    assert (await harness.run(ORDERS, {"full_refresh": True}))["status"] == "success"
    assert await rows(harness) == [(2, 3)]


async def test_a_run_replaces_one_day_and_a_backfill_many(harness: PipelineHarness) -> None:
    days = ", ".join(f"(DATE '2026-03-0{day}', {day})" for day in range(1, 10))
    sql = f"SELECT * FROM (VALUES {days}) AS v(day, n)"
    await harness.pipeline(ORDERS, sql, partition_by="day")
    await harness.pipeline(COPY, "SELECT * FROM sales.bronze.orders")
    assert (await harness.run(ORDERS, {"day": "2026-03-02"}))["outcome"]["rows_written"] == 1
    await harness.manager.edit(ORDERS, {"sql": sql.replace("v(day, n)", "w(day, n)"), "partition_by": "day"})
    assert len(await harness.manager.backfill(ORDERS, date(2026, 3, 1), date(2026, 3, 4))) == 4
    await harness.run_due()
    assert await rows(harness) == [(f"2026-03-0{day}", day) for day in range(1, 5)]
    triggers = await harness.rows(select(runs.c.trigger).order_by(runs.c.id))
    assert [row.trigger for row in triggers] == ["manual", *["backfill"] * 4]


async def test_a_slot_writes_the_day_before_it_in_the_zone_of_its_schedule(harness: PipelineHarness) -> None:
    first = (NINE - timedelta(days=3)).date()
    days = ", ".join(f"(DATE '{first + timedelta(days=number)}', {number})" for number in range(8))
    await harness.pipeline(ORDERS, f"SELECT * FROM (VALUES {days}) AS v(day, n)", partition_by="day")
    await harness.pipeline(COPY, "SELECT * FROM sales.bronze.orders")
    await harness.plan(ORDERS, "0 10 * * *", timezone="Pacific/Kiritimati")  # 14 hours ahead: the slot is at 20:00 UTC
    await harness.start_at(at("20:00"))
    await harness.run_due()
    assert [row[0] for row in await rows(harness)] == [NINE.date().isoformat()]


async def test_functions_change_parts_and_get_the_day(harness: PipelineHarness) -> None:
    @harness.program.pipeline(ORDERS, partition_by="day")
    def orders(con: duckdb.DuckDBPyConnection, day: date, count: int = 2) -> duckdb.DuckDBPyRelation:
        return con.sql(f"SELECT DATE '{day}' AS day, range AS n FROM range({count})")

    harness.program.pipeline(COPY, "SELECT * FROM sales.bronze.orders", merge_by=["day", "n"])
    await harness.declare()
    pipeline = await harness.manager.find(ORDERS)
    assert (pipeline["partition_by"], pipeline["merge_by"], pipeline["append_by"]) == ("day", None, None)
    await harness.run(ORDERS, {"day": "2026-03-01", "count": 3})
    await harness.run(ORDERS, {"day": "2026-03-02"})
    await harness.run(ORDERS, {"day": "2026-03-01", "count": 1})
    await harness.run(COPY)
    assert await rows(harness) == [("2026-03-01", 0), ("2026-03-02", 0), ("2026-03-02", 1)]


async def test_wrong_ways_to_change_a_table_are_refused(harness: PipelineHarness) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"append_by": "id", "merge_by": ["id"]}, "merge_by"),
        ({"append_by": "id; DROP"}, "append_by"),
        ({"merge_by": []}, "merge_by"),
        ({"partition_by": ""}, "partition_by"),
    ]
    for fields, named in wrong:
        with pytest.raises(Invalid, match=named):
            await harness.pipeline(ORDERS, values((1, "a")), **fields)
    await harness.pipeline(ORDERS, values((1, "a")), partition_by="id")
    for payload in ({"day": "yesterday"}, {"day": "2026-02-30"}, {"other": 1}, {"full_refresh": 1}, {"day": 3}):
        with pytest.raises(Invalid, match="input"):
            await harness.manager.run(ORDERS, payload)
    await harness.pipeline(COPY, "SELECT * FROM sales.bronze.orders")
    for path, last in ((COPY, date(2026, 1, 2)), (ORDERS, date(2027, 6, 1)), (ORDERS, date(2025, 1, 1))):
        with pytest.raises(Invalid, match=r"no partitions|days after"):
            await harness.manager.backfill(path, date(2026, 1, 1), last)
    assert await harness.waiting() == []


async def test_a_change_of_the_way_is_a_version(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS, values((1, "a")), append_by="id")
    changed = await harness.manager.edit(ORDERS, {"sql": values((1, "a")), "merge_by": ["id"]})
    versions = await harness.db.read(store.list_versions, harness.org_id, ORDERS)
    assert changed["version"] == 2
    assert [(version["append_by"], version["merge_by"]) for version in versions] == [(None, ["id"]), ("id", None)]


async def test_a_preview_shows_the_beginning_of_a_long_text(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS, "SELECT 1 AS id")
    preview = await harness.manager.preview(ORDERS, "SELECT repeat('x', 1000000) AS text, 7 AS n, 1.5 AS x")
    assert preview["rows"] == [["x" * 1000, 7, "1.5"]]


async def test_a_chain_of_five_has_the_same_tables_and_ledger_on_each_engine(harness: PipelineHarness) -> None:
    """SQL and a function, replaced, appended and merged tables, and one that fails."""
    program = harness.program
    program.pipeline("shop/bronze/orders", values((1, 10, 3), (2, 10, 4), (3, 11, 5), names="id, day, amount"))
    kept = "SELECT id, day, amount FROM shop.bronze.orders WHERE amount > 3"
    program.pipeline("shop/silver/large", kept, append_by="id", after="shop/bronze/orders")

    @program.pipeline("shop/silver/days", reads=["shop/silver/large"], merge_by="day", after="shop/silver/large")
    def days(tables: PipelineTables) -> ibis.Table:
        large = tables["shop/silver/large"]
        return large.group_by("day").agg(orders=large.count(), best=large.amount.max())

    broken = "SELECT CAST('x' || best AS INTEGER) AS best FROM shop.silver.days"
    program.pipeline("shop/gold/broken", broken, after="shop/silver/days")
    program.pipeline("shop/gold/best", "SELECT max(best) AS best FROM shop.silver.days", after="shop/silver/days")
    await harness.declare()
    for _ in range(2):
        await harness.run("shop/bronze/orders")
    tables = {}
    for name in ("bronze.orders", "silver.large", "silver.days", "gold.best"):
        preview = await harness.manager.preview("shop/bronze/orders", f"SELECT * FROM shop.{name}")
        tables[name] = sorted(preview["rows"])
    assert tables == {
        "bronze.orders": [[1, 10, 3], [2, 10, 4], [3, 11, 5]],
        "silver.large": [[2, 10, 4], [3, 11, 5]],
        "silver.days": [[10, 1, 4], [11, 1, 5]],
        "gold.best": [[5]],
    }
    ledger = await harness.rows(select(runs.c.target, runs.c.status, runs.c.reason, runs.c.outcome).order_by(runs.c.id))
    written = [(row.target, row.status, row.reason, row.outcome and row.outcome["rows_written"]) for row in ledger]
    success = [("shop/bronze/orders", 3, 3), ("shop/silver/large", 2, 0), ("shop/silver/days", 2, 2)]
    expected: list[tuple[str, str, str | None, int | None]]
    expected = [(path, "success", None, counts[turn]) for path, *counts in success for turn in range(2)]
    expected += [("shop/gold/best", "success", None, 1), ("shop/gold/broken", "failed", "logic", None)] * 2
    assert sorted(written, key=str) == sorted(expected, key=str)
