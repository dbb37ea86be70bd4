"""Records that layers pass to each other. They are values: change one with `dataclasses.replace`. They are not frozen,
because several are built for every run, and building a frozen Job takes 2.1 instead of 0.3 µs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from rota.core.catch_up import CatchUp
from rota.core.flow import Limits
from rota.core.freeze import FreezeWindow
from rota.core.ids import new_id, trace_id_of, traceparent
from rota.core.kinds import traits_of
from rota.core.policy import Misfire, Overlap, Retry, Terms
from rota.core.states import Condition, Move, Status
from rota.core.steps import Suspension, WaitingData
from rota.core.timing.triggers import Timing

NAME_LIMIT = 200
PAYLOAD_LIMIT = 1024 * 1024  # bytes of JSON
JITTER_LIMIT = timedelta(days=1)
# Jobs on a route with this prefix have an effect outside: they run one at a time and never twice without a request.
SERIAL_ROUTE_PREFIX = "serial:"


def serial_key_of_target(kind: str, org_id: str, target: str) -> str:
    """Return the serial key shared by all jobs of a target."""
    return f"{kind}:{org_id}:{target}"


def serial_key_of_kind(kind: str, org_id: str, target: str) -> str | None:
    """Return the serial key that a kind requires for the jobs of a target; None if they may overlap."""
    return serial_key_of_target(kind, org_id, target) if traits_of(kind).serial else None


@dataclass(slots=True)
class Schedule:
    """A schedule as its owner defined it; its next slot is in its clock row."""

    id: str
    org_id: str
    owner_id: str | None
    name: str
    description: str
    tags: list[str]
    kind: str
    target: str
    route: str  # a worker must register this route to run its jobs
    input: object
    timing: Timing
    max_runs: int | None
    misfire: Misfire
    catch_up_limit: int
    catch_up_spread_hours: float | None  # over which `misfire` = `all` spreads several late slots
    catch_up_approval_slots: int | None  # a catch-up of more waits for an approval
    overlap: Overlap
    start_deadline: timedelta | None
    timeout: timedelta | None
    retry: Retry | None
    priority: int
    queue: str
    grant_id: str | None
    keep_runs_days: int | None
    pause_after_failures: int | None  # jobs that fail one after the other
    enabled: bool
    paused_at: datetime | None
    paused_until: datetime | None
    pause_reason: str | None
    condition: Condition
    condition_reason: str | None
    revision: int
    source: str
    created_by: str | None
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None = None

    def with_route(self, route: str) -> "Schedule":
        """Return a copy with the route that its kind chose."""
        return replace(self, route=route)

    @property
    def catch_up_spread(self) -> timedelta:
        """The time over which its late slots are spread; zero if it runs after others, whose order counts."""
        return timedelta(hours=self.catch_up_spread_hours or 0) if self.timing.after is None else timedelta(0)

    @property
    def calendar_id(self) -> str | None:
        """The id of the calendar that decides about its days."""
        return self.timing.holidays.calendar.id if self.timing.holidays else None

    @property
    def calendar_revision(self) -> int | None:
        """The revision of the calendar whose dates its timing has."""
        return self.timing.holidays.calendar.revision if self.timing.holidays else None

    @property
    def managed_by(self) -> str | None:
        """Return what manages this schedule and how to change it there; None if its fields are edited directly."""
        origin, _, reference = self.source.partition(":")
        if traits_of(self.kind).declares_schedules:
            return f"{self.kind} '{self.target}': change and deploy the {self.kind}, or pause it"
        if origin == "code":
            return f"program '{reference}': change it there and start the program again"
        if origin == "trigger":
            return f"a trigger of pipeline '{reference}': change that trigger"
        return None

    @property
    def strict_serial_key(self) -> str:
        """The serial key of its jobs when they may not overlap."""
        if self.route.startswith(SERIAL_ROUTE_PREFIX):
            return self.route
        return serial_key_of_kind(self.kind, self.org_id, self.target) or f"schedule:{self.id}"

    @property
    def serial_key(self) -> str | None:
        """The serial key of its jobs; None if its policy lets them overlap, which jobs of a serial route never do."""
        return (
            None
            if self.overlap is Overlap.ALLOW and not self.route.startswith(SERIAL_ROUTE_PREFIX)
            else self.strict_serial_key
        )

    @property
    def keeps_one_waiting(self) -> bool:
        """Whether its overlap policy lets at most one job wait."""
        return self.overlap in (Overlap.QUEUE_ONE, Overlap.REPLACE)


@dataclass(slots=True)
class NewJob:
    """A job to enqueue."""

    org_id: str
    kind: str
    target: str
    payload: Any  # JSON; its kind knows the shape
    run_at: datetime
    trigger: str
    id: str = field(default_factory=new_id)
    route: str = ""
    queue: str = "default"
    priority: int = 0
    serial_key: str | None = None
    solo_key: str | None = None
    job_key: str | None = None
    schedule_id: str | None = None
    slot: datetime | None = None
    attempt: int = 0
    last_run_id: str | None = None
    terms: Terms = field(default_factory=Terms)
    trace: str | None = None  # `traceparent` of the request
    parent_id: str | None = None  # the job whose run enqueues it
    followed: bool = False  # another job waits for its end

    def __post_init__(self) -> None:
        if self.route.startswith(SERIAL_ROUTE_PREFIX):
            self.serial_key = self.route  # jobs of a serial route never overlap


@dataclass(slots=True)
class Job:
    """A job that a worker has claimed."""

    id: str
    org_id: str
    kind: str
    target: str
    route: str
    payload: Any  # JSON; its kind knows the shape
    queue: str
    serial_key: str | None
    schedule_id: str | None
    slot: datetime | None
    trigger: str
    attempt: int  # number of attempts started
    tries: int  # failed attempts that count against the retry policy
    crashes: int
    rescues: int  # deaths of workers that had it among other jobs: it may have been running, but is not to blame
    fence: int
    queued_at: datetime
    run_at: datetime
    last_run_id: str | None
    trace: str | None
    parent_id: str | None  # the job whose run enqueued it
    waiting: WaitingData | None  # what its run waited for, until that run goes on
    reserved_at: datetime | None  # the start that a rate limit reserved for it
    place_key: str | None  # the key of which it holds a place
    terms: Terms

    @property
    def fresh(self) -> bool:
        """Whether no attempt at it has begun anywhere: it has no recorded steps."""
        return not (self.attempt or self.rescues or self.crashes) and self.waiting is None

    @property
    def traceparent(self) -> str:
        """The `traceparent` of its runs: all attempts of a job are one trace."""
        return self.trace or traceparent(trace_id_of(self.id))

    @property
    def suspect(self) -> bool:
        """Whether a worker that had it died, started or not: its next start is recorded before it runs."""
        return self.crashes > 0 or self.rescues > 0

    @property
    def isolated(self) -> bool:
        """Whether it runs in a child process, because it crashed or two workers that had it died."""
        return self.crashes > 0 or self.rescues >= 2

    @property
    def alone(self) -> bool:
        """Whether no other suspect job runs beside it: three workers that had it died; the next death is its crash."""
        return self.rescues >= 3

    @property
    def parks_on_failure(self) -> bool:
        """Whether it is parked after its last failed attempt instead of leaving the queue."""
        return traits_of(self.kind).parks_on_failure


@dataclass(slots=True)
class LeaseOffer:
    """A worker that claims jobs in the transaction that inserts them: its id and what it can run now."""

    worker: str
    routes: Collection[str]
    queues: Collection[str] | None  # None: all queues
    room: int  # number of jobs that can start now
    prefetch: int  # how many more may wait in the worker's memory
    until: datetime  # jobs due by then are claimed ahead, to start when they are due
    orgs: Collection[str] | None = None  # ids; None: all orgs
    org_room: Callable[[str], int | None] | None = None  # limit of jobs per org; None: no limit

    def accepts(self, job: "NewJob | Schedule") -> bool:
        """Whether the worker serves the route, queue and org of a job."""
        return (
            job.route in self.routes
            and (self.queues is None or job.queue in self.queues)
            and (self.orgs is None or job.org_id in self.orgs)
        )


@dataclass(slots=True)
class Attempt:
    """A started run of a job."""

    job: Job
    run_id: str
    number: int
    started_at: datetime


@dataclass(slots=True)
class Resources:
    """What a run used, as far as it is known."""

    cpu_seconds: float | None = None  # user and system
    peak_memory_bytes: int | None = None  # largest resident set of one process of the run


@dataclass(slots=True)
class RunInfo:
    """What a runner sets about its run: rules for the worker, and columns of the recorded run."""

    name: str | None = None
    version: str | None = None
    code_version: str | None = None  # under which it goes on after a wait, a failure or a crash, if it has steps
    recorded_steps: bool = False
    resource: str | None = None  # what a grant must name, if not the target
    timeout: timedelta | None = None  # of the target; that of the job comes first
    default_timeout: bool = True  # whether the installation's default applies when job and target have none
    retry: Retry | None = None
    limits: Limits | None = None  # what its start has to wait for
    heartbeat: timedelta | None = None  # it must call `ctx.heartbeat()` at least so often
    marked: bool = False  # its start is recorded
    delegates: bool = False  # timeout and retries apply to the jobs that it enqueues, not to itself
    marks_first: bool = False  # it has effects outside: its start is recorded before it runs
    checks_grant: bool = False  # its work checks the grant of its job when it begins
    reason: str | None = None  # of a success, such as `cached`
    usage: object = None
    trace_id: str | None = None  # if the job has none
    artifact_id: str | None = None
    resources: Resources | None = None


@dataclass(slots=True)
class AttemptResult:
    """How an attempt ended, and the move of its job; without a move the job leaves the queue."""

    job: Job
    status: Status
    reason: str | None
    finished_at: datetime
    run_id: str
    number: int
    started_at: datetime | None = None
    error: Mapping[str, object] | None = None
    outcome: object = None
    move: Move | None = None
    run_at: datetime | None = None
    counts: bool = False  # against the retry policy or, for a crash, the quarantine limit
    suspension: Suspension | None = None  # of a run that waits
    info: "RunInfo | None" = None
    worker: str | None = None  # that had the lease; None: the worker that records the result

    @property
    def final(self) -> bool:
        """Whether the job leaves the queue."""
        return self.move is None

    @property
    def not_started(self) -> bool:
        """Whether the attempt did not start, for lack of room: no run is recorded."""
        return self.status is Status.PENDING

    @property
    def ended(self) -> bool:
        """Whether the attempt is over, so that its run is recorded: it started, and does not go on after a wait."""
        return not self.not_started and self.suspension is None


class FinishResult(NamedTuple):
    """Result of recording ended attempts."""

    recorded: set[str]  # run ids of attempts whose lease still held; `runs.record_lost` records the others
    ready: bool  # a job became claimable


class FireResult(NamedTuple):
    """Result of firing a batch of due schedules."""

    schedule_ids: Collection[str] = ()  # schedules that were unchanged since they were read
    fires: "Sequence[Fire]" = ()  # slots that became jobs
    leased_jobs: Sequence[Job] = ()  # jobs that were inserted as running, leased by the worker of `LeaseOffer`


@dataclass(slots=True)
class Fire:
    """A slot to fire."""

    slot: datetime
    run_at: datetime
    solo: bool  # a newer slot may replace its job while the job waits
    trace: str | None = None
    follows: bool = False  # its job waits for those of other schedules


@dataclass(slots=True)
class Gap:
    """Consecutive slots that passed without firing, recorded as one row."""

    first: datetime
    last: datetime
    count: int | None  # None: too many to count while firing; maintenance counts them later
    verdict: str
    reason: str | None = None
    into: datetime | None = None
    note: str | None = None  # comment of a person


@dataclass(slots=True)
class Plan:
    """What a due schedule does now, and its next slot."""

    fires: tuple[Fire, ...]
    gaps: tuple[Gap, ...]
    next_slot: datetime | None
    next_run_at: datetime | None
    handled: datetime  # the latest slot that this plan covers
    catch_up: CatchUp | None = None  # of late slots that wait for an approval; they are among its gaps


@dataclass(slots=True)
class DueSchedule:
    """A schedule with its clock row, as read. It has no further slot if `next_slot` is None."""

    schedule: Schedule
    next_slot: datetime | None
    fired: int
    frozen_at: datetime | None
    frozen_until: datetime | None
    run_at: datetime | None = None  # when `next_slot` is due, with jitter
    freeze_revision: int = 0  # of the org: counts changes of its freeze windows
    windows: Sequence[FreezeWindow] = ()  # freeze windows that cover it

    def is_due(self, now: datetime) -> bool:
        """Whether its next slot is due."""
        return self.run_at is None or self.run_at <= now

    def frozen(self, now: datetime) -> bool:
        """Whether its org is frozen."""
        return self.frozen_at is not None and (self.frozen_until is None or self.frozen_until > now)


class PlannedSchedule(NamedTuple):
    """A schedule as it was read, with its plan for its due time."""

    due: DueSchedule
    plan: Plan
