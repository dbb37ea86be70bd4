"""Flow control that tasks declare: rates, places, debounce, throttle, defaults of the queue, heartbeats."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from rota import Rota, RunContext
from rota.core.errors import Invalid
from rota.db.dialect import Tx
from rota.db.tables import jobs
from rota.engine import claiming
from rota.testing import World, world
from tests.kinds.tasks.harness import TaskHarness, open_task_harness

FLOW_PROGRAM = str(Path(__file__).with_name("flow_program.py"))


async def enqueue(rota: World, task: str, *payloads: Any, **options: Any) -> list[str]:
    return await rota.engine.enqueue(rota.org_id, "task", task, list(payloads), **options)


async def queued(rota: World) -> list[Any]:
    return await rota.engine.db.read(lambda tx: list(tx.execute(select(jobs).order_by(jobs.c.id))))


def noop(app: Rota, **options: Any) -> list[Any]:
    """Declare a task that notes the customers that it is called for."""
    calls: list[Any] = []

    @app.task("note", **options)
    async def note(customer: str = "nobody") -> None:
        calls.append(customer)

    return calls


# rates and places


async def test_a_task_has_a_rate_for_each_value_of_its_key(clean_url: str) -> None:
    app = Rota()
    noop(app, rate="10/1m", rate_key="customer")
    async with world(app, database_url=clean_url) as rota:
        began = rota.clock.now()
        await enqueue(
            rota, "note", *[{"customer": name} for name in ("ada", "ada", "bob")], None, {"customer": "nobody"}
        )
        await rota.advance(minutes=1)
        runs = await rota.runs()
        starts = sorted((run["input"] or {}).get("customer", "-") + f" {run['started_at'] - began}" for run in runs)
        assert starts == ["- 0:00:00", "ada 0:00:00", "ada 0:00:06", "bob 0:00:00", "nobody 0:00:06"]


async def test_a_task_runs_so_many_at_once_per_value_of_its_key(clean_url: str) -> None:
    app, running, most = Rota(), {"ada": 0, "bob": 0}, {"ada": 0, "bob": 0}

    @app.task(max_running=2, max_running_key="customer")
    async def export(customer: str) -> None:
        running[customer] += 1
        most[customer] = max(most[customer], running[customer])
        await asyncio.sleep(0.01)
        running[customer] -= 1

    async with world(app, database_url=clean_url) as rota:
        await enqueue(rota, "export", *[{"customer": name} for name in ("ada", "bob") for _ in range(10)])
        await rota.drain()
        assert most == {"ada": 2, "bob": 2}
        assert [run["status"] for run in await rota.runs()] == ["success"] * 20
        assert await queued(rota) == []


async def test_a_run_that_sleeps_gives_its_place_away_and_needs_one_to_go_on(clean_url: str) -> None:
    app, seen = Rota(), list[str]()

    @app.task(max_running=1)
    async def nap(ctx: RunContext, name: str) -> None:
        if name not in seen:
            seen.append(name)
        await ctx.sleep("30s")
        seen.append(f"{name} wakes")

    async with world(app, database_url=clean_url) as rota:
        await enqueue(rota, "nap", {"name": "ada"}, {"name": "bob"})
        await rota.drain()
        assert seen == ["ada", "bob"]  # both are asleep
        assert [row.place_key for row in await queued(rota)] == [None, None]
        await rota.advance(minutes=1)
        assert seen == ["ada", "bob", "ada wakes", "bob wakes"]
        assert [run["status"] for run in await rota.runs()] == ["success", "success"]


# debounce and throttle


async def test_debounced_jobs_become_one_with_the_newest_parameters(clean_url: str) -> None:
    app = Rota()
    calls = noop(app, debounce="10s")
    async with world(app, database_url=clean_url) as rota:
        ids = set()
        for name in ("ada", "bob", "cyd"):
            ids |= set(await enqueue(rota, "note", {"customer": name}))
            await rota.advance(seconds=6)
        assert (len(ids), calls) == (1, [])
        await rota.advance(seconds=4)
        assert calls == ["cyd"]
        assert len(await rota.runs()) == 1
        (later,) = await enqueue(rota, "note", {"customer": "dan"})
        assert later not in ids
        await rota.advance(seconds=10)
        assert calls == ["cyd", "dan"]


async def test_a_debounced_job_is_not_postponed_for_ever(clean_url: str) -> None:
    app = Rota()
    calls = noop(app, debounce="10s", debounce_max="25s")
    async with world(app, database_url=clean_url) as rota:
        for number in range(6):
            await enqueue(rota, "note", {"customer": str(number)})
            await rota.advance(seconds=5)
        assert calls == ["4"]
        await rota.advance(seconds=10)
        assert calls == ["4", "5"]


async def test_debounce_distinguishes_the_values_of_its_key(clean_url: str) -> None:
    app = Rota()
    calls = noop(app, debounce="10s", debounce_key="customer")
    async with world(app, database_url=clean_url) as rota:
        await enqueue(rota, "note", {"customer": "ada"}, {"customer": "bob"}, {"customer": "ada"})
        await rota.advance(seconds=10)
        assert sorted(calls) == ["ada", "bob"]
        with pytest.raises(Invalid, match="run_at"):
            await enqueue(rota, "note", None, run_at=rota.clock.now() + timedelta(hours=1))
        with pytest.raises(Invalid, match="job_key"):
            await enqueue(rota, "note", None, job_key="one")


async def test_a_job_that_comes_while_the_debounced_one_runs_is_not_lost(clean_url: str) -> None:
    app = Rota()
    noop(app, debounce="10s")
    async with world(app, database_url=clean_url) as rota:
        await enqueue(rota, "note", {"customer": "ada"})
        rota.clock.set(rota.clock.now() + timedelta(seconds=10))
        await rota.scheduler.step()
        await rota.engine.db.tx(claim_all, rota)
        await enqueue(rota, "note", {"customer": "bob"})
        states = {row.payload["customer"]: row.state for row in await queued(rota)}
        assert states == {"ada": "running", "bob": "later"}


def claim_all(tx: Tx, rota: World) -> None:
    claiming.claim(tx, claiming.lanes(tx), worker="w", routes=rota.worker.registration.routes, room=9, turn=0)


async def test_throttled_jobs_are_recorded_as_skipped(clean_url: str) -> None:
    app = Rota()
    calls = noop(app, throttle="10s", throttle_key="customer")
    async with world(app, database_url=clean_url) as rota:
        await enqueue(rota, "note", {"customer": "ada"}, {"customer": "ada"}, {"customer": "bob"})
        await rota.advance(seconds=9)
        (refused,) = await enqueue(rota, "note", {"customer": "ada"})
        await rota.advance(seconds=1)
        await enqueue(rota, "note", {"customer": "ada"})
        await rota.drain()
        assert calls == ["ada", "bob", "ada"]
        assert [(run["status"], run["reason"]) for run in await rota.runs(job_id=refused)] == [("skipped", "throttled")]


# defaults


async def test_a_task_has_a_default_queue_and_priority(clean_url: str) -> None:
    app = Rota()
    noop(app, queue="slow", priority=7)
    async with world(app, database_url=clean_url) as rota:
        (first,) = await enqueue(rota, "note", None)
        (second,) = await enqueue(rota, "note", None, queue_name="fast", priority=0)
        rows = {row.id: (row.queue, row.priority) for row in await queued(rota)}
        assert rows == {first: ("slow", 7), second: ("fast", 0)}


# declarations


@pytest.mark.parametrize(
    ("options", "field", "remedy"),
    [
        ({"rate": "0/1m"}, "rate", "disable the task"),
        ({"rate": "abc"}, "rate", "100/1m"),
        ({"rate": 5}, "rate", "100/1m"),
        ({"rate": "5/1m", "rate_key": "client"}, "rate_key", "its parameters are customer"),
        ({"rate_key": "customer"}, "rate_key", "needs `rate`"),
        ({"burst": 5}, "burst", "needs `rate`"),
        ({"rate": "5/1m", "burst": 0}, "burst", "from 1"),
        ({"max_running": 0}, "max_running", "from 1"),
        ({"max_running": -3}, "max_running", "from 1"),
        ({"max_running": 2, "max_running_key": "client"}, "max_running_key", "its parameters are customer"),
        ({"debounce": "soon"}, "debounce", "30s"),
        ({"debounce": "10s", "debounce_max": "5s"}, "debounce_max", "longer"),
        ({"debounce": "10s", "throttle": "10s"}, "throttle", "choose one"),
        ({"throttle": "0s"}, "throttle", "at least 1 second"),
        ({"throttle_key": "customer"}, "throttle_key", "needs `throttle`"),
        ({"heartbeat": "0s"}, "heartbeat", "at least 1 second"),
        ({"priority": 101}, "priority", "-100 to 100"),
        ({"queue": "a/b"}, "queue", "path"),
    ],
)
def test_wrong_options_are_refused_when_declared(options: Any, field: str, remedy: str) -> None:
    app = Rota()
    with pytest.raises(Invalid) as refused:
        noop(app, **options)
    assert refused.value.field == field
    assert remedy in refused.value.message
    assert app.registry.list_all() == []


def test_a_command_has_no_heartbeat() -> None:
    with pytest.raises(Invalid, match="needs a function"):
        Rota().shell("disk", "df", heartbeat="30s")


# heartbeats


@pytest.fixture
async def harness(clean_url: str) -> AsyncIterator[TaskHarness]:
    harness = await open_task_harness(clean_url, FLOW_PROGRAM, cancel_grace=timedelta(seconds=1))
    yield harness
    await harness.close()


@pytest.mark.parametrize("task", ["loop", "thread", "process"])
async def test_a_run_without_a_heartbeat_is_stopped_and_fails(harness: TaskHarness, task: str) -> None:
    run = await harness.run(task, beats=1)
    assert (run["status"], run["reason"]) == ("failed", "timeout")
    assert run["error"]["code"] == "heartbeat_timeout"
    assert "did not call ctx.heartbeat() in time" in run["error"]["message"]


@pytest.mark.parametrize("task", ["loop", "thread", "process"])
async def test_a_run_with_heartbeats_goes_on(harness: TaskHarness, task: str) -> None:
    run = await harness.run(task, beats=6)
    assert (run["status"], run["outcome"]) == ("success", 6)
