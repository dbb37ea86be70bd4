"""Commands of users and programs, each one transaction; those on schedules are in `schedule_commands`."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypedDict

from rota.core import parse
from rota.core.errors import Conflict, Invalid, NotFound, Refused
from rota.core.kinds import traits_of
from rota.core.model import Job, NewJob, serial_key_of_kind
from rota.core.policy import Terms
from rota.core.states import State, Status
from rota.db.dialect import Tx, lock_keys
from rota.engine import backfill, billing_accounts, grants, jobs, runs, schedules
from rota.engine.authority import check_may_begin, check_owner
from rota.engine.schedule_commands import ScheduleCommands, at_item


class EnqueueOptions(TypedDict, total=False):
    """Options of `Engine.enqueue` for callers that pass them on."""

    run_at: datetime | None
    queue_name: str
    priority: int
    serial_key: str | None
    job_key: str | None
    key_mode: str
    terms: Terms | None
    trigger: str


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
        now, targets = self.clock.now(), {resource, job.target}
        await self.db.read(check_may_begin, job, targets, self.settings.billing, now)

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
        queue_name: str = "default",
        priority: int = 0,
        serial_key: str | None = None,
        job_key: str | None = None,
        key_mode: str = "reject",
        terms: Terms | None = None,
        trigger: str = "manual",
        trace: str | None = None,
    ) -> list[str]:
        """Enqueue one job per payload; returns their ids."""
        now, trace = self.clock.now(), trace or self.current_trace()
        runner = self.runners.get(kind)
        if runner is None or kind not in self.defaults:
            raise Invalid("kind", kind, f"is not one of {', '.join(sorted(self.defaults))}")
        routes = []
        for position, payload in enumerate(payloads):
            try:
                routes.append(await runner.resolve(org_id, target, payload))
            except Invalid as error:
                raise error if len(payloads) == 1 else at_item(error.all[0], position) from None
        new = [
            NewJob(
                org_id=org_id, kind=kind, target=target, payload=parse.payload(payload, "input"), run_at=run_at or now,
                trigger=trigger, route=route, queue=queue_name, priority=priority,
                serial_key=serial_key or serial_key_of_kind(kind, org_id, target),
                job_key=job_key, terms=terms or Terms(), trace=trace,
            )
            for payload, route in zip(payloads, routes, strict=True)
        ]  # fmt: skip
        keyless = not any(job.serial_key or job.job_key for job in new)
        run = self.db.statement if keyless else self.db.tx  # nothing to lock or look up
        return await self.write_and_wake(lambda tx: jobs.enqueue(tx, new, now, key_mode), run)

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
            if job.serial_key:
                lock_keys(tx, [job.serial_key])
            jobs.lock(tx, job.id)  # otherwise a claim could come between the two statements
            jobs.request_cancel(tx, [job.id], by, now)
            jobs.withdraw(tx, jobs.c.id == job.id, Status.CANCELED, by, now)
            return str(job.id)

        job_id = await self.write_and_wake(step)
        self.signal("cancel")
        return job_id

    async def retry(self, org_id: str, run_id: str) -> str:
        """Enqueue another attempt of a run that ended; returns the job's id, or that of the job that is already
        waiting."""
        now = self.clock.now()

        def step(tx: Tx) -> str:
            run = runs.get(tx, org_id, run_id)
            if run is None:
                raise NotFound(f"run {run_id!r} not found")
            job = jobs.find(tx, org_id, run.job_id)
            if job is not None:
                if job.state == State.PARKED:
                    jobs.resume(tx, job.id, now)
                return str(job.id)
            refusal = traits_of(run.kind).retry_refusal
            if refusal is not None:
                raise Conflict(f"run {run_id}: {refusal}")
            if run.schedule_id is not None:
                due = schedules.lock(tx, org_id, run.schedule_id)
                if run.slot is None:
                    return backfill.retry_run(tx, due.schedule, run, runs.last_attempt(tx, run.job_id), now)
                return backfill.retry_slot(tx, due, run.slot, run, now)
            new_job = NewJob(
                org_id=org_id, kind=run.kind, target=run.target, payload=run.input, run_at=now, trigger="retry",
                route=run.route, schedule_id=run.schedule_id, attempt=runs.last_attempt(tx, run.job_id),
                last_run_id=run_id, job_key=f"retry:{run.job_id}", trace=runs.trace_of(run),
                serial_key=serial_key_of_kind(run.kind, org_id, run.target), terms=Terms(grant_id=run.grant_id),
            )  # fmt: skip
            return jobs.enqueue(tx, [new_job], now, "preserve")[0]

        return await self.write_and_wake(step)

    async def set_queue(self, org_id: str, name: str, *, max_running: int | None, paused: bool) -> str:
        """Set how many jobs of a queue may run at once, and whether any may start; returns its name."""
        now = self.clock.now()
        return await self.write_and_wake(lambda tx: jobs.set_queue(tx, org_id, name, max_running, paused, now))
