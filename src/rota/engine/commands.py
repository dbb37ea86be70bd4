"""Commands of users and programs, each one transaction; those on schedules are in `schedule_commands`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from rota.core import parse
from rota.core.errors import Conflict, Invalid, NotFound, Refused
from rota.core.flow import EnqueueRules, Rate
from rota.core.ids import new_id
from rota.core.kinds import traits_of
from rota.core.model import Job, NewJob, serial_key_of_kind
from rota.core.order import When
from rota.core.policy import Terms, choice
from rota.core.states import State, Status
from rota.db.dialect import Tx, is_listed, lock_keys
from rota.engine import (
    backfill,
    billing_accounts,
    children,
    decisions,
    enqueueing,
    grants,
    jobs,
    runs,
    schedules,
    serial_keys,
    signals,
    steps,
    versions,
)
from rota.engine.authority import check_may_begin, check_owner
from rota.engine.enqueueing import AFTER_JOBS_MAX, EnqueueOptions, check_rules, enqueue_step, new_jobs
from rota.engine.extensions import RulesEnqueuing
from rota.engine.records import RunRow
from rota.engine.schedule_commands import ScheduleCommands, at_item


class Engine(ScheduleCommands):
    """Runs the commands of users and programs."""

    # grants

    async def trouble_with_grant(self, job: Job, resource: str) -> str | None:
        """Return a code for why a job may not run under its grant; None if it may."""
        assert job.terms.grant_id is not None
        now, targets = self.clock.now(), {resource, job.target}
        return await self.db.read(grants.trouble, job.org_id, job.terms.grant_id, job.kind, targets, now)

    async def authorize(self, job: Job, resource: str) -> None:
        """Raise Skipped if a job may not begin under its grant, or its account is closed or its budget used up."""
        assert job.terms.grant_id is not None
        now, targets, mode = self.clock.now(), {resource, job.target}, self.settings.billing
        await self.db.read(check_may_begin, job.org_id, job.terms.grant_id, job.kind, targets, mode, now)

    async def create_grant(
        self,
        org_id: str,
        owner_id: str,
        scopes: Sequence[str],
        *,
        expires_at: datetime | None = None,
        billing_account_id: str | None = None,
        budget: Mapping[str, int] | None = None,
        any_account: bool = True,
    ) -> str:
        """Create a grant, under which work runs without its owner; returns its id. `budget` has `per_day` and `total`
        in credits. Raises Invalid for an expiry in the past, Refused for the billing account of another user unless
        `any_account`."""
        now, account = self.clock.now(), billing_account_id
        expires_at = self.future(expires_at, "expires_at", now)

        def step(tx: Tx) -> str:
            if account and not any_account and billing_accounts.get(tx, org_id, account).owner_id != owner_id:
                raise Refused(f"billing account {account}: only admins let others pay")
            return grants.mint(
                tx, org_id, owner_id, scopes, now, expires_at=expires_at, billing_account_id=account, budget=budget
            )

        return await self.db.tx(step)

    async def revoke_grant(self, org_id: str, grant_id: str, *, cancel_running: bool = False) -> str:
        """Revoke a grant: nothing more starts under it; running jobs finish unless `cancel_running`. Returns its id."""
        now = self.clock.now()

        def step(tx: Tx) -> str:
            check_owner(tx, self.act, org_id, grant_id)
            grants.revoke(tx, org_id, grant_id, now)
            if cancel_running:
                jobs.request_cancel(tx, grants.jobs_under(tx, org_id, grant_id), "grant_revoked", now)
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
        payloads: Sequence[object],
        *,
        run_at: datetime | None = None,
        queue_name: str | None = None,
        priority: int | None = None,
        serial_key: str | None = None,
        job_key: str | None = None,
        key_mode: str = "reject",
        terms: Terms | None = None,
        trigger: str = "manual",
        trace: str | None = None,
        after: Sequence[str] = (),
        when: str = When.SUCCESS,
    ) -> list[str]:
        """Enqueue one job per payload; returns their ids. Queue and priority are by default those of the target. Its
        rules may join a job to one that waits (debounce), or record it as skipped (throttle). With `after` the jobs
        wait until these jobs have ended, and run if they ended as `when` says."""
        now = self.clock.now()
        options = EnqueueOptions(
            run_at=run_at, queue_name=queue_name, priority=priority, serial_key=serial_key, job_key=job_key,
            key_mode=key_mode, terms=terms, trigger=trigger, after=after, when=when,
        )  # fmt: skip
        new, rules = await self.resolved_jobs(org_id, kind, target, payloads, now, trace, options)
        return await self.write_and_wake(enqueue_step(new, rules, now, options))

    async def enqueue_batch(
        self,
        org_id: str,
        name: str,
        kind: str,
        target: str,
        payloads: Sequence[object],
        then: str,
        then_payload: object = None,
        *,
        when: str = When.ANY,
        queue_name: str | None = None,
        priority: int | None = None,
    ) -> tuple[list[str], str]:
        """Enqueue a job per payload and a job of the target `then` that runs when all have ended, in one transaction;
        returns their ids. Raises Conflict while the last job of a batch with this name has not ended."""
        now, condition = self.clock.now(), choice(When, when, "when")
        if not 1 <= len(payloads) <= AFTER_JOBS_MAX:
            raise Invalid("batch", len(payloads), f"is not a number of jobs from 1 to {AFTER_JOBS_MAX}")
        options = EnqueueOptions(queue_name=queue_name, priority=priority)
        members, rules = await self.resolved_jobs(org_id, kind, target, payloads, now, None, options)
        callback = EnqueueOptions(job_key=f"batch:{parse.label(name, 'name')}")
        last, last_rules = await self.resolved_jobs(org_id, kind, then, [then_payload], now, None, callback)
        if any(rule.debounce or rule.throttle for rule in (*rules, *last_rules)):
            raise Invalid("batch", name, "cannot have tasks with `debounce` or `throttle`")

        def step(tx: Tx) -> tuple[list[str], str]:
            ids = jobs.enqueue(tx, members, now)
            return ids, enqueueing.enqueue_after(tx, last, ids, condition, now)[0]

        return await self.write_and_wake(step)

    async def resolved_jobs(
        self,
        org_id: str,
        kind: str,
        target: str,
        payloads: Sequence[object],
        now: datetime,
        trace: str | None,
        options: EnqueueOptions,
    ) -> tuple[list[NewJob], list[EnqueueRules]]:
        """Return jobs to enqueue, one per payload, and the rules of their target for each. Raises Invalid."""
        runner = self.runners.get(kind)
        if runner is None or kind not in self.defaults:
            raise Invalid("kind", kind, f"is not one of {', '.join(sorted(self.defaults))}")
        routes: list[str] = []
        rules: list[EnqueueRules] = []
        ruling = runner if isinstance(runner, RulesEnqueuing) else None
        for position, payload in enumerate(payloads):
            try:
                routes.append(await runner.resolve(org_id, target, payload))
                own = None if ruling is None else await ruling.enqueue_rules(org_id, target, payload)
                rules.append(check_rules(own, kind, target, options))
            except Invalid as error:
                raise at_payload(error, position, len(payloads)) from None
        trace = trace or self.current_trace()
        return new_jobs(org_id, kind, target, payloads, routes, rules, now, trace, options), rules

    async def cancel(self, org_id: str, key: str, *, by: str = "operator") -> str:
        """Cancel a job, by its id or the id of its current run: at once if it waits, through its worker if it runs.
        Returns the job's id."""
        now = self.clock.now()

        def step(tx: Tx) -> str:
            job = jobs.find(tx, org_id, key)
            if job is None:
                ended = runs.get(tx, org_id, key)
                if ended is None and not runs.of_job(tx, org_id, key):
                    raise NotFound(f"job or run {key!r} not found")
                raise Conflict(f"{key} has already ended and cannot be canceled")
            refusal = traits_of(job.kind).cancel_refusal
            if refusal is not None and (job.attempt or job.state == State.RUNNING):
                raise Conflict(f"{key}: {refusal}")
            ids = [job.id, *children.descendants(tx, [job.id])]
            lock_keys(tx, serial_keys.keys_of(tx, ids))
            for job_id in sorted(ids):
                jobs.lock(tx, job_id)  # otherwise a claim could come between the two statements
            jobs.request_cancel(tx, ids, by, now)
            jobs.withdraw(tx, is_listed(tx, jobs.c.id, ids), Status.CANCELED, by, now)
            return str(job.id)

        job_id = await self.write_and_wake(step)
        self.signal("cancel")
        return job_id

    async def delete_run(self, org_id: str, key: str) -> str:
        """Delete a run that ended, by its id or that of its job, with all attempts of the job, their logs and
        artifacts; its slot keeps its verdict. Returns the job's id. Raises NotFound, or Conflict if the job has not
        ended or another run needs it."""
        return await self.write_and_wake(lambda tx: runs.delete_ended(tx, org_id, key))

    async def retry(self, org_id: str, run_id: str, *, from_step: str | None = None, payload: object = None) -> str:
        """Enqueue another attempt of a run that ended, with its input or `payload`; returns the job's id, or that of
        the job that is already waiting. A parked job goes on, under any version of its code. With `from_step` the
        attempt keeps the results of the steps before that one. Raises NotFound, Conflict, or Invalid for a step that is
        not recorded or an input that does not fit."""
        now = self.clock.now()
        if payload is not None:
            ended = await self.db.read(runs.get, org_id, run_id)
            if ended is not None:
                await self.runners[ended.kind].resolve(org_id, ended.target, parse.payload(payload, "input"))

        def step(tx: Tx) -> str:
            run = runs.get(tx, org_id, run_id)
            if run is None:
                return resume(tx)
            kept = [] if from_step is None else steps.before(tx, run.job_id, from_step)
            job_id = again(tx, run if payload is None else replace(run, input=payload))
            if from_step is not None:
                steps.keep(tx, job_id, kept)
            return job_id

        def resume(tx: Tx) -> str:
            job = jobs.find(tx, org_id, run_id)  # its run is suspended, and parked
            if job is None:
                raise NotFound(f"run {run_id!r} not found")
            if job.state != State.PARKED or from_step is not None or payload is not None:
                raise Conflict(f"run {run_id} has not ended; cancel it first")
            versions.unpin(tx, job.id)
            jobs.resume(tx, job.id, now)
            return str(job.id)

        def again(tx: Tx, run: RunRow) -> str:
            job = jobs.find(tx, org_id, run.job_id)
            if job is not None and (from_step is not None or payload is not None):
                raise Conflict(f"job {job.id} of run {run_id} has not ended; cancel it first")
            if job is not None:
                if job.state == State.PARKED:
                    versions.unpin(tx, job.id)
                    jobs.resume(tx, job.id, now)
                return str(job.id)
            refusal = traits_of(run.kind).retry_refusal
            if refusal is not None:
                raise Conflict(f"run {run_id}: {refusal}")
            if run.schedule_id is not None:
                due = schedules.lock(tx, org_id, run.schedule_id)
                if run.slot is None:
                    return backfill.retry_run(tx, due.schedule, run, runs.last_attempt(tx, run.job_id), now)
                return backfill.retry_slot(tx, due, run.slot, run, now, payload)
            new_job = NewJob(
                org_id=org_id, kind=run.kind, target=run.target, payload=run.input, run_at=now, trigger="retry",
                route=versions.base_of(run.route), schedule_id=run.schedule_id,
                attempt=runs.last_attempt(tx, run.job_id), last_run_id=run_id, job_key=f"retry:{run.job_id}",
                trace=runs.trace_of(run),
                serial_key=serial_key_of_kind(run.kind, org_id, run.target), terms=Terms(grant_id=run.grant_id),
            )  # fmt: skip
            return jobs.enqueue(tx, [new_job], now, "preserve")[0]

        return await self.write_and_wake(step)

    # suspended and parked runs

    async def send_signal(
        self,
        org_id: str,
        topic: object,
        *,
        key: object = None,
        payload: object = None,
        signal_id: object = None,
        sender: str | None = None,
    ) -> signals.SentSignal:
        """Send a signal: it completes the oldest wait for its topic and key, or is kept for one. Idempotent by its id.
        Raises Invalid, or Conflict if another signal has this id."""
        now = self.clock.now()
        signal = signals.Signal(
            new_id() if signal_id is None else parse.label(signal_id, "id"),
            org_id,
            parse.label(topic, "topic"),
            "" if key is None else parse.label(key, "key"),
            parse.payload(payload, "payload"),
            sender,
        )
        return await self.write_and_wake(lambda tx: signals.send(tx, signal, now))

    async def decide_approval(
        self,
        org_id: str,
        run_id: str,
        *,
        approved: bool,
        by: str,
        may: decisions.MayApprove,
        comment: str | None = None,
        step: str | None = None,
    ) -> str:
        """Decide the approval that a run waits for; returns the job's id. Raises Refused, NotFound or Conflict."""
        now = self.clock.now()
        return await self.write_and_wake(
            lambda tx: decisions.decide(tx, org_id, run_id, step, approved, by, comment, may, now)
        )

    async def resolve_effect(
        self,
        org_id: str,
        run_id: str,
        resolution: decisions.EffectResolution,
        *,
        by: str,
        result: object = None,
        step: str | None = None,
    ) -> str:
        """Record what a person knows about an effect whose outcome is unknown; returns the job's id. Raises NotFound
        or Conflict."""
        now, known = self.clock.now(), parse.payload(result, "result")
        return await self.write_and_wake(
            lambda tx: decisions.resolve_effect(tx, org_id, run_id, step, resolution, known, by, now)
        )

    async def set_queue(
        self, org_id: str, name: str, *, max_running: int | None, paused: bool, rate: Rate | None = None
    ) -> str:
        """Set how many jobs of a queue may run at once, how often one may start, and whether any may start; returns its
        name."""
        now = self.clock.now()
        set_name = await self.write_and_wake(
            lambda tx: jobs.set_queue(tx, org_id, name, max_running, paused, now, rate)
        )
        self.signal("tasks")
        return set_name


def at_payload(error: Invalid, position: int, count: int) -> Invalid:
    """Return the error of a payload; of one among several with its position."""
    return error if count == 1 else at_item(error.all[0], position)
