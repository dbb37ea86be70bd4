"""What agents report about their runs: log lines and results, recorded in batches of one transaction.

The report of a claim that has been lost changes nothing. A report about a job that waits for reconciliation answers it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rota.core.errors import Conflict, LeaseLost, NotFound, RotaError
from rota.core.model import Attempt, AttemptResult, RunInfo
from rota.core.policy import RECONCILIATION, Failure, FailureClass, Retry
from rota.core.redact import redacted, redacted_text
from rota.core.states import State, Status
from rota.db.dialect import Tx, notify
from rota.db.paging import Record
from rota.engine import finishing, jobs, runs
from rota.engine.records import RunRow
from rota.engine.runner import LINE_LIMIT, LOG_LIMIT, LogLine, storable
from rota.engine.worker.outcome import failed_attempt
from rota.kinds.hosts.store import hosts, sessions
from rota.kinds.hosts.store.records import ClaimedJob, HostRow, ServerRow

LINE_COST = 12  # characters that a log line counts beside its text
UNREPORTED = (Status.CRASHED, Status.PAUSED)  # statuses of runs that ended without a report

LogLines = Sequence[Sequence[str]]  # stream and text of each line


@dataclass(frozen=True, slots=True)
class Report:
    """Log lines of a claim, and its result if the run ended."""

    host: HostRow
    job_id: str
    fence: int
    lines: LogLines
    result: Record | None


def record(tx: Tx, reports: Sequence[Report], now: datetime, transient_retry: Retry) -> list[bool | RotaError]:
    """Record reports about different jobs. Returns for each whether its result was recorded before, or the error:
    KeyReplaced, NotFound, Conflict if another result of the claim is recorded, LeaseLost if the claim is over."""
    keys = sessions.current_keys(tx, (report.host for report in reports))
    claims = adopt_reconciled(tx, reports, sessions.lock_jobs(tx, [report.job_id for report in reports]), now)
    servers = hosts.servers_by_id(tx, {claimed.job.target for claimed in claims.values()})
    answers: dict[str, bool | RotaError] = {}
    ended: list[AttemptResult] = []
    lines: dict[str, LogLines] = {}
    unclaimed: list[Report] = []
    for report in reports:
        claimed = claim_of(report, claims)
        if keys.get(report.host.id) != report.host.key_version:
            answers[report.job_id] = hosts.KeyReplaced()
        elif claimed is None:
            unclaimed.append(report)
        else:
            run_id = claimed.run_id if claimed.state == State.RUNNING else claimed.job.last_run_id
            assert run_id is not None  # it has started
            lines[run_id] = report.lines
            answers[report.job_id] = False
            if report.result is not None:
                ended.append(result_of(claimed, report.result, servers.get(claimed.job.target), now, transient_retry))
    answers.update(answers_without_claim(tx, unclaimed, claims))
    if ended:
        finishing.finish(tx, ended, None, now)
        if any(result.final and result.job.trigger.startswith("batch:") for result in ended):
            notify(tx, "ready")  # wakes the worker that runs the batch
    write_lines(tx, lines, now)
    return [answers[report.job_id] for report in reports]


def adopt_reconciled(
    tx: Tx, reports: Sequence[Report], claims: dict[str, ClaimedJob], now: datetime
) -> dict[str, ClaimedJob]:
    """Lease the jobs again that wait for reconciliation and whose results are reported; returns the claims."""
    adopted = [
        report.job_id
        for report in reports
        if report.result is not None
        and (claimed := claim_of(report, claims)) is not None
        and claimed.parked_reason == RECONCILIATION
    ]
    for job_id in adopted:
        jobs.adopt(tx, job_id, claims[job_id].job.fence, None, now)
    return claims | sessions.lock_jobs(tx, adopted) if adopted else claims


def claim_of(report: Report, claims: Mapping[str, ClaimedJob]) -> ClaimedJob | None:
    """Return the claim that a report is about, if it is not over."""
    claimed = claims.get(report.job_id)
    if claimed is None or claimed.job.fence != report.fence or not is_of_host(claimed, report.host):
        return None
    return claimed if claimed.state == State.RUNNING or claimed.parked_reason == RECONCILIATION else None


def is_of_host(claimed: ClaimedJob, host: HostRow) -> bool:
    return claimed.job.org_id == host.org_id and claimed.job.route in hosts.routes_of(host.id)


def result_of(
    claimed: ClaimedJob, result: Record, server: ServerRow | None, now: datetime, transient_retry: Retry
) -> AttemptResult:
    """Return the result of an attempt, timed by the server's clock: the agent sends how long ago it ended."""
    job, run_id, started_at = claimed.job, claimed.run_id, claimed.started_at
    assert run_id is not None  # the job is running
    assert started_at is not None
    finished = max(started_at, now - timedelta(milliseconds=result["ended_ms_ago"]))
    began = max(job.queued_at, finished - timedelta(milliseconds=result["duration_ms"]))
    info = RunInfo(name=server.name if server is not None and server.org_id == job.org_id else None)
    outcome = redacted(result["outcome"])
    base = AttemptResult(
        job, Status.SUCCESS, None, finished, run_id, job.attempt, began, outcome=outcome, info=info,
        worker=claimed.lease_owner,
    )  # fmt: skip
    if result["status"] == "success":
        return base
    if result["status"] == "canceled" and claimed.cancel_requested_at is not None:
        return replace(base, status=Status.CANCELED, reason=claimed.cancel_reason)
    failed = failed_attempt(Attempt(job, run_id, job.attempt, began), info, failure_of(result), now, transient_retry)
    return replace(failed, finished_at=finished, outcome=outcome, worker=claimed.lease_owner)


