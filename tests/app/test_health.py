"""`/health/ready`: 503 with codes while nothing can fire, run or be stored; `/health/live`: the process answers."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from sqlalchemy import text as sql

from rota.app import health
from rota.app.application import Rota
from rota.app.health import Readiness
from rota.app.node import Node
from rota.app.settings import Settings
from rota.core.errors import Unavailable
from rota.core.ids import new_id
from rota.db.connection import Database, open_database
from rota.db.dialect import Tx
from rota.db.sqlite import SqliteDatabase
from rota.engine import workers
from rota.engine.scheduler import Scheduler
from rota.engine.worker import Worker
from tests.app.command_line import environment
from tests.app.harness import Api


async def register(api: Api, host_id: str | None = None) -> str:
    """A worker that is alive for half a minute."""
    worker, lease = new_id(), timedelta(seconds=30)
    terms: dict[str, Any] = {"pid": 1, "version": "1", "concurrency": 1, "kinds": [], "routes": [], "queues": None}
    await api.db.tx(
        lambda tx: workers.register(tx, worker=worker, lease=lease, now=api.clock.now(), host_id=host_id, **terms)
    )
    return worker


async def ready(api: Api) -> tuple[int, list[str]]:
    answer = await api.client.get("/health/ready")
    body = answer.json()
    assert body["status"] == ("ok" if answer.status_code == 200 else "unavailable")
    assert list(body["details"]) == body["problems"]
    assert all(body["details"].values())
    assert (await api.client.get("/health/live")).status_code == 200
    return answer.status_code, body["problems"]


async def test_ready_needs_a_worker_that_is_alive(api: Api) -> None:
    assert await ready(api) == (503, ["no_worker"])
    worker = await register(api)
    assert await ready(api) == (200, [])
    await api.clock.advance(timedelta(seconds=31))  # its lease ran out
    assert await ready(api) == (503, ["no_worker"])
    await api.db.tx(workers.renew, worker, timedelta(seconds=30), api.clock.now())
    assert await ready(api) == (200, [])


async def test_not_ready_while_the_database_does_not_answer(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: Any, **__: Any) -> None:
        raise Unavailable("connection refused")

    async def stalled(*_: Any, **__: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(health, "READ_TIMEOUT_SECONDS", 0.05)
    for read in (lost, stalled):
        monkeypatch.setattr(api.db, "read", read)
        assert await ready(api) == (503, ["database_unreachable"])


async def test_not_ready_with_another_schema(api: Api) -> None:
    before = await api.db.read(lambda tx: tx.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one())
    await api.execute("UPDATE alembic_version SET version_num = 'newer'")
    try:
        assert await ready(api) == (503, ["schema_mismatch"])
    finally:  # tests share the database
        await api.execute("UPDATE alembic_version SET version_num = :version", version=before)


@pytest.fixture
async def read_only(api: Api) -> AsyncIterator[Database]:
    """The same database through connections that cannot write."""
    db = open_database(api.db.url)
    if isinstance(db, SqliteDatabase):
        await db.tx(lambda tx: tx.exec_driver_sql("PRAGMA query_only = ON"))
    else:
        name = db.url.rpartition("/")[2]
        await api.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    yield db
    await db.close()
    if not isinstance(db, SqliteDatabase):  # tests share the database
        await api.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')


async def test_not_ready_while_the_database_cannot_be_written(api: Api, read_only: Database) -> None:
    await register(api)
    problems = await Readiness(read_only, api.clock).problems()
    assert list(problems) == ["database_not_writable"]
    assert "read" in problems["database_not_writable"]  # read-only, readonly


async def test_not_ready_while_a_write_waits(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await register(api)
    released = asyncio.Event()
    write = api.db.tx

    async def tx(step: Any, *args: Any) -> Any:
        await released.wait()
        return await write(step, *args)

    monkeypatch.setattr(api.db, "tx", tx)
    monkeypatch.setattr(health, "WRITE_TIMEOUT_SECONDS", 0.05)
    assert await ready(api) == (503, ["database_not_writable"])
    monkeypatch.setattr(health, "WRITE_TIMEOUT_SECONDS", 20)
    released.set()
    assert await ready(api) == (200, [])


async def test_the_database_is_written_at_most_every_ten_seconds(api: Api) -> None:
    def probes(tx: Tx) -> Any:
        return tx.execute(sql("SELECT value FROM counters WHERE name = 'write probe'")).scalar()

    for _ in range(3):
        await ready(api)
    assert await api.db.read(probes) == 0


async def test_the_process_reports_its_own_loops(api: Api, tmp_path: Path) -> None:
    await register(api)
    node = Node(Settings.load(data_dir=tmp_path), Rota(), None)
    api.app.state.readiness.loops = node.problems
    assert await ready(api) == (503, ["starting"])
    node.scheduler, node.worker = Scheduler(api.engine), Worker(api.engine)
    assert await ready(api) == (503, ["starting"])
    node.worker.registration.registered = True
    assert await ready(api) == (200, [])
    node.scheduler.polled_at -= 61
    node.worker.prefetch.claimed_at -= 61
    assert await ready(api) == (503, ["scheduler_stalled", "worker_stalled"])
    node.stopping = True
    assert await ready(api) == (503, ["stopping"])


async def test_a_worker_that_cannot_store_results_is_stalled(api: Api) -> None:
    worker: Any = Worker(api.engine)
    worker.completer.results.append("a result")
    assert worker.trouble() is None
    worker.completer.stored_at -= 61
    assert "1 results" in worker.trouble()


def test_a_server_without_a_worker_is_live_and_not_ready(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'data' / 'rota.db'}"
    env = environment(ROTA_DATABASE_URL=database, ROTA_PORT="0")
    rota = [sys.executable, "-m", "rota.app.cli"]
    subprocess.run([*rota, "migrate"], cwd=tmp_path, env=env, check=True, timeout=60)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*rota, "server"], cwd=tmp_path, env=env, stdout=log, stderr=log)
    try:
        note, end = tmp_path / "data" / "server.json", time.monotonic() + 30
        while not note.exists():
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
        url = orjson.loads(note.read_bytes())["url"]
        assert httpx.get(f"{url}/health/live", timeout=60).status_code == 200
        answer = httpx.get(f"{url}/health/ready", timeout=20)
        assert (answer.status_code, answer.json()["problems"]) == (503, ["no_worker"])
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
