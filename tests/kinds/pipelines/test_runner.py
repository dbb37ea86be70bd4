"""Pipelines on DuckDB: tables out of tables, what makes them run, what is refused."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from sqlalchemy import func, select, update

from rota.core.errors import Conflict, Invalid, NotFound
from rota.core.ids import new_id
from rota.core.model import AttemptResult, Job
from rota.core.states import Status
from rota.db.crash_points import at_each_statement
from rota.db.dialect import Tx
from rota.db.tables import jobs, logs, pipeline_triggers, runs
from rota.engine import claiming, orgs
from rota.engine.maintenance import Maintenance
from rota.engine.runner import RunContext
from rota.kinds.pipelines import store as pipelines_store
from rota.kinds.pipelines.duckdb import DuckDB
from rota.kinds.pipelines.manager import CooldownActive, fire_webhook
from rota.kinds.pipelines.registry import PipelineRegistry
from rota.reports import runs as run_reports
from tests.databases import commit_when_awaited, on_postgresql
from tests.engine.harness import DAY, NINE, at
from tests.kinds.pipelines.harness import PipelineHarness, open_pipeline_harness

ORDERS, TOTALS, REPORT = "sales/bronze/orders", "sales/silver/daily_totals", "sales/gold/report"
MADE = "SELECT range AS id, range % 30 AS day, range % 7 AS amount FROM range(1000)"
DAILY = "SELECT day, sum(amount)::BIGINT AS total FROM sales.bronze.orders GROUP BY day"


@pytest.fixture
async def harness(clean_url: str, tmp_path: Path) -> AsyncIterator[PipelineHarness]:
    harness = await open_pipeline_harness(clean_url, tmp_path / "warehouse")
    yield harness
    try:
        await harness.check()
    finally:
        await harness.close()


def table(harness: PipelineHarness, path: str, place: Path) -> list[Any]:
    """Return the rows of a pipeline's Parquet file."""
    result = duckdb.execute(f"SELECT * FROM '{place}/warehouse/{harness.org_id}/{path}.parquet' ORDER BY ALL")
    return result.fetchall()


def files(place: Path) -> list[str]:
    """Return the files of tables and drafts, without those of fences."""
    files = [path for path in place.rglob("*") if path.is_file() and path.suffix != ".fence"]
    return sorted(path.name for path in files if "rota.db" not in path.name)


async def chain(harness: PipelineHarness) -> None:
    """Orders → daily totals → report."""
    await harness.pipeline(ORDERS, MADE)
    await harness.pipeline(TOTALS, DAILY)
    await harness.pipeline(REPORT, "SELECT sum(total)::BIGINT AS total FROM sales.silver.daily_totals")
    await harness.trigger(TOTALS, "pipeline_success", upstream=ORDERS)
    await harness.trigger(REPORT, "pipeline_success", upstream=TOTALS)


# tables


async def test_sql_makes_a_table_that_others_read(harness: PipelineHarness, tmp_path: Path) -> None:
    await chain(harness)
    assert (await harness.run(ORDERS))["outcome"]["rows_written"] == 1000
    assert len(table(harness, TOTALS, tmp_path)) == 30
    assert table(harness, REPORT, tmp_path) == [(sum(n % 7 for n in range(1000)),)]
    assert await harness.ran() == [
        f"{ORDERS} manual success",
        f"{TOTALS} pipeline_success:{ORDERS} success",
        f"{REPORT} pipeline_success:{TOTALS} success",
    ]
    said = [row.text for row in await harness.rows(select(logs).order_by(logs.c.id))]
    assert said[0].startswith(f"{ORDERS}: 1000 rows in ")


async def test_a_run_that_fails_leaves_the_table_as_it_was(harness: PipelineHarness, tmp_path: Path) -> None:
    await harness.pipeline(ORDERS, "SELECT 1 AS id")
    await harness.run(ORDERS)
    await harness.manager.edit(ORDERS, {"sql": "SELECT CAST('x' || range AS INTEGER) AS id FROM range(5)"})
    failed = await harness.run(ORDERS)
    assert (failed["status"], failed["reason"], failed["error"]["type"]) == ("failed", "logic", "ConversionException")
    assert (failed["target_version"], failed["outcome"]) == ("2", None)
    assert table(harness, ORDERS, tmp_path) == [(1,)]
    assert files(tmp_path) == ["orders.parquet"]


