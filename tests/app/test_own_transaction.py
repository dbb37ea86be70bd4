"""`app.enqueue(…, connection=…)`: a job commits, or vanishes, with the rows of the caller's own transaction."""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, select
from sqlalchemy import text as sql
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from rota import JobScheduler, Rota, ServiceBuilder, ServiceInfo
from rota.access.store import accounts
from rota.core.clock import SystemClock
from rota.core.errors import Conflict, Invalid, NotFound, Refused, Unavailable
from rota.db.connection import Database, open_database
from rota.db.dialect import Tx
from rota.db.tables import jobs, runs
from rota.kinds.tasks import store as tasks_store
from rota.kinds.tasks.registry import task_rows
from tests.app.callers import (
    POSTGRESQL_CALLERS,
    SQLITE_CALLERS,
    AsyncpgCaller,
    Caller,
    django_connection,
    open_caller,
    sync_url,
)
from tests.databases import copy_sqlite, empty_postgres
from tests.postgres import create_database, drop_database

ran: list[str] = []


def program() -> Rota:
    app = Rota()

    @app.task("orders.confirm")
    def confirm(order: str, copies: int = 1) -> str:
        ran.append(order)
        return order

    @app.task("orders.digest", debounce="1h", debounce_key="customer")
    def digest(customer: str, order: str) -> None: ...

    @app.task("orders.remind", throttle="1h", queue="mail", priority=3)
    def remind(order: str) -> None: ...

    return app


async def prepare(url: str) -> None:
    """Store the first org, the program's tasks and a table of the caller."""
    db = open_database(url)
    try:
        app, now = program(), SystemClock().now()
        org_id, _ = await db.tx(accounts.ensure_default_org, now)
        await db.tx(tasks_store.sync, org_id, task_rows(app.registry, app.injector, None), now)
        for text in ("DROP TABLE IF EXISTS orders", "CREATE TABLE orders (name text)"):
            await db.tx(write, text)
    finally:
        await db.close()


def write(tx: Tx, text: str) -> None:
    tx.execute(sql(text))


class Shop:
    """A caller beside the database that it uses."""

    def __init__(self, caller: Caller, db: Database, app: Rota) -> None:
        self.caller, self.db, self.app = caller, db, app

    async def order(self, name: str, **options: Any) -> str:
        """Insert an order and enqueue its job, in the caller's open transaction."""
        await self.caller.execute(f"INSERT INTO orders VALUES ('{name}')")
        return await self.caller.enqueue(self.app, "orders.confirm", order=name, **options)

    async def orders(self) -> list[str]:
        return await self.db.read(lambda tx: list(tx.execute(sql("SELECT name FROM orders ORDER BY name")).scalars()))

    async def jobs(self) -> list[Any]:
        return await self.db.read(lambda tx: list(tx.execute(select(jobs).order_by(jobs.c.id))))


