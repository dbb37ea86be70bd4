"""Errors of steps: the same class in every attempt; and the limits of waits."""

import sys
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from rota.core.errors import Invalid, LogicError
from rota.core.policy import Failure, FailureClass, classify
from rota.core.steps import StepFailed, StepMismatch, StepType, load_step_failure
from rota.core.timing.triggers import parse_interval
from rota.engine.records import StepRow
from rota.engine.step_calls import LimitExceeded

LONGEST_WAIT = timedelta(days=366)


class WaitTimedOut(TimeoutError):
    """What a run waited for did not come in time. A retry would only wait for the same again."""

    @property
    def failure(self) -> Failure:
        return Failure(FailureClass.TIMEOUT, "TimeoutError", str(self))


def due_time(now: datetime, limit: timedelta | None) -> datetime | None:
    """Return until when a wait lasts; None without a limit."""
    return None if limit is None else now + limit


def parse_wait(value: object, field: str) -> timedelta:
    """Parse the duration of a wait. Raises LogicError unless it is longer than 0 and at most 366 days."""
    try:
        span = value if isinstance(value, timedelta) else parse_interval(value, field)
    except Invalid as error:
        raise LogicError(error.message) from error
    if not timedelta(0) < span <= LONGEST_WAIT:
        raise LogicError(f"{field}: {value!r} must be longer than 0 and at most {LONGEST_WAIT.days} days")
    return span


def failure_of(error: BaseException) -> Failure:
    failure = getattr(error, "failure", None)
    if isinstance(failure, Failure):
        return failure
    if isinstance(error, LimitExceeded):
        return Failure(FailureClass.TIMEOUT, "TimeoutError", str(error))
    return classify(error)


def raised(step: str, error: Exception) -> StepFailed:
    """Return the error of a step as every attempt raises it."""
    return step_failed(step, failure_of(error), TimeoutError if isinstance(error, LimitExceeded) else type(error))


def raised_again(step: str, data: Any) -> StepFailed:
    """Return the recorded error of a step, of the same class as before."""
    failure = load_step_failure(data)
    known = getattr(sys.modules.get(str(data.get("module"))), failure.type, None)
    return step_failed(step, failure, known)


def step_failed(step: str, failure: Failure, known: object) -> StepFailed:
    """Return a StepFailed that is also of the class `known`, if that is a class of errors. The constructor of that
    class is not called: it may need other arguments."""
    if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, StepFailed):
        with suppress(TypeError):  # the layouts of the two classes do not fit
            combined: Any = type(failure.type, (StepFailed, known), {})
            error: StepFailed = combined.__new__(combined, failure.message)
            error.args, error.message = (failure.message,), failure.message
            error.step, error.failure, error.type = step, failure, failure.type
            return error
    return StepFailed(step, failure)


def mismatch(run_id: str, name: str, kind: StepType, recorded: StepRow) -> StepMismatch:
    """Return the error of a replay that differs from what is recorded."""
    here = f"{kind} {name!r}"
    return StepMismatch(
        f"the code calls {here} where {recorded.type} {recorded.name!r} is recorded: it has changed since this job "
        f"began. Restore the code, go on with `rota run retry {run_id} --from STEP`, or enqueue the task again"
    )
