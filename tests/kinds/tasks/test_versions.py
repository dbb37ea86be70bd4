"""Versions of code: durable runs go on under the version that began them while a worker has it, else by a rule."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from rota import Rota, RunContext
from rota.core.errors import Conflict
from rota.core.states import State, Status
from rota.db.dialect import Tx
from rota.db.tables import jobs
from rota.engine import workers
from rota.engine.maintenance import Maintenance
from rota.reports import why
from rota.testing import World, world
from tests.kinds.tasks.durable import Calls, enqueue, last_run, recorded


def program(version: str, calls: Calls, rule: str | None = None, effect: bool = False) -> Rota:
    app = Rota()
    options = {} if rule is None else {"on_new_version": rule}

    @app.task(version=version, **options)
    async def order(ctx: RunContext) -> list[Any]:
        step = ctx.effect if effect else ctx.step
        first = await step("reserve", calls.function(f"reserve {version}"))
        await ctx.sleep("1d")
        return [first, await ctx.step("pack", calls.function(f"pack {version}"))]

    return app


@asynccontextmanager
async def worlds(url: str, *programs: Rota) -> AsyncIterator[list[World]]:
    """Yield a world for each program, on one database: the workers are alive together."""
    if not programs:
        yield []
        return
    async with world(programs[0], database_url=url) as first, worlds(url, *programs[1:]) as rest:
        yield [first, *rest]


async def asleep(rota: World) -> str:
    """Return a job that sleeps after its first step."""
    job_id = await enqueue(rota, "order")
    await rota.drain()
    assert (await last_run(rota, job_id))["reason"] == "sleep"
    return job_id


async def stop(rota: World) -> None:
    await rota.worker.registration.end()


async def explained(rota: World, job_id: str) -> str:
    engine = rota.engine
    answer = await engine.db.read(why.of_run, rota.org_id, job_id, rota.clock.now(), engine.runners)
    return " ".join(answer["sentences"])


async def state_of(rota: World, job_id: str) -> str | None:
    return await rota.engine.db.read(lambda tx: tx.execute(select(jobs.c.state).where(jobs.c.id == job_id)).scalar())


def renew(tx: Tx, rota: World) -> None:
    workers.renew(tx, rota.worker.id, timedelta(days=3), rota.clock.now())


async def test_a_run_goes_on_under_the_version_that_began_it_while_a_worker_has_it(clean_url: str) -> None:
    calls = Calls()
    async with worlds(clean_url, program("v1", calls), program("v2", calls)) as (old, new):
        job_id = await asleep(old)
        for rota in (new, old):  # the new one looks first
            await rota.engine.db.tx(renew, rota)
            await rota.advance(days=2)
        assert calls == ["reserve v1", "pack v1"]
        run = await last_run(old, job_id)
        assert (run["status"], run["target_version"]) == (Status.SUCCESS, "v1")


async def test_a_run_continues_under_the_new_version_when_the_last_worker_of_the_old_one_stops(clean_url: str) -> None:
    calls = Calls()
    async with worlds(clean_url, program("v1", calls), program("v2", calls)) as (old, new):
        job_id = await asleep(old)
        assert "version" not in await explained(new, job_id)
        await stop(old)
        assert "continues under version v2 by rule (continue)" in await explained(new, job_id)
        await new.engine.db.tx(renew, new)
        await new.advance(days=2)
        assert calls == ["reserve v1", "pack v2"]
        assert (await last_run(new, job_id))["outcome"] == ["reserve v1", "pack v2"]


async def test_a_run_waits_for_its_version_while_no_worker_has_its_task(clean_url: str) -> None:
    calls = Calls()
    async with world(program("v1", calls, "restart"), database_url=clean_url) as old:
        job_id = await asleep(old)
        await stop(old)  # a restart of the only worker is no new version
        assert "waits for a worker with version v1" in await explained(old, job_id)
    async with world(program("v1", calls, "restart"), database_url=clean_url) as again:
        await again.engine.db.tx(renew, again)
        await again.advance(days=2)
        assert calls == ["reserve v1", "pack v1"]


async def test_by_the_rule_restart_a_run_begins_again_without_recorded_steps(clean_url: str) -> None:
    calls = Calls()
    async with worlds(clean_url, program("v1", calls), program("v2", calls, "restart")) as (old, new):
        job_id = await asleep(old)
        first = await last_run(old, job_id)
        await stop(old)
        assert await recorded(new, job_id) == []
        await new.engine.db.tx(renew, new)
        await new.advance(days=2)
        assert calls == ["reserve v1", "reserve v2", "pack v2"]
        ended = [(run["attempt"], run["status"], run["reason"]) for run in await new.runs(job_id=job_id)]
        assert ended == [(1, Status.PAUSED, "version"), (2, Status.SUCCESS, None)]
        assert (await new.runs(job_id=job_id))[0]["id"] == first["id"]


@pytest.mark.parametrize(("rule", "effect"), [("park", False), ("restart", True)])
async def test_a_parked_run_goes_on_when_an_operator_or_its_version_comes(
    clean_url: str, rule: str, effect: bool
) -> None:
    calls = Calls()
    old_app, new_app = (program(version, calls, rule, effect) for version in ("v1", "v2"))
    async with worlds(clean_url, old_app, new_app) as (old, new):
        resumed, returned = await asleep(old), await asleep(old)
        with pytest.raises(Conflict, match="has not ended"):
            await new.engine.retry(new.org_id, (await last_run(old, resumed))["id"])
        await stop(old)
        assert {await state_of(new, job_id) for job_id in (resumed, returned)} == {State.PARKED}
        run = await last_run(new, resumed)
        assert (run["status"], run["reason"]) == (Status.PAUSED, "version")
        text = await explained(new, resumed)
        assert "waits for a worker with version v1" in text
        assert f"`rota run retry {run['id']}`" in text
        await new.engine.retry(new.org_id, run["id"])
        await new.engine.db.tx(renew, new)
        await new.advance(days=2)
        run = await last_run(new, resumed)
        assert (run["status"], run["outcome"]) == (Status.SUCCESS, ["reserve v1", "pack v2"])
        assert await state_of(new, returned) == State.PARKED
        async with world(program("v1", calls, rule, effect), database_url=clean_url, start=new.clock.now()) as back:
            await back.drain()
            run = await last_run(back, returned)
            assert (run["status"], run["outcome"]) == (Status.SUCCESS, ["reserve v1", "pack v1"])


async def test_a_run_of_a_dead_worker_is_pinned_to_the_version_of_that_worker(clean_url: str) -> None:
    calls, begun = Calls(), asyncio.Event()
    app = Rota()

    @app.task("order", version="v1")
    async def hanging(ctx: RunContext) -> None:
        await ctx.step("reserve", calls.function("reserve v1"))
        begun.set()
        await asyncio.Event().wait()

    async with worlds(clean_url, app, program("v2", calls, "park")) as (old, new):
        job_id = await enqueue(old, "order")
        drained = asyncio.ensure_future(old.drain())
        await asyncio.wait_for(begun.wait(), 20)
        new.clock.set(new.clock.now() + 2 * new.engine.settings.lease)
        await new.engine.db.tx(renew, new)
        await Maintenance(new.engine, new.worker.id).rescue_dead_workers()
        assert await state_of(new, job_id) == State.PARKED
        assert "waits for a worker with version v1" in await explained(new, job_id)
        drained.cancel()
        await asyncio.gather(drained, return_exceptions=True)
        for run in old.worker.active.values():
            run.stop("lost")
        await old.worker.cancellation.until_idle(20)
