"""Durable runs: steps are recorded, a later attempt replays them, and a run that waits leaves its worker.

A run is replayed from the top after a crash, a failure or a wait; a recorded step returns its recorded result without a
call of its function. All state of this class is touched on the event loop only.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from rota.core import parse
from rota.core.errors import LeaseLost, LogicError
from rota.core.policy import Retry, RetryLater, after_failure
from rota.core.steps import (
    NO_DUE_TIME,
    StepStatus,
    StepType,
    Suspended,
    Suspension,
    WaitingData,
    dump_step_failure,
)
from rota.db.retry import retry_until_available
from rota.engine import steps
from rota.engine.records import StepRow
from rota.engine.step_calls import (
    Caller,
    RunInThread,
    block,
    call_with_limit,
    current_step,
    on_this_loop,
)
from rota.engine.step_errors import failure_of, mismatch, parse_wait, raised, raised_again
from rota.engine.step_results import as_recorded

if TYPE_CHECKING:
    from rota.engine.runner import RunContext

E = TypeVar("E", bound=Exception)
NO_RETRY = Retry(0)
SHORT_WAIT = timedelta(seconds=2)  # a shorter wait stays on its worker
SUSPEND_AFTER_SECONDS = 0.25  # that a run with concurrent branches has no step in flight

Work = Callable[["StepCall"], Coroutine[Any, Any, object]]


@dataclass(slots=True)
class Fan:
    """The children of one `ctx.map` in this attempt."""

    not_called: int  # items that wait for a place


@dataclass(slots=True)
class StepCall:
    """A call of a step in this attempt."""

    name: str
    type: StepType
    seq: int
    run_in_thread: RunInThread
    blocking: bool = False  # a thread waits for it
    direct: bool = False  # called by the task's function itself, not by a branch beside it
    row: StepRow | None = None  # as it is recorded
    fan: Fan | None = None  # the `ctx.map` that it belongs to


@dataclass(slots=True)
class Wait:
    """A step that a run waits for."""

    row: StepRow
    reason: str
    ended: "asyncio.Future[None]"
    call: StepCall


class Durable:
    """The steps of one run, in this attempt."""

    def __init__(self, ctx: "RunContext", caller: Caller) -> None:
        self.ctx, self.engine, self.job, self.caller = ctx, ctx.engine, ctx.job, caller
        self.recorded: dict[str, StepRow] | None = {} if ctx.job.fresh else None
        self.called: dict[str, StepCall] = {}
        self.in_flight = 0
        self.waits: dict[str, Wait] = {}
        self.failure: Exception | None = None  # ends the run, also if its code catches it
        self._loading = asyncio.Lock()
        self._activity = 0  # counts what happens, to see whether a run is idle
        self._names: dict[str, int] = {}
        self._branches: set[asyncio.Future[object]] = set()  # that threads wait for
        self._started: set[asyncio.Future[object]] = set()  # steps that run beside the code

    # calls

    def invoke(self, name: str | None, default: str, kind: StepType, work: Work) -> Any:
        """Call a step: returns an awaitable on the event loop, blocks in a thread. Without a name it gets one from
        `default` and its number."""
        if on_this_loop(self.caller.loop):
            return self.execute(self.begin(name, default, kind, self.caller.run_in_thread), work)
        outer, thread = current_step.get(), threading.get_ident()

        async def run(run_in_thread: RunInThread) -> object:
            if self.caller.thread_id is None:
                self.caller.thread_id = thread
            current_step.set(outer)
            call = self.begin(name, default, kind, run_in_thread)
            call.blocking, call.direct = True, not self.caller.is_async and thread == self.caller.thread_id
            return await self.execute(call, work)

        return block(self.caller.loop, self.ctx.canceled.is_set, run)

    def begin(self, name: str | None, default: str, kind: StepType, run_in_thread: RunInThread) -> StepCall:
        """Number a call. Raises LogicError for a name that was used before, or a call inside a step."""
        if self.failure is not None:
            raise self.failure
        outer = current_step.get()
        if outer is not None:
            raise self.fatal(LogicError(f"step {name or default!r} is called inside step {outer!r}: steps cannot nest"))
        name = self.next_name(default) if name is None else parse.label(name, "step")
        if name in self.called:
            raise self.fatal(
                LogicError(
                    f'step {name!r} is called twice in this run; give each its own name, such as f"{name}-{{i}}"'
                )
            )
        call = self.called[name] = StepCall(name, kind, len(self.called) + 1, run_in_thread)
        self._activity += 1
        return call

    def next_name(self, default: str) -> str:
        number = self._names[default] = self._names.get(default, 0) + 1
        return default if number == 1 else f"{default}-{number}"

    async def execute(self, call: StepCall, work: Work) -> object:
        """Replay a step, or carry it out."""
        if not call.blocking:
            call.direct = self.caller.is_async and asyncio.current_task() is self.caller.task
        with self.busy():
            await self.replay(call)
            return await work(call)

    def start(self, name: str | None, default: str, kind: StepType, work: Work) -> "asyncio.Future[Any]":
        """Begin a step beside the code that calls it; a thread waits until it is done."""
        loop = self.caller.loop
        if on_this_loop(loop):
            task = loop.create_task(self.execute(self.begin(name, default, kind, self.caller.run_in_thread), work))
            self._started.add(task)
            return task
        result = self.invoke(name, default, kind, work)
        done = loop.create_future()
        loop.call_soon_threadsafe(done.set_result, result)
        return done

    async def finish(self) -> None:
        """Wait for steps that were started and not awaited. Raises the error that ends the run, if there is one."""
        if self._started:
            await asyncio.gather(*self._started)
        if self.failure is not None:
            raise self.failure

    def go_on(self, work: Callable[[bool, bool], Coroutine[Any, Any, object]]) -> Any:
        """Go on with a step that was started: returns an awaitable on the event loop, blocks in a thread. `work` gets
        whether the task's function itself calls it, and whether a thread waits."""
        if on_this_loop(self.caller.loop):
            return work(self.caller.is_async and asyncio.current_task() is self.caller.task, False)
        direct = not self.caller.is_async and threading.get_ident() == self.caller.thread_id
        return block(self.caller.loop, self.ctx.canceled.is_set, lambda _: work(direct, True))

    def run_beside(self, run: Callable[[], Coroutine[Any, Any, object]]) -> Any:
        """Run several steps as branches: returns an awaitable on the event loop, blocks in a thread."""
        if on_this_loop(self.caller.loop):
            return run()
        return block(self.caller.loop, self.ctx.canceled.is_set, lambda _: self.as_blocking(run))

    async def as_blocking(self, run: Callable[[], Coroutine[Any, Any, object]]) -> object:
        """Run branches for a thread that waits for them: it gets Suspended when the run is suspended."""
        branches = asyncio.ensure_future(run())
        self._branches.add(branches)
        try:
            return await branches
        except asyncio.CancelledError:
            if self.ctx.suspension is not None:
                raise Suspended from None
            raise
        finally:
            self._branches.discard(branches)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count a step as in flight."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            self._activity += 1
            self.suspend_when_idle()

    async def replay(self, call: StepCall) -> None:
        """Look up how a step is recorded. Raises StepMismatch if another one is recorded in its place."""
        if self.recorded is None:
            async with self._loading:
                if self.recorded is None:
                    rows = await retry_until_available(lambda: self.engine.db.read(steps.of_job, self.job.id))
                    self.recorded = {row.name: row for row in rows}
                    self.ctx.info.recorded_steps = bool(rows)
        call.row = row = self.recorded.get(call.name)
        if row is not None and row.type is not call.type:
            raise self.fatal(mismatch(self.ctx.run_id, call.name, call.type, row))
        if row is None and call.direct and self.in_flight == 1 and not self.waits:
            for other in self.recorded.values():
                if other.seq <= call.seq and other.name not in self.called:
                    raise self.fatal(mismatch(self.ctx.run_id, call.name, call.type, other))

    def fatal(self, error: E) -> E:
        """End the run with this error, also if its code catches it."""
        self.failure = self.failure or error
        return error

    def new_row(self, call: StepCall, status: StepStatus, now: datetime, **columns: Any) -> StepRow:
        return StepRow(
            self.job.id, call.name, self.job.org_id, call.seq, call.type, status, 0, now, self.ctx.run_id, **columns
        )

    async def record(self, row: StepRow) -> None:
        """Record a step. Raises LeaseLost if this worker no longer owns the job: the run has to stop."""
        recorder = self.engine.step_recorder
        if not await retry_until_available(lambda: recorder.add((self.job.fence, row))):
            raise self.lease_lost()
        self.remember(row)

    def remember(self, row: StepRow) -> None:
        """Keep a step as it is recorded."""
        assert self.recorded is not None
        self.recorded[row.name] = row
        self.ctx.info.recorded_steps = True

    def lease_lost(self) -> LeaseLost:
        error = LeaseLost(f"job {self.job.id}: this worker no longer owns its lease; another one goes on with it")
        self.fatal(error)
        return error

    async def write(self, step: Callable[..., Any], *args: object) -> Any:
        """Run a transaction about this job. Raises LeaseLost as `record` does."""
        try:
            return await retry_until_available(lambda: self.engine.db.tx(step, *args))
        except LeaseLost:
            raise self.lease_lost() from None

    # steps

    def step(
        self,
        name: str,
        function: Callable[[], object],
        retry: Retry | None,
        timeout: timedelta | None,
    ) -> Any:
        """Call a function once and record its result."""
        return self.invoke(name, "step", StepType.STEP, lambda call: self.run_step(call, function, retry, timeout))

    async def run_step(
        self, call: StepCall, function: Callable[[], object], retry: Retry | None, limit: timedelta | None
    ) -> object:
        row = call.row
        if row is not None and row.status is StepStatus.DONE:
            return row.result
        if row is not None and row.status is StepStatus.FAILED and not self.is_repeated(row):
            raise raised_again(call.name, row.error)
        tries = row.attempts if row is not None and row.status is StepStatus.WAITING else 0
        if row is not None and row.status is StepStatus.WAITING:
            await self.wait(call, row, "retry")
        while True:
            now = self.engine.clock.now()
            row = replace(self.new_row(call, StepStatus.DONE, now), attempts=tries + 1)
            try:
                seconds = None if limit is None else limit.total_seconds()
                result = await call_with_limit(function, call.name, seconds, call.run_in_thread)
            except Exception as error:
                tries += 1
                delay = await self.record_failure(row, error, retry)
                if delay is None:
                    raise raised(call.name, error) from error
                assert self.recorded is not None
                await self.wait(call, self.recorded[call.name], "retry")
            else:
                row.result, row.finished_at = self.checked(call.name, result), self.engine.clock.now()
                await self.record(row)
                return row.result

    def is_repeated(self, row: StepRow) -> bool:
        """Whether a failed step is called again: in a later attempt, unless the code caught its error and went on to
        another step."""
        assert self.recorded is not None
        later = (
            other
            for other in self.recorded.values()
            if other.seq > row.seq and row.finished_at is not None and other.started_at >= row.finished_at
        )
        return row.run_id != self.ctx.run_id and not any(later)

    async def record_failure(self, row: StepRow, error: Exception, retry: Retry | None) -> timedelta | None:
        """Record that the function of a step failed; returns the delay until its next try, None if it has none."""
        now, failure = self.engine.clock.now(), failure_of(error)
        row = replace(row, error=dump_step_failure(failure, error), finished_at=now)
        match after_failure(failure, retry, row.attempts, NO_RETRY):
            case RetryLater(delay):
                await self.record(replace(row, status=StepStatus.WAITING, until=now + delay, finished_at=None))
                return delay
            case _:
                await self.record(replace(row, status=StepStatus.FAILED))
                return None

    def checked(self, name: str, result: object) -> object:
        """Return the result of a step as it is read from its record. Raises LogicError if it is not JSON or too
        large; the effects of its function stay."""
        try:
            return as_recorded(result)
        except ValueError as error:
            raise self.fatal(LogicError(f"step {name!r}: its result {error}")) from error

    # waits

    def sleep(self, duration: object, name: str | None) -> Any:
        """Wait for a time."""
        span = parse_wait(duration, "sleep")
        return self.invoke(name, "sleep", StepType.SLEEP, lambda call: self.run_sleep(call, span))

    async def run_sleep(self, call: StepCall, span: timedelta) -> None:
        row, now = call.row, self.engine.clock.now()
        if row is None:
            row = self.new_row(call, StepStatus.WAITING, now, until=now + span)
            await self.record(row)
        if row.status is StepStatus.WAITING:
            await self.wait(call, row, "sleep")
            await self.record(replace(row, status=StepStatus.DONE, finished_at=self.engine.clock.now()))

    async def wait(self, call: StepCall, row: StepRow, reason: str) -> None:
        """Wait until the due time of a step. Unless that is soon, the run is suspended, and this does not return."""
        now = self.engine.clock.now()
        if row.until is not None and row.until <= now:
            return
        if row.until is not None and row.until - now <= SHORT_WAIT:
            await self.engine.clock.wait(asyncio.Event(), (row.until - now).total_seconds())
            return
        wait = self.waits[call.name] = Wait(row, reason, self.caller.loop.create_future(), call)
        self.in_flight -= 1
        self._activity += 1
        self.suspend_when_idle()
        try:
            await wait.ended
        finally:
            self.in_flight += 1
            del self.waits[call.name]

    def suspend_when_idle(self) -> None:
        """Suspend the run soon if it waits and no step is in flight. Branches beside a wait get some time to come to
        their next step; what is no step is cut off and repeated later."""
        if self.waits and not self.in_flight and self.ctx.suspension is None:
            direct = any(wait.call.direct for wait in self.waits.values())
            delay = 0 if direct else SUSPEND_AFTER_SECONDS
            self.caller.loop.call_later(delay, self.suspend_if_idle, self._activity)

    def suspend_if_idle(self, activity: int) -> None:
        if self._activity == activity and self.waits and not self.in_flight and self.ctx.suspension is None:
            self.ctx.suspension = self.suspension()
            self.stop()

    def suspension(self) -> Suspension:
        """Return what the run waits for: first of all what is due first."""
        waits = sorted(self.waits.values(), key=lambda wait: (wait.row.until or NO_DUE_TIME, wait.row.seq))
        first = waits[0].row
        waiting: WaitingData = {
            "for": waits[0].reason,
            "step": first.name,
            "run_id": self.ctx.run_id,
            "started_at": self.ctx.started_at.isoformat(),
        }
        if first.until is not None:
            waiting["until"] = first.until.isoformat()
        if first.topic is not None:
            waiting["topic"] = first.topic
        if first.key:
            waiting["key"] = first.key
        fans = [wait.call.fan for wait in waits]
        if fans[0] is not None and not fans[0].not_called and all(fan is fans[0] for fan in fans):
            waiting["all"] = True
        return Suspension(waiting, first.until or NO_DUE_TIME, tuple(self.waits))

    def stop(self) -> None:
        """End the code of a suspended run: its task is canceled, again after each grace period while it goes on, and
        its threads get Suspended."""
        for wait in self.waits.values():
            if wait.call.blocking and not wait.ended.done():
                wait.ended.set_exception(Suspended())
        for branches in self._branches:
            branches.cancel()
        task = self.caller.task
        if self.caller.is_async and task is not None and not task.done():
            task.cancel()
            self.caller.loop.call_later(self.ctx.cancel_grace.total_seconds(), self.stop)
