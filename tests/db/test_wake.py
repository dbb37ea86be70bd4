"""Wake-ups between processes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from rota.db import sqlite_wakeups
from rota.db.connection import Database, open_database
from rota.db.dialect import Tx, notify
from rota.db.sqlite import SqliteDatabase
from rota.db.wake import Wake


class RecordingWake(Wake):
    """Records notifications."""

    def __init__(self) -> None:
        super().__init__()
        self.received: list[str] = []

    def signal(self, topic: str) -> None:
        self.received.append(topic)
        super().signal(topic)

    async def until(self, count: int) -> list[str]:
        async with asyncio.timeout(20):
            while len(self.received) < count:
                await self.changed.wait()
        return self.received


@contextlib.asynccontextmanager
async def listening(db: Database) -> AsyncIterator[RecordingWake]:
    wake = RecordingWake()
    task = asyncio.ensure_future(wake.listen(db))
    try:
        assert await wake.until(1) == ["anything"]  # it is there
        yield wake
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def notifying(*topics: str) -> Callable[[Tx], None]:
    def step(tx: Tx) -> None:
        for topic in topics:
            notify(tx, topic)

    return step


def failing(tx: Tx) -> None:
    notify(tx, "cancel")
    raise ValueError("not committed")


@pytest.fixture
async def other(db: Database) -> AsyncIterator[Database]:
    """The same database, as another process has it."""
    second = open_database(db.url)
    yield second
    await second.close()


async def test_a_word_is_heard_once_it_is_committed(db: Database, other: Database) -> None:
    async with listening(db) as wake:
        with pytest.raises(ValueError, match="not committed"):
            await other.tx(failing)
        await other.tx(notifying())
        await other.tx(notifying("ready", "ready"))
        assert await wake.until(2) == ["anything", "ready"]
        assert wake.work.is_set()


async def test_a_notification_without_an_event_of_its_own_wakes_every_loop(db: Database, other: Database) -> None:
    async with listening(db) as wake:
        tasks = wake.task_changes
        await other.tx(notifying("tasks"))
        await wake.until(2)
        assert wake.task_changes == tasks + 1


async def test_a_notification_during_a_burst_is_not_lost(db: Database, other: Database) -> None:
    """Many notifications of a burst may arrive as one, but the last one arrives after it was sent."""
    async with listening(db) as wake:
        for _ in range(50):
            await other.tx(notifying("ready"))
        before = wake.received.count("later")
        await other.tx(notifying("later"))
        async with asyncio.timeout(20):
            while wake.received.count("later") == before:
                await wake.changed.wait()
        assert 1 <= wake.received.count("ready") <= 50


@pytest.fixture
async def another(file: SqliteDatabase) -> AsyncIterator[SqliteDatabase]:
    second = SqliteDatabase(file.url)
    yield second
    await second.close()


async def test_a_process_hears_its_own_notifications_once(db: Database, other: Database) -> None:
    async with listening(db) as wake:
        with pytest.raises(ValueError, match="not committed"):
            await db.tx(failing)
        await db.tx(notifying("cancel"))
        await wake.until(2)
        await other.tx(notifying("later"))
        assert await wake.until(3) == ["anything", "cancel", "later"]
        assert wake.cancel.is_set()


@pytest.mark.parametrize("odd", [b"", b"\x01", b"\xff" * 100])
async def test_notifications_are_received_with_a_damaged_counter_file(
    file: SqliteDatabase, another: SqliteDatabase, odd: bytes
) -> None:
    file.write_lock.path.write_bytes(odd)
    async with listening(file) as wake:
        await another.tx(notifying("ready"))
        assert await wake.until(2) == ["anything", "ready"]


async def test_without_inotify_the_file_is_polled(
    file: SqliteDatabase, another: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_inotify(_: Path) -> None:
        return None

    monkeypatch.setattr(sqlite_wakeups, "open_inotify", no_inotify)
    async with listening(file) as wake:
        await another.tx(notifying("ready"))
        assert await wake.until(2) == ["anything", "ready"]
