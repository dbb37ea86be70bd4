"""Routes of the API with the types of their bodies and answers, for `send` and `items` of `rota.client`.

Generated from the OpenAPI document by `make clients`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NotRequired, TypedDict, TypeVar
from urllib.parse import quote

Body = TypeVar("Body")
Answer = TypeVar("Answer")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Request(Generic[Answer]):
    """A call of a route: `send` sends it and returns its answer."""

    method: str
    path: str
    body: object
    query: dict[str, str | int | float | bool | Sequence[str] | None]


@dataclass(frozen=True, slots=True)
class Route(Generic[Body, Answer]):
    """A route below /api/v1. Its path may have parameters in braces."""

    method: str
    path: str

    def __call__(self, body: Body | None = None, **parameters: str | int | float | bool | None) -> Request[Answer]:
        """Return a request. Parameters of path and query are passed by name. Raises TypeError if one of the path is
        missing."""
        names = re.findall(r"\{(\w+)\}", self.path)
        if missing := [name for name in names if parameters.get(name) is None]:
            raise TypeError(f"{self.method} {self.path} needs {', '.join(missing)}")
        path = self.path
        for name in names:
            path = path.replace(f"{{{name}}}", quote(str(parameters[name]), safe=""))
        return Request(self.method, path, body, {k: value for k, value in parameters.items() if k not in names})


class PageOf(TypedDict, Generic[Item]):
    items: list[Item]
    next_cursor: str | None


class Account(TypedDict):
    id: str
    owner_id: str
    owner_name: str
    balance_credits: int
    default_virtual_key_id: str | None
    created_at: str
    closed_at: str | None


class AcknowledgeBody(TypedDict):
    note: NotRequired[str | None]


class AcknowledgeEventBody(TypedDict):
    note: NotRequired[str | None]


class Acknowledgement(TypedDict):
    at: str
    by: str | None
    note: str


class Act(TypedDict):
    id: str
    at: str
    user_id: str
    user_name: str | None
    key_id: str | None
    key_name: str | None
    action: str
    resource: str
    resource_id: str | None
    resource_name: str | None
    before: Any
    after: Any
    address: str | None
    request_id: str | None


class Alarm(TypedDict):
    id: str
    name: str
    description: str
    when: str
    on: str | None
    notify: list[str]
    quiet: str | None
    timezone: str
    group_seconds: int
    repeat_seconds: int | None
    enabled: bool
    firing: int
    source: str
    created_at: str
    updated_at: str


class AlarmBody(TypedDict):
    when: str
    on: NotRequired[str | None]
    notify: NotRequired[list[str] | None]
    quiet: NotRequired[str | None]
    timezone: NotRequired[str | None]
    group_seconds: NotRequired[int | None]
    repeat_seconds: NotRequired[int | None]
    enabled: NotRequired[bool | None]
    description: NotRequired[str | None]
    name: str


class AlarmChanges(TypedDict):
    when: NotRequired[str | None]
    on: NotRequired[str | None]
    notify: NotRequired[list[str] | None]
    quiet: NotRequired[str | None]
    timezone: NotRequired[str | None]
    group_seconds: NotRequired[int | None]
    repeat_seconds: NotRequired[int | None]
    enabled: NotRequired[bool | None]
    description: NotRequired[str | None]


class AlarmEvent(TypedDict):
    id: str
    alarm_id: str
    alarm: str
    when: str
    subject: str
    name: str
    state: "EventState"
    text: str
    fired_at: str
    notified_at: str | None
    notified: int
    acknowledged_at: str | None
    acknowledged_by: str | None
    note: str | None
    resolved_at: str | None
    job_ids: list[str]


class ApplyBody(TypedDict):
    resources: dict[str, list[dict[str, Any]]]
    prune: NotRequired[bool | None]
    version: NotRequired[str | None]


class ApproveBody(TypedDict):
    gap: NotRequired["Misfire | None"]
    limit: NotRequired[int | None]
    spread_hours: NotRequired[float | None]
    comment: NotRequired[str | None]


class Artifact(TypedDict):
    id: str
    run_id: str | None
    parent_id: str | None
    level: int
    label: str
    content_type: str
    size: int
    sha256: str | None
    created_at: str
    updated_at: str
    data: Any


class ArtifactBrief(TypedDict):
    id: str
    run_id: str | None
    parent_id: str | None
    level: int
    label: str
    content_type: str
    size: int
    sha256: str | None
    created_at: str
    updated_at: str


class AttentionItem(TypedDict):
    what: Literal["broken", "late", "parked", "missed"]
    name: str
    detail: str
    since: str | None


BackfillBody = TypedDict(
    "BackfillBody",
    {
        "from": str,
        "to": str,
        "reprocess": NotRequired[bool | None],
        "limit": NotRequired[int | None],
        "spread_hours": NotRequired[float | None],
        "dry_run": NotRequired[bool | None],
    },
)


class Backfilled(TypedDict):
    count: int
    slots: list[str]
    warnings: list[str]
    plan: "CatchUpPlan"
    catch_up: "CatchUpSummary | None"


Backoff = Literal["fixed", "exponential"]


class Batch(TypedDict):
    id: str
    target: str
    job_type: str
    max_parallel: int
    stop_on_failure: bool
    status: Literal["running", "completed", "completed_with_failures", "canceled"]
    created_at: str
    finished_at: str | None
    total: int
    waiting: int
    running: int
    succeeded: int
    failed: int
    canceled: int
    skipped: int
    members: list["BatchMember"]


class BatchBody(TypedDict):
    job_type: str
    payload: NotRequired[dict[str, Any] | None]
    timeout_seconds: NotRequired[int | None]
    retry: NotRequired["Retry | None"]
    server_instance_ids: NotRequired[list[str] | None]
    labels: NotRequired[dict[str, str] | None]
    max_parallel: NotRequired[int | None]
    stop_on_failure: NotRequired[bool | None]


class BatchBrief(TypedDict):
    id: str
    target: str
    job_type: str
    max_parallel: int
    stop_on_failure: bool
    status: Literal["running", "completed", "completed_with_failures", "canceled"]
    created_at: str
    finished_at: str | None
    total: int
    waiting: int
    running: int
    succeeded: int
    failed: int
    canceled: int
    skipped: int


class BatchMember(TypedDict):
    server_instance_id: str
    name: str
    job_id: str | None
    status: str


class BatchRef(TypedDict):
    batch_id: str


class Budget(TypedDict):
    per_day: NotRequired[int | None]
    total: NotRequired[int | None]


class BudgetLimits(TypedDict):
    per_day: int | None
    total: int | None


class Calendar(TypedDict):
    id: str
    name: str
    description: str
    type: Literal["holidays", "exchange", "ical", "dates"]
    holidays: str | None
    exchange: str | None
    weekend: list[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]]
    weekend_is_holiday: bool
    date_count: int
    known_until: str | None
    revision: int
    schedule_count: int
    created_at: str
    updated_at: str
    dates: list["HolidayDate"]
    schedules: list[str]


class CalendarBody(TypedDict):
    holidays: NotRequired[str | None]
    exchange: NotRequired[str | None]
    ical: NotRequired[str | None]
    dates: NotRequired[list[str] | None]
    weekend: NotRequired[list[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]] | None]
    weekend_is_holiday: NotRequired[bool | None]
    description: NotRequired[str | None]
    name: str


class CalendarChanges(TypedDict):
    holidays: NotRequired[str | None]
    exchange: NotRequired[str | None]
    ical: NotRequired[str | None]
    dates: NotRequired[list[str] | None]
    weekend: NotRequired[list[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]] | None]
    weekend_is_holiday: NotRequired[bool | None]
    description: NotRequired[str | None]


class CalendarSummary(TypedDict):
    id: str
    name: str
    description: str
    type: Literal["holidays", "exchange", "ical", "dates"]
    holidays: str | None
    exchange: str | None
    weekend: list[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]]
    weekend_is_holiday: bool
    date_count: int
    known_until: str | None
    revision: int
    schedule_count: int
    created_at: str
    updated_at: str


class CatchUp(TypedDict):
    id: str
    schedule_id: str
    schedule: str
    source: Literal["outage", "resume", "backfill"]
    status: Literal["open", "approved", "rejected", "withdrawn"]
    count: int
    first_slot: str
    last_slot: str
    reprocess: bool
    run_seconds: float | None
    credits: float | None
    usd: float | None
    waits_for: list[str]
    requested_by: str | None
    requested_by_name: str | None
    requested_at: str
    decided_by: str | None
    decided_at: str | None
    comment: str | None
    gap: Literal["skip", "once", "all"] | None
    limit: int | None
    spread_seconds: int | None
    fired: int
    slots: list[str]


class CatchUpOptions(TypedDict):
    schedule: str
    skip: "CatchUpPlan"
    once: "CatchUpPlan"
    all: "CatchUpPlan"


class CatchUpPlan(TypedDict):
    count: int
    first_slot: str | None
    last_slot: str | None
    run_seconds: float | None
    credits: float | None
    usd: float | None
    ends_at: str | None
    waits_for: list[str]


class CatchUpSummary(TypedDict):
    id: str
    schedule_id: str
    schedule: str
    source: Literal["outage", "resume", "backfill"]
    status: Literal["open", "approved", "rejected", "withdrawn"]
    count: int
    first_slot: str
    last_slot: str
    reprocess: bool
    run_seconds: float | None
    credits: float | None
    usd: float | None
    waits_for: list[str]
    requested_by: str | None
    requested_by_name: str | None
    requested_at: str
    decided_by: str | None
    decided_at: str | None
    comment: str | None
    gap: Literal["skip", "once", "all"] | None
    limit: int | None
    spread_seconds: int | None
    fired: int


class Channel(TypedDict):
    id: str
    name: str
    type: Literal["email", "webhook", "apprise", "command"]
    address: str
    test_seconds: int | None
    last_delivery_at: str | None
    last_status: str | None
    last_answer: str | None
    source: str
    created_at: str
    updated_at: str


class ChannelBody(TypedDict):
    address: str
    secret: NotRequired[str | None]
    test_seconds: NotRequired[int | None]
    name: str
    type: Literal["email", "webhook", "apprise", "command"]


class ChannelChanges(TypedDict):
    address: NotRequired[str | None]
    secret: NotRequired[str | None]
    test_seconds: NotRequired[int | None]


class Clash(TypedDict):
    type: Literal["calendar", "freeze"]
    name: str
    count: int
    days: list[str]


class ClockChanges(TypedDict):
    gap: Literal["run_after", "skip"]
    repeat: Literal["first", "both"]
    chosen_by: Literal["schedule", "set of hours"]


class Column(TypedDict):
    name: str
    type: str


class Coming(TypedDict):
    words: str
    slots: list["ComingSlot"]
    warnings: list[str]
    cron_resolved: str | None
    clock_changes: "ClockChanges | None"
    left_out: list["LeftOutHoliday"]


class ComingSlot(TypedDict):
    at: str
    local: str
    note: str | None


Condition = Literal["ok", "broken", "finished"]


class Count(TypedDict):
    count: int


class CreditBody(TypedDict):
    amount_credits: int
    reason: NotRequired[str | None]
    reference: str
    account_id: NotRequired[str | None]


class DecisionBody(TypedDict):
    comment: NotRequired[str | None]
    step: NotRequired[str | None]


class Declared(TypedDict):
    name: str
    description: str
    topics: list[str]
    isolate: bool
    handlers: list[dict[str, Any]]
    connectors: list[str]
    repair: Literal["auto", "ask", "off"]


class DeleteManyBody(TypedDict):
    tag: NotRequired[str | None]
    filter: NotRequired["Filter | None"]


class Deliveries(TypedDict):
    job_ids: list[str]


class Depth(TypedDict):
    later: int
    blocked: int
    ready: int
    running: int
    retry: int
    waiting: int
    parked: int


class DiffBody(TypedDict):
    cron_expression: NotRequired[str | None]
    interval_seconds: NotRequired[float | None]
    interval: NotRequired[str | None]
    anchor: NotRequired[str | None]
    run_at: NotRequired[str | None]
    rrule: NotRequired[str | None]
    timezone: NotRequired[str | None]
    window_start: NotRequired[str | None]
    window_end: NotRequired[str | None]
    starts_at: NotRequired[str | None]
    ends_at: NotRequired[str | None]
    jitter_seconds: NotRequired[float | None]
    dst_gap: NotRequired[Literal["run_after", "skip"] | None]
    dst_repeat: NotRequired[Literal["first", "both"] | None]
    calendar: NotRequired[str | None]
    on_holiday: NotRequired[Literal["skip", "next", "previous", "run"] | None]
    schedule_type: NotRequired[Literal["cron", "interval", "once", "rrule"] | None]
    name: NotRequired[str | None]
    input: NotRequired[Any]
    max_runs: NotRequired[int | None]
    misfire: NotRequired["Misfire | None"]
    catch_up_limit: NotRequired[int | None]
    catch_up_spread_hours: NotRequired[float | None]
    catch_up_approval_slots: NotRequired[int | None]
    overlap: NotRequired["Overlap | None"]
    start_deadline_seconds: NotRequired[int | None]
    timeout_seconds: NotRequired[int | None]
    retry: NotRequired["Retry | None"]
    priority: NotRequired[int | None]
    queue: NotRequired[str | None]
    after: NotRequired[list[str] | None]
    when: NotRequired["When | None"]
    enabled: NotRequired[bool | None]
    tags: NotRequired[list[str] | None]
    description: NotRequired[str | None]
    grant_id: NotRequired[str | None]
    keep_runs_days: NotRequired[int | None]
    pause_after_failures: NotRequired[int | None]
    kind: NotRequired[str | None]
    target: NotRequired[str | None]
    days: NotRequired[int | None]
    replace: NotRequired[bool | None]


class DraftBody(TypedDict):
    sql: NotRequired[str | None]


class DueSchedule(TypedDict):
    schedule_id: str
    schedule: str
    target: str
    due_at: str


Durations = Literal["p50", "p95", "max"]

EffectResolution = Literal["applied", "not_applied", "skip"]

EffectStatus = Literal["in_flight", "applied", "failed", "needs_reconcile", "indeterminate"]


class EnableManyBody(TypedDict):
    tag: NotRequired[str | None]
    filter: NotRequired["Filter | None"]


class EndedSessions(TypedDict):
    ended: int


class Entry(TypedDict):
    id: str
    billing_account_id: str
    virtual_key_id: str | None
    amount: int
    balance_after: int
    reason: str
    reference: str
    created_at: str


class Error(TypedDict):
    code: NotRequired[str]
    type: NotRequired[str]
    message: NotRequired[str]
    traceback: NotRequired[str | None]
    locals: NotRequired[list["FrameLocals"]]


class EstimatedCost(TypedDict):
    credits_before: int
    credits_after: int
    usd_before: float | None
    usd_after: float | None


class EventBody(TypedDict):
    message_id: str
    payload: NotRequired[Any]
    title: NotRequired[str | None]


EventState = Literal["firing", "acknowledged", "resolved"]

EventStatus = Literal["pending", "reserved", "consumed", "skipped"]


class EventsBody(TypedDict):
    items: list["EventBody"]


class ExecuteBody(TypedDict):
    parameters: NotRequired[dict[str, Any] | None]


class Executed(TypedDict):
    job_id: str
    message: str


class Expanded(TypedDict):
    id: str
    run_id: str | None
    parent_id: str | None
    level: int
    label: str
    content_type: str
    size: int
    sha256: str | None
    created_at: str
    updated_at: str
    data: Any
    children: None


class Export(TypedDict):
    resources: dict[str, list[dict[str, Any]]]
    left_out: list["LeftOut"]


class Failing(TypedDict):
    id: str
    job_id: str
    schedule_id: str | None
    schedule: str | None
    kind: str
    target: str
    target_name: str
    status: Literal["failed", "crashed"]
    reason: str | None
    error: "Error | None"
    attempt: int
    finished_at: str
    last_at: str
    times: int
    acknowledged: "Acknowledgement | None"


class FieldChange(TypedDict):
    field: str
    before: Any
    after: Any


class FileBody(TypedDict):
    script: str


class Filter(TypedDict):
    ids: NotRequired[list[str] | None]
    name: NotRequired[str | None]
    kind: NotRequired[str | None]
    tag: NotRequired[str | None]
    enabled: NotRequired[bool | None]
    paused: NotRequired[bool | None]
    condition: NotRequired["Condition | None"]


class FrameLocals(TypedDict):
    file: str
    line: int
    function: str
    variables: dict[str, str]


class Freeze(TypedDict):
    frozen: bool
    frozen_at: str | None
    until: str | None
    reason: str | None


FreezeMode = Literal["skip", "hold"]


class FreezeWindow(TypedDict):
    id: str
    name: str
    starts_at: str
    ends_at: str
    mode: "FreezeMode"
    reason: str
    kind: str | None
    queue: str | None
    tag: str | None
    state: Literal["upcoming", "active", "ended"]
    words: str
    created_by: str | None
    created_by_name: str | None
    created_at: str
    updated_at: str
    schedules: list[str]


class FreezeWindowBody(TypedDict):
    starts_at: NotRequired[str | None]
    ends_at: str
    reason: NotRequired[str | None]
    mode: NotRequired["FreezeMode | None"]
    kind: NotRequired[str | None]
    queue: NotRequired[str | None]
    tag: NotRequired[str | None]
    name: str


class FreezeWindowChanges(TypedDict):
    starts_at: NotRequired[str | None]
    ends_at: NotRequired[str | None]
    reason: NotRequired[str | None]
    mode: NotRequired["FreezeMode | None"]
    kind: NotRequired[str | None]
    queue: NotRequired[str | None]
    tag: NotRequired[str | None]


class FreezeWindowSummary(TypedDict):
    id: str
    name: str
    starts_at: str
    ends_at: str
    mode: "FreezeMode"
    reason: str
    kind: str | None
    queue: str | None
    tag: str | None
    state: Literal["upcoming", "active", "ended"]
    words: str
    created_by: str | None
    created_by_name: str | None
    created_at: str
    updated_at: str


class Grant(TypedDict):
    id: str
    owner_id: str
    billing_account_id: str
    scopes: list[str]
    schedule_id: str | None
    expires_at: str | None
    revoked_at: str | None
    budget: "BudgetLimits | None"
    spent: int
    created_at: str


class GrantBody(TypedDict):
    consent: NotRequired[bool | None]
    scopes: list[str]
    expires_at: NotRequired[str | None]
    billing_account_id: NotRequired[str | None]
    budget: NotRequired["Budget | None"]


class GrantUse(TypedDict):
    id: str
    owner_id: str
    billing_account_id: str
    scopes: list[str]
    schedule_id: str | None
    expires_at: str | None
    revoked_at: str | None
    budget: "BudgetLimits | None"
    spent: int
    created_at: str
    schedules: list[str]


class Graph(TypedDict):
    id: str
    provider: str
    name: str
    version: str | None
    description: str | None
    live: bool


class GraphBody(TypedDict):
    input: NotRequired[dict[str, Any] | None]
    grant_id: NotRequired[str | None]


class Handler(TypedDict):
    name: str
    type: "HandlerKind"
    state: Any
    dirty: bool
    wake_at: str | None
    schedule_id: str | None
    held_run_id: str | None
    next_run_at: str | None
    subscribe: list[str]
    publishes: list[str]
    schedule: dict[str, Any] | None


HandlerKind = Literal["producer", "consumer"]


class HolidayDate(TypedDict):
    date: str
    name: str


class Host(TypedDict):
    id: str
    name: str
    status: Literal["unknown", "online", "offline"]
    labels: dict[str, str]
    key_version: int
    agent_version: str | None
    job_types: dict[str, Any] | None
    metrics: Any
    last_heartbeat_at: str | None
    servers: int
    created_at: str
    updated_at: str


class HostChanges(TypedDict):
    name: NotRequired[str | None]
    labels: NotRequired[dict[str, str] | None]


class HostJob(TypedDict):
    id: str
    submitted_at: str
    status: "Status"
    kind: str
    target_name: str
    attempt: int
    started_at: str | None
    finished_at: str | None
    error: "Error | None"
    artifact_id: str | None
    run_ids: list[str]
    server_instance_id: str
    job_type: str
    payload: dict[str, Any]
    waits_for: str | None


class HostJobBody(TypedDict):
    job_type: str
    payload: NotRequired[dict[str, Any] | None]
    timeout_seconds: NotRequired[int | None]
    retry: NotRequired["Retry | None"]
    server_instance_id: str


class HostKey(TypedDict):
    host_id: str
    agent_key: str


class HostResolveBody(TypedDict):
    resolution: Literal["applied", "not_applied"]
    result: NotRequired[Any]


class Input(TypedDict):
    id: str
    topic: str
    source: str
    message_id: str
    title: str | None
    status: Literal["pending", "done", "skipped"]
    stale: bool
    created_at: str


class InstallationStatus(TypedDict):
    ok: bool
    version: str
    database: Literal["sqlite", "postgresql"]
    database_version: str
    schema_revision: str | None
    workers: list["Worker"]
    running: int
    lateness_seconds: float | None
    queues: list["Queue"]
    schedules: "ScheduleCounts"
    attention: list["AttentionItem"]
    failing: list["Failing"]
    due: list["DueSchedule"]
    freeze: "Freeze"
    reports_replica: "ReportsReplica | None"


class Job(TypedDict):
    id: str
    submitted_at: str
    status: "Status"
    kind: str
    target: str
    target_name: str
    attempt: int
    started_at: str | None
    finished_at: str | None
    error: "Error | None"
    artifact_id: str | None
    run_ids: list[str]
    parent_id: str | None
    children: list[str]
    waiting: "Waiting | None"
    steps: list["Step"]


class JobBody(TypedDict):
    target: str
    kind: NotRequired[Literal["task", "graph", "pipeline", "host_job"] | None]
    input: NotRequired[Any]
    queue: NotRequired[str | None]
    priority: NotRequired[int | None]
    run_at: NotRequired[str | None]
    job_key: NotRequired[str | None]
    key_mode: NotRequired[Literal["reject", "preserve", "replace"] | None]
    after: NotRequired[list[str] | None]
    when: NotRequired["When | None"]


class JobBrief(TypedDict):
    id: str
    submitted_at: str
    status: "Status"
    kind: str
    target: str
    target_name: str
    attempt: int
    started_at: str | None
    finished_at: str | None
    error: "Error | None"
    artifact_id: str | None


class JobIds(TypedDict):
    job_ids: list[str]


class JobRef(TypedDict):
    job_id: str


class JobRefs(TypedDict):
    job_ids: list[str]


class Key(TypedDict):
    id: str
    name: str
    user_id: str
    user_name: str
    role: Literal["viewer", "operator", "admin"]
    scopes: list[str]
    prefix: str
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None


class KeyBody(TypedDict):
    name: str
    role: Literal["viewer", "operator", "admin"]
    user_id: NotRequired[str | None]
    scopes: NotRequired[list[str] | None]
    expires_at: NotRequired[str | None]


class LapsingSchedule(TypedDict):
    schedule_id: str
    schedule_name: str
    kind: str
    target: str
    grant_id: str
    lapses_at: str | None
    reason: Literal["grant_revoked", "grant_expired", "grant_not_found"]


class LeftOut(TypedDict):
    resource: str
    name: str
    reason: str


class LeftOutHoliday(TypedDict):
    date: str
    moved_to: str | None


class Line(TypedDict):
    id: int
    at: str
    stream: str
    text: str


LogLevel = Literal["error", "warning", "info", "debug"]


class LoginLink(TypedDict):
    url: str
    expires_at: str


Misfire = Literal["skip", "once", "all"]

MovedSlot = TypedDict("MovedSlot", {"from": str, "to": str})


class Namespace(TypedDict):
    name: str
    pipelines: int


class NewChannel(TypedDict):
    id: str
    name: str
    type: Literal["email", "webhook", "apprise", "command"]
    address: str
    test_seconds: int | None
    last_delivery_at: str | None
    last_status: str | None
    last_answer: str | None
    source: str
    created_at: str
    updated_at: str
    secret: str | None


class NewKey(TypedDict):
    id: str
    name: str
    user_id: str
    user_name: str
    role: Literal["viewer", "operator", "admin"]
    scopes: list[str]
    prefix: str
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None
    key: str


class NewOrg(TypedDict):
    id: str
    slug: str
    name: str
    admin_key: str


class NewSignalHook(TypedDict):
    id: str
    name: str
    topic: str
    key_field: str | None
    path: str
    previous_until: str | None
    created_at: str
    secret: str


class NewTrigger(TypedDict):
    id: str
    type: Literal["pipeline_success", "cron_dependency", "webhook"]
    upstreams: list[str]
    cron_expression: str | None
    cooldown_seconds: int
    enabled: bool
    last_triggered_at: str | None
    last_job_id: str | None
    source: str
    created_at: str
    token: str | None


OnNewVersion = Literal["continue", "restart", "park"]


class Org(TypedDict):
    id: str
    slug: str
    name: str
    shell: bool
    max_running: int | None
    created_at: str


class OrgBody(TypedDict):
    name: str
    slug: str


class OrgChanges(TypedDict):
    shell: NotRequired[bool | None]
    max_running: NotRequired[int | None]


OutageBody = TypedDict("OutageBody", {"from": str, "to": str})

Outcome = Literal["applied", "none", "skipped", "failed"]


class Output(TypedDict):
    id: str
    run_id: str
    call: str
    params: Any
    title: str | None
    status: "EffectStatus"
    result: Any
    inputs: int
    resolved_by: str | None
    warning: str | None
    created_at: str
    updated_at: str


Overlap = Literal["queue_one", "queue_all", "skip", "allow", "replace"]

Parameters = dict[str, Any]


class PasswordBody(TypedDict):
    current_password: str
    new_password: str


class PauseBody(TypedDict):
    reason: NotRequired[str | None]
    until: NotRequired[str | None]


class PauseManyBody(TypedDict):
    tag: NotRequired[str | None]
    filter: NotRequired["Filter | None"]
    reason: NotRequired[str | None]
    until: NotRequired[str | None]


Phase = Literal["pending", "executing", "preparing", "prepared", "mutating", "mutated", "emitting", "committed"]


class Pipeline(TypedDict):
    id: str
    path: str
    namespace: str
    layer: Literal["bronze", "silver", "gold"]
    name: str
    type: Literal["sql", "python"]
    sql: str | None
    function: str | None
    reads: list[str]
    description: str
    owner_id: str | None
    version: int
    max_runs: int | None
    max_age_days: int | None
    append_by: str | None
    merge_by: list[str] | None
    partition_by: str | None
    source: str
    created_at: str
    updated_at: str


PipelineBackfillBody = TypedDict("PipelineBackfillBody", {"from": str, "to": str})


class PipelineBody(TypedDict):
    type: NotRequired[Literal["sql", "python"] | None]
    sql: NotRequired[str | None]
    function: NotRequired[str | None]
    description: NotRequired[str | None]
    max_runs: NotRequired[int | None]
    max_age_days: NotRequired[int | None]
    append_by: NotRequired[str | None]
    merge_by: NotRequired[list[str] | None]
    partition_by: NotRequired[str | None]
    namespace: str
    layer: Literal["bronze", "silver", "gold"]
    name: str


class PipelineChanges(TypedDict):
    type: NotRequired[Literal["sql", "python"] | None]
    sql: NotRequired[str | None]
    function: NotRequired[str | None]
    description: NotRequired[str | None]
    max_runs: NotRequired[int | None]
    max_age_days: NotRequired[int | None]
    append_by: NotRequired[str | None]
    merge_by: NotRequired[list[str] | None]
    partition_by: NotRequired[str | None]


PipelineEdge = TypedDict(
    "PipelineEdge", {"from": str, "to": str, "kind": Literal["reads", "pipeline_success", "cron_dependency", "webhook"]}
)


class PipelineGraph(TypedDict):
    nodes: list["PipelineNode"]
    edges: list["PipelineEdge"]


class PipelineNode(TypedDict):
    path: str
    namespace: str
    layer: Literal["bronze", "silver", "gold"]
    name: str
    type: str


class PipelinePreview(TypedDict):
    columns: list["Column"]
    rows: list[list[Any]]


class PipelineRunBody(TypedDict):
    input: NotRequired[dict[str, Any] | None]


class PipelineVersion(TypedDict):
    version: int
    type: Literal["sql", "python"]
    sql: str | None
    function: str | None
    append_by: str | None
    merge_by: list[str] | None
    partition_by: str | None
    created_at: str


class Plan(TypedDict):
    version: str
    changes: list["ResourceChange"]
    unchanged: int


class PlanBody(TypedDict):
    resources: dict[str, list[dict[str, Any]]]
    prune: NotRequired[bool | None]


class PreviewBody(TypedDict):
    cron_expression: NotRequired[str | None]
    interval_seconds: NotRequired[float | None]
    interval: NotRequired[str | None]
    anchor: NotRequired[str | None]
    run_at: NotRequired[str | None]
    rrule: NotRequired[str | None]
    timezone: NotRequired[str | None]
    window_start: NotRequired[str | None]
    window_end: NotRequired[str | None]
    starts_at: NotRequired[str | None]
    ends_at: NotRequired[str | None]
    jitter_seconds: NotRequired[float | None]
    dst_gap: NotRequired[Literal["run_after", "skip"] | None]
    dst_repeat: NotRequired[Literal["first", "both"] | None]
    calendar: NotRequired[str | None]
    on_holiday: NotRequired[Literal["skip", "next", "previous", "run"] | None]
    schedule_type: NotRequired[Literal["cron", "interval", "once", "rrule"] | None]
    count: NotRequired[int | None]
    after: NotRequired[str | None]
    name: NotRequired[str | None]
    kind: NotRequired[str | None]
    queue: NotRequired[str | None]
    tags: NotRequired[list[str] | None]


class PublishedEvent(TypedDict):
    id: str
    result: Literal["created", "replaced", "kept"]


class PublishedEvents(TypedDict):
    items: list["PublishedEvent"]


class Queue(TypedDict):
    name: str
    depth: "Depth"
    oldest_ready_at: str | None
    max_running: int | None
    rate: str | None
    burst: int | None
    paused: bool


class QueueBody(TypedDict):
    max_running: NotRequired[int | None]
    rate: NotRequired[str | None]
    burst: NotRequired[int | None]
    paused: NotRequired[bool | None]


class Receipt(TypedDict):
    id: str
    billing_account_id: str
    virtual_key_id: str
    grant_id: str | None
    schedule_id: str | None
    target: str
    run_id: str
    attempt: int
    unit: str
    model: str | None
    input_tokens: int
    output_tokens: int
    charged_credits: int
    cost_usd: str | None
    source_system: str
    source_reference: str
    created_at: str


class Recent(TypedDict):
    at: str
    run_id: str
    text: str


class RefusedRun(TypedDict):
    id: str
    detail: str


class RejectBody(TypedDict):
    comment: NotRequired[str | None]


class ReportsReplica(TypedDict):
    problem: str | None
    lag_seconds: float | None
    fallbacks: int


Resolution = Literal["approve", "reject", "applied", "not_applied", "skip", "try_again"]


class ResourceChange(TypedDict):
    resource: str
    name: str
    action: Literal["create", "change", "pause", "left", "none"]
    fields: list["FieldChange"]
    drift: list[str]
    note: str | None
    slots: "SlotChanges | None"


class ResumeBody(TypedDict):
    gap: NotRequired["Misfire | None"]
    limit: NotRequired[int | None]
    spread_hours: NotRequired[float | None]


class ResumeManyBody(TypedDict):
    tag: NotRequired[str | None]
    filter: NotRequired["Filter | None"]
    gap: NotRequired["Misfire | None"]


class Resumed(TypedDict):
    cron_expression: str | None
    interval_seconds: float | None
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
    misfire: "Misfire"
    catch_up_limit: int
    catch_up_spread_hours: float | None
    catch_up_approval_slots: int | None
    overlap: "Overlap"
    start_deadline_seconds: int | None
    timeout_seconds: int | None
    retry: "Retry | None"
    priority: int
    queue: str
    after: list[str]
    when: "When | None"
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
    condition: "Condition"
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
    catch_up: "CatchUpSummary | None"


class Retry(TypedDict):
    max_retries: NotRequired[int]
    backoff_ms: NotRequired[int]
    backoff_type: NotRequired["Backoff"]
    max_backoff_ms: NotRequired[int]
    jitter: NotRequired[float]


class RetryBody(TypedDict):
    from_step: NotRequired[str | None]
    input: NotRequired[Any]


class RetryRunsBody(TypedDict):
    ids: NotRequired[list[str] | None]
    filter: NotRequired["RunFilter | None"]
    dry_run: NotRequired[bool | None]
    input: NotRequired[Any]


class RevokeBody(TypedDict):
    cancel_running: NotRequired[bool | None]


class RollbackBody(TypedDict):
    version: str


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
    status: "Status"
    reason: str | None
    error: "Error | None"
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
    handler_type: NotRequired["HandlerKind"]
    phase: NotRequired["Phase"]
    mutation_outcome: NotRequired["Outcome | None"]
    prepare_result: NotRequired[Any]
    mutation_result: NotRequired[Any]
    updated_at: NotRequired[str]


class RunBody(TypedDict):
    input: NotRequired[Any]
    overlap: NotRequired["Overlap | None"]


class RunFilter(TypedDict):
    schedule_id: NotRequired[str | None]
    tag: NotRequired[str | None]
    job_id: NotRequired[str | None]
    status: NotRequired["Status | None"]
    reason: NotRequired[str | None]
    kind: NotRequired[str | None]
    target: NotRequired[str | None]
    namespace: NotRequired[str | None]
    layer: NotRequired[str | None]
    pipeline: NotRequired[str | None]
    input: NotRequired[list[str] | None]
    error: NotRequired[str | None]
    worker: NotRequired[str | None]
    longer_than: NotRequired[str | None]
    shorter_than: NotRequired[str | None]
    since: NotRequired[str | None]
    until: NotRequired[str | None]
    within: NotRequired[str | None]


class RunSelection(TypedDict):
    ids: NotRequired[list[str] | None]
    filter: NotRequired["RunFilter | None"]
    dry_run: NotRequired[bool | None]


class RunSelectionResult(TypedDict):
    count: int
    refused: list["RefusedRun"]
    more: bool


class Schedule(TypedDict):
    cron_expression: str | None
    interval_seconds: float | None
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
    misfire: "Misfire"
    catch_up_limit: int
    catch_up_spread_hours: float | None
    catch_up_approval_slots: int | None
    overlap: "Overlap"
    start_deadline_seconds: int | None
    timeout_seconds: int | None
    retry: "Retry | None"
    priority: int
    queue: str
    after: list[str]
    when: "When | None"
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
    condition: "Condition"
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


class ScheduleBody(TypedDict):
    cron_expression: NotRequired[str | None]
    interval_seconds: NotRequired[float | None]
    interval: NotRequired[str | None]
    anchor: NotRequired[str | None]
    run_at: NotRequired[str | None]
    rrule: NotRequired[str | None]
    timezone: NotRequired[str | None]
    window_start: NotRequired[str | None]
    window_end: NotRequired[str | None]
    starts_at: NotRequired[str | None]
    ends_at: NotRequired[str | None]
    jitter_seconds: NotRequired[float | None]
    dst_gap: NotRequired[Literal["run_after", "skip"] | None]
    dst_repeat: NotRequired[Literal["first", "both"] | None]
    calendar: NotRequired[str | None]
    on_holiday: NotRequired[Literal["skip", "next", "previous", "run"] | None]
    schedule_type: NotRequired[Literal["cron", "interval", "once", "rrule"] | None]
    name: NotRequired[str | None]
    input: NotRequired[Any]
    max_runs: NotRequired[int | None]
    misfire: NotRequired["Misfire | None"]
    catch_up_limit: NotRequired[int | None]
    catch_up_spread_hours: NotRequired[float | None]
    catch_up_approval_slots: NotRequired[int | None]
    overlap: NotRequired["Overlap | None"]
    start_deadline_seconds: NotRequired[int | None]
    timeout_seconds: NotRequired[int | None]
    retry: NotRequired["Retry | None"]
    priority: NotRequired[int | None]
    queue: NotRequired[str | None]
    after: NotRequired[list[str] | None]
    when: NotRequired["When | None"]
    enabled: NotRequired[bool | None]
    tags: NotRequired[list[str] | None]
    description: NotRequired[str | None]
    grant_id: NotRequired[str | None]
    keep_runs_days: NotRequired[int | None]
    pause_after_failures: NotRequired[int | None]
    kind: NotRequired[str | None]
    target: str


class ScheduleChanges(TypedDict):
    cron_expression: NotRequired[str | None]
    interval_seconds: NotRequired[float | None]
    interval: NotRequired[str | None]
    anchor: NotRequired[str | None]
    run_at: NotRequired[str | None]
    rrule: NotRequired[str | None]
    timezone: NotRequired[str | None]
    window_start: NotRequired[str | None]
    window_end: NotRequired[str | None]
    starts_at: NotRequired[str | None]
    ends_at: NotRequired[str | None]
    jitter_seconds: NotRequired[float | None]
    dst_gap: NotRequired[Literal["run_after", "skip"] | None]
    dst_repeat: NotRequired[Literal["first", "both"] | None]
    calendar: NotRequired[str | None]
    on_holiday: NotRequired[Literal["skip", "next", "previous", "run"] | None]
    schedule_type: NotRequired[Literal["cron", "interval", "once", "rrule"] | None]
    name: NotRequired[str | None]
    input: NotRequired[Any]
    max_runs: NotRequired[int | None]
    misfire: NotRequired["Misfire | None"]
    catch_up_limit: NotRequired[int | None]
    catch_up_spread_hours: NotRequired[float | None]
    catch_up_approval_slots: NotRequired[int | None]
    overlap: NotRequired["Overlap | None"]
    start_deadline_seconds: NotRequired[int | None]
    timeout_seconds: NotRequired[int | None]
    retry: NotRequired["Retry | None"]
    priority: NotRequired[int | None]
    queue: NotRequired[str | None]
    after: NotRequired[list[str] | None]
    when: NotRequired["When | None"]
    enabled: NotRequired[bool | None]
    tags: NotRequired[list[str] | None]
    description: NotRequired[str | None]
    grant_id: NotRequired[str | None]
    keep_runs_days: NotRequired[int | None]
    pause_after_failures: NotRequired[int | None]
    kind: NotRequired[str | None]
    target: NotRequired[str | None]


class ScheduleCounts(TypedDict):
    enabled: int
    disabled: int
    paused: int
    broken: int
    late: int


class Schedules(TypedDict):
    items: list["Schedule"]


class SchedulesBody(TypedDict):
    items: list[dict[str, Any]]


class ScriptBody(TypedDict):
    script: str
    name: NotRequired[str | None]


class Server(TypedDict):
    id: str
    host_id: str
    name: str
    type: str
    config: dict[str, Any]
    labels: dict[str, str]
    created_at: str
    updated_at: str


class ServerBody(TypedDict):
    name: str
    type: NotRequired[str | None]
    config: NotRequired[dict[str, Any] | None]
    labels: NotRequired[dict[str, str] | None]
    host_id: str


class ServerChanges(TypedDict):
    name: NotRequired[str | None]
    type: NotRequired[str | None]
    config: NotRequired[dict[str, Any] | None]
    labels: NotRequired[dict[str, str] | None]


class ServiceAccount(TypedDict):
    id: str
    name: str
    role: Literal["viewer", "operator", "admin"]
    scopes: list[str]
    disabled: bool
    created_at: str
    updated_at: str


class ServiceAccountBody(TypedDict):
    name: str
    role: Literal["viewer", "operator", "admin"]
    scopes: NotRequired[list[str] | None]


class ServiceAccountChanges(TypedDict):
    name: NotRequired[str | None]
    role: NotRequired[Literal["viewer", "operator", "admin"] | None]
    scopes: NotRequired[list[str] | None]
    disabled: NotRequired[bool | None]


class Session(TypedDict):
    id: str
    user_id: str
    user_name: str
    key_id: str | None
    key_name: str | None
    address: str | None
    user_agent: str | None
    device: str | None
    method: Literal["password", "link", "oidc"] | None
    current: bool
    created_at: str
    last_used_at: str
    expires_at: str


class SessionsEnd(TypedDict):
    user_id: NotRequired[str | None]


class SignalBody(TypedDict):
    topic: str
    key: NotRequired[str | None]
    payload: NotRequired[Any]
    id: NotRequired[str | None]


class SignalHook(TypedDict):
    id: str
    name: str
    topic: str
    key_field: str | None
    path: str
    previous_until: str | None
    created_at: str


class SignalHookBody(TypedDict):
    name: str
    topic: str
    key_field: NotRequired[str | None]


class SignalSent(TypedDict):
    id: str
    delivered: bool


SimulateBody = TypedDict(
    "SimulateBody",
    {
        "from": str,
        "to": str,
        "outages": NotRequired["list[OutageBody] | None"],
        "durations": NotRequired["Durations | None"],
        "workers": NotRequired[int | None],
    },
)


class SimulatedLoad(TypedDict):
    hour: str
    queue: str
    host: str | None
    runs: int
    seconds: float


class SimulatedSlot(TypedDict):
    schedule: str
    slot: str
    last_slot: str
    count: int | None
    verdict: Literal["ran", "skipped", "missed", "coalesced"] | None
    reason: str | None
    starts_at: str | None
    finishes_at: str | None


Simulation = TypedDict(
    "Simulation",
    {
        "from": str,
        "to": str,
        "until": str,
        "slots": list["SimulatedSlot"],
        "totals": "SimulationTotals",
        "load": list["SimulatedLoad"],
        "unknown_durations": list[str],
        "truncated": bool,
    },
)


class SimulationTotals(TypedDict):
    ran: int
    skipped: int
    missed: int
    coalesced: int
    waiting: int
    reasons: dict[str, int]
    seconds: float
    credits: int
    longest_wait_seconds: float


class SkipBody(TypedDict):
    reason: NotRequired[str | None]


class Skipped(TypedDict):
    slot: str
    verdict: Literal["skipped"]
    reason: Literal["operator"]


class Slot(TypedDict):
    schedule_id: str
    schedule_name: str
    slot: str
    last_slot: str | None
    count: int | None
    verdict: "Verdict | None"
    reason: str | None
    note: str | None
    into_slot: str | None
    run_id: str | None
    status: "Status | None"


class SlotAudit(TypedDict):
    ok: bool
    schedules: int
    slots: int
    problems: list[str]
    overdue: list[str]


class SlotChanges(TypedDict):
    words_before: str | None
    words_after: str
    since: str
    until: str
    compared_until: str
    slots_before: int | None
    slots_after: int | None
    added_count: int
    removed_count: int
    moved_count: int
    added: list[str]
    removed: list[str]
    moved: list["MovedSlot"]
    clashes: list["Clash"]
    left_out: list["LeftOutHoliday"]
    usual_run: "UsualRun | None"
    shortest_gap_seconds: float | None
    cost: "EstimatedCost | None"
    warnings: list[str]


class SlotImpact(TypedDict):
    words_before: str | None
    words_after: str
    since: str
    until: str
    compared_until: str
    slots_before: int | None
    slots_after: int | None
    added_count: int
    removed_count: int
    moved_count: int
    added: list[str]
    removed: list[str]
    moved: list["MovedSlot"]
    clashes: list["Clash"]
    left_out: list["LeftOutHoliday"]
    usual_run: "UsualRun | None"
    shortest_gap_seconds: float | None
    cost: "EstimatedCost | None"
    warnings: list[str]
    fields: list["FieldChange"]


class StartedJob(TypedDict):
    job_id: str
    warnings: list[str]


Status = Literal[
    "pending", "running", "success", "failed", "crashed", "lost", "canceled", "paused", "skipped", "missed", "coalesced"
]


class Step(TypedDict):
    name: str
    seq: int
    type: "StepType"
    status: "StepStatus"
    attempts: int
    started_at: str
    finished_at: str | None
    result: Any
    error: "Error | None"
    until: str | None
    topic: str | None
    key: str | None
    child_job_id: str | None


StepStatus = Literal["in_flight", "waiting", "done", "failed", "timed_out", "needs_reconcile", "indeterminate"]

StepType = Literal["step", "effect", "sleep", "signal", "approval", "child"]


class StopBody(TypedDict):
    reason: NotRequired[str | None]


class Task(TypedDict):
    id: str
    name: str
    command: str | None
    task_type: Literal["shell", "python"] | None
    parameters: dict[str, Any] | None
    enabled: bool
    retry: "Retry | None"
    timeout: str | float | None
    isolation: Literal["none", "process"] | None
    executor: Literal["dask", "ray", "container", "kubernetes"] | None
    container: dict[str, Any] | None
    cache_ttl: str | float | None
    env: Any
    cwd: str | None
    stdin: str | None
    memory_mb: int | None
    delete_with_schedule: bool | None
    queue: str | None
    priority: int | None
    rate: str | None
    burst: int | None
    rate_key: str | None
    max_running: int | None
    max_running_key: str | None
    heartbeat: str | float | None
    debounce: str | float | None
    debounce_key: str | None
    debounce_max: str | float | None
    throttle: str | float | None
    throttle_key: str | None
    on_new_version: "OnNewVersion | None"
    source: str
    version: str
    created_at: str
    updated_at: str


class TaskBody(TypedDict):
    id: NotRequired[str | None]
    name: NotRequired[str | None]
    command: str
    task_type: NotRequired[Literal["shell", "python"] | None]
    parameters: NotRequired[dict[str, Any] | None]
    enabled: NotRequired[bool | None]
    retry: NotRequired["Retry | None"]
    timeout: NotRequired[str | float | None]
    isolation: NotRequired[Literal["none", "process"] | None]
    executor: NotRequired[Literal["dask", "ray", "container", "kubernetes"] | None]
    container: NotRequired[dict[str, Any] | None]
    cache_ttl: NotRequired[str | float | None]
    env: NotRequired[Any]
    cwd: NotRequired[str | None]
    stdin: NotRequired[str | None]
    memory_mb: NotRequired[int | None]
    delete_with_schedule: NotRequired[bool | None]
    queue: NotRequired[str | None]
    priority: NotRequired[int | None]
    rate: NotRequired[str | None]
    burst: NotRequired[int | None]
    rate_key: NotRequired[str | None]
    max_running: NotRequired[int | None]
    max_running_key: NotRequired[str | None]
    heartbeat: NotRequired[str | float | None]
    debounce: NotRequired[str | float | None]
    debounce_key: NotRequired[str | None]
    debounce_max: NotRequired[str | float | None]
    throttle: NotRequired[str | float | None]
    throttle_key: NotRequired[str | None]
    on_new_version: NotRequired["OnNewVersion | None"]


class TaskChanges(TypedDict):
    id: NotRequired[str | None]
    name: NotRequired[str | None]
    command: NotRequired[str | None]
    task_type: NotRequired[Literal["shell", "python"] | None]
    parameters: NotRequired[dict[str, Any] | None]
    enabled: NotRequired[bool | None]
    retry: NotRequired["Retry | None"]
    timeout: NotRequired[str | float | None]
    isolation: NotRequired[Literal["none", "process"] | None]
    executor: NotRequired[Literal["dask", "ray", "container", "kubernetes"] | None]
    container: NotRequired[dict[str, Any] | None]
    cache_ttl: NotRequired[str | float | None]
    env: NotRequired[Any]
    cwd: NotRequired[str | None]
    stdin: NotRequired[str | None]
    memory_mb: NotRequired[int | None]
    delete_with_schedule: NotRequired[bool | None]
    queue: NotRequired[str | None]
    priority: NotRequired[int | None]
    rate: NotRequired[str | None]
    burst: NotRequired[int | None]
    rate_key: NotRequired[str | None]
    max_running: NotRequired[int | None]
    max_running_key: NotRequired[str | None]
    heartbeat: NotRequired[str | float | None]
    debounce: NotRequired[str | float | None]
    debounce_key: NotRequired[str | None]
    debounce_max: NotRequired[str | float | None]
    throttle: NotRequired[str | float | None]
    throttle_key: NotRequired[str | None]
    on_new_version: NotRequired["OnNewVersion | None"]


class TaskReplacement(TypedDict):
    id: NotRequired[str | None]
    name: NotRequired[str | None]
    command: str
    task_type: NotRequired[Literal["shell", "python"] | None]
    parameters: NotRequired[dict[str, Any] | None]
    enabled: NotRequired[bool | None]
    retry: NotRequired["Retry | None"]
    timeout: NotRequired[str | float | None]
    isolation: NotRequired[Literal["none", "process"] | None]
    executor: NotRequired[Literal["dask", "ray", "container", "kubernetes"] | None]
    container: NotRequired[dict[str, Any] | None]
    cache_ttl: NotRequired[str | float | None]
    env: NotRequired[Any]
    cwd: NotRequired[str | None]
    stdin: NotRequired[str | None]
    memory_mb: NotRequired[int | None]
    delete_with_schedule: NotRequired[bool | None]
    queue: NotRequired[str | None]
    priority: NotRequired[int | None]
    rate: NotRequired[str | None]
    burst: NotRequired[int | None]
    rate_key: NotRequired[str | None]
    max_running: NotRequired[int | None]
    max_running_key: NotRequired[str | None]
    heartbeat: NotRequired[str | float | None]
    debounce: NotRequired[str | float | None]
    debounce_key: NotRequired[str | None]
    debounce_max: NotRequired[str | float | None]
    throttle: NotRequired[str | float | None]
    throttle_key: NotRequired[str | None]
    on_new_version: NotRequired["OnNewVersion | None"]


class TaskSchedule(TypedDict):
    cron_expression: str | None
    interval_seconds: float | None
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
    misfire: "Misfire"
    catch_up_limit: int
    catch_up_spread_hours: float | None
    catch_up_approval_slots: int | None
    overlap: "Overlap"
    start_deadline_seconds: int | None
    timeout_seconds: int | None
    retry: "Retry | None"
    priority: int
    queue: str
    after: list[str]
    when: "When | None"
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
    condition: "Condition"
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
    task_id: str


class TaskScheduleBody(TypedDict):
    cron_expression: NotRequired[str | None]
    interval_seconds: NotRequired[float | None]
    interval: NotRequired[str | None]
    anchor: NotRequired[str | None]
    run_at: NotRequired[str | None]
    rrule: NotRequired[str | None]
    timezone: NotRequired[str | None]
    window_start: NotRequired[str | None]
    window_end: NotRequired[str | None]
    starts_at: NotRequired[str | None]
    ends_at: NotRequired[str | None]
    jitter_seconds: NotRequired[float | None]
    dst_gap: NotRequired[Literal["run_after", "skip"] | None]
    dst_repeat: NotRequired[Literal["first", "both"] | None]
    calendar: NotRequired[str | None]
    on_holiday: NotRequired[Literal["skip", "next", "previous", "run"] | None]
    schedule_type: NotRequired[Literal["cron", "interval", "once", "rrule"] | None]
    name: NotRequired[str | None]
    input: NotRequired[Any]
    max_runs: NotRequired[int | None]
    misfire: NotRequired["Misfire | None"]
    catch_up_limit: NotRequired[int | None]
    catch_up_spread_hours: NotRequired[float | None]
    catch_up_approval_slots: NotRequired[int | None]
    overlap: NotRequired["Overlap | None"]
    start_deadline_seconds: NotRequired[int | None]
    timeout_seconds: NotRequired[int | None]
    retry: NotRequired["Retry | None"]
    priority: NotRequired[int | None]
    queue: NotRequired[str | None]
    after: NotRequired[list[str] | None]
    when: NotRequired["When | None"]
    enabled: NotRequired[bool | None]
    tags: NotRequired[list[str] | None]
    description: NotRequired[str | None]
    grant_id: NotRequired[str | None]
    keep_runs_days: NotRequired[int | None]
    pause_after_failures: NotRequired[int | None]


class TaskScheduleChanges(TypedDict):
    cron_expression: NotRequired[str | None]
    interval_seconds: NotRequired[float | None]
    interval: NotRequired[str | None]
    anchor: NotRequired[str | None]
    run_at: NotRequired[str | None]
    rrule: NotRequired[str | None]
    timezone: NotRequired[str | None]
    window_start: NotRequired[str | None]
    window_end: NotRequired[str | None]
    starts_at: NotRequired[str | None]
    ends_at: NotRequired[str | None]
    jitter_seconds: NotRequired[float | None]
    dst_gap: NotRequired[Literal["run_after", "skip"] | None]
    dst_repeat: NotRequired[Literal["first", "both"] | None]
    calendar: NotRequired[str | None]
    on_holiday: NotRequired[Literal["skip", "next", "previous", "run"] | None]
    schedule_type: NotRequired[Literal["cron", "interval", "once", "rrule"] | None]
    name: NotRequired[str | None]
    input: NotRequired[Any]
    max_runs: NotRequired[int | None]
    misfire: NotRequired["Misfire | None"]
    catch_up_limit: NotRequired[int | None]
    catch_up_spread_hours: NotRequired[float | None]
    catch_up_approval_slots: NotRequired[int | None]
    overlap: NotRequired["Overlap | None"]
    start_deadline_seconds: NotRequired[int | None]
    timeout_seconds: NotRequired[int | None]
    retry: NotRequired["Retry | None"]
    priority: NotRequired[int | None]
    queue: NotRequired[str | None]
    after: NotRequired[list[str] | None]
    when: NotRequired["When | None"]
    enabled: NotRequired[bool | None]
    tags: NotRequired[list[str] | None]
    description: NotRequired[str | None]
    grant_id: NotRequired[str | None]
    keep_runs_days: NotRequired[int | None]
    pause_after_failures: NotRequired[int | None]


class Token(TypedDict):
    id: str
    token: str
    expires_at: str


class TokenBody(TypedDict):
    ttl_seconds: NotRequired[int | None]


class TopicEvent(TypedDict):
    id: str
    topic: str
    message_id: str
    payload: Any
    title: str | None
    status: "EventStatus"
    source: str | None
    reserved_by: str | None
    created_by: str | None
    attempt: int
    caused_by: list[str]
    created_at: str
    updated_at: str


class Tree(TypedDict):
    id: str
    run_id: str | None
    parent_id: str | None
    level: int
    label: str
    content_type: str
    size: int
    sha256: str | None
    created_at: str
    updated_at: str
    data: Any
    children: list[dict[str, Any]]


class Trigger(TypedDict):
    id: str
    type: Literal["pipeline_success", "cron_dependency", "webhook"]
    upstreams: list[str]
    cron_expression: str | None
    cooldown_seconds: int
    enabled: bool
    last_triggered_at: str | None
    last_job_id: str | None
    source: str
    created_at: str


class TriggerBody(TypedDict):
    type: Literal["pipeline_success", "cron_dependency", "webhook"]
    upstream: NotRequired[str | None]
    upstreams: NotRequired[list[str] | None]
    cron_expression: NotRequired[str | None]
    timezone: NotRequired[str | None]
    cooldown_seconds: NotRequired[int | None]


class TriggerChanges(TypedDict):
    enabled: NotRequired[bool | None]
    cooldown_seconds: NotRequired[int | None]


class Usage(TypedDict):
    name: str | None
    key: str | None
    runs: int
    units: int
    input_tokens: int
    output_tokens: int
    charged_credits: int
    cost_usd: str


class User(TypedDict):
    id: str
    email: str | None
    name: str
    role: Literal["viewer", "operator", "admin"]
    disabled: bool
    disabled_by: Literal["admin", "provider"] | None
    oidc_subject: str | None
    created_at: str
    updated_at: str


class UserBody(TypedDict):
    email: str
    name: NotRequired[str | None]
    password: str
    role: Literal["viewer", "operator", "admin"]


class UserChanges(TypedDict):
    email: NotRequired[str | None]
    name: NotRequired[str | None]
    password: NotRequired[str | None]
    role: NotRequired[Literal["viewer", "operator", "admin"] | None]
    disabled: NotRequired[bool | None]
    oidc_subject: NotRequired[str | None]


class UsualRun(TypedDict):
    runs: int
    median_seconds: float
    p95_seconds: float
    credits_per_run: float | None
    usd_per_run: float | None


class Validation(TypedDict):
    ok: bool
    error: str | None
    reads: list[str]
    columns: list["Column"]


Verdict = Literal["ran", "skipped", "missed", "coalesced"]

VersionOutcome = Literal["asked", "waiting", "accepted", "rejected", "refused", "superseded"]


class View(TypedDict):
    id: str
    name: str
    filter: "RunFilter"
    visibility: "Visibility"
    owner_id: str
    owner_name: str | None
    link: str
    created_at: str
    updated_at: str


class ViewBody(TypedDict):
    name: str
    filter: "RunFilter"
    visibility: NotRequired["Visibility | None"]


class ViewChanges(TypedDict):
    name: NotRequired[str | None]
    filter: NotRequired["RunFilter | None"]
    visibility: NotRequired["Visibility | None"]


class VirtualKey(TypedDict):
    id: str
    billing_account_id: str
    label: str
    is_default: bool
    active: bool
    created_at: str


class VirtualKeyBody(TypedDict):
    label: str
    account_id: NotRequired[str | None]


Visibility = Literal["private", "link", "org"]

Waiting = TypedDict(
    "Waiting",
    {
        "for": str,
        "step": NotRequired[str | None],
        "until": NotRequired[str | None],
        "topic": NotRequired[str | None],
        "key": NotRequired[str | None],
        "max_running": NotRequired[int | None],
        "after": NotRequired[list[str] | None],
    },
)


class WantedOfQueue(TypedDict):
    queue: str
    due: int
    running: int
    places: float
    concurrency: int
    wanted_workers: int


class WantedWorkers(TypedDict):
    wanted_workers: int
    places: float
    concurrency: int
    capped: bool
    queues: list["WantedOfQueue"]


When = Literal["success", "failure", "any"]


class Why(TypedDict):
    job_id: str | None
    schedule_id: str | None
    slot: str | None
    status: str
    sentences: list[str]


class Worker(TypedDict):
    id: str
    state: "WorkerState"
    host: str | None
    pid: int | None
    version: str
    concurrency: int
    kinds: list[str]
    queues: list[str] | None
    started_at: str
    renewed_at: str
    lease_until: str
    running: int


WorkerState = Literal["alive", "stopped", "dead"]


class Workflow(TypedDict):
    id: str
    name: str
    description: str
    status: Literal["running", "idle", "needs_attention", "stopped"]
    issue: str | None
    schedule: str | None
    next_check_at: str | None
    next_check: str | None
    recent: list["Recent"]
    pending: int
    stale_inputs: int
    attention: int
    paused_at: str | None
    pause_reason: str | None
    version: str
    source: str
    topics: list[str]
    created_at: str
    updated_at: str


class WorkflowFile(TypedDict):
    version: str
    live: bool
    outcome: "VersionOutcome"
    why: str | None
    run_id: str | None
    created_by: str | None
    decided_by: str | None
    created_at: str
    decided_at: str | None
    source: str | None
    against: str | None
    diff: str


class WorkflowRun(TypedDict):
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
    status: "Status"
    reason: str | None
    error: "Error | None"
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
    workflow_id: str
    handler_id: str
    handler_type: "HandlerKind"
    phase: "Phase"
    mutation_outcome: "Outcome | None"
    prepare_result: Any
    mutation_result: Any
    updated_at: str


class WorkflowVersion(TypedDict):
    version: str
    live: bool
    outcome: "VersionOutcome"
    why: str | None
    run_id: str | None
    created_by: str | None
    decided_by: str | None
    created_at: str
    decided_at: str | None


class rota__app__api__models__ResolveBody(TypedDict):
    resolution: "EffectResolution"
    result: NotRequired[Any]
    step: NotRequired[str | None]


class rota__kinds__workflows__models__ResolveBody(TypedDict):
    resolution: "Resolution"
    result: NotRequired[Any]


class Event(TypedDict):
    id: str
    event: Literal[
        "open",
        "run.started",
        "run.ended",
        "schedule.created",
        "schedule.changed",
        "schedule.deleted",
        "worker.up",
        "worker.down",
        "freeze.on",
        "freeze.off",
        "queue.changed",
        "host.up",
        "host.down",
        "host.changed",
        "workflow.changed",
        "workflow.stopped",
        "approval.requested",
        "approval.decided",
        "status",
        "log",
        "steps",
        "end",
    ]
    data: str


class FieldError(TypedDict):
    field: str
    value: str
    message: str


class Problem(TypedDict):
    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str | None
    errors: NotRequired[list["FieldError"]]
    errors_total: NotRequired[int]


post_webhooks: Route[None, JobRef] = Route("POST", "/webhooks")
post_webhooks_by_hook_id: Route[None, SignalSent] = Route("POST", "/webhooks/{hook_id}")
post_schedules: Route[ScheduleBody, Schedule] = Route("POST", "/schedules")
get_schedules: Route[None, PageOf[Schedule]] = Route("GET", "/schedules")
post_schedules_bulk: Route[SchedulesBody, Schedules] = Route("POST", "/schedules/$bulk")
post_schedules_preview: Route[PreviewBody, Coming] = Route("POST", "/schedules/$preview")
post_schedules_pause: Route[PauseManyBody, Count] = Route("POST", "/schedules/$pause")
post_schedules_resume: Route[ResumeManyBody, Count] = Route("POST", "/schedules/$resume")
post_schedules_enable: Route[EnableManyBody, Count] = Route("POST", "/schedules/$enable")
post_schedules_disable: Route[EnableManyBody, Count] = Route("POST", "/schedules/$disable")
post_schedules_delete: Route[DeleteManyBody, Count] = Route("POST", "/schedules/$delete")
get_schedules_by_key: Route[None, Schedule] = Route("GET", "/schedules/{key}")
patch_schedules_by_key: Route[ScheduleChanges, Schedule] = Route("PATCH", "/schedules/{key}")
put_schedules_by_key: Route[ScheduleChanges, Schedule] = Route("PUT", "/schedules/{key}")
delete_schedules_by_key: Route[None, None] = Route("DELETE", "/schedules/{key}")
post_schedules_by_key_run: Route[RunBody, StartedJob] = Route("POST", "/schedules/{key}/$run")
post_schedules_by_key_pause: Route[PauseBody, Schedule] = Route("POST", "/schedules/{key}/$pause")
post_schedules_by_key_resume: Route[ResumeBody, Resumed] = Route("POST", "/schedules/{key}/$resume")
post_schedules_by_key_skip_next: Route[SkipBody, Skipped] = Route("POST", "/schedules/{key}/$skip-next")
post_schedules_by_key_backfill: Route[BackfillBody, Backfilled] = Route("POST", "/schedules/{key}/$backfill")
get_schedules_by_key_catch_up: Route[None, CatchUpOptions] = Route("GET", "/schedules/{key}/$catch-up")
get_schedules_by_key_next: Route[None, Coming] = Route("GET", "/schedules/{key}/$next")
post_schedules_by_key_diff: Route[DiffBody, SlotImpact] = Route("POST", "/schedules/{key}/$diff")
get_schedules_by_key_runs: Route[None, PageOf[Run]] = Route("GET", "/schedules/{key}/runs")
get_schedules_by_key_slots: Route[None, PageOf[Slot]] = Route("GET", "/schedules/{key}/slots")
get_catch_ups: Route[None, PageOf[CatchUpSummary]] = Route("GET", "/catch-ups")
get_catch_ups_by_key: Route[None, CatchUp] = Route("GET", "/catch-ups/{key}")
post_catch_ups_by_key_approve: Route[ApproveBody, CatchUp] = Route("POST", "/catch-ups/{key}/$approve")
post_catch_ups_by_key_reject: Route[RejectBody, CatchUp] = Route("POST", "/catch-ups/{key}/$reject")
post_calendars: Route[CalendarBody, Calendar] = Route("POST", "/calendars")
get_calendars: Route[None, PageOf[CalendarSummary]] = Route("GET", "/calendars")
get_calendars_by_key: Route[None, Calendar] = Route("GET", "/calendars/{key}")
patch_calendars_by_key: Route[CalendarChanges, Calendar] = Route("PATCH", "/calendars/{key}")
delete_calendars_by_key: Route[None, None] = Route("DELETE", "/calendars/{key}")
post_freeze_windows: Route[FreezeWindowBody, FreezeWindow] = Route("POST", "/freeze-windows")
get_freeze_windows: Route[None, PageOf[FreezeWindowSummary]] = Route("GET", "/freeze-windows")
get_freeze_windows_by_key: Route[None, FreezeWindow] = Route("GET", "/freeze-windows/{key}")
patch_freeze_windows_by_key: Route[FreezeWindowChanges, FreezeWindow] = Route("PATCH", "/freeze-windows/{key}")
delete_freeze_windows_by_key: Route[None, None] = Route("DELETE", "/freeze-windows/{key}")
post_simulate: Route[SimulateBody, Simulation] = Route("POST", "/simulate")
get_files: Route[None, Export] = Route("GET", "/files")
post_files_plan: Route[PlanBody, Plan] = Route("POST", "/files/$plan")
post_files_apply: Route[ApplyBody, Plan] = Route("POST", "/files/$apply")
post_runs_retry: Route[RetryRunsBody, RunSelectionResult] = Route("POST", "/runs/$retry")
post_runs_cancel: Route[RunSelection, RunSelectionResult] = Route("POST", "/runs/$cancel")
post_runs_delete: Route[RunSelection, RunSelectionResult] = Route("POST", "/runs/$delete")
get_runs: Route[None, PageOf[Run]] = Route("GET", "/runs")
get_runs_by_run_id: Route[None, Run] = Route("GET", "/runs/{run_id}")
get_runs_by_run_id_why: Route[None, Why] = Route("GET", "/runs/{run_id}/$why")
get_runs_by_run_id_logs: Route[None, PageOf[Line]] = Route("GET", "/runs/{run_id}/logs")
post_runs_by_run_id_cancel: Route[None, JobRef] = Route("POST", "/runs/{run_id}/$cancel")
post_runs_by_run_id_retry: Route[RetryBody, JobRef] = Route("POST", "/runs/{run_id}/$retry")
post_runs_by_run_id_approve: Route[DecisionBody, JobRef] = Route("POST", "/runs/{run_id}/$approve")
post_runs_by_run_id_reject: Route[DecisionBody, JobRef] = Route("POST", "/runs/{run_id}/$reject")
post_runs_by_run_id_resolve: Route[rota__app__api__models__ResolveBody, JobRef] = Route(
    "POST", "/runs/{run_id}/$resolve"
)
get_failing: Route[None, PageOf[Failing]] = Route("GET", "/failing")
post_runs_by_run_id_acknowledge: Route[AcknowledgeBody, None] = Route("POST", "/runs/{run_id}/$acknowledge")
post_runs_by_run_id_unacknowledge: Route[None, None] = Route("POST", "/runs/{run_id}/$unacknowledge")
get_jobs: Route[None, PageOf[JobBrief]] = Route("GET", "/jobs")
post_jobs: Route[JobBody, JobRef] = Route("POST", "/jobs")
get_jobs_by_job_id: Route[None, Job] = Route("GET", "/jobs/{job_id}")
delete_jobs_by_job_id: Route[None, None] = Route("DELETE", "/jobs/{job_id}")
post_jobs_by_job_id_cancel: Route[None, JobRef] = Route("POST", "/jobs/{job_id}/$cancel")
get_views: Route[None, PageOf[View]] = Route("GET", "/views")
post_views: Route[ViewBody, View] = Route("POST", "/views")
get_views_by_key: Route[None, View] = Route("GET", "/views/{key}")
patch_views_by_key: Route[ViewChanges, View] = Route("PATCH", "/views/{key}")
delete_views_by_key: Route[None, None] = Route("DELETE", "/views/{key}")
post_signals: Route[SignalBody, SignalSent] = Route("POST", "/signals")
post_signal_hooks: Route[SignalHookBody, NewSignalHook] = Route("POST", "/signal-hooks")
get_signal_hooks: Route[None, PageOf[SignalHook]] = Route("GET", "/signal-hooks")
get_signal_hooks_by_key: Route[None, SignalHook] = Route("GET", "/signal-hooks/{key}")
delete_signal_hooks_by_key: Route[None, None] = Route("DELETE", "/signal-hooks/{key}")
post_signal_hooks_by_key_rotate: Route[None, NewSignalHook] = Route("POST", "/signal-hooks/{key}/$rotate")
get_events: Route[None, bytes] = Route("GET", "/events")
get_jobs_by_job_id_stream: Route[None, bytes] = Route("GET", "/jobs/{job_id}/$stream")
get_tasks: Route[None, PageOf[Task]] = Route("GET", "/tasks")
post_tasks: Route[TaskBody, Task] = Route("POST", "/tasks")
get_tasks_by_key: Route[None, Task] = Route("GET", "/tasks/{key}")
put_tasks_by_key: Route[TaskReplacement, Task] = Route("PUT", "/tasks/{key}")
patch_tasks_by_key: Route[TaskChanges, Task] = Route("PATCH", "/tasks/{key}")
delete_tasks_by_key: Route[None, None] = Route("DELETE", "/tasks/{key}")
get_tasks_by_key_schema: Route[None, Parameters] = Route("GET", "/tasks/{key}/$schema")
post_tasks_by_key_execute: Route[ExecuteBody, Executed] = Route("POST", "/tasks/{key}/$execute")
post_tasks_by_key_schedule: Route[TaskScheduleBody, TaskSchedule] = Route("POST", "/tasks/{key}/$schedule")
get_tasks_by_key_schedules: Route[None, PageOf[TaskSchedule]] = Route("GET", "/tasks/{key}/$schedules")
patch_tasks_by_key_schedules_by_schedule_id: Route[TaskScheduleChanges, TaskSchedule] = Route(
    "PATCH", "/tasks/{key}/$schedules/{schedule_id}"
)
delete_tasks_by_key_schedules_by_schedule_id: Route[None, None] = Route(
    "DELETE", "/tasks/{key}/$schedules/{schedule_id}"
)
get_artifacts: Route[None, PageOf[ArtifactBrief]] = Route("GET", "/artifacts")
get_artifacts_by_artifact_id: Route[None, Artifact] = Route("GET", "/artifacts/{artifact_id}")
get_artifacts_by_artifact_id_tree: Route[None, Tree] = Route("GET", "/artifacts/{artifact_id}/$tree")
get_artifacts_by_artifact_id_expand: Route[None, Expanded] = Route("GET", "/artifacts/{artifact_id}/$expand")
get_artifacts_by_artifact_id_content: Route[None, bytes] = Route("GET", "/artifacts/{artifact_id}/$content")
post_grants: Route[GrantBody, Grant] = Route("POST", "/grants")
get_grants: Route[None, PageOf[Grant]] = Route("GET", "/grants")
get_grants_forecast: Route[None, PageOf[LapsingSchedule]] = Route("GET", "/grants/$forecast")
get_grants_by_grant_id: Route[None, GrantUse] = Route("GET", "/grants/{grant_id}")
post_grants_by_grant_id_revoke: Route[RevokeBody, Grant] = Route("POST", "/grants/{grant_id}/$revoke")
get_billing_account: Route[None, Account] = Route("GET", "/billing/account")
get_billing_accounts: Route[None, PageOf[Account]] = Route("GET", "/billing/accounts")
post_billing_accounts_by_account_id_close: Route[None, Account] = Route("POST", "/billing/accounts/{account_id}/$close")
post_billing_accounts_by_account_id_reopen: Route[None, Account] = Route(
    "POST", "/billing/accounts/{account_id}/$reopen"
)
post_billing_credits: Route[CreditBody, Entry] = Route("POST", "/billing/credits")
get_billing_ledger: Route[None, PageOf[Entry]] = Route("GET", "/billing/ledger")
get_billing_receipts: Route[None, PageOf[Receipt]] = Route("GET", "/billing/receipts")
get_billing_usage: Route[None, PageOf[Usage]] = Route("GET", "/billing/usage")
get_billing_virtual_keys: Route[None, PageOf[VirtualKey]] = Route("GET", "/billing/virtual-keys")
post_billing_virtual_keys: Route[VirtualKeyBody, VirtualKey] = Route("POST", "/billing/virtual-keys")
post_billing_virtual_keys_by_virtual_key_id_make_default: Route[None, VirtualKey] = Route(
    "POST", "/billing/virtual-keys/{virtual_key_id}/$make-default"
)
post_billing_virtual_keys_by_virtual_key_id_deactivate: Route[None, VirtualKey] = Route(
    "POST", "/billing/virtual-keys/{virtual_key_id}/$deactivate"
)
get_graphs: Route[None, PageOf[Graph]] = Route("GET", "/graphs")
post_graphs_by_graph_id_run: Route[GraphBody, JobRef] = Route("POST", "/graphs/{graph_id}/$run")
post_pipelines: Route[PipelineBody, Pipeline] = Route("POST", "/pipelines")
get_pipelines: Route[None, PageOf[Pipeline]] = Route("GET", "/pipelines")
get_pipelines_graph: Route[None, PipelineGraph] = Route("GET", "/pipelines/$graph")
get_pipelines_namespaces: Route[None, PageOf[Namespace]] = Route("GET", "/pipelines/$namespaces")
get_pipelines_by_namespace_by_layer_by_name: Route[None, Pipeline] = Route(
    "GET", "/pipelines/{namespace}/{layer}/{name}"
)
put_pipelines_by_namespace_by_layer_by_name: Route[PipelineChanges, Pipeline] = Route(
    "PUT", "/pipelines/{namespace}/{layer}/{name}"
)
delete_pipelines_by_namespace_by_layer_by_name: Route[None, None] = Route(
    "DELETE", "/pipelines/{namespace}/{layer}/{name}"
)
get_pipelines_by_namespace_by_layer_by_name_versions: Route[None, PageOf[PipelineVersion]] = Route(
    "GET", "/pipelines/{namespace}/{layer}/{name}/versions"
)
post_pipelines_by_namespace_by_layer_by_name_run: Route[PipelineRunBody, JobRef] = Route(
    "POST", "/pipelines/{namespace}/{layer}/{name}/$run"
)
post_pipelines_by_namespace_by_layer_by_name_backfill: Route[PipelineBackfillBody, JobIds] = Route(
    "POST", "/pipelines/{namespace}/{layer}/{name}/$backfill"
)
post_pipelines_by_namespace_by_layer_by_name_preview: Route[DraftBody, PipelinePreview] = Route(
    "POST", "/pipelines/{namespace}/{layer}/{name}/$preview"
)
post_pipelines_by_namespace_by_layer_by_name_validate: Route[DraftBody, Validation] = Route(
    "POST", "/pipelines/{namespace}/{layer}/{name}/$validate"
)
get_pipelines_by_namespace_by_layer_by_name_triggers: Route[None, PageOf[Trigger]] = Route(
    "GET", "/pipelines/{namespace}/{layer}/{name}/triggers"
)
post_pipelines_by_namespace_by_layer_by_name_triggers: Route[TriggerBody, NewTrigger] = Route(
    "POST", "/pipelines/{namespace}/{layer}/{name}/triggers"
)
patch_pipelines_by_namespace_by_layer_by_name_triggers_by_trigger_id: Route[TriggerChanges, Trigger] = Route(
    "PATCH", "/pipelines/{namespace}/{layer}/{name}/triggers/{trigger_id}"
)
delete_pipelines_by_namespace_by_layer_by_name_triggers_by_trigger_id: Route[None, None] = Route(
    "DELETE", "/pipelines/{namespace}/{layer}/{name}/triggers/{trigger_id}"
)
get_workflows: Route[None, PageOf[Workflow]] = Route("GET", "/workflows")
post_workflows: Route[ScriptBody, Workflow] = Route("POST", "/workflows")
post_workflows_check: Route[FileBody, Declared] = Route("POST", "/workflows/$check")
put_workflows_by_key: Route[FileBody, Workflow] = Route("PUT", "/workflows/{key}")
delete_workflows_by_key: Route[None, None] = Route("DELETE", "/workflows/{key}")
get_workflows_by_key: Route[None, Workflow] = Route("GET", "/workflows/{key}")
get_workflows_by_key_versions: Route[None, PageOf[WorkflowVersion]] = Route("GET", "/workflows/{key}/versions")
get_workflows_by_key_versions_by_version: Route[None, WorkflowFile] = Route(
    "GET", "/workflows/{key}/versions/{version}"
)
post_workflows_by_key_versions_by_version_accept: Route[None, Workflow] = Route(
    "POST", "/workflows/{key}/versions/{version}/$accept"
)
post_workflows_by_key_versions_by_version_reject: Route[StopBody, Workflow] = Route(
    "POST", "/workflows/{key}/versions/{version}/$reject"
)
post_workflows_by_key_rollback: Route[RollbackBody, Workflow] = Route("POST", "/workflows/{key}/$rollback")
get_workflows_by_key_handlers: Route[None, PageOf[Handler]] = Route("GET", "/workflows/{key}/handlers")
get_workflows_by_key_runs: Route[None, PageOf[WorkflowRun]] = Route("GET", "/workflows/{key}/runs")
get_workflows_by_key_events: Route[None, PageOf[TopicEvent]] = Route("GET", "/workflows/{key}/events")
get_workflows_by_key_inputs: Route[None, PageOf[Input]] = Route("GET", "/workflows/{key}/inputs")
get_workflows_by_key_outputs: Route[None, PageOf[Output]] = Route("GET", "/workflows/{key}/outputs")
post_workflows_by_key_topics_by_topic_events: Route[EventBody, PublishedEvent] = Route(
    "POST", "/workflows/{key}/topics/{topic}/events"
)
post_workflows_by_key_topics_by_topic_events_bulk: Route[EventsBody, PublishedEvents] = Route(
    "POST", "/workflows/{key}/topics/{topic}/events/$bulk"
)
post_workflows_by_key_run: Route[None, JobRefs] = Route("POST", "/workflows/{key}/$run")
post_workflows_by_key_pause: Route[StopBody, Workflow] = Route("POST", "/workflows/{key}/$pause")
post_workflows_by_key_resume: Route[None, Workflow] = Route("POST", "/workflows/{key}/$resume")
post_workflows_by_key_resolve: Route[rota__kinds__workflows__models__ResolveBody, Workflow] = Route(
    "POST", "/workflows/{key}/$resolve"
)
post_workflows_by_key_events_by_event_id_skip: Route[None, Workflow] = Route(
    "POST", "/workflows/{key}/events/{event_id}/$skip"
)
post_pairing_tokens: Route[TokenBody, Token] = Route("POST", "/pairing-tokens")
get_hosts: Route[None, PageOf[Host]] = Route("GET", "/hosts")
get_hosts_by_host_id: Route[None, Host] = Route("GET", "/hosts/{host_id}")
patch_hosts_by_host_id: Route[HostChanges, Host] = Route("PATCH", "/hosts/{host_id}")
delete_hosts_by_host_id: Route[None, None] = Route("DELETE", "/hosts/{host_id}")
post_hosts_by_host_id_rotate_key: Route[None, HostKey] = Route("POST", "/hosts/{host_id}/$rotate-key")
get_server_instances: Route[None, PageOf[Server]] = Route("GET", "/server-instances")
post_server_instances: Route[ServerBody, Server] = Route("POST", "/server-instances")
get_server_instances_by_server_instance_id: Route[None, Server] = Route("GET", "/server-instances/{server_instance_id}")
patch_server_instances_by_server_instance_id: Route[ServerChanges, Server] = Route(
    "PATCH", "/server-instances/{server_instance_id}"
)
delete_server_instances_by_server_instance_id: Route[None, None] = Route(
    "DELETE", "/server-instances/{server_instance_id}"
)
post_host_jobs: Route[HostJobBody, JobRef] = Route("POST", "/host-jobs")
get_host_jobs: Route[None, PageOf[JobBrief]] = Route("GET", "/host-jobs")
get_host_jobs_by_host_job_id: Route[None, HostJob] = Route("GET", "/host-jobs/{host_job_id}")
post_host_jobs_by_host_job_id_cancel: Route[None, JobRef] = Route("POST", "/host-jobs/{host_job_id}/$cancel")
post_host_jobs_by_host_job_id_resolve: Route[HostResolveBody, JobRef] = Route(
    "POST", "/host-jobs/{host_job_id}/$resolve"
)
post_batches: Route[BatchBody, BatchRef] = Route("POST", "/batches")
get_batches: Route[None, PageOf[BatchBrief]] = Route("GET", "/batches")
get_batches_by_batch_id: Route[None, Batch] = Route("GET", "/batches/{batch_id}")
post_batches_by_batch_id_cancel: Route[None, BatchRef] = Route("POST", "/batches/{batch_id}/$cancel")
post_alarms: Route[AlarmBody, Alarm] = Route("POST", "/alarms")
get_alarms: Route[None, PageOf[Alarm]] = Route("GET", "/alarms")
get_alarms_by_key: Route[None, Alarm] = Route("GET", "/alarms/{key}")
patch_alarms_by_key: Route[AlarmChanges, Alarm] = Route("PATCH", "/alarms/{key}")
delete_alarms_by_key: Route[None, None] = Route("DELETE", "/alarms/{key}")
post_alarms_by_key_test: Route[None, Deliveries] = Route("POST", "/alarms/{key}/$test")
post_alarm_channels: Route[ChannelBody, NewChannel] = Route("POST", "/alarm-channels")
get_alarm_channels: Route[None, PageOf[Channel]] = Route("GET", "/alarm-channels")
get_alarm_channels_by_key: Route[None, Channel] = Route("GET", "/alarm-channels/{key}")
patch_alarm_channels_by_key: Route[ChannelChanges, Channel] = Route("PATCH", "/alarm-channels/{key}")
delete_alarm_channels_by_key: Route[None, None] = Route("DELETE", "/alarm-channels/{key}")
post_alarm_channels_by_key_test: Route[None, Deliveries] = Route("POST", "/alarm-channels/{key}/$test")
get_alarm_events: Route[None, PageOf[AlarmEvent]] = Route("GET", "/alarm-events")
post_alarm_events_by_event_id_acknowledge: Route[AcknowledgeEventBody, AlarmEvent] = Route(
    "POST", "/alarm-events/{event_id}/$acknowledge"
)
get_slots: Route[None, PageOf[Slot]] = Route("GET", "/slots")
get_slots_audit: Route[None, SlotAudit] = Route("GET", "/slots/$audit")
get_slots_why: Route[None, Why] = Route("GET", "/slots/$why")
get_workers: Route[None, PageOf[Worker]] = Route("GET", "/workers")
get_status: Route[None, InstallationStatus] = Route("GET", "/status")
get_queues: Route[None, PageOf[Queue]] = Route("GET", "/queues")
get_queues_wanted: Route[None, WantedWorkers] = Route("GET", "/queues/$wanted")
get_queues_by_name: Route[None, Queue] = Route("GET", "/queues/{name}")
put_queues_by_name: Route[QueueBody, Queue] = Route("PUT", "/queues/{name}")
patch_queues_by_name: Route[QueueBody, Queue] = Route("PATCH", "/queues/{name}")
get_freeze: Route[None, Freeze] = Route("GET", "/freeze")
put_freeze: Route[PauseBody, Freeze] = Route("PUT", "/freeze")
delete_freeze: Route[None, None] = Route("DELETE", "/freeze")
post_users_me_password: Route[PasswordBody, None] = Route("POST", "/users/me/$password")
post_orgs: Route[OrgBody, NewOrg] = Route("POST", "/orgs")
get_orgs: Route[None, PageOf[Org]] = Route("GET", "/orgs")
patch_orgs_by_slug: Route[OrgChanges, Org] = Route("PATCH", "/orgs/{slug}")
post_users: Route[UserBody, User] = Route("POST", "/users")
get_users: Route[None, PageOf[User]] = Route("GET", "/users")
get_users_by_user_id: Route[None, User] = Route("GET", "/users/{user_id}")
patch_users_by_user_id: Route[UserChanges, User] = Route("PATCH", "/users/{user_id}")
delete_users_by_user_id: Route[None, None] = Route("DELETE", "/users/{user_id}")
post_api_keys: Route[KeyBody, NewKey] = Route("POST", "/api-keys")
get_api_keys: Route[None, PageOf[Key]] = Route("GET", "/api-keys")
get_api_keys_by_key_id: Route[None, Key] = Route("GET", "/api-keys/{key_id}")
delete_api_keys_by_key_id: Route[None, None] = Route("DELETE", "/api-keys/{key_id}")
post_login_links: Route[None, LoginLink] = Route("POST", "/login-links")
get_audit: Route[None, PageOf[Act]] = Route("GET", "/audit")
post_service_accounts: Route[ServiceAccountBody, ServiceAccount] = Route("POST", "/service-accounts")
get_service_accounts: Route[None, PageOf[ServiceAccount]] = Route("GET", "/service-accounts")
get_service_accounts_by_account_id: Route[None, ServiceAccount] = Route("GET", "/service-accounts/{account_id}")
patch_service_accounts_by_account_id: Route[ServiceAccountChanges, ServiceAccount] = Route(
    "PATCH", "/service-accounts/{account_id}"
)
delete_service_accounts_by_account_id: Route[None, None] = Route("DELETE", "/service-accounts/{account_id}")
get_sessions: Route[None, PageOf[Session]] = Route("GET", "/sessions")
post_sessions_end: Route[SessionsEnd, EndedSessions] = Route("POST", "/sessions/$end")
delete_sessions_by_session_id: Route[None, None] = Route("DELETE", "/sessions/{session_id}")
