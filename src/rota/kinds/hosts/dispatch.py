"""The server's side of an agent's work: hand out, hear how it goes, write down how it ended.

A claim is known by its job and its fence, on both sides. Handing out writes down that the run began; the report of a
claim that nobody holds any more changes nothing. After a lost agent a job that changes something is parked until its
agent, or a person, says whether it happened.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import structlog

from rota.core.clock import real_sleep
from rota.core.errors import Conflict, LeaseLost, NotFound, Unavailable
from rota.core.ids import new_id
from rota.core.model import Attempt, AttemptResult, RunInfo
from rota.core.policy import RECONCILIATION, Failure, FailureClass
from rota.core.redact import redacted
from rota.core.states import State, Status
from rota.db.dialect import Tx, notify
from rota.db.paging import Record
from rota.engine import grants, jobs, runs
from rota.engine.commands import Engine
from rota.engine.runner import LINE_LIMIT, LOG_LIMIT, storable
from rota.engine.worker.outcome import failed_attempt
from rota.kinds.hosts.store import hosts

LEASES = 3  # an agent is given more time than a worker: it is further away
LINE_COST = 12  # characters that a line counts beside its text: empty lines take room too
GATHER = 0.02  # seconds between looks for whom there is something, while much happens

UNTOLD = (Status.CRASHED, Status.PAUSED)  # how a run ends of which no report came

log = structlog.get_logger("rota.hosts")


class Dispatch:
    """What the agent of one host may ask. The host comes from its key."""

    def __init__(self, engine: Engine, host: Any) -> None:
        self.engine, self.host, self.db, self.clock = engine, host, engine.db, engine.clock

    @property
    def lease(self) -> timedelta:
        return self.engine.settings.lease * LEASES

    async def register(self, facts: Mapping[str, Any], journal: Mapping[tuple[str, int], str]) -> Record:
        """A new session for an agent that came up, or whose last one is over."""
        now = self.clock.now()
        session, asked = await self.db.tx(hosts.register, self.host, facts, self.lease, journal, now)
        self.engine.wake.signal("ready")
        grace = self.engine.settings.cancel_grace.total_seconds()
        log.info("an agent is up", host=self.host.name, session=session)
        return {
            "session": session, "lease_seconds": self.lease.total_seconds(), "cancel_grace_seconds": grace,
            "asked": [claim_name(one) for one in asked],
        }  # fmt: skip

    async def poll(
        self, session: str, reads: int, known: Collection[str], told: Collection[str], metrics: Any, hub: "Hub",
        seconds: float, gone: Callable[[], Awaitable[bool]],
    ) -> Record:  # fmt: skip
        """What is new for an agent: jobs, and which of its jobs are to be stopped. Waits a while for it. `known` are
        the claims that it has, so that one whose answer was lost comes again; `told` the jobs it is stopping."""
        now = self.clock.now()
        spoke = await self.db.read(hosts.spoke_since, self.host.id, session, now - self.lease / 10)
        if not spoke or (metrics is not None and self.host.metrics is None):
            await self.db.tx(hosts.beat, self.host.id, session, self.lease, metrics, now)
        until = self.clock.monotonic() + seconds
        async with hub.listening(self.host.id) as stirred:
            while True:
                stirred.clear()
                found = await self.news(session, reads, known, told)
                left = until - self.clock.monotonic()
                if found["jobs"] or found["cancel"] or left <= 0 or await gone():
                    return found
                await self.clock.wait(stirred, left)

    async def news(self, session: str, reads: int, known: Collection[str], told: Collection[str]) -> Record:
        if not await self.db.read(self.has_news, session, reads, known, told):
            return {"jobs": [], "cancel": []}
        return await self.db.tx(self.hand_out, session, reads, known, told)

    def has_news(self, tx: Tx, session: str, reads: int, known: Collection[str], told: Collection[str]) -> bool:
        held = hosts.in_hand(tx, session)
        return bool(unknown(held, known) or unwanted(held, told)) or hosts.has_ready(tx, self.host.id, reads)

    def hand_out(self, tx: Tx, session: str, reads: int, known: Collection[str], told: Collection[str]) -> Record:
        hosts.hold(tx, self.host, session)
        now = self.clock.now()
        refused, begun = [], []
        for row in hosts.claim(tx, self.host.org_id, self.host.id, session, reads):
            attempt = Attempt(jobs.job_of(row), new_id(), row.attempt + 1, now)
            no = self.objection(tx, attempt, row, now)
            if no is None:
                begun.append(attempt)
            else:
                refused.append(no)
        if refused:
            jobs.finish(tx, refused, None, now)
        if begun:
            jobs.mark_started(tx, begun)
        held = hosts.in_hand(tx, session)
        return {"jobs": [self.order(tx, row) for row in unknown(held, known)], "cancel": unwanted(held, told)}

    def objection(self, tx: Tx, attempt: Attempt, row: Any, now: datetime) -> AttemptResult | None:
        """Why a job does not start after all."""
        job = attempt.job
        base = AttemptResult(job, Status.SKIPPED, None, now, attempt.run_id, attempt.number)
        if row.cancel_requested_at is not None:
            return replace(base, status=Status.CANCELED, reason=row.cancel_reason)
        if hosts.find_server(tx, job.org_id, job.target) is None:
            gone = Failure(FailureClass.LOGIC, "ServerGone", f"server instance {job.target!r} was removed")
            return replace(base, status=Status.FAILED, reason="logic", error=gone.dump())
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

    def order(self, tx: Tx, row: Any) -> Record:
        """A job as its agent is told of it. The server's config is looked up now: it is in no job, run or log."""
        job, server = jobs.job_of(row), hosts.server(tx, row.org_id, row.target)
        timeout = job.terms.timeout
        return {
            "job_id": job.id, "fence": job.fence, "run_id": row.run_id, "attempt": job.attempt,
            "job_type": job.payload["job_type"], "payload": job.payload.get("payload") or {},
            "timeout_seconds": timeout.total_seconds() if timeout else None, "trigger": job.trigger,
            "slot": job.slot.isoformat() if job.slot else None, "schedule_id": job.schedule_id,
            "server": {"id": server.id, "name": server.name, "type": server.type, "config": server.config},
        }  # fmt: skip

    # what the agent tells

    async def progress(self, job_id: str, fence: int, lines: list[Any]) -> None:
        """What a run says while it goes on; also one that was given up for lost, whose result comes after it."""

        def step(tx: Tx) -> None:
            row = hosts.asked_of(tx, self.host, job_id)
            asked = row is not None and row.parked_reason == RECONCILIATION
            if row is None or row.fence != fence or not (asked or row.state == State.RUNNING):
                raise lost(job_id)
            self.write_lines(tx, row.last_run_id if asked else row.run_id, lines)

        await self.db.tx(step)

    async def report(self, job_id: str, fence: int, report: Record, lines: list[Any]) -> bool:
        """How a run ended. True if that was known already: the same report may come twice, another may not."""

        def step(tx: Tx) -> bool:
            row = hosts.asked_of(tx, self.host, job_id)
            if row is not None and row.fence == fence and row.parked_reason == RECONCILIATION:
                jobs.adopt(tx, job_id, fence, None, self.clock.now())  # this is the answer
                row = hosts.asked_of(tx, self.host, job_id)
            if row is None or row.fence != fence or row.state != State.RUNNING:
                self.check_repeat(tx, job_id, fence, report)
                return True
            server = hosts.find_server(tx, row.org_id, row.target)
            ended = self.ended(row, report, server.name if server is not None else None)
            jobs.finish(tx, [ended], row.lease_owner, self.clock.now())
            self.write_lines(tx, row.run_id, lines)
            if ended.final and row.trigger.startswith("batch:"):
                notify(tx, "ready")  # whoever sees to the batch waits for it
            return False

        repeated = await self.db.tx(step)
        self.engine.wake.signal("ready")
        self.engine.wake.signal("later")
        return repeated

    def ended(self, row: Any, report: Record, name: str | None) -> AttemptResult:
        """The end of an attempt, by the clock here: the agent says how long ago it was."""
        now, job = self.clock.now(), jobs.job_of(row)
        finished = max(row.started_at, now - timedelta(milliseconds=report["ended_ms_ago"]))
        began = max(job.queued_at, finished - timedelta(milliseconds=report["duration_ms"]))
        info = RunInfo(name=name)
        attempt = Attempt(job, row.run_id, row.attempt, began)
        outcome = redacted(report["outcome"])
        base = AttemptResult(
            job, Status.SUCCESS, None, finished, row.run_id, row.attempt, began, outcome=outcome, info=info
        )
        if report["status"] == "success":
            return base
        if report["status"] == "canceled" and row.cancel_requested_at is not None:
            return replace(base, status=Status.CANCELED, reason=row.cancel_reason)
        failed = failed_attempt(attempt, info, failure_of(report), now, self.engine.settings.transient_retry)
        return replace(failed, finished_at=finished, outcome=outcome)

    def check_repeat(self, tx: Tx, job_id: str, fence: int, report: Record) -> None:
        """Whether the ledger has this very report; raises if it has another one, or never will have one."""
        mine = [row for row in runs.of_job(tx, self.host.org_id, job_id) if row.route in hosts.routes_of(self.host.id)]
        if not mine and hosts.asked_of(tx, self.host, job_id) is None:
            raise NotFound(f"job {job_id}: this host has none")
        told = [row for row in mine if row.fence == fence and row.status not in UNTOLD]
        if not told:
            raise lost(job_id)
        last = told[-1]
        same = (last.status == Status.SUCCESS) == (report["status"] == "success")
        if not same or last.outcome != redacted(report["outcome"]):
            raise Conflict(f"job {job_id}: another result of this claim was written down before; that one counts")

    def write_lines(self, tx: Tx, run_id: str, lines: list[Any]) -> None:
        """Append to the log of a run, up to the limit that logs of all runs have."""
        room = LOG_LIMIT - runs.log_size(tx, run_id, LINE_COST) if lines else 0
        kept: list[tuple[str, datetime, str, str]] = []
        now = self.clock.now()
        for stream, text in lines if room > 0 else ():
            room -= min(len(text), LINE_LIMIT) + LINE_COST
            if room <= 0:
                kept.append((run_id, now, "system", "… the rest is left out …"))
                break
            kept.append((run_id, now, stream, storable(redacted(text)[:LINE_LIMIT])))
        runs.write_logs(tx, kept)


