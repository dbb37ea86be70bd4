"""How an effect is tried and reconciled: the same for mutations of workflows and effects of tasks.

UNKNOWN_IS_NOT_FAILED: an effect without an answer is not repeated. Its reconcile function is asked, with backoff;
without one, or if that does not know either, a person decides.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import structlog

from rota.core import parse
from rota.core.effects import RECONCILE, Answer, Applied, EffectStatus, NotApplied, Unsure, surely_failed
from rota.core.errors import Invalid
from rota.core.policy import Failure, FailureClass, FailureData, WorkFailed

log = structlog.get_logger("rota.effects")


class Settle(Protocol):
    """Records the status of an effect after it was tried or reconciled."""

    async def __call__(
        self,
        status: EffectStatus,
        *,
        result: object = None,
        error: FailureData | None = None,
        reconcile_attempts: int = 0,
    ) -> None: ...


class EffectNotApplied(WorkFailed):
    """The reconcile function answered that an effect did not happen."""


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect that is recorded as in flight."""

    name: str
    invoke: Callable[[], Awaitable[object]]
    ask: Callable[[], Awaitable[Answer]] | None  # its reconcile function
    settle: Settle
    failure_of: Callable[[BaseException], Failure]
    limit: timedelta | None
    reconcile_limit: timedelta

    async def carry_out(self) -> object:
        """Try the effect once and record its status; returns its result. Raises the error of an effect that surely did
        not happen, else WorkFailed as `reconcile` does."""
        try:
            async with asyncio.timeout(None if self.limit is None else self.limit.total_seconds()):
                result = storable(await self.invoke())
        except Exception as error:
            if surely_failed(error):
                await self.settle(EffectStatus.FAILED, error=self.failure_of(error).dump())
                raise
            return await self.reconcile(0, error)
        await self.settle(EffectStatus.APPLIED, result=result)
        return result

    async def reconcile(self, attempts: int, error: Exception | None = None) -> object:
        """Ask for the outcome of an effect that gave no answer; returns its result if it was applied. Raises
        EffectNotApplied if it was not, WorkFailed if that is unknown."""
        why = "its worker died" if error is None else f"{type(error).__name__}: {error}"
        failure = Failure(FailureClass.INDETERMINATE, "Unanswered", f"{self.name} gave no answer ({why})")
        if self.ask is None:
            await self.settle(EffectStatus.INDETERMINATE, error=failure.dump())
            raise WorkFailed(failure)
        try:
            async with asyncio.timeout(self.reconcile_limit.total_seconds()):
                answer = await self.ask()
        except Exception as problem:
            log.warning("an effect could not be reconciled", effect=self.name, error=repr(problem))
            answer = Unsure()
        match answer:
            case Applied(result):
                result = storable(result)
                await self.settle(EffectStatus.APPLIED, result=result)
                return result
            case NotApplied():
                known = (
                    self.failure_of(error) if error is not None else Failure(FailureClass.TRANSIENT, "NotApplied", why)
                )
                await self.settle(EffectStatus.FAILED, error=known.dump(), reconcile_attempts=attempts)
                raise EffectNotApplied(known)
            case Unsure():
                last = attempts >= RECONCILE.max_retries
                status = EffectStatus.INDETERMINATE if last else EffectStatus.NEEDS_RECONCILE
                await self.settle(status, error=failure.dump(), reconcile_attempts=attempts)
                again = None if last else RECONCILE.delay(attempts + 1)
                raise WorkFailed(Failure(failure.failure_class, failure.type, failure.message, reconcile_after=again))


def storable(result: object) -> object:
    """Return the result of an effect, or None with a warning if it cannot be stored: the effect was applied."""
    try:
        return parse.payload(result, "result")
    except Invalid as error:
        log.warning("the result of an effect cannot be stored", error=error.message)
        return None
