"""Fires what is due: sleeps until the earliest due moment, then turns slots into jobs, one transaction per batch.

No leader: every worker process has one of these, for the kinds that it can run. The clock's row decides who fires.
"""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any

import structlog

from rota.core.clock import real_sleep, stopwatch
from rota.core.errors import DataRefused, Unavailable
from rota.core.model import DueSchedule, Plan
from rota.core.plan import plan_at
from rota.db.dialect import Tx
from rota.engine import jobs, schedules
from rota.engine.commands import Engine
from rota.engine.worker import Worker
from rota.engine.worker.prefetch import EARLY_FIRE, Reservation

BATCH = 500  # also bounds the advisory locks that one transaction takes
MANY = 50  # so many are worth a transaction of their own
CROWD = 5_000  # the most schedules that are read at once: as many as can be fired in a second
SAFETY_LOOK = timedelta(seconds=30)  # the longest sleep: NOTIFY_IS_A_HINT
AHEAD = timedelta(seconds=1)  # what is due so soon is read beforehand: at its moment only the fire is left to do
LEAD = timedelta(seconds=0.5)  # how long before its moment that is

log = structlog.get_logger("rota.scheduler")


class Scheduler:
    def __init__(self, engine: Engine, orgs: Sequence[str] | None = None) -> None:
        """`orgs` are the slugs of the orgs whose schedules it fires; None: of all."""
        self.engine, self.db, self.clock, self.orgs = engine, engine.db, engine.clock, orgs
        self.worker: Worker | None = None  # of this process: it may have what is fired at once
        self.stopping = False
        self.looked = stopwatch()  # when it last knew what is due

    @property
    def kinds(self) -> list[str]:
        """What can be run here. Slots of other kinds pass as if nobody was up: their jobs would wait for ever."""
        return sorted(kind for kind, runner in self.engine.runners.items() if runner.routes())

    def trouble(self) -> str | None:
        """What is wrong with it, if anything: a scheduler that has not looked for long fires nothing."""
        silent = stopwatch() - self.looked
        return (
            f"has not looked for due schedules for {silent:.0f} s" if silent > 2 * SAFETY_LOOK.total_seconds() else None
        )

    async def run(self) -> None:
        """Fire for ever. A database out of reach is waited for."""
        wake, view = self.engine.wake.clock, None
        while not self.stopping:
            try:
                if view is None:
                    wake.clear()
                    view = await self.look()
                view = await self.act(view, EARLY_FIRE)
                if view is not None and not view.is_due(self.clock.now()):
                    view = None if await self.clock.wait(wake, self.rest(view)) else view
            except Unavailable as error:
                log.debug("cannot fire; trying again", error=error.message)
                view = None
                await real_sleep(random.uniform(0.2, 1))
            except Exception:  # whatever it is, the other schedules must go on
                log.exception("firing failed; trying again")
                view = None
                await real_sleep(random.uniform(1, 2))

    async def step(self) -> bool:
        """Do what is due now; True if there may be more."""
        view = await self.look()
        return await self.act(view) is not view

    async def look(self) -> "View":
        rows, jobs_at, then, cut = await self.db.read(read_rows, self.kinds, self.clock.now() + AHEAD, self.orgs)
        self.engine.meter.looked = self.looked = stopwatch()
        due: list[DueSchedule] = []
        broken: list[tuple[str, int, str]] = []
        for at in range(0, len(rows), BATCH):
            found, unreadable = schedules.due_of(rows[at : at + BATCH])
            broken += unreadable
            for one in found:  # what it will do is thought of now: at its moment there is enough else to do
                try:
                    due.append(replace(one, planned=plan_at(one, self.clock.now(), self.engine.settings.misfire_grace)))
                except Exception as error:  # ONE_BAD_ROW_STOPS_NO_LOOP
                    broken.append((one.schedule.id, one.schedule.revision, f"{type(error).__name__}: {error}"))
            await real_sleep(0)  # others in this process have to go on
        return View(due, broken, jobs_at, then, cut)

    def rest(self, view: "View") -> float:
        """Seconds to sleep: until the first moment that is known, or until the view has to be read anew."""
        first = view.first - EARLY_FIRE if view.first is not None and view.ahead else view.first
        moments = [moment for moment in (first, view.jobs_at, view.stale_at) if moment is not None]
        ahead = (min(moments) - self.clock.now()).total_seconds() if moments else math.inf
        return max(0.0, min(ahead, self.looked + SAFETY_LOOK.total_seconds() - stopwatch()))

    async def act(self, view: "View", early: timedelta = timedelta(0)) -> "View | None":
        """Do what of it is due by now. What is left of it, or None if it has to be read anew."""
        now = self.clock.now()
        soon = now + early if view.ahead and self.worker is not None else now
        if view.jobs_at is not None and view.jobs_at <= now:
            if await self.db.tx(jobs.due, now) > 0:
                self.engine.wake.signal("ready")
            view = replace(view, jobs_at=None, then=now)
        for schedule_id, revision, why in view.broken:
            await self.put_aside(schedule_id, revision, why)
            view = replace(view, broken=())
        due = list(takewhile(lambda one: one.is_due(soon), islice(view.due, 2 * BATCH)))
        if due:
            due = due[: await self.portion(len(due))]
            now = self.clock.now()  # it may have waited
            fired = await self.carry_out_all(due, now)
            later = [one for one in due if one.schedule.id not in fired and not one.is_due(now)]
            lost = len(fired) + len(later) < len(due)  # others were quicker, or it has changed
            then = min(
                (at for at in (*fired.values(), view.then, now if lost else None) if at is not None), default=None
            )
            # what could not be fired ahead is fired at its moment
            view = replace(view, due=[*later, *view.due[len(due) :]], then=then, ahead=not later)
        if view.is_due(now):
            return view
        if view.cut and not view.due:
            return None
        old = stopwatch() - self.looked >= SAFETY_LOOK.total_seconds()
        return None if old or (view.stale_at or now + AHEAD) <= self.clock.now() else view

    async def portion(self, count: int) -> int:
        """How many of so many to fire at once: what the worker can have without the way through a claim, if it has time
        for many."""
        space = 0 if self.worker is None else await self.worker.prefetch.await_capacity(min(count, MANY))
        return space if space >= MANY else count

    async def carry_out_all(self, due: Sequence[DueSchedule], now: datetime) -> dict[str, datetime]:
        """Many in two parts: while the database works on the one, the other is made ready here."""
        half = len(due) if len(due) <= BATCH // 2 else (len(due) + 1) // 2
        parts = [due[at : at + half] for at in range(0, len(due), half)]
        found = await asyncio.gather(*(self.carry_out(part, now) for part in parts), return_exceptions=True)
        fired: dict[str, datetime] = {}
        for one in found:
            if isinstance(one, BaseException):
                raise one
            fired |= one
        return fired

    async def carry_out(self, due: Sequence[DueSchedule], now: datetime) -> dict[str, datetime]:
        """Fire schedules that are due, as far as they are still as they were read: when each of them is due again, or
        now if that has to be read."""
        frozen = [one for one in due if one.frozen(now)]
        if frozen:
            await self.db.tx(schedules.hold, frozen)
        planned = []
        for one in due:
            if not one.frozen(now):
                try:
                    planned.append((one, plan_at(one, now, self.engine.settings.misfire_grace)))
                except Exception as error:  # ONE_BAD_ROW_STOPS_NO_LOOP
                    await self.put_aside(one.schedule.id, one.schedule.revision, f"{type(error).__name__}: {error}")
        if self.engine.tracing is not None:
            planned = self.engine.tracing.fire(planned)
        won = await self.fire(planned, now)
        return {one.schedule.id: what.next_run_at or now for one, what in planned if one.schedule.id in won}

    async def fire(self, planned: Sequence[tuple[DueSchedule, Plan]], now: datetime) -> set[str]:
        """Carry out plans; the ids of schedules that were still as read. Where the database refuses a row, halve the
        batch until the culprit stands alone."""
        if not planned:
            return set()
        try:
            async with self.reserve(planned, now) as reservation:
                fired = await self.db.tx(schedules.fire, planned, now, reservation.lease)
                reservation.deliver(fired.leased_jobs)
                if self.engine.tracing is not None:
                    self.engine.tracing.fired(fired.fires)
            self.engine.meter.fired += len(fired.fires)
            self.engine.wake.signal("ready" if len(fired.leased_jobs) < len(fired.fires) else "taken")
            return set(fired.schedule_ids)
        except DataRefused as error:
            if len(planned) > 1:
                half = len(planned) // 2
                return await self.fire(planned[:half], now) | await self.fire(planned[half:], now)
            one, what = planned[0]
            log.error("slot could not be fired; skipped", schedule=one.schedule.id, error=error.message)
            await self.db.tx(schedules.fail_slots, one, what, error.message, now)
            return set()

    @asynccontextmanager
    async def reserve(self, planned: Sequence[tuple[DueSchedule, Plan]], now: datetime) -> AsyncIterator[Reservation]:
        """Places of this process's worker for the jobs of these plans; none without a worker."""
        if self.worker is None:
            yield Reservation(None)
            return
        until = max(now, *(due.run_at or now for due, _ in planned))
        async with self.worker.reserve(sum(len(plan.fires) for _, plan in planned), until) as reservation:
            yield reservation

    async def put_aside(self, schedule_id: str, revision: int, why: str) -> None:
        log.error("schedule cannot be evaluated; marked broken until it is edited", schedule=schedule_id, error=why)
        await self.db.tx(schedules.mark_broken, schedule_id, revision, why, self.clock.now())


