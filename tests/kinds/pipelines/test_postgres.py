"""Pipelines on PostgreSQL: the same behaviour as on DuckDB, and SQL that cannot leave its tables."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import duckdb
import ibis
import pandas
import psycopg
import pytest

from rota import PipelineTables
from rota.access.store import accounts
from rota.core.errors import Conflict, Invalid, Unavailable
from rota.kinds.pipelines.ibis_executor import place_of
from rota.kinds.pipelines.manager import PipelineManager
from tests.engine.harness import NINE
from tests.kinds.pipelines.harness import PipelineHarness, open_pipeline_harness
from tests.kinds.pipelines.warehouses import drop_schemas, postgres_warehouse, rows

ORDERS, TOTALS, REPORT = "sales/bronze/orders", "sales/silver/daily_totals", "sales/gold/report"
MADE = "SELECT id, id % 30 AS day, id % 7 AS amount FROM generate_series(0, 999) AS made(id)"
DAILY = "SELECT day, sum(amount) AS total FROM sales.bronze.orders GROUP BY day"
ENDLESS = "SELECT count(*) AS n FROM generate_series(1, 10000000000) AS a(x)"


@pytest.fixture(scope="module")
def warehouse(postgres_url: str) -> Iterator[str]:
    with postgres_warehouse(postgres_url) as url:
        yield url


@pytest.fixture
def empty_warehouse(warehouse: str) -> str:
    drop_schemas(warehouse)
    return warehouse


@pytest.fixture
async def harness(clean_url: str, empty_warehouse: str, tmp_path: Path) -> AsyncIterator[PipelineHarness]:
    harness = await open_pipeline_harness(clean_url, tmp_path, engine=empty_warehouse)
    yield harness
    try:
        await harness.check()
    finally:
        await harness.close()


async def until_counted(url: str, sql: str, count: int) -> None:
    for _ in range(400):
        if rows(url, sql) == [(count,)]:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(sql)


async def chain(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS, MADE)
    await harness.pipeline(TOTALS, DAILY)
    await harness.pipeline(REPORT, "SELECT sum(total) AS total FROM sales.silver.daily_totals;")
    await harness.trigger(TOTALS, "pipeline_success", upstream=ORDERS)
    await harness.trigger(REPORT, "pipeline_success", upstream=TOTALS)


async def test_sql_makes_tables_that_others_read(harness: PipelineHarness, empty_warehouse: str) -> None:
    await chain(harness)
    assert (await harness.run(ORDERS))["outcome"]["rows_written"] == 1000
    assert rows(empty_warehouse, "SELECT count(*) FROM sales_silver.daily_totals") == [(30,)]
    assert rows(empty_warehouse, "SELECT * FROM sales_gold.report") == [(sum(n % 7 for n in range(1000)),)]
    assert await harness.ran() == [
        f"{ORDERS} manual success",
        f"{TOTALS} pipeline_success:{ORDERS} success",
        f"{REPORT} pipeline_success:{TOTALS} success",
    ]
    assert (await harness.manager.find(TOTALS))["reads"] == [ORDERS]
    await harness.run(ORDERS)  # again: its tables are replaced
    assert rows(empty_warehouse, "SELECT count(*) FROM sales_bronze.orders") == [(1000,)]
    left = rows(empty_warehouse, "SELECT relname FROM pg_class WHERE relname LIKE 'rota%'")
    assert left == []


async def test_a_run_that_fails_leaves_the_table_as_it_was(harness: PipelineHarness, empty_warehouse: str) -> None:
    await harness.pipeline(ORDERS, "SELECT 1 AS id")
    await harness.run(ORDERS)
    await harness.manager.edit(ORDERS, {"sql": "SELECT 1 / (x - 1) AS id FROM generate_series(0, 3) AS a(x)"})
    failed = await harness.run(ORDERS)
    assert (failed["status"], failed["reason"], failed["error"]["type"]) == ("failed", "logic", "DivisionByZero")
    assert rows(empty_warehouse, "SELECT * FROM sales_bronze.orders") == [(1,)]


async def test_a_missing_table_is_reported(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS, MADE)
    await harness.pipeline(TOTALS, DAILY)
    assert (await harness.run(TOTALS))["error"]["message"] == f"pipeline {ORDERS!r} has no table yet; run it first"


async def test_functions_return_relations_ibis_tables_and_data_frames(
    harness: PipelineHarness, empty_warehouse: str
) -> None:
    @harness.program.pipeline(ORDERS)
    def orders(con: duckdb.DuckDBPyConnection, count: int = 3) -> duckdb.DuckDBPyRelation:
        return con.sql(f"SELECT range AS id, 'a' AS name FROM range({count})")

    @harness.program.pipeline(TOTALS, reads=[ORDERS], after=ORDERS)
    async def totals(tables: PipelineTables) -> ibis.Table:
        return tables[ORDERS].group_by("name").agg(orders=tables[ORDERS].id.count())

    @harness.program.pipeline(REPORT, reads=[TOTALS], after=TOTALS)
    def report(con: duckdb.DuckDBPyConnection) -> pandas.DataFrame:
        return con.sql("SELECT orders * 2 AS twice FROM sales.silver.daily_totals").df()

    await harness.declare()
    assert (await harness.run(ORDERS, {"count": 5}))["outcome"]["rows_written"] == 5
    assert rows(empty_warehouse, "SELECT * FROM sales_silver.daily_totals") == [("a", 5)]
    assert rows(empty_warehouse, "SELECT * FROM sales_gold.report") == [(10,)]


async def test_a_function_that_returns_something_else_or_reads_too_much_fails(harness: PipelineHarness) -> None:
    @harness.program.pipeline(ORDERS)
    def orders() -> int:
        return 3

    @harness.program.pipeline(TOTALS)
    def totals(tables: PipelineTables) -> object:
        return tables[ORDERS]

    await harness.declare()
    assert "must return an Ibis table" in (await harness.run(ORDERS))["error"]["message"]
    assert "add it to `reads`" in (await harness.run(TOTALS))["error"]["message"]


async def test_canceling_a_run_ends_its_statement_on_the_server(harness: PipelineHarness, empty_warehouse: str) -> None:
    await harness.pipeline(ORDERS, ENDLESS)
    job_id = await harness.manager.run(ORDERS)
    await harness.worker.prefetch.claim()
    active = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE TABLE%' AND state = 'active'"
    await until_counted(empty_warehouse, active, 1)
    await harness.engine.cancel(harness.org_id, job_id)
    await harness.work()
    assert await harness.ran() == [f"{ORDERS} manual canceled: operator"]
    await until_counted(empty_warehouse, active, 0)
    assert rows(empty_warehouse, "SELECT to_regclass('sales_bronze.orders')") == [(None,)]


async def test_a_preview_shows_first_rows_and_writes_nothing(harness: PipelineHarness, empty_warehouse: str) -> None:
    await harness.pipeline(ORDERS, MADE)
    await harness.run(ORDERS)
    preview = await harness.manager.preview(ORDERS, "SELECT id, 1.5 AS x FROM sales.bronze.orders ORDER BY id")
    assert preview["columns"] == [{"name": "id", "type": "int4"}, {"name": "x", "type": "numeric"}]
    assert (len(preview["rows"]), preview["rows"][1]) == (50, [1, "1.5"])
    assert (await harness.manager.validate(ORDERS, "SELECT nope FROM sales.bronze.orders"))["ok"] is False


async def test_an_endless_preview_ends_on_the_server(
    harness: PipelineHarness, empty_warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.kinds.pipelines.ibis_executor.PREVIEW_SECONDS", 0.5)
    await harness.pipeline(ORDERS, MADE)
    with pytest.raises(Invalid, match=r"took longer than 0.5 s|statement timeout"):
        await harness.manager.preview(ORDERS, ENDLESS)


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELECT",
        "DROP TABLE x",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE x",
        "INSERT INTO t VALUES (1)",
        "COPY (SELECT 1) TO '/tmp/x'",
        "SELECT 1 INTO made",
        "WITH gone AS (DELETE FROM sales.bronze.orders RETURNING *) SELECT * FROM gone",
        "SELECT * FROM sales.bronze.orders FOR UPDATE",
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT \"pg_read_file\"('/etc/passwd')",
        "SELECT pg_catalog.pg_read_file('/etc/passwd')",
        "SELECT * FROM pg_ls_dir('/')",
        "SELECT lo_import('/etc/passwd')",
        "SELECT * FROM dblink('host=x', 'SELECT 1') AS t(a int)",
        "SELECT public.dblink('host=x')",
        "SELECT query_to_xml('SELECT 1', true, true, '')",
        "SELECT set_config('role', 'postgres', false)",
        "SELECT pg_sleep(100)",
        "SELECT nextval('x')",
        "SELECT * FROM pg_catalog.pg_stats",
        "SELECT * FROM pg_stats",
        "SELECT * FROM pg_stats, (WITH pg_stats AS (SELECT 1) SELECT * FROM pg_stats) AS a",
        "SELECT * FROM sales_bronze.orders",
        "SELECT * FROM information_schema.tables",
        "SELECT 1 OPERATOR(public.+) 2",
        "SELECT $1",
        "SELECT :day",
        "EXPLAIN SELECT 1",
        "VACUUM",
        "TABLE pg_stats",
        "SELECT " + "(" * 5000 + "1" + ")" * 5000,
        'SELECT EXTRACT("day from now()); drop table x; --" FROM day) FROM sales.bronze.orders',
        'SELECT EXTRACT("day from now()), (select 1 from pg_stats), extract(day" FROM day) FROM sales.bronze.orders',
        'SELECT CAST(id AS VARCHAR("1)); drop table x; --")) FROM sales.bronze.orders',
        'SELECT CAST(id AS VARCHAR("1)), pg_sleep(1), cast(id as varchar(1")) FROM sales.bronze.orders',
        "SELECT * FROM XMLTABLE('/a' PASSING x COLUMNS a int)",
        "SELECT id::oid::regclass::text FROM sales.bronze.orders",
        "SELECT id::pg_catalog.regclass FROM sales.bronze.orders",
        "SELECT regclass(id) FROM sales.bronze.orders",
    ],
)
async def test_sql_that_is_no_plain_select_of_pipelines_is_refused(warehouse: str, sql: str, tmp_path: Path) -> None:
    from rota.kinds.pipelines.executor import executor_here

    async def slug_of(org_id: str) -> str:
        return "default"

    executor = executor_here(tmp_path, 1, warehouse, slug_of)
    assert executor is not None
    with pytest.raises(Invalid) as refused:
        executor.check(sql)
    assert refused.value.field == "sql"


async def test_sql_keeps_its_meaning(harness: PipelineHarness, empty_warehouse: str) -> None:
    """Names of tables in columns, quotes, comments, set operations, casts and WITH."""
    await harness.pipeline(ORDERS, MADE)
    await harness.run(ORDERS)
    sql = """
        WITH orders AS (SELECT id FROM sales.bronze.orders o WHERE o.id < 2) -- not the table
        SELECT id, 'it''s 100 % {x}' AS text, '1 day'::interval AS span FROM orders
        UNION ALL SELECT sales.bronze.orders.id, 'b', NULL FROM "sales".bronze.ORDERS WHERE orders.id = 5
    """
    await harness.pipeline(TOTALS, sql)
    assert (await harness.run(TOTALS))["outcome"]["rows_written"] == 3
    assert rows(empty_warehouse, "SELECT id, text FROM sales_silver.daily_totals ORDER BY id") == [
        (0, "it's 100 % {x}"),
        (1, "it's 100 % {x}"),
        (5, "b"),
    ]


async def test_functions_of_users_and_extensions_are_out_of_reach(
    harness: PipelineHarness, empty_warehouse: str
) -> None:
    with psycopg.connect(empty_warehouse) as con:
        con.execute("CREATE SCHEMA helpers")
        con.execute("CREATE FUNCTION helpers.helper() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    await harness.pipeline(ORDERS, "SELECT helper() AS a")
    assert (await harness.run(ORDERS))["error"]["type"] == "UndefinedFunction"


async def test_a_superuser_is_refused_when_a_pipeline_is_stored(
    clean_url: str, postgres_url: str, tmp_path: Path
) -> None:
    harness = await open_pipeline_harness(clean_url, tmp_path, engine=postgres_url)
    try:
        with pytest.raises(Conflict, match="superuser"):
            await harness.pipeline(ORDERS, MADE)
        harness.program.pipeline(ORDERS, MADE)
        with pytest.raises(Conflict, match="create a role of its own"):
            await harness.declare()
    finally:
        await harness.close()


async def test_wrong_credentials_and_addresses_are_named_without_the_password(
    clean_url: str, warehouse: str, tmp_path: Path
) -> None:
    wrong = {
        warehouse.rpartition("/")[0] + "/no_such_database": Conflict,
        warehouse.replace("//pipelines_", "//nobody_"): Conflict,
        "postgresql://me:secret@127.0.0.1:1/x": Unavailable,
    }
    for url, expected in wrong.items():
        harness = await open_pipeline_harness(clean_url, tmp_path, engine=url)
        try:
            with pytest.raises(expected, match=r"PostgreSQL .*127\.0\.0\.1|PostgreSQL localhost") as refused:
                await harness.pipeline(ORDERS, MADE)
            assert "secret" not in refused.value.message
        finally:
            await harness.close()


async def test_orgs_have_tables_of_their_own(harness: PipelineHarness, empty_warehouse: str) -> None:
    await harness.pipeline(ORDERS, "SELECT 1 AS id")
    await harness.run(ORDERS)
    other, _ = await harness.db.tx(accounts.create_org, "Acme", "acme", NINE)
    manager = PipelineManager(harness.engine, other)
    await manager.create({"namespace": "sales", "layer": "bronze", "name": "orders", "sql": "SELECT 2 AS id"})
    await manager.run(ORDERS)
    await harness.run_due()
    assert rows(empty_warehouse, "SELECT * FROM sales_bronze.orders") == [(1,)]
    assert rows(empty_warehouse, 'SELECT * FROM "acme.sales_bronze".orders') == [(2,)]


def test_long_names_stay_different() -> None:
    places = {place_of("default", f"{'n' * 59}{last}/silver/x").schema for last in "ab"}
    assert len(places) == 2
    assert all(len(schema) <= 63 for schema in places)
