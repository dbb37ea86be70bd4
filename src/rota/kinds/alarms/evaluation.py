"""Evaluates alarms, in every scheduler and server: the row of an alarm in `alarm_checks` decides which process does it.

The facts are read first; then one transaction claims the evaluation, writes what changed and enqueues the messages. A
process that dies in between has done nothing, and another one evaluates the alarm.
"""

import random
import shutil
import socket
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog

from rota.core.alarms import ALARM_QUEUE, Measurement, Rule, decide, parse_scope, parse_when
from rota.core.clock import SystemClock, real_sleep, system_time
from rota.core.errors import NotFound, RotaError, Unavailable
from rota.core.model import NewJob
from rota.core.policy import Terms
from rota.db.dialect import Tx
from rota.engine import jobs, orgs
from rota.engine.audit_log import AuditEntry
from rota.engine.commands import Engine
from rota.engine.instruments import ALARMS
from rota.kinds.alarms.runner import HEARTBEAT
from rota.kinds.alarms.settings import AlarmSettings
from rota.kinds.alarms.store import changes, facts, rows

SLOW_PART = 60  # `not_succeeded_since > 1h` is evaluated every minute, `> 1d` every 24 minutes
HEARTBEAT_STEP = "heartbeat"  # name of a step that one process does per period, as in `alarm_checks`

log = structlog.get_logger("rota.alarms")


class Evaluation:
    """The alarms of the installation, as one process evaluates them."""

    def __init__(self, engine: Engine, settings: AlarmSettings) -> None:
        self.engine, self.settings = engine, settings
        self.place = socket.gethostname()[:200]
        self.paused_until: datetime | None = None  # up to when failures are counted for `pause_after_failures`

    async def run(self) -> None:
        """Evaluate what is due, again and again."""
        while True:
            await real_sleep(self.settings.period.total_seconds() * random.uniform(0.5, 1))
            try:
                await self.step()
            except Unavailable as error:
                log.debug("alarms wait for the database", error=error.message)

    async def step(self) -> None:
        """Evaluate all alarms that are due; a failure of one does not keep the others."""
        now, db = self.engine.clock.now(), self.engine.db
        await self.pause_failing(now)
        for alarm_id in await db.read(rows.without_check, self.place):
            await db.tx(rows.set_check, alarm_id, now, self.place)
        for check in await db.read(rows.due_checks, now, self.place):
            try:
                await self.evaluate(check, now)
            except Unavailable:
                raise
            except Exception:  # a defect in one rule must not stop the others
                log.exception("alarm could not be evaluated", alarm=check.name)
        await self.test_channels(now)
        await self.send_heartbeat(now)
        self.engine.wake.signal("ready")

    async def evaluate(self, check: Any, now: datetime) -> None:
        """Evaluate one alarm, unless another process does."""
        rule, db = parse_when(check.rule), self.engine.db
        span = facts.Span(
            check.org_id,
            parse_scope(check.scope, rule),
            check.read_until,
            check.created_at,
            now,
            self.engine.settings.misfire_grace,
            self.engine.runners.keys(),
        )
        next_at = now + self.period_of(rule)
        if rule.type is None:
            ended, until = await db.read(facts.ended_runs, rule, span)
            await db.tx(report_runs, check, rule, ended, until, next_at, now)
            return
        if rule.type.local:
            measured, until = self.measure_here(rule), now
        else:
            measured, until = await db.read(facts.measure, rule, span)

        def apply(tx: Tx) -> int:
            if not rows.claim_check(tx, check, next_at, until):
                return 0
            last = changes.last_events(tx, check.id, check.place, {measurement.subject for measurement in measured})
            still_open = [subject for subject, event in last.items() if event.is_open]
            gone = [] if rule.name == "paused" else facts.unwatched(tx, span, still_open)
            fired = changes.apply(tx, check, decide(rule, measured, last, gone), now)
            changes.notify(tx, check, now, self.settings.link)
            return fired

        fired = await db.tx(apply)
        if fired:
            log.warning("alarm fired", alarm=check.name, rule=check.rule, subjects=fired)
            self.engine.metrics.add(ALARMS, rule.name, amount=fired)

    def period_of(self, rule: Rule) -> timedelta:
        slow = rule.span / SLOW_PART if rule.name == "not_succeeded_since" else timedelta(0)
        return max(self.settings.period, slow)

    def measure_here(self, rule: Rule) -> list[Measurement]:
        """Measure this machine."""
        if rule.name == "disk_low":
            folder = self.settings.data_dir.absolute()
            disk = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists()))
            free = 100 * disk.free / disk.total
            text = f"has {free:.1f}% of the disk of {self.settings.data_dir} left"
            return [Measurement(f"machine:{self.place}", self.place, free, text)]
        skew = (
            abs(system_time() - self.engine.clock.now()) if isinstance(self.engine.clock, SystemClock) else timedelta(0)
        )
        text = f"has a clock that differs from the database's by {skew.total_seconds():.1f} s"
        return [Measurement(f"machine:{self.place}", self.place, skew.total_seconds(), text)]

    # other steps

    async def pause_failing(self, now: datetime) -> None:
        """Pause schedules whose last jobs failed one after the other, as often as they allow."""
        since, self.paused_until = self.paused_until or now - timedelta(hours=1), now
        for org_id, schedule_id, failures in await self.engine.db.read(facts.failing_schedules, since):
            system = await self.engine.db.tx(orgs.system_user, org_id, now)
            act = AuditEntry(org_id, system, "schedules", "pause", schedule_id, admin=True)
            try:
                reason = f"{failures} {facts.PAUSE_REASON}"
                await self.engine.audited_as(act).pause_schedule(org_id, schedule_id, reason=reason)
                log.warning("schedule paused", schedule=schedule_id, reason=reason)
            except NotFound:
                continue  # deleted in between
            except RotaError as error:
                log.warning("schedule could not be paused", schedule=schedule_id, error=error.message)

    async def test_channels(self, now: datetime) -> None:
        """Enqueue the tests of channels that are due."""
        for channel in await self.engine.db.read(rows.due_tests, now):

            def test(tx: Tx, channel: Any = channel) -> None:
                if rows.claim_test(tx, channel, now):
                    changes.deliver(tx, channel.org_id, [channel], message_of_test(channel.name, now), "test", now)

            await self.engine.db.tx(test)

    async def send_heartbeat(self, now: datetime) -> None:
        """Enqueue a request of the heartbeat URL if all is well. It goes through the queue, and must start soon: it
        proves that jobs run."""
        period = self.settings.heartbeat_period
        if not self.settings.heartbeat_url:
            return
        grace = self.engine.settings.misfire_grace + self.settings.period

        def beat(tx: Tx) -> None:
            if not facts.is_well(tx, now, self.engine.runners.keys(), grace):
                return
            org_id = orgs.org_by_slug(tx, "default")
            if org_id is None or not rows.claim_step(tx, HEARTBEAT_STEP, period, now):
                return
            job = NewJob(
                org_id=org_id, kind=changes.KIND, target=HEARTBEAT, payload=None, run_at=now, trigger=HEARTBEAT,
                route=changes.COMMAND_ROUTE, queue=ALARM_QUEUE, priority=100,
                terms=Terms(timeout=changes.DELIVERY_TIMEOUT, deadline_at=now + period),
            )  # fmt: skip
            jobs.enqueue(tx, [job], now)

        await self.engine.db.tx(beat)


