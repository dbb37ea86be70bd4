"""An engine on a manual clock with alarms, whose messages wait in the queue until the test lets a worker deliver."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select

from rota.db.tables import alarm_events, jobs
from rota.kinds.alarms.evaluation import Evaluation
from rota.kinds.alarms.manager import AlarmManager
from rota.kinds.alarms.runner import AlarmRunner
from rota.kinds.alarms.settings import AlarmSettings
from rota.kinds.alarms.store import rows
from tests.engine.harness import Harness, open_harness

SETTINGS = AlarmSettings(webhook_private=True)


@dataclass
class Alarms:
    """What a test of alarms needs."""

    harness: Harness
    settings: AlarmSettings
    evaluation: Evaluation
    manager: AlarmManager
    names: list[str] = field(default_factory=list)

    async def add(self, when: str, **fields: Any) -> str:
        """Add an alarm whose name is its rule; it notifies the channel `ops` if that exists."""
        body = {"name": when.split()[0], "when": when, **fields}
        return str((await self.manager.add(body))["id"])

    async def add_channel(self, name: str = "ops", **fields: Any) -> str | None:
        body = {"name": name, "type": "email", "address": "ops@example.org", **fields}
        return (await self.manager.add_channel(body))[1]

    async def evaluate(self, at: datetime | None = None) -> None:
        """Evaluate what is due, at a time."""
        if at is not None:
            self.harness.clock.set(at)
        await self.evaluation.step()

    async def later(self, span: timedelta = timedelta(minutes=1)) -> list[str]:
        """Advance the clock and evaluate; returns the events that are open."""
        await self.evaluate(self.harness.clock.now() + span)
        return await self.open()

    async def open(self) -> list[str]:
        """Return the open events as `alarm: name state`."""
        records = await self.harness.db.read(rows.open_events, self.harness.org_id)
        return sorted(f"{event['alarm']}: {event['name']} {event['state']}" for event in records)

    async def texts(self) -> list[str]:
        """Return the words of all events, oldest first."""
        return [row.text for row in await self.harness.rows(select(alarm_events.c.text).order_by(alarm_events.c.id))]

    async def messages(self) -> list[dict[str, Any]]:
        """Return the messages that wait for a worker, oldest first."""
        waiting = select(jobs.c.payload).where(jobs.c.kind == "alarm", jobs.c.payload.is_not(None)).order_by(jobs.c.id)
        return [row.payload["message"] for row in await self.harness.rows(waiting)]


@asynccontextmanager
async def open_alarms(url: str, settings: AlarmSettings = SETTINGS, **engine_settings: Any) -> AsyncIterator[Alarms]:
    harness = await open_harness(url, more=lambda db, clock: [AlarmRunner(db, settings)], **engine_settings)
    evaluation = Evaluation(harness.engine, settings)
    alarms = Alarms(harness, settings, evaluation, AlarmManager(harness.engine, harness.org_id, settings))
    try:
        yield alarms
        await harness.check()
    finally:
        await harness.close()
