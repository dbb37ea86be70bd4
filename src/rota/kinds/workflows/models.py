"""Bodies and answers of the routes of workflows."""

from typing import Annotated, Literal

from pydantic import Field

from rota.core.effects import EffectStatus
from rota.core.states import Phase
from rota.core.wire import (
    Answer,
    At,
    Choice,
    Id,
    Name,
    NameText,
    NotBlank,
    Payload,
    Reason,
    RequestBody,
    StorableText,
    example,
)
from rota.frame.http.answers import RunRecord
from rota.kinds.workflows.rules import EventStatus, HandlerKind, Outcome, RepairMode, Resolution, VersionOutcome
from rota.kinds.workflows.scripts.sandbox import SCRIPT_LIMIT

BULK_EVENTS_MAX = 1000

SCRIPT_EXAMPLE = """from rota import Prepare, Workflow

flow = Workflow("greet", topics=["names"])

@flow.consumer(subscribe=["names"])
class Greet:
    async def prepare(self, ctx, state):
        return Prepare()
"""

Script = Annotated[str, Field(min_length=1, max_length=SCRIPT_LIMIT), StorableText, NotBlank]


class Recent(Answer):
    at: At
    run_id: Id
    text: str


class Workflow(Answer):
    id: Id
    name: NameText
    description: str
    status: Literal["running", "idle", "needs_attention", "stopped"]
    issue: Annotated[str, Field(examples=["waiting for you: reconnect Gmail"])] | None
    schedule: str | None
    next_check_at: At | None
    next_check: Annotated[str, Field(examples=["in 3m"])] | None
    recent: list[Recent]
    pending: int
    stale_inputs: int
    attention: int
    paused_at: At | None
    pause_reason: str | None
    version: str
    source: str
    topics: list[str]
    created_at: At
    updated_at: At


class Handler(Answer):
    name: str
    type: HandlerKind
    state: object
    dirty: bool
    wake_at: At | None
    schedule_id: Id | None
    held_run_id: Id | None
    next_run_at: At | None
    subscribe: list[str]
    publishes: list[str]
    schedule: dict[str, object] | None


class WorkflowRun(RunRecord):
    workflow_id: Id
    handler_id: str
    handler_type: HandlerKind
    phase: Phase
    mutation_outcome: Outcome | None
    prepare_result: object
    mutation_result: object
    updated_at: At


class TopicEvent(Answer):
    id: Id
    topic: str
    message_id: str
    payload: object
    title: str | None
    status: EventStatus
    source: str | None
    reserved_by: Id | None
    created_by: Id | None
    attempt: int
    caused_by: list[Id]
    created_at: At
    updated_at: At


class Input(Answer):
    id: Id
    topic: str
    source: str
    message_id: str
    title: str | None
    status: Literal["pending", "done", "skipped"]
    stale: bool
    created_at: At


class Output(Answer):
    id: Id
    run_id: Id
    call: str
    params: object
    title: str | None
    status: EffectStatus
    result: object
    inputs: int
    resolved_by: str | None
    warning: str | None
    created_at: At
    updated_at: At


class EventBody(RequestBody):
    model_config = example({"message_id": "mail-17", "payload": {"from": "ada"}})

    message_id: Annotated[str, Field(min_length=1, max_length=500), StorableText, NotBlank]
    payload: Payload | None = None
    title: Annotated[str, Field(max_length=500), StorableText] | None = None


class PublishedEvent(Answer):
    id: Id
    result: Literal["created", "replaced", "kept"]


class EventsBody(RequestBody):
    model_config = example({"items": [{"message_id": "mail-17"}, {"message_id": "mail-18"}]})

    items: list[EventBody] = Field(min_length=1, max_length=BULK_EVENTS_MAX)


class PublishedEvents(Answer):
    items: list[PublishedEvent]


class StopBody(RequestBody):
    model_config = example({"reason": "holiday"})

    reason: Reason | None = None


class ResolveBody(RequestBody):
    model_config = example({"resolution": "approve"})

    resolution: Annotated[Resolution, Choice]
    result: Payload | None = None


class JobRefs(Answer):
    job_ids: list[Id]


# scripts


class FileBody(RequestBody):
    model_config = example({"script": SCRIPT_EXAMPLE})

    script: Script


class ScriptBody(FileBody):
    name: Name | None = None


class RollbackBody(RequestBody):
    model_config = example({"version": "1.0"})

    version: Annotated[str, Field(min_length=1, max_length=20), StorableText, NotBlank]


class Declared(Answer):
    """What a script declares."""

    name: NameText
    description: str
    topics: list[str]
    isolate: bool
    handlers: list[dict[str, object]]
    connectors: list[str]
    repair: RepairMode


class WorkflowVersion(Answer):
    version: str = Field(examples=["1.0"])
    live: bool
    outcome: VersionOutcome
    why: str | None
    run_id: Id | None
    created_by: str | None
    decided_by: str | None
    created_at: At
    decided_at: At | None


class WorkflowFile(WorkflowVersion):
    source: str | None
    against: str | None
    diff: str
