"""`rota migrate` on PostgreSQL while workers run: they do not wait for it, and an interrupted one can be repeated."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass

import asyncpg
import pytest
from sqlalchemy import text as sql

from rota.core.errors import Unavailable
from rota.db import migrate as migrations
from rota.db.blocking import run_blocking, writing
from rota.db.crash_points import at_each_statement
from rota.db.dialect import Tx
from rota.db.migrate import migrate, upgrade
from rota.db.schema import check, revisions
from tests.db.test_migrations import fill_every_table, in_database, migrate_to, rows_of_every_table, schema
from tests.postgres import create_database, drop_database

FIRST_LIVE = "0004"  # workers of earlier schemas cannot continue: migration 0002 renames the routes of their jobs
LIVE_REVISIONS = [revision for revision in revisions() if revision > FIRST_LIVE]
CONCURRENTLY = re.compile(r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY (\w+)")
WRITES = re.compile(r"\s*(?:UPDATE|DELETE FROM) (\w+)")


@dataclass(frozen=True, slots=True)
class Storage:
    """What a migration may not change of a table that workers use, unless without a long lock."""

    files: dict[str, int]  # of tables: another number is a rewrite of all rows
    indexes: set[tuple[str, str]]  # table, index
    checks: set[tuple[str, str]]  # table, foreign key or check; to add one reads all rows


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    """A PostgreSQL database of the first schema that can be upgraded without a stop, with rows in every table."""
    database = create_database(postgres_url)
    migrate_to(database, FIRST_LIVE)
    in_database(database, fill_every_table)
    yield database
    drop_database(postgres_url, database)


def storage(tx: Tx) -> Storage:
    tables = "relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'"
    files = f"SELECT relname, relfilenode FROM pg_class WHERE {tables}"
    indexes = (
        "SELECT c.relname, i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
        f"WHERE {tables}"
    )
    checks = (
        "SELECT c.relname, k.conname FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid "
        f"WHERE k.contype IN ('f', 'c') AND {tables}"
    )
    return Storage(
        dict(row for row in tx.execute(sql(files))),
        {(table, name) for table, name in tx.execute(sql(indexes))},
        {(table, name) for table, name in tx.execute(sql(checks))},
    )


def long_locks(url: str, revision: str) -> list[str]:
    """Migrate to a revision as `rota migrate` does; return what would stop workers for as long as a table is large."""
    statements: list[str] = []

    def step() -> tuple[Storage, Storage]:
        with writing(url) as tx:
            before = storage(tx)
            with at_each_statement(statements.append):
                upgrade(tx, revision, live=True)
            return before, storage(tx)

    before, after = run_blocking(step)
    without_lock = {name for text in statements for name in CONCURRENTLY.findall(text)}
    large = before.files.keys() & after.files.keys()
    written = [match[1] for text in statements if (match := WRITES.match(text)) and ".id <= " not in text]
    return [
        *(f"table {table} is rewritten" for table in sorted(large) if before.files[table] != after.files[table]),
        *(f"{table} is indexed by {name} under a lock" for table, name in sorted(after.indexes - before.indexes)
          if table in large and name not in without_lock),
        *(f"all rows of {table} are read for {name}" for table, name in sorted(after.checks - before.checks)
          if table in large),
        *(f"rows of {table} are written in one transaction" for table in written if table in large),
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("revision", LIVE_REVISIONS)
def test_a_migration_holds_no_lock_for_as_long_as_a_table_is_large(url: str, revision: str) -> None:
    for earlier in LIVE_REVISIONS[: LIVE_REVISIONS.index(revision)]:
        long_locks(url, earlier)
    assert long_locks(url, revision) == []


def test_a_lock_that_lasts_is_noticed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.db.online.is_live", lambda: False)
    assert long_locks(url, "0005") == ["runs is indexed by uq_runs_job_id_attempt_lost_fence under a lock"]
    assert long_locks(url, "0007") == ["schedules is indexed by ix_schedules_kept under a lock"]


class Killed(BaseException):
    """The process ends here."""


def test_a_migration_that_dies_before_any_statement_is_repeated(url: str, postgres_url: str) -> None:
    other = create_database(postgres_url)
    try:
        migrate_to(other, FIRST_LIVE)
        in_database(other, fill_every_table)
        migrate(other)
        expected = in_database(other, schema, writing=False), in_database(other, rows_of_every_table, writing=False)
    finally:
        drop_database(postgres_url, other)
    position, seen = 0, 0

    def reached(_: str) -> None:
        nonlocal seen
        seen += 1
        if seen > position:
            raise Killed

    while in_database(url, check, writing=False) is not None:
        position, seen = position + 1, 0
        try:
            with at_each_statement(reached):
                migrate(url)
        except Killed:
            continue
    assert position > 10
    assert (in_database(url, schema, writing=False), in_database(url, rows_of_every_table, writing=False)) == expected


async def test_an_index_that_was_left_incomplete_is_built_anew(url: str) -> None:
    await asyncio.to_thread(migrate_to, url, "0006")
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE INDEX ix_schedules_kept ON schedules (id)")
        await connection.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_schedules_kept'::regclass"
        )
    finally:
        await connection.close()
    await asyncio.to_thread(migrate, url)
    indexes = (await asyncio.to_thread(in_database, url, schema, False))["indexes"]
    assert "(keep_runs_days, id)" in indexes["ix_schedules_kept"]


async def test_workers_do_not_queue_behind_a_migration_that_waits(url: str) -> None:
    """A long transaction uses the table: the migration gives way to other statements until it has ended."""
    user, worker = await asyncpg.connect(url), await asyncpg.connect(url)
    waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'schedules'::regclass"
    try:
        transaction = user.transaction()
        await transaction.start()
        await user.execute("LOCK TABLE schedules IN ROW EXCLUSIVE MODE")
        migrating = asyncio.ensure_future(asyncio.to_thread(migrate, url))
        async with asyncio.timeout(30):
            for _ in range(2):
                while await worker.fetchval(waits) is None:
                    assert not migrating.done()
                await worker.execute("UPDATE schedules SET priority = 1")  # queues behind the migration's lock
        assert not migrating.done()
        await transaction.commit()
        await asyncio.wait_for(migrating, 30)
    finally:
        await user.close()
        await worker.close()
    assert await asyncio.to_thread(in_database, url, check, False) is None


async def test_a_table_that_remains_in_use_is_an_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "LOCK_WAIT_SECONDS", 0.1)
    user = await asyncpg.connect(url)
    try:
        async with user.transaction():
            await user.execute("LOCK TABLE runs IN ROW EXCLUSIVE MODE")
            with pytest.raises(Unavailable, match=r"not migrated: for 0\.1 s other transactions have used a table"):
                await asyncio.to_thread(migrate, url)
    finally:
        await user.close()
    await asyncio.to_thread(migrate, url)
