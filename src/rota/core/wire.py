"""Base classes of the models of the wire, their field types, and validation errors of pydantic as `Invalid`.

A model describes a request body or an answer once: the OpenAPI document, the types of form fields and the client's
types are made from it. Types of fields use constraints of pydantic first, then the parsers of the domain.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from rota.core import parse
from rota.core.errors import MISSING, Invalid, TooMuchEffort, together
from rota.core.flow import parse_rate
from rota.core.model import NAME_LIMIT
from rota.core.policy import Backoff
from rota.core.policy import Retry as RetryPolicy
from rota.core.timing import triggers

EXAMPLE_ID = "01KQRS3Z5T8M0A2N6Y4V7W9XCD"
DOMAIN_ERROR = "domain"  # type of a pydantic error that holds errors of a domain parser
SPAN_SECONDS_MAX = 366 * 86_400
ABSENT: Any = None  # default of a field of an answer that is not always there
JsonSchema = dict[str, Any]


class RequestBody(BaseModel):
    """Base class of request bodies. Values are not converted and unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def read(cls, body: "Mapping[str, object] | Self") -> Self:
        """Return the body as this model. Raises Invalid with all wrong fields."""
        if isinstance(body, cls):
            return body
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise together(invalid_fields(cls, error.errors(include_url=False))) from None

    def sent(self) -> dict[str, object]:
        """Return the fields that the body has, also those that are null."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    def present(self) -> dict[str, Any]:
        """Return the fields that are not null."""
        return {name: value for name, value in self if value is not None}


class Answer(BaseModel):
    """Base class of answers: all fields without a default are always there, and there are no others. Answers are not
    validated when they are sent."""

    model_config = ConfigDict(extra="forbid")


def example(value: Mapping[str, Any]) -> ConfigDict:
    """Return the configuration of a model with its example in the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [dict(value)]})


def checked(parser: Callable[[Any, str], Any]) -> Callable[[Any], Any]:
    """Return a parser of the domain as a validator of pydantic. The parser may name another field of the model."""

    def validate(value: object) -> object:
        try:
            return parser(value, "")
        except TooMuchEffort:
            raise
        except Invalid as error:
            raise domain_error(error.all) from None

    return validate


def json_object(value: object, field: str) -> object:
    if not isinstance(value, dict):
        raise Invalid(field, value, "is not an object")
    return value


def not_blank(value: str, field: str) -> str:
    return parse.text(value, field, len(value), required=True)


def payload_object(value: Any, field: str) -> Any:
    return parse.payload(json_object(value, field), field)


def domain_error(wrong: Sequence[Invalid]) -> PydanticCustomError:
    """Return errors for a validator of pydantic to raise. Their fields are siblings of the validated one, which itself
    may be named by an empty text, and its members by `.name`."""
    return PydanticCustomError(DOMAIN_ERROR, "is invalid", {"wrong": wrong})


# types of fields of requests

AT_SCHEMA: JsonSchema = {"type": "string", "format": "date-time", "examples": ["2026-05-04T09:00:00+00:00"]}
NAME_SCHEMA: JsonSchema = {"type": "string", "minLength": 1, "maxLength": NAME_LIMIT, "examples": ["nightly"]}
ID_SCHEMA: JsonSchema = {"type": "string", "description": "a ULID", "examples": [EXAMPLE_ID]}

Instant = Annotated[datetime, PlainValidator(checked(triggers.parse_instant)), WithJsonSchema(AT_SCHEMA)]
Name = Annotated[str, PlainValidator(checked(parse.name)), WithJsonSchema(NAME_SCHEMA)]
Label = Annotated[str, PlainValidator(checked(parse.label)), WithJsonSchema(NAME_SCHEMA)]
Payload = Annotated[Any, PlainValidator(checked(parse.payload)), WithJsonSchema({})]
PayloadObject = Annotated[dict[str, Any], PlainValidator(checked(payload_object)), WithJsonSchema({"type": "object"})]
Ulid = Annotated[str, PlainValidator(checked(parse.ulid)), WithJsonSchema(ID_SCHEMA)]
StorableText = AfterValidator(checked(lambda value, field: parse.text(value, field, len(value))))
NotBlank = AfterValidator(checked(not_blank))
Reason = Annotated[str, Field(max_length=1000, examples=["maintenance"]), StorableText]
SpanSeconds = Annotated[int, Field(ge=1, le=SPAN_SECONDS_MAX)]
Priority = Annotated[int, Field(ge=-100, le=100)]
RateText = Annotated[
    str,
    PlainValidator(checked(lambda value, field: str(parse_rate(value, field)))),
    WithJsonSchema({"type": "string", "description": "starts per span of time", "examples": ["100/1m", "10/1s"]}),
]
Choice = Field(strict=False)  # an enumeration by its value

