"""Local variables of the functions in which an exception was raised, as bounded text without secrets.

Only values of built-in types are written out: `repr` of other classes is code that may be slow or fail.
"""

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from types import FrameType, FunctionType, ModuleType
from typing import TypedDict
from uuid import UUID

from rota.core.redact import HIDDEN, hidden, redacted_text

FRAMES_MAX = 8  # the innermost ones
VARIABLES_MAX = 25  # of a function
VALUE_CHARACTERS = 300
TOTAL_CHARACTERS = 20_000  # of all values and names
TEXT_CHARACTERS = 2000  # of a text that are searched for secrets
MEMBERS_MAX, DEPTH_MAX = 12, 3  # of a list, dict, tuple or set
PLAIN = (int, float, complex, bool, type(None), Decimal, UUID, date, datetime, time, timedelta, PurePath)


class FrameLocals(TypedDict):
    """A function in which an exception was raised, and its variables as text."""

    file: str
    line: int
    function: str
    variables: dict[str, str]


def locals_of(error: BaseException, own_source: str) -> list[FrameLocals]:
    """Return the variables of the innermost functions of an exception, the last one at the end."""
    found: list[FrameLocals] = []
    room = TOTAL_CHARACTERS
    for frame, line in reversed(frames_of(error, own_source)[-FRAMES_MAX:]):
        variables: dict[str, str] = {}
        for name, value in list(frame.f_locals.items()):
            if len(variables) == VARIABLES_MAX or isinstance(value, ModuleType | FunctionType | type):
                continue
            shown = text_of(value, name)
            if room < len(name) + len(shown):
                break
            room -= len(name) + len(shown)
            variables[name] = shown
        code = frame.f_code
        found.append({"file": code.co_filename, "line": line, "function": code.co_name, "variables": variables})
    return found[::-1]


def frames_of(error: BaseException, own_source: str) -> list[tuple[FrameType, int]]:
    """Return the frames of a traceback after the last one below `own_source`, with the lines that were running."""
    frames: list[tuple[FrameType, int]] = []
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename.startswith(own_source):
            frames.clear()
        else:
            frames.append((entry.tb_frame, entry.tb_lineno))
        entry = entry.tb_next
    return frames


def text_of(value: object, name: str = "") -> str:
    """Return a value as text of at most VALUE_CHARACTERS, without secrets; under a secret name only HIDDEN."""
    known = value if isinstance(value, str | int | float | bool | None) else "…"
    if hidden(name[-200:], known) == HIDDEN:
        return HIDDEN
    text = redacted_text(written(value, 0))
    return text if len(text) <= VALUE_CHARACTERS else text[:VALUE_CHARACTERS] + "…"


def written(value: object, depth: int) -> str:
    if type(value) is str:
        return repr(redacted_text(value[:TEXT_CHARACTERS]))
    if type(value) is bytes:
        return f"<{len(value)} bytes>"
    if type(value) in PLAIN or isinstance(value, PurePath):
        return str(value)[:VALUE_CHARACTERS] if type(value) is not int or value.bit_length() < 2000 else "<large int>"
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if type(value) in (dict, list, tuple, set, frozenset):
        return members_of(value, depth)
    shape = getattr(type(value), "shape", None) is not None and shape_of(value)
    return f"<{type(value).__module__}.{type(value).__qualname__}{f' {shape}' if shape else ''}>"


def members_of(value: object, depth: int) -> str:
    """Return a container with its first members; nested ones deeper than DEPTH_MAX as their size."""
    assert isinstance(value, dict | list | tuple | set | frozenset)
    if depth == DEPTH_MAX:
        return f"<{type(value).__name__} of {len(value)}>"
    parts: list[str] = []
    for member in value:
        if len(parts) == MEMBERS_MAX:
            parts.append(f"… {len(value) - MEMBERS_MAX} more")
            break
        if isinstance(value, Mapping):
            inner = value[member]
            secret = isinstance(member, str) and hidden(member, inner if isinstance(inner, int) else "…") == HIDDEN
            parts.append(f"{written(member, depth + 1)}: {HIDDEN if secret else written(inner, depth + 1)}")
        else:
            parts.append(written(member, depth + 1))
    start, end = {"list": ("[", "]"), "tuple": ("(", ")")}.get(type(value).__name__, ("{", "}"))
    return f"{start}{', '.join(parts)}{end}"


def shape_of(value: object) -> str:
    """Return rows and columns of an array or data frame."""
    try:
        shape = value.shape  # type: ignore[attr-defined]
    except Exception:
        return ""
    numbers = isinstance(shape, tuple) and all(type(size) is int for size in shape)
    return " x ".join(map(str, shape)) if numbers else ""
