"""The server's side of agents: registers them, hands out jobs to their long polls, records their reports.

A claim is identified by its job and its fence, on both sides. Handing out marks the run as started. When an agent is
lost, a job that is not read-only is parked for reconciliation until its agent, or a person, reports whether it was
applied.

All polls that wait at this process share one task: when work appears, it reads the routes with work once, and claims
for all hosts in one transaction. A waiting poll costs no statement of its own: the heartbeats of all are stored
together. So a poll is admitted from memory, and what its agent may do is decided by the transaction that does it: each
checks session and key again.
"""

import asyncio
import contextlib
import contextvars
import hmac
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from rota.access.store.accounts import hash_of
from rota.core.clock import real_sleep, stopwatch
from rota.core.errors import RotaError, SessionOver, Unavailable
from rota.db.group_commit import BATCH_ITEMS, GroupCommit
from rota.db.paging import Record
from rota.engine.commands import Engine
from rota.kinds.hosts import results
from rota.kinds.hosts.hand_out import PollRequest, hand_out
from rota.kinds.hosts.results import Report
from rota.kinds.hosts.store import hosts, sessions
from rota.kinds.hosts.store.records import HostRow
from rota.kinds.hosts.store.sessions import RegisteredSession, Registration, WorkOfHosts

LEASE_FACTOR = 3  # of a worker's lease: an agent's network is less reliable
CHECK_SECONDS = 5.0  # within which the session and key of a waiting poll are checked, and its heartbeat is stored
MIN_GAP_SECONDS, MAX_GAP_SECONDS = 0.005, 0.02  # between two looks for work
SESSION_OVER = "this session is over: its lease expired, or another agent of this host registered; register again"

log = structlog.get_logger("rota.hosts")


@dataclass(eq=False, slots=True)
class Poll:
    """A long poll, until it is answered."""

    request: PollRequest
    disconnected: Callable[[], Awaitable[bool]]
    waits: bool  # for work; else it is answered at once
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    answer: Record | None = None
    error: Exception | None = None

    @property
    def host_id(self) -> str:
        return self.request.host.id

    def end(self, answer: Record | None = None, error: Exception | None = None) -> None:
        """Answer the poll; a no-op if it is answered already."""
        if not self.answered.is_set():
            self.answer, self.error = answer, error
            self.answered.set()


@dataclass(eq=False, slots=True)
class KnownHost:
    """A host whose agent registered or polled here. Its key and session may be outdated: transactions check them."""

    row: HostRow
    session: str
    seen_at: float  # when its heartbeat was last stored
    has_metrics: bool
    delivered: set[str] = field(default_factory=set)  # claims in answers that no later message has named


