"""Steps that wait for a signal, an approval or a child job."""

import asyncio
from collections.abc import Awaitable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rota.core import parse
from rota.core.errors import Invalid, LogicError
from rota.core.kinds import DEFAULT_KIND
from rota.core.model import NewJob, serial_key_of_kind
from rota.core.policy import Terms
from rota.core.steps import Approval, ChildFailed, StepStatus, StepType, load_step_failure
from rota.engine import decisions, signals, spawning, steps
from rota.engine.durable import Durable, Fan, StepCall
from rota.engine.records import StepRow
from rota.engine.step_errors import WaitTimedOut, due_time, parse_wait

TITLE_LIMIT = 500
MAP_LIMIT = 100_000


def wait_for(durable: Durable, topic: str, key: str | None, timeout: object, name: str | None) -> Any:
    """Wait for a signal; returns its payload. Raises TimeoutError."""
    topic, key = label(topic, "topic"), "" if key is None else label(key, "key")
    limit = None if timeout is None else parse_wait(timeout, "timeout")

    async def work(call: StepCall) -> object:
        row, now = call.row, durable.engine.clock.now()
        if row is None:
            subject = signals.subject_of(durable.job.org_id, topic, key)
            row = durable.new_row(call, StepStatus.WAITING, now, topic=topic, key=key, waits_for=subject)
            row = await durable.write(signals.register, durable.job, replace(row, until=due_time(now, limit)), now)
        row = await ended(durable, call, row, "signal")
        if row.status is StepStatus.TIMED_OUT:
            raise WaitTimedOut(f"no signal {topic!r}{f' with key {key!r}' if key else ''} came within {timeout}")
        return row.result

    return durable.invoke(name, f"signal {topic}", StepType.SIGNAL, work)


def approval(durable: Durable, who: str, title: str | None, timeout: object, name: str | None) -> Any:
    """Wait for a person's decision; returns an Approval. Raises TimeoutError."""
    who = label(who, "approval")
    title = None if title is None else parse.text(title, "title", TITLE_LIMIT)
    limit = None if timeout is None else parse_wait(timeout, "timeout")

    async def work(call: StepCall) -> object:
        row, now = call.row, durable.engine.clock.now()
        if row is None:
            subject = decisions.subject_of(durable.job.id, call.name)
            row = durable.new_row(
                call, StepStatus.WAITING, now, topic=who, waits_for=subject, params={"title": title or call.name}
            )
            row = await durable.write(steps.register, durable.job, replace(row, until=due_time(now, limit)))
        row = await ended(durable, call, row, "approval")
        if row.status is StepStatus.TIMED_OUT:
            raise WaitTimedOut(f"no decision of {who!r} came within {timeout}")
        return Approval(**row.result)

    return durable.invoke(name, f"approval {who}", StepType.APPROVAL, work)


async def ended(durable: Durable, call: StepCall, row: StepRow, reason: str) -> StepRow:
    """Return a waiting step when it has ended: by what it waited for or, at its due time, as timed out. The row decides
    which of the two comes first."""
    durable.remember(row)
    if row.status is StepStatus.WAITING:
        await durable.wait(call, row, reason)
        now = durable.engine.clock.now()
        row = await durable.write(steps.complete_own, durable.job, row.name, StepStatus.TIMED_OUT, now)
        durable.remember(row)
    return row


# children


def call_task(
    durable: Durable, task: str, params: Mapping[str, object], name: str | None, fan: Fan | None = None
) -> Any:
    """Enqueue a task as a child and wait for it; returns its outcome. Raises ChildFailed."""

    async def work(call: StepCall) -> object:
        call.fan = fan
        return await outcome(durable, call, await enqueue_child(durable, call, task, params))

    return durable.invoke(name, f"call {task}", StepType.CHILD, work)


