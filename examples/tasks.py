"""Tasks with things of your own injected. Run it with: rota up examples/tasks.py

rota task run prices --wait --param city=Oslo      # the second time the answer comes from the cache
rota task run crunch --wait --param numbers=1000
rota task run fan_out --wait
"""

import os
from collections.abc import Iterator

from rota import ArtifactManager, Rota, RunContext

app = Rota()


class Market:
    """Stands for a client of some service: it is opened and closed, and asked questions."""

    def __init__(self) -> None:
        self.open = True

    def price(self, city: str) -> int:
        assert self.open
        return len(city) * 10


def market() -> Iterator[Market]:
    """Made when the first task wants one; what stands behind the `yield` happens when the process ends."""
    client = Market()
    yield client
    client.open = False


app.provide(Market, market, scope="process")


@app.task(cache_ttl="10m", timeout="30s")
async def prices(city: str, market: Market) -> dict[str, object]:
    """For ten minutes the same city gets the same answer; such runs succeed with the reason `cached`."""
    return {"city": city, "price": market.price(city)}


@app.task(isolation="process", memory_mb=1024)
def crunch(numbers: int, ctx: RunContext) -> dict[str, int]:
    """Runs in a process of its own, which can be killed, and whose crash hurts nobody else."""
    print(f"crunching in process {os.getpid()}, attempt {ctx.attempt}")
    return {"sum": sum(range(numbers)), "pid": os.getpid()}


@app.task
async def fan_out(artifacts: ArtifactManager) -> list[str]:
    """Makes more jobs, and leaves a page behind."""
    await artifacts.save("# What was asked\n\nOslo, Bergen\n", label="page", content_type="text/markdown")
    return await app.enqueue_many(prices, [{"city": "Oslo"}, {"city": "Bergen"}])
