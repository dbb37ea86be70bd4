"""Untrusted text on a terminal: control characters and bidirectional overrides are escaped."""

import json
import re
import sys
from typing import TextIO

# control characters except tab and newline, and bidirectional overrides
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


def visible(text: str) -> str:
    """Return text with control characters escaped."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}" if match[0] < "\u0100" else escaped(match), text)


def output(text: str, stream: TextIO | None = None) -> str:
    """Return output of a run for `stream` (default stdout): unchanged for files and pipes; on a terminal all control
    sequences but colours are escaped."""
    if not (stream or sys.stdout).isatty():
        return text
    return "".join(part if COLOUR.fullmatch(part) else visible(part) for part in COLOUR.split(text))


def json_text(data: object, indent: int | None = None) -> str:
    """Return data as JSON with every control character escaped."""
    return CONTROL.sub(escaped, json.dumps(data, indent=indent, ensure_ascii=False))


def escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
