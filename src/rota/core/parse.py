"""Parsers of single values, and `Form`, which reads request bodies that have no model yet (see `core/wire.py`).

An error names the field, the value and the remedy. All wrong fields are reported together.
"""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import orjson

from rota.core.errors import Invalid, together
from rota.core.model import NAME_LIMIT, PAYLOAD_LIMIT

T = TypeVar("T")

ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


class Form:
    """Reads the fields of a request body and collects their errors."""

    def __init__(self, body: Mapping[str, object], known: frozenset[str]) -> None:
        self.body = body
        self.errors = [Invalid(str(field), body[field], "is an unknown field") for field in body if field not in known]

    def take(self, field: str, read: Callable[[object, str], T], default: T | None) -> T | None:
        """Return the value of a field, or the default if it is absent or null."""
        value = self.body.get(field)
        if value is None:
            return default
        try:
            return read(value, field)
        except Invalid as error:
            self.errors.extend(error.all)
            return default

    def need(self, field: str, read: Callable[[object, str], T]) -> T | None:
        """Return the value of a required field."""
        if self.body.get(field) is None:
            self.errors.append(Invalid(field, None, "is missing"))
        return self.take(field, read, None)

    def check(self, step: Callable[[], None]) -> None:
        """Run a check, unless there are errors already."""
        if not self.errors:
            step()

    def done(self) -> None:
        """Raise Invalid if there are errors."""
        if self.errors:
            raise together(self.errors)


def wrong_names(schema: Mapping[str, Any], members: Mapping[str, Any], field: str, of: str) -> list[Invalid]:
    """Return errors for members of an object that a JSON Schema requires or does not allow."""
    wrong = [
        Invalid(f"{field}.{name}", None, "is missing") for name in schema.get("required", ()) if name not in members
    ]
    if schema.get("additionalProperties") is False:
        unknown = [name for name in members if name not in schema.get("properties", {})]
        wrong += [Invalid(f"{field}.{name}", members[name], f"is not a {of}") for name in unknown]
    return wrong


def name(value: object, field: str) -> str:
    """Return a name of a resource, usable in a path: a label without `/` that does not look like an id."""
    text_value = label(value, field)
    if "/" in text_value:
        raise Invalid(field, value, "has a `/`, which separates the parts of a path; use another character")
    if ULID.fullmatch(text_value.upper()):
        raise Invalid(field, value, "looks like an id (a ULID); choose another name")
    return text_value


def label(value: object, field: str) -> str:
    """Return a short printable text, such as a tag or a key."""
    text_value = text(value, field, NAME_LIMIT, required=True)
    if not text_value.isprintable() or text_value != text_value.strip():
        raise Invalid(field, value, "has control characters or blanks at its ends; use printable text")
    return text_value


def text(value: object, field: str, limit: int, required: bool = False) -> str:
    if not isinstance(value, str):
        raise Invalid(field, value, "is not text")
    if len(value) > limit:
        raise Invalid(field, value, f"is {len(value)} characters long; at most {limit} are allowed")
    if required and not value.strip():
        raise Invalid(field, value, "is empty")
    if "\0" in value or (not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)):
        raise Invalid(field, value, "has characters that cannot be stored (NUL or half a surrogate pair)")
    return value


def traceparent(value: str | None) -> str | None:
    """Return a W3C `traceparent` header; None for an invalid one, as the standard demands."""
    match = TRACEPARENT.fullmatch(value or "")
    return value if match and match[1] != "0" * 32 and match[2] != "0" * 16 else None


def ulid(value: object, field: str) -> str:
    if not isinstance(value, str) or not ULID.fullmatch(value):
        raise Invalid(field, value, "is not a ULID: 26 digits and capital letters without I, L, O and U")
    return value


def payload(value: Any, field: str) -> Any:
    """Return a JSON value of at most `PAYLOAD_LIMIT` bytes. Raises Invalid."""
    try:
        size = len(orjson.dumps(value))
    except (TypeError, ValueError) as error:
        raise Invalid(field, type(value).__name__, f"cannot be written as JSON: {error}") from error
    if size > PAYLOAD_LIMIT:
        raise Invalid(field, f"{size} bytes", f"is too large; at most {PAYLOAD_LIMIT} bytes of JSON are allowed")
    return value


def whole(value: object, field: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Invalid(field, value, f"is not a whole number from {low} to {high}")
    return value


def span(value: object, field: str) -> timedelta:
    return timedelta(seconds=whole(value, field, 1, 366 * 86_400))


def flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise Invalid(field, value, "is neither true nor false")
    return value


def one_of(value: object, field: str, known: list[str]) -> str:
    if value not in known:
        raise Invalid(field, value, f"is not one of {', '.join(known)}")
    return str(value)
