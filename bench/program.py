"""The app that Rota's workers run in the benchmark. Each task records its start, so that runs can be counted."""

import asyncio

from bench.peers import kit
from rota.app.application import Rota

app = Rota()


@app.task
async def mark(i: int) -> None:
    kit.mark(i)


@app.task
async def linger(i: int) -> None:
    """Work that takes 20 ms."""
    kit.mark(i)
    await asyncio.sleep(0.02)


@app.task
async def quiet() -> None:
    """For schedules that are hardly ever due."""
