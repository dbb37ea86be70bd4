"""QUEUE_SERIALIZES under load: many concurrent workers and few keys."""

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from rota.core.errors import Conflict, Invalid, NotFound
from rota.core.ids import new_id
from rota.core.model import Attempt, AttemptResult, Job, NewJob
from rota.core.states import Move, Status
from rota.db.connection import Database, open_database
from rota.db.dialect import Tx, lock_keys
from rota.db.tables import jobs, runs, slots
from rota.db.wake import Wake
from rota.engine import claiming, finishing, serial_keys
from rota.engine import jobs as queue
from rota.engine.commands import Engine
from rota.engine.scheduler import Scheduler
from tests.engine.harness import MINUTE, at, open_harness

NOW = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)
WORKERS, KEYS = 6, 40


class Witness:
    """Sees who runs what: no two at once per key, and fences that rise along each key."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.fences: dict[str, int] = {}
        self.wrong: list[str] = []

    def begins(self, job: Job) -> None:
        key = job.serial_key or ""
        self.running[key] += 1
        if self.running[key] > 1:
            self.wrong.append(f"{key} runs twice at once")
        if job.fence <= self.fences.get(key, 0):
            self.wrong.append(f"{key} has fence {job.fence} after {self.fences[key]}")
        self.fences[key] = job.fence

    def ends(self, job: Job) -> None:
        self.running[job.serial_key or ""] -= 1


async def work(url: str, worker: str, witness: Witness, total: int, done: list[int]) -> None:
    db, dice = open_database(url, pool=2), random.Random(worker)
    try:
        while done[0] < total:
            took = await db.tx(claim, worker, dice.randint(1, 25))
            for job in took:
                witness.begins(job)
            if not took:
                await db.tx(queue.release_due, NOW + timedelta(hours=1))
                await asyncio.sleep(0.002)
                continue
            await asyncio.sleep(0)
            ended = [ending(job, dice) for job in took]
            for result in ended:
                witness.ends(result.job)
            kept, _ = await db.tx(finishing.finish, ended, worker)
            if len(kept) != len(ended):
                witness.wrong.append("a result was refused")
            done[0] += sum(result.final for result in ended)
    finally:
        await db.close()


def claim(tx: Tx, worker: str, room: int) -> list[Job]:
    return claiming.claim(tx, claiming.lanes(tx), worker=worker, routes=["task"], room=room, turn=0)


def ending(job: Job, dice: random.Random) -> AttemptResult:
    """Most end well; some are tried again, some are handed back."""
    luck = dice.random()
    result = AttemptResult(job, Status.SUCCESS, None, NOW, new_id(), job.attempt + 1, NOW)
    if luck < 0.1 and job.attempt < 5:
        return AttemptResult(
            job, Status.FAILED, "logic", NOW, result.run_id, result.number, NOW, move=Move.BACK_OFF, run_at=NOW
        )
    if luck < 0.15 and job.attempt < 5:
        return AttemptResult(
            job, Status.CANCELED, "shutdown", NOW, result.run_id, result.number, NOW, move=Move.HAND_BACK
        )
    return result


async def produce(url: str, total: int, dice: random.Random) -> None:
    db = open_database(url, pool=2)
    left = total
    while left:
        some = min(left, dice.randint(1, 60))
        left -= some
        new = [
            NewJob(
                "org",
                "task",
                "t",
                None,
                NOW + timedelta(minutes=dice.choice([0, 0, 30])),
                "manual",
                route="task",
                serial_key=f"k{dice.randrange(KEYS)}",
                priority=dice.randint(-2, 2),
            )
            for _ in range(some)
        ]
        await db.tx(queue.enqueue, new, NOW)
    await db.close()


async def watch(url: str, violations: list[str], over: asyncio.Event) -> None:
    """After every commit each key with blocked jobs has a head: one statement sees one snapshot."""
    db = open_database(url, pool=1)
    while not over.is_set():
        violations += await db.read(serial_keys.headless)
        await asyncio.sleep(0.005)
    await db.close()


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_no_two_jobs_of_a_key_run_at_once(migrated_url: str) -> None:
    total = 2000 if migrated_url.startswith("postgresql") else 1000
    witness, done, headless, over = Witness(), [0], list[str](), asyncio.Event()
    dice = random.Random(7)
    watcher = asyncio.create_task(watch(migrated_url, headless, over))
    await asyncio.gather(
        produce(migrated_url, total // 2, dice),
        produce(migrated_url, total - total // 2, dice),
        *(work(migrated_url, f"w{n}", witness, total, done) for n in range(WORKERS)),
    )
    over.set()
    await watcher
    assert witness.wrong == []
    assert headless == []
    db = open_database(migrated_url)
    assert await db.read(lambda tx: tx.execute(select(func.count()).select_from(jobs)).scalar_one()) == 0
    final = select(func.count()).select_from(runs).where(runs.c.status == "success")
    assert await db.read(lambda tx: tx.execute(final).scalar_one()) == total
    await db.close()


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_cancels_rescues_and_workers_race_for_a_few_keys(migrated_url: str) -> None:
    db = open_database(migrated_url)
    new = [NewJob("org", "task", "t", None, NOW, "manual", route="task", serial_key=f"k{n % 5}") for n in range(300)]
    await db.tx(queue.enqueue, new, NOW)
    left = {job.id for job in new}

    async def cancel(dice: random.Random) -> None:
        while left:
            some = dice.choice(sorted(left))
            job = await db.read(queue.find, "org", some)
            if job is None:
                left.discard(some)
                continue

            def step(tx: Tx, job: Any = job) -> None:
                lock_keys(tx, [job.serial_key])
                queue.lock(tx, job.id)
                queue.withdraw(tx, jobs.c.id == job.id, Status.CANCELED, "test", NOW)

            await db.tx(step)

    async def lose(name: str) -> None:
        while left:
            took = await db.tx(claim, name, 3)
            if took:
                await db.tx(finishing.mark_started, [Attempt(job, new_id(), job.attempt + 1, NOW) for job in took[:1]])
            await db.tx(finishing.rescue, name, NOW)
            left.difference_update(await gone(db, left))

    await asyncio.gather(cancel(random.Random(1)), cancel(random.Random(2)), *(lose(f"w{n}") for n in range(3)))
    assert await db.read(serial_keys.headless) == []
    assert await db.read(lambda tx: tx.execute(select(func.count()).select_from(jobs)).scalar_one()) == 0
    recorded = await db.read(lambda tx: set(tx.execute(select(runs.c.job_id)).scalars()))
    assert recorded == {job.id for job in new}  # each left a row in the ledger
    await db.close()


async def gone(db: Database, ids: set[str]) -> set[str]:
    alive = await db.read(lambda tx: set(tx.execute(select(jobs.c.id)).scalars()))
    return ids - alive


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_retries_backfills_and_fires_of_one_slot_at_once(migrated_url: str) -> None:
    """A hundred requests for one slot: one job at a time, attempts 1 to n, nothing lost."""
    harness = await open_harness(migrated_url)
    await harness.schedule(misfire="skip", overlap="queue_all")
    await harness.run_until(at("9:12"))
    harness.clock.set(at("9:12"))
    (first,) = await harness.rows(select(runs.c.id))
    dice = random.Random(3)

    async def ask(number: int) -> None:
        match number % 4:
            case 0:
                await harness.engine.retry(harness.org_id, first.id)
            case 1:
                await harness.engine.backfill(harness.org_id, "job", since=at("9:05"), until=at("9:15"), reprocess=True)
            case 2:
                await harness.scheduler.step()
            case _:
                await harness.engine.run_now(harness.org_id, "job")
        living = await harness.rows(select(func.count()).select_from(jobs).where(jobs.c.slot == at("9:10")))
        assert living[0][0] <= 1

    for round_ in range(4):
        numbers = list(range(25))
        dice.shuffle(numbers)
        await asyncio.gather(*(ask(number) for number in numbers))
        await harness.work()
        ledger = await harness.rows(select(runs.c.attempt).where(runs.c.slot == at("9:10")).order_by(runs.c.attempt))
        assert [row.attempt for row in ledger] == list(range(1, round_ + 3))
    assert len(await harness.rows(select(slots).where(slots.c.slot == at("9:10")))) == 1
    await harness.check()
    await harness.close()


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_schedulers_that_fire_at_once_fire_each_slot_once(migrated_url: str) -> None:
    harness = await open_harness(migrated_url)
    bodies = [
        {"name": f"s{n}", "target": "t", "cron_expression": "*/10 * * * *", "overlap": "allow"} for n in range(60)
    ]
    await harness.engine.create_schedules(harness.org_id, bodies)
    others = [
        Scheduler(
            Engine(open_database(migrated_url), harness.clock, Wake(), harness.engine.runners, harness.engine.settings)
        )
        for _ in range(4)
    ]
    for _ in range(6):
        harness.clock.set(harness.clock.now() + 10 * MINUTE)
        await asyncio.gather(*(scheduler.step() for scheduler in [*others, harness.scheduler, *others]))
        await harness.fire()
    made = await harness.rows(select(jobs.c.schedule_id, jobs.c.slot))
    assert len(made) == len(set(made)) == 360
    await harness.check()
    for scheduler in others:
        await scheduler.db.close()
    await harness.close()


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_users_and_schedulers_race_over_one_schedule(migrated_url: str) -> None:
    harness = await open_harness(migrated_url)
    await harness.schedule(overlap="queue_one")
    dice = random.Random(11)

    async def meddle() -> None:
        engine, org = harness.engine, harness.org_id
        try:
            match dice.randrange(7):
                case 0:
                    await engine.edit_schedule(org, "job", {"cron_expression": f"*/{dice.choice([5, 10, 15])} * * * *"})
                case 1:
                    await engine.pause_schedule(org, "job")
                case 2:
                    await engine.resume_schedule(org, "job", gap=dice.choice(["skip", "once", "all"]))
                case 3:
                    await engine.edit_schedule(org, "job", {"enabled": dice.random() < 0.7})
                case 4:
                    await engine.skip_next(org, "job")
                case 5:
                    await engine.backfill(org, "job", since=at("9:00"), until=harness.clock.now())
                case _:
                    await engine.run_now(org, "job")
        except (Conflict, Invalid, NotFound):
            pass  # commands may be rejected; other errors are bugs

    for _ in range(12):
        harness.clock.set(harness.clock.now() + 7 * MINUTE)
        await asyncio.gather(harness.scheduler.step(), harness.scheduler.step(), *(meddle() for _ in range(6)))
        await harness.work()
        await harness.check()
    await harness.close()
