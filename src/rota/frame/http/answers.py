"""Answers that routes of several slices return: schedules, runs, jobs, problems."""

from typing import Any, Literal, get_args

from pydantic import ConfigDict, Field, create_model

from rota.core.schedule_form import ScheduleChanges
from rota.core.states import Condition, Status
from rota.core.steps import StepStatus, StepType
from rota.core.wire import ABSENT, EXAMPLE_ID, Answer, At, Id, annotations_of, example

NEVER_NULL = frozenset(
    {
        *("name", "kind", "target", "misfire", "catch_up_limit", "overlap", "priority", "queue", "enabled", "tags"),
        *("after", "description"),
    }
)  # fields of a stored schedule that always have a value


def stored_fields() -> dict[str, Any]:
    """Return the fields of a request of a schedule as they are answered; `interval` is only for requests."""
    fields = {name: kind for name, kind in annotations_of(ScheduleChanges).items() if name != "interval"}
    return {name: (get_args(kind)[0] if name in NEVER_NULL else kind, ...) for name, kind in fields.items()}


StoredSchedule: Any = create_model("StoredSchedule", __base__=Answer, **stored_fields())


class Schedule(StoredSchedule):
    id: Id
    next_run_at: At | None
    next_slot: At | None
    last_run_at: At | None
    last_run_id: Id | None
    last_job_id: Id | None
    last_run_status: str | None  # a status, or `scheduler_failed`
    run_count: int
    failure_count: int
    skipped_count: int
    revision: int
    condition: Condition
    condition_reason: str | None
    paused: bool
    paused_at: At | None
    paused_until: At | None
    pause_reason: str | None
    source: str = Field(examples=["code", "api"])
    source_ref: str | None = Field(examples=["jobs"])
    owner_id: Id | None
    created_by: Id | None
    created_at: At
    updated_at: At
    words: str | None = Field(examples=["at 02:00 every day"])


class FrameLocals(Answer):
    """The variables of a function in a traceback, as text (`ROTA_CAPTURE_LOCALS`)."""

    file: str
    line: int
    function: str
    variables: dict[str, str]


class Error(Answer):
    """Why an attempt failed."""

    model_config = ConfigDict(extra="ignore")

    code: str = ABSENT
    type: str = ABSENT
    message: str = ABSENT
    traceback: str | None = ABSENT
    locals: list[FrameLocals] = ABSENT


class JobBrief(Answer):
    id: Id
    submitted_at: At
    status: Status
    kind: str
    target: str
    target_name: str
    attempt: int
    started_at: At | None
    finished_at: At | None
    error: Error | None
    artifact_id: Id | None


class Step(Answer):
    """A recorded step of a durable task."""

    name: str
    seq: int
    type: StepType
    status: StepStatus
    attempts: int
    started_at: At
    finished_at: At | None
    result: object
    error: Error | None
    until: At | None
    topic: str | None
    key: str | None
    child_job_id: Id | None


class Waiting(Answer):
    """What a job waits for, other than a free worker: what its suspended run waits for, a rate, a place, or jobs."""

    reason: str = Field(
        alias="for", examples=["sleep", "signal", "approval", "child", "retry", "rate", "place", "jobs"]
    )
    step: str | None = ABSENT  # of a suspended run
    until: At | None = ABSENT  # also of a rate
    topic: str | None = ABSENT
    key: str | None = ABSENT
    max_running: int | None = ABSENT  # of a place: jobs of its key that run at once
    after: list[Id] | None = ABSENT  # jobs that have not ended


class Job(JobBrief):
    run_ids: list[Id]
    parent_id: Id | None
    children: list[Id]
    waiting: Waiting | None
    steps: list[Step]


class JobRef(Answer):
    model_config = example({"job_id": EXAMPLE_ID})

    job_id: Id


class RunRecord(Answer):
    """A run of any kind of work."""

    id: Id | None
    job_id: Id
    kind: str
    target: str
    target_name: str | None
    target_version: str | None
    schedule_id: Id | None
    slot: At | None
    trigger: str = Field(examples=["schedule:0 2 * * *"])
    attempt: int
    retry_of: Id | None
    status: Status
    reason: str | None
    error: Error | None
    outcome: object
    queued_at: At
    started_at: At | None
    finished_at: At | None
    worker: Id | None
    artifact_id: Id | None
    trace_id: str | None
    usage: object
    cpu_seconds: float | None = Field(description="user and system; null where it is not known")
    peak_memory_bytes: int | None = Field(description="of a run in its own process; null where it is not known")
    input: object
    retry_at: At | None


class FieldError(Answer):
    field: str
    value: str
    message: str


class Problem(Answer):
    """a refusal with its reason (RFC 9457)"""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:rota:problem:not_found", "title": "Not Found", "status": 404, "code": "not_found",
                    "detail": "schedule 'nightly' not found", "request_id": EXAMPLE_ID,
                }
            ]
        },
    )  # fmt: skip

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str | None
    errors: list[FieldError] = ABSENT
    errors_total: int = ABSENT


class Health(Answer):
    model_config = ConfigDict(extra="ignore")

    status: Literal["ok", "unavailable"]
    problems: list[str] = ABSENT
    details: dict[str, str] = ABSENT
