"""How many statements the steps of a workflow take. They do not depend on the number of pending events."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Update, select, update

from rota import Prepare, Rota, Workflow
from rota.db.crash_points import at_each_statement
from rota.db.dialect import Tx
from rota.db.tables import handlers
from rota.kinds.workflows.store.records import NewEvent
from rota.testing import MONDAY, World, world
from tests.kinds.workflows.test_runs import rows

RUNS = 6


def program(statements: list[str], begun: list[int], emits: int = 0) -> Rota:
    """A consumer that takes one event a run, RUNS times; `begun` gets the number of statements before each run."""
    app, flow = Rota(), Workflow("copy", topics=["in", "out"])

    @flow.consumer(subscribe=["in"], publishes=["out"])
    class Take:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            begun.append(len(statements))
            events = await ctx.peek("in", limit=1) if len(begun) <= RUNS else []
            return Prepare(reservations={"in": [event.id for event in events]})

        async def next(self, ctx: Any, prepared: Prepare, outcome: Any) -> None:
            for number in range(emits):
                await ctx.publish("out", message_id=f"{len(begun)}-{number}")

    @flow.consumer(subscribe=["out"])
    class Drop:
        async def prepare(self, ctx: Any, state: Any) -> Prepare:
            return Prepare(reservations={"out": [event.id for event in await ctx.peek("out", limit=1000)]})

    app.workflow(flow)
    return app


@contextmanager
def collected(statements: list[str]) -> Iterator[None]:
    """Collect the statements of a block, without commits."""

    def collect(text: str) -> None:
        if text != "COMMIT":
            statements.append(text)

    statements.clear()
    with at_each_statement(collect):
        yield


async def publish(rota: World, first: int, count: int) -> None:
    await rota.workflows.publish_many("copy", [NewEvent("in", str(number), number) for number in range(first, count)])


async def test_many_events_are_published_with_the_statements_of_one(clean_url: str) -> None:
    statements: list[str] = []
    async with world(program(statements, []), database_url=clean_url) as rota:
        await rota.drain()
        with collected(statements):
            await publish(rota, 0, 1)
        one = len(statements)
        await rota.drain()
        with collected(statements):
            await publish(rota, 1, 300)
        assert len(statements) == one
        if clean_url.startswith("postgresql"):
            assert one == 1  # on SQLite a statement may be several texts of one transaction


@pytest.mark.parametrize("emits", [0, 100])
async def test_a_run_takes_no_more_statements_with_ten_thousand_pending_events_than_with_ten(
    clean_url: str, emits: int
) -> None:
    per_run = []
    for first, pending in ((0, 10), (10, 10_000)):
        statements: list[str] = []
        begun: list[int] = []
        async with world(program(statements, begun, emits), database_url=clean_url) as rota:
            await rota.drain()
            await publish(rota, first, pending)
            begun.clear()
            with collected(statements):
                await rota.drain()
        per_run.append([after - before for before, after in pairwise(begun)])
    few, many = (counts[1:] for counts in per_run)  # the first run of a process does not know how a handler peeks
    assert max(many) <= max(few)
    if not emits and clean_url.startswith("postgresql"):
        assert {*few, *many} == {1}  # the commit begins the next run and reads its events


@pytest.mark.parametrize("due", [{"dirty": True}, {"wake_at": MONDAY}, {"wake_at": MONDAY + timedelta(days=1)}])
async def test_a_consumer_without_events_runs_after_the_backlog_of_another(clean_url: str, due: dict[str, Any]) -> None:
    statements: list[str] = []
    begun: list[int] = []
    async with world(program(statements, begun), database_url=clean_url) as rota:
        await rota.drain()
        await publish(rota, 0, RUNS)
        await rota.drain()  # the next run knows how the handler peeks
        begun.clear()
        await publish(rota, RUNS, 2 * RUNS)
        is_drop = handlers.c.name == "Drop"
        await rota.engine.db.tx(set_values, update(handlers).where(is_drop).values(due))
        with collected(statements):
            await rota.drain()
        ((dirty, wake_at),) = await rows(rota, select(handlers.c.dirty, handlers.c.wake_at).where(is_drop))
    if clean_url.startswith("postgresql"):
        assert {after - before for before, after in pairwise(begun[1:RUNS])} == {1}
    assert not dirty
    assert (wake_at is None) == (due.get("wake_at", MONDAY) == MONDAY)


def set_values(tx: Tx, statement: Update) -> None:
    tx.execute(statement)


async def test_a_run_that_emits_many_events_inserts_them_with_one_statement(clean_url: str) -> None:
    statements: list[str] = []
    async with world(program(statements, [], emits=100), database_url=clean_url) as rota:
        await rota.drain()
        await publish(rota, 0, 1)
        with collected(statements):
            await rota.drain()
        assert sum("INSERT INTO events" in text for text in statements) == 1
