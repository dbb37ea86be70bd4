"""Failed runs and internal errors for Sentry, taken from the log lines about them (extra `sentry`).

No inputs, outcomes, local variables or request bodies are sent: the message of a failed run is that of its log line,
the type and first line of the error without secrets; an internal error has its stack without values.
"""

import sys
from collections.abc import MutableMapping
from typing import Any

from rota.core.errors import Invalid
from rota.core.redact import redacted
from rota.engine.run_end_log import ids_of
from rota.engine.runner import current_log
from rota.version import DISTRIBUTION, __version__

TAGS = ("run", "job", "schedule", "trace", "target", "kind", "status", "reason", "attempt", "worker")
FLUSH_SECONDS = 2.0  # that a process that exits waits for reports in flight


class SentryReporter:
    """A processor of structlog: reports lines of level error, and failed runs, and returns every line unchanged."""

    def __init__(self, dsn: str) -> None:
        try:
            import sentry_sdk
        except ImportError:
            raise Invalid("sentry_dsn", "…", f"needs `pip install '{DISTRIBUTION}[sentry]'`") from None
        from sentry_sdk.utils import BadDsn

        self.sdk = sentry_sdk
        try:
            sentry_sdk.init(
                dsn,
                release=f"rota@{__version__}",
                default_integrations=False,  # they hook into logging, subprocesses and HTTP clients of the program
                auto_enabling_integrations=False,
                send_default_pii=False,
                include_local_variables=False,
                include_source_context=False,
                max_breadcrumbs=0,
                max_request_body_size="never",
            )
        except BadDsn as error:
            raise Invalid("sentry_dsn", "…", f"is not a DSN of Sentry: {error}") from None

    def __call__(self, _logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        failed_run = event.get("event") == "run ended" and method == "warning"
        if failed_run or method in ("error", "exception", "critical"):
            self.report(event, failed_run)
        return event

    def report(self, event: MutableMapping[str, Any], failed_run: bool) -> None:
        """Send a line as an event of Sentry. Failed runs are grouped by target and type of error."""
        ids: dict[str, object] = dict(event.get("ids") or {})
        if not failed_run and (run_log := current_log.get()) is not None:
            ids = {"run": run_log.run_id} | ({} if run_log.job is None else ids_of(run_log.job)) | ids
        tags = {name: str(value) for name, value in {**ids, **event}.items() if name in TAGS and value is not None}
        error = str(redacted(event.get("error") or event.get("reason") or ""))
        with self.sdk.new_scope() as scope:
            scope.set_tags(tags)
            if failed_run:
                scope.fingerprint = ["run", str(event.get("target")), error.partition(":")[0]]
                self.sdk.capture_message(f"{event.get('target')} {event.get('status')}: {error}", "error")
                return
            if (exception := exception_of(event.get("exc_info"))) is not None:
                scope.set_extra("log", str(event.get("event")))
                self.sdk.capture_exception(exception)
            else:
                self.sdk.capture_message(": ".join(filter(None, [str(event.get("event")), error])), "error")


def exception_of(exc_info: object) -> BaseException | None:
    """Return the exception of a log line: `exc_info` is True, the exception or a tuple."""
    match exc_info:
        case BaseException():
            return exc_info
        case (_, BaseException() as exception, _):
            return exception
        case True:
            return sys.exc_info()[1]
        case _:
            return None


def flush() -> None:
    """Send the reports that are left, before the process exits. A no-op without Sentry."""
    sdk = sys.modules.get("sentry_sdk")
    if sdk is not None:
        sdk.flush(FLUSH_SECONDS)
