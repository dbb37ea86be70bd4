"""What the real SDK of OpenTelemetry recorder."""

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class SpanRecorder:
    """What the exporter of a provider recorder."""

    def __init__(self) -> None:
        self.exporter, self.provider = InMemorySpanExporter(), TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def called(self, name: str) -> ReadableSpan:
        (match,) = [span for span in self.spans if span.name == name]
        return match

    def chain(self, name: str) -> list[str]:
        """The names from a span up to its root; the last is the trace id, or the id of an unrecorded parent."""
        by_id = {span.context.span_id: span for span in self.spans if span.context}
        called: ReadableSpan = self.called(name)
        names = [called.name]
        while called.parent is not None and called.parent.span_id in by_id:
            parent = by_id[called.parent.span_id]
            assert called.context
            assert parent.context
            assert called.context.trace_id == parent.context.trace_id
            called = parent
            names.append(called.name)
        return names if called.parent is None else [*names, f"{called.parent.span_id:016x}"]


def trace_id(span: ReadableSpan) -> str:
    assert span.context
    return f"{span.context.trace_id:032x}"
