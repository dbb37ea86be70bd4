"""Bodies and answers of the routes of hosts, server instances, host jobs, batches and agents."""

from datetime import timedelta
from typing import Annotated, Literal

import orjson
from pydantic import Field, PlainValidator, WithJsonSchema

from rota.core import parse
from rota.core.errors import Invalid
from rota.core.policy import Terms
from rota.core.states import Status
from rota.core.wire import (
    EXAMPLE_ID,
    NAME_SCHEMA,
    Answer,
    At,
    Id,
    JsonSchema,
    Label,
    Name,
    NameText,
    Payload,
    PayloadObject,
    RequestBody,
    Retry,
    SpanSeconds,
    StorableText,
    Ulid,
    checked,
    example,
)
from rota.frame.http.answers import Error
from rota.kinds.hosts.job_types import read_types
from rota.kinds.hosts.runner import MAX_PARALLEL

PAIRING_TTL_SECONDS = (60, 86_400)  # minimum and maximum
MAX_WAIT_SECONDS = 60  # of a long poll
MAX_LINES = 5000  # of one request
MAX_CLAIMS = 1000  # that an agent names in one request
METRICS_BYTES = 4096  # JSON of the metrics of a host
MAX_MILLISECONDS = 100 * 366 * 86_400_000  # a hundred years: more would pass the first or last date of Python
STREAMS = ("stdout", "stderr", "system")


def read_labels(value: object, field: str) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > 50:
        raise Invalid(field, value, "is not an object of at most 50 labels")
    for name, label in value.items():
        parse.label(name, field)
        if set("=,") & {*name, *parse.text(label, f"{field}.{name}", 200)}:
            raise Invalid(field, name, "has = or , in its name or value")
    return value


def read_server_keys(value: object, field: str) -> list[str]:
    if not isinstance(value, list) or any("," in parse.label(key, field) for key in value):
        raise Invalid(field, value, "is not a list of ids or names of server instances")
    return value


def read_line(value: object, field: str) -> list[str]:
    if not isinstance(value, list) or len(value) != 2 or value[0] not in STREAMS:
        raise Invalid(field, value, "is not a line like [stdout, text]")
    parse.text(value[1], field, 100_000)
    return value


def read_metrics(value: object, field: str) -> dict[str, object]:
    if not isinstance(value, dict) or len(orjson.dumps(value)) > METRICS_BYTES:
        raise Invalid(field, type(value).__name__, f"is not an object of at most {METRICS_BYTES} bytes of JSON")
    return value


KEY_SCHEMA: JsonSchema = {**NAME_SCHEMA, "description": "an id or a name", "examples": [EXAMPLE_ID]}
LABELS_SCHEMA: JsonSchema = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "examples": [{"role": "web"}],
}
LINE_SCHEMA: JsonSchema = {
    "type": "array",
    "prefixItems": [{"type": "string", "enum": list(STREAMS)}, {"type": "string", "maxLength": 100_000}],
    "minItems": 2,
    "maxItems": 2,
}
JOB_TYPE_SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {"read_only": {"type": "boolean"}, "schema": {"type": "object"}},
    "required": ["read_only", "schema"],
    "additionalProperties": False,
}

Key = Annotated[str, PlainValidator(checked(parse.label)), WithJsonSchema(KEY_SCHEMA)]
ServerKeys = Annotated[
    list[str],
    PlainValidator(checked(read_server_keys)),
    WithJsonSchema({"type": "array", "items": KEY_SCHEMA, "minItems": 1}),
]
Labels = Annotated[dict[str, str], PlainValidator(checked(read_labels)), WithJsonSchema(LABELS_SCHEMA)]
Line = Annotated[list[str], PlainValidator(checked(read_line)), WithJsonSchema(LINE_SCHEMA)]
Lines = Annotated[list[Line], Field(max_length=MAX_LINES)]
Metrics = Annotated[dict[str, object], PlainValidator(checked(read_metrics)), WithJsonSchema({"type": "object"})]
JobTypes = Annotated[
    dict[str, object],
    PlainValidator(checked(read_types)),
    WithJsonSchema({"type": "object", "additionalProperties": JOB_TYPE_SCHEMA}),
]
Number = Annotated[int, Field(ge=0, le=2**53)]
Milliseconds = Annotated[int, Field(ge=0, le=MAX_MILLISECONDS)]
ClaimNames = Annotated[
    list[Annotated[str, Field(max_length=100), StorableText]], Field(max_length=MAX_CLAIMS)
]  # or ids of jobs
ErrorText = Annotated[str, Field(max_length=100_000), StorableText]


# hosts and servers


class TokenBody(RequestBody):
    model_config = example({"ttl_seconds": 900})

    ttl_seconds: Annotated[int, Field(ge=PAIRING_TTL_SECONDS[0], le=PAIRING_TTL_SECONDS[1])] | None = None


class Token(Answer):
    id: Id
    token: str
    expires_at: At


class HostChanges(RequestBody):
    model_config = example({"labels": {"zone": "eu"}})

    name: Name | None = None
    labels: Labels | None = None


class Host(Answer):
    id: Id
    name: NameText
    status: Literal["unknown", "online", "offline"]
    labels: Labels
    key_version: int
    agent_version: str | None
    job_types: dict[str, object] | None
    metrics: object
    last_heartbeat_at: At | None
    servers: int
    created_at: At
    updated_at: At


class HostKey(Answer):
    host_id: Id
    agent_key: str


class ServerChanges(RequestBody):
    model_config = example({"labels": {"role": "web"}})

    name: Name | None = None
    type: Label | None = None
    config: PayloadObject | None = None
    labels: Labels | None = None


class ServerBody(ServerChanges):
    model_config = example({"host_id": EXAMPLE_ID, "name": "web-1", "type": "nginx", "labels": {"role": "web"}})

    host_id: Key
    name: Name


