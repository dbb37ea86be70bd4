"""Runs workflows: one handler at a time, from checkpoint to checkpoint."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

import structlog

from rota.core import parse
from rota.core.errors import Invalid, LeaseLost, LogicError
from rota.core.model import WORKFLOW, AttemptResult, Job
from rota.core.parse import Defaults
from rota.core.policy import Failure, FailureClass, Park, RetryAfter, after_failure
from rota.core.states import Phase, Status
from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.db.retry import retry_until_available
from rota.engine.commands import Engine
from rota.engine.extensions import Describe, KindTraits
from rota.engine.runner import RunContext, SetAside, Skipped, WorkFailed, Written
from rota.kinds.workflows import maintenance, reports
from rota.kinds.workflows.connectors.base import Connectors
from rota.kinds.workflows.declaration import Mutation, Prepare, Workflow
from rota.kinds.workflows.handler_host import Context, Host, failure_of
from rota.kinds.workflows.rules import HandlerKind, check_prepared, clamp_wake
from rota.kinds.workflows.scripts import store as scripts_store
from rota.kinds.workflows.scripts.library import Scripts
from rota.kinds.workflows.scripts.sandbox import Sandbox
from rota.kinds.workflows.store import workflows as store
from rota.kinds.workflows.store.workflows import Begun, Decided, Overtaken

log = structlog.get_logger("rota.workflows")


class WorkflowRunner:
    kind = WORKFLOW
    defaults = Defaults()
    under_grant = False
    traits = KindTraits(
        declares_schedules=True,
        cancel_refusal="a workflow's run that began is not canceled; pause the workflow, or resolve it",
        retry_refusal="it has ended, and what a workflow did is not done again",
    )
    describers: Mapping[str, Describe] = MappingProxyType({"workflows": reports.brief})

    def __init__(
        self, workflows: Mapping[str, Workflow], connectors: Connectors, db: Database, org: str = "default",
        sandbox: Sandbox | None = None, repairs: bool = False,
    ) -> None:  # fmt: skip
        self.workflows, self.connectors, self.db, self.org = workflows, connectors, db, org
        self.scripts, self.repairs = Scripts(sandbox or Sandbox(), db), repairs
        for one in workflows.values():
            one.check()

    def routes(self) -> Collection[str]:
        ours = {route_of(self.org, name) for name in self.workflows}
        return ours | {scripts_store.ROUTE, f"{scripts_store.ROUTE}:{self.org}"}

    async def close(self) -> None:
        await self.scripts.sandbox.close()

    async def reconcile(self, engine: Engine, now: datetime) -> None:
        await maintenance.reconcile(engine, now)

    async def prune(self, engine: Engine, now: datetime) -> None:
        await maintenance.prune(engine, now)

    async def resolve(self, org_id: str, target: str, payload: Any) -> str:  # noqa: ARG002
        raise Invalid("kind", WORKFLOW, "is not scheduled by hand: a workflow declares when its producers run")

    def known_as(self, tx: Tx, org_id: str, target: str, payload: Any) -> Collection[str]:  # noqa: ARG002
        return {target, store.get(tx, org_id, target).id}

    async def prepare(self, ctx: RunContext) -> None:
        """Choose the handler and begin its run, in one step: from here on it is written down."""
        job, now = ctx.job, ctx.engine.clock.now()
        try:
            run = ctx.info.work or await self.db.tx(store.begin, job, ctx.run_id, ctx.attempt, now)
        except LeaseLost as error:
            raise SetAside from error
        if isinstance(run, str):
            ctx.engine.wake.signal("ready")
            if run in (store.PAUSED, "yield"):
                raise SetAside
            raise Skipped("superseded" if run == "idle" else run)
        workflow = await self.scripts.live(job.org_id, job.target) if of_script(job) else self.workflows.get(job.target)
        ctx.info.work, ctx.info.name, ctx.info.marked = (run, workflow), job.target, True
        ctx.info.resource = run.workflow_id
        ctx.info.default_timeout = False  # an operator must reconcile an interrupted mutation
        ctx.info.version = None if workflow is None else workflow.version

    async def execute(self, ctx: RunContext) -> Any:
        run: Begun
        run, workflow = ctx.info.work
        connectors = (
            self.connectors if ctx.job.route != scripts_store.ROUTE else Connectors()
        )  # not those of another org
        try:
            if workflow is None or run.handler not in workflow.handlers:
                raise LogicError(f"workflow {ctx.job.target}: this program has no handler {run.handler} any more")
            handler = workflow.handlers[run.handler]
            try:
                return await self.attempt(ctx, Host(ctx.engine, connectors, handler, ctx.job, run))
            except Overtaken:  # a person skipped what it was about to take: it decides once more
                return await self.attempt(ctx, Host(ctx.engine, connectors, handler, ctx.job, run))
        except LeaseLost as error:
            raise SetAside from error
        except Exception as error:
            failure = failure_of(error, ours=True)  # what handlers raise, `step` has told apart
            if failure.failure_class is FailureClass.INTERNAL:
                log.error("a workflow stopped", workflow=ctx.job.target, handler=run.handler, error=failure.message)
            if workflow is not None and workflow.isolate and (ended := given_up(ctx, run, failure)) is not None:
                return await self.put_aside(ctx, run, ended)
            raise WorkFailed(failure) from error

    async def attempt(self, ctx: RunContext, host: Host) -> Written:
        state, outcome = await (produce(host) if host.handler.kind is HandlerKind.PRODUCER else consume(host))
        state, now, lines = parse.payload(state, "state"), ctx.engine.clock.now(), ctx.log.take(last=True)
        ended = replace(ending(ctx, host.run), outcome=outcome, finished_at=now)
        told = (state, host.published, ctx.worker, ended, lines, now, host.decided, ctx.has_room())
        then, work = await host.write(store.commit, *told) or (None, None)
        return Written(ended, then, work)

    async def put_aside(self, ctx: RunContext, run: Begun, ended: AttemptResult) -> Written:
        now, lines = ctx.engine.clock.now(), ctx.log.take(last=True)

        def step(tx: Tx) -> None:
            store.put_aside(tx, ctx.job, run, ctx.worker, ended, lines, now)
            self.follow(tx, [ended], now)

        await retry_until_available(lambda: self.db.tx(step))
        return Written(ended)

    def follow(self, tx: Tx, ended: Sequence[AttemptResult], now: datetime) -> None:
        """A script that failed because it is wrong is repaired, where there is a repairer: what asks for it stands in
        the transaction that ends the run."""
        for one in ended:
            wrong = (one.status, one.reason) == (Status.FAILED, FailureClass.LOGIC.value)
            if self.repairs and wrong and of_script(one.job):
                scripts_store.ask(tx, store.get(tx, one.job.org_id, one.job.target), one.run_id, now)


async def produce(host: Host) -> tuple[Any, Mapping[str, Any]]:
    state = await step(host, "produce", host.run.state)
    return state, {"published": counted(host)}


async def consume(host: Host) -> tuple[Any, Mapping[str, Any]]:
    """Prepare, mutate, next; from where this attempt starts. What `prepare` decided is written down before it is acted
    on; where it has no effect outside, with the commit."""
    run, handler = host.run, host.handler
    told = run.prepared or await prepare(host)
    prepared = Prepare(**told)
    host.title = prepared.title
    taken = sum(len(ids) for ids in told["reservations"].values())
    if run.phase is Phase.MUTATING:
        await ask_again(host)
    elif run.outcome is None and taken and "mutate" in handler.steps:
        await host.write_decision()
        host.phase = Phase.MUTATING
        await step(host, "mutate", prepared)
    mutation = host.mutation or Mutation("none" if run.outcome is None else run.outcome.value, run.result)
    state = None
    if "next" in handler.steps:
        await host.write_emitting()
        host.phase = Phase.EMITTING
        try:
            state = await step(host, "next", prepared, mutation)
        except WorkFailed:
            if host.decided is not None:  # the person who decides about this run sees which events it is about
                await host.write_decision()
                await host.write_emitting()
            raise
    return state, {"title": prepared.title, "taken": taken, "mutation": mutation.status, "published": counted(host)}


async def prepare(host: Host) -> Mapping[str, Any]:
    found = await step(host, "prepare", host.run.state)
    if not isinstance(found, Prepare):
        raise LogicError(f"{host.handler.name}: prepare must return a Prepare, not {type(found).__name__}")
    told = parse.payload(found.dump(), "prepare")
    wanted = check_prepared(told, host.handler.subscribe)
    wake_at, wrong = clamp_wake(
        told["wake_at"], host.engine.clock.now(), host.engine.settings.wake_min, host.engine.settings.wake_max
    )
    if wrong is not None:
        log.warning("a wake time is wrong; looking again soon", handler=host.handler.name, error=wrong)
    told = {**told, "reservations": wanted, "wake_at": wake_at and wake_at.isoformat()}
    host.decided = Decided(told, wanted, wake_at)
    return told


async def ask_again(host: Host) -> None:
    """The attempt before left a mutation of which nobody knows."""
    effect = host.run.effect
    method = host.connectors.find(effect.call)
    if effect.status == "indeterminate":
        raise WorkFailed(Failure(FailureClass.INDETERMINATE, "Unanswered", f"{effect.call} gave no answer"))
    asked = effect.reconcile_attempts + 1
    try:
        await host.reconcile(method, effect.id, effect.params, asked)
    finally:
        host.mutation = host.mutation or Mutation("none")


async def step(host: Host, name: str, *args: Any) -> Any:
    """One step of a handler. What a host call raised stands above whatever the handler made of it."""
    call, seconds = host.handler.steps[name], host.engine.settings.handler_limit.total_seconds()
    try:
        async with asyncio.timeout(seconds) as limit:
            result = await call(Context(host), *args)
    except TimeoutError as error:
        if limit.expired():
            text = f"{host.handler.name}: {name} still ran after {seconds:g} s"
            raise WorkFailed(Failure(FailureClass.TIMEOUT, "Timeout", text)) from error
        raise WorkFailed(host.failure or failure_of(error)) from error
    except Exception as error:
        raise WorkFailed(host.failure or failure_of(error)) from error
    if host.failure is not None:
        raise WorkFailed(host.failure)
    return result


def counted(host: Host) -> dict[str, int]:
    topics = [one.topic for one in host.published]
    return {topic: topics.count(topic) for topic in dict.fromkeys(topics)}


def ending(ctx: RunContext, run: Begun) -> AttemptResult:
    now = ctx.engine.clock.now()
    return AttemptResult(ctx.job, Status.SUCCESS, None, now, ctx.run_id, ctx.attempt, run.started_at, info=ctx.info)


def given_up(ctx: RunContext, run: Begun, failure: Failure) -> AttemptResult | None:
    """How a run ends whose handler is put aside, if nothing more is tried by itself."""
    ended = replace(ending(ctx, run), error=failure.dump(), counts=True)
    match after_failure(failure, None, ctx.job.tries + 1, ctx.engine.settings.transient_retry):
        case RetryAfter():
            return None
        case Park(reason):
            return replace(ended, status=Status.PAUSED, reason=reason)
        case _:
            return replace(ended, status=Status.FAILED, reason=failure.failure_class.value)


def of_script(job: Job) -> bool:
    return job.route.startswith(scripts_store.ROUTE)


def route_of(org: str, name: str) -> str:
    return f"workflow:{org}:{name}"
