"""A process that dies at any statement of a durable task: each step once after its record, the effect at most once.

The service is a folder: what was called outlives the process that called it, as the world outside does. A process that
dies before a statement that only reads leaves what it leaves before the next one that writes, so those are no points.
All points take minutes, so each test visits every fourth, others than its siblings; ROTA_TEST_EVERY_POINT=1 visits all.
"""

import asyncio
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from rota import Applied, NotApplied, Rota, RunContext, testing
from rota.core.states import Status
from rota.db.crash_points import at_each_statement
from rota.db.tables import jobs, steps
from rota.engine.decisions import EffectResolution
from rota.engine.maintenance import Maintenance
from rota.testing import MONDAY, World, count_from_here, crash_point, dies_at, world
from tests.kinds.workflows.test_crashes import fresh

PARKED = select(jobs.c.id).where(jobs.c.parked_reason == "reconciliation")
STEPS = ("reserve", "pay", "nap", "pack", "signal parcel.sent", "thank", "report")
POINTS = {f"{when} {name}" for when in ("before", "after") for name in ("reserve", "pay", "pack", "thank", "report")}

WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE|COMMIT)\b")
READ_LOCK = re.compile(r"\bFOR (NO KEY )?UPDATE\b")


def skip_reads() -> None:
    """Count no statement that only reads."""
    assert testing.countdown is not None
    reached = testing.countdown.reached

    def reached_write(name: str) -> None:
        if " " not in name or WRITES.search(READ_LOCK.sub("", name)) or name in POINTS:
            reached(name)

    testing.countdown.reached = reached_write  # type: ignore[method-assign]


