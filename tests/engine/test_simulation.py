"""The simulation decides as the engine does: random installations run under a moved clock and are simulated."""

import asyncio
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from sqlalchemy import insert, select

from rota.core.model import DueSchedule, Job
from rota.core.schedule_form import Defaults, parse_schedule
from rota.core.simulation import Expected, QueueLimit, Scenario, SimulatedSlot, TimeRange, first_due, simulate
from rota.core.timing.dst import TICK
from rota.db.dialect import Tx
from rota.db.tables import jobs, queues, runs, schedules, slots
from rota.engine import freezes
from rota.engine import schedules as schedule_store
from rota.engine.maintenance import Maintenance
from rota.engine.worker import Worker
from tests.databases import copy_sqlite
from tests.engine.harness import HOUR, NINE, Harness, open_harness, register

SEEDS = int(os.environ.get("ROTA_TEST_SEEDS", "40"))
BATCH_SEEDS = 100  # installations that run at the same time: each is an org
SPAN = 2 * HOUR  # on a grid of five minutes: installations share instants, each of which costs several transactions
CRONS = ("*/10 * * * *", "*/15 * * * *", "*/20 * * * *", "5,10,40 * * * *", "0 * * * *", "*/30 9 * * *")
GRID = timedelta(minutes=5)
Verdicts = dict[str, list[tuple[object, ...]]]


@dataclass
class Installation:
    """An org with schedules; `seconds` are the durations of their runs, by name."""

    org_id: str
    seconds: dict[str, int]
    places: int | None
    queues: dict[str, QueueLimit]


async def install(harness: Harness, seed: int) -> Installation:
    """Create a random installation in an org of its own."""
    draw = random.Random(seed)
    places = draw.choice([None, None, 1, 2])
    org_id = await harness.add_org(f"s{seed}", max_running=places)
    limits = {}
    if places is None and draw.random() < 0.5:  # with a limit of the org, the order of queues is not defined
        limits["slow"] = QueueLimit(draw.choice([1, 2]), draw.random() < 0.1)
        paused_at = NINE if limits["slow"].paused else None
        values = {"org_id": org_id, "name": "slow", "max_running": limits["slow"].max_running, "paused_at": paused_at}
        await harness.write(insert(queues).values(**values))
    bodies = [
        random_schedule(draw, f"{seed}-{position}", position, bool(limits)) for position in range(draw.randint(1, 4))
    ]
    await harness.engine.create_schedules(org_id, bodies)
    seconds = {body["name"]: draw.choice([7, 7, 67, 307, 1207, 2407]) for body in bodies}
    for position in range(draw.choice([0, 0, 1, 2])):
        start = NINE + draw.randint(1, 20) * GRID
        window = {
            "name": f"w{position}", "starts_at": start, "ends_at": start + draw.randint(1, 12) * GRID,
            "mode": draw.choice(["skip", "hold"]), "tag": draw.choice([None, "even", "odd"]),
        }  # fmt: skip
        await harness.engine.add_freeze_window(org_id, window)
    if draw.random() < 0.2:
        until = draw.choice([None, NINE + draw.randint(1, 30) * GRID])
        await harness.engine.pause_schedule(org_id, bodies[0]["name"], until=until)
    return Installation(org_id, seconds, places, limits)


def random_schedule(draw: random.Random, name: str, position: int, slow: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "name": name, "target": name, "overlap": draw.choice(["queue_one", "queue_all", "skip", "allow", "replace"]),
        "misfire": draw.choice(["skip", "once", "all"]), "catch_up_limit": draw.choice([1, 3, 100]),
        "priority": position, "tags": ["even" if position % 2 else "odd"],
        "queue": "slow" if slow and draw.random() < 0.5 else "default",
    }  # fmt: skip
    if draw.random() < 0.3:
        body |= {"interval_seconds": draw.choice([300, 600, 1500])}
    else:
        body |= {"cron_expression": draw.choice(CRONS)}
    optional = {
        "max_runs": draw.choice([1, 4]), "timeout_seconds": 907, "window_start": "09:30",
        "start_deadline_seconds": draw.choice([5, 600]),
    }  # fmt: skip
    body |= {field: value for field, value in optional.items() if draw.random() < 0.2}
    body |= {"jitter_seconds": 200} if draw.random() < 0.02 else {}
    return body | {"window_end": "10:30"} if "window_start" in body else body


