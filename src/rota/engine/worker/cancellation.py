"""Stops runs: because of a cancel request, at shutdown, or after the lease was lost. Timeouts stop a run themselves
(`ActiveRun.start_timeout`)."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import structlog

from rota.core.clock import real_sleep
from rota.core.errors import Unavailable
from rota.core.ids import new_id
from rota.core.incidents import PROCESS_STALLED
from rota.core.model import AttemptResult
from rota.core.states import Status
from rota.engine import jobs
from rota.engine.worker.active_run import ActiveRun, ActiveRuns
from rota.engine.worker.completer import Completer
from rota.engine.worker.fair_queue import FairQueue
from rota.engine.worker.registration import POLL_SECONDS, Registration

log = structlog.get_logger("rota.worker")


class Cancellation:
    """`run` polls for cancel requests until the registration is finished."""

    def __init__(
        self, registration: Registration, active: ActiveRuns, waiting: FairQueue, completer: Completer
    ) -> None:
        self.registration, self.engine = registration, registration.engine
        self.active, self.waiting, self.completer = active, waiting, completer

    async def run(self) -> None:
        """Stop runs as soon as a cancel request is stored."""
        wake = self.engine.wake.cancel
        while not self.registration.finished.is_set():
            await self.engine.clock.wait(wake, POLL_SECONDS)
            wake.clear()
            if self.active or self.waiting:
                try:
                    self.cancel(await self.engine.db.read(jobs.cancel_requests, self.registration.id))
                except Unavailable as error:
                    log.debug("cancel requests could not be read", error=error.message)

    def cancel(self, requests: Mapping[str, str]) -> None:
        """Cancel jobs, given who asked for it by job id: stop those that run, end those that wait to start."""
        for job_id, canceled_by in requests.items():
            if job_id in self.active:
                self.active[job_id].stop(canceled_by)
        for job in [job for job in self.waiting if job.id in requests]:
            self.waiting.remove(job)
            now = self.engine.clock.now()
            self.completer.add(AttemptResult(job, Status.CANCELED, requests[job.id], now, new_id(), job.attempt + 1))

    def stop_unstarted(self) -> list[str]:
        """Stop runs that wait for a place and have not started; returns the ids of their jobs, to be handed back."""
        unstarted = [run for run in self.active.values() if not run.started]
        for run in unstarted:
            run.stop("lost")  # leaves no result
        return [run.attempt.job.id for run in unstarted]

    async def shut_down(self, limit: timedelta, cut_short: asyncio.Event | None) -> None:
        """Let the runs end until `limit` has passed or `cut_short` is set, then stop them."""
        if self.active and limit:
            log.info(
                "stopping: waiting for the runs under way; a second signal cancels them",
                runs=len(self.active),
                seconds=f"{limit.total_seconds():g}",
            )
        await self.until_idle(limit.total_seconds(), cut_short)
        for run in list(self.active.values()):
            run.stop("shutdown")
        await self.until_idle(2 * self.engine.settings.cancel_grace.total_seconds() + 5)
        for run in self.active.values():
            log.error(
                "run does not end; its lease will expire",
                run=run.attempt.run_id,
                job=run.attempt.job.id,
                page=PROCESS_STALLED,
            )

    def stop_lost(self) -> None:
        """Stop all runs of this registration, whose lease is lost. A run that has not started is forgotten."""
        for run in self.own_runs():
            run.stop("lost")
            if not run.started:
                del self.active[run.attempt.job.id]

    def own_runs(self) -> list[ActiveRun]:
        """Runs of this registration; an earlier one of the process may have some that do not end."""
        return [run for run in self.active.values() if run.ctx.worker == self.registration.id]

    async def until_idle(self, seconds: float, cut_short: asyncio.Event | None = None) -> None:
        """Wait until no run is active, for at most so many seconds, or until `cut_short` is set."""
        tasks = [run.task for run in self.active.values() if run.task is not None]
        if tasks:
            ended = asyncio.ensure_future(asyncio.wait(tasks, timeout=seconds))
            cut = asyncio.ensure_future((cut_short or asyncio.Event()).wait())
            await asyncio.wait([ended, cut], return_when=asyncio.FIRST_COMPLETED)
            for waiter in (ended, cut):
                waiter.cancel()
            await real_sleep(0)  # lets the done callbacks of the tasks run
