"""The server's side of an agent: hands out jobs, receives logs and results.

A claim is identified by its job and its fence, on both sides. Handing out marks the run as started; the report of a
claim that has been lost changes nothing. When an agent is lost, a job that is not read-only is parked for
reconciliation until its agent, or a person, reports whether it was applied.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from rota.core.clock import real_sleep
from rota.core.errors import Conflict, LeaseLost, NotFound, Unavailable
from rota.core.ids import new_id
from rota.core.model import Attempt, AttemptResult, RunInfo
from rota.core.policy import RECONCILIATION, Failure, FailureClass
from rota.core.redact import redacted, redacted_text
from rota.core.states import State, Status
from rota.db.dialect import Tx, notify
from rota.db.paging import Record
from rota.engine import finishing, grants, jobs, runs
from rota.engine.commands import Engine
from rota.engine.runner import LINE_LIMIT, LOG_LIMIT, LogLine, storable
from rota.engine.worker.outcome import failed_attempt
from rota.kinds.hosts.store import hosts
from rota.kinds.hosts.store.records import ClaimedJob, HostRow

LEASE_FACTOR = 3  # of a worker's lease: an agent's network is less reliable
LINE_COST = 12  # characters that a log line counts beside its text
WATCH_SECONDS = 0.02  # between two queries of the watcher

LogLines = Sequence[Sequence[str]]  # stream and text of each line
UNREPORTED = (Status.CRASHED, Status.PAUSED)  # statuses of runs that ended without a report

log = structlog.get_logger("rota.hosts")


class Dispatch:
    """The requests of the agent of one host, which its key identifies."""

    def __init__(self, engine: Engine, host: HostRow) -> None:
        self.engine, self.host, self.db, self.clock = engine, host, engine.db, engine.clock

    @property
    def lease(self) -> timedelta:
        return self.engine.settings.lease * LEASE_FACTOR

    async def register(self, facts: Record, journal: Mapping[tuple[str, int], str]) -> Record:
        """Start a session of an agent; returns its id, lease, and the claims whose outcome is unknown."""
        now = self.clock.now()
        session, unresolved = await self.db.tx(hosts.register, self.host, facts, self.lease, journal, now)
        self.engine.wake.signal("ready")
        grace = self.engine.settings.cancel_grace.total_seconds()
        log.info("agent registered", host=self.host.name, session=session)
        return {
            "session": session,
            "lease_seconds": self.lease.total_seconds(),
            "cancel_grace_seconds": grace,
            "asked": [f"{job_id}.{fence}" for job_id, fence in unresolved],
        }

    async def poll(
        self,
        session: str,
        reads: int,
        known: Collection[str],
        stopping: Collection[str],
        metrics: Record | None,
        hub: "PollHub",
        seconds: float,
        disconnected: Callable[[], Awaitable[bool]],
    ) -> Record:
        """Long poll of an agent, and its heartbeat: returns new jobs and the jobs to cancel, or after `seconds`
        nothing. `known` are the claims that the agent has: others are sent again, because an answer may be lost.
        `stopping` are the jobs that it is canceling already."""
        now = self.clock.now()
        recent = await self.db.read(hosts.renewed_since, self.host.id, session, now - self.lease / 10)
        if not recent or (metrics is not None and self.host.metrics is None):
            await self.db.tx(hosts.renew, self.host.id, session, self.lease, metrics, now)
        until = self.clock.monotonic() + seconds
        async with hub.listening(self.host.id) as changed:
            while True:
                changed.clear()
                answer = await self.next_orders(session, reads, known, stopping)
                left = until - self.clock.monotonic()
                if answer["jobs"] or answer["cancel"] or left <= 0 or await disconnected():
                    return answer
                await self.clock.wait(changed, left)

    async def next_orders(self, session: str, reads: int, known: Collection[str], stopping: Collection[str]) -> Record:
        if not await self.db.read(self.has_orders, session, reads, known, stopping):
            return {"jobs": [], "cancel": []}
        return await self.db.tx(self.hand_out, session, reads, known, stopping)

    def has_orders(self, tx: Tx, session: str, reads: int, known: Collection[str], stopping: Collection[str]) -> bool:
        held = hosts.running_jobs(tx, session)
        return bool(unknown_claims(held, known) or to_cancel(held, stopping)) or hosts.has_ready(
            tx, self.host.id, reads
        )

    def hand_out(self, tx: Tx, session: str, reads: int, known: Collection[str], stopping: Collection[str]) -> Record:
        """Claim jobs for the agent, and mark their runs as started; returns the orders and the jobs to cancel."""
        hosts.lock_session(tx, self.host, session)
        now = self.clock.now()
        refused, started = [], []
        for claimed in hosts.claim(tx, self.host.org_id, self.host.id, session, reads):
            attempt = Attempt(claimed.job, new_id(), claimed.job.attempt + 1, now)
            refusal = self.refusal(tx, attempt, claimed, now)
            if refusal is None:
                started.append(attempt)
            else:
                refused.append(refusal)
        if refused:
            finishing.finish(tx, refused, None, now)
        if started:
            finishing.mark_started(tx, started)
        held = hosts.running_jobs(tx, session)
        return {
            "jobs": [self.order(tx, claimed) for claimed in unknown_claims(held, known)],
            "cancel": to_cancel(held, stopping),
        }

    def refusal(self, tx: Tx, attempt: Attempt, claimed: ClaimedJob, now: datetime) -> AttemptResult | None:
        """Return the result of an attempt that may not start: canceled, too late, server gone or not granted; else
        None."""
        job = attempt.job
        base = AttemptResult(job, Status.SKIPPED, None, now, attempt.run_id, attempt.number)
        if claimed.cancel_requested_at is not None:
            return replace(base, status=Status.CANCELED, reason=claimed.cancel_reason)
        if hosts.find_server(tx, job.org_id, job.target) is None:
            failure = Failure(FailureClass.LOGIC, "ServerGone", f"server instance {job.target!r} was deleted")
            return replace(base, status=Status.FAILED, reason="logic", error=failure.dump())
        if job.attempt == 0 and (late := job.terms.too_late(now)) is not None:
            return replace(base, reason=late)
        if job.terms.grant_id is not None:
            names = {job.payload["job_type"], job.target}
            wrong = grants.trouble(tx, job.org_id, job.terms.grant_id, job.kind, names, now)
            if wrong is None and grants.used_up(tx, job.terms.grant_id, now) is not None:
                wrong = "budget"
            if wrong is not None:
                return replace(base, reason=wrong)
        return None

    def order(self, tx: Tx, claimed: ClaimedJob) -> Record:
        """Return a job as it is sent to its agent. The config of the server is read here: it is in no job, run or
        log."""
        job = claimed.job
        server, timeout = hosts.server(tx, job.org_id, job.target), job.terms.timeout
        return {
            "job_id": job.id,
            "fence": job.fence,
            "run_id": claimed.run_id,
            "attempt": job.attempt,
            "job_type": job.payload["job_type"],
            "payload": job.payload.get("payload") or {},
            "timeout_seconds": timeout.total_seconds() if timeout else None,
            "trigger": job.trigger,
            "slot": job.slot.isoformat() if job.slot else None,
            "schedule_id": job.schedule_id,
            "server": {"id": server.id, "name": server.name, "type": server.type, "config": server.config},
        }

    # reports of the agent

    async def progress(self, job_id: str, fence: int, lines: LogLines) -> None:
        """Append log lines of a run, also of one that waits for reconciliation. Raises LeaseLost if its claim is
        over."""

        def step(tx: Tx) -> None:
            claimed = hosts.lock_job_of_host(tx, self.host, job_id)
            parked = claimed is not None and claimed.parked_reason == RECONCILIATION
            if claimed is None or claimed.job.fence != fence or not (parked or claimed.state == State.RUNNING):
                raise claim_lost(job_id)
            self.write_lines(tx, claimed.job.last_run_id if parked else claimed.run_id, lines)

        await self.db.tx(step)

    async def report(self, job_id: str, fence: int, report: Record, lines: LogLines) -> bool:
        """Record how a run ended; idempotent: True if this report is recorded already. Raises Conflict for another
        report, LeaseLost if its claim is over."""

        def step(tx: Tx) -> bool:
            claimed = hosts.lock_job_of_host(tx, self.host, job_id)
            if claimed is not None and claimed.job.fence == fence and claimed.parked_reason == RECONCILIATION:
                jobs.adopt(tx, job_id, fence, None, self.clock.now())  # the report answers the reconciliation
                claimed = hosts.lock_job_of_host(tx, self.host, job_id)
            if claimed is None or claimed.job.fence != fence or claimed.state != State.RUNNING:
                self.check_repeat(tx, job_id, fence, report)
                return True
            job = claimed.job
            server = hosts.find_server(tx, job.org_id, job.target)
            ended = self.ended(claimed, report, server.name if server is not None else None)
            finishing.finish(tx, [ended], claimed.lease_owner, self.clock.now())
            self.write_lines(tx, claimed.run_id, lines)
            if ended.final and job.trigger.startswith("batch:"):
                notify(tx, "ready")  # wakes the worker that runs the batch
            return False

        repeated = await self.db.tx(step)
        self.engine.wake.signal("ready")
        self.engine.wake.signal("later")
        return repeated

    def ended(self, claimed: ClaimedJob, report: Record, name: str | None) -> AttemptResult:
        """Return the result of an attempt, timed by the server's clock: the agent sends how long ago it ended."""
        now, job, run_id, started_at = self.clock.now(), claimed.job, claimed.run_id, claimed.started_at
        assert run_id is not None  # the job is running
        assert started_at is not None
        finished = max(started_at, now - timedelta(milliseconds=report["ended_ms_ago"]))
        began = max(job.queued_at, finished - timedelta(milliseconds=report["duration_ms"]))
        info = RunInfo(name=name)
        attempt = Attempt(job, run_id, job.attempt, began)
        outcome = redacted(report["outcome"])
        base = AttemptResult(
            job, Status.SUCCESS, None, finished, run_id, job.attempt, began, outcome=outcome, info=info
        )
        if report["status"] == "success":
            return base
        if report["status"] == "canceled" and claimed.cancel_requested_at is not None:
            return replace(base, status=Status.CANCELED, reason=claimed.cancel_reason)
        failed = failed_attempt(attempt, info, failure_of(report), now, self.engine.settings.transient_retry)
        return replace(failed, finished_at=finished, outcome=outcome)

    def check_repeat(self, tx: Tx, job_id: str, fence: int, report: Record) -> None:
        """Check that this report is recorded. Raises NotFound, Conflict for another report, or LeaseLost."""
        attempts = [
            row for row in runs.of_job(tx, self.host.org_id, job_id) if row.route in hosts.routes_of(self.host.id)
        ]
        if not attempts and hosts.lock_job_of_host(tx, self.host, job_id) is None:
            raise NotFound(f"job {job_id!r} of this host not found")
        reported = [row for row in attempts if row.fence == fence and row.status not in UNREPORTED]
        if not reported:
            raise claim_lost(job_id)
        last = reported[-1]
        same = (last.status == Status.SUCCESS) == (report["status"] == "success")
        if not same or last.outcome != redacted(report["outcome"]):
            raise Conflict(f"job {job_id}: a different result of this claim is already recorded")

    def write_lines(self, tx: Tx, run_id: str | None, lines: LogLines) -> None:
        """Append lines to the log of a run, up to LOG_LIMIT."""
        assert run_id is not None  # it has started
        room = LOG_LIMIT - runs.log_size(tx, run_id, LINE_COST) if lines else 0
        kept: list[LogLine] = []
        now = self.clock.now()
        for stream, text in lines if room > 0 else ():
            room -= min(len(text), LINE_LIMIT) + LINE_COST
            if room <= 0:
                kept.append((run_id, now, "system", "… the rest is left out …"))
                break
            kept.append((run_id, now, stream, storable(redacted_text(text)[:LINE_LIMIT])))
        runs.write_logs(tx, kept)


