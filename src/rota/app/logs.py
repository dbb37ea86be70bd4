"""Logging of the processes. Lines that cannot be written (full disk, closed pipe) are dropped; no call fails.

Warnings that libraries log by `logging` are lines too.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, TextIO, cast

import structlog

from rota.app.settings import Settings
from rota.core.log_handlers import other_handlers
from rota.core.redact import redacted_text
from rota.engine.run_end_log import ids_of
from rota.engine.runner import LogHandler, current_log

Processor = Callable[[object, str, MutableMapping[str, Any]], MutableMapping[str, Any]]

REPEAT_SECONDS = 60.0  # between two warnings of the same line of code


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


class LibraryWarnings(logging.Handler):
    """Logs warnings and errors of libraries and of the program, outside of runs, unless the program has handlers of its
    own: the first of a line of code at once, then one in REPEAT_SECONDS with the number of those left out."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next: dict[tuple[str, int], tuple[float, int]] = {}  # by line of code: when the next is logged, left out

    def emit(self, record: logging.LogRecord) -> None:
        if current_log.get() is not None or other_handlers(record.name, LibraryWarnings, LogHandler):
            return
        place = record.pathname, record.lineno
        next_at, left_out = self._next.get(place, (record.created, 0))
        if record.created < next_at:
            self._next[place] = next_at, left_out + 1
            return
        self._next[place] = record.created + REPEAT_SECONDS, 0
        repeated = {"left_out": left_out} if left_out else {}
        text = redacted_text(self.format(record))
        structlog.get_logger().warning("library warning", logger=record.name, message=text, **repeated)


def add_ids(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the ids of the run that a line is about: those of `ids`, or of the run in whose code it was logged."""
    ids = event.pop("ids", None)
    if ids is None and (run_log := current_log.get()) is not None:
        ids = {"run": run_log.run_id} | ({} if run_log.job is None else ids_of(run_log.job))
    for name, value in (ids or {}).items():
        event.setdefault(name, value)
    return event


def drop_ids(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Leave out ids that only programs need."""
    event.pop("ids", None)
    return event


def configure_logs(settings: Settings) -> None:
    """Log to stderr; replaces `sys.stderr` so that no write to it raises. Sends errors to Sentry, if that is set."""
    if not any(isinstance(handler, LibraryWarnings) for handler in logging.getLogger().handlers):
        logging.getLogger().addHandler(LibraryWarnings())
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
            *reporters(settings),
            add_ids if settings.log_format == "json" else drop_ids,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer() if settings.log_format == "json" else console,
        ],
    )


def reporters(settings: Settings) -> Sequence[Processor]:
    """Return the processor that sends failed runs and internal errors to Sentry, if `ROTA_SENTRY_DSN` is set."""
    if not settings.sentry_dsn:
        return ()
    from rota.app.sentry import SentryReporter  # imported here: an extra that few installations use

    return (SentryReporter(settings.sentry_dsn),)
