"""What the real SDK of OpenTelemetry heard."""

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Heard:
    """What the exporter of a provider heard."""

    def __init__(self) -> None:
        self.exporter, self.provider = InMemorySpanExporter(), TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda one: one.start_time or 0)

    def called(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def chain(self, name: str) -> list[str]:
        """The names from a span up to its root; the last is the trace id, or the id of a parent that nobody saw."""
        by_id = {span.context.span_id: span for span in self.spans if span.context}
        one: ReadableSpan = self.called(name)
        names = [one.name]
        while one.parent is not None and one.parent.span_id in by_id:
            parent = by_id[one.parent.span_id]
            assert one.context
            assert parent.context
            assert one.context.trace_id == parent.context.trace_id
            one = parent
            names.append(one.name)
        return names if one.parent is None else [*names, f"{one.parent.span_id:016x}"]


def trace_id(span: ReadableSpan) -> str:
    assert span.context
    return f"{span.context.trace_id:032x}"