def failure_of(report: Record) -> Failure:
    error = report["error"] or {}
    code = error.get("code")
    kind = FailureClass(code) if code in set(FailureClass) else FailureClass.LOGIC
    text = redacted(error.get("message") or "it failed, and did not say why")
    return Failure(kind, error.get("type") or "HostJobFailed", text, redacted(error.get("traceback")))


def unknown(held: Collection[Any], known: Collection[str]) -> list[Any]:
    """The claims of an agent that it does not know of: the answer that told of them was lost, or is this one."""
    return [row for row in held if claim_name(row) not in known]


def unwanted(held: Collection[Any], told: Collection[str]) -> list[str]:
    """The jobs of an agent that are to be stopped, and of which it was not told yet."""
    return [row.id for row in held if row.cancel_requested_at is not None and row.id not in told]


def claim_name(row: Any) -> str:
    return f"{row.id}.{row.fence}"


def lost(job_id: str) -> LeaseLost:
    return LeaseLost(f"job {job_id}: this claim is over; the job is somebody else's now, or has ended")


def resolve(tx: Tx, org_id: str, job_id: str, applied: bool, outcome: Any, now: datetime) -> str:
    """A person says whether it happened: then it has succeeded, else it may be tried again."""
    row = hosts.locked(tx, org_id, job_id)
    if row is None and not runs.of_job(tx, org_id, job_id):
        raise NotFound(f"host job {job_id!r} not found")
    if row is None or row.parked_reason != RECONCILIATION:
        raise Conflict(f"job {job_id}: nobody asks whether it happened")
    if not applied:
        jobs.resume(tx, job_id, now)
        return job_id
    jobs.adopt(tx, job_id, row.fence, None, now)
    held = hosts.locked(tx, org_id, job_id)
    assert held is not None
    job, told = jobs.job_of(held), redacted(outcome)
    ended = AttemptResult(job, Status.SUCCESS, "resolved", now, held.run_id, held.attempt, row.queued_at, outcome=told)
    jobs.finish(tx, [ended], None, now)
    return job_id


class Hub:
    """Who of those that wait has something waiting for them. One look for all of them, when something happened."""

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
            changed = wake.changed  # asked before the look: what happens meanwhile is not missed
            with contextlib.suppress(Unavailable):
                for route in await self.engine.db.read(hosts.stirred):
                    for event in self.waiting.get(route.rpartition(":")[2], ()):
                        event.set()
            await real_sleep(GATHER)
            await changed.wait()
