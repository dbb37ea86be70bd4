"""What a handler can ask of its host, through one door: `ask(what, params)`, JSON in and out.

A handler in this process asks through `Context`; one in the sandbox sends the same words over a socket. Whatever
a call raises ends the run with its class, also if the handler swallows it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import structlog

from rota.core import parse
from rota.core.errors import Invalid, LogicError, WorkError
from rota.core.ids import new_id
from rota.core.model import Job
from rota.core.policy import Failure, FailureClass, classify
from rota.core.states import Phase
from rota.db.retry import retry_until_available
from rota.engine.commands import Engine
from rota.engine.runner import WorkFailed
from rota.kinds.workflows.connectors.base import Applied, Connectors, Method, NotApplied, Unsure, surely_failed
from rota.kinds.workflows.declaration import Handler, Mutation
from rota.kinds.workflows.rules import ALLOWED, RECONCILE, EffectStatus, Op, Outcome, may_call
from rota.kinds.workflows.store import workflows
from rota.kinds.workflows.store.workflows import Begun, Decided, Published

PEEK_MOST = 1000

log = structlog.get_logger("rota.workflows")


@dataclass(frozen=True, slots=True)
class Event:
    """An event as handlers see it."""

    id: str
    topic: str
    message_id: str
    payload: Any
    title: str | None
    status: str
    attempt: int  # how often it was reserved, counting the next time
    created_at: datetime

    @classmethod
    def load(cls, told: Mapping[str, Any]) -> "Event":
        return cls(**{**told, "created_at": datetime.fromisoformat(told["created_at"])})


class Host:
    """One run's host: does what the phase allows, remembers what failed and what is to be published."""

    def __init__(self, engine: Engine, connectors: Connectors, handler: Handler, job: Job, run: Begun) -> None:
        self.engine, self.connectors, self.handler, self.job, self.run = engine, connectors, handler, job, run
        self.phase = run.phase
        self.title: str | None = None
        self.decided: Decided | None = None  # by `prepare`, and not yet written down
        self.published: list[Published] = []
        self.mutation: Mutation | None = None
        self.failure: Failure | None = None

    async def ask(self, what: str, params: Mapping[str, Any]) -> Any:
        if self.failure is not None:
            raise WorkFailed(self.failure)  # the run is over; nothing more is done for it
        try:
            doors: dict[str, Callable[..., Awaitable[Any]]]
            doors = {"publish": self.publish, "peek": self.peek, "get": self.get, "call": self.call}
            if what not in doors:
                raise LogicError(f"{what} is not something a handler can ask for")
            return await doors[what](**params)
        except Exception as error:
            self.failure = failure_of(error)
            raise WorkFailed(self.failure) from error

    def allow(self, op: Op, what: str) -> None:
        """Phase permissions."""
        if self.mutation is not None and self.phase is Phase.MUTATING:
            raise LogicError(
                f"{self.handler.name}: {what} after the mutation; a mutation is the last thing in `mutate`"
            )
        if op not in ALLOWED[self.phase]:
            may = ", ".join(sorted(ALLOWED[self.phase]))
            raise LogicError(f"{self.handler.name}: {what} while {self.phase.value} is not allowed; allowed is {may}")

    # events

    async def publish(self, topic: Any, message_id: Any, payload: Any, title: Any = None) -> None:
        """Kept until the run commits: what fails publishes nothing."""
        self.allow(Op.PUBLISH, "publish")
        for one in [topic] if isinstance(topic, str) else topic:
            if one not in self.handler.publishes:
                raise LogicError(f"{self.handler.name}: {one} is not among the topics that it publishes to")
            self.published.append(read_event(one, message_id, payload, title))

    async def peek(self, topic: str, limit: int = 100) -> list[dict[str, Any]]:
        self.subscribed(topic)
        most = parse.whole(limit, "limit", 1, PEEK_MOST)
        return [told(row) for row in await self.read(workflows.peek, self.run.workflow_id, topic, most)]

    async def get(self, topic: str, ids: Sequence[str]) -> list[dict[str, Any]]:
        self.subscribed(topic)
        wanted = [parse.text(one, "ids", 50) for one in ids]
        return [told(row) for row in await self.read(workflows.by_ids, self.run.workflow_id, topic, wanted)]

    def subscribed(self, topic: str) -> None:
        self.allow(Op.PEEK, "peek")
        if topic not in self.handler.subscribe:
            raise LogicError(f"{self.handler.name}: {topic} is not among the topics that it subscribes to")

    # the world outside

    async def call(self, name: str, params: Mapping[str, Any]) -> Any:
        if self.handler.connectors is not None and not may_call(name, self.handler.connectors):
            raise LogicError(f"{self.handler.name}: {name} is not among the connectors that its workflow declares")
        method = self.connectors.find(name)
        self.allow(method.op, name)
        if method.op is Op.READ:
            async with asyncio.timeout(self.engine.settings.handler_limit.total_seconds()):
                return await method.invoke(params)
        return await self.mutate(method, parse.payload(dict(params), "params"))

    async def mutate(self, method: Method, params: Mapping[str, Any]) -> Any:
        """Write it down, do it, write down what became of it."""
        self.mutation = Mutation("none")  # whatever happens now, there is no second one
        effect_id = new_id()
        await self.write(workflows.call, effect_id, method.name, params, self.title, self.engine.clock.now())
        try:
            async with asyncio.timeout(self.engine.settings.handler_limit.total_seconds()):
                result = storable(await method.invoke(params, effect_id))
        except Exception as error:
            if surely_failed(error):
                await self.settle(effect_id, EffectStatus.FAILED, error=failure_of(error).dump())
                raise
            return await self.reconcile(method, effect_id, params, 0, error)
        return await self.applied(effect_id, result)

    async def reconcile(
        self, method: Method, effect_id: str, params: Mapping[str, Any], asked: int, error: Exception | None = None
    ) -> Any:
        """UNKNOWN_IS_NOT_FAILED: ask the service what became of a mutation that gave no answer."""
        why = "the worker died during it" if error is None else f"{type(error).__name__}: {error}"
        failure = Failure(FailureClass.INDETERMINATE, "Unanswered", f"{method.name} gave no answer ({why})")
        if method.reconcile is None:
            await self.settle(effect_id, EffectStatus.INDETERMINATE, error=failure.dump())
            raise WorkFailed(failure)
        try:
            async with asyncio.timeout(self.engine.settings.reconcile_limit.total_seconds()):
                found = await method.ask(effect_id, params)
        except Exception as trouble:
            log.warning("a mutation could not be reconciled", call=method.name, effect=effect_id, error=repr(trouble))
            found = Unsure()
        match found:
            case Applied(result):
                return await self.applied(effect_id, storable(result))
            case NotApplied():
                known = failure_of(error) if error is not None else Failure(FailureClass.TRANSIENT, "NotApplied", why)
                await self.settle(effect_id, EffectStatus.FAILED, error=known.dump(), asked=asked)
                raise WorkFailed(known)
            case Unsure():
                last = asked >= RECONCILE.max_retries
                status = EffectStatus.INDETERMINATE if last else EffectStatus.NEEDS_RECONCILE
                await self.settle(effect_id, status, error=failure.dump(), asked=asked)
                again = None if last else RECONCILE.delay(asked + 1)
                raise WorkFailed(Failure(failure.failure_class, failure.type, failure.message, reconcile_after=again))

    async def applied(self, effect_id: str, result: Any) -> Any:
        await self.settle(effect_id, EffectStatus.APPLIED, result=result)
        self.mutation = Mutation("applied", result)
        self.run = replace(self.run, outcome=Outcome.APPLIED, result=result)  # the commit keeps what is known
        return result

    async def settle(self, effect_id: str, status: EffectStatus, **known: Any) -> None:
        await self.write(workflows.settle, effect_id, status, self.engine.clock.now(), **known)

    # the database

    async def write_decision(self) -> None:
        if self.decided is not None:
            one, self.decided = self.decided, None
            await self.write(workflows.prepared, one.result, one.wanted, one.wake_at, self.engine.clock.now())

    async def write_emitting(self) -> None:
        """Record that the run is past its mutation, once what `prepare` decided is in the database."""
        if self.decided is None and self.run.phase is not Phase.EMITTING:
            await self.write(workflows.emitting, self.engine.clock.now())

    async def read(self, step: Any, *args: Any) -> Any:
        return await retry_until_available(lambda: self.engine.db.read(step, *args))

    async def write(self, step: Any, *args: Any, **named: Any) -> Any:
        return await retry_until_available(lambda: self.engine.db.tx(step, self.job, self.run, *args, **named))