class Child:
    """A child job of this run. In async functions it may be awaited, until it is enqueued."""

    def __init__(self, durable: Durable, enqueued: Awaitable[tuple[StepCall, StepRow]]) -> None:
        self._durable, self._enqueued = durable, enqueued
        self.job_id: str | None = None  # once it is enqueued

    def __await__(self) -> Generator[Any, None, "Child"]:
        yield from self.enqueued().__await__()
        return self

    async def enqueued(self) -> tuple[StepCall, StepRow]:
        call, row = await self._enqueued
        self.job_id = row.child_job_id
        return call, row

    def result(self) -> Any:
        """Wait for the child; returns its outcome. Raises ChildFailed."""

        async def wait(direct: bool, blocking: bool) -> object:
            call, row = await self.enqueued()
            call.direct, call.blocking = direct, blocking
            with self._durable.busy():
                return await outcome(self._durable, call, row)

        return self._durable.go_on(wait)


def spawn(durable: Durable, task: str, params: Mapping[str, object], name: str | None) -> Any:
    """Enqueue a task as a child; returns a Child."""

    async def work(call: StepCall) -> object:
        return call, await enqueue_child(durable, call, task, params)

    return Child(durable, durable.start(name, f"spawn {task}", StepType.CHILD, work))


def map_task(
    durable: Durable, task: str, params: Sequence[Mapping[str, object]], at_most: int, name: str | None
) -> Any:
    """Run a task for each item as a child, at most so many at a time; returns their outcomes in order. Raises the first
    ChildFailed after all children have ended."""
    if not at_most > 0 or len(params) > MAP_LIMIT:
        raise LogicError(f"map: at_most must be at least 1, and there may be at most {MAP_LIMIT} items")
    base = name or durable.next_name(f"map {task}")

    async def call(places: asyncio.Semaphore, fan: Fan, number: int, item: Mapping[str, object]) -> object:
        async with places:
            fan.not_called -= 1
            return await call_task(durable, task, item, f"{base} {number}", fan)

    async def run() -> list[object]:
        places, fan = asyncio.Semaphore(at_most), Fan(len(params))
        results = await asyncio.gather(
            *(call(places, fan, number, item) for number, item in enumerate(params, 1)), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return list(results)

    return durable.run_beside(run)


async def enqueue_child(durable: Durable, call: StepCall, task: str, params: Mapping[str, object]) -> StepRow:
    """Enqueue the child of a step with the grant of this job, unless that is done; returns the step."""
    row = call.row
    if row is not None:
        return row
    engine, job, now = durable.engine, durable.job, durable.engine.clock.now()
    try:
        payload = parse.payload(dict(params) or None, "params")
        route = await engine.runners[DEFAULT_KIND].resolve(job.org_id, task, payload)
    except Invalid as error:
        raise LogicError(f"task {task!r} cannot be called: {error.message}") from error
    child = NewJob(
        org_id=job.org_id, kind=DEFAULT_KIND, target=task, payload=payload, run_at=now, trigger=f"job:{job.id}",
        route=route, queue=job.queue, serial_key=serial_key_of_kind(DEFAULT_KIND, job.org_id, task),
        terms=Terms(grant_id=job.terms.grant_id), trace=job.traceparent, parent_id=job.id, followed=True,
    )  # fmt: skip
    new = durable.new_row(call, StepStatus.WAITING, now, params={"target": task})
    spawned: StepRow = await durable.write(spawning.spawn, job, new, child, now)
    engine.wake.signal("ready")
    durable.remember(spawned)
    return spawned


async def outcome(durable: Durable, call: StepCall, row: StepRow) -> object:
    """Wait for the child of a step; returns its outcome. Raises ChildFailed."""
    if row.status is StepStatus.WAITING:
        await durable.wait(call, row, "child")
    if row.status is StepStatus.DONE:
        return row.result
    raise ChildFailed(call.name, load_step_failure(row.error), str(row.child_job_id))


def label(value: object, field: str) -> str:
    try:
        return parse.label(value, field)
    except Invalid as error:
        raise LogicError(error.message) from error
