"""Claims jobs ahead of free places: short jobs by the hundred, so that no place waits for a claim.

A claimed job waits in the FairQueue until a place is free and its due time has come. It has no run before it starts.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import structlog

from rota.core.clock import real_sleep, stopwatch
from rota.core.errors import Unavailable
from rota.core.model import AttemptResult, Job, LeaseOffer
from rota.engine.instruments import CLAIMS, FROM_QUEUE
from rota.engine.worker.active_run import ActiveRun, ActiveRuns
from rota.engine.worker.claim_gate import ClaimGate
from rota.engine.worker.fair_queue import FairQueue
from rota.engine.worker.lane_claims import LaneClaims
from rota.engine.worker.org_shares import OrgShares
from rota.engine.worker.registration import Registration

CLAIM_BATCH_ROWS = 500
EARLY_FIRE = timedelta(milliseconds=50)  # how long before its due time a slot may be fired, to start on time
GATHER_SECONDS = 0.005  # pause in which more jobs or results come together while enough is there to do
CAPACITY_WAIT_SECONDS = 0.05  # that a fire waits for capacity, which saves its jobs the claim
PREFETCH_SECONDS = 0.1  # of work that is claimed ahead
PREFETCH_LIMIT_JOBS = 1000
DURATION_SAMPLE_RESULTS = 50  # results whose mean duration decides the prefetch size
LONG_RUN_AFTER = timedelta(milliseconds=100)  # a run that lasts longer is a long run: its start is recorded

log = structlog.get_logger("rota.worker")


class Prefetch:
    """Holds claimed jobs until they start. `start` starts an attempt at a job; `known_jobs` returns the ids of all jobs
    that the worker knows it holds."""

    def __init__(
        self,
        registration: Registration,
        active: ActiveRuns,
        start: Callable[[Job, datetime], None],
        known_jobs: Callable[[], Collection[str]],
    ) -> None:
        self.registration, self.engine, self.active = registration, registration.engine, active
        self.start, self.known_jobs = start, known_jobs
        self.shares = OrgShares(self.engine.settings.concurrency)
        self.lanes = LaneClaims(registration, self.org_room)
        self.gate = ClaimGate()
        self.waiting = FairQueue()
        self.size = 0  # jobs to hold beyond those that run
        self.caught_up = False  # the last claim emptied the queue; wait for a wake-up before claiming again
        self.claimed_at = stopwatch()  # when it last looked for jobs
        self._early_start: asyncio.TimerHandle | None = None

    @property
    def load(self) -> int:
        """How many jobs run, wait, or may come from claims in flight."""
        return len(self.active) + len(self.waiting) + self.gate.expected

    @property
    def free_places(self) -> int:
        """How many more jobs could start now."""
        return max(0, self.engine.settings.concurrency - self.load)

    @property
    def capacity(self) -> int:
        """How many more jobs could start or wait here."""
        return max(0, self.engine.settings.concurrency + self.size - self.load)

    @property
    def reservable(self) -> int:
        """How many jobs it takes as they are fired: only what can start now while older jobs are ready in the queue."""
        return self.capacity if self.caught_up else self.free_places

    @property
    def unlimited(self) -> bool:
        """Whether no limit of an org or queue held jobs back at the last claim."""
        return self.lanes.unlimited

    def has_room(self) -> bool:
        """Whether one more run could start now without keeping a job waiting."""
        free = len(self.active) < self.engine.settings.concurrency
        return free and not self.registration.stopping and not self.waiting

    def org_room(self, org_id: str) -> int | None:
        """How many more jobs of an org may be claimed; None: any number."""
        room = self.shares.room(org_id)
        return None if room is None else max(0, room + self.size - self.waiting.count(org_id))

    # claim

    async def claim(self) -> bool:
        """Claim one batch and start what can start; True if there may be more to claim."""
        async with self.gate.claim() as in_flight:
            self.caught_up = False
            if self.capacity > self.size // 2:
                room = min(self.capacity, CLAIM_BATCH_ROWS)
                in_flight.expect(room)
                claimed, more = await self.lanes.claim(room)
                self.caught_up = not more and self.unlimited
            else:
                claimed, more = await self.lanes.claim_for_other_orgs(self.waiting.orgs), False
            if claimed:
                self.engine.metrics.add(CLAIMS, FROM_QUEUE, amount=len(claimed))
            return await self.receive(claimed) and more

    @asynccontextmanager
    async def reserve(self, count: int, until: datetime) -> AsyncIterator["Reservation"]:
        """Reserve places for up to `count` jobs, due by `until`, that the caller is about to insert. With the lease of
        the reservation they are inserted as running under this worker; those that are delivered start when the block
        ends. If the answer of the database is lost, the jobs are handed back."""
        if not self.registration.registered or self.registration.stopping or not self.reservable:
            yield Reservation(None)
            return
        try:
            async with self.gate.claim() as in_flight:
                most = min(count, self.reservable)
                reservation = Reservation(self.lease(most, until))
                in_flight.expect(most)
                yield reservation
                await self.receive(reservation.delivered)
        except Unavailable as error:
            await self.hand_back_unknown(error)
            raise

    def lease(self, most: int, until: datetime) -> LeaseOffer:
        start_now, registration = min(most, self.free_places), self.registration
        return LeaseOffer(
            registration.id,
            registration.routes,
            registration.queues,
            start_now,
            most - start_now,
            until,
            registration.org_ids,
            self.org_room,
        )

    async def await_capacity(self, least: int) -> int:
        """The capacity for jobs that are about to be fired; 0 while older jobs are ready in the queue. Waits briefly
        until there is capacity for `least` and half of the prefetched jobs have started."""
        until = stopwatch() + CAPACITY_WAIT_SECONDS
        while self.caught_up and self.capacity < max(least, self.size // 2) and stopwatch() < until:
            await real_sleep(GATHER_SECONDS)
        return self.capacity if self.caught_up else 0

    async def receive(self, claimed: Sequence[Job]) -> bool:
        """Start claimed jobs, or let them wait. A worker that is stopping hands them back and returns False."""
        if self.registration.stopping:
            await self.registration.hand_back([job.id for job in claimed])
            return False
        self.waiting.extend(claimed)
        self.start_waiting()
        return True

    # start

    def start_waiting(self, now: datetime | None = None) -> None:
        """Start waiting jobs on free places. Jobs that were fired early start at their due time, by a timer."""
        now = now or self.engine.clock.now()
        first_due: datetime | None = None
        for _ in range(len(self.waiting)):
            if len(self.active) >= self.engine.settings.concurrency or self.registration.stopping:
                return
            job = self.waiting.next(self.shares.full_among(self.waiting.orgs))
            if job is None:
                break
            if not now < job.run_at <= now + EARLY_FIRE:  # farther ahead: due by the clock of another process
                self.start(job, now)
            else:
                self.waiting.extend([job])
                first_due = min(job.run_at, first_due or job.run_at)
        if first_due is not None:
            if self._early_start is not None:
                self._early_start.cancel()
            delay = (first_due - now).total_seconds()
            self._early_start = asyncio.get_running_loop().call_later(delay, self.start_waiting)

    def refill(self, now: datetime) -> None:
        """A place became free: start the next job, and wake the claim loop once no more than half of it is left."""
        if self.waiting:
            self.start_waiting(now)
        if len(self.waiting) <= self.size // 2 and not self.registration.draining and not self.caught_up:
            self.engine.wake.work.set()

    # size

    def resize(self, batch: Sequence[AttemptResult]) -> None:
        """Set the prefetch size: how many jobs the free places should finish within PREFETCH_SECONDS, by the mean
        duration of these results. Long jobs are not prefetched, so that other workers can claim them."""
        last = [result for result in batch[-DURATION_SAMPLE_RESULTS:] if result.job.waiting is None]
        spans = [(result.started_at, result.finished_at) for result in last]  # a resumed run began before its wait
        seconds = [(end - start).total_seconds() for start, end in spans if start is not None]
        mean = sum(seconds) / len(seconds) if seconds else PREFETCH_SECONDS
        places = self.engine.settings.concurrency - len(self.long_runs())
        self.size = min(PREFETCH_LIMIT_JOBS, int(places * PREFETCH_SECONDS / max(mean, 0.001)))

    def long_runs(self) -> list[ActiveRun]:
        """The runs that last longer than LONG_RUN_AFTER."""
        before = self.engine.clock.now() - LONG_RUN_AFTER
        return [run for run in self.active.values() if run.started and run.attempt.started_at <= before]

    def is_blocked_by(self, long_runs: Sequence[ActiveRun]) -> bool:
        """Whether long runs hold all places, or the whole share of an org that has jobs waiting here."""
        places, held = self.engine.settings.concurrency, Counter(run.attempt.job.org_id for run in long_runs)
        share = self.shares.most or places
        blocked = (self.shares.is_full(org) and held[org] >= share for org in self.waiting.orgs)
        return len(long_runs) >= places or any(blocked)

    # hand back

    async def hand_back_waiting(self) -> None:
        """Return the waiting jobs to other workers, because long runs hold the places here."""
        async with self.gate.drain():
            self.waiting.clear()
            self.size, self.caught_up = 0, False
            await self.registration.hand_back_all_but(self.known_jobs)

    async def hand_back_unknown(self, error: Exception) -> None:
        """Return the jobs that the database has under this worker though the answer to their claim was lost."""
        log.debug("claim failed; trying again", error=str(error))
        await real_sleep(random.uniform(0.2, 1))
        async with self.gate.drain():
            await self.registration.hand_back_all_but(self.known_jobs)

    async def drain(self) -> list[str]:
        """Wait for claims in flight and forget the waiting jobs; returns their ids, to be handed back."""
        async with self.gate.drain():
            job_ids = [job.id for job in self.waiting]
            self.waiting.clear()
        return job_ids


class Reservation:
    """Places that a worker keeps for jobs about to be inserted; without a lease it keeps none."""

    def __init__(self, lease: LeaseOffer | None) -> None:
        self.lease = lease
        self.delivered: Sequence[Job] = ()

    def deliver(self, leased: Sequence[Job]) -> None:
        """Hand over the jobs that were inserted under the lease."""
        self.delivered = leased