class Dispatcher:
    """The agents that are connected to this process, and the task that hands out jobs to them."""

    def __init__(self, engine: Engine, closing: Callable[[], bool]) -> None:
        self.engine, self.db, self.clock, self.closing = engine, engine.db, engine.clock, closing
        self.lease = engine.settings.lease * LEASE_FACTOR
        self.check_seconds = min(CHECK_SECONDS, self.lease.total_seconds() / 10)
        self.check_at = 0.0  # when the polls in `unchecked` are checked
        self.known: dict[str, KnownHost] = {}  # these dicts are by host
        self.polls: dict[str, Poll] = {}  # that wait
        self.urgent: dict[str, Poll] = {}  # that cannot wait for the next check
        self.unchecked: dict[str, Poll] = {}  # whose heartbeats are not stored yet; they may have ended
        self.work: WorkOfHosts | None = None  # as of the last look; None: unknown
        self.attention = asyncio.Event()  # there may be work, or a poll is urgent
        self.looked = asyncio.Event()  # no look for work is under way
        self.looked.set()
        self.running: asyncio.Task[None] | None = None
        self.registrations = GroupCommit(self.store_registrations, lambda agent: agent.host.id)
        self.reports = GroupCommit(self.store_reports, lambda report: report.job_id)

    # requests of agents

    async def find_host(self, key: str) -> HostRow | None:
        """Return the host of a key, from memory if its agent is known here; else None unless the key is current."""
        known = self.known.get(hosts.host_id_of_key(key))
        if known is not None and hmac.compare_digest(known.row.key_hash, hash_of(key)):
            return known.row
        return await self.db.read(hosts.find_by_key, key)

    def forget(self, host_id: str) -> None:
        """Forget a host whose key was replaced, or that was deleted. Its next request is authenticated again."""
        self.known.pop(host_id, None)
        if host_id in self.polls:
            self.polls[host_id].end(error=SessionOver(SESSION_OVER))

    async def register(self, host: HostRow, facts: Record, journal: Mapping[tuple[str, int], str]) -> Record:
        """Start a session of an agent; returns its id, lease, and the claims whose outcome is unknown. Raises
        KeyReplaced."""
        session = await self.registrations.add(Registration(host, facts, journal))
        self.forget(host.id)
        self.known[host.id] = KnownHost(host, session.id, self.clock.monotonic(), host.metrics is not None)
        log.info("agent registered", host=host.name, session=session.id)
        return {
            "session": session.id,
            "lease_seconds": self.lease.total_seconds(),
            "cancel_grace_seconds": self.engine.settings.cancel_grace.total_seconds(),
            "asked": [f"{job_id}.{fence}" for job_id, fence in session.unresolved],
        }

    async def poll(self, request: PollRequest, seconds: float, disconnected: Callable[[], Awaitable[bool]]) -> Record:
        """Long poll of an agent, and its heartbeat: returns new jobs and the jobs to cancel, or after `seconds`
        nothing. Raises SessionOver."""
        poll = Poll(request, disconnected, waits=seconds > 0)
        with self.joined(poll):
            if not await self.clock.wait(poll.answered, seconds or None):
                await self.looked.wait()  # a job may just be claimed for it
        if poll.error is not None:
            raise poll.error
        return poll.answer or {"jobs": [], "cancel": []}

    async def report(self, report: Report) -> bool:
        """Record log lines and the result of a run; idempotent: True if this result is recorded already. Raises
        NotFound, Conflict for another result, LeaseLost if the claim is over, KeyReplaced."""
        repeated = await self.reports.add(report)
        known = self.known.get(report.host.id)
        if known is not None and report.result is not None:
            known.delivered.discard(f"{report.job_id}.{report.fence}")
        return repeated

    async def store_registrations(self, agents: Sequence[Registration]) -> list[RegisteredSession | Exception]:
        started = await self.db.tx(lambda tx: sessions.register(tx, agents, self.lease, self.clock.now()))
        self.engine.wake.signal("ready")
        for agent in agents:
            if agent.host.id not in started:
                self.forget(agent.host.id)
        return [started.get(agent.host.id) or hosts.KeyReplaced() for agent in agents]

    async def store_reports(self, reports: Sequence[Report]) -> list[bool | RotaError]:
        retry = self.engine.settings.transient_retry
        answers = await self.db.tx(lambda tx: results.record(tx, reports, self.clock.now(), retry))
        if any(report.result is not None for report in reports):
            self.engine.wake.signal("ready")
            self.engine.wake.signal("later")
        for report, answer in zip(reports, answers, strict=True):
            if isinstance(answer, hosts.KeyReplaced):
                self.forget(report.host.id)
        return answers

    # waiting polls

    @contextlib.contextmanager
    def joined(self, poll: Poll) -> Iterator[None]:
        """Let a poll wait. The earlier poll of its host gets an empty answer: its agent has given it up."""
        request, host_id = poll.request, poll.host_id
        known = self.known.get(host_id)
        current = known is not None and (known.session, known.row.key_version) == (
            request.session,
            request.host.key_version,
        )
        if known is None or not current:
            never = self.clock.monotonic() - self.lease.total_seconds()
            known = KnownHost(request.host, request.session, never, request.host.metrics is not None)
            self.known[host_id] = known
        known.delivered -= request.known
        first_metrics = request.metrics is not None and not known.has_metrics
        if not current or known.delivered or first_metrics or not poll.waits or host_id in self.urgent:
            self.urgent[host_id] = poll
        if host_id in self.polls:
            self.polls[host_id].end()
        self.polls[host_id] = self.unchecked[host_id] = poll
        if host_id in self.urgent or self.work is None or self.concerns(poll, self.work):
            self.attention.set()
        if self.running is None:
            self.running = asyncio.get_running_loop().create_task(self.run(), context=contextvars.Context())
        try:
            yield
        finally:
            for polls in (self.polls, self.urgent):
                if polls.get(host_id) is poll:
                    del polls[host_id]
            if not self.polls:
                self.work = None  # wake-ups reach this loop only while a poll waits

    async def run(self) -> None:
        """Look for work when there may be some, and check polls from time to time; ends when no poll came for long."""
        followed = asyncio.ensure_future(self.follow_wake_ups())
        try:
            while not self.closing():
                self.attention.clear()
                began = stopwatch()
                await self.look()
                await real_sleep(min(MAX_GAP_SECONDS, max(MIN_GAP_SECONDS, stopwatch() - began)))
                left = self.check_at - self.clock.monotonic()
                woken = left > 0 and await self.clock.wait(self.attention, left)
                if not (woken or self.polls or self.unchecked):
                    break
        finally:
            followed.cancel()
            self.running = None
            for poll in list(self.polls.values()):
                poll.end()

    async def follow_wake_ups(self) -> None:
        while True:
            await self.engine.wake.changed.wait()
            self.attention.set()

    async def look(self) -> None:
        """Read which hosts have work, and hand it out to the polls that it concerns."""
        self.looked.clear()
        due, self.urgent = self.urgent, {}
        now = self.clock.monotonic()
        try:
            if self.polls:
                self.work = await self.db.read(sessions.work_of_hosts)
                for route in {*self.work.ready, *self.work.to_cancel}:
                    poll = self.polls.get(route.rpartition(":")[2])
                    if poll is not None and self.concerns(poll, self.work):
                        due[poll.host_id] = poll
            if now >= self.check_at:
                self.check_at = now + self.check_seconds
                due |= {host_id: self.polls.get(host_id, poll) for host_id, poll in self.unchecked.items()}
                self.forget_absent(now)
            polls = list(due.values())
            for start in range(0, len(polls), BATCH_ITEMS):
                await self.hand_out(polls[start : start + BATCH_ITEMS])
        except Exception as error:
            if not isinstance(error, Unavailable):
                log.exception("handing out jobs failed")
            for poll in due.values():
                poll.end(error=error)
        finally:
            self.looked.set()

    def concerns(self, poll: Poll, work: WorkOfHosts) -> bool:
        """Whether a poll would get some of this work."""
        serial, read_only = hosts.routes_of(poll.host_id)
        canceled = (*work.to_cancel.get(serial, ()), *work.to_cancel.get(read_only, ()))
        return (
            serial in work.ready
            or (poll.request.room > 0 and read_only in work.ready)
            or any(job_id not in poll.request.stopping for job_id in canceled)
        )

    async def hand_out(self, polls: Sequence[Poll]) -> None:
        """Claim jobs for polls and store their heartbeats, in one transaction, and answer those that get something."""
        for poll in polls:
            if self.polls.get(poll.host_id) is poll and await poll.disconnected():
                poll.end()
        waiting = {
            poll.host_id for poll in polls if self.polls.get(poll.host_id) is poll and not poll.answered.is_set()
        }
        seen = {poll.host_id for poll in polls if self.is_beat_due(poll)}
        requests = [poll.request for poll in polls]
        answers = await self.db.tx(lambda tx: hand_out(tx, requests, waiting, seen, self.lease, self.clock.now()))
        for poll in polls:
            self.deliver(poll, answers.get(poll.host_id))

    def is_beat_due(self, poll: Poll) -> bool:
        """Whether to store that the host of a poll was seen: from time to time, and its first metrics at once."""
        known = self.known.get(poll.host_id)
        if known is None or (poll.request.metrics is not None and not known.has_metrics):
            return True
        return self.clock.monotonic() - known.seen_at >= self.lease.total_seconds() / 10

    def deliver(self, poll: Poll, answer: Record | None) -> None:
        """Answer a poll, or the next poll of its session; an answer without content ends only a poll that does not
        wait. Without an answer, its session is over."""
        host_id, session = poll.host_id, poll.request.session
        known = self.known.get(host_id)
        if known is not None and known.session != session:
            known = None
        if self.unchecked.get(host_id) is poll:
            del self.unchecked[host_id]
        if answer is None:
            if known is not None:
                del self.known[host_id]
            poll.end(error=SessionOver(SESSION_OVER))
            return
        if known is not None:
            known.delivered = {f"{order['job_id']}.{order['fence']}" for order in answer["jobs"]}
            if self.is_beat_due(poll):
                known.seen_at = self.clock.monotonic()
            known.has_metrics = known.has_metrics or poll.request.metrics is not None
        newest = self.polls.get(host_id, poll)
        receiver = newest if newest.request.session == session else poll
        if answer["jobs"] or answer["cancel"]:
            receiver.end(answer)
        elif not poll.waits:
            poll.end()

    def forget_absent(self, now: float) -> None:
        """Forget the hosts whose agents have not polled for a lease."""
        earliest = now - self.lease.total_seconds()
        for host_id, known in list(self.known.items()):
            if known.seen_at < earliest and host_id not in self.polls:
                del self.known[host_id]
