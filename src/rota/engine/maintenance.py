"""Maintenance: rescue of jobs with expired leases, repairs, counts of long gaps, retention."""

import random
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from rota.core.clock import CLOCK_JUMP, SystemClock, real_sleep
from rota.core.errors import Unavailable
from rota.core.incidents import WORKER_DEAD
from rota.core.states import Status
from rota.core.timing.counting import count_slots
from rota.core.timing.dst import TICK
from rota.db.dialect import Tx
from rota.engine import (
    admission,
    artifact_contents,
    audit_log,
    catch_ups,
    children,
    dependencies,
    finishing,
    firing,
    jobs,
    places,
    runs,
    serial_keys,
    signals,
    slots,
    worker_metrics,
    workers,
)
from rota.engine.commands import Engine
from rota.engine.extensions import Prunes, Reconciles, prune_in_chunks, record_repair

RECONCILE_EVERY = timedelta(minutes=5)
UNROUTABLE_AFTER = timedelta(minutes=1)
FULL_PRUNE_EVERY = timedelta(days=1)
FORGET_WORKERS = timedelta(days=7)

log = structlog.get_logger("rota.maintenance")


class Maintenance:
    def __init__(self, engine: Engine, worker: str | None = None, may_judge: Callable[[], bool] = lambda: True) -> None:
        self.engine, self.db, self.clock = engine, engine.db, engine.clock
        self.worker, self.may_judge = worker, may_judge
        self.stopping = False
        self.pruned_at: datetime | None = None
        self.fully_pruned_at: datetime | None = None

    async def run(self) -> None:
        """Reconcile at start and every five minutes; rescue whenever a lease has expired."""
        reconciled: datetime | None = None
        while not self.stopping:
            try:
                await self.rescue_dead_workers()
                now = self.clock.now()
                if reconciled is None or now - reconciled >= RECONCILE_EVERY or now < reconciled:
                    await self.reconcile()
                    reconciled = now
                expiry = await self.db.read(workers.next_expiry, self.worker)
            except Unavailable as error:
                log.debug("maintenance waits for the database", error=error.message)
                await real_sleep(random.uniform(0.5, 2))
                continue
            except Exception:  # a failure of maintenance must not stop the runs of this process
                log.exception("maintenance failed; trying again")
                await real_sleep(random.uniform(1, 2))
                continue
            longest = min(self.engine.settings.lease, timedelta(seconds=30))
            ahead = longest if expiry is None else min(expiry - self.clock.now(), longest)
            await real_sleep(max(0.2, ahead.total_seconds() + 0.05))

    async def rescue_dead_workers(self) -> int:
        """Rescue jobs of workers whose lease expired; never its own, and not right after a clock jump."""
        if not self.may_judge():
            return 0
        rescued = 0
        for worker in await self.db.read(workers.expired, self.clock.now(), self.worker):
            rescued += await self.rescue_worker(worker)
        return rescued

    async def rescue_worker(self, worker: str) -> int:
        """Declare a worker dead and rescue all its jobs, in batches; returns their number."""
        taken, more = 0, True
        while more:
            count, more = await self.db.tx(self.rescue_batch, worker)
            taken += count
        if not await self.db.read(workers.is_alive, worker):
            log.warning("a worker's lease ran out; its jobs go to others", worker=worker, jobs=taken, page=WORKER_DEAD)
            await self.db.tx(self.engine.apply_version_rules)
        self.engine.wake.signal("ready")
        return taken

    def rescue_batch(self, tx: Tx, worker: str) -> tuple[int, bool]:
        """Declare a worker dead and rescue a batch of its jobs; no-op if it renewed its lease. Everything is checked
        again here: this transaction may have waited long for its lock, and other workers for theirs to renew."""
        now = self.clock.now()
        jumped = isinstance(self.clock, SystemClock) and abs(workers.measure(tx).time - now) > CLOCK_JUMP
        evidence = workers.is_alive(tx, worker)  # False for later batches: the first one already used the evidence
        if self.may_judge() and not jumped:
            workers.declare_dead(tx, worker, now)
        return (0, False) if workers.is_alive(tx, worker) else finishing.rescue(tx, worker, now, evidence=evidence)

    async def reconcile(self) -> None:
        """RECONCILER_GUARANTEES_CHAIN: find inconsistent rows, repair and log them."""
        now = self.clock.now()
        record_repair(self.engine, "schedules without a next slot", len(await self.db.tx(firing.repair_clocks, now)))
        for worker in await self.db.read(workers.dead_with_jobs):
            record_repair(self.engine, "jobs of workers that are gone", await self.rescue_worker(worker))
        headless = await self.db.read(serial_keys.headless)
        if headless:
            record_repair(self.engine, "serial keys without a head", await self.db.tx(serial_keys.repair, headless))
        ended = await self.db.read(dependencies.undelivered)
        if ended:
            woken = await self.db.tx(dependencies.wake_dependents, ended, now)
            record_repair(self.engine, "jobs that waited for ended jobs", woken)
        starving = await self.db.read(places.starving_keys)
        if starving:
            record_repair(self.engine, "places not handed on", await self.db.tx(places.free_places, starving, now))
        routes = await self.db.read(workers.live_routes, now)
        if routes:
            await self.db.tx(jobs.park_unroutable, routes, now - UNROUTABLE_AFTER)
        await self.db.tx(self.engine.apply_version_rules)
        ended = await self.db.read(children.undelivered)
        if ended:
            delivered = await self.db.tx(children.deliver_ended, ended, now)
            record_repair(self.engine, "ended jobs whose parents still waited", delivered)
        for runner in self.engine.runners.values():
            if isinstance(runner, Reconciles):
                await runner.reconcile(self.engine, now)
        await self.engine.extend_calendars(now)
        await self.engine.adopt_calendars()
        await self.db.tx(fill_counts)
        await self.prune(now)

    async def prune(self, now: datetime) -> None:
        """Delete old rows by age and status; scheduling does not read them. Between full passes, only runs that became
        old since the last pass are read: those that are kept longer must not be read every five minutes."""
        settings = self.engine.settings
        kept_short = [Status.SUCCESS, Status.SKIPPED, Status.MISSED, Status.COALESCED, Status.CANCELED]
        rest = [status for status in Status if status not in kept_short]
        is_full = self.fully_pruned_at is None or abs(now - self.fully_pruned_at) >= FULL_PRUNE_EVERY
        for kept, statuses in ((settings.keep_success, kept_short), (settings.keep_failed, rest)):
            since = None if is_full or self.pruned_at is None else self.pruned_at - kept
            for org_id in await self.db.read(runs.orgs_with_old_runs, since, now - kept, statuses):
                await prune_in_chunks(self.db, runs.prune, org_id, since, now - kept, statuses)
        for days in await self.db.read(runs.schedule_limits):
            before = now - timedelta(days=days)
            for schedule_id in await self.db.read(runs.schedules_with_old_runs, days, before):
                await prune_in_chunks(self.db, runs.prune_schedule, schedule_id, before)
        self.pruned_at, self.fully_pruned_at = now, now if is_full else self.fully_pruned_at
        for runner in self.engine.runners.values():
            if isinstance(runner, Prunes):
                await runner.prune(self.engine, now)
        await prune_in_chunks(self.db, slots.prune, now - settings.keep_failed)
        await self.db.tx(worker_metrics.merge_ended, now)
        await prune_in_chunks(self.db, signals.prune, now - settings.keep_signals)
        await self.db.tx(workers.delete_stopped, now - FORGET_WORKERS)
        await prune_in_chunks(self.db, admission.prune_rates, now)
        for prune in self.engine.extensions.prunes:
            await prune(self.engine, now)
        await prune_in_chunks(self.db, catch_ups.prune, now - settings.keep_audit)
        await prune_in_chunks(self.db, audit_log.prune, now - settings.keep_audit)
        await artifact_contents.sweep(self.engine)


def fill_counts(tx: Tx, limit: int = 20) -> int:
    """Count the slots of gaps that were too long to count while firing."""
    open_gaps = slots.uncounted_gaps(tx, limit)
    for timing, gap in open_gaps:
        counted = count_slots(timing, gap.slot - TICK, gap.last_slot, 2_000_000)
        slots.set_count(tx, gap, counted if counted is not None else -1)
    return len(open_gaps)
