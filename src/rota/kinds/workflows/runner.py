"""The Runner of workflows: runs one handler at a time, from checkpoint to checkpoint."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import MappingProxyType

import structlog

from rota.core import parse
from rota.core.effects import EffectStatus
from rota.core.errors import Invalid, LeaseLost, LogicError
from rota.core.kinds import KindTraits, register
from rota.core.model import AttemptResult, Job
from rota.core.policy import Failure, FailureClass, Park, RetryLater, after_failure
from rota.core.schedule_form import Defaults
from rota.core.states import Phase, Status
from rota.db.connection import Database
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.db.retry import retry_until_available
from rota.engine.commands import Engine
from rota.engine.extensions import Describe
from rota.engine.runner import RunContext, SetAside, Skipped, Work, WorkFailed, Written
from rota.kinds.workflows import maintenance, reports
from rota.kinds.workflows.connectors.base import Connectors
from rota.kinds.workflows.declaration import Workflow
from rota.kinds.workflows.handler_host import Host, failure_of
from rota.kinds.workflows.rules import WORKFLOW, HandlerKind, check_prepared, clamp_wake
from rota.kinds.workflows.scripts import store as scripts_store
from rota.kinds.workflows.scripts.library import Scripts
from rota.kinds.workflows.scripts.sandbox import Sandbox
from rota.kinds.workflows.scripts.script_api import Mutation, Prepare
from rota.kinds.workflows.store import upkeep, workflow_runs, workflows
from rota.kinds.workflows.store.events import EventsSkipped
from rota.kinds.workflows.store.next_runs import Followed, begin_consumer, commit_and_begin_next, may_repeat
from rota.kinds.workflows.store.records import Decision, StartedRun

log = structlog.get_logger("rota.workflows")


class WorkflowRunner:
    kind = WORKFLOW
    defaults = Defaults()
    under_grant = False
    traits = register(
        kind,
        KindTraits(
            grant_action="run",
            serial=True,
            parks_on_failure=True,
            declares_schedules=True,
            cancel_refusal="a workflow's run that began is not canceled; pause the workflow, or resolve it",
            retry_refusal="it has ended, and what a workflow did is not done again",
            run_details=reports.run_details,
            runs_in_use=upkeep.runs_in_use,
            delete_run_rows=upkeep.delete_run_rows,
        ),
    )
    describers: Mapping[str, Describe] = MappingProxyType({"workflows": reports.audited_fields})

    def __init__(
        self,
        workflows: Mapping[str, Workflow],
        connectors: Connectors,
        db: Database,
        org: str = "default",
        sandbox: Sandbox | None = None,
        repairs: bool = False,
    ) -> None:
        self.workflows, self.connectors, self.db, self.org = workflows, connectors, db, org
        self.scripts, self.repairs = Scripts(sandbox or Sandbox(), db), repairs
        for workflow in workflows.values():
            workflow.check()

    def routes(self) -> Collection[str]:
        declared = {route_of(self.org, name) for name in self.workflows}
        return declared | {scripts_store.SCRIPT_ROUTE, f"{scripts_store.SCRIPT_ROUTE}:{self.org}"}

    async def close(self) -> None:
        await self.scripts.sandbox.close()

    async def reconcile(self, engine: Engine, now: datetime) -> None:
        await maintenance.reconcile(engine, now)

    async def prune(self, engine: Engine, now: datetime) -> None:
        await maintenance.prune(engine, now)

    async def resolve(self, org_id: str, target: str, payload: object) -> str:  # noqa: ARG002
        raise Invalid("kind", WORKFLOW, "cannot be scheduled: a workflow declares when its producers run")

    def known_as(self, tx: Tx, org_id: str, target: str, payload: object) -> Collection[str]:  # noqa: ARG002
        return {target, workflows.get(tx, org_id, target).id}

    async def prepare(self, ctx: RunContext) -> Work:
        """Choose the handler and begin its run, in one transaction."""
        run: StartedRun | str | None = None
        try:
            job, now = ctx.job, ctx.engine.clock.now()
            if job.payload is None and job.last_run_id is None:
                run = await self.db.statement(begin_consumer(job, ctx.run_id, ctx.attempt, now))
            if run is None:
                run = await self.db.tx(workflow_runs.begin, job, ctx.run_id, ctx.attempt, now)
        except LeaseLost as error:
            raise SetAside from error
        if isinstance(run, str):
            ctx.engine.wake.signal("ready")
            if run in (workflow_runs.PAUSED, workflow_runs.YIELD):
                raise SetAside
            raise Skipped("superseded" if run == workflow_runs.IDLE else run)
        return await self.prepare_begun(run, ctx)

    async def prepare_begun(self, run: StartedRun, ctx: RunContext) -> Work:
        """Look up the workflow of a run that has begun."""
        job = ctx.job
        workflow = await self.scripts.live(job.org_id, job.target) if is_script(job) else self.workflows.get(job.target)
        ctx.info.name, ctx.info.marked = job.target, True
        ctx.info.resource = run.workflow_id
        ctx.info.default_timeout = False  # an operator must reconcile an interrupted mutation
        ctx.info.version = None if workflow is None else workflow.version
        return partial(self.execute, ctx, run, workflow)

    async def execute(self, ctx: RunContext, run: StartedRun, workflow: Workflow | None) -> Written:
        any_org = ctx.job.route == scripts_store.SCRIPT_ROUTE  # this program's connectors may be of another org
        connectors = Connectors() if any_org else self.connectors
        try:
            if workflow is None or run.handler not in workflow.handlers:
                raise LogicError(f"handler {run.handler!r} of workflow {ctx.job.target!r} not found in this program")
            handler = workflow.handlers[run.handler]
            try:
                return await self.attempt(ctx, Host(ctx.engine, connectors, handler, ctx.job, run))
            except EventsSkipped:  # `prepare` decides again, without the events that an operator skipped
                again = replace(run, peeked=None)
                return await self.attempt(ctx, Host(ctx.engine, connectors, handler, ctx.job, again))
        except LeaseLost as error:
            raise SetAside from error
        except Exception as error:
            failure = failure_of(error, internal=True)  # `step` has classified what handlers raise
            if failure.failure_class is FailureClass.INTERNAL:
                log.error(
                    "a workflow stopped because Rota failed internally",
                    workflow=ctx.job.target,
                    handler=run.handler,
                    error=failure.message,
                )
            if workflow is not None and workflow.isolate and (ended := final_result(ctx, run, failure)) is not None:
                return await self.hold_handler(ctx, run, ended)
            raise WorkFailed(failure) from error

    async def attempt(self, ctx: RunContext, host: Host) -> Written:
        """Run the steps of the handler and commit. Raises WorkFailed, LeaseLost or EventsSkipped."""
        state, outcome = await (produce(host) if host.handler.kind is HandlerKind.PRODUCER else consume(host))
        state, now, log_lines = parse.payload(state, "state"), ctx.engine.clock.now(), ctx.log.take(last=True)
        run, follows = host.run, ctx.has_room()
        ended = successful_result(ctx, run, now, outcome)
        repeats = None
        if follows and not host.published and run.peeked is not None and may_repeat(ctx.job, run, host.reservations):
            repeats = run.peeked.limits
        followed: Followed | None = None
        if repeats is not None and not log_lines:
            repeat = commit_and_begin_next(
                ctx.job, run, state, ctx.worker, ended, now, host.decision, host.reservations, repeats
            )
            followed = await retry_until_available(lambda: self.db.statement(repeat))
            if followed is not None:
                ctx.engine.metrics.ended([ended])  # in a transaction, `finishing` counts it
        if followed is None:
            followed = await host.write(
                workflow_runs.commit,
                state,
                host.published,
                ctx.worker,
                ended,
                log_lines,
                now,
                decision=host.decision,
                follows=follows,
                reservations=host.reservations,
                repeats=repeats,
            )
        if followed is None:
            return Written(ended)
        next_attempt, next_run = followed
        return Written(ended, next_attempt, None if next_run is None else partial(self.prepare_begun, next_run))

    async def hold_handler(self, ctx: RunContext, run: StartedRun, ended: AttemptResult) -> Written:
        """End a failed run and hold its handler, while the others continue."""
        now, log_lines = ctx.engine.clock.now(), ctx.log.take(last=True)

        def step(tx: Tx) -> None:
            workflow_runs.hold_handler(tx, ctx.job, run, ctx.worker, ended, log_lines, now)
            self.follow(tx, [ended], now)

        await retry_until_available(lambda: self.db.tx(step))
        return Written(ended)

    def follow(self, tx: Tx, ended: Sequence[AttemptResult], now: datetime) -> None:
        """Ask for a repair of scripts that failed with a logic error, in the transaction that ends their run."""
        for result in ended:
            failed = (result.status, result.reason) == (Status.FAILED, FailureClass.LOGIC.value)
            if self.repairs and failed and is_script(result.job):
                workflow = workflows.get(tx, result.job.org_id, result.job.target)
                scripts_store.ask_for_repair(tx, workflow, result.run_id, now)


async def produce(host: Host) -> tuple[object, Mapping[str, object]]:
    """Run a producer; returns its new state and the outcome of the run."""
    state = await step(host, "produce", host.run.state)
    return state, {"published": count_published(host)}


async def consume(host: Host) -> tuple[object, Mapping[str, object]]:
    """Run prepare, mutate and next of a consumer, from the phase where this attempt starts; returns its new state and
    the outcome of the run. The decision of `prepare` is saved before it is acted on; without a mutation, by the
    commit."""
    run, handler = host.run, host.handler
    decided = run.prepared or await prepare(host)
    prepared = Prepare(**decided)
    host.title = prepared.title
    host.reservations = decided["reservations"]
    reserved = sum(len(ids) for ids in host.reservations.values())
    if run.phase is Phase.MUTATING:
        await reconcile_again(host)
    elif run.outcome is None and reserved and "mutate" in handler.steps:
        await host.save_decision()
        host.phase = Phase.MUTATING
        await step(host, "mutate", prepared)
    mutation = host.mutation or Mutation("none" if run.outcome is None else run.outcome.value, run.result)
    state = None
    if "next" in handler.steps:
        await host.move_to_emitting()
        host.phase = Phase.EMITTING
        try:
            state = await step(host, "next", prepared, mutation)
        except WorkFailed:
            if host.decision is not None:  # so that the operator who resolves the run sees its events
                await host.save_decision()
                await host.move_to_emitting()
            raise
    return state, {
        "title": prepared.title,
        "taken": reserved,
        "mutation": mutation.status,
        "published": count_published(host),
    }


async def prepare(host: Host) -> Record:
    """Run `prepare` and return its decision as JSON. Raises WorkFailed, LogicError or Invalid."""
    prepared = await step(host, "prepare", host.run.state)
    if not isinstance(prepared, Prepare):
        raise LogicError(f"{host.handler.name}: prepare must return a Prepare, not {type(prepared).__name__}")
    fields = parse.payload(prepared.dump(), "prepare")
    reservations = check_prepared(fields, host.handler.subscribe)
    settings = host.engine.settings
    wake_at, problem = clamp_wake(fields["wake_at"], host.engine.clock.now(), settings.wake_min, settings.wake_max)
    if problem is not None:
        log.warning("invalid wake_at; the consumer wakes at the minimum", handler=host.handler.name, error=problem)
    fields = {**fields, "reservations": reservations, "wake_at": wake_at and wake_at.isoformat()}
    host.decision = Decision(fields, reservations, wake_at)
    return fields


async def reconcile_again(host: Host) -> None:
    """Reconcile the mutation that the attempt before left with an unknown outcome. Raises WorkFailed."""
    effect = host.run.effect
    assert effect is not None  # an attempt starts in MUTATING only with an open effect
    method = host.connectors.find(effect.call)
    if effect.status is EffectStatus.INDETERMINATE:
        raise WorkFailed(Failure(FailureClass.INDETERMINATE, "Unanswered", f"{effect.call} gave no answer"))
    try:
        await host.reconcile(method, effect.id, effect.params, effect.reconcile_attempts + 1)
    finally:
        host.mutation = host.mutation or Mutation("none")


async def step(host: Host, name: str, *args: object) -> object:
    """Run one step of a handler. A failure of a host call ends the run, also if the handler catches it. Raises
    WorkFailed."""
    call, seconds = host.handler.steps[name], host.engine.settings.handler_limit.total_seconds()
    try:
        async with asyncio.timeout(seconds) as limit:
            result = await call(host.context(), *args)
    except TimeoutError as error:
        if limit.expired():
            text = f"{host.handler.name}: {name} exceeded its limit of {seconds:g} s"
            raise WorkFailed(Failure(FailureClass.TIMEOUT, "Timeout", text)) from error
        raise WorkFailed(host.failure or failure_of(error)) from error
    except Exception as error:
        raise WorkFailed(host.failure or failure_of(error)) from error
    if host.failure is not None:
        raise WorkFailed(host.failure)
    return result


def count_published(host: Host) -> dict[str, int]:
    topics = [event.topic for event in host.published]
    return {topic: topics.count(topic) for topic in dict.fromkeys(topics)}


def successful_result(ctx: RunContext, run: StartedRun, now: datetime, outcome: object = None) -> AttemptResult:
    return AttemptResult(
        ctx.job, Status.SUCCESS, None, now, ctx.run_id, ctx.attempt, run.started_at, outcome=outcome, info=ctx.info
    )


def final_result(ctx: RunContext, run: StartedRun, failure: Failure) -> AttemptResult | None:
    """Return how a failed run ends, or None if it is retried."""
    ended = replace(successful_result(ctx, run, ctx.engine.clock.now()), error=failure.dump(), counts=True)
    match after_failure(failure, None, ctx.job.tries + 1, ctx.engine.settings.transient_retry):
        case RetryLater():
            return None
        case Park(reason):
            return replace(ended, status=Status.PAUSED, reason=reason)
        case _:
            return replace(ended, status=Status.FAILED, reason=failure.failure_class.value)


def is_script(job: Job) -> bool:
    return job.route.startswith(scripts_store.SCRIPT_ROUTE)


def route_of(org: str, name: str) -> str:
    return f"workflow:{org}:{name}"
