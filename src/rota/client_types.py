"""Types of the client's answers, generated from the API's models by `make clients`."""

from typing import Any, Literal, NotRequired, TypedDict

Json = dict[str, Any]
Status = Literal[
    "pending", "running", "success", "failed", "crashed", "lost", "canceled", "paused", "skipped", "missed", "coalesced"
]


class FieldError(TypedDict):
    field: str
    value: str
    message: str


class Problem(TypedDict, total=False):
    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str | None
    errors: list[FieldError]
    errors_total: int


class Schedule(TypedDict):
    cron_expression: str | None
    interval_seconds: int | float | None
    anchor: str | None
    run_at: str | None
    rrule: str | None
    timezone: str | None
    window_start: str | None
    window_end: str | None
    starts_at: str | None
    ends_at: str | None
    jitter_seconds: float | None
    dst_gap: Literal["run_after", "skip"] | None
    dst_repeat: Literal["first", "both"] | None
    calendar: str | None
    on_holiday: Literal["skip", "next", "previous", "run"] | None
    schedule_type: Literal["cron", "interval", "once", "rrule"] | None
    name: str
    input: Any
    max_runs: int | None
    misfire: Literal["skip", "once", "all"]
    catch_up_limit: int
    catch_up_spread_hours: float | None
    catch_up_approval_slots: int | None
    overlap: Literal["queue_one", "queue_all", "skip", "allow", "replace"]
    start_deadline_seconds: int | None
    timeout_seconds: int | None
    retry: Json | None
    priority: int
    queue: str
    after: list[str]
    when: Literal["success", "failure", "any"] | None
    enabled: bool
    tags: list[str]
    description: str
    grant_id: str | None
    keep_runs_days: int | None
    pause_after_failures: int | None
    kind: str
    target: str
    id: str
    next_run_at: str | None
    next_slot: str | None
    last_run_at: str | None
    last_run_id: str | None
    last_job_id: str | None
    last_run_status: str | None
    run_count: int
    failure_count: int
    skipped_count: int
    revision: int
    condition: Literal["ok", "broken", "finished"]
    condition_reason: str | None
    paused: bool
    paused_at: str | None
    paused_until: str | None
    pause_reason: str | None
    source: str
    source_ref: str | None
    owner_id: str | None
    created_by: str | None
    created_at: str
    updated_at: str
    words: str | None


class Run(TypedDict):
    id: str | None
    job_id: str
    kind: str
    target: str
    target_name: str | None
    target_version: str | None
    schedule_id: str | None
    slot: str | None
    trigger: str
    attempt: int
    retry_of: str | None
    status: Status
    reason: str | None
    error: Json | None
    outcome: Any
    queued_at: str
    started_at: str | None
    finished_at: str | None
    worker: str | None
    artifact_id: str | None
    trace_id: str | None
    usage: Any
    cpu_seconds: float | None
    peak_memory_bytes: int | None
    input: Any
    retry_at: str | None
    workflow_id: NotRequired[str]
    handler_id: NotRequired[str]
    handler_type: NotRequired[Literal["producer", "consumer"]]
    phase: NotRequired[
        Literal["pending", "executing", "preparing", "prepared", "mutating", "mutated", "emitting", "committed"]
    ]
    mutation_outcome: NotRequired[Literal["applied", "none", "skipped", "failed"] | None]
    prepare_result: NotRequired[Any]
    mutation_result: NotRequired[Any]
    updated_at: NotRequired[str]


class Job(TypedDict):
    id: str
    submitted_at: str
    status: Status
    kind: str
    target: str
    target_name: str
    attempt: int
    started_at: str | None
    finished_at: str | None
    error: Json | None
    artifact_id: str | None
    run_ids: list[str]
    parent_id: str | None
    children: list[str]
    waiting: Json | None
    steps: list[Json]


class LogLine(TypedDict):
    id: int
    at: str
    stream: str
    text: str


class Page(TypedDict):
    items: list[Any]
    next_cursor: str | None
