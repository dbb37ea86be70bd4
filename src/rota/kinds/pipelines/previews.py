"""How much of a value a preview shows: rows alone do not limit the memory of a preview."""

import re
from collections.abc import Sequence

PREVIEW_CHARACTERS = 1_000  # of a value; the engine cuts longer ones
SHORT_TYPE = re.compile(
    r"bool(ean)?|u?(tiny|small|big|huge)?int(eger)?|long|short|byte|void|int[248]|float[48]?|double|real|date|uuid|"
    r"(decimal|numeric)(\(\d+,\d+\))?|time(stamp)?(tz|_ntz|_ns|_ms|_s| with time zone)?|oid",
    re.IGNORECASE,
)


def shortened_values(names: Sequence[str], types: Sequence[str], text_type: str) -> list[str]:
    """Return expressions of columns, by plain names and types of the engine, whose texts are of limited length."""
    return [
        name if SHORT_TYPE.fullmatch(column_type) else f"left(CAST({name} AS {text_type}), {PREVIEW_CHARACTERS})"
        for name, column_type in zip(names, types, strict=True)
    ]
