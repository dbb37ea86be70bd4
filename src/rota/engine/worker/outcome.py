"""How an attempt ended, as a result to store: success, failure with what follows it, skip, crash, cancel."""

from dataclasses import replace
from datetime import datetime, timedelta

from rota.core.model import Attempt, AttemptResult, Job, RunInfo
from rota.core.policy import (
    QUARANTINE_CRASHES,
    RECONCILIATION,
    TRANSIENT_RETRY,
    Fail,
    Failure,
    FailureClass,
    Park,
    Retry,
    RetryLater,
    after_failure,
    classify,
)
from rota.core.states import Move, Status
from rota.engine.engine_settings import EngineSettings
from rota.engine.runner import Busy, Canceled, ChildCrashed, SetAside, Skipped
from rota.engine.worker import active_run
from rota.engine.worker.active_run import ActiveRun

NO_RETRY = Retry(0)


class LostBeforeStart(Exception):
    """The lease was lost before the start was recorded: another worker may have the job."""


def classify_outcome(
    run: ActiveRun, error: BaseException | None, outcome: object, now: datetime, settings: EngineSettings
) -> AttemptResult | None:
    """The result of an attempt; None where the job is stored elsewhere already. An outcome that was returned wins over
    a cancel request that came too late."""
    attempt, info = run.attempt, run.ctx.info
    result = AttemptResult(
        attempt.job,
        Status.SUCCESS,
        info.reason if error is None else None,
        now,
        attempt.run_id,
        attempt.number,
        attempt.started_at if run.started else None,
        None,
        outcome,
        info=info,
    )
    if error is None:
        return result
    if isinstance(error, LostBeforeStart | SetAside):
        return None
    if isinstance(error, Skipped):
        details = None if error.failure is None else error.failure.dump()
        return replace(result, status=Status.SKIPPED, reason=error.reason, started_at=None, error=details)
    if isinstance(error, Canceled):
        return replace(result, status=Status.CANCELED, reason=error.by)
    suspension = run.ctx.suspension
    match run.stopped_for:
        case None | "shutdown" if suspension is not None:  # what its code raised on the way out does not count
            reason = suspension.waiting["for"]
            suspended = replace(result, status=Status.PAUSED, reason=reason, move=Move.SUSPEND)
            return replace(suspended, run_at=suspension.run_at, suspension=suspension)
        case None if isinstance(error, Busy):
            run_at = attempt.job.terms.not_before(now + error.delay)
            return replace(result, status=Status.PENDING, started_at=None, move=Move.BACK_OFF, run_at=run_at)
        case None if isinstance(error, ChildCrashed):
            return crashed_attempt(result, str(error))
        case None:
            failure = getattr(error, "failure", None) or classify(error, settings.capture_locals)
            failed = failed_attempt(attempt, info, failure, now, settings.transient_retry)
            return replace(failed, outcome=getattr(error, "outcome", None))
        case "timeout":
            limit = timeout_of(attempt.job, info, settings)
            text = f"still running after {limit.total_seconds():g} s" if limit else "it took too long"
            failure = Failure(FailureClass.TIMEOUT, "Timeout", text)
            return failed_attempt(attempt, info, failure, now, settings.transient_retry)
        case active_run.NO_HEARTBEAT:
            seconds = 0.0 if info.heartbeat is None else info.heartbeat.total_seconds()
            text = f"no heartbeat for {seconds:g} s: its code did not call ctx.heartbeat() in time"
            failure = Failure(FailureClass.TIMEOUT, "HeartbeatTimeout", text, code="heartbeat_timeout")
            return failed_attempt(attempt, info, failure, now, settings.transient_retry)
        case "lost":
            return replace(result, status=Status.LOST, move=Move.HAND_BACK, run_at=now) if run.started else None
        case "shutdown":
            return replace(result, status=Status.CANCELED, reason="shutdown", move=Move.HAND_BACK, run_at=now)
        case canceled_by:
            return replace(result, status=Status.CANCELED, reason=canceled_by)


def internal_failure(run: ActiveRun, error: Exception, now: datetime, settings: EngineSettings) -> AttemptResult:
    """The result of an attempt whose outcome could not be classified because of an error of Rota's own."""
    failure = replace(classify(error), failure_class=FailureClass.INTERNAL)
    return failed_attempt(run.attempt, run.ctx.info, failure, now, settings.transient_retry)


def crashed_attempt(result: AttemptResult, message: str) -> AttemptResult:
    """The child process of an isolated run died. A crash counts; QUARANTINE_CRASHES of them are final."""
    error = {"code": "crash", "type": "ChildLost", "message": message, "traceback": None}
    if result.job.crashes + 1 >= QUARANTINE_CRASHES:
        park = Move.PARK if result.job.parks_on_failure else None
        return replace(result, status=Status.FAILED, reason="quarantined", error=error, move=park)
    return replace(result, status=Status.CRASHED, error=error, move=Move.RESCUE, run_at=result.finished_at, counts=True)


def failed_attempt(
    attempt: Attempt, info: RunInfo, failure: Failure, now: datetime, transient_retry: Retry = TRANSIENT_RETRY
) -> AttemptResult:
    """Return the result of a failed attempt: retry, park or give up; `transient_retry` as in `after_failure`."""
    job, failure_class = attempt.job, failure.failure_class
    result = AttemptResult(
        job,
        Status.FAILED,
        failure_class.value,
        now,
        attempt.run_id,
        attempt.number,
        attempt.started_at,
        error=failure.dump(),
        counts=True,
        info=info,
    )
    retry = NO_RETRY if info.delegates else job.terms.retry or info.retry
    match after_failure(failure, retry, job.tries + 1, transient_retry, job.id):
        case RetryLater(delay):
            again = replace(result, move=Move.BACK_OFF, run_at=job.terms.not_before(now + delay))
            if failure_class is FailureClass.INDETERMINATE:
                return replace(again, status=Status.PAUSED, reason=RECONCILIATION, counts=False)
            return replace(again, status=Status.PAUSED) if failure_class is FailureClass.TRANSIENT else again
        case Park(reason):
            return replace(result, status=Status.PAUSED, reason=reason, move=Move.PARK)
        case Fail():
            return replace(result, move=Move.PARK) if job.parks_on_failure else result


def timeout_of(job: Job, info: RunInfo, settings: EngineSettings) -> timedelta | None:
    """The time limit of a run: of its schedule, its target or, unless its runner excludes that, the installation."""
    return job.terms.timeout or info.timeout or (settings.default_timeout if info.default_timeout else None)
