"""What it costs that a script is not trusted: a call of a handler in a locked process, and the start of such one."""

import statistics
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from bench.figures import Figure, Size
from bench.site import Kind
from rota.core.clock import real_sleep, system_time
from rota.kinds.workflows.scripts.sandbox import SPARE_PROCESSES, Sandbox

CALLS, VERSIONS = 2_000, 20
BAR = "< 5 ms"
SCRIPT = """
from rota import Prepare, Workflow, every
flow = Workflow("bench", topics=["a"])

@flow.producer(schedule=every("5m"), publishes=["a"])
async def poll(ctx, state):
    await ctx.publish("a", message_id="1")
    return state
"""


async def scripts(kind: Kind, size: Size) -> AsyncIterator[Figure]:  # noqa: ARG001
    """A handler that asks its host once, with a host that answers at once; no database."""
    box = Sandbox()
    try:
        await call(box, "warm")
        again = [await call(box, "warm") for _ in range(CALLS)]
        yield Figure("scripts: a call, p50", statistics.median(again), "ms", None, BAR)
        yield Figure("scripts: a call, p99", statistics.quantiles(again, n=100)[98], "ms")
        first = []
        for number in range(VERSIONS):
            while not all(one.done() for one in box.ready):  # somebody waits for a script at most times
                await real_sleep(0.05)
            first.append(await call(box, str(number)))
        yield Figure("scripts: the first call of a version, p50", statistics.median(first), "ms")
    finally:
        await box.close()
    cold = []
    for _ in range(VERSIONS // 2):
        box = Sandbox(spare=0)
        cold.append(await call(box, "cold"))
        await box.close()
    yield Figure(f"scripts: a call without the {SPARE_PROCESSES} spare processes, p50", statistics.median(cold), "ms")


async def call(box: Sandbox, version: str) -> float:
    begun = time.perf_counter()
    await box.call(("bench", version), SCRIPT, "poll", "produce", [None], system_time(), answer)
    return (time.perf_counter() - begun) * 1000


async def answer(what: str, params: Mapping[str, Any]) -> None: ...