async def test_a_missing_table_is_reported(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS, MADE)
    await harness.pipeline(TOTALS, DAILY)
    failed = await harness.run(TOTALS)
    assert failed["error"]["message"] == f"pipeline {ORDERS!r} has no table yet; run it first"


async def test_functions_are_given_a_connection_and_return_a_relation(harness: PipelineHarness, tmp_path: Path) -> None:
    @harness.program.pipeline(ORDERS)
    def orders(con: duckdb.DuckDBPyConnection, ctx: RunContext, count: int = 3) -> duckdb.DuckDBPyRelation:
        """Orders as they come."""
        ctx.log.line("stdout", "making orders")
        return con.sql(f"SELECT range AS id FROM range({count})")

    @harness.program.pipeline(TOTALS, reads=[ORDERS], after=ORDERS)
    async def totals(con: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        return con.sql("SELECT count(*) AS orders FROM sales.bronze.orders")

    harness.program.pipeline(REPORT, "SELECT orders * 2 AS twice FROM sales.silver.daily_totals", after=TOTALS)
    await harness.declare()
    await harness.declare()  # idempotent
    assert (await harness.run(ORDERS, {"count": 5}))["outcome"]["rows_written"] == 5
    assert table(harness, REPORT, tmp_path) == [(10,)]
    pipeline = await harness.manager.find(ORDERS)
    assert (pipeline["type"], pipeline["function"], pipeline["source"], pipeline["version"]) == (
        "python",
        ORDERS,
        "code",
        1,
    )
    assert pipeline["description"] == "Orders as they come."
    assert [row.text for row in await harness.rows(select(logs).where(logs.c.stream == "stdout"))] == ["making orders"]
    with pytest.raises(Invalid, match=r"input\.cuont"):
        await harness.manager.run(ORDERS, {"cuont": 5})
    with pytest.raises(Conflict, match="is declared by a program"):
        await harness.manager.edit(ORDERS, {"function": TOTALS})


async def test_what_a_program_declares_follows_the_program(harness: PipelineHarness) -> None:
    harness.program.pipeline(ORDERS, "SELECT 1 AS a")
    harness.program.pipeline(TOTALS, "SELECT 2 AS a", after=ORDERS)
    await harness.declare()
    harness.program.pipelines = PipelineRegistry()
    harness.program.pipeline(ORDERS, "SELECT 3 AS a")
    harness.program.pipeline(TOTALS, "SELECT 2 AS a")
    await harness.declare()
    assert [(await harness.manager.find(path))["version"] for path in (ORDERS, TOTALS)] == [2, 1]
    assert await harness.db.read(pipelines_store.list_triggers, harness.org_id, TOTALS) == []


async def test_a_program_may_turn_a_chain_round(harness: PipelineHarness) -> None:
    for first, second in ((ORDERS, TOTALS), (TOTALS, ORDERS)):
        harness.program.pipelines = PipelineRegistry()
        harness.program.pipeline(first, "SELECT 1 AS a")
        harness.program.pipeline(second, "SELECT 1 AS a", after=first)
        await harness.declare()
        edges = (await harness.db.read(pipelines_store.graph, harness.org_id))["edges"]
        assert edges == [{"from": first, "to": second, "kind": "pipeline_success"}]


async def test_a_stored_pipeline_may_use_a_function_of_a_program(harness: PipelineHarness, tmp_path: Path) -> None:
    harness.program.pipeline(ORDERS, "SELECT 5 AS a")

    @harness.program.pipeline(TOTALS, reads=[ORDERS])
    def twice(con: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        return con.sql("SELECT a * 2 AS b FROM sales.bronze.orders")

    await harness.declare()
    await harness.run(ORDERS)
    await harness.pipeline("other/gold/copy", type="python", sql=None, function=TOTALS)
    assert (await harness.run("other/gold/copy"))["status"] == "success"
    assert table(harness, "other/gold/copy", tmp_path) == [(10,)]


async def test_a_function_that_returns_something_else_fails(harness: PipelineHarness) -> None:
    @harness.program.pipeline(ORDERS)
    def orders() -> int:
        return 3

    await harness.declare()
    failed = await harness.run(ORDERS)
    assert "must return a relation" in failed["error"]["message"]


async def test_a_long_statement_is_canceled_at_once(harness: PipelineHarness) -> None:
    await harness.pipeline(
        ORDERS, "SELECT count(*) AS n FROM range(1000000) a, range(1000000) b WHERE hash(a.range + b.range) = 3"
    )
    job_id = await harness.manager.run(ORDERS)
    await harness.worker.prefetch.claim()
    executor = harness.manager.runner.executor
    assert executor is not None
    (active_run,) = harness.worker.active.values()
    for _ in range(2000):
        if executor.capacity() < 4:
            break
        await asyncio.sleep(0.01)
    await harness.engine.cancel(harness.org_id, job_id)
    async with asyncio.timeout(20):
        await harness.work()
    assert await harness.ran() == [f"{ORDERS} manual canceled: operator"]
    assert (executor.capacity(), active_run.task is not None and active_run.task.done()) == (4, True)


async def test_a_spare_database_is_opened_after_a_run_and_used_once(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS)
    executor = harness.manager.runner.executor
    assert isinstance(executor, DuckDB)
    used = []
    for _ in range(3):
        await harness.run(ORDERS)
        spare = await asyncio.wrap_future(executor.spares[0])
        used.append(spare)
        assert spare.execute("SELECT current_setting('lock_configuration')").fetchone() == (False,)
    assert len({id(database) for database in used}) == 3
    for database in used[:2]:
        with pytest.raises(duckdb.ConnectionException):  # closed with its run
            database.execute("SELECT 1")
    await harness.manager.runner.close()
    assert executor.spares == []
    with pytest.raises(duckdb.ConnectionException):
        used[2].execute("SELECT 1")


async def test_the_end_of_a_run_that_triggers_nothing_reads_its_triggers_in_one_statement(
    harness: PipelineHarness,
) -> None:
    await harness.pipeline(ORDERS)
    await harness.manager.run(ORDERS)
    await harness.worker.prefetch.claim()
    await harness.worker.cancellation.until_idle(60)
    texts: list[str] = []
    with at_each_statement(texts.append):
        await harness.worker.completer.flush()
    assert [run.split()[-1] for run in await harness.ran()] == ["success"]
    assert len([text for text in texts if "pipeline_" in text]) == 1
    statements = [text for text in texts if text not in ("BEGIN IMMEDIATE", "COMMIT")]
    assert (len(statements), texts.count("COMMIT")) == (5 if harness.db.survives_partition else 6, 1)


# what SQL may do


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELEC 1", "is not SQL: Parser Error: syntax error"),
        ("SELECT 1; SELECT 2", "is not a single SELECT"),
        ("", "is empty"),
        ("-- nothing", "is not a single SELECT"),
        ("SELECT 1; -- the end", "is not SQL: Parser Error"),
        ("SELECT 1) TO '/tmp/x' (FORMAT csv); --", "is not SQL: Parser Error"),
        ("ATTACH '/tmp/x.duckdb'", "is not a single SELECT"),
        ("COPY (SELECT 1) TO '/tmp/x.csv'", "is not a single SELECT"),
        ("INSTALL httpfs", "is not a single SELECT"),
        ("CREATE TABLE x AS SELECT 1", "is not a single SELECT"),
        ("SET enable_external_access = true", "is not a single SELECT"),
        ("SELECT * FROM orders", "is not the table of a pipeline, namespace.layer.name"),
        ("SELECT * FROM sales.orders", "is not the table of a pipeline"),
        ("SELECT * FROM sales.platinum.orders", "is not the table of a pipeline"),
        ("SELECT * FROM sales.bronze.nothing", "is read, but is not a pipeline"),
        ("SELECT * FROM '/etc/passwd'", "is not the table of a pipeline"),
        ("SELECT * FROM sales.silver.daily_totals", "cannot be read by the pipeline that makes it"),
    ],
)
async def test_sql_is_one_query_over_tables_of_pipelines(harness: PipelineHarness, sql: str, message: str) -> None:
    await harness.pipeline(TOTALS, "SELECT 1 AS one")
    with pytest.raises(Invalid) as refused:
        await harness.manager.edit(TOTALS, {"sql": sql})
    assert message in refused.value.message
    assert refused.value.field == "sql"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM read_csv('http://127.0.0.1:1/x.csv')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM query('SELECT * FROM read_text(''/etc/hostname'')')",
        "SELECT * FROM read_parquet('{other}')",
    ],
)
async def test_the_door_is_locked(harness: PipelineHarness, sql: str, tmp_path: Path) -> None:
    """What the text of a query does not show, the settings of the executor refuse."""
    await harness.pipeline(ORDERS)
    await harness.run(ORDERS)
    sql = sql.format(other=tmp_path / "warehouse" / harness.org_id / f"{ORDERS}.parquet")
    await harness.pipeline(TOTALS, sql)
    failed = await harness.run(TOTALS)
    assert (failed["status"], failed["error"]["type"]) == ("failed", "PermissionException")
    with pytest.raises(Invalid, match="disabled by configuration"):
        await harness.manager.preview(TOTALS)


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH '{place}/x.duckdb'",
        "COPY (SELECT 1) TO '{place}/x.csv'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET allowed_paths = ['/etc']",
        "EXPORT DATABASE '{place}/x'",
    ],
)
async def test_functions_stay_behind_the_same_door(harness: PipelineHarness, statement: str, tmp_path: Path) -> None:
    @harness.program.pipeline(ORDERS)
    def orders(con: duckdb.DuckDBPyConnection) -> None:
        con.execute(statement.format(place=tmp_path))

    await harness.declare()
    failed = await harness.run(ORDERS)
    assert failed["status"] == "failed"
    assert "configuration" in failed["error"]["message"]
    assert files(tmp_path) == []


