"""Records of the tables of workflows, built by column name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rota.core.effects import EffectStatus
from rota.core.states import Phase
from rota.db.paging import Record
from rota.kinds.workflows.rules import HandlerKind, Outcome


@dataclass(slots=True)
class HandlerRow:
    """A row of `handlers`. `update_handler` changes it together with the database."""

    workflow_id: str
    name: str
    type: str
    subscribe: list[str]
    schedule_id: str | None
    state: object
    dirty: bool
    wake_at: datetime | None
    held_run_id: str | None

    @property
    def is_consumer(self) -> bool:
        return self.type == HandlerKind.CONSUMER


@dataclass(slots=True)
class WorkflowRow:
    """A row of `workflows`, with its handlers by name."""

    id: str
    org_id: str
    name: str
    description: str
    source: str
    version: str
    declaration: Record
    paused_at: datetime | None
    pause_reason: str | None
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None
    handlers: dict[str, HandlerRow]
    key_locked: bool = False  # this transaction also has the lock of its serial key

    @property
    def route(self) -> str:
        """The route of its jobs: the program that declares it, or that of scripts."""
        return str(self.declaration["route"])

    def held_runs(self) -> dict[str, str]:
        """The failed run of each handler that is on hold, by the handler's name."""
        return {row.name: row.held_run_id for row in self.handlers.values() if row.held_run_id is not None}


@dataclass(slots=True)
class NewEvent:
    """An event to be published."""

    topic: str
    message_id: str
    payload: object
    title: str | None = None


@dataclass(slots=True)
class EventRow:
    """A row of `events`."""

    id: str
    workflow_id: str
    topic: str
    message_id: str
    payload: object
    title: str | None
    status: str
    source: str | None
    reserved_by: str | None
    created_by: str | None
    attempt: int
    created_at: datetime
    updated_at: datetime


@dataclass(slots=True)
class RunRow:
    """A row of `workflow_runs`."""

    id: str
    workflow_id: str
    handler_id: str
    handler_type: HandlerKind
    retry_of: str | None
    phase: Phase
    prepare_result: Record | None
    mutation_outcome: Outcome | None
    mutation_result: object
    created_at: datetime
    updated_at: datetime


@dataclass(slots=True)
class OpenEffect:
    """A mutation whose outcome is not known."""

    id: str
    call: str
    params: Mapping[str, object]
    title: str | None
    status: EffectStatus
    reconcile_attempts: int


Limits = Mapping[str, int]  # by topic: up to how many events a handler peeks


@dataclass(frozen=True, slots=True)
class Peeked:
    """Pending events that a run has read: of each topic up to its limit and one more."""

    limits: Limits
    events: Sequence[EventRow]

    @classmethod
    def merged(cls, before: "Peeked | None", topic: str, limit: int, events: Sequence[EventRow]) -> "Peeked":
        """Return what was read before, with the events of one topic read again."""
        limits = {} if before is None else before.limits
        others = [] if before is None else [event for event in before.events if event.topic != topic]
        return cls({**limits, topic: limit}, [*others, *events])

    def of_topic(self, topic: str, limit: int) -> list[EventRow] | None:
        """Return the oldest events of a topic, or None if fewer than `limit` were read."""
        if self.limits.get(topic, 0) < limit:
            return None
        return [event for event in self.events if event.topic == topic][:limit]

    def has_more(self, taken: Mapping[str, Sequence[str]]) -> bool:
        """Return whether events are taken, all of them are among these, and others are too. A consumer that takes
        nothing waits for new events."""
        ids = {(event.topic, event.id) for event in self.events}
        wanted = {(topic, event_id) for topic, event_ids in taken.items() for event_id in event_ids}
        return bool(wanted) and wanted < ids


@dataclass(slots=True)
class StartedRun:
    """A run that has begun, as it is in the database."""

    id: str
    workflow_id: str
    handler: str
    kind: HandlerKind
    phase: Phase
    state: object
    started_at: datetime
    prepared: Record | None = None
    outcome: Outcome | None = None
    result: object = None
    effect: OpenEffect | None = None  # a mutation of the attempt before, whose outcome is not known
    retry_of: str | None = None
    peeked: Peeked | None = None


@dataclass(slots=True)
class Decision:
    """The result of `prepare`, not yet in the database: as JSON, the events to reserve by topic, the wake-up time."""

    result: Record
    reservations: Mapping[str, list[str]]
    wake_at: datetime | None


@dataclass(frozen=True, slots=True)
class ScriptVersion:
    """A row of `scripts`: a version of a workflow that is a script."""

    id: str
    workflow_id: str
    major: int
    minor: int
    source: str | None
    declaration: Record | None
    outcome: str
    why: str | None
    run_id: str | None
    created_by: str | None
    decided_by: str | None
    created_at: datetime
    decided_at: datetime | None

    @property
    def number(self) -> str:
        return f"{self.major}.{self.minor}"


@dataclass(frozen=True, slots=True)
class StuckJob:
    """The first job of a workflow that waits for an operator, or for the reconciliation of a mutation."""

    id: str
    state: str
    serial_key: str
    parked_reason: str | None
    last_run_id: str | None
