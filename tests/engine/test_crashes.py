"""FIRE_IS_ONE_TRANSACTION: a process dies at any statement of firing, finishing, rescuing or recording a lost attempt;
another one takes over, and every slot has one job with one success.

All points take minutes, so each test visits some, others on each database; ROTA_TEST_EVERY_POINT=1 visits all.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select

from rota import Retry, Rota, TransientError
from rota.db.dialect import Tx
from rota.db.tables import jobs, runs, slots
from rota.engine.maintenance import Maintenance
from rota.engine.slot_audit import audit
from rota.engine.worker import Worker
from rota.testing import MONDAY, World, count_from_here, dies_at, register_worker, world
from tests.kinds.workflows.test_crashes import fresh

HOUR = timedelta(hours=1)
SCHEDULES = 3
NEVER = 1_000_000  # a point that is not reached


class Gate:
    """Keeps the runs of a program from ending while it is closed."""

    def __init__(self, closed: bool) -> None:
        self.open = asyncio.Event()
        self.begun = 0
        if not closed:
            self.open.set()


def program(gate: Gate, failures: int = 0) -> Rota:
    """Schedules that fire at 9:10, 9:20, and so on; the first `failures` runs fail for a passing reason."""
    app, left = Rota(), [failures]

    @app.task(retry=Retry(max_retries=3, backoff_ms=1000))
    async def work() -> None:
        gate.begun += 1
        await gate.open.wait()
        if left[0]:
            left[0] -= 1
            raise TransientError("net")

    for number in range(SCHEDULES):
        app.schedule(f"schedule-{number}", work, cron="*/10 * * * *", overlap="queue_all")
    return app


async def finish(url: str) -> None:
    """Two slots of each schedule; some runs are tried again."""
    async with world(program(Gate(closed=False), failures=2), database_url=url) as here:
        count_from_here()
        await here.advance(minutes=21)


async def running(here: World, gate: Gate) -> None:
    """The first slots have fired, and their runs are under way and recorded as started."""
    here.clock.set(MONDAY + timedelta(minutes=10))
    await here.scheduler.step()
    await here.worker.prefetch.claim()
    async with asyncio.timeout(20):
        while gate.begun < SCHEDULES:  # noqa: ASYNC110 (statements of the attempts are under way)
            await asyncio.sleep(0.01)
    await here.worker.executor.record_starts(list(here.worker.active.values()))


async def rescue(url: str) -> None:
    """A worker is declared dead, and its results come after all."""
    gate = Gate(closed=True)
    async with world(program(gate), database_url=url) as here:
        await running(here, gate)
        here.clock.set(here.clock.now() + HOUR)
        other = Worker(here.engine)
        await here.engine.db.tx(register_worker, other, here.engine)
        count_from_here()
        assert await Maintenance(here.engine, other.id).rescue_dead_workers() == SCHEDULES
        await end(here, gate)


async def lose(url: str) -> None:
    """A worker loses its lease and stops its attempts; no other worker was given its jobs."""
    gate = Gate(closed=True)
    async with world(program(gate), database_url=url) as here:
        await running(here, gate)
        count_from_here()
        here.worker.abandon()
        await here.worker.close_out()


async def end(here: World, gate: Gate) -> None:
    """The runs end, and their results are written."""
    gate.open.set()
    await here.worker.cancellation.until_idle(20)
    while here.worker.completer.results:
        await here.worker.completer.flush()


async def settle(url: str, seen: set[str]) -> None:
    """Let another process continue. Check every slot, job and attempt, and that attempts ended as each of `seen`."""
    async with world(program(Gate(closed=False)), database_url=url, start=MONDAY + 2 * HOUR) as here:
        await here.take_over()
        await here.advance(minutes=30)
        audited = await audit(here.engine.db, here.org_id, None, None, here.clock.now())
        assert audited["ok"], audited["problems"]
        assert seen <= await here.engine.db.read(check)


def check(tx: Tx) -> set[str]:
    """Check every job and attempt; returns what attempts ended as."""
    assert tx.execute(select(jobs)).all() == []
    attempts: dict[str, list[str]] = {}
    by_number = select(runs).order_by(runs.c.attempt, runs.c.lost_fence.desc())
    for run in tx.execute(by_number):
        attempts.setdefault(run.job_id, []).append(run.status)
    fired = tx.execute(select(slots.c.job_id).where(slots.c.job_id.is_not(None))).scalars().all()
    assert sorted(fired) == sorted(attempts)  # no slot with two jobs, no job without its slot
    for statuses in attempts.values():
        *earlier, last = statuses
        assert last == "success", statuses
        assert set(earlier) <= {"crashed", "lost", "paused"}, statuses
    return {status for statuses in attempts.values() for status in statuses}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("play", "stride", "seen"),
    [(finish, 17, {"paused", "success"}), (rescue, 8, {"lost", "success"}), (lose, 8, {"lost", "success"})],
)
def test_a_crash_at_every_statement_leaves_one_success_of_each_slot(
    clean_url: str, sqlite_template: Path, play: Callable[[str], Awaitable[None]], stride: int, seen: set[str]
) -> None:
    every = bool(os.environ.get("ROTA_TEST_EVERY_POINT"))
    for point in range(1, 500) if every else range(2 + 3 * clean_url.startswith("sqlite"), 500, stride):
        fresh(clean_url, sqlite_template)
        died = dies_at(point, partial(play, clean_url), after_set_up=True)
        # also in a child process: threads started here would be missing after the next fork
        assert not dies_at(NEVER, partial(settle, clean_url, set() if died else seen)), (
            f"after a crash at point {point}"
        )
        if not died:
            break
    assert point > stride, point
