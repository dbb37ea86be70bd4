"""The commands: everything that people and programs can ask of Rota, each one transaction."""

import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Self, TypeVar

from rota.core import parse
from rota.core.clock import Clock
from rota.core.errors import Conflict, Invalid, NotFound, Refused, TooMuchEffort, together
from rota.core.model import DueSchedule, Job, NewJob, Schedule, serial_key_of_kind
from rota.core.plan import FIRE_BATCH_SLOTS
from rota.core.policy import TRANSIENT_RETRY, WAKE_MAX, WAKE_MIN, Billing, Misfire, Retry, Terms, choice, parse_overlap
from rota.core.states import State, Status
from rota.core.timing import triggers
from rota.db.connection import Database
from rota.db.dialect import Tx, lock_keys
from rota.db.notify import Wake
from rota.engine import (
    backfill,
    billing_accounts,
    firing,
    grants,
    pauses,
    reports,
    runs,
    schedule_rows,
    schedules,
    tracing,
)
from rota.engine import jobs as queue
from rota.engine.audit_log import DESCRIBERS, AuditedDatabase, AuditEntry
from rota.engine.authority import check_grant, check_may_begin, check_owner, with_grant
from rota.engine.billing_accounts import MAX_CREDITS
from rota.engine.compute import compute
from rota.engine.extensions import DeletesWithSchedule, DescribesResources, Extensions, HasTraits, KindTraits
from rota.engine.metrics import Metrics
from rota.engine.runner import Runners

R = TypeVar("R")
ScheduleCheck = Callable[[Schedule, Schedule | None], None]  # what a schedule becomes, and what is stored

NO_EXTENSIONS, PLAIN = Extensions(), KindTraits()
BULK_LIMIT = 10_000
GONE = "no longer declared in the program"  # pause reason of a schedule that vanished from its program
SOME = 50  # schedules that one transaction changes


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an operator may turn; see the settings page for each."""

    lease: timedelta = timedelta(seconds=30)
    misfire_grace: timedelta = timedelta(seconds=60)
    cancel_grace: timedelta = timedelta(seconds=10)
    concurrency: int = 50
    run_as: Mapping[str, str] | None = None  # users for commands, by the slug of their org; "" for all others
    default_timeout: timedelta | None = None  # of runs whose schedule and target name none
    keep_success: timedelta = timedelta(days=30)
    keep_failed: timedelta = timedelta(days=90)
    keep_audit: timedelta = timedelta(days=400)
    max_schedules_per_task: int | None = None
    artifact_limit: int = 10 * 1024 * 1024  # bytes
    billing: Billing = Billing.RECORD
    markup: Decimal = Decimal(2)  # price over cost
    handler_limit: timedelta = timedelta(seconds=300)  # of a step of a workflow's handler, or a call of a connector
    reconcile_limit: timedelta = timedelta(seconds=30)
    wake_min: timedelta = WAKE_MIN  # how soon and how late a consumer may ask to be woken
    wake_max: timedelta = WAKE_MAX
    transient_retry: Retry = TRANSIENT_RETRY  # of transient failures of jobs without a policy of their own

    def user_of(self, org: str) -> str | None:
        """The user that runs an org's commands; None: that of the worker."""
        users = self.run_as or {}
        return users.get(org) or users.get("")


