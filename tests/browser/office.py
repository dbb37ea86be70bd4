"""A program for the browser to watch: things that run, talk, fail and cost."""

import asyncio
from collections.abc import AsyncIterator

from rota import Rota, RunContext
from rota.graphs import AssistantFinal, GraphRequest, LlmCaller, UsageReport

app = Rota()


@app.task
async def tick() -> str:
    """Says that it is there."""
    return "tock"


@app.task
async def talk(lines: int = 2000, word: str = "chapter") -> int:
    """Writes a line every tenth of a second."""
    for number in range(lines):
        print(f"{word} {number}")
        await asyncio.sleep(0.1)
    return lines


@app.task(retry={"max_retries": 2, "backoff_ms": 700})
async def import_orders(ctx: RunContext, day: str = "today", limit: int = 100) -> dict[str, object]:
    """Fetches orders; the shop is closed on each seventh slot."""
    for page in range(1, 4):
        print(f"reading page {page} of 3")
        await asyncio.sleep(0.02 * (1 + hash(ctx.run_id) % 9))
    if ctx.slot is not None and ctx.slot.toordinal() % 7 == 0 and ctx.attempt < 3:
        raise ConnectionError("the shop answered 503 Service Unavailable")
    return {"orders": 40 + hash(ctx.run_id) % 400, "day": day}


@app.task
def fails(message: str = "it does") -> None:
    raise ValueError(message)


async def poet(request: GraphRequest, caller: LlmCaller) -> AsyncIterator[object]:
    """Writes a poem about the day."""
    yield UsageReport("one", "tiny", 120, 80, "0.004")
    yield AssistantFinal(f"Roses for {request.input.get('name', 'you')}")


app.graph("poet", poet, provider="python")
app.shell("disk", "df -h /")
