"""Spans for OpenTelemetry: fire → claim → run → graph, one trace from a slot to the calls of a model.

The `traceparent` of a job links them across the queue. A program enables them by setting up a tracer provider while it
is loaded; else OpenTelemetry is not imported, and `Engine.tracing` is None.
"""

import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from rota.core.model import Attempt, Fire, PlannedSchedule, Schedule
from rota.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider


def tracing_of_program() -> "Tracing | None":
    """Return the tracing of this program; None if it has no tracer provider."""
    tracer_provider = provider()
    return None if tracer_provider is None else Tracing(tracer_provider.get_tracer("rota", __version__))


def flush() -> None:
    """Export the spans that are left, before the process exits."""
    shutdown = getattr(provider(), "shutdown", None)  # of the SDK; the API has none
    if shutdown is not None:
        shutdown()


def provider() -> "TracerProvider | None":
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    tracer_provider: TracerProvider = api.get_tracer_provider()
    return None if isinstance(tracer_provider, api.ProxyTracerProvider) else tracer_provider


class Tracing:
    """Creates the spans of an engine."""

    def __init__(self, tracer: "Tracer") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.tracer, self.wire = tracer, TraceContextTextMapPropagator()
        self.firing: dict[str | None, Span] = {}

    def trace_fires(self, planned: Sequence[PlannedSchedule]) -> list[PlannedSchedule]:
        """Begin a span for each slot to fire; the returned plans pass its `traceparent` to the job."""
        self.firing = {}  # spans of slots that another process fired first are dropped
        return [
            PlannedSchedule(due, replace(plan, fires=tuple(self.begin_fire(due.schedule, fire) for fire in plan.fires)))
            for due, plan in planned
        ]

    def begin_fire(self, schedule: Schedule, fire: Fire) -> Fire:
        about = {"schedule_id": schedule.id, "slot": fire.slot.isoformat(), "target": schedule.target}
        span = self.begin(f"fire {schedule.name}", None, about)
        fire = replace(fire, trace=self.traceparent_of(span))
        self.firing[fire.trace] = span
        return fire

    def fired(self, fires: Sequence[Fire]) -> None:
        """End the spans of slots that became jobs."""
        for span in (self.firing.get(fire.trace) for fire in fires):
            if span is not None:
                span.end()

    async def run(self, attempt: Attempt, work: Callable[[], Awaitable[object]]) -> object:
        """Run the work in a span below that of the claim, which lasts as long as the job waited."""
        job = attempt.job
        about: dict[str, str | int] = {
            "job_id": job.id,
            "run_id": attempt.run_id,
            "attempt": attempt.number,
            "kind": job.kind,
        }
        claim = self.begin(f"claim {job.target}", job.traceparent, about, max(job.run_at, job.queued_at))
        claim.end(nanoseconds(attempt.started_at))
        with self.span(f"run {job.target}", self.traceparent_of(claim), about):
            return await work()

    @contextlib.contextmanager
    def span(self, name: str, parent: str | None, about: Mapping[str, str | int]) -> Iterator[None]:
        """Record a span; spans that begin inside are its children. Only the type of an error is recorded."""
        from opentelemetry.trace import StatusCode, use_span

        span = self.begin(name, parent, about)
        with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield
            except BaseException as error:
                span.set_status(StatusCode.ERROR, getattr(error, "reason", type(error).__name__))
                raise

    def begin(
        self, name: str, parent: str | None, about: Mapping[str, str | int], since: datetime | None = None
    ) -> "Span":
        context = self.wire.extract({} if parent is None else {"traceparent": parent})
        known = {f"rota.{key}": value for key, value in about.items()}
        return self.tracer.start_span(
            name, context, attributes=known, start_time=None if since is None else nanoseconds(since)
        )

    def traceparent_of(self, span: "Span | None" = None) -> str | None:
        """Return the `traceparent` of a span, by default of the current span; None without one."""
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self.wire.inject(carrier, None if span is None else set_span_in_context(span))
        return carrier.get("traceparent")


def nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1000
