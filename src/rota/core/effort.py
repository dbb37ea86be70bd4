"""Upper bound for the computing of one request. Pure: the web layer sets the budget, slot searches spend it.

Code without a budget (scheduler, maintenance, command line) is not limited.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rota.core.errors import TooMuchEffort

REQUEST_STEPS = 50_000  # steps of slot searches that one request may take, a few microseconds each


class Budget:
    """Remaining steps; shared by all threads that work for one request."""

    def __init__(self, steps: int) -> None:
        self.steps = self.left = steps


current_budget: ContextVar[Budget | None] = ContextVar("rota_effort_budget", default=None)


@contextmanager
def unlimited() -> Iterator[None]:
    """Remove the limit, for code that must not fail any more because its effect is stored."""
    token = current_budget.set(None)
    try:
        yield
    finally:
        current_budget.reset(token)


@contextmanager
def limited(steps: int = REQUEST_STEPS) -> Iterator[Budget]:
    """Limit the searches in this context to `steps` steps."""
    token = current_budget.set(budget := Budget(steps))
    try:
        yield budget
    finally:
        current_budget.reset(token)


def spend(steps: int = 1) -> None:
    """Count steps of a search. Raises TooMuchEffort when the request's budget is used up."""
    budget = current_budget.get()
    if budget is None:
        return
    budget.left -= steps
    if budget.left < 0:
        raise TooMuchEffort(
            "timing",
            f"{budget.steps} steps",
            "were not enough to compute the slots that this request asks for: they "
            "are too many or too far apart; ask for a shorter time or fewer schedules, or choose another window",
        )
