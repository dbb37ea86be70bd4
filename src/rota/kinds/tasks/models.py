"""Bodies and answers of the routes of tasks."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PlainValidator,
    RootModel,
    ValidationInfo,
    WithJsonSchema,
    create_model,
    field_validator,
    model_validator,
)

from rota.core import parse
from rota.core.errors import Invalid
from rota.core.flow import MAX_BURST, MAX_PLACES
from rota.core.schedule_form import EXAMPLE, OldName, ScheduleFields
from rota.core.steps import OnNewVersion
from rota.core.timing_form import WholeTiming
from rota.core.wire import (
    Answer,
    At,
    Id,
    Label,
    Name,
    NameText,
    Priority,
    RateText,
    RequestBody,
    Retry,
    Ulid,
    annotations_of,
    checked,
    domain_error,
    example,
)
from rota.frame.http import answers
from rota.kinds.tasks.registry import OPTIONS

COMMAND_CHARACTERS = 100_000
OF_TASK = {name: value for name, value in EXAMPLE.items() if name != "target"}


def read_command(value: object, field: str) -> str:
    return parse.text(value, field, COMMAND_CHARACTERS, required=True)


def read_parameters(value: object, field: str) -> object:
    if not isinstance(value, dict):
        raise Invalid(field, value, "is not an object of parameters")
    return parse.payload(value, field)


def as_sent(parser: Callable[[object, str], object]) -> PlainValidator:
    """Return a validator that keeps the value, which is stored as it was sent."""

    def check(value: object, field: str) -> object:
        parser(value, field)
        return value

    return PlainValidator(checked(check))


Command = Annotated[
    str,
    PlainValidator(checked(read_command)),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": COMMAND_CHARACTERS}),
]
ParameterMap = Annotated[
    dict[str, object], PlainValidator(checked(read_parameters)), WithJsonSchema({"type": "object"})
]
Timeout = Annotated[
    str | float,
    as_sent(OPTIONS["timeout"]),
    WithJsonSchema(
        {
            "type": ["string", "number"],
            "description": "a span of time, `30s`, or seconds",
            "examples": ["30s", 30],
        }
    ),
]
CacheTtl = Annotated[
    str | float,
    as_sent(OPTIONS["cache_ttl"]),
    WithJsonSchema(
        {
            "type": ["string", "number"],
            "description": "how long a result is used again, `5m`, or seconds",
            "examples": ["5m"],
        }
    ),
]
Env = Annotated[
    dict[str, str] | list[str],
    as_sent(OPTIONS["env"]),
    WithJsonSchema(
        {"description": "variables, or names of those to let through", "examples": [{"A": "b"}, ["DATABASE_URL"]]}
    ),
]
ContainerMap = Annotated[
    dict[str, Any],
    as_sent(OPTIONS["container"]),
    WithJsonSchema(
        {
            "type": "object",
            "description": "image and limits of the container that it runs in; declared by programs",
            "examples": [{"image": "python:3.13", "cpus": 2}],
        }
    ),
]
Cwd = Annotated[str, as_sent(OPTIONS["cwd"]), WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 4096})]
Stdin = Annotated[str, as_sent(OPTIONS["stdin"]), WithJsonSchema({"type": "string"})]


class TaskChanges(RequestBody):
    """An edit of a task: absent fields stay; a null removes parameters and options. An id is ignored."""

    model_config = example({"enabled": False})

    id: Ulid | None = None
    name: OldName | None = None
    command: Command | None = None
    task_type: Literal["shell", "python"] | None = None
    parameters: ParameterMap | None = None
    enabled: bool | None = None
    retry: Retry | None = None
    timeout: Timeout | None = None
    isolation: Literal["none", "process"] | None = None
    executor: (
        Annotated[
            Literal["dask", "ray", "container", "kubernetes"],
            Field(description="where it runs, if not in its worker; declared by programs"),
        ]
        | None
    ) = None
    container: ContainerMap | None = None
    cache_ttl: CacheTtl | None = None
    env: Env | None = None
    cwd: Cwd | None = None
    stdin: Stdin | None = None
    memory_mb: Annotated[int, Field(ge=16, le=1_048_576)] | None = None
    delete_with_schedule: (
        Annotated[bool, Field(description="whether the task goes with the last schedule that runs it")] | None
    ) = None

    queue: Name | None = None
    priority: Priority | None = None
    rate: RateText | None = None
    burst: Annotated[int, Field(ge=1, le=MAX_BURST)] | None = None
    rate_key: Label | None = None
    max_running: Annotated[int, Field(ge=1, le=MAX_PLACES)] | None = None
    max_running_key: Label | None = None
    heartbeat: Timeout | None = None
    debounce: Timeout | None = None
    debounce_key: Label | None = None
    debounce_max: Timeout | None = None
    throttle: Timeout | None = None
    throttle_key: Label | None = None
    on_new_version: OnNewVersion | None = None

    def stored(self) -> dict[str, object]:
        """Return the fields that were sent, as they are stored."""
        retry = self.retry and self.retry.model_dump(mode="json", exclude_unset=True)
        return {name: retry if name == "retry" else value for name, value in self.sent().items()}


class TaskReplacement(TaskChanges):
    """A whole task in place of another: absent fields get their defaults, but name and type stay."""

    model_config = example({"command": "df -h", "timeout": "30s"})

    command: Command


class TaskBody(TaskReplacement):
    """A new task."""

    model_config = example({"name": "disk", "command": "df -h", "timeout": "30s"})

    @field_validator("name")
    @classmethod
    def check_name(cls, name: str | None, info: ValidationInfo) -> str | None:
        """Return a valid name, or the id of the task."""
        return name if name is None or name == info.data.get("id") else str(checked(parse.name)(name))


def stored_fields() -> dict[str, Any]:
    """Return the fields of a request of a task as they are answered."""
    return {name: (kind, ...) for name, kind in annotations_of(TaskChanges).items()}


StoredTask: Any = create_model("StoredTask", __base__=Answer, **stored_fields())


class Task(StoredTask):
    id: Id
    name: NameText
    enabled: bool
    source: str
    version: str
    created_at: At
    updated_at: At


class Parameters(RootModel[dict[str, object]]):
    """a JSON Schema"""


class ExecuteBody(RequestBody):
    model_config = example({"parameters": {"day": "today"}})

    parameters: Annotated[Any, WithJsonSchema({"type": "object"})] | None = None  # the runner validates them


class Executed(Answer):
    job_id: Id
    message: str


class TaskScheduleChanges(ScheduleFields):
    """An edit of a schedule of a task: absent fields stay."""

    model_config = example(OF_TASK)

    @model_validator(mode="before")
    @classmethod
    def check_own(cls, body: Mapping[str, object]) -> Mapping[str, object]:
        """Raises an error if the body names a kind or a target."""
        reason = "cannot be set: the schedule belongs to this task"
        wrong = [Invalid(name, body[name], reason) for name in ("kind", "target") if name in body]
        if wrong:
            raise domain_error(wrong)
        return body


class TaskScheduleBody(TaskScheduleChanges, WholeTiming):
    """A new schedule of a task."""

    name: Name | None = None


class TaskSchedule(answers.Schedule):
    task_id: Id