def random_outages(draw: random.Random) -> list[TimeRange]:
    outages, last_grid = [], NINE
    for _ in range(draw.choice([0, 1, 1, 2])):
        first = last_grid + draw.randint(1, 14) * GRID
        last_grid = first + draw.randint(1, 10) * GRID
        # no slot and no end of a run is at the same instant
        outages.append(
            TimeRange(first + timedelta(seconds=2.3), last_grid + timedelta(seconds=draw.choice([0.7, 150.7])))
        )
    return outages


async def simulated(harness: Harness, installation: Installation, outages: Sequence[TimeRange]) -> Verdicts:
    def read(tx: Tx) -> list[Expected]:
        rows = tx.execute(select(schedules.c.id, schedules.c.name).where(schedules.c.org_id == installation.org_id))
        expected = []
        for row in rows:
            due = schedule_store.lock(tx, installation.org_id, row.id)
            windows = freezes.of_schedule(tx, due.schedule, NINE)
            due = replace(first_due(due, NINE + TICK), windows=windows)
            expected.append(Expected(due, timedelta(seconds=installation.seconds[row.name])))
        return expected

    schedules_of_org = await harness.db.read(read)
    ended = NINE + SPAN
    decided_until = next((outage.start for outage in outages if outage.start < ended < outage.end), ended)
    scenario = Scenario(TimeRange(NINE + TICK, NINE + SPAN), outages, installation.places, installation.queues)
    result = simulate(schedules_of_org, scenario)
    assert not result.truncated
    verdicts: Verdicts = {}
    for slot in result.slots:
        schedule = schedules_of_org[slot.position].due.schedule
        endless = slot.reason == "paused" and schedule.paused_until is None  # recorded when it is resumed
        ahead = slot.reason == "paused" and (schedule.paused_until or NINE) >= decided_until
        if (slot.verdict is not None or slot.terms is not None) and not endless and not ahead:
            name = schedule.name
            verdicts.setdefault(name, []).append(simulated_slot(slot))
    return {name: sorted(rows) for name, rows in verdicts.items()}


def simulated_slot(slot: SimulatedSlot) -> tuple[object, ...]:
    if slot.terms is not None and slot.verdict in (None, "ran"):
        return slot.slot, slot.last_slot, slot.verdict or "waiting", text(slot.started_at)
    reason = f"{slot.verdict}: {slot.reason}"
    return slot.slot, slot.last_slot, reason, text(slot.into)


def text(at: datetime | None) -> str:
    return "" if at is None else at.isoformat()


def recorded(tx: Tx, org_id: str) -> Verdicts:
    verdicts: Verdicts = {}
    of_org = select(slots, schedules.c.name).join(schedules, schedules.c.id == slots.c.schedule_id)
    for row in tx.execute(of_org.where(schedules.c.org_id == org_id).order_by(slots.c.slot)):
        verdicts.setdefault(row.name, []).append(recorded_slot(tx, row))
    return {name: sorted(rows) for name, rows in verdicts.items()}


def recorded_slot(tx: Tx, row: Any) -> tuple[object, ...]:
    if row.verdict is not None:
        return row.slot, row.last_slot, f"{row.verdict}: {row.reason}", text(row.into_slot)
    job = tx.execute(select(jobs).where(jobs.c.id == row.job_id)).one_or_none()
    attempts = tx.execute(select(runs).where(runs.c.job_id == row.job_id).order_by(runs.c.attempt)).all()
    started = min((run.started_at for run in attempts if run.started_at), default=job.started_at if job else None)
    if job is None and attempts[-1].status == "skipped":
        return row.slot, row.last_slot, f"skipped: {attempts[-1].reason}", ""
    ran = started is not None or (job is None and attempts[-1].status == "canceled")
    return row.slot, row.last_slot, "ran" if ran else "waiting", text(started)


async def run_live(harness: Harness, seconds: dict[str, int], outages: Sequence[TimeRange]) -> None:
    """Run the installations until the end of the time range; in an outage the worker dies and no scheduler runs."""
    end = NINE + SPAN - timedelta(microseconds=1)
    for outage in outages:
        if outage.start >= end:
            break
        await run_to(harness, seconds, outage.start - timedelta(microseconds=1))
        await crash(harness)
        harness.clock.set(min(outage.end, end))
        if outage.end > end:
            return
        await restart(harness)
    await run_to(harness, seconds, end)


async def run_to(harness: Harness, seconds: dict[str, int], until: datetime) -> None:
    while True:
        await end_runs(harness, seconds)
        await harness.run_due()
        if await end_runs(harness, seconds):
            continue
        due = (await harness.scheduler.poll()).next_due_at
        following = min((at for at in (due, *ends_of(harness, seconds).values()) if at is not None), default=until)
        if following > until:
            harness.clock.set(until)
            return
        harness.clock.set(max(following, harness.clock.now()))


