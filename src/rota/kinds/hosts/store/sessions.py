"""SQL of the sessions and claims of agents, for many agents at once.

An agent is a worker that reaches the queue through the API. Its session is a row of `workers` with a lease; its jobs
have the routes of its host. Transactions that lock both lock hosts before sessions, and sessions before jobs.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import and_, delete, func, select, update

from rota.core.fair_shares import Lane
from rota.core.ids import new_id
from rota.core.policy import RECONCILIATION
from rota.core.states import State, WorkerState
from rota.db import tables
from rota.db.dialect import Tx, draw_fence, is_listed, lock_keys
from rota.db.paging import Record
from rota.db.statement import insert_rows
from rota.engine import claiming, finishing, jobs, serial_keys
from rota.engine.job_states import is_in
from rota.kinds.hosts.store import statements
from rota.kinds.hosts.store.hosts import ALIVE, KIND, OF_HOSTS, routes_of
from rota.kinds.hosts.store.records import ClaimedJob, HostRow

ENDED_SESSIONS_KEPT = 10  # of each host
c, w = tables.jobs.c, tables.workers.c


@dataclass(frozen=True, slots=True)
class Registration:
    """What an agent says when it connects. `journal` has the state of each open claim, by job and fence."""

    host: HostRow
    facts: Record
    journal: Mapping[tuple[str, int], str]


class RegisteredSession(NamedTuple):
    """A new session, and the claims whose outcome is still unknown."""

    id: str
    unresolved: list[tuple[str, int]]


def register(tx: Tx, agents: Sequence[Registration], lease: timedelta, now: datetime) -> dict[str, RegisteredSession]:
    """Start sessions of agents of different hosts and end the earlier ones, whose jobs their journals decide. Returns
    the sessions by host; a host is left out if its key was replaced.

    A job that runs or ended on the host is claimed by the new session; one that never began is ready again; one that
    began without a known end waits for a person.
    """
    versions = dict(statements.LOCK_HOSTS.run(tx, [(agent.host.id,) for agent in agents]))
    agents = [agent for agent in agents if versions.get(agent.host.id) == agent.host.key_version]
    ids = {agent.host.id: new_id() for agent in agents}
    routes = {route: agent.host.id for agent in agents for route in routes_of(agent.host.id)}
    tx.execute(
        update(tables.workers)
        .where(is_listed(tx, w.host_id, ids), ALIVE)
        .values(state=WorkerState.DEAD, stopped_at=now)
    )
    take_over(tx, agents, ids, routes, now)
    delete_old_sessions(tx, ids)
    rows = [
        {
            "id": ids[agent.host.id], "state": WorkerState.ALIVE.value, "host": agent.host.name,
            "host_id": agent.host.id, "pid": agent.facts["pid"], "version": agent.facts["version"],
            "concurrency": agent.facts["room"], "kinds": [KIND], "routes": sorted(routes_of(agent.host.id)),
            "started_at": now, "renewed_at": now, "lease_until": now + lease,
            "lease_seconds": round(lease.total_seconds()),
        }
        for agent in agents
    ]  # fmt: skip
    insert_rows(tx, tables.workers, rows)
    jobs.resume_routes(tx, routes)
    journals = {agent.host.id: agent.journal for agent in agents}
    parked = jobs_to_reconcile(tx, routes)
    for job_id, fence, route in parked:
        state = journals[routes[route]].get((job_id, fence), "never")
        if state == "running":
            jobs.adopt(tx, job_id, fence, ids[routes[route]], now)
        elif state == "never":
            jobs.resume(tx, job_id, now)
    seen = [(agent.host.id, agent.facts["version"], agent.facts["job_types"]) for agent in agents]
    statements.CONNECTED.run(tx, seen, now=now)
    unresolved = defaultdict(list)
    for job_id, fence, route in jobs_to_reconcile(tx, routes) if parked else ():
        unresolved[routes[route]].append((job_id, fence))
    return {host_id: RegisteredSession(session, unresolved[host_id]) for host_id, session in ids.items()}


def take_over(
    tx: Tx, agents: Sequence[Registration], sessions: Mapping[str, str], routes: Mapping[str, str], now: datetime
) -> None:
    """Lease the running jobs that agents still have to their new sessions, and rescue the others."""
    alive = {
        (agent.host.id, *claim)
        for agent in agents
        for claim, state in agent.journal.items()
        if state in ("running", "ended")
    }
    running = and_(OF_HOSTS, is_listed(tx, c.route, routes), is_in(c.state, [State.RUNNING]))
    rows = list(tx.execute(select(c.id, c.fence, c.route, c.lease_owner).where(running)))
    kept = [row for row in rows if (routes[row.route], row.id, row.fence) in alive]
    statements.ADOPT_RUNNING.run(tx, [(row.id, row.fence, sessions[routes[row.route]]) for row in kept])
    lost = {row.id: row.lease_owner for row in rows} if len(kept) < len(rows) else {}
    for owner in sorted({owner for job_id, owner in lost.items() if job_id not in {row.id for row in kept}}):
        finishing.rescue(tx, owner, now)


def delete_old_sessions(tx: Tx, host_ids: Collection[str]) -> None:
    """Delete the ended sessions of hosts but the newest of each."""
    place = func.row_number().over(partition_by=w.host_id, order_by=w.id.desc())
    ended = select(w.id, place.label("place")).where(is_listed(tx, w.host_id, host_ids), w.state != WorkerState.ALIVE)
    numbered = ended.subquery()
    old = select(numbered.c.id).where(numbered.c.place > ENDED_SESSIONS_KEPT)
    tx.execute(delete(tables.workers).where(w.id.in_(old)))


def jobs_to_reconcile(tx: Tx, routes: Collection[str]) -> list[tuple[str, int, str]]:
    """Return the jobs of these routes that are parked for reconciliation, as id, fence and route."""
    parked = and_(
        OF_HOSTS, is_listed(tx, c.route, routes), is_in(c.state, [State.PARKED]), c.parked_reason == RECONCILIATION
    )
    rows = tx.execute(select(c.id, c.fence, c.route).where(parked).order_by(c.id))
    return [(row.id, row.fence, row.route) for row in rows]


# polls


class WorkOfHosts(NamedTuple):
    """What agents may be asked to do: routes with ready jobs, and jobs to cancel by route."""

    ready: frozenset[str]
    to_cancel: Mapping[str, Collection[str]]


def work_of_hosts(tx: Tx) -> WorkOfHosts:
    """Return the work of all hosts, in one statement."""
    to_cancel = defaultdict(list)
    rows = statements.WORK.run(tx)
    for route, job_id in rows:
        if job_id is not None:
            to_cancel[route].append(job_id)
    return WorkOfHosts(frozenset(route for route, job_id in rows if job_id is None), to_cancel)


def record_seen(tx: Tx, seen: Iterable[tuple[HostRow, str, Mapping[str, object] | None]], now: datetime) -> None:
    """Record that hosts with these sessions were seen, and their metrics, if they sent some."""
    in_order = sorted(seen, key=lambda each: each[0].id)  # of their locks, as in `register`
    rows = [(host.id, host.key_version, session, metrics) for host, session, metrics in in_order]
    statements.SEEN.run(tx, rows, now=now)


def renew(tx: Tx, sessions: Iterable[tuple[HostRow, str]], lease: timedelta, now: datetime) -> set[str]:
    """Renew and lock sessions of hosts; returns the hosts whose session is alive and whose key is current."""
    rows = [(host.id, host.key_version, session) for host, session in sessions]
    return {host_id for (host_id,) in statements.RENEW.run(tx, rows, now=now, lease_until=now + lease)}


def held_jobs(tx: Tx, sessions: Iterable[str]) -> dict[str, list[ClaimedJob]]:
    """Return the started jobs of sessions, oldest first."""
    by_session = defaultdict(list)
    columns = statements.HELD.columns(tx, [list(sessions)])
    for claimed in sorted(claimed_jobs(columns), key=lambda claimed: claimed.job.id):
        by_session[claimed.lease_owner or ""].append(claimed)
    return by_session


def claim(
    tx: Tx, sessions: Mapping[str, tuple[str, HostRow]], rooms: Mapping[str, int], now: datetime
) -> list[ClaimedJob]:
    """Claim the most urgent ready jobs for sessions, up to the rooms of their routes, and record that their runs
    started. `sessions` has the session and the host of each route."""
    batch = [(route, sessions[route][1].org_id, room) for route, room in rooms.items() if room]
    names = list(statements.READY.returns)
    ready = [dict(zip(names, row, strict=True)) for row in statements.READY.run(tx, batch)]
    chosen = within_limits(tx, sorted(ready, key=lambda row: (-row["priority"], row["run_at"], row["id"])))
    if not chosen:
        return []
    rows = [(row["id"], sessions[row["route"]][0], new_id()) for row in chosen]
    columns = statements.START.columns(tx, list(zip(*rows, strict=True)), fence=draw_fence(tx), now=now)
    return sorted(claimed_jobs(columns), key=lambda claimed: (claimed.job.run_at, claimed.job.id))


def within_limits(tx: Tx, ready: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of READY that the limits of their queues and orgs allow, in the same order."""
    limits = {(row["org_id"], row["queue"]): (row["queue_limit"], row["org_limit"]) for row in ready}
    lanes = [
        Lane(*lane, min((limit for limit in of_lane if limit is not None), default=None))
        for lane, of_lane in sorted(limits.items())
    ]
    caps = {(lane.org_id, lane.queue): lane.cap for lane in claiming.within_limits(tx, lanes, 0)}
    chosen = []
    for row in ready:
        lane = row["org_id"], row["queue"]
        left = caps[lane]
        if left is None or left > 0:
            caps[lane] = None if left is None else left - 1
            chosen.append(row)
    return chosen


