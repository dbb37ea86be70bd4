"""Levels of log lines, recognised by the words that loggers write. Pure."""

from collections.abc import Mapping
from enum import StrEnum

LEVEL_CHARACTERS = 160  # of a line, from its start, in which its level stands
SEPARATORS = "[]:,|()\t"  # they end a word as a space does
ESCAPE = "\x1b"  # begins a colour


class LogLevel(StrEnum):
    """Levels that lines are filtered by, the most severe first."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    DEBUG = "debug"


WORDS: Mapping[LogLevel, tuple[str, ...]] = {
    LogLevel.ERROR: ("ERROR", "CRITICAL", "FATAL"),
    LogLevel.WARNING: ("WARNING", "WARN"),
    LogLevel.INFO: ("INFO", "NOTICE"),
    LogLevel.DEBUG: ("DEBUG", "TRACE"),
}


def level_of(stream: str, text: str) -> LogLevel | None:
    """Return the level of a line: the most severe one that its first characters name. A record of `logging` begins with
    its level; in other lines it is a word in capitals, or in a form that only loggers write."""
    if stream == "log":
        word = text.partition(" ")[0]
        return next((level for level, words in WORDS.items() if word in words), None)
    head = text[:LEVEL_CHARACTERS]
    capitals, lower = with_spaces(head), head.lower()
    for level, words in WORDS.items():
        for word in words:
            if word.lower() not in lower:
                continue
            if any(form in capitals for form in capital_forms(word)) or lower.startswith(f"{word.lower()}:"):
                return level
            if any(form in lower for form in logger_forms(word)) or (ESCAPE in head and f"m{word.lower()}" in lower):
                return level
    return None


def with_spaces(head: str) -> str:
    """Return the beginning of a line with a space for each separator, and around it."""
    return f" {head.translate(str.maketrans(SEPARATORS, ' ' * len(SEPARATORS)))} "


def capital_forms(word: str) -> tuple[str, ...]:
    """Return the forms of a level's word that count with spaces around it, in this case of letters."""
    return (f" {word} ",)


def logger_forms(word: str) -> tuple[str, ...]:
    """Return the forms of a level's word that only loggers write: `level=error`, JSON, `[error`."""
    name = word.lower()
    return (f"level={name}", f'level="{name}', f'"level":"{name}"', f'"level": "{name}"', f"[{name}")


def at_least(level: LogLevel) -> list[LogLevel]:
    """Return the level and those that are more severe."""
    levels = list(LogLevel)
    return levels[: levels.index(level) + 1]
