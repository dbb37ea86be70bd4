"""The heartbeat of a worker against a database that answers late."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from rota.core.clock import SystemClock
from rota.core.ids import new_id
from rota.db.connection import Database, open_database
from rota.db.dialect import Tx, database_now
from rota.engine import workers
from rota.engine.heartbeat import Heartbeat

LEASE = timedelta(seconds=30)


@asynccontextmanager
async def registered(url: str) -> AsyncIterator[tuple[Database, SystemClock, Heartbeat]]:
    db, clock, worker = open_database(url), SystemClock(), new_id()
    clock.sync(await db.tx(workers.measure))
    terms: dict[str, Any] = {"pid": 1, "version": "1", "concurrency": 1, "kinds": [], "routes": [], "queues": None}
    await db.tx(lambda tx: workers.register(tx, worker=worker, lease=LEASE, now=clock.now(), **terms))
    try:
        yield db, clock, Heartbeat(url, clock, worker, LEASE, lambda _: None, lambda: None)
    finally:
        await db.close()


@pytest.mark.parametrize("late", ["question", "answer"])
async def test_a_heartbeat_that_the_database_answers_late_does_not_move_the_clock(
    clean_url: str, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    async with registered(clean_url) as (db, clock, heartbeat):
        asked = []

        def stalled(tx: Tx) -> Any:
            asked.append(clock.monotonic())
            if late == "question":
                time.sleep(0.7)
            now = database_now(tx)
            if late == "answer":
                time.sleep(0.7)
            return now

        with monkeypatch.context() as patch:
            patch.setattr(workers, "database_now", stalled)
            assert await heartbeat._beat(db)
        sample = await db.tx(workers.measure)
        ahead = clock.now() - sample.time - timedelta(seconds=clock.monotonic() - sample.received)
        error = timedelta(seconds=sample.round_trip, milliseconds=2)  # SQLite's clock has milliseconds
        assert timedelta(seconds=-0.6) < ahead <= error
        assert heartbeat._renewed <= asked[0]  # the lease counts from when the heartbeat was sent
