"""Fires due schedules: polls for what is due soon, sleeps until then, and turns slots into jobs, a batch per
transaction.

No leader: every worker process has a scheduler, for the kinds that it can run. The row of a schedule's clock decides
which of them fires a slot.
"""

import asyncio
import math
import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice, takewhile

import structlog

from rota.core.clock import real_sleep, stopwatch
from rota.core.errors import DataRefused, Unavailable
from rota.core.model import DueSchedule, PlannedSchedule
from rota.core.plan import plan_again, plan_at, plan_of_late
from rota.core.policy import Misfire
from rota.db.dialect import Tx
from rota.engine import firing, jobs, usual_runs
from rota.engine.commands import Engine
from rota.engine.freezes import WindowsByOrg
from rota.engine.worker import Worker
from rota.engine.worker.prefetch import EARLY_FIRE, Reservation
from rota.engine.worker.registration import POLL_SECONDS

FIRE_BATCH_ROWS = 500  # also bounds the advisory locks of one transaction
WORKER_BATCH_ROWS = 50  # the smallest batch that is cut to the worker's capacity
POLL_LIMIT_ROWS = 5_000  # schedules of one poll: as many as can be fired in a second
POLL_AHEAD = timedelta(seconds=1)  # schedules due so soon are read and planned before their due time
POLL_LEAD = timedelta(seconds=0.5)  # how long before the due time of a schedule it is polled

Broken = tuple[str, int, str]  # a schedule that cannot be evaluated: id, revision, error

log = structlog.get_logger("rota.scheduler")


@dataclass(frozen=True, slots=True)
class DueBatch:
    """What one poll read: schedules with their plans, and when more is due."""

    planned: Sequence[PlannedSchedule]  # due now or very soon, earliest first
    broken: Sequence[Broken]
    next_job_at: datetime | None  # when the first delayed job is due
    next_schedule_at: datetime | None  # when the first schedule is due that is not among `planned`
    truncated: bool  # more schedules are due: poll again when these are fired
    may_fire_early: bool = True  # False after a schedule could not be fired before its due time

    def is_due(self, now: datetime) -> bool:
        """Whether a schedule is due."""
        return bool(self.planned) and self.planned[0].due.is_due(now)

    @property
    def first_at(self) -> datetime | None:
        return self.planned[0].due.run_at if self.planned else None

    @property
    def stale_at(self) -> datetime | None:
        """When to poll again."""
        return None if self.next_schedule_at is None else self.next_schedule_at - POLL_LEAD

    @property
    def next_due_at(self) -> datetime | None:
        """When the first schedule or job is due."""
        return earliest(self.first_at, self.next_job_at, self.next_schedule_at)


