"""The worker of a process: registers, keeps its lease, and runs the loops of its parts until it is drained or loses the
lease.

    claim → waiting → start → active → result → store (a batch, one transaction)
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta

import structlog

from rota.core.clock import SystemClock, real_sleep, stopwatch
from rota.core.errors import Unavailable
from rota.core.ids import new_id
from rota.core.incidents import DATABASE_AWAY, WORKER_DEAD
from rota.core.model import AttemptResult, Job
from rota.core.states import Move, Status
from rota.db.retry import retry_until_available
from rota.engine import jobs, orgs, runs, workers
from rota.engine.commands import Engine
from rota.engine.heartbeat import Heartbeat
from rota.engine.instruments import LEASE_LOSSES
from rota.engine.runner import Learns
from rota.engine.supervision import start_supervised
from rota.engine.worker.active_run import ActiveRuns
from rota.engine.worker.cancellation import Cancellation
from rota.engine.worker.completer import Completer
from rota.engine.worker.executor import Executor
from rota.engine.worker.prefetch import GATHER_SECONDS, LONG_RUN_AFTER, Prefetch, Reservation
from rota.engine.worker.registration import POLL_SECONDS, Registration
from rota.version import __version__

LAST_WRITE_SECONDS = 30.0  # that a stopping worker waits for a database that is unavailable
STILL_RUNNING_DELAY = timedelta(seconds=1)  # of a job whose earlier attempt has not ended in this process

log = structlog.get_logger("rota.worker")


class Worker:
    """One registration of a process. `run` returns after `drain` or `abandon`; `active` is shared by all registrations
    of the process."""

    def __init__(
        self,
        engine: Engine,
        queues: Collection[str] | None = None,
        orgs: Collection[str] | None = None,
        active: ActiveRuns | None = None,
    ) -> None:
        self.engine, self.active = engine, {} if active is None else active
        self.registration = registration = Registration(engine, queues, orgs)
        self.prefetch = Prefetch(registration, self.active, self.start, self.known_jobs)
        self.completer = Completer(registration, self.prefetch)
        self.executor = Executor(registration, self.active, self.prefetch, self.completer)
        self.cancellation = Cancellation(registration, self.active, self.prefetch.waiting, self.completer)
        self.heartbeat: Heartbeat | None = None
        self.learned: tuple[int, float] = (-1, 0.0)  # at which change and when `learn` last read

    @property
    def id(self) -> str:
        return self.registration.id

    def known_jobs(self) -> set[str]:
        """The ids of all jobs that this worker knows it holds."""
        waiting, results = self.prefetch.waiting, self.completer.results
        return {*self.active, *(job.id for job in waiting), *(result.job.id for result in results)}

    def trouble(self) -> str | None:
        """Why it does not work, None if it does: no claim, or no result stored, for longer than two polls."""
        now, longest = stopwatch(), 2 * POLL_SECONDS
        claimed_at, results, stored_at = self.prefetch.claimed_at, self.completer.results, self.completer.stored_at
        if now - claimed_at > longest:
            return f"has not polled for ready jobs for {now - claimed_at:.0f} s"
        if results and now - stored_at > longest:
            return f"has {len(results)} results that could not be stored for {now - stored_at:.0f} s"
        return None

    # start

    async def run(self) -> None:
        """Register and work until drained or abandoned."""
        await self.register()
        steps: dict[str, Callable[[], Awaitable[object]]] = {
            "claims": self.claim_loop,
            "results": self.completer.run,
            "starts": self.watch_long_runs,
            "cancels": self.cancellation.run,
        }
        loops = [start_supervised(name, step) for name, step in steps.items()]
        queues = self.registration.queues
        log.info(
            "worker started",
            worker=self.id,
            pid=os.getpid(),
            concurrency=self.engine.settings.concurrency,
            queues=",".join(queues) if queues else "all",
            version=__version__,
        )
        try:
            await self.registration.finished.wait()
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            if self.heartbeat is not None:
                await asyncio.to_thread(self.heartbeat.stop)
            log.info("worker stopped", worker=self.id, lease_lost=self.registration.lost)

    async def register(self) -> None:
        """Store the registration, and keep its lease from now on."""
        clock = self.engine.clock
        sample = await self.engine.db.tx(workers.measure)
        if isinstance(clock, SystemClock):
            clock.sync(sample)
        await self.learn()
        await self.registration.store()
        if isinstance(clock, SystemClock):
            self.heartbeat = self.start_heartbeat(clock)

    def start_heartbeat(self, clock: SystemClock) -> Heartbeat:
        """Renew the lease in a thread, which reports cancel requests and the loss of the lease to this loop."""
        loop = asyncio.get_running_loop()
        heartbeat = Heartbeat(
            self.engine.db.url,
            clock,
            self.id,
            self.engine.settings.lease,
            on_cancel=lambda requests: call_in(loop, self.cancellation.cancel, requests),
            on_lost=lambda: call_in(loop, self.abandon),
            metrics=self.engine.metrics,
        )
        heartbeat.start()
        return heartbeat

    async def learn(self) -> bool:
        """Read which orgs share this worker, and what can run here; True if the routes changed."""
        self.learned = (self.engine.wake.task_changes, stopwatch())
        limits = await self.engine.db.read(orgs.limits)
        self.prefetch.shares.update(len(limits) > 1, {org.id for org in limits if org.max_running is not None})
        self.executor.limits.rated_queues = await self.engine.db.read(jobs.rated_queues)
        slugs = self.registration.org_slugs
        self.registration.org_ids = None if slugs is None else {org.id for org in limits if org.slug in slugs}
        learners = [runner for runner in self.engine.runners.values() if isinstance(runner, Learns)]
        changed = any([await runner.learn() for runner in learners])
        self.registration.refresh_routes()
        return changed

    async def learn_changes(self) -> None:
        """Announce what can run here after a change of rights or tasks, or after POLL_SECONDS."""
        change, learned_at = self.learned
        if change == self.engine.wake.task_changes and stopwatch() - learned_at < POLL_SECONDS:
            return
        if await self.learn():
            await self.registration.announce()

    # work

    async def claim_loop(self) -> None:
        """Claim after each wake-up, and after POLL_SECONDS without one."""
        wake = self.engine.wake.work
        while not self.registration.finished.is_set():
            if self.prefetch.waiting:
                await real_sleep(GATHER_SECONDS)  # one claim for several wake-ups
            wake.clear()
            self.prefetch.claimed_at = stopwatch()
            if not self.registration.draining:
                try:
                    await self.learn_changes()
                    while await self.prefetch.claim():
                        pass
                except Unavailable as error:
                    await self.prefetch.hand_back_unknown(error)
                except Exception as error:
                    await self.prefetch.hand_back_unknown(error)
                    raise
            await self.engine.clock.wait(wake, POLL_SECONDS)

    def start(self, job: Job, now: datetime) -> None:
        """Start an attempt, unless an earlier attempt at the job still runs in this process: then the job waits. If
        this registration started that attempt, another process has declared it dead: it abandons all its jobs."""
        earlier = self.active.get(job.id)
        if earlier is None:
            self.executor.start(job, now)
            return
        run_at = now + STILL_RUNNING_DELAY
        self.completer.add(
            AttemptResult(job, Status.PENDING, None, now, new_id(), job.attempt + 1, move=Move.BACK_OFF, run_at=run_at)
        )
        if earlier.ctx.worker == self.id:
            log.error(
                "a job was claimed while it runs here: this worker was declared dead",
                job=job.id,
                worker=self.id,
                page=WORKER_DEAD,
            )
            self.abandon()

    def reserve(self, count: int, until: datetime) -> AbstractAsyncContextManager[Reservation]:
        """Reserve places for jobs that the scheduler of this process is about to fire; see `Prefetch.reserve`."""
        return self.prefetch.reserve(count, until)

    async def await_capacity(self, least: int) -> int:
        """The capacity for jobs that the scheduler is about to fire; see `Prefetch.await_capacity`."""
        return await self.prefetch.await_capacity(least)

    async def watch_long_runs(self) -> None:
        """Record the starts of long runs, store the log lines of runs that go on, and hand back jobs that wait behind
        long runs."""
        while not self.registration.finished.is_set():
            if not self.active:
                self.executor.launched.clear()
                await self.executor.launched.wait()
            await real_sleep(LONG_RUN_AFTER.total_seconds())
            long_runs = self.prefetch.long_runs()
            unrecorded = [run for run in long_runs if not run.start_recorded]
            lines = [line for run in self.active.values() if run.start_recorded for line in run.ctx.log.take()]
            try:
                if unrecorded:
                    await self.executor.record_starts(unrecorded)
                if lines:
                    await self.engine.db.tx(runs.write_logs, lines)
                if self.prefetch.waiting and self.prefetch.is_blocked_by(long_runs):
                    await self.prefetch.hand_back_waiting()
            except Unavailable as error:
                self.completer.logs.extend(lines)
                log.debug("starts and logs are not stored yet; trying again", error=error.message)
                await real_sleep(random.uniform(0.2, 1))

    # stop

    async def drain(self, limit: timedelta, cancel: asyncio.Event | None = None) -> None:
        """Stop: claim no more, hand prefetched jobs back, let runs end until `limit` has passed or `cancel` is set;
        then cancel them and hand their jobs back."""
        self.registration.draining = True
        unstarted = await self.prefetch.drain()
        unstarted += self.cancellation.stop_unstarted()
        await self.registration.hand_back(unstarted)
        await self.cancellation.shut_down(limit, cancel)
        await self.store_last_results()
        self.registration.finished.set()

    async def store_last_results(self) -> None:
        """Store what is left and end the registration; gives up after LAST_WRITE_SECONDS without a database."""
        completer = self.completer
        try:
            async with asyncio.timeout(LAST_WRITE_SECONDS):
                while completer.results or completer.logs:
                    await completer.flush()
                if not self.active:
                    await self.registration.end()
        except (TimeoutError, Unavailable):
            log.error(
                "database unavailable; runs whose result is not stored run again",
                count=len(completer.results),
                page=DATABASE_AWAY,
            )

    def abandon(self) -> None:
        """The lease is lost, and other workers may have the jobs: stop all runs. `close_out` records their results."""
        if not self.registration.lost:
            self.engine.metrics.add(LEASE_LOSSES)
        self.registration.lost = True
        self.prefetch.waiting.clear()
        self.cancellation.stop_lost()
        self.registration.finished.set()
        self.engine.wake.signal("ready")

    async def close_out(self) -> None:
        """Record the results of a worker that lost its lease, however long the last run and the database take, and hand
        its other jobs back. The fence decides: a job that no other worker has claimed is finished or handed back as
        usual; else the attempt is recorded as lost."""
        await self.registration.hand_back_all_but(self.known_jobs)
        completer = self.completer
        while completer.results or completer.logs or self.cancellation.own_runs():
            if completer.results or completer.logs:
                await completer.flush()
            else:
                await completer.await_run_end()
        await retry_until_available(self.registration.end)


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> None:
    """Call from another thread; a no-op if the loop is closed."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, *args)
