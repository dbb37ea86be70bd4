"""Runs jobs: claims batches that fill the free room, starts them, writes down how they ended.

    claim → waiting → start → running → ended → finish (a batch, one transaction)

A claimed job is not a started one: it has no run until its handler is entered. Starts are written down in batches
for jobs that still run after a moment; a job that acts on the world outside, or that was in the hands of a worker
that died, has its start written down first.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog

from rota.core.clock import Clock, SystemClock, real_sleep, stopwatch
from rota.core.errors import DataRefused, Unavailable
from rota.core.fair_shares import Lane
from rota.core.ids import new_id
from rota.core.model import WORKFLOW, Attempt, AttemptResult, FinishResult, FireResult, Job, Lease, RunInfo
from rota.core.policy import (
    QUARANTINE_CRASHES,
    RECONCILIATION,
    TRANSIENT_RETRY,
    Failure,
    FailureClass,
    GiveUp,
    Park,
    Retry,
    RetryAfter,
    after_failure,
    classify,
)
from rota.core.states import Move, Status
from rota.db.dialect import Tx
from rota.db.retry import retry_until_available
from rota.engine import jobs, orgs, runs, workers
from rota.engine.commands import Engine
from rota.engine.heartbeat import Keeper
from rota.engine.run_end_log import log_ended
from rota.engine.runner import (
    Busy,
    Canceled,
    ChildCrashed,
    Follows,
    Learns,
    RunContext,
    RunLog,
    SetAside,
    Skipped,
    Written,
    current_log,
)
from rota.engine.supervision import start_supervised
from rota.engine.worker.claim_gate import ClaimGate
from rota.engine.worker.fair_queue import FairQueue
from rota.engine.worker.org_shares import OrgShares
from rota.version import __version__

MARK_AFTER = timedelta(milliseconds=100)
EARLY = timedelta(milliseconds=50)  # how long before its moment a slot may be fired for a worker, to start on time
BATCH = 500  # also bounds the advisory locks that one transaction takes
GATHER = 0.005  # seconds that results wait for more of them while jobs lie waiting: few transactions for a crowd
FORESIGHT = 0.1  # seconds of work that are claimed beforehand
SAMPLE = 50  # results that tell how long jobs last
PATIENCE = 0.05  # seconds that a fire waits for a place in the line, which saves it the claim
AHEAD = 1000  # the most jobs claimed beyond those that run
SAFETY_LOOK = 30.0
LAST_WORDS = 30.0  # seconds that a stopping worker waits for a database that is out of reach
ISOLATED_AT_ONCE = 4  # child processes for jobs that may have killed a worker
STILL_RUNNING = timedelta(seconds=1)  # how long a job waits whose earlier attempt has not ended in this process
NEVER = Retry(0)
NOBODY: Mapping[str, Follows] = {}

log = structlog.get_logger("rota.worker")


@dataclass(slots=True)
class ActiveRun:
    """A run under way."""

    attempt: Attempt
    ctx: RunContext
    task: asyncio.Task[Any] | None = None
    place: "Place | None" = None
    entered: bool = False  # it has begun; before that it only waits for a place
    marked: bool = False
    stopped_for: str | None = None  # "timeout", "shutdown", "lost", or who cancelled it
    timer: asyncio.TimerHandle | None = None

    def stop(self, why: str) -> None:
        """Climb the ladder's first step: tell the work. Its runner sees to the rest."""
        if self.stopped_for is None:
            self.stopped_for = why
            self.ctx.canceled.set()
            self.press()

    def press(self) -> None:
        """Async work that swallows its cancellation is cancelled again after each grace."""
        if self.task is not None and not self.task.done():
            self.task.cancel()
            asyncio.get_running_loop().call_later(self.ctx.cancel_grace.total_seconds(), self.press)


class Place:
    """A place among few, given up once: when the run ended, or before."""

    def __init__(self, among: asyncio.Semaphore) -> None:
        self._among: asyncio.Semaphore | None = among

    def leave(self) -> None:
        if self._among is not None:
            self._among.release()
            self._among = None