class Scheduler:
    """`orgs` are the slugs of the orgs whose schedules it fires; None: of all."""

    def __init__(self, engine: Engine, orgs: Sequence[str] | None = None) -> None:
        self.engine, self.db, self.clock, self.orgs = engine, engine.db, engine.clock, orgs
        self.worker: Worker | None = None  # of this process: jobs that it has places for are fired as running
        self.stopping = False
        self.polled_at = stopwatch()

    @property
    def kinds(self) -> list[str]:
        """What can be run here. Slots of other kinds pass as if no process were up: no worker would run their jobs."""
        return sorted(kind for kind, runner in self.engine.runners.items() if runner.routes())

    def trouble(self) -> str | None:
        """Why it does not fire, None if it does: no poll for longer than two poll intervals."""
        silent = stopwatch() - self.polled_at
        return f"has not polled for due schedules for {silent:.0f} s" if silent > 2 * POLL_SECONDS else None

    async def run(self) -> None:
        """Poll, fire and sleep until `stopping` is set. Tries again while the database is unavailable."""
        wake, batch = self.engine.wake.clock, None
        while not self.stopping:
            try:
                if batch is None:
                    wake.clear()
                    batch = await self.poll()
                batch = await self.fire_due(batch, EARLY_FIRE)
                if batch is not None and not batch.is_due(self.clock.now()):
                    woken = await self.clock.wait(wake, self.sleep_seconds(batch))
                    batch = None if woken else batch
            except Unavailable as error:
                log.debug("cannot fire; trying again", error=error.message)
                batch = None
                await real_sleep(random.uniform(0.2, 1))
            except Exception:  # whatever it is, the other schedules must go on
                log.exception("firing failed; trying again")
                batch = None
                await real_sleep(random.uniform(1, 2))

    async def step(self) -> bool:
        """Poll once and fire what is due; True if there may be more."""
        batch = await self.poll()
        return await self.fire_due(batch) is not batch

    async def poll(self) -> DueBatch:
        """Read the schedules that are due within POLL_AHEAD and plan each for its due time, so that only the
        transaction is left to do then."""
        soon = self.clock.now() + POLL_AHEAD
        rows, windows, next_job_at, next_schedule_at, truncated = await self.db.read(
            read_due, self.kinds, soon, self.orgs
        )
        self.engine.metrics.polled_at = self.polled_at = stopwatch()
        planned: list[PlannedSchedule] = []
        broken: list[Broken] = []
        for start in range(0, len(rows), FIRE_BATCH_ROWS):
            due_schedules, unreadable = firing.due_schedules_of(rows[start : start + FIRE_BATCH_ROWS], windows)
            broken += unreadable
            for due in due_schedules:
                try:
                    plan = plan_at(due, self.clock.now(), self.engine.settings.misfire_grace)
                    planned.append(PlannedSchedule(due, plan))
                except Exception as error:  # ONE_BAD_ROW_STOPS_NO_LOOP
                    broken.append(broken_of(due, error))
            await real_sleep(0)  # lets other tasks of this process run
        return DueBatch(planned, broken, next_job_at, next_schedule_at, truncated)

    def sleep_seconds(self, batch: DueBatch) -> float:
        """How long to sleep: until something of the batch is due, or it is time to poll again."""
        first_at = (
            batch.first_at - EARLY_FIRE if batch.first_at is not None and batch.may_fire_early else batch.first_at
        )
        wake_at = earliest(first_at, batch.next_job_at, batch.stale_at)
        ahead = (wake_at - self.clock.now()).total_seconds() if wake_at is not None else math.inf
        return max(0.0, min(ahead, self.polled_at + POLL_SECONDS - stopwatch()))

    async def fire_due(self, batch: DueBatch, early: timedelta = timedelta(0)) -> DueBatch | None:
        """Fire what is due in a batch; schedules up to `early` before their due time, if the worker has places.
        Returns what is left of the batch, or None if it is time to poll again."""
        batch = await self.release_jobs(batch)
        for schedule_id, revision, error in batch.broken:
            await self.mark_broken(schedule_id, revision, error)
            batch = replace(batch, broken=())
        batch = await self.fire_schedules(batch, early)
        now = self.clock.now()
        if batch.is_due(now):
            return batch
        if batch.truncated and not batch.planned:
            return None
        expired = stopwatch() - self.polled_at >= POLL_SECONDS
        return None if expired or (batch.stale_at or now + POLL_AHEAD) <= now else batch

    async def release_jobs(self, batch: DueBatch) -> DueBatch:
        """Make delayed jobs ready whose time has come."""
        now = self.clock.now()
        if batch.next_job_at is None or batch.next_job_at > now:
            return batch
        if await self.db.tx(jobs.release_due, now) > 0:
            self.engine.wake.signal("ready")
        return replace(batch, next_job_at=None, next_schedule_at=now)

    async def fire_schedules(self, batch: DueBatch, early: timedelta) -> DueBatch:
        """Fire the schedules of a batch that are due; returns the batch without them."""
        now = self.clock.now()
        until = now + early if batch.may_fire_early and self.worker is not None else now
        first = islice(batch.planned, 2 * FIRE_BATCH_ROWS)
        planned = list(takewhile(lambda planned: planned.due.is_due(until), first))
        if not planned:
            return batch
        planned = planned[: await self.batch_size(len(planned))]
        now = self.clock.now()  # it may have waited for capacity
        next_run_at = await self.fire_concurrently(planned, now)
        early_left = [
            pair for pair in planned if pair.due.schedule.id not in next_run_at and not pair.due.is_due(now)
        ]  # no place for them now: fired at their due time
        changed = len(next_run_at) + len(early_left) < len(planned)  # fired by another process, or edited
        return replace(
            batch,
            planned=[*early_left, *batch.planned[len(planned) :]],
            next_schedule_at=earliest(*next_run_at.values(), batch.next_schedule_at, now if changed else None),
            may_fire_early=not early_left,
        )

    async def batch_size(self, count: int) -> int:
        """How many of `count` schedules to fire in one step: as many as the worker has capacity for, if that is enough
        for a batch, because their jobs need no claim."""
        if self.worker is None:
            return count
        capacity = await self.worker.await_capacity(min(count, WORKER_BATCH_ROWS))
        return capacity if capacity >= WORKER_BATCH_ROWS else count

    async def fire_concurrently(self, planned: Sequence[PlannedSchedule], now: datetime) -> dict[str, datetime]:
        """Fire a large batch in two halves: while the database works on one, this process prepares the other. Returns
        as `fire_batch`."""
        half = len(planned) if len(planned) <= FIRE_BATCH_ROWS // 2 else (len(planned) + 1) // 2
        halves = [planned[start : start + half] for start in range(0, len(planned), half)]
        results = await asyncio.gather(*(self.fire_batch(part, now) for part in halves), return_exceptions=True)
        next_run_at: dict[str, datetime] = {}
        for result in results:
            if isinstance(result, BaseException):
                raise result
            next_run_at |= result
        return next_run_at

    async def fire_batch(self, planned: Sequence[PlannedSchedule], now: datetime) -> dict[str, datetime]:
        """Fire schedules that are unchanged since the poll. Returns when each of them is due next, by its id; `now` if
        that must be polled."""
        frozen = [pair.due for pair in planned if pair.due.frozen(now)]
        if frozen:
            await self.db.tx(firing.hold_frozen, frozen)
        current = await self.plan_current([pair for pair in planned if not pair.due.frozen(now)], now)
        if any(len(pair.plan.fires) > 1 for pair in current):
            current = await self.plan_catch_ups(current, now)
        if self.engine.tracing is not None:
            current = self.engine.tracing.trace_fires(current)
        fired = await self.fire_planned(current, now)
        return {due.schedule.id: plan.next_run_at or now for due, plan in current if due.schedule.id in fired}

    async def plan_current(self, planned: Sequence[PlannedSchedule], now: datetime) -> list[PlannedSchedule]:
        """The plans as they are valid now; those that time has overtaken are made again."""
        current = []
        for pair in planned:
            try:
                current.append(plan_again(pair, now, self.engine.settings.misfire_grace))
            except Exception as error:  # ONE_BAD_ROW_STOPS_NO_LOOP
                await self.mark_broken(*broken_of(pair.due, error))
        return current

    async def plan_catch_ups(self, planned: list[PlannedSchedule], now: datetime) -> list[PlannedSchedule]:
        """Replace plans whose late slots exceed a limit by plans in which they wait for an approval, and those whose
        schedule spreads them. Only plans that fire several slots are looked at."""
        settings = self.engine.settings
        checked = []
        for pair in planned:
            due, schedule = pair.due, pair.due.schedule
            has_policy = settings.catch_up.any or schedule.catch_up_spread or schedule.catch_up_approval_slots
            if has_policy and len(pair.plan.fires) > 1 and schedule.misfire is Misfire.ALL:
                usual = await self.db.read(usual_runs.usual_run, schedule.org_id, schedule.id)
                limits, grace = settings.catch_up, settings.misfire_grace
                planned_late = plan_of_late(due, now, grace, usual, limits, schedule.catch_up_spread)
                pair = pair if planned_late is None else PlannedSchedule(due, planned_late)
            checked.append(pair)
        return checked

    async def fire_planned(self, planned: Sequence[PlannedSchedule], now: datetime) -> set[str]:
        """Fire in one transaction; returns the ids of schedules that were unchanged since the poll. A batch with a row
        that the database refuses is halved until that row is alone: its slots are recorded as failed."""
        if not planned:
            return set()
        try:
            async with self.reserve(planned, now) as reservation:
                fired = await self.db.tx(firing.fire, planned, now, reservation.lease)
                reservation.deliver(fired.leased_jobs)
                if self.engine.tracing is not None:
                    self.engine.tracing.fired(fired.fires)
        except DataRefused as error:
            if len(planned) > 1:
                half = len(planned) // 2
                return await self.fire_planned(planned[:half], now) | await self.fire_planned(planned[half:], now)
            due, plan = planned[0]
            log.error("slot could not be fired; skipped", schedule=due.schedule.id, error=error.message)
            await self.db.tx(firing.fail_slots, due, plan, error.message, now)
            return set()
        self.engine.wake.signal("ready" if len(fired.leased_jobs) < len(fired.fires) else "taken")
        return set(fired.schedule_ids)

    def reserve(self, planned: Sequence[PlannedSchedule], now: datetime) -> AbstractAsyncContextManager[Reservation]:
        """Reserve places of this process's worker for the jobs of these plans; none without a worker."""
        if self.worker is None:
            return nullcontext(Reservation(None))
        until = max(now, *(due.run_at or now for due, _ in planned))
        return self.worker.reserve(sum(len(plan.fires) for _, plan in planned), until)

    async def mark_broken(self, schedule_id: str, revision: int, error: str) -> None:
        log.error("schedule cannot be evaluated; marked broken until it is edited", schedule=schedule_id, error=error)
        await self.db.tx(firing.mark_broken, schedule_id, revision, error, self.clock.now())


def read_due(
    tx: Tx, kinds: Sequence[str], soon: datetime, orgs: Sequence[str] | None = None
) -> tuple[Sequence[tuple[object, ...]], WindowsByOrg, datetime | None, datetime | None, bool]:
    """The rows of schedules that are due by `soon`, and the freeze windows of their orgs; when the first delayed job is
    due, and the first schedule after `soon`; and whether there are more rows than one poll reads."""
    rows = firing.read_clocks(tx, kinds, soon, POLL_LIMIT_ROWS, orgs)
    truncated = len(rows) == POLL_LIMIT_ROWS
    windows = firing.windows_of(tx, rows, soon)
    return rows, windows, jobs.next_due(tx), None if truncated else firing.next_due_at(tx, kinds, soon), truncated


def broken_of(due: DueSchedule, error: Exception) -> Broken:
    return due.schedule.id, due.schedule.revision, f"{type(error).__name__}: {error}"


def earliest(*instants: datetime | None) -> datetime | None:
    return min((instant for instant in instants if instant is not None), default=None)
