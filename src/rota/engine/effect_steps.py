"""Effects of tasks: steps that are recorded before they are tried."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from rota.core import parse
from rota.core.effects import Answer, Applied, EffectStatus, checked_answer
from rota.core.errors import Invalid, LogicError
from rota.core.policy import Failure, FailureClass, FailureData, WorkFailed
from rota.core.steps import OUTCOME_UNKNOWN, StepStatus, StepType, dump_step_failure
from rota.engine import steps
from rota.engine.durable import Durable, StepCall
from rota.engine.effects import Effect, EffectNotApplied
from rota.engine.records import StepRow
from rota.engine.step_calls import call_with_limit
from rota.engine.step_errors import failure_of, raised, raised_again, step_failed
from rota.engine.step_results import as_recorded

KEY_PARAMETER = "idempotency_key"


def effect(
    durable: Durable,
    name: str,
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    reconcile: Callable[..., object] | None,
    limit: timedelta | None,
) -> Any:
    """Try an effect at most once while its outcome is unknown; returns its recorded result."""

    async def work(call: StepCall) -> object:
        return await EffectStep(durable, call, function, args, kwargs, reconcile, limit).run()

    return durable.invoke(name, "effect", StepType.EFFECT, work)


class ResultUnusable(Exception):
    """An effect was applied and its result cannot be recorded: reconciling, or a person, gives another one."""


class EffectStep:
    """A call of an effect in this attempt."""

    def __init__(
        self,
        durable: Durable,
        call: StepCall,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        reconcile: Callable[..., object] | None,
        limit: timedelta | None,
    ) -> None:
        self.durable, self.call, self.function, self.reconcile, self.limit = durable, call, function, reconcile, limit
        self.args, self.kwargs = args, dict(kwargs)
        self.key = f"{durable.job.id}:{call.name}"
        self.row: StepRow | None = call.row

    async def run(self) -> object:
        row, durable = self.row, self.durable
        if row is not None and row.status is StepStatus.DONE:
            return row.result
        if row is not None and row.status is StepStatus.FAILED and not durable.is_repeated(row):
            raise raised_again(self.call.name, row.error)
        try:
            if row is not None and row.status in OUTCOME_UNKNOWN:
                try:
                    return await self.ask_again(row)
                except EffectNotApplied:
                    pass  # its worker died before it happened
            await self.begin()
            return await self.as_effect().carry_out()
        except WorkFailed as error:
            if error.failure.failure_class is FailureClass.INDETERMINATE:
                raise durable.fatal(error) from error
            raise step_failed(self.call.name, error.failure, None) from error
        except Exception as error:
            if durable.failure is not None:
                raise
            raise raised(self.call.name, error) from error

    async def ask_again(self, row: StepRow) -> object:
        """Reconcile an effect that an earlier attempt left without an answer. Raises WorkFailed unless it was applied,
        EffectNotApplied if it was not."""
        if row.status is StepStatus.INDETERMINATE:
            text = f"{self.call.name} gave no answer; a person must decide: rota run resolve"
            raise WorkFailed(Failure(FailureClass.INDETERMINATE, "Unanswered", text))
        attempts = row.attempts if row.status is StepStatus.NEEDS_RECONCILE else 0
        return await self.as_effect().reconcile(attempts + 1)

    async def begin(self) -> None:
        """Record that the effect is in flight, and the start of the run, before it is tried. Raises LogicError if its
        parameters are not JSON."""
        durable, now = self.durable, self.durable.engine.clock.now()
        row = durable.new_row(self.call, StepStatus.IN_FLIGHT, now, params=self.params())
        ctx = durable.ctx
        await durable.write(steps.begin_effect, durable.job, ctx.run_id, ctx.attempt, ctx.started_at, row)
        self.row = row
        durable.remember(row)

    def params(self) -> object:
        """Return the parameters of the effect by name, for its reconcile function."""
        try:
            bound = inspect.signature(self.function).bind_partial(*self.args, **self.kwargs).arguments
            return parse.payload(dict(bound), "params")
        except (Invalid, TypeError, ValueError) as error:
            raise self.durable.fatal(
                LogicError(f"effect {self.call.name!r}: its parameters cannot be recorded: {error}")
            ) from error

    def as_effect(self) -> Effect:
        return Effect(
            self.call.name,
            self.invoke,
            None if self.reconcile is None else self.ask,
            self.settle,
            failure_of,
            None,  # `invoke` has the limit
            self.durable.engine.settings.reconcile_limit,
        )

    async def invoke(self) -> object:
        kwargs = dict(self.kwargs)
        if KEY_PARAMETER in inspect.signature(self.function).parameters:
            kwargs[KEY_PARAMETER] = self.key
        function = partial(self.function, *self.args, **kwargs)
        result = await self.called(function, None if self.limit is None else self.limit.total_seconds())
        return self.recordable(result)

    async def ask(self) -> Answer:
        assert self.reconcile is not None
        assert self.row is not None
        answer = checked_answer(self.call.name, await self.called(partial(self.reconcile, self.key, self.row.params)))
        return Applied(self.recordable(answer.result)) if isinstance(answer, Applied) else answer

    def recordable(self, result: object) -> object:
        """Return the result of the effect as it is recorded. Raises ResultUnusable if it is not JSON or too large."""
        try:
            return as_recorded(result)
        except ValueError as error:
            raise ResultUnusable(f"the result of effect {self.call.name!r} {error}") from error

    async def called(self, function: Callable[[], object], seconds: float | None = None) -> object:
        return await call_with_limit(function, self.call.name, seconds, self.call.run_in_thread)

    async def settle(
        self,
        status: EffectStatus,
        *,
        result: object = None,
        error: FailureData | None = None,
        reconcile_attempts: int = 0,
    ) -> None:
        """Record the status of the effect after it was tried or reconciled."""
        assert self.row is not None
        stays = status in (EffectStatus.NEEDS_RECONCILE, EffectStatus.INDETERMINATE)
        self.row = replace(
            self.row,
            status=StepStatus.DONE if status is EffectStatus.APPLIED else StepStatus(status.value),
            result=result,
            error=None if error is None else self.error_data(error),
            attempts=reconcile_attempts,
            run_id=self.durable.ctx.run_id,
            finished_at=None if stays else self.durable.engine.clock.now(),
        )
        await self.durable.record(self.row)

    def error_data(self, error: FailureData) -> object:
        code = error["code"]
        known = code in set(FailureClass)
        failure = Failure(
            FailureClass(code) if known else FailureClass.LOGIC, error["type"], error["message"], error["traceback"]
        )
        return dump_step_failure(failure, None)
