import time
from datetime import UTC, datetime
from typing import Any

import procrastinate

from bench.peers import kit

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=kit.URL, min_size=2, max_size=10))


@app.task(name="mark")
async def mark(i: int) -> None:
    kit.mark(i)


async def prepare() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def enqueue(count: int) -> Any:
    async with app.open_async():
        begun = time.perf_counter()
        for part in kit.chunks(count):
            await mark.batch_defer_async(*({"i": i} for i in part))
        return kit.since(begun)


async def worker() -> None:
    async with app.open_async():
        await app.run_worker_async(**kit.SETTINGS)


async def paced(numbers: list[int], gap: float) -> Any:
    async with app.open_async():
        return await kit.paced_async(numbers, gap, lambda i: mark.defer_async(i=i))


async def later(due_times: list[tuple[int, float]]) -> None:
    async with app.open_async():
        for i, at in due_times:
            await mark.configure(schedule_at=datetime.fromtimestamp(at, UTC)).defer_async(i=i)


if __name__ == "__main__":
    kit.main(globals())
