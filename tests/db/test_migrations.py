"""A fresh schema equals a migrated one; migrations may race, and code refuses a schema from its future."""

import asyncio
import contextlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    inspect,
    select,
)
from sqlalchemy import text as sql
from sqlalchemy.exc import IntegrityError

from rota.core.errors import Unavailable
from rota.db.column_types import Double, Instant, Json
from rota.db.connection import open_database
from rota.db.dialect import Tx, on_sqlite
from rota.db.migrate import config_for, migrate, sql_to_head, upgrade
from rota.db.schema import check, revisions
from rota.db.tables import metadata
from tests.postgres import _execute as execute
from tests.postgres import create_database, drop_database


@pytest.fixture
def postgres_template() -> None:
    """These tests begin with nothing."""


def in_database(url: str, step: Any, writing: bool = True) -> Any:
    async def run() -> Any:
        db = open_database(url)
        try:
            return await (db.tx(step) if writing else db.read(step))
        finally:
            await db.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, run()).result()


def schema(tx: Tx) -> dict[str, Any]:
    """Return everything that the database reports about its tables."""
    schema: dict[str, Any] = {}
    about = inspect(tx)
    for name in sorted(about.get_table_names()):
        if name == "alembic_version":
            continue
        columns = [{**described, "type": str(described["type"])} for described in about.get_columns(name)]
        schema[name] = {
            "columns": sorted(columns, key=lambda described: described["name"]),
            "primary key": about.get_pk_constraint(name),
            "foreign keys": sorted(about.get_foreign_keys(name), key=str),
            "unique": sorted(about.get_unique_constraints(name), key=str),
            "checks": sorted(about.get_check_constraints(name), key=str),
        }
    if on_sqlite(tx):
        words = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY name"
    else:
        words = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY indexname"
        schema["sequences"] = about.get_sequence_names()
    schema["indexes"] = {
        name: " ".join(text.split()) for name, text in tx.execute(sql(words)).all() if "alembic" not in name
    }
    return schema