class Shop:
    """Each call is a line in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def call(self, name: str, key: str | None = None) -> str:
        """Do what `name` says. With a key it can be found later."""
        crash_point(f"before {name}")
        if key is not None:
            (self.path / key).touch()
        with (self.path / "calls").open("a") as file:
            file.write(f"{name}\n")
        crash_point(f"after {name}")
        return name

    def pay(self, amount: int, idempotency_key: str) -> int:
        self.call("pay", idempotency_key)
        return amount

    def find(self, idempotency_key: str, params: dict[str, Any]) -> Applied | NotApplied:
        return Applied(params["amount"]) if (self.path / idempotency_key).exists() else NotApplied()

    def calls(self) -> Counter[str]:
        file = self.path / "calls"
        return Counter(file.read_text().split() if file.exists() else ())


def program(shop: Shop, reconcile: bool) -> Rota:
    app = Rota()

    @app.task
    async def order(ctx: RunContext) -> list[object]:
        find = shop.find if reconcile else None
        return [
            await ctx.step("reserve", shop.call, "reserve"),
            await ctx.effect("pay", shop.pay, 3, reconcile=find),
            await ctx.sleep("1h", name="nap"),
            await ctx.step("pack", shop.call, "pack"),
            await ctx.wait_for("parcel.sent", timeout="1d"),
            *await asyncio.gather(ctx.step("thank", shop.call, "thank"), ctx.call("report", name="report")),
        ]

    @app.task
    def report(name: str) -> str:
        return shop.call(name)

    return app


async def advance(rota: World) -> None:
    await rota.advance(hours=2)
    await rota.engine.send_signal(rota.org_id, "parcel.sent", payload="sent", signal_id="parcel-1")
    await rota.advance(hours=1)


async def settle(url: str, app: Rota, shop: Shop) -> None:
    """Another process goes on with what the dead one left."""
    async with world(app, database_url=url, start=MONDAY + timedelta(hours=4)) as rota:
        await rota.take_over()
        await Maintenance(rota.engine, rota.worker.id).reconcile()  # a starting process does
        if not await rota.runs():  # the caller got no answer: it died before it was stored
            await rota.engine.enqueue(rota.org_id, "task", "order", [None], job_key="order", key_mode="preserve")
        for _ in range(3):
            await advance(rota)
            for row in await rota.engine.db.read(lambda tx: list(tx.execute(PARKED))):
                paid = EffectResolution.APPLIED if shop.calls()["pay"] else EffectResolution.NOT_APPLIED
                await rota.engine.resolve_effect(rota.org_id, row.id, paid, by="ada", result=3)
        runs = [run for run in await rota.runs() if run["target"] == "order"]
        (ended,) = [run for run in runs if run["status"] == Status.SUCCESS]
        assert ended["outcome"] == ["reserve", 3, None, "pack", "sent", "thank", "report"]
        rows = await rota.engine.db.read(lambda tx: list(tx.execute(select(steps).order_by(steps.c.seq))))
        assert {row.name: row.status for row in rows} == dict.fromkeys((*STEPS[:-1], "call report"), "done")
        assert await rota.engine.db.read(lambda tx: list(tx.execute(select(jobs)))) == []


@pytest.mark.long
@pytest.mark.timeout(5000 if os.environ.get("ROTA_TEST_EVERY_POINT") else 600)
@pytest.mark.parametrize("reconcile", [True, False])
def test_a_crash_at_every_statement_of_a_durable_task(
    clean_url: str, sqlite_template: Path, tmp_path: Path, reconcile: bool
) -> None:
    async def play(app: Rota) -> None:
        async with world(app, database_url=clean_url) as rota:
            await rota.drain()
            skip_reads()
            count_from_here()
            await rota.engine.enqueue(rota.org_id, "task", "order", [None], job_key="order")
            await advance(rota)

    every = bool(os.environ.get("ROTA_TEST_EVERY_POINT"))
    first = 1 + 2 * reconcile + clean_url.startswith("sqlite")
    for point in range(1, 500) if every else range(first, 500, 4):
        path = tmp_path / f"calls-{point}"
        path.mkdir()
        shop = Shop(path)
        fresh(clean_url, sqlite_template)
        died = dies_at(point, partial(play, program(shop, reconcile)), after_set_up=True)
        before = shop.calls()
        asyncio.run(settle(clean_url, program(shop, reconcile), shop))
        calls = shop.calls()
        where = f"after a crash at point {point}: {before}, then {calls}"
        assert set(calls) == {"reserve", "pay", "pack", "thank", "report"}, where
        assert calls["pay"] == 1, where  # at most once, also where its outcome was unknown
        assert sum(calls.values()) <= len(calls) + 1, where  # only what was not recorded when it died runs again
        if not died:
            assert max(calls.values()) == 1
            break
    assert point > 40


@pytest.mark.parametrize("count", [1000])
async def test_many_sleepers_go_on_after_a_restart(clean_url: str, count: int) -> None:
    woken: list[int] = []

    def program() -> Rota:
        app = Rota()

        @app.task
        async def sleeper(ctx: RunContext, number: int) -> None:
            await ctx.sleep("1d")
            woken.append(number)

        return app

    async def statements_of(act: Callable[[], Awaitable[object]]) -> int:
        texts: list[str] = []
        with at_each_statement(texts.append):
            await act()
        return len(texts)

    async with world(program(), database_url=clean_url) as rota:
        payloads = [{"number": number} for number in range(count)]
        await rota.engine.enqueue(rota.org_id, "task", "sleeper", payloads[:1])
        await rota.drain()
        idle = await statements_of(rota.drain)
        await rota.engine.enqueue(rota.org_id, "task", "sleeper", payloads[1:])
        await rota.drain()
        assert not rota.worker.active
        assert await statements_of(rota.drain) == idle
    async with world(program(), database_url=clean_url, start=MONDAY + timedelta(hours=12)) as rota:
        await rota.drain()
        assert woken == []
        await rota.advance(hours=13)
        assert sorted(woken) == list(range(count))
        assert await rota.engine.db.read(lambda tx: list(tx.execute(select(jobs)))) == []
