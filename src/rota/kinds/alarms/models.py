"""Bodies and answers of the routes of alarms."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from rota.core.alarms import EventState, parse_quiet, parse_when
from rota.core.timing.triggers import parse_zone
from rota.core.wire import (
    EXAMPLE_ID,
    Answer,
    At,
    Id,
    Name,
    NameText,
    Reason,
    RequestBody,
    SpanSeconds,
    StorableText,
    checked,
    example,
)

TEXT_SCHEMA: dict[str, Any] = {"type": "string"}
When = Annotated[
    str,
    PlainValidator(checked(lambda value, field: str(parse_when(value, field)))),
    WithJsonSchema(
        {**TEXT_SCHEMA, "description": "a rule", "examples": ["late > 5m", "missed", "failed_in_a_row >= 3"]}
    ),
]


def quiet_text(value: object, field: str) -> str:
    window = parse_quiet(value, field)
    return f"{window.start:%H:%M}-{window.end:%H:%M}"


Quiet = Annotated[
    str, PlainValidator(checked(quiet_text)), WithJsonSchema({**TEXT_SCHEMA, "examples": ["22:00-07:00"]})
]
Zone = Annotated[
    str, PlainValidator(checked(parse_zone)), WithJsonSchema({**TEXT_SCHEMA, "examples": ["Europe/Oslo", "UTC"]})
]
ChannelType = Literal["email", "webhook", "apprise", "command"]
Scope = Annotated[
    str, Field(max_length=300, examples=["tag:nightly", "schedule:report", "queue:default"]), StorableText
]
Address = Annotated[str, Field(max_length=4000, examples=["ops@example.org", "https://example.org/hook"]), StorableText]


class ChannelChanges(RequestBody):
    """An edit of a channel: absent fields stay."""

    model_config = example({"test_seconds": 86400})

    address: Address | None = None
    secret: Annotated[str, Field(max_length=200), StorableText] | None = None
    test_seconds: Annotated[SpanSeconds, Field(ge=60)] | None = None


class ChannelBody(ChannelChanges):
    """A new channel. `address` is an e-mail address, a URL, a URL of Apprise or a command; `secret` is the key of a
    webhook's signatures, by default a new one."""

    model_config = example({"name": "ops", "type": "email", "address": "ops@example.org"})

    name: Name
    type: ChannelType
    address: Address


class Channel(Answer):
    id: Id
    name: NameText
    type: ChannelType
    address: str
    test_seconds: int | None
    last_delivery_at: At | None
    last_status: str | None = Field(examples=["success"])
    last_answer: str | None = Field(examples=["250 OK", "HTTP 204 No Content"])
    source: str = Field(examples=["api"])
    created_at: At
    updated_at: At


class NewChannel(Channel):
    secret: str | None = Field(description="key of a webhook's signatures; shown only once")


class AlarmChanges(RequestBody):
    """An edit of an alarm: absent fields stay; null removes `on`, `quiet` and `repeat_seconds`."""

    model_config = example({"when": "late > 10m", "repeat_seconds": 3600})

    when: When | None = None
    on: Scope | None = None
    notify: Annotated[list[Name], Field(max_length=20)] | None = None
    quiet: Quiet | None = None
    timezone: Zone | None = None
    group_seconds: Annotated[int, Field(ge=0, le=86_400)] | None = None
    repeat_seconds: Annotated[SpanSeconds, Field(ge=60)] | None = None
    enabled: bool | None = None
    description: Annotated[str, Field(max_length=2000), StorableText] | None = None


class AlarmBody(AlarmChanges):
    """A new alarm."""

    model_config = example({"name": "nightly is late", "when": "late > 5m"})

    name: Name
    when: When


class Alarm(Answer):
    id: Id
    name: NameText
    description: str
    when: str = Field(examples=["late > 5m"])
    on: str | None
    notify: list[str]
    quiet: str | None
    timezone: str
    group_seconds: int
    repeat_seconds: int | None
    enabled: bool
    firing: int = Field(description="open events")
    source: str = Field(examples=["api", "code:jobs"])
    created_at: At
    updated_at: At


class AlarmEvent(Answer):
    id: Id
    alarm_id: Id
    alarm: NameText
    when: str
    subject: str = Field(examples=[f"schedule:{EXAMPLE_ID}"])
    name: str = Field(examples=["nightly"])
    state: EventState
    text: str
    fired_at: At
    notified_at: At | None
    notified: int
    acknowledged_at: At | None
    acknowledged_by: str | None
    note: str | None
    resolved_at: At | None
    job_ids: list[Id] = Field(description="newest deliveries")


class AcknowledgeEventBody(RequestBody):
    model_config = example({"note": "I restart the host"})

    note: Reason | None = None


class Deliveries(Answer):
    job_ids: list[Id]
