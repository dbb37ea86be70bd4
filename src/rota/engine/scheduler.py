"""Fires what is due: sleeps until the earliest due moment, then turns slots into jobs, one transaction per batch.

No leader: every worker process has one of these, for the kinds that it can run. The clock's row decides who fires.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from rota.core.clock import pause, stopwatch
from rota.core.errors import DataRefused, Unavailable
from rota.core.model import Due, Fired, Lease, Plan
from rota.core.plan import plan
from rota.engine.engine import Engine
from rota.engine.worker import Worker
from rota.store import jobs, schedules
from rota.store.dialect import Tx

BATCH = 500  # also bounds the advisory locks that one transaction takes
SAFETY_LOOK = timedelta(seconds=30)  # the longest sleep: NOTIFY_IS_A_HINT
AHEAD = timedelta(seconds=1)  # what is due so soon is read beforehand: at its moment only the fire is left to do
LEAD = timedelta(seconds=0.5)  # how long before its moment that is

log = structlog.get_logger("rota.scheduler")


class Scheduler:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.db, self.clock = engine, engine.db, engine.clock
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
        wake = self.engine.wake.clock
        while not self.stopping:
            try:
                wake.clear()
                view = await self.look()
                if not await self.act(view) and not await self.clock.wait(wake, self.rest(view)):
                    await self.act(view)
            except Unavailable as error:
                log.warning("cannot fire; trying again", error=error.message)
                await pause(random.uniform(0.2, 1))
            except Exception:  # whatever it is, the other schedules must go on
                log.exception("firing failed; trying again")
                await pause(random.uniform(1, 2))

    async def step(self) -> bool:
        """Do what is due now; True if there may be more."""
        return await self.act(await self.look())

    async def look(self) -> "View":
        view = await self.db.read(read_view, self.kinds, self.clock.now() + AHEAD)
        self.engine.meter.looked = self.looked = stopwatch()
        return view

    def rest(self, view: "View") -> float:
        """Seconds to sleep: until the first moment that is known, or until it is near enough to be read."""
        if view.moment is None:
            return SAFETY_LOOK.total_seconds()
        ahead = view.moment - self.clock.now() - (LEAD if view.moment == view.then else timedelta(0))
        return max(0.0, min(ahead, SAFETY_LOOK).total_seconds())

    async def act(self, view: "View") -> bool:
        """Do what of it is due by now; True if that was anything, and so what comes next is to be read anew."""
        now = self.clock.now()
        moved = await self.db.tx(jobs.due, now) if view.jobs_at is not None and view.jobs_at <= now else 0
        if moved:
            self.engine.wake.signal("ready")
        for schedule_id, revision, why in view.broken:
            await self.put_aside(schedule_id, revision, why)
        due = [one for one in view.due if one.run_at is not None and one.run_at <= now]
        await self.carry_out(due, now)
        return bool(moved or view.broken or due)

    async def carry_out(self, due: Sequence[Due], now: datetime) -> None:
        """Fire schedules that are due, as far as they are still as they were read."""
        frozen = [one for one in due if one.frozen(now)]
        if frozen:
            await self.db.tx(schedules.hold, frozen)
        planned = []
        for one in due:
            if not one.frozen(now):
                try:
                    planned.append((one, plan(one, now, self.engine.settings.misfire_grace)))
                except Exception as error:  # ONE_BAD_ROW_STOPS_NO_LOOP
                    await self.put_aside(one.schedule.id, one.schedule.revision, f"{type(error).__name__}: {error}")
        if self.engine.tracing is not None:
            planned = self.engine.tracing.fire(planned)
        if await self.fire(planned, now):
            self.engine.wake.signal("ready")

    async def fire(self, planned: Sequence[tuple[Due, Plan]], now: datetime) -> int:
        """Carry out plans. Where the database refuses a row, halve the batch until the culprit stands alone."""
        if not planned:
            return 0

        async def fire(lease: Lease | None) -> Fired:
            fired = await self.db.tx(schedules.fire, planned, now, lease)
            if self.engine.tracing is not None:
                self.engine.tracing.fired(fired.made)
            return fired

        try:
            fired = await (self.worker.take_fired(fire) if self.worker is not None else fire(None))
            self.engine.meter.fired += len(fired.made)
            return fired.won
        except DataRefused as error:
            if len(planned) > 1:
                half = len(planned) // 2
                return await self.fire(planned[:half], now) + await self.fire(planned[half:], now)
            one, what = planned[0]
            log.error("slot could not be fired; skipped", schedule=one.schedule.id, error=error.message)
            await self.db.tx(schedules.fail_slots, one, what, error.message, now)
            return 0

    async def put_aside(self, schedule_id: str, revision: int, why: str) -> None:
        log.error("schedule cannot be evaluated; marked broken until it is edited", schedule=schedule_id, error=why)
        await self.db.tx(schedules.mark_broken, schedule_id, revision, why, self.clock.now())


@dataclass(frozen=True, slots=True)
class View:
    """What comes due, as it was read."""

    due: Sequence[Due]  # schedules, by now or very soon, earliest first
    broken: Sequence[tuple[str, int, str]]  # those that cannot be read: id, revision, why
    jobs_at: datetime | None  # when the first waiting job is due
    then: datetime | None  # when a schedule is due, if none is soon

    @property
    def moment(self) -> datetime | None:
        """When something comes due."""
        moments = (self.due[0].run_at if self.due else self.then, self.jobs_at)
        return min((moment for moment in moments if moment is not None), default=None)


def read_view(tx: Tx, kinds: Sequence[str], soon: datetime) -> View:
    due, broken = schedules.due(tx, kinds, soon, BATCH)
    return View(due, broken, jobs.next_due(tx), None if due else schedules.next_run(tx, kinds))