def test_a_fresh_schema_equals_a_migrated_one(
    database_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    migrate(database_url)
    migrated = in_database(database_url, schema, writing=False)
    if database_url.startswith("sqlite"):
        fresh_url = f"sqlite:///{tmp_path / 'fresh.db'}"
        in_database(fresh_url, metadata.create_all)
        fresh = in_database(fresh_url, schema, writing=False)
    else:
        server = request.getfixturevalue("postgres_url")
        fresh_url = create_database(server)
        try:
            in_database(fresh_url, metadata.create_all)
            fresh = in_database(fresh_url, schema, writing=False)
        finally:
            drop_database(server, fresh_url)
    assert migrated["indexes"]
    assert migrated == fresh


def test_alembic_finds_no_difference(database_url: str) -> None:
    migrate(database_url)

    def differences(tx: Tx) -> list[Any]:
        return list(compare_metadata(MigrationContext.configure(tx, opts={"compare_type": True}), metadata))

    assert in_database(database_url, differences, writing=False) == []


def test_downgrading_to_nothing_and_up_again(database_url: str) -> None:
    migrate(database_url)

    def down(tx: Tx) -> list[str]:
        command.downgrade(config_for(tx), "base")
        return [name for name in inspect(tx).get_table_names() if name != "alembic_version"]

    assert in_database(database_url, down) == []
    migrate(database_url)
    assert in_database(database_url, check, writing=False) is None


def test_migrating_twice_changes_nothing(database_url: str) -> None:
    migrate(database_url)
    before = in_database(database_url, schema, writing=False)
    migrate(database_url)
    assert in_database(database_url, schema, writing=False) == before
    value = in_database(database_url, lambda tx: tx.execute(sql("SELECT count(*) FROM counters")).scalar_one())
    assert value <= 1


def test_several_migrations_at_once(database_url: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        for future in [threads.submit(migrate, database_url) for _ in range(4)]:
            future.result()
    assert in_database(database_url, check, writing=False) is None


FIRST_RELEASED = "0005"  # earlier schemas were never released


def test_code_works_with_a_newer_schema_of_its_generation(database_url: str) -> None:
    migrate(database_url)
    newer = f"{int(revisions()[-1]) + 1:04}"

    def extend(tx: Tx) -> None:
        tx.execute(sql("ALTER TABLE jobs ADD COLUMN added_later INTEGER"))
        tx.execute(sql("UPDATE alembic_version SET version_num = :newer"), {"newer": newer})

    in_database(database_url, extend)
    assert in_database(database_url, check, writing=False) is None
    migrate(database_url)
    version = in_database(database_url, lambda tx: tx.execute(sql("SELECT version_num FROM alembic_version")).scalar())
    assert version == newer


def test_migrations_within_a_generation_only_add(tmp_path: Path) -> None:
    released = [revision for revision in revisions() if revision >= FIRST_RELEASED]
    for older, newer in pairwise(released):
        if older[:2] == newer[:2]:
            assert removed_by(tmp_path, older, newer) == []
    dropped = removed_by(tmp_path, "0004", "0005")  # was never released, and shows what is noticed
    assert dropped == ["runs: unique"]


REPLACED = {"ix_jobs_head"}  # by ix_jobs_heads, with the state waiting, which older code never writes


def removed_by(tmp_path: Path, older: str, newer: str) -> list[str]:
    """What a migration takes away from code of the older schema: columns, keys, and columns that it must fill."""
    url = f"sqlite:///{tmp_path / f'{older}-{newer}.db'}"
    migrate_to(url, older)
    before = in_database(url, schema, writing=False)
    migrate_to(url, newer)
    after = in_database(url, schema, writing=False)
    removed = [f"{name}: table" for name in before.keys() - after.keys()]
    for name, table in before.items():
        if name == "indexes" or name not in after:
            continue
        columns = {column["name"]: column for column in after[name]["columns"]}
        removed += [f"{name}: {column}" for column in table["columns"] if columns.get(column["name"]) != column]
        earlier = {column["name"] for column in table["columns"]}
        added = [column for column in columns.values() if column["name"] not in earlier]
        removed += [f"{name}: {column}" for column in added if not column["nullable"] and column["default"] is None]
        for part in ("primary key", "foreign keys", "unique", "checks"):
            removed += [f"{name}: {part}"] if table[part] != after[name][part] else []
    unique = {text for name, text in before["indexes"].items() if "UNIQUE" in text and name not in REPLACED}
    return removed + [f"index: {text}" for text in sorted(unique - set(after["indexes"].values()))]


@pytest.mark.parametrize("revision", ["9999_future", "0101"])
def test_code_refuses_a_schema_from_its_future(database_url: str, revision: str) -> None:
    migrate(database_url)
    statement = sql("UPDATE alembic_version SET version_num = :revision")
    in_database(database_url, lambda tx: tx.execute(statement, {"revision": revision}) and None)
    message = in_database(database_url, check, writing=False)
    assert message is not None
    assert "newer" in message
    with pytest.raises(Unavailable, match="newer"):
        migrate(database_url)


def test_an_empty_database_needs_a_migration(database_url: str) -> None:
    message = in_database(database_url, check, writing=False)
    assert message is not None
    assert "rota migrate" in message


def test_the_files_of_the_migrations_are_named_by_their_revisions() -> None:
    scripts = ScriptDirectory.from_config(config_for(None))
    assert revisions() == [script.revision for script in scripts.walk_revisions()][::-1]
    assert revisions()[-1] == scripts.get_current_head()


def test_routes_of_tasks_get_the_slug_of_their_org(database_url: str) -> None:
    migrate_to(database_url, "0001")
    routes = [("task", "shell"), ("task", "task:a:b"), ("task", "row:f"), ("host_job", "shell")]
    tables = ("schedules", "jobs", "runs")

    def fill(tx: Tx) -> None:
        stored = reflected(tx)
        for number, slug in enumerate(("default", "acme")):
            insert_row(tx, stored["orgs"], number, slug=slug)
            for table in tables:
                for step, (kind, route) in enumerate(routes):
                    insert_row(tx, stored[table], 10 * number + step, org_id=f"{number}id", kind=kind, route=route)

    in_database(database_url, fill)
    migrate(database_url)

    def read(tx: Tx) -> tuple[list[Any], list[list[str]]]:
        rights = [tuple(row) for row in tx.execute(sql("SELECT slug, shell FROM orgs ORDER BY id"))]
        queries = (f"SELECT route FROM {table} ORDER BY org_id, id" for table in tables)
        return rights, [list(tx.execute(sql(query)).scalars()) for query in queries]

    rights, routed = in_database(database_url, read, writing=False)
    assert rights == [("default", True), ("acme", False)]
    expected = [[f"shell:{slug}", f"task:{slug}:a:b", f"row:{slug}:f", "shell"] for slug in ("default", "acme")]
    assert routed == [expected[0] + expected[1]] * 3


def test_tags_of_schedules_get_rows(database_url: str) -> None:
    migrate_to(database_url, "0005")
    tags = ["[]", '["a","b","a"]', '["a"]', "damaged"]

    def fill(tx: Tx) -> None:
        stored = reflected(tx)
        insert_row(tx, stored["orgs"], 0, slug="default")
        for number, text in enumerate(tags):
            insert_row(tx, stored["schedules"], number, org_id="0id", name=f"s{number}", tags=text)
        deleted = {"deleted_at": value_of(stored["schedules"].c.deleted_at, 1)}
        insert_row(tx, stored["schedules"], 9, org_id="0id", name="s1", tags='["a"]', **deleted)

    def read(tx: Tx) -> list[tuple[Any, ...]]:
        rows = tx.execute(sql("SELECT tag, name, schedule_id FROM schedule_tags ORDER BY tag, name"))
        return [tuple(row) for row in rows]

    in_database(database_url, fill)
    migrate(database_url)
    assert in_database(database_url, read, writing=False) == [
        ("a", "s1", "1id"),
        ("a", "s2", "2id"),
        ("b", "s1", "1id"),
    ]


@pytest.mark.parametrize(
    "revision",
    ["base", *(pytest.param(revision, marks=pytest.mark.long) for revision in revisions()[:-2]), revisions()[-2]],
)
def test_the_printed_sql_does_what_the_migration_does(
    database_url: str, revision: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if revision != "base":
        migrate_to(database_url, revision)
        in_database(database_url, fill_every_table)
    script = sql_to_head(database_url)
    if database_url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(database_url.removeprefix("sqlite:///"))) as file:
            file.executescript(script)
        other = f"sqlite:///{tmp_path / 'other.db'}"
    else:
        execute(database_url, script)
        server = request.getfixturevalue("postgres_url")
        other = create_database(server)
        request.addfinalizer(lambda: drop_database(server, other))
    if revision != "base":
        migrate_to(other, revision)
        in_database(other, fill_every_table)
    migrate(other)
    assert in_database(database_url, check, writing=False) is None
    assert in_database(database_url, schema, writing=False) == in_database(other, schema, writing=False)
    assert in_database(database_url, rows_of_every_table) == in_database(other, rows_of_every_table)
    assert sql_to_head(database_url) == ""


def test_rows_of_every_table_are_carried_over_from_the_first_schema(database_url: str) -> None:
    """Each table has a row with a value in every column and a row with as many nulls as it takes."""
    migrate_to(database_url, "0001")
    before = in_database(database_url, fill_every_table)
    assert all(before.values())
    migrate(database_url)
    after = in_database(database_url, rows_of_every_table, writing=False)
    assert set(before) - set(after) == {"signing_keys"}
    assert {name for name in set(after) - set(before) if after[name]} == set()
    for name, rows in before.items():
        for row, carried in zip(rows, after.get(name, ()), strict=name in after):
            changed = {column for column, value in row.items() if carried[column] != value}
            assert not changed, f"{name}: {changed}"
            added = {column: carried[column] for column in set(carried) - set(row)}
            assert added == ADDED.get(name, {}), name
    in_database(database_url, refuse_a_second_attempt_of_the_same_number)


ADDED = {
    "artifacts": {"object_key": None, "size": None, "sha256": None},
    "jobs": {
        "followed": False,
        **dict.fromkeys(("parent_id", "waiting", "reserved_at", "place_key", "place_wanted", "place_limit")),
    },
    "orgs": {"shell": False, "freeze_revision": 0},
    "pipelines": {"increment": None},
    "pipeline_versions": {"increment": None},
    "queues": {"rate": None, "burst": None},
    "runs": {"lost_fence": 0, "cpu_seconds": None, "peak_memory_bytes": None, "parent_id": None},
    "schedules": {
        **dict.fromkeys(("keep_runs_days", "calendar_id", "calendar_revision", "pause_after_failures")),
        **dict.fromkeys(("catch_up_spread_hours", "catch_up_approval_slots")),
    },
    "workers": {"metrics": None, "metrics_merged": False},
    "users": {
        "type": "person",
        **dict.fromkeys(("scopes", "disabled_at", "disabled_by", "oidc_issuer", "oidc_subject")),
    },
}


def rows_of_every_table(tx: Tx) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [dict(row) for row in tx.execute(select(table).order_by(*table.primary_key)).mappings()]
        for name, table in reflected(tx).items()
    }


CONSISTENT = {"catch_ups": {"status": "open"}}  # of a row without a decision


def fill_every_table(tx: Tx) -> dict[str, list[dict[str, Any]]]:
    """Fill the tables of the first schema; returns their rows."""
    for name, table in reflected(tx).items():
        if name != "counters":  # a migration fills it
            insert_row(tx, table, 1, **{column.name: value_of(column, 1) for column in table.columns})
            insert_row(tx, table, 2, **CONSISTENT.get(name, {}))
    return rows_of_every_table(tx)


def reflected(tx: Tx) -> dict[str, Table]:
    """The tables of a database as they are now, those first that others refer to."""
    tables = MetaData()
    tables.reflect(tx)
    return {table.name: table for table in tables.sorted_tables if table.name != "alembic_version"}


def insert_row(tx: Tx, table: Table, number: int, **values: Any) -> None:
    """Insert a row with a value in every column that must have one."""
    needed = {column.name: value_of(column, number) for column in table.columns if not column.nullable}
    tx.execute(table.insert().values(needed | values))


def value_of(column: Column[Any], number: int) -> Any:
    """A value that fits the column; the same for a foreign key and the key that it refers to."""
    for key in column.foreign_keys:
        return value_of(key.column, number)
    if isinstance(column.type, DateTime | Instant):
        return datetime(2026, 5, 4, 9, number, tzinfo=UTC)
    if isinstance(column.type, Boolean):
        return True
    if isinstance(column.type, Numeric | Integer):
        return number
    if isinstance(column.type, JSON | Json):
        return {"number": number}
    if isinstance(column.type, LargeBinary):
        return bytes([number])
    if isinstance(column.type, Float | Double):
        return number + 0.5
    assert isinstance(column.type, String), column
    return f"{number}{column.name}"[: column.type.length]


def refuse_a_second_attempt_of_the_same_number(tx: Tx) -> None:
    """A migrated ledger has one row per attempt, and lost attempts beside it."""
    runs = reflected(tx)["runs"]
    row = dict(tx.execute(select(runs)).mappings().first() or {})
    tx.execute(runs.insert().values(row | {"id": "lost", "lost_fence": 7}))
    with pytest.raises(IntegrityError), tx.begin_nested():
        tx.execute(runs.insert().values(row | {"id": "again"}))


def migrate_to(url: str, revision: str) -> None:
    """Bring an empty database to an older schema."""
    in_database(url, lambda tx: upgrade(tx, revision))
