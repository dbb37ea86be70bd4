"""The records that travel between the layers. Frozen: a change is a new record, or a row in the database."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar, dataclass_transform

from rota.core.ids import new_id, trace_id_of, traceparent
from rota.core.policy import Misfire, Overlap, Retry, Terms
from rota.core.states import Condition, Move, Status
from rota.core.timing.triggers import Timing

NAME_LIMIT = 200
PAYLOAD_LIMIT = 1024 * 1024  # bytes of JSON
JITTER_LIMIT = timedelta(days=1)
SERIAL_ROUTE_PREFIX = (
    "serial:"  # how a route begins whose jobs change something outside: one at a time, and never twice unasked
)


T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A frozen dataclass in the eyes of the type checker only: Python sets each field past a freeze at ten times the
    cost, and these have many fields and are made for every run."""
    return dataclass(slots=True)(cls)


HOST_JOB, PIPELINE, WORKFLOW = "host_job", "pipeline", "workflow"  # the kinds that the engine treats apart


def serial_key_of_target(kind: str, org_id: str, target: str) -> str:
    """The serial key of everything that is done to a target, whoever asked for it."""
    return f"{kind}:{org_id}:{target}"


def serial_key_of_kind(kind: str, org_id: str, target: str) -> str | None:
    """What the jobs of a target take turns on, if they do: a pipeline replaces its table, a workflow does one thing at
    a time."""
    return serial_key_of_target(kind, org_id, target) if kind in (PIPELINE, WORKFLOW) else None


@record
class Schedule:
    """A schedule as its owner wrote it; when it is due next stands in its clock."""

    id: str
    org_id: str
    owner_id: str | None
    name: str
    description: str
    tags: list[str]
    kind: str
    target: str
    route: str  # what a worker must announce to run it
    input: Any
    timing: Timing
    max_runs: int | None
    misfire: Misfire
    catch_up_limit: int
    overlap: Overlap
    start_deadline: timedelta | None
    timeout: timedelta | None
    retry: Retry | None
    priority: int
    queue: str
    grant_id: str | None
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
    def managed_by(self) -> str | None:
        """What rewrites this schedule, with the way to change it there; None if its fields are edited directly."""
        origin, _, reference = self.source.partition(":")
        if self.kind == WORKFLOW:
            return f"workflow '{self.target}': change and deploy the workflow, or pause it"
        if origin == "code":
            return f"program '{reference}': change it there and start the program again"
        if origin == "trigger":
            return f"a trigger of pipeline '{reference}': change that trigger"
        return None

    @property
    def strict_serial_key(self) -> str:
        """What its jobs take turns on, if they do."""
        if self.route.startswith(SERIAL_ROUTE_PREFIX):
            return self.route
        return serial_key_of_kind(self.kind, self.org_id, self.target) or f"schedule:{self.id}"

    @property
    def serial_key(self) -> str | None:
        """Its lane, unless they may overlap; on a serial route they never may."""
        return (
            None
            if self.overlap is Overlap.ALLOW and not self.route.startswith(SERIAL_ROUTE_PREFIX)
            else self.strict_serial_key
        )

    @property
    def keeps_one_waiting(self) -> bool:
        """Whether at most one job of it may wait."""
        return self.overlap in (Overlap.QUEUE_ONE, Overlap.REPLACE)


@record
class NewJob:
    """A promise to be made: what `enqueue` is given."""

    org_id: str
    kind: str
    target: str
    payload: Any
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
    trace: str | None = None  # the `traceparent` of what asked for it

    def __post_init__(self) -> None:
        if self.route.startswith(SERIAL_ROUTE_PREFIX):
            object.__setattr__(self, "serial_key", self.route)


@record
class Job:
    """A job that a worker holds."""

    id: str
    org_id: str
    kind: str
    target: str
    route: str
    payload: Any
    queue: str
    serial_key: str | None
    schedule_id: str | None
    slot: datetime | None
    trigger: str
    attempt: int  # attempts begun so far
    tries: int  # failures that count against the retry policy
    crashes: int
    rescues: int  # deaths of workers that held it among others: no evidence against it
    fence: int
    queued_at: datetime
    run_at: datetime
    last_run_id: str | None
    trace: str | None
    terms: Terms

    @property
    def traceparent(self) -> str:
        """The `traceparent` below which its runs are: all attempts of a job are one trace."""
        return self.trace or traceparent(trace_id_of(self.id))

    @property
    def suspect(self) -> bool:
        """Its worker died: its start is recorded before it is tried again."""
        return self.crashes > 0 or self.rescues > 0

    @property
    def isolated(self) -> bool:
        """It crashed, or two workers died with it: it runs in a child process, where it can hurt only itself."""
        return self.crashes > 0 or self.rescues >= 2

    @property
    def alone(self) -> bool:
        """Three workers died with it: no other such job runs beside it, so the next death is evidence against it."""
        return self.rescues >= 3

    @property
    def parks_on_failure(self) -> bool:
        """When nothing more is tried it does not leave the queue: it waits for a person, and what is behind it waits
        too. A workflow does not jump ahead while something is stuck."""
        return self.kind == WORKFLOW