class Engine:
    def __init__(
        self,
        db: Database,
        clock: Clock,
        wake: Wake,
        runners: Runners,
        settings: EngineSettings,
        metrics: Metrics | None = None,
        extensions: Extensions = NO_EXTENSIONS,
    ) -> None:
        self.db, self.clock, self.wake, self.runners, self.settings = db, clock, wake, runners, settings
        self.metrics, self.extensions = metrics or Metrics(), extensions
        self.tracing = tracing.found()
        self.act: AuditEntry | None = None  # for whom it acts; None: the program itself
        self.defaults = {kind: runner.defaults for kind, runner in runners.items()}
        self.describers = {**DESCRIBERS, **extensions.describers}
        self.traits: dict[str, KindTraits] = {}
        for kind, runner in runners.items():
            if isinstance(runner, DescribesResources):
                self.describers.update(runner.describers)
            if isinstance(runner, HasTraits):
                self.traits[kind] = runner.traits

    def traits_of(self, kind: str) -> KindTraits:
        """How work of a kind is treated."""
        return self.traits.get(kind, PLAIN)

    def audited_as(self, act: AuditEntry, db: Database | None = None) -> Self:
        """The same engine, on the same database or the given one; the audit log records what it writes as this act."""
        engine = copy.copy(self)
        engine.db, engine.act = AuditedDatabase(db or self.db, act, self.clock, self.describers), act
        return engine

    def signal(self, topic: str) -> None:
        """Wake the loops of this process once what was written is committed."""
        self.db.after_commit(lambda: self.wake.signal(topic))

    # schedules

    async def create_schedules(
        self, org_id: str, bodies: Sequence[Mapping[str, Any]], *, by: str | None = None, source: str = "api",
        check: ScheduleCheck | None = None,
    ) -> list[Schedule]:  # fmt: skip
        """Make schedules from their flat form: all of them or, when one is wrong, none. `check` raises if the caller
        may not make one of them."""
        if not 1 <= len(bodies) <= BULK_LIMIT:
            raise Invalid("items", len(bodies), f"is not a number from 1 to {BULK_LIMIT}")
        now = self.clock.now()
        new: list[Schedule] = []
        wrong: list[Invalid] = []
        routes: dict[tuple[str, str], str] = {}  # of targets that are given nothing: looked up once for all

        def parse_all() -> list[Schedule | Invalid]:
            return [self.parsed(body, org_id=org_id, now=now, source=source, by=by) for body in bodies]

        for position, one in enumerate(await compute(parse_all)):
            try:
                if isinstance(one, Invalid):
                    raise one
                if check is not None:
                    check(one, None)
                route = routes.get((one.kind, one.target)) if one.input is None else None
                if route is None:
                    route = await self.resolve(one)
                    if one.input is None:
                        routes[one.kind, one.target] = route
                new.append(one.with_route(route))
            except Invalid as error:
                wrong += error.all if len(bodies) == 1 else [at_item(one_error, position) for one_error in error.all]
        if wrong:
            raise together(wrong)

        def step(tx: Tx) -> list[Schedule]:
            granted = [with_grant(tx, self.runners, self.act, one, now) for one in new]
            schedules.insert(tx, granted, now, rows)
            return granted

        rows = await compute(schedule_rows.new_rows, new, now)
        made = await self.db.tx(step)
        self.signal("clocks")
        return made

    def parsed(self, body: Mapping[str, Any], **given: Any) -> Schedule | Invalid:
        """A schedule from its flat form, or what is wrong with it. Raises TooMuchEffort."""
        try:
            return parse.parse_schedule(body, defaults=self.defaults, **given)
        except TooMuchEffort:
            raise
        except Invalid as error:
            return error

    async def edit_schedule(
        self,
        org_id: str,
        key: str,
        changes: Mapping[str, Any],
        *,
        expected: int | None = None,
        whole: bool = False,
        by_manager: bool = False,
        check: ScheduleCheck | None = None,
    ) -> Schedule:
        """Change fields of a schedule; what is not said stays or, if these are the whole of it, is as in a new one.
        Raises Conflict if the schedule is managed elsewhere, unless `by_manager`. `check` raises if the caller may
        not make of the stored schedule what they want."""
        now = self.clock.now()
        parse_change = parse.parse_put if whole else parse.parse_patch
        before = await self.db.read(schedules.get, org_id, key)
        wanted = parse_change(before, changes, defaults=self.defaults, now=now)
        route = await self.resolve(wanted) if whole or {"target", "input"} & set(changes) else before.route

        def step(tx: Tx) -> Schedule:
            due = schedules.lock(tx, org_id, before.id)
            new = parse_change(due.schedule, changes, defaults=self.defaults, now=now)
            if not by_manager:
                check_managed_fields(due.schedule, new, self.traits_of(new.kind))
            if check is not None:
                check(new, due.schedule)
            if {"target", "grant_id", "input"} & set(changes):
                new = with_grant(tx, self.runners, self.act, new, now, due.schedule)
            return schedules.replace_schedule(tx, due, replace(new, route=route), now, expected)

        return await self.write_and_wake(step)

    async def delete_schedule(self, org_id: str, key: str, *, expected: int | None = None, force: bool = False) -> None:
        """Take a schedule away; its slots and runs stay, what runs finishes. Raises Conflict if it is managed
        elsewhere; `force` deletes one that a program declares, until the program declares it again."""
        now = self.clock.now()

        def step(tx: Tx) -> Schedule:
            due = schedules.lock(tx, org_id, key)
            if not self.deletable(due.schedule, force):
                raise Conflict(f"schedule '{due.schedule.name}' is managed by {due.schedule.managed_by}")
            return self.delete_locked(tx, due, now, expected)

        await self.write_and_wake(step)

    async def pause_schedule(self, org_id: str, key: str, *, reason: str = "", until: Any = None) -> Schedule:
        now = self.clock.now()
        end = self.future(until, "until", now)
        why = parse.text(reason, "reason", 1000)
        return await self.write_and_wake(lambda tx: pauses.pause(tx, schedules.lock(tx, org_id, key), why, end, now))

    async def resume_schedule(self, org_id: str, key: str, *, gap: Any = "skip") -> Schedule:
        now = self.clock.now()
        policy = choice(Misfire, gap, "gap")
        return await self.write_and_wake(lambda tx: pauses.resume(tx, schedules.lock(tx, org_id, key), policy, now))

    async def pause_many(
        self, org_id: str, wanted: Mapping[str, Any], *, reason: str = "", until: Any = None
    ) -> list[Schedule]:
        """Pause all schedules that `wanted` finds; returns them."""
        now = self.clock.now()
        end, why = self.future(until, "until", now), parse.text(reason, "reason", 1000)
        return await self.change_many(org_id, wanted, lambda tx, due: pauses.pause(tx, due, why, end, now))

    async def resume_many(self, org_id: str, wanted: Mapping[str, Any], *, gap: Any = "skip") -> list[Schedule]:
        """End the pauses of all schedules that `wanted` finds; returns those that were paused."""
        now, policy = self.clock.now(), choice(Misfire, gap, "gap")
        if wanted.get("paused") is False:
            return []
        paused = {**wanted, "paused": True}
        return await self.change_many(org_id, paused, lambda tx, due: pauses.resume(tx, due, policy, now))

    async def enable_many(self, org_id: str, wanted: Mapping[str, Any], *, enabled: bool) -> list[Schedule]:
        """Enable or disable all schedules that `wanted` finds; returns those that changed. Left out are producers of
        workflows, which are paused with their workflow, and schedules that have no slot left."""
        now = self.clock.now()
        if wanted.get("enabled") is enabled:
            return []

        def change(tx: Tx, due: DueSchedule) -> Schedule | None:
            if due.schedule.enabled is enabled or self.traits_of(due.schedule.kind).declares_schedules:
                return None
            try:
                new = parse.parse_patch(due.schedule, {"enabled": enabled}, defaults=self.defaults, now=now)
            except Invalid:
                return None
            return schedules.replace_schedule(tx, due, new, now)

        return await self.change_many(org_id, {**wanted, "enabled": not enabled}, change)

    async def delete_many(self, org_id: str, wanted: Mapping[str, Any]) -> list[Schedule]:
        """Take away all schedules that `wanted` finds and that are not managed elsewhere; returns them."""
        now = self.clock.now()

        def delete(tx: Tx, due: DueSchedule) -> Schedule | None:
            if not self.deletable(due.schedule, force=False):
                return None
            return self.delete_locked(tx, due, now)

        return await self.change_many(org_id, wanted, delete)

    def deletable(self, schedule: Schedule, force: bool) -> bool:
        """Whether a person may delete a schedule: not while a workflow, a trigger or a program would miss it."""
        gone = schedule.paused_at is not None and schedule.pause_reason == GONE
        by_program = schedule.source.startswith("code:") and not self.traits_of(schedule.kind).declares_schedules
        return schedule.managed_by is None or (by_program and (gone or force))

    def delete_locked(self, tx: Tx, due: DueSchedule, now: datetime, expected: int | None = None) -> Schedule:
        """Mark a locked schedule as deleted, with what its kind deletes along with it."""
        deleted = schedules.replace_schedule(tx, due, replace(due.schedule, deleted_at=now), now, expected)
        runner = self.runners.get(deleted.kind)
        if isinstance(runner, DeletesWithSchedule):
            runner.schedule_deleted(tx, deleted)
        return deleted

    async def skip_next(self, org_id: str, key: str, *, reason: str = "") -> datetime:
        now = self.clock.now()
        why = parse.text(reason, "reason", 1000)
        return await self.write_and_wake(lambda tx: pauses.skip_next(tx, schedules.lock(tx, org_id, key), why, now))

    async def run_now(
        self, org_id: str, key: str, *, overlap: Any = None, trace: str | None = None,
        check: ScheduleCheck | None = None, **given: Any,
    ) -> str:  # fmt: skip
        """A job at once, beside the slots; returns its id. `input` stands in for the schedule's."""
        now = self.clock.now()
        schedule = await self.db.read(schedules.get, org_id, key)
        payload = parse.payload(given["input"], "input") if given.get("input") is not None else schedule.input
        if given.get("input") is not None:
            await self.resolve(replace(schedule, input=payload))
        policy = None if overlap is None else parse_overlap(overlap)

        def step(tx: Tx) -> str:
            due = schedules.lock(tx, org_id, key)
            if check is not None:
                check(replace(due.schedule, input=payload), due.schedule)
            if payload != due.schedule.input and due.schedule.grant_id is not None:
                check_grant(tx, self.runners, replace(due.schedule, input=payload), now)
                check_owner(tx, self.act, org_id, due.schedule.grant_id)
            return firing.run_now(tx, due.schedule, payload, policy or due.schedule.overlap, trace, now)

        return await self.write_and_wake(step)

    async def backfill(
        self,
        org_id: str,
        key: str,
        *,
        since: Any,
        until: Any,
        reprocess: bool = False,
        limit: int = 100,
        dry_run: bool = False,
    ) -> list[datetime]:
        """Fire slots of the past that did not run; returns them. A dry run only tells which."""
        now = self.clock.now()
        first, last = triggers.parse_instant(since, "from"), triggers.parse_instant(until, "to")
        if first > last:
            raise Invalid("to", until, f"lies before `from` ({first.isoformat()})")
        most = parse.whole(limit, "limit", 1, FIRE_BATCH_SLOTS)

        def read(tx: Tx) -> backfill.PastSlots:
            return backfill.read_past_slots(tx, schedules.read_with_clock(tx, org_id, key), first, last, now)

        before = await self.db.read(read)
        wanted = await compute(before.unfired, most, reprocess=reprocess)
        if dry_run or not wanted:
            return wanted
        return await self.write_and_wake(
            lambda tx: backfill.fire_past(tx, before, wanted, reprocess=reprocess, now=self.clock.now())
        )

    async def freeze(self, org_id: str, *, reason: str = "", until: Any = None) -> None:
        """Let every slot of an org pass, until it is unfrozen."""
        now = self.clock.now()
        why = parse.text(reason, "reason", 1000)
        await self.db.tx(pauses.freeze, org_id, why, self.future(until, "until", now), now)

    async def unfreeze(self, org_id: str) -> None:
        await self.write_and_wake(lambda tx: pauses.unfreeze(tx, org_id, self.clock.now()))

    # grants

    async def trouble_with_grant(self, job: Job, resource: str) -> str | None:
        """Why a job may not run under its grant, as a code."""
        assert job.terms.grant_id is not None
        now, targets = self.clock.now(), {resource, job.target}
        return await self.db.read(grants.trouble, job.org_id, job.terms.grant_id, job.kind, targets, now)

    async def authorize(self, job: Job, resource: str) -> None:
        """Raise Skipped if a job may not begin under its grant, or its account is closed or its budget used up."""
        now, targets = self.clock.now(), {resource, job.target}
        await self.db.read(check_may_begin, job, targets, self.settings.billing, now)

    async def create_grant(
        self, org_id: str, body: Mapping[str, Any], owner_id: str, *, any_account: bool = True
    ) -> str:
        """Give work an authority of its own; returns the grant's id. Not everybody may let others pay for it."""
        now = self.clock.now()
        form = parse.Form(body, frozenset({"scopes", "expires_at", "billing_account_id", "consent", "budget"}))
        consent = form.take("consent", parse.flag, False) is True
        scopes = form.need("scopes", lambda value, _: grants.parse_scopes(value, consent)) or []
        expires_at = form.take("expires_at", lambda value, field: self.future(value, field, now), None)
        account = form.take("billing_account_id", parse.ulid, None)
        budget = form.take("budget", read_budget, None)
        form.done()
        given: dict[str, Any] = {"expires_at": expires_at, "billing_account_id": account, "budget": budget}

        def step(tx: Tx) -> str:
            if account and not any_account and billing_accounts.get(tx, org_id, account).owner_id != owner_id:
                raise Refused(f"billing account {account}: only admins let others pay")
            return grants.mint(tx, org_id, owner_id, scopes, now, **given)

        return await self.db.tx(step)

    async def revoke_grant(self, org_id: str, grant_id: str, *, cancel_running: bool = False) -> str:
        """Let nothing more start under a grant; what runs finishes, unless asked otherwise. Returns its id."""
        now = self.clock.now()

        def step(tx: Tx) -> str:
            check_owner(tx, self.act, org_id, grant_id)
            grants.revoke(tx, org_id, grant_id, now)
            if cancel_running:
                queue.request_cancel(tx, grants.jobs_under(tx, org_id, grant_id), "grant_revoked", now)
            return grant_id

        revoked = await self.write_and_wake(step)
        self.signal("cancel")
        return revoked

    # jobs and runs

    async def enqueue(
        self,
        org_id: str,
        kind: str,
        target: str,
        payloads: Sequence[Any],
        *,
        run_at: datetime | None = None,
        queue_name: str = "default",
        priority: int = 0,
        serial_key: str | None = None,
        job_key: str | None = None,
        key_mode: str = "reject",
        terms: Terms | None = None,
        trigger: str = "manual",
        trace: str | None = None,
    ) -> list[str]:
        """Promise work: one job per payload. Returns their ids."""
        now, trace = self.clock.now(), trace or self.current_trace()
        runner = self.runners.get(kind)
        if runner is None:
            raise Invalid("kind", kind, f"is not one of {', '.join(sorted(self.runners))}")
        routes = []
        for position, one in enumerate(payloads):
            try:
                routes.append(await runner.resolve(org_id, target, one))
            except Invalid as error:
                raise error if len(payloads) == 1 else at_item(error.all[0], position) from None
        new = [
            NewJob(
                org_id=org_id, kind=kind, target=target, payload=parse.payload(one, "input"), run_at=run_at or now,
                trigger=trigger, route=route, queue=queue_name, priority=priority,
                serial_key=serial_key or serial_key_of_kind(kind, org_id, target),
                job_key=job_key, terms=terms or Terms(), trace=trace,
            )
            for one, route in zip(payloads, routes, strict=True)
        ]  # fmt: skip
        keyless = not any(job.serial_key or job.job_key for job in new)
        run = self.db.statement if keyless else self.db.tx  # there is nothing to lock or to look for
        return await self.write_and_wake(lambda tx: queue.enqueue(tx, new, now, key_mode), run)

    async def cancel(self, org_id: str, key: str, *, by: str = "operator") -> str:
        """Stop a job, by its id or the id of its current run: at once if it waits, through its worker if it runs.
        Returns the job's id."""
        now = self.clock.now()

        def step(tx: Tx) -> str:
            job = queue.find(tx, org_id, key)
            if job is None:
                ended = runs.get(tx, org_id, key)
                if ended is None and not runs.of_job(tx, org_id, key):
                    raise NotFound(f"job or run {key!r} not found")
                raise Conflict(f"{key}: it has ended already, there is nothing to cancel")
            refusal = self.traits_of(job.kind).cancel_refusal
            if refusal is not None and (job.attempt or job.state == State.RUNNING):
                raise Conflict(f"{key}: {refusal}")
            if job.serial_key:
                lock_keys(tx, [job.serial_key])
            queue.lock(tx, job.id)  # else a claim could come between the two looks at it
            queue.request_cancel(tx, [job.id], by, now)
            queue.withdraw(tx, queue.c.id == job.id, Status.CANCELED, by, now)
            return str(job.id)

        job_id = await self.write_and_wake(step)
        self.signal("cancel")
        return job_id

    async def retry(self, org_id: str, run_id: str) -> str:
        """Another attempt of a run that ended; returns the job's id. Joins one that is on its way already."""
        now = self.clock.now()

        def step(tx: Tx) -> str:
            run = runs.get(tx, org_id, run_id)
            if run is None:
                raise NotFound(f"run {run_id!r} not found")
            job = queue.find(tx, org_id, run.job_id)
            if job is not None:
                if job.state == State.PARKED:
                    queue.resume(tx, job.id, now)
                return str(job.id)
            refusal = self.traits_of(run.kind).retry_refusal
            if refusal is not None:
                raise Conflict(f"run {run_id}: {refusal}")
            if run.schedule_id is not None:
                due = schedules.lock(tx, org_id, run.schedule_id)
                if run.slot is None:
                    return backfill.retry_run(tx, due.schedule, run, runs.last_attempt(tx, run.job_id), now)
                return backfill.retry_slot(tx, due, run.slot, run, now)
            again = NewJob(
                org_id=org_id, kind=run.kind, target=run.target, payload=run.input, run_at=now, trigger="retry",
                route=run.route, schedule_id=run.schedule_id, attempt=runs.last_attempt(tx, run.job_id),
                last_run_id=run_id, job_key=f"retry:{run.job_id}", trace=runs.trace_of(run),
                serial_key=serial_key_of_kind(run.kind, org_id, run.target), terms=Terms(grant_id=run.grant_id),
            )  # fmt: skip
            return queue.enqueue(tx, [again], now, "preserve")[0]

        return await self.write_and_wake(step)

    async def set_queue(self, org_id: str, name: str, *, max_running: int | None, paused: bool) -> str:
        """How many jobs of a queue may run at once, and whether any may start."""
        now = self.clock.now()
        return await self.write_and_wake(lambda tx: queue.set_queue(tx, org_id, name, max_running, paused, now))

    # helpers

    async def change_many(
        self, org_id: str, wanted: Mapping[str, Any], change: Callable[[Tx, DueSchedule], Schedule | None]
    ) -> list[Schedule]:
        """Change schedules, some at a time: others want to write too. Returns those that changed; a schedule that was
        deleted in between, or for which `change` returns None, is left out."""
        ids = await self.db.read(reports.schedule_ids, org_id, **wanted)

        def step(tx: Tx, some: Sequence[str]) -> list[Schedule]:
            found = [schedules.lock(tx, org_id, one) for one in some if schedules.exists(tx, org_id, one)]
            if wanted.get("paused"):
                found = [due for due in found if due.schedule.paused_at is not None]
            return [schedule for due in found if (schedule := change(tx, due)) is not None]

        changed: list[Schedule] = []
        for start in range(0, len(ids), SOME):
            some = ids[start : start + SOME]
            changed += await self.write_and_wake(partial(step, some=some))
        return changed

    def current_trace(self) -> str | None:
        """The `traceparent` of the span that is current here, if there is one."""
        return None if self.tracing is None else self.tracing.told()

    async def resolve(self, schedule: Schedule) -> str:
        """The route of a schedule's target, which must exist and take its input."""
        return await self.runners[schedule.kind].resolve(schedule.org_id, schedule.target, schedule.input)

    async def write_and_wake(self, step: Callable[[Tx], R], run: Callable[..., Awaitable[R]] | None = None) -> R:
        """Run a step that may move due moments, then wake the scheduler and the worker of this process."""
        result = await (run or self.db.tx)(step)
        self.signal("clocks")
        self.signal("ready")
        return result

    def future(self, value: Any, field: str, now: datetime) -> datetime | None:
        if value is None:
            return None
        moment = triggers.parse_instant(value, field)
        if moment <= now:
            raise Invalid(field, value, f"is not in the future; it is {now.isoformat(timespec='seconds')} now")
        return moment


def check_managed_fields(old: Schedule, new: Schedule, traits: KindTraits) -> None:
    """Raise Conflict if an edit changes what the manager of a schedule would write again."""
    if old.managed_by is None:
        return
    before, after = parse.flat(old), parse.flat(new)
    own = {"grant_id"} if traits.declares_schedules else {"grant_id", "enabled"}
    changed = sorted(field for field, value in after.items() if before[field] != value and field not in own)
    if changed:
        raise Conflict(f"schedule '{old.name}' is managed by {old.managed_by} (refused: {', '.join(changed)})")


def read_budget(value: Any, field: str) -> dict[str, int]:
    """`{per_day, total}` in credits."""
    if not isinstance(value, Mapping) or not value:
        raise Invalid(field, value, "is not an object like {per_day, total}, in credits")
    form = parse.Form(value, frozenset({"per_day", "total"}))
    found = {
        name: form.take(name, lambda one, name: parse.whole(one, f"{field}.{name}", 0, MAX_CREDITS), None)
        for name in ("per_day", "total")
    }
    form.done()
    return {name: one for name, one in found.items() if one is not None}


def at_item(error: Invalid, position: int) -> Invalid:
    return Invalid(f"items[{position}].{error.field}", error.value, error.right)
