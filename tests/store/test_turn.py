"""Writers of a SQLite file, and a process among them that does not move."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from rota.core.errors import Unavailable
from rota.store import database
from rota.store.database import SqliteDatabase
from rota.store.dialect import Tx

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
        [sys.executable, "-c", FROZEN, str(file.turn.path)], stdout=subprocess.PIPE, text=True
    ) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "locked\n"
        yield one
        one.kill()


def add(tx: Tx, number: int) -> None:
    tx.execute(text("CREATE TABLE IF NOT EXISTS numbers (number INTEGER)"))
    tx.execute(text("INSERT INTO numbers VALUES (:number)"), {"number": number})


def numbers(tx: Tx) -> list[int]:
    return list(tx.execute(text("SELECT number FROM numbers ORDER BY number")).scalars())


async def test_writers_get_an_error_while_a_process_that_does_not_move_holds_the_lock(
    file: SqliteDatabase, frozen: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "TURN_WAIT_SECONDS", 0.3)
    answers = await asyncio.wait_for(
        asyncio.gather(file.tx(add, 1), file.tx(add, 2), file.begin(), return_exceptions=True), 20
    )
    assert [type(answer) for answer in answers] == [Unavailable] * 3
    assert f"process {frozen.pid} (" in str(answers[0])
    assert str(file.path) in str(answers[0])
    frozen.kill()
    monkeypatch.setattr(database, "TURN_WAIT_SECONDS", 20)
    await file.tx(add, 3)
    assert await file.read(numbers) == [3]  # those given up were not carried out later


async def test_a_write_that_has_begun_is_waited_for(file: SqliteDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "TURN_WAIT_SECONDS", 0.05)

    def slow(tx: Tx) -> None:
        add(tx, 1)
        tx.execute(
            text("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3000000) SELECT max(i) FROM n")
        )

    await asyncio.gather(file.tx(slow), file.tx(add, 2))
    assert await file.read(numbers) == [1, 2]
