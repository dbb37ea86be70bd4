"""Warm-up of statements at start."""

from sqlalchemy import func, select

from rota.db.dialect import Tx
from rota.db.tables import jobs, runs, schedules, slots
from rota.engine.warmup import warm_up
from tests.engine.harness import Harness


async def test_a_warm_up_leaves_nothing_behind(harness: Harness) -> None:
    def count(tx: Tx) -> list[int]:
        return [
            tx.execute(select(func.count()).select_from(table)).scalar_one() for table in (schedules, slots, jobs, runs)
        ]

    before = await harness.db.read(count)
    await warm_up(harness.engine, "default")
    assert await harness.db.read(count) == before