class Server(Answer):
    id: Id
    host_id: Id
    name: NameText
    type: NameText
    config: dict[str, object]
    labels: Labels
    created_at: At
    updated_at: At


# jobs and batches


class OrderBody(RequestBody):
    """A job for hosts, on whichever server."""

    job_type: Label
    payload: PayloadObject | None = None
    timeout_seconds: SpanSeconds | None = None
    retry: Retry | None = None

    def order(self) -> dict[str, object]:
        """Return the payload of the job."""
        fields = ("job_type", "payload", "max_parallel", "stop_on_failure")
        return {name: value for name, value in self.present().items() if name in fields}

    def terms(self) -> Terms:
        timeout = None if self.timeout_seconds is None else timedelta(seconds=self.timeout_seconds)
        return Terms(timeout=timeout, retry=None if self.retry is None else self.retry.policy())


class HostJobBody(OrderBody):
    model_config = example(
        {"server_instance_id": EXAMPLE_ID, "job_type": "shell", "payload": {"command": "systemctl restart web"}}
    )

    server_instance_id: Key


class HostJob(Answer):
    id: Id
    submitted_at: At
    status: Status
    kind: str
    target_name: str
    attempt: int
    started_at: At | None
    finished_at: At | None
    error: Error | None
    artifact_id: Id | None
    run_ids: list[Id]
    server_instance_id: str
    job_type: NameText
    payload: dict[str, object]
    waits_for: str | None


class HostResolveBody(RequestBody):
    model_config = example({"resolution": "applied"})

    resolution: Literal["applied", "not_applied"]
    result: Payload | None = None


class BatchBody(OrderBody):
    """A job for several servers: named ones, or those with all of the labels."""

    model_config = example(
        {
            "labels": {"role": "web"}, "job_type": "shell", "payload": {"command": "systemctl restart web"},
            "max_parallel": 2, "stop_on_failure": True,
        }
    )  # fmt: skip

    server_instance_ids: ServerKeys | None = None
    labels: Labels | None = None
    max_parallel: Annotated[int, Field(ge=1, le=MAX_PARALLEL)] | None = None
    stop_on_failure: bool | None = None


class BatchRef(Answer):
    model_config = example({"batch_id": EXAMPLE_ID})

    batch_id: Id


class BatchBrief(Answer):
    id: Id
    target: str
    job_type: NameText
    max_parallel: int
    stop_on_failure: bool
    status: Literal["running", "completed", "completed_with_failures", "canceled"]
    created_at: At
    finished_at: At | None
    total: int
    waiting: int
    running: int
    succeeded: int
    failed: int
    canceled: int
    skipped: int


class BatchMember(Answer):
    server_instance_id: Id
    name: NameText
    job_id: Id | None
    status: str


class Batch(BatchBrief):
    members: list[BatchMember]


# agents


class PairBody(RequestBody):
    model_config = example({"token": "rota_pair_…", "name": "web-1"})

    token: Annotated[str, Field(max_length=200), StorableText]
    name: Name


class Paired(Answer):
    host_id: Id
    name: NameText
    agent_key: str


class JournalEntry(RequestBody):
    """The state of a claim on the host."""

    job_id: Ulid
    fence: Number
    state: Literal["running", "ended", "never", "unknown"]


class RegisterBody(RequestBody):
    model_config = example({"version": "1.0", "pid": 7, "room": 8, "job_types": {}, "journal": []})

    version: Annotated[str, Field(max_length=40), StorableText]
    pid: Number
    room: Annotated[int, Field(ge=1, le=64)]
    job_types: JobTypes
    journal: Annotated[list[JournalEntry], Field(max_length=MAX_CLAIMS)]


class AgentSession(Answer):
    session: Id
    lease_seconds: float
    cancel_grace_seconds: float
    asked: list[str] = Field(description="claims whose outcome is unknown, as `JOB.FENCE`")


class PollBody(RequestBody):
    model_config = example({"session": EXAMPLE_ID, "room": 8, "known": [], "stopping": [], "wait_seconds": 30})

    session: Ulid
    room: Annotated[int, Field(ge=0, le=64)]
    known: ClaimNames
    stopping: ClaimNames
    metrics: Metrics | None = None
    wait_seconds: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)] | None = None


class OrderedServer(Answer):
    id: Id
    name: NameText
    type: NameText
    config: dict[str, object]


class Order(Answer):
    """A job that is handed out to an agent."""

    job_id: Id
    fence: int
    run_id: Id
    attempt: int
    job_type: NameText
    payload: dict[str, object]
    timeout_seconds: float | None
    trigger: str
    slot: At | None
    schedule_id: Id | None
    server: OrderedServer


class Orders(Answer):
    jobs: list[Order]
    cancel: list[Id]


class ClaimBody(RequestBody):
    job_id: Ulid
    fence: Number
    lines: Lines | None = None


class ProgressBody(ClaimBody):
    model_config = example({"job_id": EXAMPLE_ID, "fence": 1, "lines": [["stdout", "hello"]]})


class Progress(Answer):
    known: Literal[True]


class AgentError(RequestBody):
    """Why a run on a host failed."""

    code: ErrorText | None = None
    type: ErrorText | None = None
    message: ErrorText | None = None
    traceback: ErrorText | None = None


class ResultBody(ClaimBody):
    model_config = example({"job_id": EXAMPLE_ID, "fence": 1, "status": "success", "outcome": {"exit_code": 0}})

    status: Literal["success", "failed", "canceled"]
    outcome: Payload | None = None
    error: AgentError | None = None
    duration_ms: Milliseconds | None = None
    ended_ms_ago: Milliseconds | None = None


class Reported(Answer):
    repeated: bool
