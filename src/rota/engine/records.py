"""Rows of the queue and the ledger as they leave the store, with the names of their columns."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rota.core.steps import StepStatus, StepType, WaitingData


@dataclass(frozen=True, slots=True)
class JobRow:
    """A row of `jobs`."""

    id: str
    org_id: str
    kind: str
    target: str
    route: str
    payload: Any
    queue: str
    serial_key: str | None
    solo_key: str | None
    job_key: str | None
    priority: int
    queued_at: datetime
    run_at: datetime
    state: str
    schedule_id: str | None
    slot: datetime | None
    trigger: str
    attempt: int
    tries: int
    crashes: int
    rescues: int
    run_id: str | None
    last_run_id: str | None
    started_at: datetime | None
    parked_reason: str | None
    lease_owner: str | None
    fence: int
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    terms: object
    trace: str | None
    parent_id: str | None
    followed: bool
    waiting: WaitingData | None
    reserved_at: datetime | None
    place_key: str | None
    place_wanted: str | None
    place_limit: int | None


@dataclass(frozen=True, slots=True)
class RunRow:
    """A row of `runs`."""

    id: str
    job_id: str
    org_id: str
    kind: str
    target: str
    route: str
    input: Any
    target_name: str | None
    target_version: str | None
    schedule_id: str | None
    slot: datetime | None
    trigger: str
    attempt: int
    retry_of: str | None
    status: str
    reason: str | None
    error: object
    outcome: object
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime
    recorded_at: datetime
    worker: str | None
    fence: int | None
    trace_id: str | None
    artifact_id: str | None
    grant_id: str | None
    usage: object
    lost_fence: int
    cpu_seconds: float | None
    peak_memory_bytes: int | None
    parent_id: str | None


@dataclass(slots=True)
class StepRow:
    """A row of `steps`."""

    job_id: str
    name: str
    org_id: str
    seq: int
    type: StepType
    status: StepStatus
    attempts: int
    started_at: datetime
    run_id: str
    finished_at: datetime | None = None
    result: Any = None
    error: Any = None
    params: Any = None
    until: datetime | None = None
    topic: str | None = None
    key: str | None = None
    waits_for: str | None = None
    child_job_id: str | None = None


@dataclass(frozen=True, slots=True)
class SlotRow:
    """A row of `slots`: a slot, or a gap of consecutive slots that did not fire."""

    schedule_id: str
    slot: datetime
    last_slot: datetime | None
    count: int | None
    verdict: str | None
    reason: str | None
    note: str | None
    into_slot: datetime | None
    job_id: str | None
    attempts: int


@dataclass(frozen=True, slots=True)
class TriggerSpan:
    """A row of `trigger_spans`: the time in which a trigger decided the slots of a schedule."""

    schedule_id: str
    revision: int
    timing: Any
    from_at: datetime
    until_at: datetime | None


@dataclass(frozen=True, slots=True)
class AuditedSchedule:
    """A schedule, also a deleted one, with its clock, for the slot audit."""

    id: str
    name: str
    deleted_at: datetime | None
    next_slot: datetime | None
    next_run_at: datetime | None
    decided_until: datetime | None
