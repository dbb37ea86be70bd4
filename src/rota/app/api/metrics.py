"""`/metrics` for Prometheus: counters of this process, gauges of the whole installation. No label names an org."""

from collections.abc import Iterator

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rota.core.clock import stopwatch, system_time
from rota.core.errors import Unavailable
from rota.db.paging import Record
from rota.engine.commands import Engine
from rota.engine.metrics import LATENESS_BUCKETS, Metrics
from rota.frame.http.auth import authenticate
from rota.frame.http.exposure import is_local
from rota.reports import installation

GAUGE_CACHE_SECONDS = 5.0

router = APIRouter(tags=["health"])


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Counters of this process and gauges of the installation. Open on loopback; elsewhere a key is required."""
    if not is_local(request):
        await authenticate(request)
    state = request.app.state
    engine: Engine = state.engine
    read_at, gauges = getattr(state, "gauges", (None, {}))
    if read_at is None or stopwatch() - read_at > GAUGE_CACHE_SECONDS:
        try:
            gauges = {**await state.db.read(installation.gauges, engine.clock.now()), "up": 1}
        except Unavailable:
            gauges = {"up": 0}
        state.gauges = (stopwatch(), gauges)
    offset = (engine.clock.now() - system_time()).total_seconds()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FixedMetrics([*counters(engine.metrics), *gauge_families(gauges, offset)]))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class FixedMetrics(Collector):
    """Collector of metrics that were read before."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        yield from self.families


def counters(metrics: Metrics) -> Iterator[Metric]:
    yield CounterMetricFamily("rota_fires", "slots fired by this process", metrics.fired)
    ended = CounterMetricFamily("rota_runs", "runs that ended in this process", labels=["kind", "status"])
    for (kind, status), count in list(metrics.runs.items()):
        ended.add_metric([kind, status], count)
    yield ended
    yield CounterMetricFamily("rota_refused_results", "results of runs whose lease was lost", metrics.refused)
    repairs = CounterMetricFamily("rota_repairs", "repairs by maintenance", labels=["what"])
    for what, count in list(metrics.repairs.items()):
        repairs.add_metric([what], count)
    yield repairs
    late = HistogramMetricFamily("rota_lateness_seconds", "delay from the due time of a slot to its first start")
    edges, total = [*(str(edge) for edge in LATENESS_BUCKETS), "+Inf"], 0
    buckets = []
    for edge, count in zip(edges, list(metrics.late), strict=True):
        total += count
        buckets.append((edge, total))
    late.add_metric([], buckets, metrics.late_sum)
    yield late
    if metrics.looked is not None:
        age = stopwatch() - metrics.looked
        yield GaugeMetricFamily(
            "rota_scheduler_heartbeat_age_seconds", "seconds since the last poll of this process's scheduler", age
        )


def gauge_families(gauges: Record, offset: float) -> Iterator[Metric]:
    yield GaugeMetricFamily("rota_database_up", "whether the database can be reached", gauges["up"])
    yield GaugeMetricFamily(
        "rota_database_time_offset_seconds", "offset of the database's clock from this machine's", offset
    )
    if not gauges["up"]:
        return
    jobs = GaugeMetricFamily("rota_queue_jobs", "jobs in the queue by state", labels=["state"])
    for state, count in gauges["jobs"].items():
        jobs.add_metric([state], count)
    yield jobs
    yield GaugeMetricFamily("rota_queue_oldest_ready_seconds", "how long the oldest ready job waits", gauges["oldest"])
    yield GaugeMetricFamily(
        "rota_schedule_overdue_seconds", "how overdue the most overdue schedule is", gauges["overdue"]
    )
    yield GaugeMetricFamily("rota_leases", "jobs leased by workers", gauges["jobs"]["running"])
    yield GaugeMetricFamily("rota_workers_alive", "workers with a valid lease", gauges["workers"])
