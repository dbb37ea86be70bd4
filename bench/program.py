"""The app that Rota's workers run in the benchmark. Each task records its start, so that runs can be counted."""

import asyncio
from collections.abc import Collection
from functools import partial

from bench.peers import kit
from rota.app.application import Rota
from rota.core.schedule_form import Defaults
from rota.db.dialect import Tx
from rota.engine.runner import RunContext, Work

SHARED_KIND = "shared"
SECONDS_OF_TARGET = {"mark": 0.0, "linger": 0.02}

app = Rota()


@app.task
async def mark(i: int) -> None:
    kit.mark(i)


@app.task
async def one_step(ctx: RunContext, i: int) -> None:
    await ctx.step("mark", marked, i)


@app.task
async def five_steps(ctx: RunContext, i: int) -> None:
    for number in range(4):
        await ctx.step(f"small-{number}", same, number)
    await ctx.step("mark", marked, i)


async def marked(i: int) -> None:
    kit.mark(i)


async def same(number: int) -> int:
    return number


@app.task
async def linger(i: int) -> None:
    """Work that takes 20 ms."""
    kit.mark(i)
    await asyncio.sleep(0.02)


@app.task
async def quiet() -> None:
    """For schedules that are hardly ever due."""


class SharedRunner:
    """Work of all orgs on the same workers. The tasks of a program belong to one org."""

    kind = SHARED_KIND
    under_grant = False
    defaults = Defaults()

    def routes(self) -> Collection[str]:
        return {SHARED_KIND}

    async def resolve(self, org_id: str, target: str, payload: object) -> str:  # noqa: ARG002
        return SHARED_KIND

    def known_as(self, tx: Tx, org_id: str, target: str, payload: object) -> Collection[str]:  # noqa: ARG002
        return {target}

    async def prepare(self, ctx: RunContext) -> Work:
        return partial(self.execute, ctx.job.payload["i"], SECONDS_OF_TARGET[ctx.job.target])

    async def execute(self, i: int, seconds: float) -> None:
        kit.mark(i)
        if seconds:
            await asyncio.sleep(seconds)


app.kind(SharedRunner())
