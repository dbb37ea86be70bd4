"""What it costs that a script is not trusted: a call of a handler in a locked process, and the start of such one."""

import statistics
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from bench.figures import Figure, Size
from bench.installation import DatabaseKind
from rota.core.clock import real_sleep, system_time
from rota.kinds.workflows.scripts.sandbox import SPARE_PROCESSES, Sandbox

CALLS, VERSIONS = 2_000, 20
TARGET = "< 5 ms"
SCRIPT = """
from rota import Prepare, Workflow, every
flow = Workflow("bench", topics=["a"])

@flow.producer(schedule=every("5m"), publishes=["a"])
async def poll(ctx, state):
    await ctx.publish("a", message_id="1")
    return state
"""


async def scripts(kind: DatabaseKind, size: Size) -> AsyncIterator[Figure]:  # noqa: ARG001
    """Calls of a handler that makes one request, answered at once; no database."""
    box = Sandbox()
    try:
        await call(box, "warm")
        again = [await call(box, "warm") for _ in range(CALLS)]
        yield Figure("scripts: a call, p50", statistics.median(again), "ms", None, TARGET)
        yield Figure("scripts: a call, p99", statistics.quantiles(again, n=100)[98], "ms")
        first = []
        for number in range(VERSIONS):
            while not all(process.done() for process in box.ready):  # spare processes are still starting
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


async def answer(method: str, params: Mapping[str, Any]) -> None: ...