async def test_names_that_a_query_gives_itself_are_no_tables(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS)
    sql = "WITH o AS (FROM sales.bronze.orders), n AS (SELECT * FROM range(3)) SELECT o.* FROM o, n -- that is all;"
    made = await harness.pipeline(TOTALS, f"{sql}\n")
    assert made["reads"] == [ORDERS]
    await harness.run(ORDERS)
    assert (await harness.run(TOTALS))["outcome"]["rows_written"] == 3


async def test_preview_and_validation_write_nothing(harness: PipelineHarness, tmp_path: Path) -> None:
    await chain(harness)
    assert await harness.manager.validate(TOTALS) == {
        "ok": False,
        "reads": [],
        "columns": [],
        "error": f"sql: {DAILY!r} fails: pipeline {ORDERS!r} has no table yet; run it first",
    }
    shown = await harness.manager.preview(ORDERS)
    assert [column["name"] for column in shown["columns"]] == ["id", "day", "amount"]
    assert (len(shown["rows"]), shown["rows"][8]) == (50, [8, 8, 1])
    odd = await harness.manager.preview(
        ORDERS, "SELECT 2::HUGEINT ** 100 AS huge, DATE '2026-05-04' AS day, [1, 2] AS list"
    )
    assert odd["rows"][0][1:] == ["2026-05-04", "[1, 2]"]
    draft = await harness.manager.validate(ORDERS, "SELECT nothing FROM range(3)")
    assert (draft["ok"], "Binder Error" in draft["error"]) == (False, True)
    assert files(tmp_path) == []
    await harness.run(ORDERS)
    good = await harness.manager.validate(TOTALS)
    assert (good["ok"], good["reads"]) == (True, [ORDERS])
    assert good["columns"] == [{"name": "day", "type": "BIGINT"}, {"name": "total", "type": "BIGINT"}]


