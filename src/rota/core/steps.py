"""Steps of durable tasks: their types, statuses and moves, what a suspended run waits for, and the errors of steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Required, TypedDict

from rota.core.errors import LogicError, WorkError
from rota.core.policy import Failure, FailureClass, FailureData

# `run_at` of a job that waits for something else than time
NO_DUE_TIME = datetime(2200, 1, 1, tzinfo=UTC)


class StepType(StrEnum):
    STEP = "step"  # a function whose result is recorded
    EFFECT = "effect"  # a function that changes a system outside; recorded before it is called
    SLEEP = "sleep"
    SIGNAL = "signal"
    APPROVAL = "approval"
    CHILD = "child"  # a job that the run enqueued


class OnNewVersion(StrEnum):
    """What becomes of a run with recorded steps when no live worker has the version of the code that began it."""

    CONTINUE = "continue"  # it goes on under the version that workers have
    RESTART = "restart"  # it begins again without recorded steps; parked if one of them had an effect outside
    PARK = "park"  # it waits for a worker with its version, or an operator


class StepStatus(StrEnum):
    IN_FLIGHT = "in_flight"  # an effect that is recorded and being tried
    WAITING = "waiting"  # for its next try, a due time, a signal, an approval or a child
    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed_out"  # what it waited for did not come in time
    NEEDS_RECONCILE = "needs_reconcile"  # an effect without an answer, whose reconcile function will be called
    INDETERMINATE = "indeterminate"  # an effect without an answer, which only a person can resolve


STEP_MOVES: frozenset[tuple[StepStatus | None, StepStatus]] = frozenset(  # None: the step is inserted
    {
        (None, StepStatus.DONE),
        (None, StepStatus.FAILED),
        (None, StepStatus.WAITING),
        (None, StepStatus.IN_FLIGHT),
        (StepStatus.WAITING, StepStatus.WAITING),  # its next try failed, too
        (StepStatus.WAITING, StepStatus.DONE),
        (StepStatus.WAITING, StepStatus.FAILED),
        (StepStatus.WAITING, StepStatus.TIMED_OUT),
        (StepStatus.WAITING, StepStatus.IN_FLIGHT),
        (StepStatus.FAILED, StepStatus.DONE),  # a later attempt calls the function again
        (StepStatus.FAILED, StepStatus.FAILED),
        (StepStatus.FAILED, StepStatus.WAITING),
        (StepStatus.FAILED, StepStatus.IN_FLIGHT),
        (StepStatus.IN_FLIGHT, StepStatus.DONE),
        (StepStatus.IN_FLIGHT, StepStatus.FAILED),
        (StepStatus.IN_FLIGHT, StepStatus.WAITING),
        (StepStatus.IN_FLIGHT, StepStatus.NEEDS_RECONCILE),
        (StepStatus.IN_FLIGHT, StepStatus.INDETERMINATE),
        (StepStatus.NEEDS_RECONCILE, StepStatus.NEEDS_RECONCILE),
        (StepStatus.NEEDS_RECONCILE, StepStatus.DONE),
        (StepStatus.NEEDS_RECONCILE, StepStatus.FAILED),
        (StepStatus.NEEDS_RECONCILE, StepStatus.IN_FLIGHT),
        (StepStatus.NEEDS_RECONCILE, StepStatus.INDETERMINATE),
        (StepStatus.INDETERMINATE, StepStatus.DONE),  # from here on only a person moves it
        (StepStatus.INDETERMINATE, StepStatus.FAILED),
        (StepStatus.INDETERMINATE, StepStatus.NEEDS_RECONCILE),
    }
)
ENDED = frozenset({StepStatus.DONE, StepStatus.FAILED, StepStatus.TIMED_OUT})
OUTCOME_UNKNOWN = frozenset({StepStatus.IN_FLIGHT, StepStatus.NEEDS_RECONCILE, StepStatus.INDETERMINATE})


WaitingData = TypedDict(
    "WaitingData",
    {
        "for": Required[str],  # the reason: sleep, retry, signal, approval or child
        "step": Required[str],
        "run_id": Required[str],
        "started_at": Required[str],
        "until": str,
        "topic": str,
        "key": str,
        "all": bool,  # the run has nothing to do before all steps that it waits for have ended
    },
    total=False,
)
"""What a suspended run waits for, as JSON data. `until`, `topic` and `key` are those of its first wait."""


@dataclass(frozen=True, slots=True)
class Suspension:
    """Why a run leaves its worker, and when it goes on at the latest."""

    waiting: WaitingData
    run_at: datetime
    steps: tuple[str, ...]  # the names of all steps that it waits for


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's decision."""

    approved: bool
    by: str
    comment: str | None = None


class Suspended(BaseException):
    """Ends the thread of a run that waits. No `except Exception` catches it; `finally` blocks run."""


class StepErrorData(FailureData):
    """The failure of a step as it is recorded."""

    failure_class: str
    final: bool
    module: str | None  # of the error's class


class StepFailed(WorkError):
    """A step failed. Where the class of its error is known here, it is raised as a subclass of both, so that
    `except ValueError` catches the error of a step in every attempt."""

    def __init__(self, step: str, failure: Failure) -> None:
        super().__init__(failure.message)
        self.step, self.failure, self.type = step, failure, failure.type

    def __str__(self) -> str:
        return self.message


class ChildFailed(StepFailed):
    """A child job failed, was canceled or was skipped."""

    def __init__(self, step: str, failure: Failure, job_id: str) -> None:
        super().__init__(step, failure)
        self.job_id = job_id


class StepMismatch(LogicError):
    """A replay met another step than recorded: the code of the task changed."""


def dump_step_failure(failure: Failure, error: BaseException | None) -> StepErrorData:
    """Return a failure as it is recorded with its step."""
    module = None if error is None else type(error).__module__
    return {**failure.dump(), "failure_class": failure.failure_class.value, "final": failure.final, "module": module}


def load_step_failure(data: Mapping[str, object]) -> Failure:
    """Restore a failure from `dump_step_failure`."""
    return Failure(
        FailureClass(str(data.get("failure_class", FailureClass.LOGIC))),
        str(data.get("type", "Error")),
        str(data.get("message", "")),
        None if data.get("traceback") is None else str(data["traceback"]),
        code=None if data.get("code") is None else str(data["code"]),
        final=bool(data.get("final", False)),
    )
