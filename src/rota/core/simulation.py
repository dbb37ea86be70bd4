"""Simulation of schedules over a time range: what would run, wait, be skipped or missed. Pure.

Slots are decided by `plan` and `overlap`, as the scheduler decides them. The queue is modelled: priorities, serial
keys, limits of queues and places, deadlines, interruptions by outages. Runs take the duration that the caller expects
and succeed. Where several things happen at the same instant, runs end first, then slots fire.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count

from rota.core.kinds import traits_of
from rota.core.model import DueSchedule, Fire, Gap
from rota.core.overlap import coalesced_jobs, skips_for_overlap, stopped_jobs, terms_of, without_fires
from rota.core.plan import first_plan, passed_gap, plan_at
from rota.core.policy import QUARANTINE_CRASHES, Overlap, Terms
from rota.core.states import State, Verdict
from rota.core.timing.ahead import slots_after
from rota.core.timing.dst import TICK
from rota.core.timing.triggers import EARLIEST, next_slot

EVENTS_PER_CHECK = 500  # between two calls of `go_on`

Urgency = tuple[int, datetime, int]
NOT_URGENT: Urgency = (0, EARLIEST, 0)


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A half-open time range."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """How many jobs of a queue may run at once; None: any number."""

    max_running: int | None = None
    paused: bool = False


UNLIMITED = QueueLimit()


@dataclass(frozen=True, slots=True)
class Expected:
    """A schedule, and what a run of it is expected to take and to cost."""

    due: DueSchedule
    duration: timedelta
    credits: float = 0.0
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is assumed: no scheduler and no worker runs in `outages`, which are disjoint and ascending; at most `places`
    jobs run at once."""

    span: TimeRange
    outages: Sequence[TimeRange] = ()
    places: int | None = None
    queues: Mapping[str, QueueLimit] = field(default_factory=dict)
    grace: timedelta = timedelta(seconds=60)
    slots_max: int = 500_000  # decided slots and ranges of slots; the simulation ends there


@dataclass(slots=True, eq=False)
class SimulatedSlot:
    """A slot, or a range of slots that did not fire, and what became of it; with its job if it fired. A slot without a
    verdict still waits when the simulation ends."""

    position: int  # of its schedule
    slot: datetime
    last_slot: datetime
    slots: int | None = 1
    verdict: str | None = None
    reason: str | None = None
    into: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    state: State = State.BLOCKED
    solo_key: str | None = None
    trigger: str = "schedule"
    terms: Terms | None = None
    run_at: datetime | None = None
    urgency: Urgency = NOT_URGENT
    serial_key: str | None = None
    crashes: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class PlainSchedule:
    """A schedule of which a slot that is due, without jobs before it, fires and can start at once; with what all its
    jobs have in common. Most schedules are plain."""

    terms: Terms
    urgency: int
    serial_key: str | None
    solo_key: str | None


@dataclass(slots=True)
class Simulated:
    """The result: every slot of the time range, in the order of decision, up to `until`."""

    slots: list[SimulatedSlot]
    until: datetime
    truncated: bool


def first_due(due: DueSchedule, start: datetime) -> DueSchedule:
    """Return a schedule with its clock set to its first slot from `start` on."""
    slot, at = first_plan(due.schedule, start - TICK)
    return replace(due, next_slot=slot, run_at=None if at is None else max(at, start))


def simulate(schedules: Sequence[Expected], scenario: Scenario, go_on: Callable[[], bool] = lambda: True) -> Simulated:
    """Simulate schedules with empty queues at the start. Ends early, truncated, when `go_on` returns False or there are
    too many slots."""
    return Simulation(schedules, scenario, go_on).run()


def plain_schedules(schedules: Sequence[Expected], queues: Mapping[str, QueueLimit]) -> list[PlainSchedule | None]:
    """Return for each schedule what its jobs have in common, None for those that are not plain: nothing holds their
    slots, changes their number or delays a start, and their jobs wait for no other schedule's."""
    keys = Counter(expected.due.schedule.serial_key for expected in schedules)

    def plain(due: DueSchedule) -> PlainSchedule | None:
        schedule = due.schedule
        held = schedule.paused_at is not None or due.frozen_at is not None or due.windows
        limited = queues.get(schedule.queue, UNLIMITED) != UNLIMITED or schedule.start_deadline is not None
        key = schedule.serial_key
        shared = key is not None and keys[key] > 1
        timing = schedule.timing
        if held or limited or shared or schedule.max_runs is not None or timing.window or timing.jitter or timing.after:
            return None
        terms = terms_of(schedule, Fire(EARLIEST, EARLIEST, solo=False))
        return PlainSchedule(terms, -schedule.priority, key, schedule.id if schedule.keeps_one_waiting else None)

    return [plain(expected.due) for expected in schedules]