def failure_of(result: Record) -> Failure:
    error = result["error"] or {}
    code = error.get("code")
    failure_class = FailureClass(code) if code in set(FailureClass) else FailureClass.LOGIC
    message = redacted_text(error.get("message") or "failed without a message")
    traceback = error.get("traceback") and redacted_text(error["traceback"])
    return Failure(failure_class, error.get("type") or "HostJobFailed", message, traceback)


def answers_without_claim(
    tx: Tx, reports: Sequence[Report], claims: Mapping[str, ClaimedJob]
) -> dict[str, bool | RotaError]:
    """Return by job True for a result that is recorded already, else the error of the report."""
    attempts: dict[str, list[RunRow]] = {}
    for run in runs.of_jobs(tx, [report.job_id for report in reports if report.result is not None]) if reports else ():
        attempts.setdefault(run.job_id, []).append(run)
    return {
        report.job_id: answer_without_claim(report, attempts.get(report.job_id, []), claims.get(report.job_id))
        for report in reports
    }


def answer_without_claim(report: Report, attempts: Sequence[RunRow], claimed: ClaimedJob | None) -> bool | RotaError:
    """Return True if the result is recorded already, else NotFound, Conflict for another result, or LeaseLost."""
    job_id, host, routes = report.job_id, report.host, hosts.routes_of(report.host.id)
    lost = LeaseLost(f"job {job_id}: this claim is over; the job has another claim, or has ended")
    if report.result is None:
        return lost
    own = [run for run in attempts if run.org_id == host.org_id and run.route in routes]
    if not own and (claimed is None or not is_of_host(claimed, host)):
        return NotFound(f"job {job_id!r} of this host not found")
    reported = [run for run in own if run.fence == report.fence and run.status not in UNREPORTED]
    if not reported:
        return lost
    last = reported[-1]
    same = (last.status == Status.SUCCESS) == (report.result["status"] == "success")
    if not same or last.outcome != redacted(report.result["outcome"]):
        return Conflict(f"job {job_id}: a different result of this claim is already recorded")
    return True


def write_lines(tx: Tx, lines_of_runs: Mapping[str, LogLines], now: datetime) -> None:
    """Append lines to the logs of runs, to each up to LOG_LIMIT."""
    written = {run_id: lines for run_id, lines in lines_of_runs.items() if lines}
    sizes = runs.log_sizes(tx, written, LINE_COST) if written else {}
    kept: list[LogLine] = []
    for run_id, lines in written.items():
        room = LOG_LIMIT - sizes.get(run_id, 0)
        for stream, text in lines if room > 0 else ():
            room -= min(len(text), LINE_LIMIT) + LINE_COST
            if room <= 0:
                kept.append((run_id, now, "system", "… the rest is left out …"))
                break
            kept.append((run_id, now, stream, storable(redacted_text(text)[:LINE_LIMIT])))
    runs.write_logs(tx, kept)
