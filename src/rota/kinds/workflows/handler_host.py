"""The host of a handler: serves its requests by one method, `ask(request, params)`, JSON in and out.

A handler in this process calls it through `Context`; one in the sandbox sends the same requests over a socket. A
request that fails ends the run with the class of the failure, also if the handler catches the exception.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Concatenate

import structlog

from rota.core import parse
from rota.core.effects import EffectStatus
from rota.core.errors import Invalid, LogicError, WorkError
from rota.core.ids import new_id
from rota.core.model import Job
from rota.core.policy import Failure, FailureClass, FailureData, classify
from rota.core.states import Phase
from rota.db.connection import P, R, Step
from rota.db.dialect import Tx
from rota.db.retry import retry_until_available
from rota.engine.commands import Engine
from rota.engine.effects import Effect
from rota.engine.runner import WorkFailed
from rota.kinds.workflows.connectors.base import Connectors, Method
from rota.kinds.workflows.declaration import Handler
from rota.kinds.workflows.rules import ALLOWED, Op, Outcome, may_call
from rota.kinds.workflows.scripts.script_api import Context, Mutation
from rota.kinds.workflows.store import effects, events, workflow_runs
from rota.kinds.workflows.store.records import Decision, EventRow, NewEvent, Peeked, StartedRun

PEEK_LIMIT = 1000  # events of one peek

log = structlog.get_logger("rota.workflows")


class Host:
    """The host of one run: serves requests that the phase allows, keeps the first failure and the events to publish."""

    def __init__(self, engine: Engine, connectors: Connectors, handler: Handler, job: Job, run: StartedRun) -> None:
        self.engine, self.connectors, self.handler, self.job, self.run = engine, connectors, handler, job, run
        self.phase = run.phase
        self.title: str | None = None
        self.decision: Decision | None = None  # of `prepare`, not yet saved
        self.reservations: Mapping[str, list[str]] = {}  # by topic, of the decision
        self.published: list[NewEvent] = []
        self.mutation: Mutation | None = None
        self.failure: Failure | None = None
        self.peeked = run.peeked  # answers peeks until the first other request

    def context(self) -> Context:
        """Return the first argument of a step."""
        log = logging.getLogger(f"rota.workflow.{self.job.target}.{self.handler.name}")
        return Context(self.ask, self.engine.clock.now(), log)

    async def ask(self, request: str, params: Mapping[str, object]) -> object:
        """Serve a request of the handler. Raises WorkFailed; after one failure, for every request."""
        if self.failure is not None:
            raise WorkFailed(self.failure)
        try:
            methods: dict[str, Callable[..., Awaitable[object]]]
            methods = {"publish": self.publish, "peek": self.peek, "get": self.get, "call": self.call}
            if request not in methods:
                raise LogicError(f"unknown request {request!r}; a handler can {', '.join(methods)}")
            if request != "peek":
                self.peeked = None  # time has passed since the run began
            return await methods[request](**params)
        except Exception as error:
            self.failure = failure_of(error)
            raise WorkFailed(self.failure) from error

    def check_phase(self, op: Op, request: str) -> None:
        """Raise LogicError if the phase of the run does not allow a request."""
        if self.mutation is not None and self.phase is Phase.MUTATING:
            raise LogicError(
                f"{self.handler.name}: {request} after the mutation; a mutation must be the last call in `mutate`"
            )
        if op not in ALLOWED[self.phase]:
            allowed = ", ".join(sorted(ALLOWED[self.phase]))
            raise LogicError(
                f"{self.handler.name}: {request} is not allowed while {self.phase.value}; allowed: {allowed}"
            )

    # events

    async def publish(
        self, topic: str | Sequence[str], message_id: object, payload: object, title: object = None
    ) -> None:
        """Keep an event until the run commits; a failed run publishes nothing."""
        self.check_phase(Op.PUBLISH, "publish")
        for name in [topic] if isinstance(topic, str) else topic:
            if name not in self.handler.publishes:
                raise LogicError(f"{self.handler.name}: {name} is not among the topics that it publishes to")
            self.published.append(read_event(name, message_id, payload, title))

    async def peek(self, topic: str, limit: int = 100) -> list[dict[str, object]]:
        self.check_subscribed(topic)
        most = parse.whole(limit, "limit", 1, PEEK_LIMIT)
        rows = None if self.peeked is None else self.peeked.of_topic(topic, most)
        if rows is None:
            read = await self.read(events.peek, self.run.workflow_id, {topic: most + 1})
            self.run = replace(self.run, peeked=Peeked.merged(self.run.peeked, topic, most, read))
            rows = read[:most]
        return [dump_event(row) for row in rows]

    async def get(self, topic: str, ids: Sequence[str]) -> list[dict[str, object]]:
        self.check_subscribed(topic)
        wanted = [parse.text(event_id, "ids", 50) for event_id in ids]
        return [dump_event(row) for row in await self.read(events.by_ids, self.run.workflow_id, topic, wanted)]

    def check_subscribed(self, topic: str) -> None:
        self.check_phase(Op.PEEK, "peek")
        if topic not in self.handler.subscribe:
            raise LogicError(f"{self.handler.name}: {topic} is not among the topics that it subscribes to")

    # connectors

    async def call(self, name: str, params: Mapping[str, object]) -> object:
        """Call a method of a connector that the workflow declares."""
        if self.handler.connectors is not None and not may_call(name, self.handler.connectors):
            raise LogicError(f"{self.handler.name}: {name} is not among the connectors that its workflow declares")
        method = self.connectors.find(name)
        self.check_phase(method.op, name)
        if method.op is Op.READ:
            async with asyncio.timeout(self.engine.settings.handler_limit.total_seconds()):
                return await method.invoke(params)
        return await self.mutate(method, parse.payload(dict(params), "params"))

    async def mutate(self, method: Method, params: Mapping[str, object]) -> object:
        """Record a mutation, try it, and record its status."""
        self.mutation = Mutation("none")  # set before the call: a second mutation is refused in any case
        effect_id = new_id()
        await self.write(effects.record_effect, effect_id, method.name, params, self.title, self.engine.clock.now())
        return await self.effect(method, effect_id, params).carry_out()

    async def reconcile(self, method: Method, effect_id: str, params: Mapping[str, object], attempts: int) -> object:
        """Ask the service for the outcome of a mutation that gave no answer. Raises WorkFailed unless it was
        applied."""
        return await self.effect(method, effect_id, params).reconcile(attempts)

    def effect(self, method: Method, effect_id: str, params: Mapping[str, object]) -> Effect:
        settings = self.engine.settings
        return Effect(
            method.name,
            partial(method.invoke, params, effect_id),
            None if method.reconcile is None else partial(method.ask, effect_id, params),
            partial(self.settle, effect_id),
            failure_of,
            settings.handler_limit,
            settings.reconcile_limit,
        )

    async def settle(
        self,
        effect_id: str,
        status: EffectStatus,
        *,
        result: object = None,
        error: FailureData | None = None,
        reconcile_attempts: int = 0,
    ) -> None:
        now = self.engine.clock.now()
        await self.write(effects.settle, effect_id, status, now, result, error, reconcile_attempts)
        if status is EffectStatus.APPLIED:
            self.mutation = Mutation("applied", result)
            # the commit does not reset a known outcome
            self.run = replace(self.run, outcome=Outcome.APPLIED, result=result)

    # the database

    async def save_decision(self) -> None:
        if self.decision is not None:
            decision, self.decision = self.decision, None
            await self.write(workflow_runs.save_decision, decision, self.engine.clock.now())

    async def move_to_emitting(self) -> None:
        """Record that the run is past its mutation; without effect before the decision of `prepare` is saved."""
        if self.decision is None and self.run.phase is not Phase.EMITTING:
            await self.write(workflow_runs.move_to_emitting, self.engine.clock.now())

    async def read(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await retry_until_available(lambda: self.engine.db.read(step, *args, **kwargs))

    async def write(
        self, step: Callable[Concatenate[Tx, Job, StartedRun, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        return await retry_until_available(lambda: self.engine.db.tx(step, self.job, self.run, *args, **kwargs))


def dump_event(row: EventRow) -> dict[str, object]:
    return {
        "id": row.id,
        "topic": row.topic,
        "message_id": row.message_id,
        "payload": row.payload,
        "title": row.title,
        "status": row.status,
        "attempt": row.attempt,
        "created_at": row.created_at.isoformat(),
    }


def read_event(topic: str, message_id: object, payload: object, title: object = None) -> NewEvent:
    """Return the event of untrusted fields. Raises Invalid."""
    return NewEvent(
        topic=topic,
        message_id=parse.text(message_id, "message_id", 500, required=True),
        payload=parse.payload(payload, "payload"),
        title=None if title is None else parse.text(title, "title", 500),
    )


def failure_of(error: BaseException, internal: bool = False) -> Failure:
    """Classify an exception. With `internal`, or by its module, it is a bug of Rota and not of a handler or
    connector."""
    if isinstance(error, WorkFailed):
        return error.failure
    failure = classify(error)
    internal = internal or type(error).__module__.startswith(("rota.", "sqlalchemy"))
    if internal and not isinstance(error, WorkError | Invalid):
        log.error("a workflow failed because of an internal error of Rota", exc_info=error)
        return Failure(FailureClass.INTERNAL, failure.type, failure.message, failure.traceback)
    return failure
