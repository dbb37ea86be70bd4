"""Logging of the processes. Lines that cannot be written (full disk, closed pipe) are dropped; no call fails."""

import contextlib
import logging
import sys
from typing import TextIO, cast

import structlog

from rota.app.settings import Settings


class LossyStream:
    """A text stream that drops what it cannot write. The first text that can be written again is preceded by a line
    with the number of those dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._dropped = stream, 0

    def write(self, text: str) -> int:
        gap = f"[{self._dropped} writes to this log failed and were dropped]\n" if self._dropped else ""
        try:
            self._stream.write(gap + text)
            self._stream.flush()
            self._dropped = 0
        except (OSError, ValueError):  # ValueError: the stream is closed
            self._dropped += 1
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def configure_logs(settings: Settings) -> None:
    """Log to stderr; replaces `sys.stderr` so that no write to it raises."""
    level = getattr(logging, settings.log_level.upper())
    console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    stderr = sys.stderr if isinstance(sys.stderr, LossyStream) else LossyStream(sys.stderr)
    sys.stderr = cast(TextIO, stderr)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer() if settings.log_format == "json" else console,
        ],
    )