@pytest.fixture(params=[*POSTGRESQL_CALLERS, *SQLITE_CALLERS])
def kind_and_url(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Each way of connecting, with a migrated, empty database."""
    return request.param, empty_database(request, request.param)


def empty_database(request: pytest.FixtureRequest, kind: str) -> str:
    if kind in SQLITE_CALLERS:
        url = f"sqlite:///{request.getfixturevalue('tmp_path') / 'rota.db'}"
        copy_sqlite(request.getfixturevalue("sqlite_template"), url)
    else:
        url = str(request.getfixturevalue("shared_postgres"))
        empty_postgres(url)
    return url


@pytest.fixture
async def shop(kind_and_url: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    kind, url = kind_and_url
    monkeypatch.setenv("ROTA_DATABASE_URL", url)
    await prepare(url)
    caller, db = await open_caller(kind, url), open_database(url)
    ran.clear()
    yield Shop(caller, db, program())
    await caller.close()
    await db.close()


async def test_a_job_runs_once_after_the_caller_has_committed(shop: Shop) -> None:
    service = ServiceBuilder(ServiceInfo("shop"), database_url=shop.db.url, program=shop.app).with_tasks().build()
    async with service.router.lifespan_context(service):
        job_id = await shop.order("A1")
        assert await shop.jobs() == []  # not committed
        await shop.caller.commit()
        scheduler: JobScheduler = service.state.jobs
        assert await scheduler.wait(job_id, timeout=25) == "success"  # woken up: the worker polls every 30 seconds
    assert ran == ["A1"]
    assert await shop.orders() == ["A1"]


async def test_a_rollback_leaves_no_job_and_wakes_no_worker(shop: Shop) -> None:
    async with notifications(shop.db.url) as received:
        await shop.order("A1")
        await shop.caller.rollback()
        assert (await shop.jobs(), await shop.orders()) == ([], [])
        await shop.order("A2")
        await shop.caller.commit()
        assert [job.payload for job in await shop.jobs()] == [{"order": "A2"}]
        if received is not None:
            assert await asyncio.wait_for(received.get(), 10) == "ready"
            assert received.empty()


async def test_a_rollback_to_a_savepoint_leaves_the_job_before_it(shop: Shop) -> None:
    kept = await shop.order("A1")
    await shop.caller.execute("SAVEPOINT one")
    await shop.order("A2")
    await shop.caller.execute("ROLLBACK TO SAVEPOINT one")
    await shop.caller.commit()
    assert [job.id for job in await shop.jobs()] == [kept]
    assert await shop.orders() == ["A1"]


async def test_a_job_key_holds_within_the_transaction(shop: Shop) -> None:
    first = await shop.order("A1", job_key="confirm")
    with pytest.raises(Conflict, match="already has the key confirm"):
        await shop.order("A2", job_key="confirm")
    assert await shop.order("A3", job_key="confirm", key_mode="preserve") == first
    last = await shop.order("A4", job_key="confirm", key_mode="replace")
    await shop.caller.commit()
    assert [(job.id, job.payload) for job in await shop.jobs()] == [(last, {"order": "A4"})]
    ended = await shop.db.read(lambda tx: list(tx.execute(select(runs.c.job_id, runs.c.status, runs.c.reason))))
    assert [tuple(row) for row in ended] == [(first, "skipped", "superseded")]
    with pytest.raises(Conflict):
        await shop.order("A5", job_key="confirm")


async def test_all_options_reach_the_job(shop: Shop) -> None:
    later = "2099-01-01T00:00:00Z"
    first = await shop.order("A1", queue="mail", priority=7, serial_key="customer 1")
    second = await shop.order("A2", serial_key="customer 1")
    third = await shop.order("100% sure; 'quoted' \U0001f600".replace("'", "''"), run_at=later)
    many = await shop.caller.enqueue_many(shop.app, "orders.confirm", [{"order": str(n)} for n in range(600)])
    await shop.caller.commit()
    stored = {job.id: job for job in await shop.jobs()}
    assert (stored[first].queue, stored[first].priority, stored[first].state) == ("mail", 7, "ready")
    assert stored[first].serial_key == f"{stored[first].org_id}:customer 1"
    assert stored[second].state == "blocked"
    assert (stored[third].state, stored[third].run_at.year) == ("later", 2099)
    assert stored[third].payload == {"order": "100% sure; ''quoted'' \U0001f600"}
    assert [stored[job_id].payload["order"] for job_id in many] == [str(n) for n in range(600)]
    assert {job.route for job in stored.values()} == {"task:default:orders.confirm"}


async def test_a_job_after_another_of_the_transaction_runs_when_that_has_ended(shop: Shop) -> None:
    service = ServiceBuilder(ServiceInfo("shop"), database_url=shop.db.url, program=shop.app).with_tasks().build()
    async with service.router.lifespan_context(service):
        first = await shop.order("A1")
        with pytest.raises(Invalid, match=r"after\[0\]: '01ARZ3NDEKTSV4RRFFQ69G5FAV' is not a job"):
            await shop.order("A2", after=["01ARZ3NDEKTSV4RRFFQ69G5FAV"])
        with pytest.raises(Invalid, match="when: 'never'"):
            await shop.order("A2", after=[first], when="never")
        last = await shop.order("A3", after=[first])
        never = await shop.order("A4", after=[first], when="failure")
        await shop.caller.commit()
        scheduler: JobScheduler = service.state.jobs
        assert await scheduler.wait(last, timeout=20) == "success"
        assert await scheduler.wait(never, timeout=20) == "skipped"
    assert ran == ["A1", "A3"]


async def test_the_rules_of_the_task_hold_for_jobs_of_the_transaction(shop: Shop) -> None:
    joined = [
        await shop.caller.enqueue(shop.app, "orders.digest", customer=customer, order=order)
        for customer, order in (("ada", "A1"), ("ada", "A2"), ("bob", "B1"))
    ]
    with pytest.raises(Invalid, match=r"job_key: 'k' cannot be set: the debounce of task 'orders.digest' decides"):
        await shop.caller.enqueue(shop.app, "orders.digest", customer="ada", order="A3", job_key="k")
    with pytest.raises(Invalid, match="cannot be used for a task with `debounce` or `throttle`"):
        await shop.caller.enqueue(shop.app, "orders.remind", order="A1", after=[joined[0]])
    reminded, throttled = [await shop.caller.enqueue(shop.app, "orders.remind", order=order) for order in ("A1", "A2")]
    await shop.caller.commit()
    assert joined[0] == joined[1] != joined[2]
    stored = {job.id: job for job in await shop.jobs()}
    assert stored.keys() == {joined[0], joined[2], reminded}
    assert (stored[joined[0]].payload, stored[joined[0]].state) == ({"customer": "ada", "order": "A2"}, "later")
    assert (stored[reminded].queue, stored[reminded].priority) == ("mail", 3)
    ended = await shop.db.read(lambda tx: list(tx.execute(select(runs.c.job_id, runs.c.status, runs.c.reason))))
    assert [tuple(row) for row in ended] == [(throttled, "skipped", "throttled")]


async def test_a_throttle_that_is_rolled_back_lets_the_next_job_pass(shop: Shop) -> None:
    await shop.caller.enqueue(shop.app, "orders.remind", order="A1")
    await shop.caller.rollback()
    passed = await shop.caller.enqueue(shop.app, "orders.remind", order="A2")
    await shop.caller.commit()
    assert [job.id for job in await shop.jobs()] == [passed]


async def test_a_function_that_no_worker_has_stored_has_its_rules(shop: Shop) -> None:
    app = program()

    @app.task("orders.pack", queue="warehouse", priority=4, debounce="1h", debounce_key="order")
    def pack(order: str = "any") -> None: ...

    ids = [
        await shop.caller.enqueue(app, "orders.pack", params) for params in (None, {"order": "any"}, {"order": "A1"})
    ]
    await shop.caller.commit()
    assert ids[0] == ids[1] != ids[2]
    assert {(job.id, job.queue, job.priority) for job in await shop.jobs()} == {(id, "warehouse", 4) for id in ids}


async def test_what_the_task_does_not_accept_leaves_the_transaction_usable(shop: Shop) -> None:
    with pytest.raises(Invalid, match=r"^input.order is missing"):
        await shop.caller.enqueue(shop.app, "orders.confirm")
    items = [{"order": "A1"}, {"order": "A2", "copies": "two"}]
    with pytest.raises(Invalid, match=r"items\[1\].input.copies: 'two' does not fit"):
        await shop.caller.enqueue_many(shop.app, "orders.confirm", items)
    with pytest.raises(Invalid, match="is not a known task"):
        await shop.caller.enqueue(shop.app, "unknown")
    with pytest.raises(Invalid, match="key_mode: 'maybe' is not one of"):
        await shop.caller.enqueue(shop.app, "orders.confirm", order="A1", key_mode="maybe")
    with pytest.raises(NotFound, match="org 'nowhere' not found"):
        await shop.caller.enqueue(Rota(org="nowhere"), "orders.confirm", order="A1")
    await shop.order("A1")
    await shop.caller.commit()
    assert len(await shop.jobs()) == 1


@pytest.fixture
def postgres(shared_postgres: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A PostgreSQL database that the settings name, with the program's tasks."""
    empty_postgres(shared_postgres)
    asyncio.run(prepare(shared_postgres))
    monkeypatch.setenv("ROTA_DATABASE_URL", shared_postgres)
    return shared_postgres


@pytest.mark.parametrize("kind", ["psycopg", "asyncpg", "async session asyncpg", "django"])
async def test_another_database_is_refused(kind: str, postgres: str, postgres_url: str, postgres_template: str) -> None:
    other = create_database(postgres_url, template=postgres_template)
    await prepare(other)
    caller = await open_caller(kind, other)
    try:
        with pytest.raises(Refused, match=r"goes to database '\w+', but the settings name '\w+' \(ROTA_DATABASE_URL\)"):
            await caller.enqueue(program(), "orders.confirm", order="A1")
    finally:
        await caller.close()
        drop_database(postgres_url, other)


async def test_another_schema_is_refused_and_a_database_without_tables_too(postgres: str, postgres_url: str) -> None:
    with psycopg.connect(postgres, options="-c search_path=elsewhere") as connection:
        with pytest.raises(Refused, match="finds the tables of Rota in no schema, but they are in 'public'"):
            program().enqueue("orders.confirm", order="A1", connection=connection)
        connection.execute("CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.jobs (id int)")
        with pytest.raises(Refused, match="in schema 'elsewhere', but they are in 'public': set its search_path"):
            program().enqueue("orders.confirm", order="A1", connection=connection)
        connection.rollback()
    empty = create_database(postgres_url)
    try:
        with psycopg.connect(empty) as connection, pytest.raises(Refused, match="but the settings name"):
            program().enqueue("orders.confirm", order="A1", connection=connection)
    finally:
        drop_database(postgres_url, empty)


def test_settings_that_name_an_unmigrated_database_are_reported(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = create_database(postgres_url)
    try:
        monkeypatch.setenv("ROTA_DATABASE_URL", empty)
        with psycopg.connect(empty) as connection, pytest.raises(Unavailable, match="run `rota migrate`"):
            program().enqueue("orders.confirm", order="A1", connection=connection)
    finally:
        drop_database(postgres_url, empty)
    file = tmp_path / "empty.db"
    monkeypatch.setenv("ROTA_DATABASE_URL", f"sqlite:///{file}")
    with contextlib.closing(sqlite3.connect(file)) as own:
        own.execute("CREATE TABLE mine (id int)")
        with pytest.raises(Unavailable, match="run `rota migrate`"):
            program().enqueue("orders.confirm", order="A1", connection=own)


async def test_a_connection_in_autocommit_mode_is_refused_unless_a_transaction_is_open(postgres: str) -> None:
    app = program()
    with psycopg.connect(postgres, autocommit=True) as connection:
        with pytest.raises(Refused, match="in autocommit mode and no transaction is open"):
            app.enqueue("orders.confirm", order="A1", connection=connection)
        with connection.transaction():
            app.enqueue("orders.confirm", order="A2", connection=connection)
    raw = await asyncpg.connect(postgres)
    with pytest.raises(Refused, match="autocommit"):
        await app.enqueue("orders.confirm", order="A1", connection=raw)
    async with raw.transaction():
        await app.enqueue("orders.confirm", order="A3", connection=raw)
    rows = await raw.fetch("SELECT payload FROM jobs ORDER BY id")
    assert [row["payload"] for row in rows] == ['{"order":"A2"}', '{"order":"A3"}']
    await raw.close()
    engine = create_engine(sync_url(postgres, "postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as plain, pytest.raises(Refused, match="autocommit"):
        app.enqueue("orders.confirm", order="A1", connection=plain)
    engine.dispose()
    async_engine = create_async_engine(sync_url(postgres, "postgresql+asyncpg"), isolation_level="AUTOCOMMIT")
    async with async_engine.connect() as awaited:
        with pytest.raises(Refused, match="autocommit"):
            await app.enqueue("orders.confirm", order="A1", connection=awaited)
    await async_engine.dispose()
    wrapper = django_connection(postgres, autocommit=True)
    with contextlib.closing(wrapper), pytest.raises(Refused, match=r"enqueue inside `with transaction.atomic\(\):`"):
        app.enqueue("orders.confirm", order="A1", connection=wrapper)


async def test_a_connection_that_cannot_be_used_is_refused_with_the_reason(postgres: str, tmp_path: Path) -> None:
    app = program()
    closed = psycopg.connect(postgres)
    closed.close()
    with pytest.raises(Refused, match="the connection is closed"):
        app.enqueue("orders.confirm", order="A1", connection=closed)
    gone = await asyncpg.connect(postgres)
    await gone.close()
    with pytest.raises(Refused, match="the connection is closed"):
        await app.enqueue("orders.confirm", order="A1", connection=gone)
    engine = create_engine(sync_url(postgres, "postgresql+psycopg"))
    ended = engine.connect()
    ended.close()
    with pytest.raises(Refused, match="the connection is closed"):
        app.enqueue("orders.confirm", order="A1", connection=ended)
    with Session() as unbound, pytest.raises(Refused, match="the session has no connection to enqueue with"):
        app.enqueue("orders.confirm", order="A1", connection=unbound)
    engine.dispose()
    with psycopg.connect(postgres) as failed:
        with pytest.raises(psycopg.errors.UndefinedTable):
            failed.execute("SELECT 1 FROM nowhere")
        with pytest.raises(Refused, match="the connection's transaction has failed; roll it back"):
            app.enqueue("orders.confirm", order="A1", connection=failed)
        failed.rollback()
    with pytest.raises(Invalid, match="connection: 'str' is not supported; pass a Connection, Session"):
        app.enqueue("orders.confirm", order="A1", connection=postgres)  # type: ignore[call-overload]
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as file, pytest.raises(Refused, match="goes to SQLite"):
        app.enqueue("orders.confirm", order="A1", connection=file)


async def test_a_sqlite_connection_to_another_file_or_closed_is_refused(
    tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = program()
    for name in ("rota.db", "other.db"):
        copy_sqlite(sqlite_template, f"sqlite:///{tmp_path / name}")
        await prepare(f"sqlite:///{tmp_path / name}")
    monkeypatch.setenv("ROTA_DATABASE_URL", f"sqlite:///{tmp_path / 'rota.db'}")
    other = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(Refused, match=r"goes to .*other.db, but the settings name .*rota.db \(ROTA_DATABASE_URL\)"):
        app.enqueue("orders.confirm", order="A1", connection=other)
    other.close()
    with pytest.raises(Refused, match="the connection is closed"):
        app.enqueue("orders.confirm", order="A1", connection=other)
    with (
        contextlib.closing(sqlite3.connect(":memory:")) as memory,
        pytest.raises(Refused, match="database in memory"),
    ):
        app.enqueue("orders.confirm", order="A1", connection=memory)
    plain = sqlite3.connect(tmp_path / "rota.db", isolation_level=None)
    with contextlib.closing(plain):
        with pytest.raises(Refused, match="autocommit"):
            app.enqueue("orders.confirm", order="A1", connection=plain)
        plain.execute("BEGIN IMMEDIATE")
        app.enqueue("orders.confirm", order="A1", connection=plain)
        plain.execute("ROLLBACK")
        assert plain.execute("SELECT count(*) FROM jobs").fetchone() == (0,)


async def test_the_callers_session_settings_stay_as_they_are(postgres: str) -> None:
    with psycopg.connect(postgres) as connection:
        connection.execute("SET LOCAL statement_timeout = '7s'")
        before = connection.execute("SHOW ALL").fetchall()
        program().enqueue("orders.confirm", order="A1", serial_key="one", job_key="one", connection=connection)
        assert connection.execute("SHOW ALL").fetchall() == before
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        connection.rollback()
    caller = await open_caller("asyncpg", postgres)
    assert isinstance(caller, AsyncpgCaller)
    await caller.enqueue(program(), "orders.confirm", order="A1")
    assert await caller.connection.fetchval("SELECT '{\"a\": 1}'::jsonb") == '{"a": 1}'  # no codec was installed
    await caller.close()


CRASH = """
import os, sys
from tests.app.test_own_transaction import open_caller, program
import asyncio

async def main():
    caller = await open_caller(sys.argv[1], sys.argv[2])
    await caller.execute("INSERT INTO orders VALUES ('A1')")
    print(await caller.enqueue(program(), "orders.confirm", order="A1"), flush=True)
    os._exit(9)

asyncio.run(main())
"""


@pytest.fixture(params=["psycopg", "asyncpg", "session", "sqlite3"])
def crash_kind_and_url(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param, empty_database(request, request.param)


async def test_a_client_that_dies_before_its_commit_leaves_no_job(crash_kind_and_url: tuple[str, str]) -> None:
    kind, url = crash_kind_and_url
    await prepare(url)
    dead = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", CRASH, kind, url],
        env={"ROTA_DATABASE_URL": url, "PATH": "/usr/bin:/bin"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (dead.returncode, len(dead.stdout.strip())) == (9, 26), dead.stderr
    db = open_database(url)
    assert await db.read(lambda tx: tx.execute(select(jobs)).all()) == []
    assert await db.read(lambda tx: tx.execute(sql("SELECT * FROM orders")).all()) == []
    await db.tx(write, "INSERT INTO orders VALUES ('A2')")  # no lock is left
    await db.close()


def test_a_program_that_only_enqueues_opens_nothing_when_it_is_imported() -> None:
    code = """
import socket, sys, threading
def refuse(*args):
    raise AssertionError("connected")
socket.socket.connect = refuse
import rota
app = rota.Rota()
@app.task
def report() -> None: ...
assert threading.active_count() == 1
assert "psycopg" not in sys.modules and "django" not in sys.modules and "sqlalchemy.orm" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@contextlib.asynccontextmanager
async def notifications(url: str) -> AsyncIterator["asyncio.Queue[str] | None"]:
    """The notifications of PostgreSQL that workers receive, as they come; None for SQLite."""
    if url.startswith("sqlite"):
        yield None
        return
    received: asyncio.Queue[str] = asyncio.Queue()
    listener = await asyncpg.connect(url)
    await listener.add_listener("rota", lambda *args: received.put_nowait(args[3]))
    yield received
    await listener.close()