@record
class Lease:
    """A worker that takes jobs as they are made: who it is, and what it can run now."""

    worker: str
    routes: Collection[str]
    queues: Collection[str] | None  # None: of all queues
    room: int  # how many can start at once
    prefetch: int  # how many more may wait in the worker's memory
    until: datetime  # what is due by then it takes ahead, to start it at its moment
    orgs: Collection[str] | None = None  # ids; None: of all orgs
    org_room: Callable[[str], int | None] | None = None  # how many jobs of an org it takes; None: as many as fit

    def accepts(self, job: "NewJob | Schedule") -> bool:
        return (
            job.route in self.routes
            and (self.queues is None or job.queue in self.queues)
            and (self.orgs is None or job.org_id in self.orgs)
        )


@record
class Attempt:
    """One run in the making: the job, and the run id made at its start."""

    job: Job
    run_id: str
    number: int
    started_at: datetime


@dataclass(slots=True)
class RunInfo:
    """What a runner found out about the work of a run, and what the ledger keeps of that."""

    name: str | None = None
    version: str | None = None
    resource: str | None = None  # what a grant must name, where that is not the target
    timeout: timedelta | None = None  # the target's own, where the job has none
    retry: Retry | None = None
    marked: bool = False  # its start is written down already
    delegates: bool = False  # timeout and retries are for the jobs that it makes, not for itself
    marks_first: bool = False  # it acts on the world outside: its start is written down before it begins
    reason: str | None = None  # of a success that is worth a word
    usage: Any = None
    trace_id: str | None = None  # where the job brought none
    artifact_id: str | None = None
    work: Any = None  # what will be done; the runner's own


@record
class AttemptResult:
    """How an attempt ended and where its job goes: out of the queue, or by a move to wait for the next attempt."""

    job: Job
    status: Status
    reason: str | None
    finished_at: datetime
    run_id: str
    number: int
    started_at: datetime | None = None
    error: dict[str, Any] | None = None
    outcome: Any = None
    move: Move | None = None
    run_at: datetime | None = None
    counts: bool = False  # against the job: a try of its retry policy or, of a crash, one of those before quarantine
    info: "RunInfo | None" = None

    @property
    def final(self) -> bool:
        return self.move is None

    @property
    def not_started(self) -> bool:
        """There was no room for it: it did not begin, and the ledger hears nothing of it."""
        return self.status is Status.PENDING


class FinishResult(NamedTuple):
    """What came of writing down how runs ended."""

    recorded: set[str]  # run ids of attempts whose lease still held; nothing is written about the others
    ready: bool  # a job became claimable


class FireResult(NamedTuple):
    """What came of firing a batch."""

    schedule_ids: Collection[str] = ()  # schedules that were unchanged since they were read
    fires: "Sequence[Fire]" = ()  # slots that became jobs
    leased_jobs: Sequence[Job] = ()  # jobs that were inserted as running, leased by the worker of `Lease`


@record
class Fire:
    """A slot to fire."""

    slot: datetime
    run_at: datetime
    solo: bool  # a newer slot may take its place while it waits
    trace: str | None = None


@record
class Gap:
    """Slots that passed without firing, told as one row."""

    first: datetime
    last: datetime
    count: int | None  # None: too many to count while firing; filled in later
    verdict: str
    reason: str | None = None
    into: datetime | None = None
    note: str | None = None  # what a person said about it


@record
class Plan:
    """What a due schedule does now, and when it is due again."""

    fires: tuple[Fire, ...]
    gaps: tuple[Gap, ...]
    next_slot: datetime | None
    next_run_at: datetime | None
    handled: datetime  # the latest slot this plan decides


@record
class DueSchedule:
    """A schedule with its clock, as it was read. Nothing is planned when `next_slot` is None."""

    schedule: Schedule
    next_slot: datetime | None
    fired: int
    frozen_at: datetime | None
    frozen_until: datetime | None
    run_at: datetime | None = None  # its clock's moment
    planned: Plan | None = None  # what it does at that moment, where there was time to think of it before

    def is_due(self, now: datetime) -> bool:
        """Whether its moment has come."""
        return self.run_at is None or self.run_at <= now

    def frozen(self, now: datetime) -> bool:
        return self.frozen_at is not None and (self.frozen_until is None or self.frozen_until > now)
