"""`/metrics` for Prometheus: counters of this process, gauges of the whole installation. No label names an org."""

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rota.core.clock import stopwatch, system_time
from rota.core.errors import Unavailable
from rota.engine import reports as engine_reports
from rota.engine.commands import Engine
from rota.engine.metrics import LATENESS_BUCKETS, Metrics
from rota.frame.http.auth import authenticate
from rota.frame.http.exposure import is_local

FRESH = 5.0  # seconds that gauges are good for, however often they are asked

router = APIRouter(tags=["health"])


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """What this process counted and how the installation stands. Open to this machine; others need a key."""
    if not is_local(request):
        await authenticate(request)
    state = request.app.state
    engine: Engine = state.engine
    read_at, gauges = getattr(state, "gauges", (None, {}))
    if read_at is None or stopwatch() - read_at > FRESH:
        try:
            gauges = {**await state.db.read(engine_reports.gauges, engine.clock.now()), "up": 1}
        except Unavailable:
            gauges = {"up": 0}
        state.gauges = (stopwatch(), gauges)
    offset = (engine.clock.now() - system_time()).total_seconds()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Told([*counters(engine.metrics), *gauges_of(gauges, offset)]))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class Told(Collector):
    def __init__(self, told: list[Metric]) -> None:
        self.told = told

    def collect(self) -> Iterator[Metric]:
        yield from self.told


def counters(metrics: Metrics) -> Iterator[Metric]:
    yield CounterMetricFamily("rota_fires", "slots that were fired here", metrics.fired)
    ended = CounterMetricFamily("rota_runs", "runs that ended here", labels=["kind", "status"])
    for (kind, status), count in list(metrics.runs.items()):
        ended.add_metric([kind, status], count)
    yield ended
    yield CounterMetricFamily("rota_refused_results", "results of runs whose lease was lost", metrics.refused)
    repairs = CounterMetricFamily("rota_repairs", "what the reconciler mended", labels=["what"])
    for what, count in list(metrics.repairs.items()):
        repairs.add_metric([what], count)
    yield repairs
    late = HistogramMetricFamily("rota_lateness_seconds", "from when a slot was due to its first start")
    edges, total = [*(str(edge) for edge in LATENESS_BUCKETS), "+Inf"], 0
    buckets = []
    for edge, count in zip(edges, list(metrics.late), strict=True):
        total += count
        buckets.append((edge, total))
    late.add_metric([], buckets, metrics.late_sum)
    yield late
    if metrics.looked is not None:
        age = stopwatch() - metrics.looked
        yield GaugeMetricFamily("rota_scheduler_heartbeat_age_seconds", "since the scheduler here last looked", age)


def gauges_of(found: dict[str, Any], offset: float) -> Iterator[Metric]:
    yield GaugeMetricFamily("rota_database_up", "whether the database can be reached", found["up"])
    yield GaugeMetricFamily("rota_database_time_offset_seconds", "the database's clock against this machine's", offset)
    if not found["up"]:
        return
    jobs = GaugeMetricFamily("rota_queue_jobs", "jobs in the queue by state", labels=["state"])
    for state, count in found["jobs"].items():
        jobs.add_metric([state], count)
    yield jobs
    yield GaugeMetricFamily("rota_queue_oldest_ready_seconds", "how long the oldest ready job waits", found["oldest"])
    yield GaugeMetricFamily("rota_schedule_overdue_seconds", "how overdue the first schedule is", found["overdue"])
    yield GaugeMetricFamily("rota_leases", "jobs that workers hold", found["jobs"]["running"])
    yield GaugeMetricFamily("rota_workers_alive", "workers whose lease holds", found["workers"])