async def end_runs(harness: Harness, seconds: dict[str, int]) -> bool:
    ended = [job_id for job_id, at in ends_of(harness, seconds).items() if at <= harness.clock.now()]
    for job_id in ended:
        harness.fake_runner.gates.pop(job_id).set()
    if ended:
        await harness.work()
    return bool(ended)


def ends_of(harness: Harness, seconds: dict[str, int]) -> dict[str, datetime]:
    """When the runs that are under way end, by job."""
    return {
        job_id: run.attempt.started_at + duration_of(run.attempt.job, seconds)
        for job_id, run in harness.worker.active.items()
        if job_id in harness.fake_runner.gates
    }


def duration_of(job: Job, seconds: dict[str, int]) -> timedelta:
    duration = timedelta(seconds=seconds[job.target])
    return duration if job.terms.timeout is None else min(duration, job.terms.timeout)


async def crash(harness: Harness) -> None:
    """The worker's process dies: its runs leave no result."""
    harness.worker.abandon()
    tasks = [run.task for run in harness.worker.active.values() if run.task]
    harness.worker.active.clear()
    harness.fake_runner.gates.clear()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def restart(harness: Harness) -> None:
    """A new worker starts, and the jobs of the dead one are rescued."""
    dead = harness.worker.id
    harness.worker = harness.scheduler.worker = make_worker(harness)
    await register(harness.worker, harness.engine)
    await Maintenance(harness.engine, harness.worker.id).rescue_worker(dead)


def make_worker(harness: Harness) -> Worker:
    worker = Worker(harness.engine)
    worker.executor._isolated_places = asyncio.Semaphore(100_000)
    return worker


async def compare(url: str, first_seed: int, count: int) -> int:
    """Run and simulate installations; returns the number of slots whose verdict was the same."""
    harness = await open_harness(url, concurrency=100_000)
    harness.fake_runner.long, harness.fake_runner.first = lambda job: True, True
    harness.worker.executor._isolated_places = asyncio.Semaphore(100_000)
    try:
        installations = {seed: await install(harness, seed) for seed in range(first_seed, first_seed + count)}
        outages = random_outages(random.Random(f"outages {first_seed}"))
        forecast = {seed: await simulated(harness, each, outages) for seed, each in installations.items()}
        seconds = {name: span for each in installations.values() for name, span in each.seconds.items()}
        await run_live(harness, seconds, outages)
        same = 0
        for seed, each in installations.items():
            live = await harness.db.read(recorded, each.org_id)
            assert live == forecast[seed], f"seed {seed}, outages {outages}"
            same += sum(map(len, live.values()))
        return same
    finally:
        await crash(harness)
        await harness.db.close()


async def test_the_simulation_decides_as_the_engine_does(sqlite_template: Path, tmp_path: Path) -> None:
    """ROTA_TEST_SEEDS sets the number of installations."""
    same = 0
    for first_seed in range(0, SEEDS, BATCH_SEEDS):
        url = f"sqlite:///{tmp_path / f'{first_seed}.db'}"
        copy_sqlite(sqlite_template, url)
        same += await compare(url, first_seed, min(BATCH_SEEDS, SEEDS - first_seed))
    assert same > 10 * SEEDS


@pytest.mark.long
def test_a_year_of_a_thousand_schedules_takes_under_ten_seconds() -> None:
    """Of processor time, so that other tests do not count."""
    draw = random.Random(1)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    expected = []
    for position in range(1000):
        minute, hour, day = draw.randrange(60), draw.randrange(24), draw.choice(["* * *"] * 7 + ["* * 1", "1 * *"])
        body = {
            "name": f"s{position}", "target": "t", "timezone": draw.choice(["Europe/Oslo", "America/New_York", "UTC"]),
            "cron_expression": f"{minute} * * * *" if position % 50 == 0 else f"{minute} {hour} {day}",
        }  # fmt: skip
        schedule = parse_schedule(body, org_id="o", defaults={"task": Defaults()}, now=start, source="test", by=None)
        due = first_due(DueSchedule(schedule, None, 0, None, None), start)
        expected.append(Expected(due, timedelta(seconds=60)))
    began = process_time()
    result = simulate(expected, Scenario(TimeRange(start, start + timedelta(days=365)), places=50))
    assert process_time() - began < 10
    assert not result.truncated
    assert len(result.slots) > 400_000


@pytest.mark.parametrize("clean_url", ["postgresql"], indirect=True)
async def test_the_simulation_decides_as_the_engine_does_on_postgresql(clean_url: str) -> None:
    assert await compare(clean_url, 1_000_000, 30) > 200
