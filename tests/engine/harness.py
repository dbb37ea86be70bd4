"""The whole engine in one process, step by step, with a manual clock: a test advances days and reads the verdicts."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import select, update

from rota.core.clock import ManualClock
from rota.core.flow import Limits
from rota.core.ids import new_id
from rota.core.model import Job
from rota.core.schedule_form import Defaults
from rota.core.states import STATUSES_THAT_RAN, State, Status
from rota.core.timing import stored, triggers
from rota.core.timing.dst import TICK
from rota.db.connection import Database, open_database
from rota.db.dialect import Tx
from rota.db.statement import insert_rows
from rota.db.tables import clocks, jobs, orgs, runs, schedule_stats, schedules, slots, trigger_spans
from rota.db.wake import Wake
from rota.engine import jobs as queue
from rota.engine import workers
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.engine.runner import RunContext, Runner, Work
from rota.engine.scheduler import Scheduler
from rota.engine.slot_audit import audit
from rota.engine.worker import Worker

NINE = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)  # a Monday
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def at(clock: str) -> datetime:
    """Return a time of the first day: `at("9:05")`."""
    hour, minute, *second = (int(part) for part in clock.split(":"))
    return NINE.replace(hour=hour, minute=minute, second=second[0] if second else 0)


@dataclass
class FakeRunner:
    """Runner whose runs end when and how the test decides."""

    kind: str = "task"
    defaults: Defaults = field(default_factory=Defaults)
    under_grant: bool = False
    long: Callable[[Job], bool] = lambda job: False  # jobs that run until they are released
    stubborn: bool = False  # long jobs ignore their cancellation
    errors: list[BaseException | None] = field(default_factory=list)  # errors of the next runs; None is success
    began: list[Job] = field(default_factory=list)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    first: bool = False  # starts are stored before the run executes
    limits: Callable[[Job], Limits | None] = lambda job: None

    def routes(self) -> set[str]:
        return {self.kind}

    async def resolve(self, org_id: str, target: str, payload: Any) -> str:
        return self.kind

    def known_as(self, tx: Tx, org_id: str, target: str, payload: Any) -> set[str]:
        return {target}

    async def prepare(self, ctx: RunContext) -> Work:
        ctx.info.marks_first, ctx.info.limits = self.first, self.limits(ctx.job)
        return partial(self.execute, ctx)

    async def execute(self, ctx: RunContext) -> Any:
        self.began.append(ctx.job)
        if self.long(ctx.job):
            gate = self.gates[ctx.job.id] = asyncio.Event()
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    if not self.stubborn:
                        del self.gates[ctx.job.id]
                        raise
            self.gates.pop(ctx.job.id, None)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return "done"


@dataclass
class Harness:
    """Installation on a manual clock. `run_until` advances the clock while it is up, `start_at` while it is down."""

    engine: Engine
    clock: ManualClock
    fake_runner: FakeRunner
    scheduler: Scheduler
    worker: Worker
    org_id: str
    clean: bool = True  # whether the slot audit must pass at the end

    @property
    def db(self) -> Database:
        return self.engine.db

    # schedules

    async def schedule(self, name: str = "job", cron: str | None = "*/10 * * * *", **fields: Any) -> str:
        body = {"name": name, "target": name, "cron_expression": cron, **fields}
        return (await self.engine.create_schedules(self.org_id, [body]))[0].id

    async def edit(self, key: str = "job", **changes: Any) -> None:
        await self.engine.edit_schedule(self.org_id, key, changes)

    async def run_now(self, name: str = "job", **how: Any) -> str:
        return await self.engine.run_now(self.org_id, name, **how)

    async def backfill(self, since: datetime, until: datetime, name: str = "job", **how: Any) -> list[str]:
        filled = await self.engine.backfill(self.org_id, name, since=since, until=until, **how)
        return [str(clock_text(slot)) for slot in (filled.plan.slots if how.get("dry_run") else filled.fired)]

    # time

    async def run_until(self, until: datetime) -> None:
        """Advance the clock, running everything at its due time."""
        await self.run_due()
        while True:
            next_due_at = (await self.scheduler.poll()).next_due_at
            if next_due_at is None or next_due_at > until:
                break
            self.clock.set(max(next_due_at, self.clock.now()))
            await self.run_due()
        self.clock.set(until)
        await self.run_due()

    async def start_at(self, when: datetime) -> None:
        """Start after an outage that lasted until `when`."""
        self.clock.set(when)
        await self.run_due()

    async def run_due(self) -> None:
        await self.fire()
        await self.work()

    async def fire(self) -> None:
        for _ in range(100):
            next_due_at = (await self.scheduler.poll()).next_due_at
            if next_due_at is None or next_due_at > self.clock.now():
                return
            await self.scheduler.step()
        raise AssertionError("the scheduler is in an endless loop")

    async def fire_elsewhere(self) -> None:
        """Fire as another process would: the jobs wait in the queue."""
        self.scheduler.worker = None
        await self.fire()
        self.scheduler.worker = self.worker

    async def work(self) -> None:
        """Claim and run jobs until only long runs are left; store the results."""
        while True:
            self.worker.cancellation.cancel(await self.db.read(queue.cancel_requests, self.worker.id))
            more = await self.worker.prefetch.claim()
            await self.wait_until_idle()
            ended = bool(self.worker.completer.results)
            while self.worker.completer.results:
                await self.worker.completer.flush()
            if not more and not ended:
                return

    async def wait_until_idle(self) -> None:
        """Wait until only long runs are left."""
        for _ in range(1_000_000):
            if not self.is_busy():
                break
            await asyncio.sleep(0)

    def is_busy(self) -> bool:
        """Return whether a run has not yet ended, or reached the gate where long runs wait."""
        stops = not self.fake_runner.stubborn
        active = self.worker.active
        return any(job_id not in self.fake_runner.gates or (active[job_id].stopped_for and stops) for job_id in active)

    async def release(self, slot: str | None = None) -> None:
        """Let the long run of a slot end; all of them if None."""
        for job_id, gate in list(self.fake_runner.gates.items()):
            job = self.worker.active[job_id].attempt.job
            if slot is None or (job.slot is not None and clock_text(job.slot) == slot):
                gate.set()
                del self.fake_runner.gates[job_id]
        await self.work()

    # results

    async def verdicts(self, name: str = "job") -> list[str]:
        """Return each slot as text: its verdict, or the state of its job."""
        return await self.db.read(verdicts, name)

    async def fired_slots(self, name: str = "job") -> list[str]:
        """Return the slots whose runs have started, in order of start."""
        return [
            str(clock_text(job.slot)) for job in self.fake_runner.began if job.target == name and job.slot is not None
        ]

    async def planned(self, name: str = "job") -> tuple[str | None, str | None]:
        """Return next slot and next run time of the schedule's clock."""
        row = (await self.rows(select(clocks.c.next_slot, clocks.c.next_run_at).where(clock_of(name))))[0]
        return clock_text(row[0]), clock_text(row[1])

    async def history(self, name: str = "job") -> list[str]:
        """Return the runs as text: slot (or `manual`), attempt, status and reason."""
        stmt = select(runs).where(runs.c.target == name).order_by(runs.c.finished_at, runs.c.id)
        return [
            f"{clock_text(row.slot) or row.trigger} #{row.attempt} {row.status}"
            + (f": {row.reason}" if row.reason else "")
            for row in await self.rows(stmt)
        ]

    async def stats(self, name: str = "job") -> Any:
        return (
            await self.rows(
                select(schedule_stats, clocks.c.fired)
                .join(clocks, clocks.c.schedule_id == schedule_stats.c.schedule_id)
                .where(clock_of(name))
            )
        )[0]

    async def record(self, name: str = "job") -> Any:
        return (await self.rows(select(schedules).where(schedules.c.name == name)))[0]

    async def queue(self) -> list[Any]:
        return await self.rows(select(jobs).order_by(jobs.c.run_at, jobs.c.id))

    async def rows(self, stmt: Any) -> list[Any]:
        return await self.db.read(lambda tx: list(tx.execute(stmt)))

    async def write(self, stmt: Any) -> None:
        def step(tx: Tx) -> None:
            tx.execute(stmt)

        await self.db.tx(step)

    async def add_org(self, slug: str, **limits: Any) -> str:
        org = {"id": new_id(), "slug": slug, "name": slug, "created_at": self.clock.now(), **limits}
        await self.db.tx(insert_rows, orgs, [org])
        return str(org["id"])

    async def limit_org(self, **values: Any) -> None:
        await self.write(update(orgs).where(orgs.c.id == self.org_id).values(values))

    # invariants

    async def check(self) -> None:
        """Check EVERY_SLOT_HAS_ONE_VERDICT, by the slot audit and by an independent count."""
        if not self.clean:
            return
        report = await audit(self.db, self.org_id, None, None, self.clock.now())
        assert report["ok"], report["problems"]
        await self.db.read(count_slots, self.clock.now())

    async def close(self) -> None:
        self.worker.abandon()
        for run in list(self.worker.active.values()):
            if run.attempt.job.id in self.fake_runner.gates:
                self.fake_runner.gates[run.attempt.job.id].set()
        await asyncio.gather(*(run.task for run in self.worker.active.values() if run.task), return_exceptions=True)
        await self.db.close()


