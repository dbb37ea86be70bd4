"""`app.enqueue`: a program enqueues jobs of its tasks, inside and outside of workers."""

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from rota import JobScheduler, Rota, ServiceBuilder, ServiceInfo
from rota.access.store import accounts
from rota.core.errors import Conflict, Invalid, NotFound
from rota.db.connection import Database, open_database
from rota.db.tables import jobs
from rota.kinds.tasks import store as tasks_store
from rota.kinds.tasks.registry import task_rows
from rota.testing import world
from rota.user_code.injection import Injector

NOW = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)


def program() -> tuple[Rota, Any]:
    app = Rota()

    @app.task("billing.add")
    def add(a: int, b: int = 1) -> int:
        return a + b

    return app, add


@pytest.fixture
async def db(clean_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    """A database that the settings name, and that knows the program."""
    monkeypatch.setenv("ROTA_DATABASE_URL", clean_url)
    opened = open_database(clean_url)
    org_id, _ = await opened.tx(accounts.ensure_default_org, NOW)
    await opened.tx(tasks_store.sync, org_id, task_rows(program()[0].registry, Injector(), None), NOW)
    yield opened
    await opened.close()


async def queued(db: Database) -> list[Any]:
    return await db.read(lambda tx: list(tx.execute(select(jobs).order_by(jobs.c.id))))


async def test_a_program_makes_jobs_of_its_functions_from_outside(db: Database) -> None:
    app, add = program()
    try:
        later = datetime.now(UTC) + timedelta(hours=1)
        first = await app.enqueue(add, {"a": 1}, b=2, priority=5, queue="slow")
        second = await app.enqueue("billing.add", a=3, run_at=later, serial_key="one by one")
        many = await app.enqueue_many(add, [{"a": n} for n in range(5)])
    finally:
        await app.close()
    rows = {row.id: row for row in await queued(db)}
    assert list(rows) == sorted([first, second, *many])
    assert (rows[first].target, rows[first].payload) == ("billing.add", {"a": 1, "b": 2})
    assert (rows[first].state, rows[first].queue, rows[first].priority) == ("ready", "slow", 5)
    assert (rows[second].state, rows[second].run_at) == ("later", later)
    assert rows[second].serial_key.endswith(":one by one")
    assert [rows[job_id].payload for job_id in many] == [{"a": n} for n in range(5)]


async def test_what_a_function_would_not_take_is_refused_and_nothing_is_made(db: Database) -> None:
    app, add = program()
    try:
        with pytest.raises(Invalid, match=r"^input.a is missing"):
            await app.enqueue(add, b=1)
        with pytest.raises(Invalid, match=r"items\[2\].input.a: 'two' does not fit"):
            await app.enqueue_many(add, [{"a": 0}, {"a": 1}, {"a": "two"}])
        with pytest.raises(Invalid, match="run_at"):
            await app.enqueue(add, a=1, run_at=datetime(2030, 1, 1))
        with pytest.raises(Invalid, match="priority"):
            await app.enqueue(add, a=1, priority=1000)
        with pytest.raises(Invalid, match="is not a known task"):
            await app.enqueue("unknown")
        with pytest.raises(Invalid, match="is not a registered function of this program"):
            await app.enqueue(program)
        assert await queued(db) == []
        await app.enqueue(add, a=1, job_key="only one")
        with pytest.raises(Conflict):
            await app.enqueue(add, a=1, job_key="only one")
        assert len(await queued(db)) == 1
    finally:
        await app.close()


async def test_an_org_that_is_not_there_is_named(db: Database) -> None:
    app = Rota(org="nowhere")
    with pytest.raises(NotFound, match="org 'nowhere' not found"):
        await app.enqueue("billing.add", a=1)
    await app.close()


def test_every_event_loop_may_ask(clean_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that starts a loop for each question gets an answer each time."""
    monkeypatch.setenv("ROTA_DATABASE_URL", clean_url)
    app, add = program()

    async def prepare() -> None:
        db = open_database(clean_url)
        org_id, _ = await db.tx(accounts.ensure_default_org, NOW)
        await db.tx(tasks_store.sync, org_id, task_rows(app.registry, app.injector, None), NOW)
        await db.close()

    async def ask() -> str:
        try:
            return await app.enqueue(add, a=1)
        finally:
            await app.close()

    asyncio.run(prepare())
    assert asyncio.run(ask()) < asyncio.run(ask())


async def test_inside_a_process_that_runs_it_a_task_makes_more_jobs(clean_url: str, tmp_path: Any) -> None:
    program = Rota()
    ran: list[str] = []
    both = threading.Event()

    @program.task
    async def parent() -> str:
        return await program.enqueue(child, label="async")

    @program.task
    def sync_parent() -> str:  # in a thread with its own event loop
        return asyncio.run(program.enqueue(child, label="sync"))

    @program.task
    def child(label: str) -> None:
        ran.append(label)
        if len(ran) == 2:
            both.set()

    service = ServiceBuilder(ServiceInfo("test"), database_url=clean_url, program=program).with_tasks().build()
    async with service.router.lifespan_context(service):
        scheduler: JobScheduler = service.state.jobs
        for name in ("parent", "sync_parent"):
            job_id = await program.enqueue(name)
            assert await scheduler.wait(job_id, timeout=30) == "success"
        assert await asyncio.to_thread(both.wait, 30)
    assert ran == ["async", "sync"]


@pytest.mark.parametrize("kind", ["letter", "repair"])
async def test_an_unknown_kind_is_answered_with_those_that_can_be_scheduled(kind: str) -> None:
    async with world(Rota()) as installation:
        with pytest.raises(Invalid, match=rf"'{kind}' is not one of graph, task, workflow$"):
            await installation.engine.create_schedules(
                installation.org_id, [{"kind": kind, "target": "x", "interval": "5m"}]
            )
        with pytest.raises(Invalid, match=rf"'{kind}' is not one of graph, task, workflow$"):
            await installation.engine.enqueue(installation.org_id, kind, "x", [None])
