"""Writers of a SQLite file, and a process among them that does not move."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from rota.core.errors import Unavailable
from rota.db import sqlite
from rota.db.dialect import Tx
from rota.db.sqlite import SqliteDatabase

FROZEN = """
import fcntl, sys, time
lock = open(sys.argv[1], "r+")
fcntl.flock(lock, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def frozen(file: SqliteDatabase) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the write lock of the file for ever."""
    with subprocess.Popen(
        [sys.executable, "-c", FROZEN, str(file.write_lock.path)], stdout=subprocess.PIPE, text=True
    ) as connection:
        assert connection.stdout is not None
        assert connection.stdout.readline() == "locked\n"
        yield connection
        connection.kill()


def add(tx: Tx, number: int) -> None:
    tx.execute(text("CREATE TABLE IF NOT EXISTS numbers (number INTEGER)"))
    tx.execute(text("INSERT INTO numbers VALUES (:number)"), {"number": number})


def numbers(tx: Tx) -> list[int]:
    return list(tx.execute(text("SELECT number FROM numbers ORDER BY number")).scalars())


async def test_writers_get_an_error_while_a_process_that_does_not_move_holds_the_lock(
    file: SqliteDatabase, frozen: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "WRITE_WAIT_SECONDS", 0.3)
    answers = await asyncio.wait_for(
        asyncio.gather(file.tx(add, 1), file.tx(add, 2), file.begin(), return_exceptions=True), 20
    )
    assert [type(answer) for answer in answers] == [Unavailable] * 3
    assert f"process {frozen.pid} (" in str(answers[0])
    assert str(file.path) in str(answers[0])
    frozen.kill()
    monkeypatch.setattr(sqlite, "WRITE_WAIT_SECONDS", 20)
    await file.tx(add, 3)
    assert await file.read(numbers) == [3]  # those given up were not carried out later


async def test_a_write_that_has_begun_is_waited_for(file: SqliteDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "WRITE_WAIT_SECONDS", 0.05)

    def slow(tx: Tx) -> None:
        add(tx, 1)
        tx.execute(
            text("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3000000) SELECT max(i) FROM n")
        )

    await asyncio.gather(file.tx(slow), file.tx(add, 2))
    assert await file.read(numbers) == [1, 2]


async def test_a_log_that_a_reader_keeps_is_a_warning_each_time_it_doubles(
    file: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    await file.tx(add, 1)
    monkeypatch.setattr(sqlite, "WAL_BYTES_LIMIT", 100_000)
    monkeypatch.setattr(sqlite, "CHECKPOINT_SECONDS", 0.0)
    file._wal_warned = 50_000

    def grow(tx: Tx) -> None:
        tx.execute(text("CREATE TABLE IF NOT EXISTS ballast (b BLOB)"))
        tx.execute(text("INSERT INTO ballast VALUES (zeroblob(40000))"))

    with closing(sqlite3.connect(file.path)) as reader, capture_logs() as lines:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM numbers").fetchall()
        for _ in range(12):  # about 500 kB
            await file.tx(grow)
        warned = [line["megabytes"] for line in lines if "write-ahead log grows" in line["event"]]
        assert 2 <= len(warned) <= 3
        reader.rollback()
        await file.tx(grow)
        assert file._wal_warned == 50_000  # the log was begun anew
