"""Secrets made unreadable before a value is kept or shown where others read it."""

import re
from typing import Any

HIDDEN = "***"
NAMED = r"pass(?:word|wd|phrase)?|secret|token|credentials?|authorization|cookie|(?:api|access|private)[_-]?key"
SECRET_NAME = re.compile(rf"(?:^|[_.-])(?:{NAMED})(?:$|[_.-])", re.IGNORECASE)
SECRET_TEXT = (
    (re.compile(r"(://[^/\s:@]*:)[^@/\s]+@"), rf"\1{HIDDEN}@"),  # a password in a URL
    (re.compile(r"\b((?:bearer|basic)\s+)[^\s'\"]+", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(rf"((?:{NAMED})\s*[=:]\s*)(?!bearer|basic)[^\s'\"&,;]+", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"\brota_[A-Za-z0-9_-]{20,}"), f"rota_{HIDDEN}"),
)


def redacted(value: Any) -> Any:
    """The same value with what looks like a secret hidden: by the name of its field, or by its own shape."""
    match value:
        case dict():
            return {
                name: hidden(value[name]) if SECRET_NAME.search(str(name)) else redacted(value[name]) for name in value
            }
        case list() | tuple():
            return [redacted(one) for one in value]
        case str():
            for pattern, instead in SECRET_TEXT:
                value = pattern.sub(instead, value)
            return value
        case _:
            return value


def hidden(value: Any) -> Any:
    return value if value is None or value == "" else HIDDEN