def report_runs(
    tx: Tx, check: Any, rule: Rule, ended: Sequence[Any], until: datetime, next_at: datetime, now: datetime
) -> None:
    """Enqueue a message per run that ended, unless another process has evaluated the alarm."""
    if not rows.claim_check(tx, check, next_at, until):
        return
    channels = rows.channels_by_id(tx, check.org_id, check.notify) if ended else []
    for run in ended:
        changes.deliver(tx, check.org_id, channels, run_message(rule, run), f"alarm:{check.name}", now)


def message_of_test(channel: str, now: datetime) -> dict[str, Any]:
    return {
        "type": "alarm.test",
        "timestamp": now.isoformat(),
        "title": f"[test] {channel}",
        "text": f"This is a test of the alarm channel {channel}. Nothing is wrong.",
        "data": {"channel": channel},
    }


def run_message(rule: Rule, run: Any) -> dict[str, Any]:
    """Return the message about a run that ended."""
    name = run.name or run.target_name or run.target
    fields = ("id", "job_id", "schedule_id", "kind", "target", "slot", "trigger", "attempt", "status", "reason")
    details = {field: getattr(run, field) for field in (*fields, "error", "started_at", "finished_at")}
    data = {field: value.isoformat() if isinstance(value, datetime) else value for field, value in details.items()}
    return {
        "type": rule.name,
        "timestamp": run.finished_at.isoformat(),
        "title": f"[{run.status}] {name}",
        "text": f"{name} ended: {run.status}{facts.error_words(run.error)}",
        "data": {**data, "schedule": run.name},
    }