# names, versions, deletion


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("Sales/bronze/orders", "namespace"),
        ("sales/bronze/Orders", "name"),
        ("sales/bronze/..", "name"),
        ("../bronze/x", "namespace"),
        ("sales/bronze/9lives", "name"),
        ("sales/bronze/ordérs", "name"),
        ("sales/bronze/" + "x" * 61, "name"),
        ("sales/platinum/orders", "layer"),
        ("sales/BRONZE/orders", "layer"),
    ],
)
async def test_names_are_slugs_and_layers_are_three(harness: PipelineHarness, path: str, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        await harness.pipeline(path)
    assert refused.value.field == field


async def test_a_pipeline_has_versions_and_its_runs_name_theirs(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS, "SELECT 1 AS a")
    with pytest.raises(Conflict, match="PUT writes its next version"):
        await harness.pipeline(ORDERS)
    first = await harness.run(ORDERS)
    await harness.manager.edit(ORDERS, {"sql": "SELECT 2 AS a", "description": "two"})
    same = await harness.manager.edit(ORDERS, {"sql": "SELECT 2 AS a", "description": "still two"})
    assert (same["version"], same["description"], first["target_version"]) == (2, "still two", "1")
    assert (await harness.run(ORDERS))["target_version"] == "2"
    kept = await harness.db.read(pipelines_store.list_versions, harness.org_id, ORDERS)
    assert [(version["version"], version["sql"]) for version in kept] == [(2, "SELECT 2 AS a"), (1, "SELECT 1 AS a")]


async def test_a_deleted_pipeline_takes_its_schedules_and_triggers_along(harness: PipelineHarness) -> None:
    await chain(harness)
    await harness.plan(REPORT)
    with pytest.raises(Conflict, match=f"is the upstream of a trigger of '{REPORT}'"):
        await harness.manager.delete(TOTALS)
    await harness.manager.delete(REPORT)
    await harness.manager.delete(TOTALS)
    await harness.run_until(at("11:00"))
    assert await harness.ran() == []
    assert (await harness.run(ORDERS))["status"] == "success"
    assert len(await harness.ran()) == 1
    again = await harness.pipeline(REPORT)  # the name is free
    assert again["version"] == 1
    with pytest.raises(NotFound):
        await harness.manager.find(TOTALS)


async def test_a_job_whose_pipeline_went_fails(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS)
    await harness.manager.run(ORDERS)
    await harness.manager.delete(ORDERS)
    await harness.run_due()
    assert await harness.ran() == [f"{ORDERS} manual failed: logic"]


# triggers


async def test_circles_are_refused(harness: PipelineHarness) -> None:
    await chain(harness)
    for path, upstream in ((ORDERS, ORDERS), (ORDERS, REPORT), (TOTALS, REPORT)):
        with pytest.raises(Invalid, match="the triggers would form a cycle"):
            await harness.trigger(path, "pipeline_success", upstream=upstream)
    with pytest.raises(Invalid, match="the triggers would form a cycle"):
        await harness.trigger(ORDERS, "cron_dependency", upstreams=[REPORT], cron_expression="0 * * * *")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"type": "landing_zone"}, "type"),
        ({}, "type"),
        ({"type": "pipeline_success"}, "upstreams"),
        ({"type": "pipeline_success", "upstream": "sales/bronze/nothing"}, "upstream"),
        ({"type": "pipeline_success", "upstream": "orders"}, "upstream"),
        ({"type": "pipeline_success", "upstreams": ["sales/bronze/a", "sales/bronze/b"]}, "upstreams"),
        ({"type": "pipeline_success", "upstream": ORDERS, "cron_expression": "0 * * * *"}, "cron_expression"),
        ({"type": "cron_dependency", "upstreams": [ORDERS]}, "cron_expression"),
        ({"type": "cron_dependency", "upstreams": [ORDERS], "cron_expression": "61 * * * *"}, "cron_expression"),
        ({"type": "cron_dependency", "cron_expression": "0 * * * *"}, "upstreams"),
        ({"type": "webhook", "upstream": ORDERS}, "upstreams"),
        ({"type": "webhook", "cooldown_seconds": -1}, "cooldown_seconds"),
        ({"type": "webhook", "token": "mine"}, "token"),
    ],
)
async def test_a_trigger_that_makes_no_sense_is_refused(
    harness: PipelineHarness, body: dict[str, Any], field: str
) -> None:
    await harness.pipeline(ORDERS)
    await harness.pipeline(TOTALS)
    with pytest.raises(Invalid) as refused:
        await harness.manager.add_trigger(TOTALS, body)
    assert refused.value.field == field
    assert await harness.rows(select(func.count()).select_from(pipeline_triggers)) == [(0,)]


