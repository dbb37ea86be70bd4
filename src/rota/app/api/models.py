"""Bodies and answers of the routes in this package. Those of a schedule are in `core/schedule_form.py` and
`frame/http/answers.py`."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SkipValidation, create_model

from rota.access.store.saved_views import Visibility
from rota.app.api.catch_up_models import CatchUpPlan, CatchUpSummary, Gap, SlotLimit, SpreadHours
from rota.core.order import When
from rota.core.plan import FIRE_BATCH_SLOTS
from rota.core.resource_forms import CalendarBody as CalendarBody
from rota.core.resource_forms import CalendarChanges as CalendarChanges
from rota.core.resource_forms import DateText, Weekday
from rota.core.resource_forms import QueueBody as QueueBody
from rota.core.run_filter import RunFilter
from rota.core.schedule_form import EXAMPLE, OverlapPolicy, ScheduleBody, Target
from rota.core.states import Condition, Phase, State, Status, Verdict, WorkerState
from rota.core.timing.dst import DstGap, DstRepeat
from rota.core.timing_form import WholeTiming
from rota.core.wire import (
    ABSENT,
    EXAMPLE_ID,
    Answer,
    At,
    Choice,
    Id,
    Instant,
    Label,
    Name,
    NameText,
    Payload,
    Priority,
    Reason,
    RequestBody,
    Ulid,
    checked,
    example,
    json_object,
)
from rota.engine.decisions import EffectResolution
from rota.engine.enqueueing import AFTER_JOBS_MAX
from rota.frame.http.answers import Error, JobRef, RunRecord, Schedule
from rota.kinds.workflows.rules import HandlerKind, Outcome

# schedules


class SchedulesBody(RequestBody):
    """Many new schedules; the engine validates them, in a thread."""

    model_config = example({"items": [EXAMPLE]})

    items: list[Annotated[ScheduleBody, SkipValidation(), AfterValidator(checked(json_object))]] = Field(min_length=1)


class Schedules(Answer):
    items: list[Schedule]


class PreviewBody(WholeTiming):
    model_config = example({"cron_expression": "0 9 * * 1-5", "timezone": "Europe/Oslo", "count": 3})

    count: Annotated[int, Field(ge=1, le=100)] | None = None
    after: Instant | None = None
    name: Annotated[Name, Field(description="of the schedule: decides what `H` means")] | None = None
    kind: Annotated[Label, Field(description="of the schedule: decides with queue and tags on freezes")] | None = None
    queue: Label | None = None
    tags: Annotated[list[Label], Field(max_length=50)] | None = None


class ComingSlot(Answer):
    at: At
    local: At
    note: str | None


class ClockChanges(Answer):
    """How the timing meets clock changes."""

    gap: DstGap
    repeat: DstRepeat
    chosen_by: Literal["schedule", "set of hours"]


class LeftOutHoliday(Answer):
    """A holiday on which slots do not take place, and the day on which they do instead."""

    date: DateText
    moved_to: DateText | None


class Coming(Answer):
    words: str
    slots: list[ComingSlot]
    warnings: list[str]
    cron_resolved: str | None = Field(examples=["17 3 * * *"])
    clock_changes: ClockChanges | None
    left_out: list[LeftOutHoliday]


class Filter(RequestBody):
    """Which schedules a command changes; an empty filter matches every schedule of the org."""

    ids: Annotated[list[Ulid] | None, Field(max_length=1000)] = None
    name: Label | None = None
    kind: Label | None = None
    tag: Label | None = None
    enabled: bool | None = None
    paused: bool | None = None
    condition: Annotated[Condition, Choice] | None = None


class Selection(RequestBody):
    """Schedules with a tag, or those that match a filter: one of both is required."""

    model_config = example({"tag": "reports"})

    tag: Label | None = None
    filter: Filter | None = None


class EnableManyBody(Selection):
    pass


class DeleteManyBody(Selection):
    pass


class PauseManyBody(Selection):
    model_config = example({"tag": "reports", "reason": "x"})

    reason: Reason | None = None
    until: Instant | None = None


class ResumeManyBody(Selection):
    model_config = example({"filter": {"kind": "task"}})

    gap: Gap | None = None


class Count(Answer):
    model_config = example({"count": 3})

    count: int


class PauseBody(RequestBody):
    model_config = example({"reason": "maintenance"})

    reason: Reason | None = None
    until: Instant | None = None


class ResumeBody(RequestBody):
    model_config = example({"gap": "once"})

    gap: (
        Annotated[Gap, Field(description="slots that passed: `skip` (default), `once` (the latest) or `all`")] | None
    ) = None
    limit: SlotLimit | None = None
    spread_hours: SpreadHours | None = None


class Resumed(Schedule):
    catch_up: CatchUpSummary | None = Field(description="slots that passed and wait for an approval")


class RunBody(RequestBody):
    model_config = example({"input": {"day": "today"}})

    input: Payload | None = None
    overlap: OverlapPolicy | None = None


class SkipBody(RequestBody):
    model_config = example({"reason": "holiday"})

    reason: Reason | None = None


class Skipped(Answer):
    slot: At
    verdict: Literal["skipped"]
    reason: Literal["operator"]


class BackfillBody(RequestBody):
    model_config = example({"from": "2026-05-01T00:00:00Z", "to": "2026-05-04T00:00:00Z", "dry_run": True})

    since: Instant = Field(alias="from")
    until: Instant = Field(alias="to")
    reprocess: bool | None = None
    limit: Annotated[int, Field(ge=1, le=FIRE_BATCH_SLOTS)] | None = None
    spread_hours: SpreadHours | None = None
    dry_run: bool | None = None


class Backfilled(Answer):
    count: int = Field(description="slots that fired or, of a dry run, that would")
    slots: list[At]
    warnings: list[str]
    plan: CatchUpPlan
    catch_up: CatchUpSummary | None = Field(description="the request, if it waits for an approval instead")


class StartedJob(JobRef):
    model_config = example({"job_id": EXAMPLE_ID, "warnings": []})

    warnings: list[str] = Field(description="freeze windows that are in effect")


# runs and jobs


class Run(RunRecord):
    """A run; that of a workflow has more fields."""

    workflow_id: Id = ABSENT
    handler_id: str = ABSENT
    handler_type: HandlerKind = ABSENT
    phase: Phase = ABSENT
    mutation_outcome: Outcome | None = ABSENT
    prepare_result: object = ABSENT
    mutation_result: object = ABSENT
    updated_at: At = ABSENT


class Acknowledgement(Answer):
    at: At
    by: str | None
    note: str


class Failing(Answer):
    id: Id
    job_id: Id
    schedule_id: Id | None
    schedule: str | None
    kind: str
    target: str
    target_name: str
    status: Literal[Status.FAILED, Status.CRASHED]
    reason: str | None
    error: Error | None
    attempt: int
    finished_at: At
    last_at: At
    times: int
    acknowledged: Acknowledgement | None


class AcknowledgeBody(RequestBody):
    model_config = example({"note": "known; fixed tomorrow"})

    note: Reason | None = None


class Line(Answer):
    model_config = example({"id": 17, "at": "2026-05-04T09:00:00+00:00", "stream": "stdout", "text": "hello"})

    id: int
    at: At
    stream: str
    text: str


class JobBody(RequestBody):
    model_config = example({"target": "report", "input": {"day": "today"}})

    target: Target
    kind: Literal["task", "graph", "pipeline", "host_job"] | None = None
    input: Payload | None = None
    queue: Name | None = None
    priority: Priority | None = None
    run_at: Instant | None = None
    job_key: Label | None = None
    key_mode: Literal["reject", "preserve", "replace"] | None = None
    after: Annotated[list[Ulid], Field(min_length=1, max_length=AFTER_JOBS_MAX)] | None = None
    when: Annotated[When, Choice] | None = None


class SignalBody(RequestBody):
    model_config = example({"topic": "invoice.paid", "key": "1042", "payload": {"amount": 3}, "id": "payment-77"})

    topic: Label
    key: Label | None = None
    payload: Payload | None = None
    id: Label | None = None


class SignalSent(Answer):
    """`delivered`: a run waited for it. Else it is kept for one that does."""

    id: str
    delivered: bool


class SignalHookBody(RequestBody):
    model_config = example({"name": "payments", "topic": "invoice.paid", "key_field": "data.invoice"})

    name: Name
    topic: Label
    key_field: Annotated[Label, Field(description="where the body has the key: names, joined by dots")] | None = None


class SignalHook(Answer):
    """A webhook that sends signals. Until `previous_until` the secret before the last rotation is valid, too."""

    id: Id
    name: str
    topic: str
    key_field: str | None
    path: Annotated[str, Field(description="where signed requests are sent")]
    previous_until: At | None
    created_at: At


class NewSignalHook(SignalHook):
    """A webhook with its secret, which is shown once."""

    secret: str


class DecisionBody(RequestBody):
    model_config = example({"comment": "checked against the order"})

    comment: Reason | None = None
    step: Label | None = None


class ResolveBody(RequestBody):
    model_config = example({"resolution": "not_applied"})

    resolution: Annotated[EffectResolution, Choice]
    result: Payload | None = None
    step: Label | None = None


class RetryBody(RequestBody):
    model_config = example({})

    from_step: Label | None = None
    input: Payload | None = None


class Why(Answer):
    job_id: Id | None
    schedule_id: Id | None
    slot: At | None
    status: str
    sentences: list[str] = Field(examples=[["A user asked for schedule nightly to run at once; …"]])


EventName = Literal[
    "open", "run.started", "run.ended", "schedule.created", "schedule.changed", "schedule.deleted", "worker.up",
    "worker.down", "freeze.on", "freeze.off", "queue.changed", "host.up", "host.down", "host.changed",
    "workflow.changed", "workflow.stopped", "approval.requested", "approval.decided", "status", "log", "steps", "end",
]  # fmt: skip


class Event(Answer):
    """An event of a stream."""

    model_config = example({"id": "17", "event": "log", "data": '{"id": 17, "stream": "stdout", "text": "hello"}'})

    id: str
    event: EventName
    data: str = Field(json_schema_extra={"contentMediaType": "application/json"})


# slots and the installation


class Slot(Answer):
    schedule_id: Id
    schedule_name: str
    slot: At
    last_slot: At | None
    count: int | None
    verdict: Verdict | None
    reason: str | None
    note: str | None
    into_slot: At | None
    run_id: Id | None
    status: Status | None


class SlotAudit(Answer):
    ok: bool
    schedules: int
    slots: int
    problems: list[str]
    overdue: list[str]


class Worker(Answer):
    id: Id
    state: WorkerState
    host: str | None
    pid: int | None
    version: str
    concurrency: int
    kinds: list[str]
    queues: list[str] | None
    started_at: At
    renewed_at: At
    lease_until: At
    running: int


DEPTH_FIELDS: dict[str, Any] = {state.value: (int, ...) for state in State}
Depth: Any = create_model("Depth", __base__=Answer, **DEPTH_FIELDS)


class CalendarSummary(Answer):
    id: Id
    name: NameText
    description: str
    type: Literal["holidays", "exchange", "ical", "dates"]
    holidays: str | None
    exchange: str | None
    weekend: list[Weekday]
    weekend_is_holiday: bool
    date_count: int
    known_until: DateText | None
    revision: int
    schedule_count: int
    created_at: At
    updated_at: At


class HolidayDate(Answer):
    date: DateText
    name: str


class Calendar(CalendarSummary):
    dates: list[HolidayDate]
    schedules: list[str]


class ViewChanges(RequestBody):
    """An edit of a view: absent fields stay."""

    model_config = example({"visibility": "org"})

    name: Name | None = None
    filter: RunFilter | None = None
    visibility: Annotated[Visibility, Choice] | None = None


class ViewBody(ViewChanges):
    """A new view."""

    model_config = example({"name": "failed today", "filter": {"status": "failed", "within": "24h"}})

    name: Name
    filter: RunFilter


class View(Answer):
    id: Id
    name: NameText
    filter: RunFilter
    visibility: Visibility
    owner_id: Id
    owner_name: str | None
    link: str = Field(description="address of its page, below that of the server")
    created_at: At
    updated_at: At


class Queue(Answer):
    name: NameText
    depth: Depth
    oldest_ready_at: At | None
    max_running: int | None
    rate: str | None = Field(examples=["100/1m"])
    burst: int | None
    paused: bool


class WantedOfQueue(Answer):
    queue: NameText
    due: int = Field(description="jobs and slots that are due, or are until `ahead` has passed")
    running: int
    places: float
    concurrency: int
    wanted_workers: int


class WantedWorkers(Answer):
    """How many workers the due jobs need. `capped`: more is due than was counted, and more workers may be needed."""

    wanted_workers: int
    places: float
    concurrency: int
    capped: bool
    queues: list[WantedOfQueue]


class Freeze(Answer):
    frozen: bool
    frozen_at: At | None
    until: At | None
    reason: str | None


# status


class ScheduleCounts(Answer):
    enabled: int
    disabled: int
    paused: int
    broken: int
    late: int


class AttentionItem(Answer):
    what: Literal["broken", "late", "parked", "missed"]
    name: str
    detail: str
    since: At | None


class DueSchedule(Answer):
    schedule_id: Id
    schedule: str
    target: str
    due_at: At


class ReportsReplica(Answer):
    """The replica that reports are read from. `problem`: why it is not used; `fallbacks`: reads that went to the
    primary instead, since the start of the server."""

    problem: str | None
    lag_seconds: float | None
    fallbacks: int


class InstallationStatus(Answer):
    """Status of an org and its installation. `lateness_seconds`: 95 of 100 of the last slots started within it."""

    ok: bool
    version: str
    database: Literal["sqlite", "postgresql"]
    database_version: str
    schema_revision: str | None
    workers: list[Worker]
    running: int
    lateness_seconds: float | None
    queues: list[Queue]
    schedules: ScheduleCounts
    attention: list[AttentionItem]
    failing: list[Failing]
    due: list[DueSchedule]
    freeze: Freeze
    reports_replica: ReportsReplica | None


# artifacts


class ArtifactBrief(Answer):
    id: Id
    run_id: Id | None
    parent_id: Id | None
    level: int
    label: str
    content_type: str = Field(examples=["application/json"])
    size: int
    sha256: str | None  # of the content, if it is in the object store
    created_at: At
    updated_at: At


class Artifact(ArtifactBrief):
    data: object


class Expanded(Artifact):
    children: None


class Tree(Artifact):
    children: list[dict[str, object]]
