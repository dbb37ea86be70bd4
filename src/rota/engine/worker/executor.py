"""Executes attempts. One attempt is a pipeline of steps (`Executor.run`):

check deadline → prepare → authorize → await limits → record start → start timeout → execute

and, when its task is done, classify outcome → completer. A job that acts outside Rota, or whose worker died, has its
start recorded before it executes; the starts of other long runs are recorded in batches while they run.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

import structlog

from rota.core.errors import Unavailable
from rota.core.ids import new_id
from rota.core.model import Attempt, Job
from rota.db.retry import retry_until_available
from rota.engine import finishing
from rota.engine.runner import MAX_ISOLATED_RUNS, Prepare, RunContext, RunLog, Skipped, Work, Written, current_log
from rota.engine.worker.active_run import ActiveRun, ActiveRuns
from rota.engine.worker.completer import Completer
from rota.engine.worker.outcome import LostBeforeStart, classify_outcome, internal_failure, timeout_of
from rota.engine.worker.prefetch import Prefetch
from rota.engine.worker.registration import Registration
from rota.engine.worker.start_limits import StartLimits

log = structlog.get_logger("rota.worker")


class Executor:
    """Launches attempts and passes their results to the completer."""

    def __init__(
        self, registration: Registration, active: ActiveRuns, prefetch: Prefetch, completer: Completer
    ) -> None:
        self.registration, self.engine, self.active = registration, registration.engine, active
        self.prefetch, self.completer = prefetch, completer
        self.launched = asyncio.Event()
        self.limits = StartLimits(registration)
        self._isolated_places = asyncio.Semaphore(MAX_ISOLATED_RUNS)
        self._alone_place = asyncio.Semaphore(1)  # see Job.alone

    def start(self, job: Job, now: datetime) -> None:
        """Start the next attempt at a job, or go on with the one that was suspended."""
        waiting = job.waiting
        if waiting is None:
            self.launch(Attempt(job, new_id(), job.attempt + 1, now))
        else:
            started_at = datetime.fromisoformat(waiting["started_at"])
            self.launch(Attempt(job, waiting["run_id"], job.attempt + 1, started_at))

    def launch(self, attempt: Attempt, prepare: Prepare | None = None) -> None:
        """Run an attempt as a task; `prepare` replaces that of its runner."""
        prepare = prepare or self.engine.runners[attempt.job.kind].prepare
        run = self.active[attempt.job.id] = ActiveRun(attempt, self.context_of(attempt), prepare)
        self.prefetch.shares.begin(attempt.job.org_id)
        self.launched.set()
        execute, tracing = self.run_isolated if run.ctx.isolated else self.run, self.engine.tracing
        steps = execute(run) if tracing is None else tracing.run(attempt, lambda: execute(run))
        run.task = asyncio.get_running_loop().create_task(steps)
        run.task.add_done_callback(partial(self.complete, run))

    def context_of(self, attempt: Attempt) -> RunContext:
        engine, run_log = self.engine, RunLog(attempt.run_id, self.engine.clock.now, attempt.job)
        return RunContext(
            attempt.job,
            attempt.run_id,
            attempt.number,
            self.registration.id,
            run_log,
            attempt.job.isolated and engine.settings.isolates_suspects,
            engine.settings.cancel_grace,
            started_at=attempt.started_at,
            _engine=engine,
            has_room=self.prefetch.has_room,
        )

    # steps

    async def run_isolated(self, run: ActiveRun) -> object:
        """Run an attempt at a job that may have killed a worker: few at once or, after three deaths, one. While it
        waits for a place it has not started, so the death of this worker is no evidence against it."""
        async with self._alone_place if run.attempt.job.alone else self._isolated_places:
            if run.attempt.job.waiting is None:
                run.attempt = replace(run.attempt, started_at=self.engine.clock.now())
            return await self.run(run)

    async def run(self, run: ActiveRun) -> object:
        """One attempt from the first check to the outcome of the work. Each step may end it by raising."""
        run.started = True
        job, info = run.attempt.job, run.ctx.info
        self.check_deadline(run)
        work = await self.prepare(run)
        if job.terms.grant_id is not None and not info.checks_grant:
            await self.authorize(run)
        if (info.limits is not None or self.limits.rated_queues) and not info.marked:
            run.started = False  # it has no start to record before it is admitted
            await self.limits.enter(run)
            run.started = True
        run.start_recorded = info.marked
        if not info.marked and (info.marks_first or job.suspect):
            await self.record_start(run)
        timeout = timeout_of(job, info, self.engine.settings)
        if timeout is not None and not info.delegates:
            run.start_timeout(timeout)
        if info.heartbeat is not None:
            run.expect_heartbeats(info.heartbeat)
        current_log.set(run.ctx.log)
        return await work()

    def check_deadline(self, run: ActiveRun) -> None:
        """Raise Skipped if the first attempt comes after the start deadline of the job."""
        job = run.attempt.job
        too_late = job.terms.too_late(run.attempt.started_at)
        if too_late is not None and job.attempt == 0 and job.waiting is None:
            raise Skipped(too_late)

    async def prepare(self, run: ActiveRun) -> Work:
        """Let the runner look up what will run. Raises Skipped where it may not run now."""
        try:
            return await run.prepare(run.ctx)
        except Unavailable:
            return await retry_until_available(lambda: run.prepare(run.ctx))

    async def authorize(self, run: ActiveRun) -> None:
        """GRANT_NOT_SESSION: raise Skipped if the grant of the job does not hold at its start."""
        job, info = run.attempt.job, run.ctx.info
        await retry_until_available(lambda: self.engine.authorize(job, info.resource or info.name or job.target))

    async def record_start(self, run: ActiveRun) -> None:
        """Record the start first, because a crash would leave doubt. Raises LostBeforeStart if the lease is lost."""
        if await retry_until_available(lambda: self.record_starts([run])):
            raise LostBeforeStart

    # end

    def complete(self, run: ActiveRun, task: "asyncio.Task[object]") -> None:
        """The task of an attempt is done: pass its result on, and give its place to the next job."""
        now = self.engine.clock.now()
        self.release(run)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        outcome = task.result() if error is None else None
        if isinstance(outcome, Written):
            if self.launch_next(outcome):
                return
        else:
            self.add_result(run, error, outcome, now)
        self.completer.run_ended.set()
        self.prefetch.refill(now)

    def release(self, run: ActiveRun) -> None:
        """Free the place of a run."""
        if self.active.get(run.attempt.job.id) is run:
            del self.active[run.attempt.job.id]
        self.prefetch.shares.end(run.attempt.job.org_id)
        run.stop_timeout()

    def launch_next(self, written: Written) -> bool:
        """The runner stored the result itself: report it, and launch the attempt that it claimed with it, if any."""
        self.completer.report([written.ended], [])
        if written.then is not None and not self.registration.lost:
            self.launch(written.then, written.prepare)
            return True
        self.engine.wake.signal("ready")  # the next job of its serial key may be ready
        return False

    def add_result(self, run: ActiveRun, error: BaseException | None, outcome: object, now: datetime) -> None:
        try:
            result = classify_outcome(run, error, outcome, now, self.engine.settings)
        except Exception as bug:  # an error of Rota's own must not lose the job
            log.exception("outcome of a run could not be classified", run=run.attempt.run_id)
            result = internal_failure(run, bug, now, self.engine.settings)
        if result is not None:
            self.completer.add(result, run.ctx.log.take(last=True))

    # starts

    async def record_starts(self, started: Sequence[ActiveRun]) -> list[ActiveRun]:
        """Record that these runs started; stops and returns those whose lease is lost."""
        kept = await self.engine.db.statement(finishing.mark_started_statement([run.attempt for run in started]))
        lost = []
        for run in started:
            run.start_recorded = True
            if run.attempt.run_id not in kept and self.active.get(run.attempt.job.id) is run:
                log.error("lease of a run lost", job=run.attempt.job.id, run=run.attempt.run_id)
                run.stop("lost")
                lost.append(run)
        return lost
