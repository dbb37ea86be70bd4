"""The instruments of `instruments.py` for OpenTelemetry, beside the spans of `tracing.py`.

A program enables them by setting up a meter provider while it is loaded, or `rota.app.otel` does so for an OTLP
endpoint; else OpenTelemetry is not imported. OpenTelemetry adds `_total` and units to names itself: `rota_runs` here is
`rota_runs_total` at Prometheus.
"""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rota.engine.instruments import INSTRUMENTS, Instrument
from rota.engine.metrics import Metrics
from rota.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

UNITS = {"seconds": "s", "bytes": "By", "": "1"}


def mirror_to_program(metrics: Metrics) -> None:
    """Send each measurement to the meter provider of this program too; a no-op without one."""
    meter_provider = provider()
    if meter_provider is not None:
        metrics.mirror = recorder(meter_provider)


def recorder(meter_provider: "MeterProvider") -> Callable[[Instrument, float, Sequence[str]], None]:
    """Return the function that records a measurement at OpenTelemetry."""
    meter = meter_provider.get_meter("rota", __version__)
    record: dict[str, Callable[[float, dict[str, str]], None]] = {}
    for name, instrument in INSTRUMENTS.items():
        unit = UNITS[instrument.unit]
        if instrument.buckets:
            record[name] = meter.create_histogram(
                name, unit, instrument.meaning, explicit_bucket_boundaries_advisory=list(instrument.buckets)
            ).record
        else:
            record[name] = meter.create_counter(name, unit, instrument.meaning).add

    def measure(instrument: Instrument, value: float, labels: Sequence[str]) -> None:
        record[instrument.name](value, dict(zip(instrument.labels, labels, strict=True)))

    return measure


def flush() -> None:
    """Export the measurements that are left, before the process exits."""
    shutdown = getattr(provider(), "shutdown", None)  # of the SDK; the API has none
    if shutdown is not None:
        shutdown()


def provider() -> "MeterProvider | None":
    api = sys.modules.get("opentelemetry.metrics")
    if api is None:
        return None
    meter_provider: MeterProvider = api.get_meter_provider()
    is_default = type(meter_provider).__name__ == "_ProxyMeterProvider"
    return None if is_default else meter_provider