@dataclass(frozen=True, slots=True)
class View:
    """What comes due, as it was read."""

    due: Sequence[DueSchedule]  # schedules, by now or very soon, earliest first
    broken: Sequence[tuple[str, int, str]]  # those that cannot be read: id, revision, why
    jobs_at: datetime | None  # when the first waiting job is due
    then: datetime | None  # when the first schedule is due that is not among them
    cut: bool  # there are more, to be read when these are done
    ahead: bool = True  # what is due may be fired a little ahead of its moment

    def is_due(self, now: datetime) -> bool:
        """Whether there is something to fire."""
        return bool(self.due) and self.due[0].is_due(now)

    @property
    def first(self) -> datetime | None:
        return self.due[0].run_at if self.due else None

    @property
    def stale_at(self) -> datetime | None:
        return None if self.then is None else self.then - LEAD

    @property
    def moment(self) -> datetime | None:
        """When something comes due."""
        moments = (self.first, self.jobs_at, self.then)
        return min((moment for moment in moments if moment is not None), default=None)


def read_rows(
    tx: Tx, kinds: Sequence[str], soon: datetime, orgs: Sequence[str] | None = None
) -> tuple[Sequence[Any], datetime | None, datetime | None, bool]:
    """The schedules that come due so soon; when the first waiting job does, and the first schedule behind them; and
    whether these are only the first of them."""
    rows = schedules.due(tx, kinds, soon, CROWD, orgs)
    cut = len(rows) == CROWD
    return rows, jobs.next_due(tx), None if cut else schedules.next_run(tx, kinds, soon), cut
