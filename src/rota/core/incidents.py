"""Incident pages of the operations handbook, which messages name: `incidents/NAME` is docs/incidents/NAME.md.

Names are stable: logs, alerts and tickets keep them."""

NO_WORKER = "incidents/no-worker"
WORKER_DEAD = "incidents/worker-declared-dead"
SLOTS_LATE = "incidents/slots-are-late"
SLOTS_MISSED = "incidents/slots-were-missed"
QUEUE_WAITS = "incidents/jobs-wait"
RUNS_FAIL = "incidents/runs-fail"
DATABASE_AWAY = "incidents/database-out-of-reach"
DISK_FULL = "incidents/disk-full"
SCHEMA_MISMATCH = "incidents/schema-mismatch"
PROCESS_STALLED = "incidents/process-stalled"
CLOCK_WRONG = "incidents/clock-differs"
SCHEDULE_BROKEN = "incidents/schedule-broken"
NEEDS_ATTENTION = "incidents/needs-attention"
OUTCOME_UNKNOWN = "incidents/outcome-unknown"

PAGES_OF_PROBLEMS = {  # codes of /health/ready
    "database_unreachable": DATABASE_AWAY,
    "database_not_writable": DISK_FULL,
    "schema_mismatch": SCHEMA_MISMATCH,
    "no_worker": NO_WORKER,
    "scheduler_stalled": PROCESS_STALLED,
    "worker_stalled": PROCESS_STALLED,
}
PAGES_OF_CHECKS = {  # checks of `rota doctor`
    "database": DATABASE_AWAY,
    "migrations": SCHEMA_MISMATCH,
    "clock": CLOCK_WRONG,
    "workers": NO_WORKER,
    "leases": WORKER_DEAD,
    "orphans": WORKER_DEAD,
    "serial keys": QUEUE_WAITS,
    "unplanned": SLOTS_LATE,
    "overdue": SLOTS_LATE,
    "broken": SCHEDULE_BROKEN,
    "producers": SLOTS_LATE,
    "consumers": QUEUE_WAITS,
    "wake-ups": SLOTS_LATE,
}
PAGES_OF_ALARM_RULES = {
    "late": SLOTS_LATE,
    "overran": RUNS_FAIL,
    "too_short": RUNS_FAIL,
    "not_succeeded_since": RUNS_FAIL,
    "failed_in_a_row": RUNS_FAIL,
    "missed": SLOTS_MISSED,
    "skipped": SLOTS_MISSED,
    "paused": RUNS_FAIL,
    "queue_age": QUEUE_WAITS,
    "no_worker": NO_WORKER,
    "host_offline": QUEUE_WAITS,
    "disk_low": DISK_FULL,
    "clock_skew": CLOCK_WRONG,
}
PAGES_OF_PARKED_REASONS = {
    "reconciliation": OUTCOME_UNKNOWN,
    "quarantined": WORKER_DEAD,
    "unroutable": QUEUE_WAITS,
    "version": QUEUE_WAITS,
}


def parked_page(reason: str | None) -> str:
    """Return the page about a job that is parked for this reason."""
    return PAGES_OF_PARKED_REASONS.get(reason or "", NEEDS_ATTENTION)


def with_page(sentence: str, page: str | None) -> str:
    """Return a sentence with the page that helps, if there is one."""
    return sentence if page is None else f"{sentence}; see {page}"