# types of fields of answers

At = Annotated[str, WithJsonSchema(AT_SCHEMA)]
Id = Annotated[str, WithJsonSchema(ID_SCHEMA)]
NameText = Annotated[str, WithJsonSchema(NAME_SCHEMA)]


class Retry(RequestBody):
    """Retry policy of a schedule, a task or a host job."""

    max_retries: Annotated[int, Field(ge=0, le=1000)] = Field(
        0, description="number of attempts after the first that failed"
    )
    backoff_ms: Annotated[int, Field(ge=0, le=86_400_000)] = Field(2000, description="delay before the first retry")
    backoff_type: Annotated[Backoff, Choice] = Field(
        Backoff.FIXED, description="`fixed`: all delays are equal; `exponential`: each is twice the one before"
    )
    max_backoff_ms: Annotated[int, Field(ge=0, le=86_400_000)] = Field(600_000, description="upper limit of a delay")
    jitter: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="fraction by which a delay is shortened at most, differently for each job"
    )

    def policy(self) -> RetryPolicy:
        return RetryPolicy(self.max_retries, self.backoff_ms, self.backoff_type, self.max_backoff_ms, self.jitter)


# errors

UNKNOWN_FIELD = "is an unknown field"


def invalid_fields(model: type[BaseModel] | None, errors: Sequence[Any]) -> list[Invalid]:
    """Return errors of pydantic as `Invalid`, unknown fields first. `model` is what was validated. Of unknown fields of
    the same object the first lists the known ones."""
    wrong: list[Invalid] = []
    listed: set[str] = set()
    for invalid in (invalid for error in errors for invalid in invalid_of(model, error)):
        if invalid.right in listed:
            wrong.append(Invalid(invalid.field, invalid.value, UNKNOWN_FIELD))
        else:
            wrong.append(invalid)
        if invalid.right.startswith(UNKNOWN_FIELD):
            listed.add(invalid.right)
    return sorted(wrong, key=lambda error: not error.right.startswith(UNKNOWN_FIELD))


def invalid_of(model: type[BaseModel] | None, error: Mapping[str, Any]) -> Iterator[Invalid]:
    path, value = list(error["loc"]), error.get("input")
    if error["type"] == DOMAIN_ERROR:
        for invalid in error["ctx"]["wrong"]:
            is_member = invalid.field.startswith(".")
            name = [*path, invalid.field[1:]] if is_member else [*path[:-1], invalid.field or path[-1]]
            yield Invalid(field_name(name), invalid.value, invalid.right)
        return
    if error["type"] == "missing" or (value is None and required_at(model, path)):
        yield Invalid(field_name(path), None, MISSING)
        return
    if error["type"] == "extra_forbidden":
        holder = model_at(model, path[:-1])
        names = [] if holder is None else annotations_of(holder)
        known = ", ".join(sorted(names)) or "none"
        yield Invalid(field_name(path), value, f"{UNKNOWN_FIELD}; the fields are {known}")
        return
    yield Invalid(field_name(path), value, remedy(annotation_at(model, path), error))


