"""Spans for OpenTelemetry, where it is installed. A graph's run is a span of the trace that the ledger names; what is
instrumented inside the graph hangs below it."""

import contextlib
from collections.abc import Iterator

try:
    from opentelemetry import trace
except ImportError:  # pip install 'rota[otel]'
    trace = None  # type: ignore[assignment]


@contextlib.contextmanager
def span(name: str, trace_id: str, **attributes: str | int) -> Iterator[None]:
    if trace is None:
        yield
        return
    caller = trace.SpanContext(
        int(trace_id, 16), int(trace_id[16:], 16), True, trace.TraceFlags(trace.TraceFlags.SAMPLED)
    )
    context = trace.set_span_in_context(trace.NonRecordingSpan(caller))
    with trace.get_tracer("rota").start_as_current_span(name, context, attributes=attributes):
        yield
