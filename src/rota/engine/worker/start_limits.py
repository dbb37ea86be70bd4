"""Limits of starts in a worker: asks for admission of jobs that have a rate or a limited number of places."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rota.core.flow import Limits, Rate, RateLimit, flow_key
from rota.core.model import Job
from rota.db.group_commit import GroupCommit
from rota.db.retry import retry_until_available
from rota.engine import admission
from rota.engine.admission import Ask
from rota.engine.runner import SetAside
from rota.engine.worker.active_run import ActiveRun
from rota.engine.worker.registration import Registration

NO_LIMITS = Limits()


class StartLimits:
    """`rated_queues` are the rates of queues by org and name, as the worker last read them. Jobs that start together
    share a transaction."""

    def __init__(self, registration: Registration) -> None:
        self.registration, self.engine = registration, registration.engine
        self.rated_queues: Mapping[tuple[str, str], Rate] = {}
        self._asks = GroupCommit(self._admit, lambda ask: ask.job.id)

    def of(self, run: ActiveRun) -> Limits | None:
        """Return the limits of a run: of its target, and of its queue. None if it has none. A run that goes on after a
        wait needs a place again; it has started already, so no rate holds it."""
        limits, job = run.ctx.info.limits, run.attempt.job
        if job.waiting is not None:
            return None if limits is None or limits.place is None else replace(limits, rates=())
        rate = self.rated_queues.get((job.org_id, job.queue)) if self.rated_queues else None
        if rate is None:
            return limits
        limits = limits or NO_LIMITS
        of_queue = RateLimit(queue_rate_key(job), rate)
        return replace(limits, rates=(*limits.rates, of_queue))

    async def enter(self, run: ActiveRun) -> None:
        """Return when the run may start. Raises SetAside if its job is back in the queue."""
        limits, job = self.of(run), run.attempt.job
        if limits is None or self.is_admitted(job, limits):
            return
        ask = Ask(job, limits)
        asking = asyncio.ensure_future(retry_until_available(lambda: self._asks.add(ask)))
        try:
            admitted = await asyncio.shield(asking)
        except asyncio.CancelledError:
            admitted = await asking  # the job may be back in the queue: then it has no result
            if admitted:
                raise
        if not admitted:
            raise SetAside
        job.place_key = limits.place.key if limits.place is not None else job.place_key

    def is_admitted(self, job: Job, limits: Limits) -> bool:
        """Whether the job has what it needs already: its place was handed to it, and its start reserved."""
        has_place = limits.place is None or job.place_key == limits.place.key
        return has_place and (not limits.rates or admission.holds_reservation(job, self.engine.clock.now()))

    async def _admit(self, asks: list[Ask]) -> Sequence[bool | Exception]:
        admitted = await self.engine.db.tx(lambda tx: admission.admit(tx, asks, self.engine.clock.now()))
        if len(admitted) < len(asks):
            self.engine.wake.signal("later")
            self.engine.wake.signal("ready")  # a place may have been handed on
        return [ask.job.id in admitted for ask in asks]


def queue_rate_key(job: Job) -> str:
    """Return the key of the rate of a job's queue."""
    return flow_key("queue", job.org_id, value=job.queue)