# reports


def current_keys(tx: Tx, hosts: Iterable[HostRow]) -> dict[str, int]:
    """Return the current versions of the keys of hosts, by id."""
    return dict(statements.KEY_VERSIONS.run(tx, [(host_id,) for host_id in sorted({host.id for host in hosts})]))


def lock_jobs(tx: Tx, job_ids: Collection[str]) -> dict[str, ClaimedJob]:
    """Lock and return host jobs that have not ended; locks their serial keys first, in the order of all writers."""
    lock_keys(tx, serial_keys.keys_of(tx, job_ids))
    return {claimed.job.id: claimed for claimed in claimed_jobs(statements.LOCK_JOBS.columns(tx, [sorted(job_ids)]))}


def lock_job(tx: Tx, org_id: str, job_id: str) -> ClaimedJob | None:
    """Lock and return a host job of an org that has not ended."""
    claimed = lock_jobs(tx, [job_id]).get(job_id)
    return claimed if claimed is not None and claimed.job.org_id == org_id else None


def claimed_jobs(columns: Mapping[str, Sequence[Any]]) -> list[ClaimedJob]:
    """Build the records of rows of `statements.CLAIMED`."""
    claims = (columns[name] for name in statements.CLAIM_COLUMNS)
    return list(map(ClaimedJob, claiming.jobs_from(columns), *claims))