class Simulation:
    """`clocks` are the due times of schedules, `ends` those of runs; `ready` has the jobs of each queue that can start,
    `blocked` those that wait for another of their serial key, `heads` the jobs that they wait for."""

    def __init__(self, schedules: Sequence[Expected], scenario: Scenario, go_on: Callable[[], bool]) -> None:
        self.scenario, self.go_on = scenario, go_on
        self.schedules, self.dues = schedules, [replace(expected.due) for expected in schedules]
        self.plain = plain_schedules(schedules, scenario.queues)
        self.order = count()
        self.ahead: list[Iterator[datetime] | None] = [None] * len(schedules)  # slots of plain schedules
        self.slots: list[SimulatedSlot] = []
        self.jobs: list[list[SimulatedSlot]] = [[] for _ in schedules]
        self.clocks: list[tuple[datetime, int]] = []
        self.ends: list[tuple[datetime, int, SimulatedSlot | None]] = [
            (outage.end, next(self.order), None) for outage in scenario.outages
        ]
        heapq.heapify(self.ends)
        self.ready: dict[str, list[tuple[Urgency, SimulatedSlot]]] = {}
        self.blocked: dict[str, list[tuple[Urgency, SimulatedSlot]]] = {}
        self.heads: dict[str, SimulatedSlot] = {}
        self.running: dict[str, int] = {}
        self.running_total = 0
        for position in range(len(schedules)):
            self.set_clock(position)

    def run(self) -> Simulated:
        """Step from event to event until the end of the time range."""
        end, steps, truncated = self.scenario.span.end, 0, False
        now = self.scenario.span.start
        while self.clocks or self.ends:
            following = min(self.clocks[0][0] if self.clocks else end, self.ends[0][0] if self.ends else end)
            if following >= end:
                break
            now = following
            steps += 1
            if len(self.slots) >= self.scenario.slots_max or (steps % EVENTS_PER_CHECK == 0 and not self.go_on()):
                truncated = True
                break
            self.end_runs(now)
            self.fire(now)
        until = now if truncated else end
        self.close(until)
        return Simulated(self.slots, until, truncated)

    # clocks

    def set_clock(self, position: int) -> None:
        """Wait for the due time of a schedule, or for the end of its pause; without one it is decided at the end."""
        due = self.dues[position]
        schedule = due.schedule
        at = schedule.paused_until if schedule.paused_at is not None else due.run_at
        if due.next_slot is not None and at is not None:
            heapq.heappush(self.clocks, (max(at, self.scenario.span.start), position))

    def fire(self, now: datetime) -> None:
        """Decide the slots that are due, then start what can start."""
        clocks, keys = self.clocks, set[str]()
        plain_jobs: list[SimulatedSlot] = []
        outage = self.outage_at(now)
        while clocks and clocks[0][0] <= now:
            _, position = clocks[0]
            plain = self.plain[position]
            if outage is not None:
                heapq.heapreplace(clocks, (outage.end, position))
            elif plain is not None and self.dues[position].next_slot == now and not self.jobs[position]:
                plain_jobs.append(self.fire_plain(position, plain, now))
            else:
                heapq.heappop(clocks)
                self.fire_schedule(position, now, keys)
        if plain_jobs and self.start_plain(plain_jobs, len(keys), now) and not keys:
            return
        self.promote(keys)
        self.claim(now)

    def fire_plain(self, position: int, plain: PlainSchedule, now: datetime) -> SimulatedSlot:
        """Fire the only slot that is due of a plain schedule without jobs, which `plan` would fire too."""
        due = self.dues[position]
        ahead = self.ahead[position]
        if ahead is None:
            ahead = self.ahead[position] = slots_after(due.schedule.timing, now)
        due.next_slot = following = next(ahead, None)
        due.fired += 1
        if following is None:
            heapq.heappop(self.clocks)
        else:
            heapq.heapreplace(self.clocks, (following, position))
        job = SimulatedSlot(
            position, now, now, solo_key=plain.solo_key, terms=plain.terms, run_at=now,
            urgency=(plain.urgency, now, next(self.order)), serial_key=plain.serial_key,
        )  # fmt: skip
        self.slots.append(job)
        self.jobs[position].append(job)
        return job

    def start_plain(self, new: Sequence[SimulatedSlot], others: int, now: datetime) -> bool:
        """Start new jobs of plain schedules if there are places for them and all that wait, with `others` that are due
        now; else they queue up. Returns whether nothing waits."""
        waiting = sum(map(len, self.ready.values())) + others
        places = self.scenario.places
        free = places is None or self.running_total + len(new) + waiting <= places
        for job in new:
            if job.serial_key is not None:
                self.heads[job.serial_key] = job
            if free:
                self.start(job, self.queue_of(job), now)
            else:
                self.make_ready(job)
        return free and not waiting

    def fire_schedule(self, position: int, now: datetime, keys: set[str]) -> None:
        due, jobs = self.dues[position], self.jobs[position]
        schedule, self.ahead[position] = due.schedule, None
        if due.frozen(now):
            if due.frozen_until is not None:
                heapq.heappush(self.clocks, (due.frozen_until, position))
            return
        plan = plan_at(replace(due, run_at=None), now, self.scenario.grace)
        for gap in plan.gaps:
            self.add_gap(position, gap)
        if plan.fires and skips_for_overlap(schedule, jobs):
            reason = traits_of(schedule.kind).skip_reason
            self.slots += [
                SimulatedSlot(position, fire.slot, fire.slot, verdict=Verdict.SKIPPED.value, reason=reason, ended=True)
                for fire in plan.fires
            ]
            plan = without_fires(due, plan, now)
        elif plan.fires:
            self.replace_older(position, plan.fires, now, keys)
            jobs += [self.add_job(position, fire, keys) for fire in plan.fires]
        paused = schedule.paused_until is not None and schedule.paused_until <= now
        unpaused = replace(schedule, paused_at=None, paused_until=None) if paused else schedule
        fired = due.fired + len(plan.fires)
        self.dues[position] = replace(
            due, schedule=unpaused, next_slot=plan.next_slot, run_at=plan.next_run_at, fired=fired
        )
        self.set_clock(position)

    def replace_older(self, position: int, fires: Sequence[Fire], now: datetime, keys: set[str]) -> None:
        """Coalesce waiting jobs into newer slots; the policy `replace` also stops running jobs."""
        jobs = self.jobs[position]
        for job in coalesced_jobs(fires, jobs):
            job.verdict, job.into = Verdict.COALESCED.value, fires[-1].slot
            self.remove(job, keys)
        if self.dues[position].schedule.overlap is Overlap.REPLACE:
            for job in stopped_jobs(list(jobs)):
                job.verdict, job.reason = Verdict.RAN.value, "replaced"
                job.finished_at = now if job.started_at is not None else None
                self.remove(job, keys)

    def add_gap(self, position: int, gap: Gap) -> None:
        decided = (gap.first, gap.last, gap.count, gap.verdict, gap.reason, gap.into)
        self.slots.append(SimulatedSlot(position, *decided, ended=True))

    # jobs

    def add_job(self, position: int, fire: Fire, keys: set[str]) -> SimulatedSlot:
        schedule = self.dues[position].schedule
        job = SimulatedSlot(
            position,
            fire.slot,
            fire.slot,
            solo_key=schedule.id if fire.solo else None,
            terms=terms_of(schedule, fire),
            run_at=fire.run_at,
            urgency=(-schedule.priority, fire.run_at, next(self.order)),
            serial_key=schedule.serial_key,
        )
        self.slots.append(job)
        if job.serial_key is None:
            self.make_ready(job)
        else:
            heapq.heappush(self.blocked.setdefault(job.serial_key, []), (job.urgency, job))
            keys.add(job.serial_key)
        return job

    def make_ready(self, job: SimulatedSlot) -> None:
        job.state = State.READY
        queue = self.queue_of(job)
        heapq.heappush(self.ready.setdefault(queue, []), (job.urgency, job))

    def promote(self, keys: set[str]) -> None:
        """Make the most urgent blocked job of each key without a head its head."""
        for key in keys:
            waiting = self.blocked.get(key)
            while waiting and key not in self.heads:
                _, job = heapq.heappop(waiting)
                if not job.ended:
                    self.heads[key] = job
                    self.make_ready(job)

    def remove(self, job: SimulatedSlot, keys: set[str]) -> None:
        """Take a job out of the queue; the caller promotes the next one of its serial key."""
        if job.state is State.RUNNING:
            self.free_place(job)
        job.ended = True
        self.jobs[job.position].remove(job)
        if job.serial_key is not None and self.heads.get(job.serial_key) is job:
            del self.heads[job.serial_key]
            keys.add(job.serial_key)

    def end_runs(self, now: datetime) -> None:
        """End the runs whose time has come, and start what waited for them. A run that an outage interrupted is ready
        to start again, after the slots that are due then have fired."""
        while self.ends and self.ends[0][0] <= now:
            keys: set[str] = set()
            any_ended = False
            while self.ends and self.ends[0][0] <= now:
                _, _, job = heapq.heappop(self.ends)
                if job is None or job.ended:
                    continue
                if job.finished_at == now:
                    self.remove(job, keys)
                    any_ended = True
                    continue
                job.crashes += 1
                if job.crashes >= QUARANTINE_CRASHES:
                    job.finished_at, job.reason = now, "quarantined"
                    self.remove(job, keys)
                else:
                    self.free_place(job)
                    priority, _, order = job.urgency
                    job.urgency = (priority, now, order)  # as a rescue: it queues up again
                    self.make_ready(job)
            self.promote(keys)
            if any_ended:
                self.claim(now)

    def claim(self, now: datetime) -> None:
        """Start ready jobs, most urgent first, as far as there are places."""
        if self.outage_at(now) is not None:
            return
        while (queue := self.next_queue()) is not None:
            _, job = heapq.heappop(self.ready[queue])
            keys: set[str] = set()
            terms = job.terms
            late = terms.too_late(now) if terms is not None and job.crashes == 0 else None
            if late is not None:
                job.verdict, job.reason = Verdict.SKIPPED.value, late
                self.remove(job, keys)
            else:
                self.start(job, queue, now)
            self.promote(keys)

    def next_queue(self) -> str | None:
        """Return the queue with the most urgent job that may start; None if none may."""
        places = self.scenario.places
        if places is not None and self.running_total >= places:
            return None
        best: str | None = None
        for queue, waiting in self.ready.items():
            while waiting and waiting[0][1].ended:
                heapq.heappop(waiting)
            limit = self.scenario.queues.get(queue, UNLIMITED)
            full = limit.max_running is not None and self.running.get(queue, 0) >= limit.max_running
            if waiting and not limit.paused and not full and (best is None or waiting[0] < self.ready[best][0]):
                best = queue
        return best

    def start(self, job: SimulatedSlot, queue: str, now: datetime) -> None:
        duration = self.schedules[job.position].duration
        if job.terms is not None and job.terms.timeout is not None:
            duration = min(duration, job.terms.timeout)
        finish = now + duration
        outages = self.scenario.outages
        outage = next((outage for outage in outages if now < outage.start < finish), None) if outages else None
        job.state, job.solo_key = State.RUNNING, None
        job.started_at = job.started_at or now
        job.verdict, job.finished_at = Verdict.RAN.value, finish if outage is None else None
        self.running[queue] = self.running.get(queue, 0) + 1
        self.running_total += 1
        heapq.heappush(self.ends, (finish if outage is None else outage.end, next(self.order), job))

    def free_place(self, job: SimulatedSlot) -> None:
        self.running[self.queue_of(job)] -= 1
        self.running_total -= 1

    def queue_of(self, job: SimulatedSlot) -> str:
        return self.dues[job.position].schedule.queue

    def outage_at(self, now: datetime) -> TimeRange | None:
        outages = self.scenario.outages
        return next((outage for outage in outages if outage.start <= now < outage.end), None) if outages else None

    def close(self, until: datetime) -> None:
        """Add the slots that the range has but that no event decided: of pauses and freezes without an end, and those
        that wait for the end of an outage or a freeze window."""
        for position, due in enumerate(self.dues):
            schedule = due.schedule
            if due.next_slot is None or due.next_slot >= until:
                continue
            paused, frozen = schedule.paused_at is not None, due.frozen(until)
            reason = "paused" if paused else "frozen" if frozen else None
            edge = until if frozen or not paused else min(until, schedule.paused_until or until)
            following = next_slot(schedule.timing, edge - TICK)  # of a pause that ended in an outage
            for first, last, why in ((due.next_slot, edge, reason), (following, until, None)):
                gap = passed_gap(
                    schedule.timing, max(first or until, due.next_slot), last - TICK, Verdict.SKIPPED, why or ""
                )
                if gap is not None:
                    verdict = Verdict.SKIPPED.value if why else None
                    self.slots.append(SimulatedSlot(position, gap.first, gap.last, gap.count, verdict, why, ended=True))
