"""Log lines about runs that ended: a line each, failures as warnings with the error's type and first line.

`ids` are further ids of a line, which the JSON format shows beside the others and the text format leaves out.
"""

from collections.abc import Mapping, Sequence

import structlog

from rota.core.model import AttemptResult, Job
from rota.core.redact import redacted
from rota.core.states import Status

BATCH_LINES = 20  # larger batches log only the runs that failed
ERROR_CHARACTERS = 200
FAILURES = (Status.FAILED, Status.CRASHED)

log = structlog.get_logger("rota.worker")


def log_ended(batch: Sequence[AttemptResult]) -> None:
    """Log runs after they are recorded."""
    failures = [run for run in batch if run.status in FAILURES]
    if len(batch) > BATCH_LINES:
        log.info("runs ended", count=len(batch), failed=len(failures))
        for run in failures[:BATCH_LINES]:
            log.warning("run ended", **facts_of(run))
        return
    for run in batch:
        (log.warning if run.status in FAILURES else log.info)("run ended", **facts_of(run))


def facts_of(run: AttemptResult) -> dict[str, object]:
    name = run.info.name if run.info is not None else None
    facts: dict[str, object] = {"target": name or run.job.target, "run": run.run_id, "status": run.status.value}
    if run.reason:
        facts["reason"] = run.reason
    if run.error is not None:
        facts["error"] = error_line(run.error)
    if run.started_at is not None:
        facts["ms"] = round((run.finished_at - run.started_at).total_seconds() * 1000)
    if run.job.slot is not None:
        facts["slot"] = f"{run.job.slot:%H:%M:%S}"
        if run.started_at is not None and run.number == 1:
            facts["late_ms"] = round((run.started_at - run.job.run_at).total_seconds() * 1000)
    facts["ids"] = ids_of(run.job) | {"kind": run.job.kind, "attempt": run.number}
    return facts


def ids_of(job: Job) -> dict[str, object]:
    """Return the ids of a job, its schedule and its trace, for log lines."""
    schedule = {} if job.schedule_id is None else {"schedule": job.schedule_id}
    return {"job": job.id, **schedule, "trace": job.traceparent[3:35]}


def error_line(error: Mapping[str, object]) -> str:
    """Return the type and first line of an error, redacted, without control characters."""
    lines = str(redacted(error.get("message") or "")).strip().splitlines()
    prefix = f"{error.get('type') or error.get('code')}: "
    text = (prefix + (lines[0] if lines else "").removeprefix(prefix)).rstrip(": ")  # a KeyError has it already
    return "".join(sign if sign.isprintable() else "?" for sign in text[:ERROR_CHARACTERS])
