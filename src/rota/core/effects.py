"""Effects on systems outside: recorded before they are tried, and not repeated while their outcome is unknown."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from rota.core.errors import LogicError, PermissionDenied
from rota.core.policy import Backoff, Retry

E = TypeVar("E", bound=Exception)
RECONCILE = Retry(5, 10_000, Backoff.EXPONENTIAL, 600_000)  # attempts to reconcile an effect


class EffectStatus(StrEnum):
    """The status of an effect: a mutation of a workflow, or an effect of a task."""

    IN_FLIGHT = "in_flight"  # recorded before it is tried
    APPLIED = "applied"
    FAILED = "failed"
    NEEDS_RECONCILE = "needs_reconcile"  # no answer; its reconcile function will be called
    INDETERMINATE = "indeterminate"  # no answer, and only an operator can resolve it


EFFECT_MOVES: frozenset[tuple[EffectStatus, EffectStatus]] = frozenset(
    {
        (EffectStatus.IN_FLIGHT, EffectStatus.APPLIED),
        (EffectStatus.IN_FLIGHT, EffectStatus.FAILED),
        (EffectStatus.IN_FLIGHT, EffectStatus.NEEDS_RECONCILE),
        (EffectStatus.IN_FLIGHT, EffectStatus.INDETERMINATE),
        (EffectStatus.NEEDS_RECONCILE, EffectStatus.NEEDS_RECONCILE),
        (EffectStatus.NEEDS_RECONCILE, EffectStatus.APPLIED),
        (EffectStatus.NEEDS_RECONCILE, EffectStatus.FAILED),
        (EffectStatus.NEEDS_RECONCILE, EffectStatus.INDETERMINATE),
        (EffectStatus.INDETERMINATE, EffectStatus.APPLIED),  # from here on only an operator moves it
        (EffectStatus.INDETERMINATE, EffectStatus.FAILED),
        (EffectStatus.INDETERMINATE, EffectStatus.NEEDS_RECONCILE),
    }
)
OPEN_EFFECTS = (EffectStatus.IN_FLIGHT, EffectStatus.NEEDS_RECONCILE, EffectStatus.INDETERMINATE)


@dataclass(frozen=True, slots=True)
class Applied:
    """The effect happened."""

    result: object = None


@dataclass(frozen=True, slots=True)
class NotApplied:
    """The effect did not happen, and will not."""


@dataclass(frozen=True, slots=True)
class Unsure:
    """The outcome is not known yet: reconcile again later."""


Answer = Applied | NotApplied | Unsure


def checked_answer(name: str, answer: object) -> Answer:
    """Return the answer of a reconcile function. Raises LogicError for another value."""
    if not isinstance(answer, Applied | NotApplied | Unsure):
        raise LogicError(f"{name}: its reconcile function must return Applied(…), NotApplied() or Unsure()")
    return answer


def not_applied(error: E) -> E:
    """Mark an error: the effect did not happen."""
    error.applied = False  # type: ignore[attr-defined]
    return error


def surely_failed(error: BaseException) -> bool:
    """Return whether an error means that the effect did not happen. Without an answer the outcome is unknown."""
    return isinstance(error, LogicError | PermissionDenied) or getattr(error, "applied", None) is False