def failure_of(report: Record) -> Failure:
    error = report["error"] or {}
    code = error.get("code")
    failure_class = FailureClass(code) if code in set(FailureClass) else FailureClass.LOGIC
    message = redacted_text(error.get("message") or "failed without a message")
    traceback = error.get("traceback") and redacted_text(error["traceback"])
    return Failure(failure_class, error.get("type") or "HostJobFailed", message, traceback)


def unknown_claims(held: Collection[ClaimedJob], known: Collection[str]) -> list[ClaimedJob]:
    """Return the claims that the agent does not have: new ones, and those of an answer that was lost."""
    return [claimed for claimed in held if claimed.claim_name not in known]


def to_cancel(held: Collection[ClaimedJob], stopping: Collection[str]) -> list[str]:
    """Return the jobs to cancel that the agent is not stopping yet."""
    requested = (claimed.job.id for claimed in held if claimed.cancel_requested_at is not None)
    return [job_id for job_id in requested if job_id not in stopping]


def claim_lost(job_id: str) -> LeaseLost:
    return LeaseLost(f"job {job_id}: this claim is over; the job has another claim, or has ended")


def resolve(tx: Tx, org_id: str, job_id: str, applied: bool, outcome: object, now: datetime) -> str:
    """Resolve a job that waits for reconciliation: applied, it has succeeded; else it is tried again. Raises NotFound,
    or Conflict if it does not wait."""
    claimed = hosts.lock_job(tx, org_id, job_id)
    if claimed is None and not runs.of_job(tx, org_id, job_id):
        raise NotFound(f"host job {job_id!r} not found")
    if claimed is None or claimed.parked_reason != RECONCILIATION:
        raise Conflict(f"job {job_id} is not waiting for reconciliation")
    if not applied:
        jobs.resume(tx, job_id, now)
        return job_id
    jobs.adopt(tx, job_id, claimed.job.fence, None, now)
    adopted = hosts.lock_job(tx, org_id, job_id)
    assert adopted is not None
    assert adopted.run_id is not None
    job = adopted.job
    ended = AttemptResult(
        job, Status.SUCCESS, "resolved", now, adopted.run_id, job.attempt, job.queued_at, outcome=redacted(outcome)
    )
    finishing.finish(tx, [ended], None, now)
    return job_id


class PollHub:
    """Wakes long polls of agents: one query finds the hosts with ready or canceled jobs, for all waiting polls."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.waiting: dict[str, list[asyncio.Event]] = {}
        self.watching: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def listening(self, host_id: str) -> AsyncIterator[asyncio.Event]:
        event = asyncio.Event()
        self.waiting.setdefault(host_id, []).append(event)
        if self.watching is None or self.watching.done():
            self.watching = asyncio.ensure_future(self.watch())
        try:
            yield event
        finally:
            self.waiting[host_id].remove(event)
            if not self.waiting[host_id]:
                del self.waiting[host_id]

    async def watch(self) -> None:
        wake = self.engine.wake
        while self.waiting:
            changed = wake.changed  # read before the query, so that no wake-up is missed
            with contextlib.suppress(Unavailable):
                for route in await self.engine.db.read(hosts.routes_with_work):
                    for event in self.waiting.get(route.rpartition(":")[2], ()):
                        event.set()
            await real_sleep(WATCH_SECONDS)
            await changed.wait()
