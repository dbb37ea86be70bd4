"""Text of others on a terminal: it must not move the cursor, rename the window or turn its reading direction."""

import json
import re
import sys
from typing import Any, TextIO

# control characters but tabs and ends of lines, and those that turn the direction of what follows
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


def visible(text: str) -> str:
    """The text with control characters as escapes."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}" if match[0] < "\u0100" else escaped(match), text)


def output(text: str, stream: TextIO | None = None) -> str:
    """What a run printed, for `stream` (stdout): as it is for files and pipes; on a terminal only its colours stay
    control sequences."""
    if not (stream or sys.stdout).isatty():
        return text
    return "".join(part if COLOUR.fullmatch(part) else visible(part) for part in COLOUR.split(text))


def json_text(data: Any, indent: int | None = None) -> str:
    """JSON in which every control character is escaped."""
    return CONTROL.sub(escaped, json.dumps(data, indent=indent, ensure_ascii=False))


def escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
