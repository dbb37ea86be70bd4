"""Events from outside are published with a single statement, which is right also if it waited for other writers."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, update

from rota import Prepare, Rota, Workflow
from rota.core.errors import NotFound
from rota.core.model import NewJob
from rota.core.states import State
from rota.db.dialect import Tx, lock_keys
from rota.db.tables import handlers, jobs, workflows
from rota.engine import jobs as queue
from rota.engine import serial_keys
from rota.kinds.workflows.rules import serial_key_of
from rota.kinds.workflows.store import operators
from rota.kinds.workflows.store.records import NewEvent
from rota.testing import World, world
from tests.databases import commit_when_awaited, on_postgresql
from tests.kinds.workflows.test_following import taker
from tests.kinds.workflows.test_runs import rows, statuses


def two_consumers() -> Rota:
    app, flow = Rota(), Workflow("take", topics=["in", "other"])

    def consume(topic: str) -> type:
        class Consume:
            async def prepare(self, ctx: Any, state: Any) -> Prepare:
                return Prepare(reservations={topic: [event.id for event in await ctx.peek(topic)]})

        Consume.__name__ = topic.title()
        return Consume

    for topic in ("in", "other"):
        flow.consumer(subscribe=[topic])(consume(topic))
    app.workflow(flow)
    return app


def is_general(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the calls of the general way to publish."""
    calls: list[str] = []
    publish = operators.publish

    def counted(tx: Tx, org_id: str, key: str, *args: Any) -> Any:
        calls.append(key)
        return publish(tx, org_id, key, *args)

    monkeypatch.setattr(operators, "publish", counted)
    return calls


async def states(rota: World) -> list[str]:
    return sorted(row.state for row in await rows(rota, select(jobs)))