async def open_harness(
    url: str,
    start: datetime = NINE,
    more: Callable[[Database, ManualClock], list[Runner]] | None = None,
    **settings: Any,
) -> Harness:
    db, clock, fake_runner = open_database(url), ManualClock(start), FakeRunner()
    others = {runner.kind: runner for runner in (more(db, clock) if more else [])}
    engine = Engine(db, clock, Wake(), {"task": fake_runner, **others}, EngineSettings(**settings))
    org = {"id": new_id(), "slug": "default", "name": "Default", "created_at": start}
    await db.tx(insert_rows, orgs, [org])
    worker = Worker(engine)
    await register(worker, engine)
    scheduler = Scheduler(engine)
    scheduler.worker = worker
    return Harness(engine, clock, fake_runner, scheduler, worker, str(org["id"]))


async def register(worker: Worker, engine: Engine) -> None:
    def step(tx: Tx) -> None:
        workers.register(
            tx,
            worker=worker.id,
            pid=1,
            version="test",
            concurrency=50,
            kinds=sorted(engine.runners),
            routes=worker.registration.routes,
            queues=None,
            lease=timedelta(seconds=30),
            now=engine.clock.now(),
        )

    await engine.db.tx(step)
    worker.registration.registered = True


def clock_of(name: str) -> Any:
    return clocks.c.schedule_id == select(schedules.c.id).where(schedules.c.name == name).scalar_subquery()


