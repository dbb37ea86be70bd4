"""Program with tasks that need a heartbeat, in threads, on the event loop and in their own processes."""

import asyncio
import time

from rota import Rota, RunContext

app = Rota()


@app.task("loop", heartbeat="1s")
async def loop(ctx: RunContext, beats: int) -> int:
    for _ in range(beats):
        await asyncio.sleep(0.4)
        ctx.heartbeat()
    await asyncio.sleep(0 if beats > 1 else 60)
    return beats


@app.task("thread", heartbeat="1s")
def thread(ctx: RunContext, beats: int) -> int:
    for _ in range(beats):
        time.sleep(0.4)
        ctx.heartbeat()
    while beats == 1:
        time.sleep(0.05)  # interrupted after the grace
    return beats


@app.task("process", heartbeat="2s", isolation="process")
def process(ctx: RunContext, beats: int) -> int:
    for _ in range(beats):
        time.sleep(0.4)
        ctx.heartbeat()
    time.sleep(0 if beats > 1 else 60)
    return beats
