"""A fresh schema equals a migrated one; migrations may race, and code refuses a schema from its future."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect
from sqlalchemy import text as sql

from rota.core.errors import Unavailable
from rota.store.database import open_database
from rota.store.dialect import Tx, on_sqlite
from rota.store.migrate import config_for, migrate
from rota.store.schema import check, revisions
from rota.store.tables import metadata
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
    """Everything that a database tells about its tables, in its own words."""
    found: dict[str, Any] = {}
    about = inspect(tx)
    for name in sorted(about.get_table_names()):
        if name == "alembic_version":
            continue
        columns = [{**one, "type": str(one["type"])} for one in about.get_columns(name)]
        found[name] = {
            "columns": sorted(columns, key=lambda one: one["name"]),
            "primary key": about.get_pk_constraint(name),
            "foreign keys": sorted(about.get_foreign_keys(name), key=str),
            "unique": sorted(about.get_unique_constraints(name), key=str),
            "checks": sorted(about.get_check_constraints(name), key=str),
        }
    if on_sqlite(tx):
        words = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY name"
    else:
        words = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY indexname"
        found["sequences"] = about.get_sequence_names()
    found["indexes"] = {
        name: " ".join(text.split()) for name, text in tx.execute(sql(words)).all() if "alembic" not in name
    }
    return found


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
        config = config_for()
        config.attributes |= {"connection": tx, "step": ()}
        command.downgrade(config, "base")
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
        for one in [threads.submit(migrate, database_url) for _ in range(4)]:
            one.result()
    assert in_database(database_url, check, writing=False) is None


def test_code_refuses_a_schema_from_its_future(database_url: str) -> None:
    migrate(database_url)
    in_database(
        database_url, lambda tx: tx.execute(sql("UPDATE alembic_version SET version_num = '9999_future'")) and None
    )
    told = in_database(database_url, check, writing=False)
    assert told is not None
    assert "newer" in told
    with pytest.raises(Unavailable, match="newer"):
        migrate(database_url)


def test_an_empty_database_is_told_to_be_migrated(database_url: str) -> None:
    told = in_database(database_url, check, writing=False)
    assert told is not None
    assert "rota migrate" in told


def test_the_files_of_the_migrations_are_named_by_their_revisions() -> None:
    scripts = ScriptDirectory.from_config(config_for())
    assert revisions() == [script.revision for script in scripts.walk_revisions()][::-1]
    assert revisions()[-1] == scripts.get_current_head()


def test_routes_of_tasks_get_the_slug_of_their_org(database_url: str) -> None:
    migrate_to(database_url, "0001")
    at = "0" if database_url.startswith("sqlite") else "now()"

    def fill(tx: Tx) -> None:
        fields = (
            "id, job_id, org_id, kind, target, route, trigger, attempt, status, queued_at, finished_at, recorded_at"
        )
        for org, slug in (("org-0", "default"), ("org-1", "acme")):
            tx.execute(sql(f"INSERT INTO orgs (id, slug, name, created_at) VALUES ('{org}', '{slug}', 'x', {at})"))
            for kind, route in (("task", "shell"), ("task", "task:a:b"), ("task", "row:f"), ("host_job", "shell")):
                key = f"{org}{kind}{route}"
                row = f"'{key}', '{key}', '{org}', '{kind}', 't', '{route}', 'manual', 1, 'success', {at}, {at}, {at}"
                tx.execute(sql(f"INSERT INTO runs ({fields}) VALUES ({row})"))

    in_database(database_url, fill)
    migrate(database_url)

    def read(tx: Tx) -> tuple[list[Any], list[str]]:
        rights = [tuple(row) for row in tx.execute(sql("SELECT slug, shell FROM orgs ORDER BY id"))]
        return rights, [row.route for row in tx.execute(sql("SELECT route FROM runs ORDER BY org_id, id"))]

    rights, routes = in_database(database_url, read, writing=False)
    assert rights == [("default", True), ("acme", False)]
    assert routes[:4] == ["shell", "row:default:f", "shell:default", "task:default:a:b"]
    assert routes[4:] == ["shell", "row:acme:f", "shell:acme", "task:acme:a:b"]


def migrate_to(url: str, revision: str) -> None:
    """Bring an empty database to an older schema."""

    def upgrade(tx: Tx) -> None:
        config = config_for()
        config.attributes |= {"connection": tx, "step": ()}
        command.upgrade(config, revision)

    in_database(url, upgrade)
