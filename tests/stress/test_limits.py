"""Rates and places under load: two workers with their own connections claim, ask and finish at the same time."""

import asyncio
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select

from rota.core.flow import Limits, PlaceLimit, Rate, RateLimit
from rota.core.ids import new_id
from rota.core.model import AttemptResult, Job, NewJob
from rota.core.states import Move, Status
from rota.db.connection import open_database
from rota.db.dialect import Tx
from rota.db.tables import jobs, rate_limits
from rota.engine import admission, claiming, finishing, places
from rota.engine import jobs as queue
from rota.engine.admission import Ask

NOW = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)
WORKERS, KEYS, JOBS, PLACES = 4, 5, 300, 3


def claim(tx: Tx, worker: str, room: int) -> list[Job]:
    return claiming.claim(tx, claiming.lanes(tx), worker=worker, routes=["task"], room=room, turn=0)


def new_jobs(count: int, dice: random.Random) -> list[NewJob]:
    return [
        NewJob("org", "task", "t", dice.randrange(KEYS), NOW, "manual", route="task", priority=dice.randint(-2, 2))
        for _ in range(count)
    ]


class Witness:
    """Counts the jobs that run, by key."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.claims: Counter[str] = Counter()
        self.ended = 0

    def begins(self, key: str) -> None:
        self.running[key] += 1
        self.most[key] = max(self.most[key], self.running[key])


async def work(url: str, worker: str, witness: Witness) -> None:
    """Claim, ask for places, run, and end in one of all ways that there are; some claims die with their worker."""
    db, dice, generation = open_database(url, pool=2), random.Random(worker), 0
    try:
        while witness.ended < JOBS:
            name = f"{worker}-{generation}"
            claimed = await db.tx(claim, name, dice.randint(1, 12))
            witness.claims.update(job.id for job in claimed)
            if not claimed:
                await asyncio.sleep(0.002)
                continue
            if dice.random() < 0.05:  # it dies before it asks
                generation += 1
                await db.tx(finishing.rescue, name, NOW)
                continue
            asks = [Ask(job, Limits(place=PlaceLimit(str(job.payload), PLACES))) for job in claimed]
            admitted = await db.tx(admission.admit, asks, NOW)
            running = [job for job in claimed if job.id in admitted]
            for job in running:
                job.place_key = str(job.payload)
                witness.begins(job.place_key)
            await asyncio.sleep(dice.random() * 0.004)
            for job in running:
                witness.running[str(job.payload)] -= 1
            results = [ending(job, dice) for job in running]
            if results:
                kept, _ = await db.tx(finishing.finish, results, name, NOW)
                assert len(kept) == len(results)
            witness.ended += sum(result.final for result in results)
            await db.tx(queue.release_due, NOW)
    finally:
        await db.close()


def ending(job: Job, dice: random.Random) -> AttemptResult:
    luck, result = dice.random(), AttemptResult(job, Status.SUCCESS, None, NOW, new_id(), job.attempt + 1, NOW)
    if luck < 0.2 and job.attempt < 3:
        move = dice.choice([Move.BACK_OFF, Move.HAND_BACK])
        return AttemptResult(job, Status.FAILED, "logic", NOW, result.run_id, result.number, NOW, move=move, run_at=NOW)
    return result


async def watch(url: str, violations: list[str], over: asyncio.Event) -> None:
    """After every commit no key has more holders than places: one statement sees one snapshot."""
    db = open_database(url, pool=1)
    held = select(jobs.c.place_key, func.count()).where(jobs.c.place_key.is_not(None)).group_by(jobs.c.place_key)
    while not over.is_set():
        for key, count in await db.read(lambda tx: list(tx.execute(held))):
            if count > PLACES:
                violations.append(f"{count} jobs hold places of {key}")
        await asyncio.sleep(0.001)
    await db.close()


async def test_no_more_jobs_of_a_key_run_than_it_has_places(clean_url: str) -> None:
    db, witness, over = open_database(clean_url), Witness(), asyncio.Event()
    violations: list[str] = []
    await db.tx(queue.enqueue, new_jobs(JOBS, random.Random(1)), NOW)
    watching = asyncio.ensure_future(watch(clean_url, violations, over))
    try:
        async with asyncio.timeout(120):
            await asyncio.gather(*(work(clean_url, f"w{number}", witness) for number in range(WORKERS)))
    finally:
        over.set()
        await watching
    assert violations == []
    assert max(witness.most.values()) == PLACES  # never above, and made use of
    assert await db.read(lambda tx: list(tx.execute(select(jobs.c.id)))) == []
    assert await db.read(places.starving_keys) == []
    # each claim is a start, a wait or a death: no job is claimed again and again while it waits
    assert max(witness.claims.values()) <= 4 * 2 + 8
    await db.close()


async def test_no_window_has_more_starts_than_the_rate(clean_url: str) -> None:
    """Several workers reserve at the same time, at times that differ: all starts together keep the rate."""
    rate, starts = Rate(20, timedelta(seconds=1), burst=3), defaultdict[str, list[datetime]](list)

    async def reserve(worker: int) -> None:
        db, dice = open_database(clean_url, pool=2), random.Random(worker)
        now = NOW
        for _ in range(40):
            now += timedelta(milliseconds=dice.randint(0, 200))
            new = new_jobs(dice.randint(1, 6), dice)
            await db.tx(queue.enqueue, new, now)
            taken = {job.id: job for job in await db.tx(claim, f"w{worker}", 50)}
            asks = [Ask(job, Limits((RateLimit(str(job.payload), rate),))) for job in taken.values()]
            admitted = await db.tx(admission.admit, asks, now)
            for job in taken.values():
                if job.id in admitted:
                    starts[str(job.payload)].append(now)
        await db.close()

    await asyncio.gather(*(reserve(worker) for worker in range(WORKERS)))
    db = open_database(clean_url)
    reserved = select(jobs.c.payload, jobs.c.reserved_at).where(jobs.c.reserved_at.is_not(None))
    for payload, reserved_at in await db.read(lambda tx: list(tx.execute(reserved))):
        starts[str(payload)].append(reserved_at)
    assert len(await db.read(lambda tx: list(tx.execute(select(rate_limits))))) == KEYS
    await db.close()
    for key, instants in starts.items():
        instants.sort()
        for position, first in enumerate(instants):
            within = sum(1 for start in instants[position:] if start < first + rate.period)
            assert within <= rate.count + rate.burst, (key, first)
