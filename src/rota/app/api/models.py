"""Bodies and answers of the routes in this package. Those of a schedule are in `core/schedule_form.py` and
`frame/http/answers.py`."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SkipValidation, create_model

from rota.core.plan import FIRE_BATCH_SLOTS
from rota.core.policy import Misfire
from rota.core.schedule_form import EXAMPLE, OverlapPolicy, ScheduleBody, Target, WholeTiming
from rota.core.states import Condition, Phase, State, Status, Verdict, WorkerState
from rota.core.wire import (
    ABSENT,
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
    checked,
    example,
    json_object,
)
from rota.frame.http.answers import Error, RunRecord, Schedule
from rota.kinds.workflows.rules import HandlerKind, Outcome

Gap = Annotated[Misfire, Choice]


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


class ComingSlot(Answer):
    at: At
    local: At
    note: str | None


class Coming(Answer):
    words: str
    slots: list[ComingSlot]
    warnings: list[str]


class Filter(RequestBody):
    """Which schedules a command changes; an empty filter matches every schedule of the org."""

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

    gap: Gap | None = None


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
    dry_run: bool | None = None


class Backfilled(Answer):
    count: int
    slots: list[At]


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


class Why(Answer):
    job_id: Id | None
    schedule_id: Id | None
    slot: At | None
    status: str
    sentences: list[str] = Field(examples=[["A user asked for schedule nightly to run at once; …"]])


EventName = Literal[
    "open", "run.started", "run.ended", "schedule.created", "schedule.changed", "schedule.deleted", "worker.up",
    "worker.down", "freeze.on", "freeze.off", "queue.changed", "host.up", "host.down", "host.changed",
    "workflow.changed", "workflow.stopped", "status", "log", "end",
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


class QueueBody(RequestBody):
    """Limit and pause of a queue; a null limit removes it."""

    model_config = example({"max_running": 5})

    max_running: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    paused: bool | None = None


DEPTH_FIELDS: dict[str, Any] = {state.value: (int, ...) for state in State}
Depth: Any = create_model("Depth", __base__=Answer, **DEPTH_FIELDS)


class Queue(Answer):
    name: NameText
    depth: Depth
    oldest_ready_at: At | None
    max_running: int | None
    paused: bool


class Freeze(Answer):
    frozen: bool
    frozen_at: At | None
    until: At | None
    reason: str | None


# artifacts


class ArtifactBrief(Answer):
    id: Id
    run_id: Id | None
    parent_id: Id | None
    level: int
    label: str
    content_type: str = Field(examples=["application/json"])
    size: int
    created_at: At
    updated_at: At


class Artifact(ArtifactBrief):
    data: object


class Expanded(Artifact):
    children: None


class Tree(Artifact):
    children: list[dict[str, object]]
