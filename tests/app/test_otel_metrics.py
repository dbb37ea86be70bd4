"""Metrics for OpenTelemetry: the same numbers through the real SDK, and through OTLP to a real HTTP receiver."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint

from rota.db.migrate import migrate
from rota.engine.instruments import INSTRUMENTS, LATENESS, RUNS
from rota.engine.metrics import Metrics
from rota.engine.otel_metrics import recorder
from tests.acceptance.cluster import Process
from tests.app.command_line import environment

APP = """
from rota import Rota
app = Rota()

@app.task
def quick(): ...

app.schedule("often", quick, every="1s")
"""


def test_the_sdk_gets_every_measurement_with_its_labels() -> None:
    reader, metrics = InMemoryMetricReader(), Metrics()
    metrics.mirror = recorder(MeterProvider([reader]))
    for instrument in INSTRUMENTS.values():
        labels = [f"{label} 1" for label in instrument.labels]
        if instrument.buckets:
            metrics.observe(instrument, [0.2, 5.0], *labels)
        else:
            metrics.add(instrument, *labels, amount=3)
    data = reader.get_metrics_data()
    assert data is not None
    received = {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert set(received) == set(INSTRUMENTS)
    for name, instrument in INSTRUMENTS.items():
        (point,) = received[name].data.data_points
        assert dict(point.attributes or {}) == {label: f"{label} 1" for label in instrument.labels}
        if instrument.buckets:
            assert isinstance(point, HistogramDataPoint)
            assert tuple(point.explicit_bounds) == instrument.buckets
            assert list(point.bucket_counts) == metrics.values[name, *point.attributes.values()][:-1]  # type: ignore[union-attr]
            assert point.sum == 5.2
        else:
            assert isinstance(point, NumberDataPoint)
            assert point.value == 3


def test_a_worker_exports_to_an_otlp_endpoint(tmp_path: Path) -> None:
    """A real worker process, a real HTTP receiver, and only OpenTelemetry's own variables."""
    bodies: list[bytes] = []
    arrived = threading.Semaphore(0)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/metrics":
                bodies.append(body)
                arrived.release()
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "app.py").write_text(APP)
    url = f"sqlite:///{tmp_path / 'rota.db'}"
    migrate(url)
    env = environment() | {
        "ROTA_DATABASE_URL": url,
        "ROTA_DATA_DIR": str(tmp_path / "data"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
    }
    command = [sys.executable, "-m", "rota.app.cli", "worker", str(tmp_path / "app.py")]
    worker = Process(command, env, tmp_path / "log")
    try:
        while True:
            assert arrived.acquire(timeout=60), worker.log_text()
            received = ExportMetricsServiceRequest.FromString(bodies[-1])
            by_name = {
                metric.name: metric
                for resource in received.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            }
            if RUNS.name in by_name and LATENESS.name in by_name:
                break
    finally:
        worker.kill()
        server.shutdown()
    attributes = {each.key: each.value.string_value for each in received.resource_metrics[0].resource.attributes}
    assert attributes["service.name"] == "rota"
    (point,) = by_name[RUNS.name].sum.data_points
    assert {each.key: each.value.string_value for each in point.attributes} == {"kind": "task", "status": "success"}
    assert (point.as_int or point.as_double) >= 1
    (lateness,) = by_name[LATENESS.name].histogram.data_points
    assert lateness.count >= 1
    assert tuple(lateness.explicit_bounds) == LATENESS.buckets
