"""Fires what is due: sleeps until the earliest due moment, then turns slots into jobs, one transaction per batch.

No leader: every worker process has one of these, for the kinds that it can run. The clock's row decides who fires.
"""

import random
from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog

from rota.core.clock import pause, stopwatch
from rota.core.errors import DataRefused, Unavailable
from rota.core.model import Due, Plan
from rota.core.plan import plan
from rota.engine.engine import Engine
from rota.store import jobs, schedules
from rota.store.dialect import Tx

BATCH = 500  # also bounds the advisory locks that one transaction takes
SAFETY_LOOK = timedelta(seconds=30)  # the longest sleep: NOTIFY_IS_A_HINT

log = structlog.get_logger("rota.scheduler")


class Scheduler:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.db, self.clock = engine, engine.db, engine.clock
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
                while await self.step():
                    pass
                moment = await self.db.read(next_moment, self.kinds)
                self.engine.meter.looked = self.looked = stopwatch()
            except Unavailable as error:
                log.warning("cannot fire; trying again", error=error.message)
                await pause(random.uniform(0.2, 1))
                continue
            except Exception:  # whatever it is, the other schedules must go on
                log.exception("firing failed; trying again")
                await pause(random.uniform(1, 2))
                continue
            now = self.clock.now()
            ahead = SAFETY_LOOK if moment is None else min(moment - now, SAFETY_LOOK)
            if ahead > timedelta(0):
                await self.clock.wait(wake, ahead.total_seconds())

    async def step(self) -> bool:
        """Do what is due now; True if there may be more."""
        now = self.clock.now()
        late_jobs, due, broken = await self.db.read(look, self.kinds, now)
        moved = await self.db.tx(jobs.due, now) if late_jobs else 0
        for schedule_id, revision, why in broken:
            await self.put_aside(schedule_id, revision, why)
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
        won = await self.fire(planned, now)
        if moved or won:
            self.engine.wake.signal("ready")
        return len(due) + len(broken) >= BATCH or moved >= jobs.CHUNK

    async def fire(self, planned: Sequence[tuple[Due, Plan]], now: datetime) -> int:
        """Carry out plans. Where the database refuses a row, halve the batch until the culprit stands alone."""
        if not planned:
            return 0
        try:
            won, fired = await self.db.tx(schedules.fire, planned, now)
            self.engine.meter.fired += fired
            return won
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


def look(tx: Tx, kinds: Sequence[str], now: datetime) -> tuple[bool, list[Due], list[tuple[str, int, str]]]:
    """Read before a write lock is taken: are jobs due, which schedules are, and which of those cannot be read?"""
    moment = jobs.next_due(tx)
    due, broken = schedules.due(tx, kinds, now, BATCH)
    return moment is not None and moment <= now, due, broken


def next_moment(tx: Tx, kinds: Sequence[str]) -> datetime | None:
    """When something comes due: a schedule of ours, or a job that waits."""
    moments = (schedules.next_run(tx, kinds), jobs.next_due(tx))
    return min((moment for moment in moments if moment is not None), default=None)