async def test_events_are_created_replaced_or_kept_in_one_call(clean_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(taker(), database_url=clean_url) as rota:
        await rota.drain()
        calls = is_general(monkeypatch)
        publish_many = rota.workflows.publish_many
        await publish_many("take", [NewEvent("in", "done", 1)])
        await rota.drain()
        ((pending, _),) = await publish_many("take", [NewEvent("in", "pending", 1)])
        results = await publish_many("take", [NewEvent("in", name, 2) for name in ("new", "pending", "done", "new")])
        assert [result for _, result in results] == ["created", "replaced", "kept", "created"]
        assert results[0] == results[3]
        assert results[1][0] == pending
        assert calls == []
        await rota.drain()
        assert set(await statuses(rota)) == {"in done consumed", "in pending consumed", "in new consumed"}


async def test_an_unknown_workflow_or_topic_is_not_found_and_nothing_is_written(clean_url: str) -> None:
    async with world(taker(), database_url=clean_url) as rota:
        await rota.drain()
        with pytest.raises(NotFound, match="workflow 'other' not found"):
            await rota.publish("other", "in", message_id="1")
        with pytest.raises(NotFound, match="topic 'out' of workflow 'take' not found"):
            await rota.workflows.publish_many("take", [NewEvent("in", "1", 1), NewEvent("out", "1", 1)])
        assert await statuses(rota) == []
        assert await states(rota) == []


async def test_a_kept_event_starts_no_run(clean_url: str) -> None:
    async with world(taker(), database_url=clean_url) as rota:
        await rota.drain()
        await rota.publish("take", "in", message_id="1")
        await rota.drain()
        assert await rota.publish("take", "in", message_id="1") == "kept"
        assert await states(rota) == []


async def test_the_consumers_have_one_job_behind_the_head_of_their_key(clean_url: str) -> None:
    async with world(two_consumers(), database_url=clean_url) as rota:
        await rota.drain()
        key, now = serial_key_of(rota.org_id, "take"), rota.engine.clock.now()
        head = NewJob(rota.org_id, "workflow", "take", None, now, "manual", route="nowhere", serial_key=key)
        await rota.engine.db.tx(queue.enqueue, [head], now)
        for topic in ("in", "other", "in"):
            await rota.publish("take", topic, message_id="1")
        assert await states(rota) == ["blocked", "ready"]


async def test_a_canceled_job_of_the_consumers_comes_back_with_the_next_event(clean_url: str) -> None:
    async with world(taker(), database_url=clean_url) as rota:
        await rota.drain()
        await rota.publish("take", "in", message_id="1")
        ((job_id,),) = await rows(rota, select(jobs.c.id))
        await rota.engine.cancel(rota.org_id, job_id)
        await rota.publish("take", "in", message_id="2")
        assert await states(rota) == ["ready"]


async def test_an_event_moves_the_wake_up_of_its_consumer_to_now(clean_url: str) -> None:
    async with world(taker(), database_url=clean_url) as rota:
        await rota.drain()
        wake_at = rota.engine.clock.now().replace(year=2100)
        key, now = serial_key_of(rota.org_id, "take"), rota.engine.clock.now()
        ((workflow_id,),) = await rows(rota, select(workflows.c.id))
        later = NewJob(
            rota.org_id, "workflow", "take", None, wake_at, "wake_at", route="r", serial_key=key, solo_key=workflow_id
        )

        def set_wake_up(tx: Tx) -> None:
            queue.enqueue(tx, [later], now)
            tx.execute(update(handlers).values(wake_at=wake_at))

        await rota.engine.db.tx(set_wake_up)
        await rota.publish("take", "in", message_id="1")
        assert await states(rota) == ["ready"]


@on_postgresql
async def test_a_publish_that_waited_marks_a_consumer_that_a_deployment_added(
    clean_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(taker(), database_url=clean_url) as rota:
        await rota.drain()
        calls = is_general(monkeypatch)

        def deploy(tx: Tx) -> None:
            tx.execute(update(workflows).values(version="2"))
            row = tx.execute(select(handlers)).one()._asdict()
            tx.execute(insert(handlers).values({**row, "name": "Added"}))

        opened = await rota.engine.db.begin()
        await opened.run(deploy)
        await commit_when_awaited(rota.engine.db, opened, rota.publish("take", "in", message_id="1"))
        assert {(row.name, row.dirty) for row in await rows(rota, select(handlers))} == {
            ("Added", True),
            ("Take", True),
        }
        assert calls == ["take"]


@on_postgresql
@pytest.mark.parametrize("another", [False, True], ids=["alone", "with another blocked job"])
async def test_a_publish_that_waited_for_the_end_of_the_head_is_not_left_without_one(
    clean_url: str, another: bool
) -> None:
    async with world(taker(), database_url=clean_url) as rota:
        await rota.drain()
        key, now = serial_key_of(rota.org_id, "take"), rota.engine.clock.now()

        def job() -> NewJob:
            return NewJob(rota.org_id, "workflow", "take", None, now, "manual", route="nowhere", serial_key=key)

        head, *others = [job() for _ in range(1 + another)]
        await rota.engine.db.tx(queue.enqueue, [head, *others], now)

        def end_head(tx: Tx) -> None:
            lock_keys(tx, [key])
            tx.execute(delete(jobs).where(jobs.c.state == State.READY.value))
            serial_keys.promote(tx, [key])

        opened = await rota.engine.db.begin()
        await opened.run(end_head)
        await commit_when_awaited(rota.engine.db, opened, rota.publish("take", "in", message_id="1"))
        assert await states(rota) == (["blocked", "ready"] if another else ["ready"])


@on_postgresql
async def test_a_job_that_becomes_the_head_while_a_publish_waits_stays_the_head(clean_url: str) -> None:
    async with world(taker(), database_url=clean_url) as rota:
        await rota.drain()
        key, now = serial_key_of(rota.org_id, "take"), rota.engine.clock.now()
        new = NewJob(rota.org_id, "workflow", "take", None, now, "manual", route="nowhere", serial_key=key)
        opened = await rota.engine.db.begin()
        await opened.run(queue.enqueue, [new], now)
        await commit_when_awaited(rota.engine.db, opened, rota.publish("take", "in", message_id="1"))
        by_id = {row.id: row.state for row in await rows(rota, select(jobs))}
        assert by_id.pop(new.id) == "ready"
        assert list(by_id.values()) == ["blocked"]


@on_postgresql
async def test_a_flag_that_a_run_cleared_while_a_publish_waited_is_set_again(clean_url: str) -> None:
    async with world(taker(), database_url=clean_url) as rota:
        await rota.drain()
        await rota.publish("take", "in", message_id="1")

        def begin_and_commit(tx: Tx) -> None:
            tx.execute(select(workflows).with_for_update())
            tx.execute(update(handlers).values(dirty=False))
            tx.execute(delete(jobs))

        opened = await rota.engine.db.begin()
        await opened.run(begin_and_commit)
        await commit_when_awaited(rota.engine.db, opened, rota.publish("take", "in", message_id="2"))
        assert [row.dirty for row in await rows(rota, select(handlers))] == [True]
        assert await states(rota) == ["ready"]


async def test_no_event_is_lost_when_several_publish_while_the_worker_runs(clean_url: str) -> None:
    async with world(taker(), database_url=clean_url) as rota:
        await rota.drain()

        async def publish(publisher: int) -> None:
            for number in range(10):
                await rota.publish("take", "in", message_id=f"{publisher}-{number}")

        publishing = asyncio.gather(*(publish(publisher) for publisher in range(4)))
        while not publishing.done():
            await rota.drain()
        await publishing
        await rota.drain()
        assert len(await statuses(rota)) == 40
        assert all(status.endswith("consumed") for status in await statuses(rota))
        assert await states(rota) == []
