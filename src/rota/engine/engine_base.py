"""What all commands share: the database with its audit log, clock, wake-ups, the kinds of work, settings."""

import copy
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Self, TypeVar

from rota.core.clock import Clock
from rota.core.errors import Invalid
from rota.core.model import Schedule
from rota.core.timing import triggers
from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.db.wake import Wake
from rota.engine import tracing
from rota.engine.audit_log import AuditedDatabase, AuditEntry
from rota.engine.engine_settings import EngineSettings
from rota.engine.extensions import DescribesResources, Extensions
from rota.engine.metrics import Metrics
from rota.engine.runner import Runners

R = TypeVar("R")
NO_EXTENSIONS = Extensions()


class EngineBase:
    def __init__(
        self,
        db: Database,
        clock: Clock,
        wake: Wake,
        runners: Runners,
        settings: EngineSettings,
        metrics: Metrics | None = None,
        extensions: Extensions = NO_EXTENSIONS,
    ) -> None:
        self.db, self.clock, self.wake, self.runners, self.settings = db, clock, wake, runners, settings
        self.metrics, self.extensions = metrics or Metrics(), extensions
        self.tracing = tracing.tracing_of_program()
        self.act: AuditEntry | None = None  # for whom it acts; None: the program itself
        self.defaults = {kind: runner.defaults for kind, runner in runners.items() if runner.defaults is not None}
        self.describers = dict(extensions.describers)
        for runner in runners.values():
            if isinstance(runner, DescribesResources):
                self.describers.update(runner.describers)

    def audited_as(self, act: AuditEntry, db: Database | None = None) -> Self:
        """Return this engine, on its database or `db`, with an audit log entry for every write."""
        engine = copy.copy(self)
        engine.db, engine.act = AuditedDatabase(db or self.db, act, self.clock, self.describers), act
        return engine

    def signal(self, topic: str) -> None:
        """Wake the loops of this process after the current transaction commits."""
        self.db.after_commit(lambda: self.wake.signal(topic))

    async def write_and_wake(self, step: Callable[[Tx], R], run: Callable[..., Awaitable[R]] | None = None) -> R:
        """Run a step that may change due times, then wake the scheduler and the worker of this process."""
        result = await (run or self.db.tx)(step)
        self.signal("clocks")
        self.signal("ready")
        return result

    async def resolve(self, schedule: Schedule) -> str:
        """Return the route of a schedule's target. Raises Invalid if it does not exist or does not accept the input."""
        return await self.runners[schedule.kind].resolve(schedule.org_id, schedule.target, schedule.input)

    def current_trace(self) -> str | None:
        """Return the `traceparent` of the current span, None without one."""
        return None if self.tracing is None else self.tracing.traceparent_of()

    def future(self, value: object, field: str, now: datetime) -> datetime | None:
        if value is None:
            return None
        instant = triggers.parse_instant(value, field)
        if instant <= now:
            raise Invalid(field, value, f"is not in the future; it is {now.isoformat(timespec='seconds')} now")
        return instant
