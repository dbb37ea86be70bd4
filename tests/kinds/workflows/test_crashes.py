"""A process that dies at any statement: never two effects, never a lost event, always a legal pair of phase and status.

The service is a folder: what it has applied outlives the process that asked for it, as the world outside does. All
points take minutes, so each test visits every sixth, others than its siblings; ROTA_TEST_EVERY_POINT=1 visits all.
"""

import asyncio
import gc
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from rota import Applied, NotApplied, Prepare, Rota, Workflow, mutation
from rota.core.states import Phase, Status
from rota.db.dialect import Tx
from rota.db.tables import effects, events, jobs, runs, workflow_runs
from rota.kinds.workflows.rules import legal
from rota.kinds.workflows.store import upkeep
from rota.kinds.workflows.store.records import NewEvent
from rota.testing import MONDAY, World, count_from_here, crash_point, dies_at, world
from tests.databases import copy_sqlite, empty_postgres


class Folder:
    """Each effect is a file. The process dies before or after it wrote one, by a countdown."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @mutation(reconcile="find")
    def write(self, name: str, idempotency_key: str) -> str:
        crash_point("before the effect")
        (self.path / f"{name} {idempotency_key}").touch()
        crash_point("after the effect")
        return name

    def find(self, idempotency_key: str, params: dict[str, Any]) -> Applied | NotApplied:
        done = self.path / f"{params['name']} {idempotency_key}"
        return Applied(params["name"]) if done.exists() else NotApplied()

    @mutation
    def write_blindly(self, name: str) -> str:
        return self.write(name, "-")

    @property
    def effects(self) -> list[str]:
        return sorted(path.name.split()[0] for path in self.path.iterdir())


def program(folder: Folder, call: str) -> Rota:
    app, flow = Rota(), Workflow("copy", topics=["in", "out"])

    @flow.consumer(subscribe=["in"], publishes=["out"])
    class Copy:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            events = await ctx.peek("in", limit=1)
            return Prepare(
                reservations={"in": [event.id for event in events]}, data=[event.message_id for event in events]
            )

        async def mutate(self, ctx: Any, prepared: Prepare) -> None:
            await ctx.call(f"folder.{call}", name=prepared.data[0])

        async def next(self, ctx: Any, prepared: Prepare, outcome: Any) -> Any:
            for value in prepared.data:
                await ctx.publish("out", message_id=value, payload=outcome.status)
            return (prepared.data or [None])[-1]

    @flow.consumer(subscribe=["out"])
    class Take:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            return Prepare(reservations={"out": [event.id for event in await ctx.peek("out")]})

    app.workflow(flow)
    app.connector("folder", folder)
    return app


def fresh(url: str, template: Path) -> None:
    if url.startswith("sqlite"):
        for tail in ("-wal", "-shm"):
            Path(url.removeprefix("sqlite:///") + tail).unlink(missing_ok=True)
        copy_sqlite(template, url)
    else:
        empty_postgres(url)


async def settle(url: str, app: Rota, folder: Folder, check: Callable[[World], Any]) -> None:
    """What another process makes of what the dead one left."""
    async with world(app, database_url=url, start=MONDAY + timedelta(minutes=1)) as rota:
        await rota.take_over()
        await rota.publish("copy", "in", message_id="a")  # the caller may not have got an answer
        await rota.publish("copy", "in", message_id="b")
        await rota.advance(minutes=2)
        if (await rota.workflow("copy"))["status"] == "needs_attention":  # a person resolves it by what exists
            await rota.workflows.resolve("copy", "applied" if folder.effects else "not_applied", None, "ada")
            await rota.advance(minutes=2)
        await check(rota)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("call", ["write", "write_blindly"])
def test_a_crash_at_every_statement_of_a_run(clean_url: str, sqlite_template: Path, tmp_path: Path, call: str) -> None:
    async def play(folder: Folder) -> None:
        async with world(program(folder, call), database_url=clean_url) as rota:
            await rota.drain()
            count_from_here()
            await rota.publish("copy", "in", message_id="a")
            await rota.drain()

    async def check(rota: World) -> None:
        rows = await rota.engine.db.read(lambda tx: list(tx.execute(select(events).order_by(events.c.message_id))))
        assert {(row.topic, row.message_id, row.status) for row in rows} == {
            (topic, name, "consumed") for topic in ("in", "out") for name in ("a", "b")
        }
        assert {row.payload for row in rows if row.topic == "out"} == {"applied"}
        joined = select(workflow_runs.c.phase, runs.c.status, runs.c.reason).join(runs, runs.c.id == workflow_runs.c.id)
        for row in await rota.engine.db.read(lambda tx: list(tx.execute(joined))):
            assert legal(Phase(row.phase), Status(row.status), row.reason), row
        known = await rota.engine.db.read(lambda tx: list(tx.execute(select(effects.c.status))))
        assert [row.status for row in known].count("applied") == 2
        assert {row.status for row in known} <= {"applied", "failed"}
        assert await rota.engine.db.read(upkeep.orphaned_events) == []

    every = bool(os.environ.get("ROTA_TEST_EVERY_POINT"))
    first = 1 + 3 * (call == "write") + clean_url.startswith("sqlite")
    for point in range(1, 500) if every else range(first, 500, 6):
        path = tmp_path / f"effects-{point}"
        path.mkdir()
        folder = Folder(path)
        fresh(clean_url, sqlite_template)
        died = dies_at(point, partial(play, folder), after_set_up=True)
        asyncio.run(settle(clean_url, program(folder, call), folder, check))
        assert folder.effects == ["a", "b"], f"after a crash at point {point}"
        if not died:
            break
    assert point > 40  # statements and commits of a publish, and of a run of each consumer


def backlog_program() -> Rota:
    app, flow = Rota(), Workflow("copy", topics=["in"])

    @flow.consumer(subscribe=["in"])
    class Take:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            return Prepare(reservations={"in": [event.id for event in await ctx.peek("in", limit=1)]})

    app.workflow(flow)
    return app


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_crash_at_every_statement_of_a_backlog(clean_url: str, sqlite_template: Path, tmp_path: Path) -> None:
    """The statement that commits a run and begins the next one is atomic."""
    names = ["a", "b", "c", "d"]

    async def play() -> None:
        async with world(backlog_program(), database_url=clean_url) as rota:
            await rota.drain()
            count_from_here()
            await rota.workflows.publish_many("copy", [NewEvent("in", name, None) for name in names])
            await rota.drain()

    async def check(rota: World) -> None:
        def read(tx: Tx) -> tuple[list[Any], list[Any], int]:
            taken = select(events.c.message_id, events.c.status, workflow_runs.c.phase)
            joined = taken.join_from(events, workflow_runs, workflow_runs.c.id == events.c.reserved_by)
            ended = select(runs.c.outcome).where(runs.c.status == Status.SUCCESS.value)
            left = tx.execute(select(func.count()).select_from(jobs)).scalar_one()
            return list(tx.execute(joined)), list(tx.execute(ended).scalars()), left

        taken, outcomes, left = await rota.engine.db.read(read)
        assert {tuple(row) for row in taken if row.message_id in names} <= {
            (name, "consumed", Phase.COMMITTED.value) for name in names
        }
        assert len(taken) == len({row.message_id for row in taken}) == sum(outcome["taken"] for outcome in outcomes)
        assert left == 0
        assert await rota.engine.db.read(upkeep.orphaned_events) == []

    for point in range(1, 500):
        fresh(clean_url, sqlite_template)
        died = dies_at(point, play, after_set_up=True)
        asyncio.run(settle(clean_url, backlog_program(), Folder(tmp_path), check))
        if not died:
            break
    assert point > 10  # a publish, a claim, the first run and the statement of each further run


class Thrown:
    """Like a connection with its own threads: only the process that opened it can close it."""

    def __init__(self) -> None:
        self.me, self.owner = self, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.owner:
            os._exit(1)


def test_a_killed_child_does_not_finalize_objects_of_its_parent() -> None:
    async def play() -> None:
        gc.collect()

    gc.disable()
    try:
        Thrown()
        assert not dies_at(1, play)
    finally:
        gc.enable()


@pytest.mark.parametrize("point", [1, 2, 3])
def test_points_after_the_set_up_begin_with_its_end(tmp_path: Path, point: int) -> None:
    async def play() -> None:
        for name in ("set up", "set up again"):
            crash_point(name)
        count_from_here()
        for number in (1, 2):
            (tmp_path / f"{point} {number}").touch()
            crash_point(f"point {number}")

    assert dies_at(point, play, after_set_up=True) is (point < 3)
    assert len(list(tmp_path.iterdir())) == min(point, 2)


def test_a_hanging_child_is_killed_even_if_the_parent_uses_alarms() -> None:
    async def play() -> None:
        os.read(pipe[0], 1)

    pipe = os.pipe()
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        with pytest.raises(AssertionError, match=r"point 1: wait status 14"):
            dies_at(1, play, seconds=1)
    finally:
        signal.signal(signal.SIGALRM, before)
        for end in pipe:
            os.close(end)
