"""What is measured: every counter and histogram of a process, with its labels, unit and meaning.

The Prometheus exposition, the OpenTelemetry instruments and the snapshots of workers derive from this list; a test
compares docs/metrics.md with it. No label names an org, a schedule or a target: the number of series is bounded.
"""

from dataclasses import dataclass

# seconds
LATENESS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
CPU_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3600.0)
MEMORY_BUCKETS = tuple(float(mebibytes << 20) for mebibytes in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16_384))


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: hashing its fields would take 1 µs per run
class Instrument:
    """A counter or, with `buckets`, a histogram. `name` is without the suffix `_total`."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """How many numbers a series has: one, or those of the buckets, of what is above them, and the sum."""
        return len(self.buckets) + 2 if self.buckets else 1


FIRES = Instrument("rota_fires", "slots that became jobs")
SLOTS = Instrument("rota_slots", "slots by what the scheduler decided", ("verdict",))
RUNS = Instrument("rota_runs", "runs recorded in the ledger", ("kind", "status"))
REFUSED = Instrument("rota_refused_results", "results of runs whose lease was lost")
CLAIMS = Instrument("rota_claims", "jobs leased to workers", ("source",))
LEASE_LOSSES = Instrument("rota_lease_losses", "worker registrations that lost their lease")
RESCUES = Instrument("rota_rescues", "jobs rescued from workers whose lease expired")
HEARTBEAT_FAILURES = Instrument("rota_heartbeat_failures", "heartbeats that could not renew the lease")
OUTAGES = Instrument("rota_database_outages", "times that the process lost the database")
REPAIRS = Instrument("rota_repairs", "rows repaired by maintenance", ("what",))
REPORTS_FALLBACKS = Instrument(
    "rota_reports_fallbacks", "reads of reports that went to the primary because the replica could not be used"
)
ALARMS = Instrument("rota_alarms_fired", "alarm events that fired", ("rule",))
LATENESS = Instrument(
    "rota_lateness_seconds",
    "delay from the due time of a slot to its first start",
    unit="seconds",
    buckets=LATENESS_BUCKETS,
)
DURATION = Instrument(
    "rota_run_duration_seconds", "from start to end of a run", ("kind",), "seconds", buckets=DURATION_BUCKETS
)
CPU = Instrument(
    "rota_run_cpu_seconds", "CPU time of a run, user and system", ("kind",), "seconds", buckets=CPU_BUCKETS
)
MEMORY = Instrument(
    "rota_run_peak_memory_bytes",
    "peak resident memory of a run in its own process",
    ("kind",),
    "bytes",
    buckets=MEMORY_BUCKETS,
)

INSTRUMENTS = {
    instrument.name: instrument
    for instrument in (
        *(FIRES, SLOTS, RUNS, REFUSED, CLAIMS, LEASE_LOSSES, RESCUES, HEARTBEAT_FAILURES, OUTAGES, REPAIRS),
        *(REPORTS_FALLBACKS, ALARMS, LATENESS, DURATION, CPU, MEMORY),
    )
}

FIRED = "fired"  # the verdict of SLOTS for slots that became jobs; the others are those of `core/states.py`
FROM_QUEUE, WITH_FIRE = "queue", "fire"  # the sources of CLAIMS