class Context:
    """What a handler is given: `now`, `log`, and the ways to its host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.now: datetime = host.engine.clock.now()
        self.log = logging.getLogger(f"rota.workflow.{host.job.target}.{host.handler.name}")

    async def publish(
        self, topic: str | Sequence[str], *, message_id: str, payload: Any = None, title: str | None = None
    ) -> None:
        """Put an event into a topic, or into several. The same `message_id` again replaces it while it is pending, and
        does nothing once somebody has taken it."""
        given = {"topic": topic, "message_id": message_id, "payload": payload, "title": title}
        await self._host.ask("publish", given)

    async def peek(self, topic: str, limit: int = 100) -> list[Event]:
        """Pending events of a topic, oldest first."""
        return [Event.load(one) for one in await self._host.ask("peek", {"topic": topic, "limit": limit})]

    async def get(self, topic: str, ids: Sequence[str]) -> list[Event]:
        """Events by their ids, in any status."""
        return [Event.load(one) for one in await self._host.ask("get", {"topic": topic, "ids": list(ids)})]

    async def call(self, name: str, /, **params: Any) -> Any:
        """Call a method of a connector: `await ctx.call("sheets.append_row", sheet="Mail", row=[…])`."""
        return await self._host.ask("call", {"name": name, "params": params})


def told(row: Any) -> dict[str, Any]:
    return {
        "id": row.id, "topic": row.topic, "message_id": row.message_id, "payload": row.payload, "title": row.title,
        "status": row.status, "attempt": row.attempt, "created_at": row.created_at.isoformat(),
    }  # fmt: skip


def read_event(topic: str, message_id: Any, payload: Any, title: Any = None) -> Published:
    """An event as it came from outside."""
    checked = None if title is None else parse.text(title, "title", 500)
    wanted = parse.text(message_id, "message_id", 500, required=True)
    return Published(topic, wanted, parse.payload(payload, "payload"), checked)


def storable(result: Any) -> Any:
    """What a mutation returned, if it can be kept; it happened all the same."""
    try:
        return parse.payload(result, "result")
    except Invalid as error:
        log.warning("the result of a mutation is not kept", error=error.message)
        return None


def failure_of(error: BaseException, ours: bool = False) -> Failure:
    """The class of a failure. What user code and connectors raise is theirs; the rest is our own bug."""
    if isinstance(error, WorkFailed):
        return error.failure
    found = classify(error)
    ours = ours or type(error).__module__.startswith(("rota.", "sqlalchemy"))
    if ours and not isinstance(error, WorkError | Invalid):
        log.error("a workflow failed because of Rota itself", exc_info=error)
        return Failure(FailureClass.INTERNAL, found.type, found.message, found.traceback)
    return found
