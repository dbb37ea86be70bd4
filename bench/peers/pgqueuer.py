import time
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from bench.peers import kit


async def queries() -> Queries:
    return Queries(AsyncpgDriver(await asyncpg.connect(kit.URL)))


async def prepare() -> None:
    await (await queries()).install()


async def enqueue(count: int) -> Any:
    queue = await queries()
    begun = time.perf_counter()
    for part in kit.chunks(count):
        await queue.enqueue(["mark"] * len(part), [b"%d" % i for i in part], [0] * len(part))
    return kit.since(begun)


async def worker() -> None:
    pool = kit.SETTINGS.get("pool")
    if pool:
        driver: Any = AsyncpgPoolDriver(await asyncpg.create_pool(kit.URL, min_size=2, max_size=pool))
    else:
        driver = AsyncpgDriver(await asyncpg.connect(kit.URL))
    queuer = PgQueuer(driver)

    @queuer.entrypoint("mark")
    async def mark(job: Any) -> None:
        kit.mark(int(job.payload))

    await queuer.run(batch_size=kit.SETTINGS.get("batch_size", 10))


async def paced(numbers: list[int], gap: float) -> Any:
    queue = await queries()
    return await kit.paced_async(numbers, gap, lambda i: queue.enqueue("mark", b"%d" % i, 0))


async def later(due_times: list[tuple[int, float]]) -> None:
    queue = await queries()
    for i, at in due_times:
        await queue.enqueue("mark", b"%d" % i, 0, execute_after=timedelta(seconds=at - time.time()))


if __name__ == "__main__":
    kit.main(globals())