async def test_a_failed_upstream_triggers_nothing(harness: PipelineHarness) -> None:
    await chain(harness)
    await harness.manager.edit(ORDERS, {"sql": "SELECT error('no') AS x"})
    await harness.run(ORDERS)
    assert await harness.ran() == [f"{ORDERS} manual failed: logic"]


async def test_a_trigger_cools_down(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS)
    await harness.pipeline(TOTALS)
    made, _ = await harness.trigger(TOTALS, "pipeline_success", upstream=ORDERS, cooldown_seconds=60)
    for time in ("9:00", "9:00:59", "9:01:00"):
        harness.clock.set(at(time))
        await harness.run(ORDERS)
    assert len([line for line in await harness.ran() if line.startswith(TOTALS)]) == 2
    await harness.manager.edit_trigger(TOTALS, made["id"], {"enabled": False})
    harness.clock.set(at("10:00"))
    await harness.run(ORDERS)
    assert len([line for line in await harness.ran() if line.startswith(TOTALS)]) == 2


async def test_successes_join_a_run_that_has_not_begun(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS)
    await harness.pipeline(TOTALS)
    await harness.trigger(TOTALS, "pipeline_success", upstream=ORDERS)
    held = [await harness.manager.run(ORDERS) for _ in range(3)]
    await harness.write(update(jobs).values(priority=1))  # before what the trigger makes
    await harness.engine.set_queue(harness.org_id, "default", max_running=1, paused=False)
    await harness.run_due()
    assert [line.split()[0] for line in await harness.ran()] == [ORDERS] * len(held) + [TOTALS]


