"""Results of steps as they are recorded: JSON of limited size."""

import math

import orjson

from rota.core.model import PAYLOAD_LIMIT


def as_recorded(result: object) -> object:
    """Return the result of a step as it is read from its record. Raises ValueError if it is not JSON or too large."""
    if result is None:
        return None
    try:
        text = orjson.dumps(result)
    except TypeError as error:
        raise ValueError(f"is not JSON: {error}") from error
    if len(text) > PAYLOAD_LIMIT:
        raise ValueError(
            f"has {len(text)} bytes of JSON; at most {PAYLOAD_LIMIT} are allowed: "
            "save it as an artifact and return its id"
        )
    if b"null" in text and has_nan(result):
        raise ValueError("is not JSON: it has a number that is NaN or infinite; return None or a text instead")
    return orjson.loads(text)


def has_nan(value: object) -> bool:
    """Return whether a value has a NaN or infinite number, which orjson writes as null."""
    match value:
        case float():
            return not math.isfinite(value)
        case dict():
            return any(has_nan(member) for member in value.values())
        case list() | tuple():
            return any(has_nan(member) for member in value)
        case _:
            return False
