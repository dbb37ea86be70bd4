"""Hands out jobs to agents: one transaction for all polls of a batch."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rota.core.model import AttemptResult
from rota.core.policy import Failure, FailureClass
from rota.core.states import Status
from rota.db.dialect import Tx
from rota.db.paging import Record
from rota.engine import finishing, grants
from rota.engine.grants import Grant
from rota.kinds.hosts.store import hosts, sessions
from rota.kinds.hosts.store.records import ClaimedJob, HostRow, ServerRow


@dataclass(frozen=True, slots=True)
class PollRequest:
    """What an agent sends with a poll. `room` is for read-only jobs. `known` are the claims that the agent has: others
    are sent again, because an answer may be lost. `stopping` are the jobs that it is canceling already."""

    host: HostRow
    session: str
    room: int
    known: frozenset[str]
    stopping: frozenset[str]
    metrics: Mapping[str, object] | None


def hand_out(
    tx: Tx,
    polls: Sequence[PollRequest],
    open_polls: Collection[str],
    seen: Collection[str],
    lease: timedelta,
    now: datetime,
) -> dict[str, Record]:
    """Renew the sessions of polls of different hosts, claim jobs for those with an open poll, and mark their runs as
    started. Returns orders and jobs to cancel by host; a host is left out if its session is over or its key was
    replaced. Records that the hosts of `seen` were seen."""
    sessions.record_seen(tx, [(poll.host, poll.session, poll.metrics) for poll in polls if poll.host.id in seen], now)
    alive = sessions.renew(tx, [(poll.host, poll.session) for poll in polls], lease, now)
    polls = [poll for poll in polls if poll.host.id in alive]
    held = sessions.held_jobs(tx, [poll.session for poll in polls])
    claimed = claim(tx, [poll for poll in polls if poll.host.id in open_polls], now)
    sent = {poll.session: unknown_claims(held.get(poll.session, ()), poll.known) for poll in polls}
    servers = hosts.servers_by_id(tx, {each.job.target for jobs in (claimed, *sent.values()) for each in jobs})
    for started in admit(tx, claimed, servers, now):
        sent[started.lease_owner or ""].append(started)
    return {
        poll.host.id: {
            "jobs": [order(each, servers[each.job.target]) for each in sent[poll.session]],
            "cancel": to_cancel(held.get(poll.session, ()), poll.stopping),
        }
        for poll in polls
    }


def claim(tx: Tx, polls: Sequence[PollRequest], now: datetime) -> list[ClaimedJob]:
    """Claim for each host one serial job, and as many read-only ones as its agent has room for."""
    owners, rooms = {}, {}
    for poll in polls:
        serial, read_only = hosts.routes_of(poll.host.id)
        owners[serial] = owners[read_only] = (poll.session, poll.host)
        rooms[serial], rooms[read_only] = 1, poll.room
    return sessions.claim(tx, owners, rooms, now)


def admit(tx: Tx, claimed: Sequence[ClaimedJob], servers: Mapping[str, ServerRow], now: datetime) -> list[ClaimedJob]:
    """End the claimed jobs that may not start, and return the others."""
    grant_ids = {each.job.terms.grant_id for each in claimed if each.job.terms.grant_id is not None}
    granted = grants.of_ids(tx, grant_ids) if grant_ids else {}
    refused = [result for each in claimed if (result := refusal(each, servers, granted, now)) is not None]
    if not refused:
        return list(claimed)
    finishing.finish(tx, refused, None, now)
    ended = {result.job.id for result in refused}
    return [each for each in claimed if each.job.id not in ended]


def refusal(
    claimed: ClaimedJob, servers: Mapping[str, ServerRow], granted: Mapping[str, Grant], now: datetime
) -> AttemptResult | None:
    """Return the result of an attempt that may not start: canceled, too late, server gone or not granted; else
    None."""
    job = claimed.job
    assert claimed.run_id is not None
    base = AttemptResult(job, Status.SKIPPED, None, now, claimed.run_id, job.attempt)
    if claimed.cancel_requested_at is not None:
        return replace(base, status=Status.CANCELED, reason=claimed.cancel_reason)
    server = servers.get(job.target)
    if server is None or server.org_id != job.org_id:
        failure = Failure(FailureClass.LOGIC, "ServerGone", f"server instance {job.target!r} was deleted")
        return replace(base, status=Status.FAILED, reason="logic", error=failure.dump())
    if job.attempt == 1 and (late := job.terms.too_late(now)) is not None:
        return replace(base, reason=late)
    if job.terms.grant_id is not None:
        grant = granted.get(job.terms.grant_id)
        grant = grant if grant is not None and grant.org_id == job.org_id else None
        targets = {job.payload["job_type"], job.target}
        wrong = "grant_not_found" if grant is None else grant.trouble(job.kind, targets, now)
        if wrong is None and grant is not None and grant.used_up(now) is not None:
            wrong = "budget"
        if wrong is not None:
            return replace(base, reason=wrong)
    return None


def order(claimed: ClaimedJob, server: ServerRow) -> Record:
    """Return a job as it is sent to its agent. The config of the server is in no job, run or log."""
    job, timeout = claimed.job, claimed.job.terms.timeout
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


def unknown_claims(held: Collection[ClaimedJob], known: Collection[str]) -> list[ClaimedJob]:
    """Return the claims that the agent does not have: those of an answer that was lost."""
    return [claimed for claimed in held if claimed.claim_name not in known]


def to_cancel(held: Collection[ClaimedJob], stopping: Collection[str]) -> list[str]:
    """Return the jobs to cancel that the agent is not stopping yet."""
    requested = (claimed.job.id for claimed in held if claimed.cancel_requested_at is not None)
    return [job_id for job_id in requested if job_id not in stopping]
