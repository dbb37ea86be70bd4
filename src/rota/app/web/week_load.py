"""Slots per hour of the next week over all schedules of an org, counted beside the requests and kept for a minute."""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from rota.core.timing.counting import HOUR
from rota.core.timing.load import HourlyLoad
from rota.db.connection import Reads
from rota.engine.compute import compute
from rota.reports import schedules as schedule_reports

HOURS = 7 * 24
PAGE_SCHEDULES = 10_000  # read at a time
FRESH_FOR = timedelta(minutes=1)
PATIENCE_SECONDS = 0.2  # that a page waits for a count


@dataclass(frozen=True, slots=True)
class WeekLoad:
    """Slots per hour from `start` on, counted at `at`."""

    at: datetime
    start: datetime
    hours: list[int]
    schedules: int  # active ones; all of them are counted


class WeekLoads:
    """Counts of the orgs. A page shows the last count while a new one is under way: with 100,000 different timings a
    count takes seconds."""

    def __init__(self) -> None:
        self.counted: dict[str, WeekLoad] = {}
        self.counting: dict[str, asyncio.Task[None]] = {}

    async def of_org(self, db: Reads, org_id: str, now: datetime) -> WeekLoad | None:
        """Return the load of an org; None if it is not counted yet."""
        last = self.counted.get(org_id)
        if last is not None and timedelta(0) <= now - last.at < FRESH_FOR:
            return last
        task = self.counting.get(org_id)
        if task is None or task.done():
            task = self.counting[org_id] = asyncio.create_task(self.count(db, org_id, now))
        await asyncio.wait([task], timeout=PATIENCE_SECONDS)
        if task.done():
            task.result()  # raises what went wrong
            del self.counting[org_id]
        return self.counted.get(org_id)

    async def count(self, db: Reads, org_id: str, now: datetime) -> None:
        self.counted[org_id] = await count_week(db, org_id, now)


async def count_week(db: Reads, org_id: str, now: datetime) -> WeekLoad:
    """Count the slots of all active schedules in the week that begins with the next hour."""
    load = HourlyLoad(now.replace(minute=0, second=0, microsecond=0) + HOUR, HOURS)
    schedules, after = 0, ""
    while True:
        timings, limited, last_id = await db.read(schedule_reports.timings, org_id, after, PAGE_SCHEDULES)
        schedules += sum(timings.values()) + len(limited)
        await compute(load.add, timings)
        for text, next_slot, left in limited:
            await compute(load.add_limited, text, next_slot, left)
        if last_id is None:
            break
        after = last_id
    return WeekLoad(now, load.start, await compute(load.totals), schedules)