def clock_text(instant: datetime | None) -> str | None:
    """Return a time of the first day as `9:05`, of a later day as `+1 9:05`."""
    if instant is None:
        return None
    days = (instant.date() - NINE.date()).days
    text = f"{instant:%-H:%M}" + (f":{instant:%S}" if instant.second else "")
    return f"{days:+} {text}" if days else text


def verdicts(tx: Tx, name: str) -> list[str]:
    of_schedule = slots.c.schedule_id.in_(select(schedules.c.id).where(schedules.c.name == name))
    return [verdict_text(tx, row) for row in tx.execute(select(slots).where(of_schedule).order_by(slots.c.slot)).all()]


def verdict_text(tx: Tx, row: Any) -> str:
    span = clock_text(row.slot)
    if row.last_slot is not None and row.last_slot != row.slot:
        span = f"{span}-{clock_text(row.last_slot)} x{row.count}"
    if row.verdict is not None:
        assert row.job_id is None or row.verdict != "missed"
        reason = f": {row.reason}" if row.reason else ""
        into = f" > {clock_text(row.into_slot)}" if row.into_slot is not None else ""
        return f"{span} {row.verdict}{reason}{into}"
    job = tx.execute(select(jobs).where(jobs.c.id == row.job_id)).one_or_none()
    if job is not None:
        return f"{span} ({job.state})"
    last = tx.execute(select(runs).where(runs.c.job_id == row.job_id).order_by(runs.c.attempt.desc())).first()
    assert last is not None, f"slot {row.slot} has neither a job nor a run"
    status = Status(last.status)
    reason = f": {last.reason}" if last.reason else ""
    return f"{span} ran" if status in STATUSES_THAT_RAN else f"{span} {status.value}{reason}"


def count_slots(tx: Tx, now: datetime) -> None:
    """Compare the slots of each trigger over its recorded spans with the rows; check that no slot has two jobs."""
    for clock in tx.execute(select(clocks)).all():
        floor = clock.decided_until or NINE - 10_000 * DAY
        edge = now if clock.next_slot is None else min(now, clock.next_slot - TICK)
        spans = select(trigger_spans).where(trigger_spans.c.schedule_id == clock.schedule_id)
        expected = [
            slot
            for span in tx.execute(spans.order_by(trigger_spans.c.from_at)).all()
            for slot in triggers.slots_between(
                stored.load(span.timing), max(span.from_at, floor), min(span.until_at or edge, edge), span.from_at
            )
        ]
        rows: Sequence[Any] = tx.execute(
            select(slots).where(slots.c.schedule_id == clock.schedule_id).order_by(slots.c.slot)
        ).all()
        starts = [row.slot for row in rows]
        covered = {row.slot: 0 for row in rows}
        for slot in expected:
            row = rows[max(0, bisect_right(starts, slot) - 1)] if rows else None
            assert row is not None, f"slot {slot} has no row"
            assert row.slot <= slot <= (row.last_slot or row.slot), f"slot {slot} has no row"
            covered[row.slot] += 1
        for row in rows:
            if row.count is not None and floor < row.slot and (row.last_slot or row.slot) <= edge:
                outside = covered[row.slot] == 0 and row.job_id is not None  # a backfill outside the trigger's spans
                assert covered[row.slot] == row.count or outside, (
                    f"{row.slot} counts {row.count}, not {covered[row.slot]}"
                )
        job_slots = tx.execute(select(jobs.c.slot).where(jobs.c.schedule_id == clock.schedule_id)).scalars().all()
        fired = [slot for slot in job_slots if slot is not None]
        assert len(fired) == len(set(fired))


def states(rows: Sequence[Any]) -> list[State]:
    return [State(row.state) for row in rows]
