"""The program that Rota's workers run in the benchmark. Each body leaves its mark, so that the runs can be counted."""

import asyncio

from bench.peers import kit
from rota.app.application import Rota

app = Rota()


@app.task
async def mark(i: int) -> None:
    kit.mark(i)


@app.task
async def linger(i: int) -> None:
    """Work that takes a moment."""
    kit.mark(i)
    await asyncio.sleep(0.02)


@app.task
async def quiet() -> None:
    """For schedules that are there but hardly ever due."""
