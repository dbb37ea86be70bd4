"""Metrics as Prometheus reads them. No label names an org.

Counters and histograms have the label `worker`: the id of a worker, `servers` for what all servers counted together,
`ended` for what workers counted that have ended. Every server exposes all of them, and a worker's own endpoint the
same numbers of that worker under the same label, so that `max by (worker, …)` counts each once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rota.core.clock import stopwatch
from rota.db.paging import Record
from rota.db.replica import ReplicaState
from rota.engine.instruments import INSTRUMENTS, Instrument
from rota.engine.metrics import Metrics, Series, Values

CONTENT_TYPE = CONTENT_TYPE_LATEST
WORKER = "worker"
QUEUES_EXPOSED = 100

# gauges: name, meaning, labels
GAUGES = {
    "rota_database_up": "whether the database can be reached",
    "rota_database_time_offset_seconds": "offset of the database's clock from this machine's",
    "rota_scheduler_heartbeat_age_seconds": "seconds since the last poll of this process's scheduler",
    "rota_queue_jobs": "jobs in the queue by state",
    "rota_queue_oldest_ready_seconds": "how long the oldest ready job waits",
    "rota_queue_wanted_workers": "workers that the due jobs of a queue need",
    "rota_wanted_workers": "workers that the due jobs of all queues need, if each serves all of them",
    "rota_schedule_overdue_seconds": "how overdue the most overdue schedule is",
    "rota_alarms_open": "alarm events that are not resolved, by state",
    "rota_reports_replica_up": "whether reports are read from the replica",
    "rota_reports_replica_lag_seconds": "how far the replica for reports is behind",
    "rota_leases": "jobs leased by workers",
    "rota_workers_alive": "workers with a valid lease",
    "rota_worker_running": "jobs leased by a worker",
    "rota_worker_concurrency": "how many runs a worker executes at once",
    "rota_worker_heartbeat_age_seconds": "seconds since a worker renewed its lease",
}


class FixedMetrics(Collector):
    """Collector of metrics that were read before."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        yield from self.families


def exposition(families: Iterable[Metric]) -> bytes:
    """Return metrics in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FixedMetrics(list(families)))
    return generate_latest(registry)


def of_process(metrics: Metrics) -> Iterator[Metric]:
    """Yield what only this process knows: the age of its scheduler's last poll."""
    if metrics.polled_at is not None:
        age = stopwatch() - metrics.polled_at
        yield gauge("rota_scheduler_heartbeat_age_seconds", {(metrics.source,): age}, (WORKER,))


def counted(by_source: Mapping[str, Values]) -> Iterator[Metric]:
    """Yield counters and histograms, by source."""
    for instrument in INSTRUMENTS.values():
        rows = [
            (source, series, numbers)
            for source, values in by_source.items()
            for series, numbers in values.items()
            if series[0] == instrument.name
        ]
        yield (histogram if instrument.buckets else counter)(instrument, rows)


def counter(instrument: Instrument, rows: Iterable[tuple[str, Series, Sequence[float]]]) -> Metric:
    family = CounterMetricFamily(instrument.name, instrument.meaning, labels=[WORKER, *instrument.labels])
    for source, series, numbers in rows:
        family.add_metric([source, *series[1:]], numbers[0])
    return family


def histogram(instrument: Instrument, rows: Iterable[tuple[str, Series, Sequence[float]]]) -> Metric:
    family = HistogramMetricFamily(instrument.name, instrument.meaning, labels=[WORKER, *instrument.labels])
    edges = [*(str(edge) for edge in instrument.buckets), "+Inf"]
    for source, series, numbers in rows:
        total, buckets = 0.0, []
        for edge, count in zip(edges, numbers[:-1], strict=True):
            total += count
            buckets.append((edge, total))
        family.add_metric([source, *series[1:]], buckets, numbers[-1])
    return family


def of_database(up: bool, offset: float | None) -> Iterator[Metric]:
    """Yield how this process sees the database."""
    yield gauge("rota_database_up", {(): float(up)})
    if offset is not None:
        yield gauge("rota_database_time_offset_seconds", {(): offset})


def of_installation(gauges: Record) -> Iterator[Metric]:
    """Yield the gauges that `installation.gauges` has read."""
    yield gauge("rota_queue_jobs", {(state,): count for state, count in gauges["jobs"].items()}, ("state",))
    yield gauge("rota_queue_oldest_ready_seconds", {(): gauges["oldest"]})
    yield gauge("rota_wanted_workers", {(): gauges["wanted"]["wanted_workers"]})
    yield gauge("rota_schedule_overdue_seconds", {(): gauges["overdue"]})
    yield gauge("rota_alarms_open", {(state,): count for state, count in gauges["alarms"].items()}, ("state",))
    yield gauge("rota_leases", {(): gauges["jobs"]["running"]})
    yield gauge("rota_workers_alive", {(): len(gauges["workers"])})
    for name, field in (
        ("rota_worker_running", "running"),
        ("rota_worker_concurrency", "concurrency"),
        ("rota_worker_heartbeat_age_seconds", "heartbeat_age"),
    ):
        yield gauge(name, {(worker["id"],): worker[field] for worker in gauges["workers"]}, (WORKER,))


def of_replica(state: ReplicaState) -> Iterator[Metric]:
    """Yield how this process sees the replica for reports."""
    yield gauge("rota_reports_replica_up", {(): float(state.problem is None)})
    if state.lag_seconds is not None:
        yield gauge("rota_reports_replica_lag_seconds", {(): state.lag_seconds})


def of_queues(gauges: Record) -> Iterator[Metric]:
    """Yield the gauges of single queues, whose names belong to orgs."""
    queues = gauges["wanted"]["queues"][:QUEUES_EXPOSED]
    yield gauge("rota_queue_wanted_workers", {(row["queue"],): row["wanted_workers"] for row in queues}, ("queue",))


def gauge(name: str, values: Mapping[tuple[str, ...], float], labels: Sequence[str] = ()) -> Metric:
    family = GaugeMetricFamily(name, GAUGES[name], labels=list(labels))
    for label_values, value in values.items():
        family.add_metric(list(label_values), value)
    return family