def field_name(path: Sequence[str | int]) -> str:
    """Return `retry.max_retries`, `items[3].name`; an item of a list at the end has the name of the list."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return name.removeprefix(".") or "body"


def remedy(annotation: Any, error: Mapping[str, Any]) -> str:
    """Return the message of a constraint of pydantic, in the words of the domain's parsers."""
    context, value = error.get("ctx", {}), error.get("input")
    match str(error["type"]):
        case "string_type":
            return "is not text"
        case "string_too_short":
            return "is empty"
        case "string_too_long":
            return f"is {len(value or '')} characters long; at most {context['max_length']} are allowed"
        case "string_unicode":
            return "has characters that cannot be stored (NUL or half a surrogate pair)"
        case "bool_type":
            return "is neither true nor false"
        case "enum" | "literal_error":
            return f"is not one of {', '.join(choices(annotation))}"
        case "int_type" | "float_type" | "greater_than_equal" | "less_than_equal" | "greater_than" | "finite_number":
            return number_remedy(annotation)
        case "list_type":
            return "is not a list"
        case "too_short":
            return f"has {context['actual_length']} items; at least {context['min_length']} are needed"
        case "too_long":
            return f"has {context['actual_length']} items; at most {context['max_length']} are allowed"
        case "dict_type" | "model_type" | "model_attributes_type":
            return "is not an object"
        case _:
            return str(error["msg"])


def number_remedy(annotation: object) -> str:
    kinds, bounds = set(leaves(annotation)), list(constraints(annotation))
    noun = "whole number" if int in kinds else "number"
    low = next((bound.ge for bound in bounds if isinstance(bound, Ge)), None)
    high = next((bound.le for bound in bounds if isinstance(bound, Le)), None)
    limits = "" if low is None else f" from {low}" if high is None else f" from {low} to {high}"
    above = next((bound.gt for bound in bounds if isinstance(bound, Gt)), None)
    if above is not None:
        limits = f" greater than {above}" if high is None else f" greater than {above}, at most {high}"
    return f"is not a {noun}{limits}"


def choices(annotation: object) -> list[str]:
    """Return the values of an enumeration or a Literal."""
    names: list[str] = []
    for kind in leaves(annotation):
        if get_origin(kind) is Literal:
            names += [str(value) for value in get_args(kind)]
        elif isinstance(kind, type) and issubclass(kind, Enum):
            names += [str(member.value) for member in kind]
    return names


def model_at(model: type[BaseModel] | None, path: Sequence[str | int]) -> type[BaseModel] | None:
    """Return the model of the object at a path of a body; None if the path leads elsewhere."""
    return next(iter(models_in(annotation_at(model, path))), None) if path else model


def required_at(model: type[BaseModel] | None, path: Sequence[str | int]) -> bool:
    holder = model_at(model, path[:-1])
    fields = {} if holder is None else {field.alias or name: field for name, field in holder.model_fields.items()}
    return bool(path) and path[-1] in fields and fields[str(path[-1])].is_required()


def annotation_at(model: type[BaseModel] | None, path: Sequence[str | int]) -> object:
    """Return the annotation of the field at a path of a body, with its constraints; None if there is none."""
    annotation: object = None
    for part in path:
        if isinstance(part, int):
            continue
        holder = model if annotation is None else next(iter(models_in(annotation)), None)
        annotation = None if holder is None else annotations_of(holder).get(part)
        if annotation is None:
            return None
    return annotation


@cache
def annotations_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the annotation of each field by its name on the wire."""
    annotations = {}
    for name, field in model.model_fields.items():
        parts = (field.annotation, *field.metadata)
        annotations[field.alias or name] = Annotated[parts] if field.metadata else field.annotation
    return annotations


def models_in(annotation: object) -> list[type[BaseModel]]:
    return [kind for kind in leaves(annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]


def leaves(annotation: object) -> Iterator[object]:
    """Yield the types inside Annotated, unions and lists."""
    origin = get_origin(annotation)
    if origin is None or origin is Literal or origin is dict:
        yield annotation
        return
    parts = get_args(annotation)[:1] if origin is Annotated else get_args(annotation)
    for part in parts:
        if part is not NoneType:
            yield from leaves(part)


def constraints(annotation: Any) -> Iterator[Any]:
    """Yield the constraints inside Annotated and unions."""
    if get_origin(annotation) is Annotated:
        for entry in annotation.__metadata__:
            yield from getattr(entry, "metadata", [entry])
    for part in get_args(annotation):
        if part is not NoneType:
            yield from constraints(part)
