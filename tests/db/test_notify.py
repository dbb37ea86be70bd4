"""What one process says, the others hear."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from rota.db import sqlite_wakeups
from rota.db.connection import Database, open_database
from rota.db.dialect import Tx, notify
from rota.db.notify import Wake
from rota.db.sqlite import SqliteDatabase


class Ears(Wake):
    """Keeps what was heard."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def signal(self, what: str) -> None:
        self.heard.append(what)
        super().signal(what)

    async def until(self, count: int) -> list[str]:
        async with asyncio.timeout(20):
            while len(self.heard) < count:
                await self.changed.wait()
        return self.heard


@contextlib.asynccontextmanager
async def listening(db: Database) -> AsyncIterator[Ears]:
    ears = Ears()
    task = asyncio.ensure_future(ears.listen(db))
    try:
        assert await ears.until(1) == ["anything"]  # it is there
        yield ears
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def saying(*words: str) -> Callable[[Tx], None]:
    def step(tx: Tx) -> None:
        for word in words:
            notify(tx, word)

    return step


def failing(tx: Tx) -> None:
    notify(tx, "cancel")
    raise ValueError("not committed")


@pytest.fixture
async def other(db: Database) -> AsyncIterator[Database]:
    """The same database, as another process has it."""
    one = open_database(db.url)
    yield one
    await one.close()


async def test_a_word_is_heard_once_it_is_committed(db: Database, other: Database) -> None:
    async with listening(db) as ears:
        with pytest.raises(ValueError, match="not committed"):
            await other.tx(failing)
        await other.tx(saying())
        await other.tx(saying("ready", "ready"))
        assert await ears.until(2) == ["anything", "ready"]
        assert ears.work.is_set()


async def test_a_word_that_has_no_event_of_its_own_wakes_everybody(db: Database, other: Database) -> None:
    async with listening(db) as ears:
        tasks = ears.tasks
        await other.tx(saying("tasks"))
        await ears.until(2)
        assert ears.tasks == tasks + 1


async def test_what_is_said_while_others_speak_is_not_lost(db: Database, other: Database) -> None:
    """Many words in a crowd may be heard as one, but the last one is heard after it was said."""
    async with listening(db) as ears:
        for _ in range(50):
            await other.tx(saying("ready"))
        before = ears.heard.count("later")
        await other.tx(saying("later"))
        async with asyncio.timeout(20):
            while ears.heard.count("later") == before:
                await ears.changed.wait()
        assert 1 <= ears.heard.count("ready") <= 50


@pytest.fixture
async def another(file: SqliteDatabase) -> AsyncIterator[SqliteDatabase]:
    one = SqliteDatabase(file.url)
    yield one
    await one.close()


async def test_a_process_hears_its_own_notifications_once(db: Database, other: Database) -> None:
    async with listening(db) as ears:
        with pytest.raises(ValueError, match="not committed"):
            await db.tx(failing)
        await db.tx(saying("cancel"))
        await ears.until(2)
        await other.tx(saying("later"))
        assert await ears.until(3) == ["anything", "cancel", "later"]
        assert ears.cancel.is_set()


@pytest.mark.parametrize("odd", [b"", b"\x01", b"\xff" * 100])
async def test_notifications_are_received_with_a_damaged_counter_file(
    file: SqliteDatabase, another: SqliteDatabase, odd: bytes
) -> None:
    file.write_lock.path.write_bytes(odd)
    async with listening(file) as ears:
        await another.tx(saying("ready"))
        assert await ears.until(2) == ["anything", "ready"]


async def test_without_inotify_the_file_is_polled(
    file: SqliteDatabase, another: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_inotify(_: Path) -> None:
        return None

    monkeypatch.setattr(sqlite_wakeups, "open_inotify", no_inotify)
    async with listening(file) as ears:
        await another.tx(saying("ready"))
        assert await ears.until(2) == ["anything", "ready"]
