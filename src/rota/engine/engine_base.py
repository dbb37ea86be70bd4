"""What all commands share: the database with its audit log, clock, wake-ups, the kinds of work, settings."""

import copy
from collections.abc import Callable
from datetime import datetime
from typing import Self, TypeVar

from rota.core.clock import Clock
from rota.core.errors import Invalid
from rota.core.model import Schedule
from rota.core.steps import OnNewVersion
from rota.core.timing import triggers
from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.db.outages import outage_of
from rota.db.statement import BoundStatement
from rota.db.wake import Wake
from rota.engine import otel_metrics, steps, tracing, versions
from rota.engine.audit_log import AuditedDatabase, AuditEntry
from rota.engine.engine_settings import EngineSettings
from rota.engine.extensions import DescribesResources, Extensions, ReadsTargets, RulesVersions
from rota.engine.instruments import OUTAGES
from rota.engine.metrics import Metrics
from rota.engine.object_store import ObjectStore
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
        self.objects = None if settings.objects is None else ObjectStore(settings.objects)
        db.observer = self.metrics
        outage_of(db.url).on_lost = lambda: self.metrics.add(OUTAGES)
        self.tracing = tracing.tracing_of_program()
        otel_metrics.mirror_to_program(self.metrics)
        self.step_recorder = steps.recorder(db)
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

    def reading_own_writes(self) -> Self:
        """Return this engine with targets resolved through its own database: in the transaction of a request that
        creates targets and schedules of them."""
        engine = copy.copy(self)
        engine.runners = {
            kind: runner.reading(self.db) if isinstance(runner, ReadsTargets) else runner
            for kind, runner in self.runners.items()
        }
        return engine

    def signal(self, topic: str) -> None:
        """Wake the loops of this process after the current transaction commits."""
        self.db.after_commit(lambda: self.wake.signal(topic))

    async def write_and_wake(self, step: Callable[[Tx], R]) -> R:
        """Run a step that may change due times, then wake the scheduler and the worker of this process."""
        result = await (self.db.statement(step) if isinstance(step, BoundStatement) else self.db.tx(step))
        self.signal("clocks")
        self.signal("ready")
        return result

    async def resolve(self, schedule: Schedule) -> str:
        """Return the route of a schedule's target. Raises Invalid if it does not exist or does not accept the input."""
        return await self.runners[schedule.kind].resolve(schedule.org_id, schedule.target, schedule.input)

    def apply_version_rules(self, tx: Tx) -> int:
        """Decide about jobs whose version no live worker has; see `versions.apply_rules`."""
        return versions.apply_rules(tx, self.on_new_version, self.clock.now())

    def on_new_version(self, tx: Tx, kind: str, org_id: str, target: str) -> OnNewVersion:
        """Return the rule of a target for runs whose version no live worker has."""
        runner: object = self.runners.get(kind)
        return runner.on_new_version(tx, org_id, target) if isinstance(runner, RulesVersions) else OnNewVersion.CONTINUE

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
