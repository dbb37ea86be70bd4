"""Tasks with injected services of your own. Run it with: rota up examples/tasks.py

rota task run prices --wait --param city=Oslo      # the second time the result comes from the cache
rota task run crunch --wait --param numbers=1000
rota task run fan_out --wait
"""

import os
from collections.abc import Iterator

from rota import ArtifactManager, Rota, RunContext

app = Rota()


class Market:
    """A sample client of a service, which is opened and closed."""

    def __init__(self) -> None:
        self.open = True

    def price(self, city: str) -> int:
        assert self.open
        return len(city) * 10


def market() -> Iterator[Market]:
    """Create the client when the first task needs it; close it when the process ends."""
    client = Market()
    yield client
    client.open = False


app.provide(Market, market, scope="process")


@app.task(cache_ttl="10m", timeout="30s")
async def prices(city: str, market: Market) -> dict[str, object]:
    """Results are cached for ten minutes per city; such runs succeed with the reason `cached`."""
    return {"city": city, "price": market.price(city)}


@app.task(isolation="process", memory_mb=1024)
def crunch(numbers: int, ctx: RunContext) -> dict[str, int]:
    """Runs in its own process, which can be killed and whose crash affects no other job."""
    print(f"crunching in process {os.getpid()}, attempt {ctx.attempt}")
    return {"sum": sum(range(numbers)), "pid": os.getpid()}


@app.task
async def fan_out(artifacts: ArtifactManager) -> list[str]:
    """Enqueues further jobs and saves an artifact."""
    await artifacts.save("# What was asked\n\nOslo, Bergen\n", label="page", content_type="text/markdown")
    return await app.enqueue_many(prices, [{"city": "Oslo"}, {"city": "Bergen"}])