@dataclass(slots=True)
class Worker:
    """One process's share of the work. `run` lives until `drain` or `abandon`."""

    engine: Engine
    queues: Collection[str] | None = None
    orgs: Collection[str] | None = None  # slugs of those that it serves; None: all
    id: str = field(default_factory=new_id)
    waiting: FairQueue = field(default_factory=FairQueue)
    alarm: asyncio.TimerHandle | None = None  # for what waits for its moment
    active: dict[str, ActiveRun] = field(default_factory=dict)  # by job; shared by all registrations of a process
    ended: list[AttemptResult] = field(default_factory=list)
    logs: list[tuple[str, datetime, str, str]] = field(default_factory=list)
    learned: tuple[int, float] = (-1, 0.0)  # at which change and when `learn` last read
    org_ids: Collection[str] | None = None  # of `orgs`, as `learn` read them
    registered: bool = False
    claimed_at: float = field(default_factory=stopwatch)  # when it last looked for work
    stored_at: float = field(default_factory=stopwatch)  # when results were last stored, or came to an empty list
    draining: bool = False
    lost: bool = False
    turn: int = field(default_factory=lambda: random.randrange(1000))
    after: Lane | None = None  # behind which the next claim looks for work, when there is too much for one look
    sole: Lane | None = None  # the lane that had all the work when this worker last looked
    unlimited: bool = False  # nothing but room kept it from taking more then
    sated: bool = False  # it has all there was: it need not look again before it is told of more
    ahead: int = 0  # jobs to claim beyond those that run
    keeper: Keeper | None = None
    shares: OrgShares = field(init=False)
    gate: ClaimGate = field(default_factory=ClaimGate)
    flush_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    lone_place: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))  # see Job.alone
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(ISOLATED_AT_ONCE))
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    busy: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.shares = OrgShares(self.engine.settings.concurrency)

    @property
    def routes(self) -> list[str]:
        return sorted({route for runner in self.engine.runners.values() for route in runner.routes()})

    @property
    def stopping(self) -> bool:
        return self.draining or self.lost

    @property
    def known(self) -> set[str]:
        """The ids of all jobs that this worker knows it holds."""
        return {*self.active, *(job.id for job in self.waiting), *(one.job.id for one in self.ended)}

    @property
    def load(self) -> int:
        """How many jobs it has, or may have in a moment."""
        return len(self.active) + len(self.waiting) + self.gate.expected

    @property
    def room(self) -> int:
        """How many jobs can start at once."""
        return max(0, self.engine.settings.concurrency - self.load)

    @property
    def space(self) -> int:
        """How many jobs can start or wait."""
        return max(0, self.engine.settings.concurrency + self.ahead - self.load)

    @property
    def appetite(self) -> int:
        """How many jobs it takes as they are made: only what can start while others that came before lie ready."""
        return self.space if self.sated else self.room

    def trouble(self) -> str | None:
        """Why it does not work, if so: it has not looked for work, or not stored results, for long."""
        now, longest = stopwatch(), 2 * SAFETY_LOOK
        if now - self.claimed_at > longest:
            return f"has not looked for work for {now - self.claimed_at:.0f} s"
        if self.ended and now - self.stored_at > longest:
            return f"has {len(self.ended)} results that could not be stored for {now - self.stored_at:.0f} s"
        return None

    # life

    async def run(self) -> None:
        """Register, work until drained, say good-bye."""
        await self.register()
        steps = {"claims": self.claiming, "results": self.finishing, "starts": self.tending, "cancels": self.heeding}
        loops = [start_supervised(name, step) for name, step in steps.items()]
        settings = self.engine.settings
        log.info(
            "worker started", worker=self.id, pid=os.getpid(), concurrency=settings.concurrency,
            queues=",".join(self.queues) if self.queues else "all", version=__version__,
        )  # fmt: skip
        try:
            await self.finished.wait()
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            if self.keeper is not None:
                await asyncio.to_thread(self.keeper.stop)
            log.info("worker stopped", worker=self.id, lease_lost=self.lost)

    async def register(self) -> None:
        clock, settings = self.engine.clock, self.engine.settings
        loop = asyncio.get_running_loop()
        sample = await self.engine.db.tx(workers.measure)
        if isinstance(clock, SystemClock):
            clock.sync(sample)
        await self.learn()
        kinds, routes = sorted(self.engine.runners), self.routes
        await self.engine.db.tx(
            lambda tx: workers.register(
                tx, worker=self.id, pid=os.getpid(), version=__version__, concurrency=settings.concurrency, kinds=kinds,
                routes=routes, queues=self.queues, lease=settings.lease, now=clock.now(),
            )
        )  # fmt: skip
        self.registered = True
        if isinstance(clock, SystemClock):
            self.keeper = Keeper(
                self.engine.db.url, clock, self.id, settings.lease,
                on_cancel=lambda found: call_in(loop, self.heed, found),
                on_lost=lambda: call_in(loop, self.abandon),
            )  # fmt: skip
            self.keeper.start()

    async def learn(self) -> bool:
        """Read again which orgs share this worker, and what can be run here; True if the routes changed."""
        self.learned = (self.engine.wake.tasks, stopwatch())
        known = await self.engine.db.read(orgs.limits)
        self.shares.update(len(known) > 1, {org.id for org in known if org.max_running is not None})
        self.org_ids = None if self.orgs is None else {org.id for org in known if org.slug in self.orgs}
        learners = [runner for runner in self.engine.runners.values() if isinstance(runner, Learns)]
        return any([await runner.learn() for runner in learners])

    async def learn_changes(self) -> None:
        """Announce what can be run here after a change of rights or tasks; looks by itself every SAFETY_LOOK."""
        change, at = self.learned
        if change == self.engine.wake.tasks and stopwatch() - at < SAFETY_LOOK:
            return
        if await self.learn():
            await self.engine.db.tx(workers.announce, self.id, self.routes)

    async def drain(self, limit: timedelta, cancel: asyncio.Event | None = None) -> None:
        """Stop: no new claims, prefetched jobs go back, runs under way may end until `limit` has passed or `cancel` is
        set; then they are cancelled, and their jobs handed back."""
        self.draining = True
        async with self.gate.drain():  # one that is under way hands back what it took
            back = [job.id for job in self.waiting]
            self.waiting.clear()
        for one in [one for one in self.active.values() if not one.entered]:
            back.append(one.attempt.job.id)
            one.stop("lost")  # it never began: there is nothing to tell
        await self.give_back(back)
        if self.active and limit:
            seconds = f"{limit.total_seconds():g}"
            log.info(
                "stopping: waiting for the runs under way; a second signal cancels them",
                runs=len(self.active),
                seconds=seconds,
            )
        await self.until_idle(limit.total_seconds(), cancel)
        for one in list(self.active.values()):
            one.stop("shutdown")
        await self.until_idle(2 * self.engine.settings.cancel_grace.total_seconds() + 5)
        for one in self.active.values():
            log.error("a run does not end; its lease will run out", run=one.attempt.run_id, job=one.attempt.job.id)
        try:
            async with asyncio.timeout(LAST_WORDS):
                while self.ended or self.logs:
                    await self.flush()
                if not self.active:
                    await self.engine.db.tx(workers.stop, self.id, self.engine.clock.now())
        except (TimeoutError, Unavailable):
            log.error("the database is out of reach; what is not written will run again", count=len(self.ended))
        self.finished.set()

    def abandon(self) -> None:
        """The lease is lost, and other workers may have the jobs: stop all attempts. `close_out` records what they came
        to."""
        self.lost = True
        self.waiting.clear()
        for attempt in self.own_attempts():
            attempt.stop("lost")
            if not attempt.entered:
                del self.active[attempt.attempt.job.id]
        self.finished.set()
        self.engine.wake.signal("ready")

    async def close_out(self) -> None:
        """Record the results of a worker that lost its lease, however long the last attempt and the database take, and
        hand its other jobs back. The fence decides: a job that no other worker was given is finished or handed back as
        usual; else the attempt is recorded as lost."""
        await retry_until_available(lambda: self.engine.db.tx(jobs.hand_back, self.id, None, self.known))
        while self.ended or self.logs or self.own_attempts():
            if self.ended or self.logs:
                await self.flush()
            else:
                self.idle.clear()
                await self.idle.wait()
        await retry_until_available(lambda: self.engine.db.tx(workers.stop, self.id, self.engine.clock.now()))

    def own_attempts(self) -> list[ActiveRun]:
        """Attempts of this registration; an earlier one of the process may have some that do not end."""
        return [attempt for attempt in self.active.values() if attempt.ctx.worker == self.id]

    # claim

    @property
    def chooses_all(self) -> bool:
        """Whether it serves all orgs and queues."""
        return self.queues is None and self.orgs is None

    async def claiming(self) -> None:
        wake = self.engine.wake.work
        while not self.finished.is_set():
            if self.waiting:
                await real_sleep(
                    GATHER
                )  # there is enough to do: more is heard of meanwhile, and one look is for all of it
            wake.clear()
            self.claimed_at = stopwatch()
            if not self.draining:
                try:
                    await self.learn_changes()
                    while await self.claim():
                        pass
                except Unavailable as error:
                    await self.reclaim(error)
                except Exception as error:
                    await self.reclaim(error)
                    raise
            await self.engine.clock.wait(wake, SAFETY_LOOK)

    async def claim(self) -> bool:
        """Fill the free room; True if there may be more to take."""
        async with self.gate.claim() as this:
            self.sated = False
            if self.space > self.ahead // 2:
                room = min(self.space, BATCH)
                this.expect(room)
                took = await self.take_from_sole(room)
                more = len(took) == room
                if not took:
                    took = await self.take(room)
                    more = bool(took)
                self.sated = not more and self.unlimited
            else:
                took, more = await self.take_of_others(), False
            return await self.receive(took) and more

    async def take_fired(
        self, fire: Callable[[Lease | None], Awaitable[FireResult]], count: int, until: datetime
    ) -> FireResult:
        """Let the scheduler of this process fire so many; what can start at once, or at its moment until then, is ours
        from the transaction on that makes it."""
        if not self.registered or self.stopping or not self.appetite:
            return await fire(None)
        try:
            async with self.gate.claim() as this:
                most = min(count, self.appetite)
                room = min(most, self.room)
                this.expect(most)
                fired = await fire(
                    Lease(self.id, self.routes, self.queues, room, most - room, until, self.org_ids, self.org_room)
                )
                await self.receive(fired.leased_jobs)
                return fired
        except Unavailable as error:
            await self.reclaim(error)
            raise

    async def await_space(self, least: int) -> int:
        """How many it can have of what is about to be fired: none while others lie ready. A line that moves is waited
        for, until there is space for this many and it is half done."""
        until = stopwatch() + PATIENCE
        while self.sated and self.space < max(least, self.ahead // 2) and stopwatch() < until:
            await real_sleep(GATHER)
        return self.space if self.sated else 0

    async def receive(self, took: Sequence[Job]) -> bool:
        """Jobs that are ours now: start what has room. False if it is too late for that, and they go back."""
        if self.stopping:
            await self.give_back([job.id for job in took])
            return False
        self.waiting.extend(took)
        self.start_waiting()
        return True

    def org_room(self, org_id: str) -> int | None:
        """How many more jobs of an org this worker takes; None: as many as it has space for."""
        room = self.shares.room(org_id)
        return None if room is None else max(0, room + self.ahead - self.waiting.count(org_id))

    async def take_from_sole(self, room: int) -> list[Job]:
        """Work that lies in one lane is taken without looking first where it lies."""
        if self.sole is None or self.stopping:
            return []
        most = self.org_room(self.sole.org_id)
        if most is not None and most < room:
            return []  # the long way knows of shares
        return await self.engine.db.statement(jobs.claim_sole, self.sole, worker=self.id, routes=self.routes, room=room)

    async def take(self, room: int) -> list[Job]:
        found = await self.engine.db.read(jobs.lanes, self.queues, self.after, self.org_ids)
        if not found or self.stopping:
            self.unlimited = not found
            return []
        limited = {lane.org_id for lane in found if (most := self.org_room(lane.org_id)) is not None and most < room}
        self.unlimited = not limited and all(lane.cap is None for lane in found)
        self.sole = found[0] if len(found) == 1 and self.unlimited and self.chooses_all else None
        if len(found) == jobs.LANES_PER_CLAIM:  # too many for one look: the next one goes on behind those that get room
            self.after, self.turn = found[min(room, len(found)) - 1], 0
        else:
            self.after, self.turn = None, self.turn + 1
        return await self.take_of(found, room)

    async def take_of_others(self) -> list[Job]:
        """There is work enough for a while, but not of everybody: a job of each org that has none waiting here."""
        if not self.waiting or self.stopping:
            return []
        found = await self.engine.db.read(jobs.lanes, self.queues, None, self.org_ids)
        others = {lane.org_id: lane for lane in found if lane.org_id not in self.waiting.orgs}
        return await self.take_of(list(others.values()), len(others)) if others and not self.stopping else []

    async def take_of(self, found: Sequence[Lane], room: int) -> list[Job]:
        db, rooms = self.engine.db, {lane.org_id: self.org_room(lane.org_id) for lane in found}
        found = [lane for lane in found if rooms[lane.org_id] != 0]
        if not found:
            return []
        org_room = {org_id: most for org_id, most in rooms.items() if most is not None}
        run = db.statement if all(lane.cap is None for lane in found) else db.tx
        return await run(
            jobs.claim, found, worker=self.id, routes=self.routes, room=room, turn=self.turn, org_room=org_room
        )

    async def reclaim(self, error: Exception) -> None:
        """After a lost answer this worker may own jobs that it does not know of: hand those back."""
        log.debug("cannot claim; trying again", error=str(error))
        await real_sleep(random.uniform(0.2, 1))
        async with self.gate.drain():
            await retry_until_available(lambda: self.engine.db.tx(jobs.hand_back, self.id, None, self.known))

    async def give_back(self, ids: Sequence[str]) -> None:
        if ids:
            try:
                await self.engine.db.tx(jobs.hand_back, self.id, ids)
            except Unavailable as error:
                log.warning("could not hand jobs back; their lease will run out", error=error.message)

    async def let_go(self) -> None:
        """Nothing moves: what waits here is for others."""
        async with self.gate.drain():
            self.waiting.clear()
            self.ahead, self.sated = 0, False
            await retry_until_available(lambda: self.engine.db.tx(jobs.hand_back, self.id, None, self.known))

    # run

    def start_waiting(self, now: datetime | None = None) -> None:
        now = now or self.engine.clock.now()  # one look for all that start together
        ahead: datetime | None = None  # when the first is due that was fired ahead of its moment
        for _ in range(len(self.waiting)):
            if len(self.active) >= self.engine.settings.concurrency or self.stopping:
                return
            job = self.waiting.next(self.shares.full_among(self.waiting.orgs))
            if job is None:
                break
            if not now < job.run_at <= now + EARLY:  # else somebody with another clock said that it is due
                self.start(job, now)
            else:
                self.waiting.extend([job])
                ahead = min(job.run_at, ahead or job.run_at)
        if ahead is not None:
            if self.alarm is not None:
                self.alarm.cancel()
            self.alarm = asyncio.get_running_loop().call_later((ahead - now).total_seconds(), self.start_waiting)

    def has_room(self) -> bool:
        return not self.stopping and not self.waiting and len(self.active) < self.engine.settings.concurrency

    def start(self, job: Job, now: datetime) -> None:
        """Start an attempt, unless an earlier attempt of the job still runs in this process: then the job waits. If
        this registration started that attempt, others have declared it dead: it abandons all its jobs."""
        earlier = self.active.get(job.id)
        if earlier is None:
            self.launch(Attempt(job, new_id(), job.attempt + 1, now))
            return
        waits = AttemptResult(job, Status.PENDING, None, now, new_id(), job.attempt + 1, move=Move.BACK_OFF)
        self.ended.append(replace(waits, run_at=now + STILL_RUNNING))
        self.idle.set()
        if earlier.ctx.worker == self.id:
            log.error("a job was claimed while it runs here: this worker was declared dead", job=job.id, worker=self.id)
            self.abandon()

    def launch(self, attempt: Attempt, work: Any = None) -> None:
        job, run_id, engine = attempt.job, attempt.run_id, self.engine
        ctx = RunContext(
            job, run_id, attempt.number, self.id, RunLog(run_id, engine.clock.now), job.isolated,
            engine.settings.cancel_grace, host=engine, has_room=self.has_room,
        )  # fmt: skip
        ctx.info.work = work
        one = self.active[job.id] = ActiveRun(attempt, ctx)
        self.shares.begin(job.org_id)
        self.busy.set()
        work, tracing = self.enter_apart if job.isolated else self.enter, engine.tracing
        begun = work(one) if tracing is None else tracing.run(one.attempt, lambda: work(one))
        one.task = asyncio.get_running_loop().create_task(begun)
        one.task.add_done_callback(partial(self.settle, one))

    async def enter_apart(self, one: ActiveRun) -> Any:
        """An attempt at a job that may have killed a worker: few run at once or, after three deaths, one."""
        places = self.lone_place if one.attempt.job.alone else self.places
        await places.acquire()  # waiting for a place is not running: if this worker dies now, it did not crash
        one.place = Place(places)
        try:
            one.attempt = replace(one.attempt, started_at=self.engine.clock.now())
            return await self.enter(one)
        finally:
            one.place.leave()

    async def enter(self, one: ActiveRun) -> Any:
        """One attempt, from the first check to the outcome of the work."""
        one.entered = True
        job = one.attempt.job
        too_late = job.terms.too_late(one.attempt.started_at)
        if too_late is not None and job.attempt == 0:
            raise Skipped(too_late)
        runner, info = self.engine.runners[job.kind], one.ctx.info
        try:
            await runner.prepare(one.ctx)
        except Unavailable:
            await retry_until_available(lambda: runner.prepare(one.ctx))
        if job.terms.grant_id is not None:
            await retry_until_available(lambda: self.authorize(one))
        one.marked = info.marked
        if not one.marked and (job.suspect or info.marks_first):
            await retry_until_available(lambda: self.mark([one]))
        timeout = self.timeout_of(job, info)
        if timeout is not None and not info.delegates:
            one.timer = asyncio.get_running_loop().call_later(timeout.total_seconds(), one.stop, "timeout")
        current_log.set(one.ctx.log)
        return await runner.execute(one.ctx)

    def timeout_of(self, job: Job, info: RunInfo) -> timedelta | None:
        """The time limit of a run: of its schedule, its target, or the installation. Workflows have none by default: to
        interrupt a mutation needs a person afterwards."""
        default = None if job.kind == WORKFLOW else self.engine.settings.default_timeout
        return job.terms.timeout or info.timeout or default

    async def authorize(self, one: ActiveRun) -> None:
        """GRANT_NOT_SESSION: work whose grant does not hold does not begin."""
        job, info = one.attempt.job, one.ctx.info
        await self.engine.authorize(job, info.resource or info.name or job.target)

    def settle(self, one: ActiveRun, task: "asyncio.Task[Any]") -> None:
        """An attempt is over: note how, make room, and let the next one in."""
        now = self.engine.clock.now()
        if self.active.get(one.attempt.job.id) is one:
            del self.active[one.attempt.job.id]
        self.shares.end(one.attempt.job.org_id)
        if one.timer is not None:
            one.timer.cancel()
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        outcome = task.result() if error is None else None
        if isinstance(outcome, Written):
            self.report([outcome.ended], [])
            if outcome.then is not None and not self.lost:
                self.launch(outcome.then, outcome.work)
                return
            self.engine.wake.signal("ready")  # there may be a next one of its line
        else:
            try:
                ended = self.verdict(one, error, outcome, now)
            except Exception as bug:  # our own must not lose the job
                log.exception("a run could not be settled", run=one.attempt.run_id)
                ended = self.failed(one, classify(bug), FailureClass.INTERNAL)
            if ended is not None:
                self.stored_at = self.stored_at if self.ended else stopwatch()
                self.ended.append(ended)
                self.logs.extend(one.ctx.log.take(last=True))
        self.idle.set()
        if self.waiting:
            self.start_waiting(now)
        if len(self.waiting) <= self.ahead // 2 and not self.draining and not self.sated:  # fetch while these run
            self.engine.wake.work.set()

    def verdict(self, one: ActiveRun, error: BaseException | None, outcome: Any, now: datetime) -> AttemptResult | None:
        """How an attempt ended. What the work returned wins over a cancel that came too late."""
        attempt, info = one.attempt, one.ctx.info
        began = attempt.started_at if one.entered else None
        reason = info.reason if error is None else None
        base = AttemptResult(
            attempt.job, Status.SUCCESS, reason, now, attempt.run_id, attempt.number, began, None, outcome, info=info
        )
        if error is None:
            return base
        if isinstance(error, Stranger | SetAside):
            return None
        if isinstance(error, Skipped):
            told = None if error.failure is None else error.failure.dump()
            return replace(base, status=Status.SKIPPED, reason=error.reason, started_at=None, error=told)
        if isinstance(error, Canceled):
            return replace(base, status=Status.CANCELED, reason=error.by)
        match one.stopped_for:
            case None if isinstance(error, Busy):
                at = attempt.job.terms.not_before(now + error.delay)
                return replace(base, status=Status.PENDING, started_at=None, move=Move.BACK_OFF, run_at=at)
            case None:
                failure = getattr(error, "failure", None) or classify(error)
                if isinstance(error, ChildCrashed):
                    return self.crashed(base, str(error))
                return replace(
                    self.failed(one, failure, failure.failure_class), outcome=getattr(error, "outcome", None)
                )
            case "timeout":
                limit = self.timeout_of(attempt.job, info)
                text = f"still running after {limit.total_seconds():g} s" if limit else "it took too long"
                return self.failed(one, Failure(FailureClass.TIMEOUT, "Timeout", text), FailureClass.TIMEOUT)
            case "lost":
                lost = replace(base, status=Status.LOST, move=Move.HAND_BACK, run_at=now)
                return lost if one.entered else None
            case "shutdown":
                return replace(base, status=Status.CANCELED, reason="shutdown", move=Move.HAND_BACK, run_at=now)
            case by:
                return replace(base, status=Status.CANCELED, reason=by)

    def crashed(self, base: AttemptResult, message: str) -> AttemptResult:
        """The child process of an isolated run died: the same as a dead worker, but nobody else was hurt."""
        error = {"code": "crash", "type": "ChildLost", "message": message, "traceback": None}
        if base.job.crashes + 1 >= QUARANTINE_CRASHES:
            park = Move.PARK if base.job.parks_on_failure else None
            return replace(base, status=Status.FAILED, reason="quarantined", error=error, move=park)
        return replace(base, status=Status.CRASHED, error=error, move=Move.RESCUE, run_at=base.finished_at, counts=True)

    def failed(self, one: ActiveRun, failure: Failure, kind: FailureClass) -> AttemptResult:
        passing = self.engine.settings.passing_retry
        return failed_attempt(
            one.attempt, one.ctx.info, replace(failure, failure_class=kind), self.engine.clock.now(), passing
        )

    # write down

    async def finishing(self) -> None:
        while not self.finished.is_set():
            if self.ended:
                if self.waiting and len(self.ended) < BATCH:
                    await real_sleep(GATHER)
                await self.flush()
            else:
                self.idle.clear()
                await self.idle.wait()

    async def flush(self) -> None:
        """Write everything that ended so far; keep it when the database is out of reach."""
        async with self.flush_lock:  # whoever drains waits for a batch that is on its way
            batch = self.ended[:BATCH]  # they stay on the list until they are written: this worker knows of them
            self.ahead = self.foresight(batch)
            lines, self.logs = self.logs, []
            try:
                lost = await self.finish(batch, lines)
            except Unavailable as error:
                log.debug("results are not written yet; trying again", count=len(batch), error=error.message)
                self.logs = lines + self.logs
                await real_sleep(random.uniform(0.2, 1))
                return
            except asyncio.CancelledError:  # `close_out` writes them
                self.logs = lines + self.logs
                raise
            del self.ended[: len(batch)]
            self.stored_at = stopwatch()
        self.report(batch, lost)

    def foresight(self, batch: Sequence[AttemptResult]) -> int:
        """How far ahead to claim: what can be done within FORESIGHT if all work is like this, in places that move.
        Short work by the hundred, long work only what can start; the rest is for others."""
        some = [(one.started_at, one.finished_at) for one in batch[-SAMPLE:]]
        spans = [(end - start).total_seconds() for start, end in some if start is not None]
        mean = sum(spans) / len(spans) if spans else FORESIGHT
        places = self.engine.settings.concurrency - len(self.lasting())
        return min(AHEAD, int(places * FORESIGHT / max(mean, 0.001)))

    def report(self, batch: Sequence[AttemptResult], lost: Sequence[AttemptResult]) -> None:
        """Tell of runs that are written down."""
        refused = {one.run_id for one in lost}
        over = [one for one in batch if not one.not_started and one.run_id not in refused] + list(lost)
        log_ended(over)
        self.engine.meter.ended(over, len(lost))
        for one in lost:
            log.error("the lease was lost before a result came: recorded as lost", job=one.job.id, run=one.run_id)
        self.engine.wake.notify_followers()
        if not all(one.final for one in batch):
            self.engine.wake.signal("later")

    async def finish(self, batch: Sequence[AttemptResult], lines: Sequence[Any]) -> list[AttemptResult]:
        """Write a batch; those that are refused because their lease was lost are recorded as lost, and returned. A row
        that the database cannot store costs only itself."""
        try:
            db = self.engine.db
            kinds = {one.job.kind for one in batch}
            follows = {kind: runner for kind in kinds if isinstance(runner := self.engine.runners[kind], Follows)}
            run = db.statement if jobs.is_plain(batch) and not lines and not follows else db.tx
            kept, ready = await run(write_down, batch, lines, self.id, self.engine.clock, follows)
        except DataRefused as error:
            if len(batch) > 1:
                half = len(batch) // 2
                first = await self.finish(batch[:half], lines)
                return first + await self.finish(batch[half:], [])
            log.error("a result could not be stored", run=batch[0].run_id, error=error.message)
            failure = Failure(FailureClass.INTERNAL, "DataRefused", error.message)
            one = replace(
                batch[0], status=Status.FAILED, reason="internal", error=failure.dump(), outcome=None, move=None
            )
            batch = [one]
            try:
                kept, ready = await self.engine.db.tx(write_down, batch, [], self.id, self.engine.clock)
            except DataRefused as again:  # nothing about it can be stored: no other run may suffer from that
                log.error("a run could not be written at all", run=one.run_id, job=one.job.id, error=again.message)
                return [one]
        if ready or not self.unlimited:  # a limit that kept jobs waiting may have room now
            self.engine.wake.signal("ready")
        refused = [one for one in batch if one.run_id not in kept] if len(kept) < len(batch) else []
        if not refused:
            return []
        return await self.engine.db.tx(runs.record_lost, refused, self.id, self.engine.clock.now(), lines)

    def lasting(self) -> list[ActiveRun]:
        """The runs that did not end after a moment."""
        old = self.engine.clock.now() - MARK_AFTER
        return [one for one in self.active.values() if one.entered and one.attempt.started_at <= old]

    async def tending(self) -> None:
        """Write down the starts of runs that last, and what runs say meanwhile; and let nothing wait behind them."""
        while not self.finished.is_set():
            if not self.active:
                self.busy.clear()
                await self.busy.wait()
            await real_sleep(MARK_AFTER.total_seconds())
            lasting = self.lasting()
            unmarked = [one for one in lasting if not one.marked]
            lines = [line for one in self.active.values() if one.marked for line in one.ctx.log.take()]
            try:
                if unmarked:
                    await self.mark(unmarked, raising=False)
                if lines:
                    await self.engine.db.tx(runs.write_logs, lines)
                if self.waiting and self.stands(lasting):
                    await self.let_go()
            except Unavailable as error:
                self.logs.extend(lines)
                log.debug("starts and logs are not written yet; trying again", error=error.message)
                await real_sleep(random.uniform(0.2, 1))

    def stands(self, lasting: Sequence[ActiveRun]) -> bool:
        """Whether runs that last hold all places, or all that an org may have of whose jobs some wait here."""
        held = Counter(run.attempt.job.org_id for run in lasting)
        most, shares = self.engine.settings.concurrency, self.shares
        blocked = (shares.is_full(org) and held[org] >= (shares.most or most) for org in self.waiting.orgs)
        return len(lasting) >= most or any(blocked)

    async def mark(self, some: Sequence[ActiveRun], raising: bool = True) -> None:
        """Write down that these runs began; one whose lease is lost must not go on."""
        kept = await self.engine.db.tx(jobs.mark_started, [one.attempt for one in some])
        for one in some:
            one.marked = True
            if one.attempt.run_id not in kept and self.active.get(one.attempt.job.id) is one:
                log.error("the lease of a run was lost", job=one.attempt.job.id, run=one.attempt.run_id)
                one.stop("lost")
                if raising:
                    raise Stranger

    # cancel

    async def heeding(self) -> None:
        """Stop runs as soon as somebody asks for it."""
        wake = self.engine.wake.cancel
        while not self.finished.is_set():
            await self.engine.clock.wait(wake, SAFETY_LOOK)
            wake.clear()
            if self.active or self.waiting:
                try:
                    self.heed(await self.engine.db.read(jobs.cancels, self.id))
                except Unavailable as error:
                    log.debug("could not ask which runs to stop", error=error.message)

    def heed(self, found: dict[str, str]) -> None:
        for job_id, by in found.items():
            if job_id in self.active:
                self.active[job_id].stop(by)
        for job in [job for job in self.waiting if job.id in found]:
            self.waiting.remove(job)
            now = self.engine.clock.now()
            self.ended.append(AttemptResult(job, Status.CANCELED, found[job.id], now, new_id(), job.attempt + 1))
            self.idle.set()

    async def until_idle(self, seconds: float, cut_short: asyncio.Event | None = None) -> None:
        """Wait until nothing runs, for at most so many seconds, or until `cut_short` is set."""
        tasks = [one.task for one in self.active.values() if one.task is not None]
        if tasks:
            ended = asyncio.ensure_future(asyncio.wait(tasks, timeout=seconds))
            cut = asyncio.ensure_future((cut_short or asyncio.Event()).wait())
            await asyncio.wait([ended, cut], return_when=asyncio.FIRST_COMPLETED)
            for waiting in (ended, cut):
                waiting.cancel()
            await real_sleep(0)  # their callbacks take them off the list


class Stranger(Exception):
    """The job is not ours any more."""


def failed_attempt(
    attempt: Attempt, info: RunInfo, failure: Failure, now: datetime, passing: Retry = TRANSIENT_RETRY
) -> AttemptResult:
    """A failure and what follows it, by the job's terms; `passing` as in `after_failure`."""
    job, kind = attempt.job, failure.failure_class
    base = AttemptResult(
        job, Status.FAILED, kind.value, now, attempt.run_id, attempt.number, attempt.started_at,
        error=failure.dump(), counts=True, info=info,
    )  # fmt: skip
    retry = NEVER if info.delegates else job.terms.retry or info.retry
    match after_failure(failure, retry, job.tries + 1, passing):
        case RetryAfter(delay):
            at = job.terms.not_before(now + delay)
            again = replace(base, move=Move.BACK_OFF, run_at=at)
            if kind is FailureClass.INDETERMINATE:
                return replace(again, status=Status.PAUSED, reason=RECONCILIATION, counts=False)
            return replace(again, status=Status.PAUSED) if kind is FailureClass.TRANSIENT else again
        case Park(reason):
            return replace(base, status=Status.PAUSED, reason=reason, move=Move.PARK)
        case GiveUp():
            return replace(base, move=Move.PARK) if job.parks_on_failure else base


def write_down(
    tx: Tx, batch: Sequence[AttemptResult], lines: Sequence[Any], worker: str, clock: Clock,
    follows: Mapping[str, Follows] = NOBODY,
) -> FinishResult:  # fmt: skip
    now = clock.now()  # asked here: this step may have waited for its turn to write
    kept, ready = jobs.finish(tx, batch, worker, now)
    for kind, runner in follows.items():
        runner.follow(tx, [one for one in batch if one.job.kind == kind and one.run_id in kept], now)
    if lines:
        strange = {one.run_id for one in batch} - kept  # refused, or written by a commit whose answer was lost
        runs.write_logs(tx, [line for line in lines if line[0] not in strange])
    return FinishResult(kept, ready or bool(follows))


def call_in(loop: asyncio.AbstractEventLoop, what: Any, *args: Any) -> None:
    """Call from another thread; a loop that is closed already does not need to know."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(what, *args)