async def test_a_dependency_runs_at_its_slot_when_all_upstreams_are_new(harness: PipelineHarness) -> None:
    for path in (ORDERS, "sales/bronze/returns", TOTALS):
        await harness.pipeline(path)
    upstreams = [ORDERS, "sales/bronze/returns"]
    made, _ = await harness.trigger(TOTALS, "cron_dependency", upstreams=upstreams, cron_expression="0 * * * *")
    assert (made["cron_expression"], made["upstreams"]) == ("0 * * * *", upstreams)
    text = f"{TOTALS} cron_dependency:0 * * * *"

    async def runs_of_totals() -> list[str]:
        return [line for line in await harness.ran() if line.startswith(TOTALS)]

    await harness.run_until(at("10:00"))  # nothing is new: the slot passes, and the trigger waits
    assert await runs_of_totals() == [f"{text} skipped: upstream"]
    await harness.run(ORDERS)
    assert len(await runs_of_totals()) == 1  # one of two
    await harness.run("sales/bronze/returns")  # the last of them fires it, late
    assert await runs_of_totals() == [f"{text} skipped: upstream", f"{text} success"]
    await harness.run(ORDERS)
    await harness.run("sales/bronze/returns")  # before the next slot: nothing happens yet
    assert len(await runs_of_totals()) == 2
    await harness.run_until(at("11:00"))
    assert (await runs_of_totals())[2:] == [f"{text} success"]
    await harness.run_until(at("12:00"))  # they did not succeed anew
    assert (await runs_of_totals())[3:] == [f"{text} skipped: upstream"]
    await harness.manager.delete_trigger(TOTALS, made["id"])
    await harness.run_until(at("13:00"))
    assert len(await runs_of_totals()) == 4


