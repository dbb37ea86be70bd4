"""Values round-trip, and rejected statements are distinguished from an unreachable database."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import BigInteger, Integer, LargeBinary, SmallInteger, Text, column, insert, select
from sqlalchemy import text as sql

from rota.core.errors import BrokenStatement, DataRefused, Invalid, Unavailable
from rota.core.ids import new_id
from rota.core.model import Schedule
from rota.db import sqlite
from rota.db.column_types import Instant, Json
from rota.db.connection import Database, open_database
from rota.db.dialect import Tx, database_now, on_sqlite
from rota.db.sqlite import SqliteDatabase
from rota.db.statement import SQLITE_BATCH_ROWS, Statement, insert_new, insert_rows
from rota.db.tables import counters, orgs, schedules, tasks
from tests.postgres import own_server

NOW = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)

SELECT_ONE = Statement("", "SELECT 1 AS a", returns={"a": column("a", Integer)}).bound(lambda columns: columns["a"][0])
BACKEND_PID = Statement("", "SELECT pg_backend_pid() AS a", returns={"a": column("a", Integer)}).bound(
    lambda columns: columns["a"][0]
)

ODD_TEXTS = [
    "",
    "'",
    '"',
    "\\",
    "a\nb",
    "{}",
    "[1]",
    "null",
    "NULL",
    "a,b}",
    '","',
    "%s :x ?",
    "emoji 🦉",
    "\u202eright to left",
    "\x01",
    "ß" * 300,
]


@pytest.mark.parametrize("odd", ODD_TEXTS)
async def test_odd_texts_come_back_as_they_were(db: Database, odd: str) -> None:
    def step(tx: Tx) -> list[Any]:
        return echo(tx, [(odd, 1, odd), (None, 2, odd), (odd, 3, odd)], a=Text(), n=BigInteger(), same=Text())

    assert await db.tx(step) == [(odd, 1, odd), (None, 2, odd), (odd, 3, odd)]


@pytest.mark.parametrize("records", [[(None, 1)], [("a", 1), ("a", 1), ("a", 1)], [("a", 1), ("a", 2), ("a", 1)]])
async def test_rows_that_are_equal_are_not_merged(db: Database, records: list[Any]) -> None:
    assert await db.tx(echo, records, a=Text(), n=BigInteger()) == records


@pytest.mark.parametrize("count", [0, 1, 2, 3, 64, 65, SQLITE_BATCH_ROWS + 1])
async def test_batches_of_any_size_arrive_whole(db: Database, count: int) -> None:
    rows = [(f"row {position}", position) for position in range(count)]
    assert await db.tx(echo, rows, a=Text(), n=BigInteger()) == rows


async def test_the_text_of_a_statement_does_not_depend_on_the_rows() -> None:
    statement = echo_statement(a=Text(), n=BigInteger())
    assert len(set(statement.text("postgresql", 1) + statement.text("postgresql", 500))) == 1
    assert len({text for rows in range(1, 513) for text in statement.text("sqlite", rows)}) == 10  # 1, 2, 4 … 512


async def test_a_parameter_that_is_a_list_may_be_empty_or_long(db: Database) -> None:
    statement = Statement(
        "Which names are listed.",
        "SELECT batch.name FROM batch WHERE batch.name IN ({list:names})",
        batch={"name": column("name", Text)},
        returns={"name": column("name", Text)},
    )
    rows = [("a",), ("b",), ("c",)]
    assert await db.tx(statement.run, rows, names=[]) == []
    assert await db.tx(statement.run, rows, names=["b", *map(str, range(5_000))]) == [("b",)]


def echo(tx: Tx, /, rows: list[Any], **types: Any) -> list[Any]:
    """Return a batch as the database sees it."""
    return echo_statement(**types).run(tx, [(*row, position) for position, row in enumerate(rows)])


def echo_statement(**types: Any) -> Statement:
    returned = {name: column(name, kind) for name, kind in types.items()}
    chosen = ", ".join(f"batch.{name}" for name in types)
    text = f"SELECT {chosen} FROM batch WHERE batch.position IS NOT NULL ORDER BY batch.position"
    return Statement(
        "Return the batch.", text, batch={**returned, "position": column("position", BigInteger)}, returns=returned
    )


async def test_json_values_that_python_calls_equal_stay_what_they_were(db: Database) -> None:
    values = [1, True, 1.0] * 20
    records = await db.tx(echo, [(value, at) for at, value in enumerate(values)], v=Json(), n=BigInteger())
    assert [type(value) for value, _ in records] == [type(value) for value in values]


@pytest.mark.parametrize(
    "value",
    [None, 0, 1.5, True, "x", [], {}, {"nul": "a\0b"}, {"emoji": "🦉"}, {"deep": [[{"a": None}]]}, 2**53, -(2**63)],
)
async def test_json_round_trips(db: Database, value: Any) -> None:
    for stored in (
        await db.tx(echo, [(value,), (1,), (True,), (None,)], v=Json()),
        await db.tx(echo, [(value,)], v=Json()),
    ):
        assert stored[0][0] == value
        assert type(stored[0][0]) is type(value)


@pytest.mark.parametrize(
    "timestamp",
    [
        NOW,
        NOW + timedelta(microseconds=1),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(9899, 12, 31, tzinfo=UTC),
        datetime(2026, 5, 4, 9, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    ],
)
async def test_timestamps_round_trip_in_utc(db: Database, timestamp: datetime) -> None:
    for records in ([(timestamp,)], [(timestamp,), (None,)]):
        stored = (await db.tx(echo, records, at=Instant()))[0][0]
        assert stored == timestamp
        assert stored.tzinfo is UTC


async def test_timestamps_of_plain_statements_round_trip(db: Database) -> None:
    org = {"id": new_id(), "slug": "a", "name": "A", "created_at": NOW, "frozen_at": None}
    await db.tx(insert_rows, orgs, [org])
    (row,) = await db.read(lambda tx: list(tx.execute(select(orgs).where(orgs.c.created_at == NOW))))
    assert (row.created_at, row.frozen_at) == (NOW, None)


def org(**values: Any) -> dict[str, Any]:
    return {"id": new_id(), "slug": new_id(), "name": "A", "created_at": NOW, "max_running": None, **values}


REFUSED: dict[str, dict[str, Any]] = {
    "half a surrogate pair": {"name": "x\ud800"},
    "a missing value": {"name": None},
    "a number beyond 64 bits": {"max_running": 2**80},
}


@pytest.mark.parametrize("value", REFUSED)
@pytest.mark.parametrize("way", ["batch", "plain"])
async def test_what_cannot_be_stored_is_refused_and_leaves_nothing(db: Database, value: str, way: str) -> None:
    def step(tx: Tx) -> None:
        insert_rows(tx, orgs, [org()])
        if way == "batch":
            insert_rows(tx, orgs, [org(), org(**REFUSED[value])])
        else:
            tx.execute(insert(orgs).values(org(**REFUSED[value])))

    with pytest.raises(DataRefused):
        await db.tx(step)
    assert await db.read(lambda tx: tx.execute(select(orgs)).all()) == []
    await db.tx(insert_rows, orgs, [org()])  # and the connection still works


async def test_a_second_row_with_the_same_key_is_refused(db: Database) -> None:
    await db.tx(insert_rows, orgs, [org(slug="a")])
    with pytest.raises(DataRefused):
        await db.tx(insert_rows, orgs, [org(slug="a")])


async def test_a_foreign_key_that_leads_nowhere_is_refused(db: Database) -> None:
    task = {
        "id": new_id(),
        "org_id": "unknown",
        "name": "t",
        "task_type": "shell",
        "command": "x",
        "enabled": True,
        "source": "api",
        "created_at": NOW,
        "updated_at": NOW,
    }
    with pytest.raises(DataRefused):
        await db.tx(insert_rows, tasks, [task])


@pytest.mark.parametrize("way", ["batch", "plain"])
async def test_postgresql_refuses_a_text_that_is_too_long_and_cuts_none(db: Database, way: str) -> None:
    if db.url.startswith("sqlite"):
        pytest.skip("SQLite keeps texts of any length; the limit is checked where they come in")
    long = org(name="n" * 300)
    with pytest.raises(DataRefused):
        await db.tx(
            lambda tx: insert_rows(tx, orgs, [long]) if way == "batch" else tx.execute(insert(orgs).values(long))
        )


async def test_postgresql_refuses_nul_in_a_text(db: Database) -> None:
    if db.url.startswith("sqlite"):
        pytest.skip("SQLite stores NUL; the check is where texts come in")
    with pytest.raises(DataRefused):
        await db.tx(insert_rows, orgs, [org(name="a\0b")])


async def test_postgresql_refuses_a_number_that_is_too_large_for_its_column(db: Database) -> None:
    if db.url.startswith("sqlite"):
        pytest.skip("SQLite has one size of integer")

    for records in ([(99_999,)], [(99_999,), (1,)]):
        with pytest.raises(DataRefused):
            await db.tx(echo, records, n=SmallInteger())


async def test_bytes_come_back_as_they_were(db: Database) -> None:
    rows = [(b"a\0\xff",), (None,), (b"",)]
    assert await db.tx(echo, rows, data=LargeBinary()) == rows


async def test_inserted_rows_without_a_conflict_are_returned(db: Database) -> None:
    first, two = org(slug="a"), org(slug="b")
    await db.tx(insert_rows, orgs, [first])
    inserted = await db.tx(insert_new, orgs, [{**first, "id": new_id()}, two], ("id",))
    assert inserted == [(two["id"],)]


async def test_a_step_that_raises_leaves_nothing(db: Database) -> None:
    def step(tx: Tx) -> None:
        insert_rows(tx, orgs, [org()])
        raise LookupError("changed my mind")

    with pytest.raises(LookupError):
        await db.tx(step)
    assert await db.read(lambda tx: tx.execute(select(orgs)).all()) == []


@pytest.mark.parametrize("way", ["statement", "tx", "read"])
async def test_a_connection_used_while_its_server_ends_it_is_an_outage(db: Database, way: str) -> None:
    if db.url.startswith("sqlite"):
        pytest.skip("SQLite's connection cannot be lost")

    def fail(_: object) -> int:
        raise asyncpg.InternalClientError("cannot switch to state 11; another operation (2) is in progress")

    with pytest.raises(Unavailable):
        await getattr(db, way)(replace(SELECT_ONE, read=fail))
    assert await db.statement(SELECT_ONE) == 1


async def test_single_statements_share_a_connection_and_replace_one_that_was_closed(db: Database) -> None:
    if db.url.startswith("sqlite"):
        pytest.skip("SQLite has one connection for writing")
    first = await db.statement(BACKEND_PID)
    assert await db.statement(BACKEND_PID) == first
    await db.read(lambda tx: tx.execute(sql("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": first}).all())
    with contextlib.suppress(Unavailable):  # if the end of the connection was not received yet
        await db.statement(BACKEND_PID)
    assert await db.statement(BACKEND_PID) != first


async def test_a_single_statement_with_a_wrong_value_is_refused_and_keeps_its_connection(db: Database) -> None:
    text = Statement("", "SELECT CAST(:a AS text) AS a", returns={"a": column("a", Text)})
    with pytest.raises(DataRefused):
        await db.statement(text.bound(str, a="\ud800"))
    assert await db.statement(text.bound(lambda columns: columns["a"][0], a=lambda: "now")) == "now"


async def test_a_wrong_statement_is_no_outage(db: Database) -> None:
    with pytest.raises(BrokenStatement):
        await db.tx(lambda tx: tx.execute(sql("SELECT nonsense FROM nowhere")))


async def test_a_search_text_that_is_too_long_is_no_outage(db: Database) -> None:
    def search(tx: Tx) -> object:
        return tx.execute(sql("SELECT 1 WHERE 'b' LIKE :text"), {"text": f"%{'a' * 60_000}%"}).all()

    if db.url.startswith("sqlite"):
        with pytest.raises(Invalid, match="too long for the database"):
            await db.read(search)
    else:
        assert await db.read(search) == []


async def test_transactions_of_one_row_follow_each_other(db: Database) -> None:
    await db.tx(insert_rows, counters, [{"name": "n", "value": 0}])

    def bump(tx: Tx) -> None:
        tx.execute(sql("UPDATE counters SET value = value + 1 WHERE name = 'n'"))

    await asyncio.gather(*(db.tx(bump) for _ in range(50)))
    assert await db.read(lambda tx: tx.execute(sql("SELECT value FROM counters WHERE name = 'n'")).scalar_one()) == 50


async def test_the_databases_clock_is_near_ours(db: Database) -> None:
    database_time = await db.tx(database_now)
    assert abs(database_time - datetime.now(UTC)) < timedelta(seconds=5)
    assert database_time.tzinfo is UTC


async def test_a_server_that_is_gone_is_out_of_reach_and_then_back() -> None:
    with own_server() as server:
        db = open_database(server.url)
        assert await db.read(lambda tx: on_sqlite(tx)) is False
        server.stop("immediate")
        for _ in range(3):
            with pytest.raises(Unavailable):
                await db.tx(lambda tx: tx.execute(sql("SELECT 1")).scalar_one())
        server.start()
        for _ in range(20):  # connections of before are found dead one by one
            try:
                assert await db.tx(lambda tx: tx.execute(sql("SELECT 1")).scalar_one()) == 1
                break
            except Unavailable:
                continue
        else:
            raise AssertionError("it never came back")
        await db.close()


async def test_a_statement_that_takes_too_long_is_an_outage_not_bad_data(db: Database) -> None:
    if db.url.startswith("sqlite"):
        pytest.skip("SQLite has no time limit")

    def step(tx: Tx) -> None:
        tx.execute(sql("SET LOCAL statement_timeout = 50"))
        tx.execute(sql("SELECT pg_sleep(5)"))

    with pytest.raises(Unavailable):
        await db.tx(step)


async def test_a_deadlock_is_tried_again(db: Database) -> None:
    if db.url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    await db.tx(insert_rows, counters, [{"name": "a", "value": 0}, {"name": "b", "value": 0}])

    def step(tx: Tx, first: str, second: str) -> None:
        bump = sql("UPDATE counters SET value = value + 1 WHERE name = :name")
        tx.execute(bump, {"name": first})
        tx.execute(sql("SELECT pg_sleep(0.05)"))
        tx.execute(bump, {"name": second})

    await asyncio.gather(*(db.tx(step, *pair) for pair in [("a", "b"), ("b", "a")] * 2))
    assert (
        await db.read(lambda tx: tx.execute(sql("SELECT sum(value) FROM counters WHERE name <> 'fences'")).scalar_one())
        == 8
    )


def test_every_field_of_a_schedule_has_a_column() -> None:
    stored = {column.name.removesuffix("_seconds") for column in schedules.c}
    assert {record_field.name for record_field in fields(Schedule) if record_field.init} <= stored


async def test_sqlites_log_is_overwritten_and_a_long_read_blocks_no_writer(
    file: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "CHECKPOINT_SECONDS", 0.0)

    def size() -> int:
        return os.path.getsize(f"{file.path}-wal")

    async def fill(mebibytes: int) -> int:
        """The size of the log after so many writes."""
        for _ in range(mebibytes):
            await file.tx(lambda tx: tx.exec_driver_sql("INSERT INTO filler VALUES (zeroblob(1048576))").close())
        return size()

    await file.tx(lambda tx: tx.exec_driver_sql("CREATE TABLE filler (x)").close())
    assert await fill(40) < 2 * sqlite.WAL_PAGES * 4096
    monkeypatch.setattr(sqlite, "WAL_BYTES_LIMIT", 16 * 1024 * 1024)
    with closing(sqlite3.connect(file.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM filler").fetchone()
        async with asyncio.timeout(60):  # SQLite's own patience with a reader is five seconds for each write
            assert await fill(40) > sqlite.WAL_BYTES_LIMIT
    assert await fill(1) < sqlite.WAL_BYTES_LIMIT


async def test_a_second_database_object_of_a_process_keeps_the_locks_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    first = open_database(f"sqlite:///{path}")
    await first.tx(lambda tx: tx.execute(sql("CREATE TABLE t (a)")))
    second = open_database(f"sqlite:///{path}")
    read = f"import sqlite3; c = sqlite3.connect({str(path)!r}); c.execute('SELECT * FROM t').fetchall(); c.close()"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", read], check=True)
    # a process that closes the file as the last one deletes its log
    assert {"rota.db-wal"} <= set(os.listdir(tmp_path))
    await first.close()
    await second.close()
