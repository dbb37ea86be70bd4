"""The filter of a list of runs: query of the API, options of the command line, saved views and bulk actions."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from rota.core.errors import Invalid
from rota.core.states import Status
from rota.core.timing.triggers import parse_instant, parse_interval
from rota.core.wire import AT_SCHEMA, Choice, RequestBody, StorableText, checked, example

TEXT_CHARACTERS_MAX = 200
KEY_CHARACTERS_MAX = 1000  # of an id or a name, as in all query values
INPUT_FIELDS_MAX = 10  # of one filter
PATH_NAMES_MAX = 10  # of a field inside the input


@dataclass(frozen=True, slots=True)
class InputField:
    """A field of the input, by its path, and its value as text."""

    path: tuple[str, ...]
    value: str

    def matches(self, payload: Any) -> bool:
        """Return whether an input has this value: a text, or the JSON of a number, a truth value or null."""
        for name in self.path:
            if isinstance(payload, dict) and name in payload:
                payload = payload[name]
            elif isinstance(payload, list) and name.isdecimal() and name.isascii() and int(name) < len(payload):
                payload = payload[int(name)]
            else:
                return False
        match payload:
            case str():
                return payload == self.value
            case None | bool():
                return {None: "null", True: "true", False: "false"}[payload] == self.value
            case int() | float():
                return repr(payload) == self.value
            case _:
                return False


def parse_input_field(text: object, field: str = "input") -> InputField:
    """Parse `customer=42` or `customer.id=42`. Raises Invalid."""
    if not isinstance(text, str):
        raise Invalid(field, text, "is not text such as customer=42")
    name, equals, value = text.partition("=")
    path = tuple(name.removeprefix("input.").split("."))
    if not equals or not all(path) or len(path) > PATH_NAMES_MAX:
        raise Invalid(field, text, f"must be FIELD=VALUE with a path of at most {PATH_NAMES_MAX} names: customer.id=42")
    if len(text) > TEXT_CHARACTERS_MAX or "\0" in text:
        raise Invalid(field, text, f"must have at most {TEXT_CHARACTERS_MAX} characters and no NUL")
    return InputField(path, value)


def checked_text(value: str, parser: Any) -> str:
    parser(value, "")
    return value


def parsed_by(parser: Any) -> AfterValidator:
    """Return a validator for a text that `parser` can read; the text stays as it is."""
    return AfterValidator(checked(lambda value, _: checked_text(value, parser)))


KeyText = Annotated[str, Field(min_length=1, max_length=KEY_CHARACTERS_MAX), StorableText]
FilterText = Annotated[str, Field(min_length=1, max_length=TEXT_CHARACTERS_MAX), StorableText]
TargetText = Annotated[str, Field(min_length=1, max_length=2000), StorableText]
SpanText = Annotated[str, Field(examples=["5m"], max_length=40), parsed_by(parse_interval)]
InstantText = Annotated[str, Field(json_schema_extra=AT_SCHEMA, max_length=60), parsed_by(parse_instant)]
InputText = Annotated[str, Field(examples=["customer=42"]), parsed_by(parse_input_field)]


class RunFilter(RequestBody):
    """Which runs: those that match all fields. No field matches every run of the organisation."""

    model_config = example({"status": "failed", "error": "timeout", "within": "24h"})

    schedule_id: Annotated[KeyText | None, Field(description="id or name")] = None
    tag: Annotated[FilterText | None, Field(description="a tag of the schedule")] = None
    job_id: KeyText | None = None
    status: Annotated[Status, Choice] | None = None
    reason: FilterText | None = None
    kind: FilterText | None = None
    target: TargetText | None = None
    namespace: Annotated[FilterText | None, Field(description="of pipelines")] = None
    layer: Annotated[FilterText | None, Field(description="of pipelines")] = None
    pipeline: Annotated[FilterText | None, Field(description="the last part of its path")] = None
    input: Annotated[
        list[InputText] | None, Field(max_length=INPUT_FIELDS_MAX, description="fields of the input: customer=42")
    ] = None
    error: Annotated[FilterText | None, Field(description="a part of the type or message of the error")] = None
    worker: Annotated[FilterText | None, Field(description="id, or name of its machine")] = None
    longer_than: Annotated[SpanText | None, Field(description="took or takes at least this long")] = None
    shorter_than: Annotated[SpanText | None, Field(description="ended within this time")] = None
    since: InstantText | None = None
    until: InstantText | None = None
    within: Annotated[SpanText | None, Field(description="of the last 24h, say; relative to now")] = None

    def search_values(self, now: datetime) -> dict[str, Any]:
        """Return the parsed values by field, with `within` as `since`. Raises Invalid for an empty range of time."""
        values = self.present()
        for name in ("longer_than", "shorter_than"):
            if name in values:
                values[name] = parse_interval(values[name], name)
        for name in ("since", "until"):
            if name in values:
                values[name] = parse_instant(values[name], name)
        if "within" in values:
            start = now - parse_interval(values.pop("within"), "within")
            values["since"] = max(start, values.get("since", start))
        if "since" in values and "until" in values and values["since"] > values["until"]:
            raise Invalid("until", self.until, f"lies before the start of the range, {values['since'].isoformat()}")
        check_durations(values.get("longer_than"), values.get("shorter_than"))
        if "input" in values:
            values["input"] = input_fields(values["input"])
        return values


def input_fields(texts: Sequence[str]) -> tuple[InputField, ...]:
    return tuple(parse_input_field(text) for text in texts)


def check_durations(longer_than: timedelta | None, shorter_than: timedelta | None) -> None:
    """Raise Invalid if no duration can be in the range."""
    if longer_than is not None and shorter_than is not None and longer_than >= shorter_than:
        raise Invalid("shorter_than", str(shorter_than), f"is not more than longer_than, {longer_than}")