async def test_an_attempt_after_a_crash_keeps_the_claim_of_the_first(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS)
    await harness.pipeline(TOTALS)
    await harness.trigger(TOTALS, "cron_dependency", upstreams=[ORDERS], cron_expression="0 * * * *")
    await harness.run(ORDERS)
    harness.clock.set(at("10:00"))
    await harness.fire()
    (job,) = await harness.rows(select(jobs))
    held = (await harness.db.tx(claim_all))[0]
    assert await harness.db.tx(pipelines_store.claim_slot, held, at("10:00"))  # then its worker dies
    assert await harness.db.tx(pipelines_store.claim_slot, held, at("10:01"))  # the next claim works
    assert held.id == job.id
    await harness.write(update(jobs).values(state="ready", lease_owner=None))
    await harness.run_due()
    assert (await harness.ran())[1:] == [f"{TOTALS} cron_dependency:0 * * * * success"]


@on_postgresql
@pytest.mark.parametrize("first", ["slot", "upstream"])
async def test_a_slot_and_the_last_upstream_do_not_miss_each_other(harness: PipelineHarness, first: str) -> None:
    await harness.pipeline(ORDERS)
    await harness.pipeline(TOTALS)
    await harness.trigger(TOTALS, "cron_dependency", upstreams=[ORDERS], cron_expression="0 * * * *")
    now = at("10:00")
    harness.clock.set(now)
    await harness.fire()
    (slot_job,) = await harness.db.tx(claim_all)
    await harness.manager.run(ORDERS)
    (upstream_job,) = await harness.db.tx(claim_all)
    ended = [AttemptResult(upstream_job, Status.SUCCESS, None, now, new_id(), 1, now)]
    opened = await harness.db.begin()
    if first == "slot":
        assert not await opened.run(pipelines_store.claim_slot, slot_job, now)
        await commit_when_awaited(harness.db, opened, harness.db.tx(pipelines_store.follow, ended, now))
        triggered = select(jobs.c.trigger).where(jobs.c.solo_key.is_not(None))
        assert [row.trigger for row in await harness.rows(triggered)] == ["cron_dependency:0 * * * *"]
    else:
        await opened.run(pipelines_store.follow, ended, now)
        slot = harness.db.tx(pipelines_store.claim_slot, slot_job, now)
        assert await commit_when_awaited(harness.db, opened, slot)


def claim_all(tx: Tx) -> list[Job]:
    return claiming.claim(tx, claiming.lanes(tx), worker="w", routes=["pipeline:sql"], room=9, turn=0)


async def test_a_webhook_opens_to_its_token_alone(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS)
    made, token = await harness.trigger(ORDERS, "webhook", cooldown_seconds=30)
    assert token is not None
    (row,) = await harness.rows(select(pipeline_triggers))
    assert token not in str(row)  # only its hash is kept
    with pytest.raises(NotFound):
        await fire_webhook(harness.engine, "wrong")
    job_id = await fire_webhook(harness.engine, token)
    await harness.run_due()
    assert await harness.ran() == [f"{ORDERS} webhook:{made['id']} success"]
    assert (await harness.manager.trigger(ORDERS, made["id"]))["last_job_id"] == job_id
    harness.clock.set(NINE + timedelta(seconds=10))
    with pytest.raises(CooldownActive) as refused:
        await fire_webhook(harness.engine, token)
    assert refused.value.seconds == 20
    harness.clock.set(NINE + timedelta(seconds=30))
    await fire_webhook(harness.engine, token)
    await harness.run_due()
    await harness.manager.delete_trigger(ORDERS, made["id"])
    with pytest.raises(NotFound):
        await fire_webhook(harness.engine, token)


async def test_concurrent_fires_of_a_trigger_fire_it_once(harness: PipelineHarness) -> None:
    """Compare-and-set: a fire that read the trigger before another fire won does nothing."""
    await harness.pipeline(ORDERS)
    made, _ = await harness.trigger(ORDERS, "webhook", cooldown_seconds=60)
    (row,) = await harness.rows(select(pipeline_triggers))
    answers = [await harness.db.tx(pipelines_store.claim_trigger, row, job, NINE) for job in ("first", "second")]
    assert answers == [True, False]
    assert (await harness.manager.trigger(ORDERS, made["id"]))["last_job_id"] == "first"


