"""Exporters for an OTLP endpoint that OpenTelemetry's own variables name (extra `otel`).

Set up after the program was loaded, and only for what the program has not set up itself.
"""

import os

from rota.core.errors import Invalid
from rota.engine import otel_metrics, tracing
from rota.version import DISTRIBUTION, __version__

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
METRICS_ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


def set_up_exporters() -> None:
    """Export metrics and spans to the endpoints of the environment, if there are any. The interval is that of
    OTEL_METRIC_EXPORT_INTERVAL. Raises Invalid if the extra is not installed."""
    both = os.environ.get(ENDPOINT) and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
    if (both or os.environ.get(METRICS_ENDPOINT)) and os.environ.get("OTEL_METRICS_EXPORTER", "otlp") != "none":
        export_metrics()
    if (both or os.environ.get(TRACES_ENDPOINT)) and os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "none":
        export_spans()


def export_metrics() -> None:
    if otel_metrics.provider() is not None:
        return
    try:
        from opentelemetry import metrics
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
    except ImportError:
        raise missing_extra() from None
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    metrics.set_meter_provider(MeterProvider([reader], resource=Resource.create(service())))


def export_spans() -> None:
    if tracing.provider() is not None:
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise missing_extra() from None
    provider = TracerProvider(resource=Resource.create(service()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def service() -> dict[str, str | int]:
    """Return the attributes of this process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win."""
    name = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "rota"}
    return {**name, "service.version": __version__, "process.pid": os.getpid()}


def missing_extra() -> Invalid:
    return Invalid(
        "otel_exporter_otlp_endpoint", os.environ.get(ENDPOINT, ""), f"needs `pip install '{DISTRIBUTION}[otel]'`"
    )