async def test_webhooks_called_by_many_at_once_fire_once_per_cooldown(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS)
    _, token = await harness.trigger(ORDERS, "webhook", cooldown_seconds=60)
    assert token is not None
    answers = await asyncio.gather(*(fire_webhook(harness.engine, token) for _ in range(8)), return_exceptions=True)
    assert len([answer for answer in answers if isinstance(answer, str)]) == 1
    assert len([answer for answer in answers if isinstance(answer, CooldownActive)]) == 7


# lineage, lists, grants, retention


async def test_lineage_has_triggers_and_tables(harness: PipelineHarness) -> None:
    await chain(harness)
    await harness.trigger(REPORT, "cron_dependency", upstreams=[ORDERS], cron_expression="0 6 * * *")
    graph = await harness.db.read(pipelines_store.graph, harness.org_id)
    assert [node["path"] for node in graph["nodes"]] == [ORDERS, REPORT, TOTALS]
    assert {(edge["from"], edge["to"], edge["kind"]) for edge in graph["edges"]} == {
        (ORDERS, TOTALS, "reads"),
        (ORDERS, TOTALS, "pipeline_success"),
        (TOTALS, REPORT, "reads"),
        (TOTALS, REPORT, "pipeline_success"),
        (ORDERS, REPORT, "cron_dependency"),
    }


async def test_runs_are_found_by_the_parts_of_the_path(harness: PipelineHarness) -> None:
    paths = ["sales/bronze/a", "sales/silver/a", "sal_s/bronze/b", "other/gold/a"]
    for path in paths:
        await harness.pipeline(path)
        await harness.run(path)

    async def found(**wanted: Any) -> set[str]:
        items, _ = await harness.db.read(run_reports.list_runs, harness.org_id, **wanted)
        return {item["target"] for item in items}

    assert await found(namespace="sales") == {"sales/bronze/a", "sales/silver/a"}
    assert await found(namespace="sal_s") == {"sal_s/bronze/b"}  # no wildcard
    assert await found(layer="bronze") == {"sales/bronze/a", "sal_s/bronze/b"}
    assert await found(pipeline="a") == {"sales/bronze/a", "sales/silver/a", "other/gold/a"}
    assert await found(namespace="sales", layer="silver", pipeline="a") == {"sales/silver/a"}
    assert await found(layer="bronze", status=Status.FAILED) == set()
    assert await found(layer="bronze", since=NINE + DAY) == set()
    await harness.manager.run("other/gold/a")
    assert await found(layer="gold", status=Status.PENDING) == {"other/gold/a"}
    await harness.run_due()


async def test_a_schedule_may_run_under_a_grant_for_its_pipeline(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS)
    owner = await harness.db.tx(orgs.system_user, harness.org_id, NINE)
    grants = [
        await harness.engine.create_grant(harness.org_id, owner, [f"pipeline:run:{path}"]) for path in (ORDERS, TOTALS)
    ]
    with pytest.raises(Invalid, match="grant_scope"):
        await harness.plan(ORDERS, grant_id=grants[1])
    await harness.plan(ORDERS, grant_id=grants[0])
    await harness.run_until(at("10:00"))
    await harness.engine.revoke_grant(harness.org_id, grants[0])
    await harness.run_until(at("11:00"))
    cron = f"{ORDERS} schedule:0 * * * *"
    assert await harness.ran() == [f"{cron} success", f"{cron} skipped: grant_revoked"]


async def test_a_pipeline_keeps_as_many_runs_as_it_says(harness: PipelineHarness) -> None:
    await harness.pipeline(ORDERS, max_runs=2)
    await harness.pipeline(TOTALS, max_age_days=1)
    for _ in range(4):
        await harness.run(ORDERS)
    await harness.run(TOTALS)
    await harness.start_at(NINE + 2 * DAY)
    newest = (await harness.run(ORDERS))["id"]
    await Maintenance(harness.engine).prune(harness.clock.now())
    left = await harness.rows(select(runs.c.target, runs.c.id).order_by(runs.c.id))
    assert [row.target for row in left] == [ORDERS, ORDERS]
    assert left[-1].id == newest
    assert {row.run_id for row in await harness.rows(select(logs))} == {row.id for row in left}
