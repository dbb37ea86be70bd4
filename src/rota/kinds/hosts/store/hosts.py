"""SQL of hosts, their servers and agents: pairing, keys, sessions, claims.

An agent is a worker that reaches the queue through the API. Its session is a row of `workers` with a lease; its jobs
have the routes of its host. The key identifies the host: `rota_agent_HOST_VERSION_SECRET`.
"""

import hmac
import secrets
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from itertools import count

from sqlalchemy import and_, delete, exists, literal, literal_column, or_, select, tuple_, update

from rota.access.store.accounts import hash_of
from rota.core.errors import Conflict, NotFound, SessionOver
from rota.core.fair_shares import Lane
from rota.core.ids import new_id
from rota.core.model import SERIAL_ROUTE_PREFIX
from rota.core.policy import RECONCILIATION
from rota.core.states import Move, State, WorkerState, states_before
from rota.db import tables
from rota.db.dialect import ResultRow, Tx, draw_fence, lock_keys
from rota.db.paging import Record, matching
from rota.db.statement import insert_new, insert_rows
from rota.db.tables import hosts, orgs, pairing_tokens, queues, server_instances
from rota.engine import claiming, finishing, jobs, serial_keys, workers
from rota.engine.job_states import is_in, lease_values
from rota.kinds.hosts.store.records import ClaimedJob, HostRow, PairingToken, ServerRow

KIND = "host_job"
h, v, p, w, c, r = hosts.c, server_instances.c, pairing_tokens.c, tables.workers.c, tables.jobs.c, tables.runs.c
OF_HOSTS = c.kind == literal_column(f"'{KIND}'")  # a literal: the planner uses a partial index only for constants
CLAIM_COLUMNS = (
    c.state,
    c.run_id,
    c.started_at,
    c.parked_reason,
    c.lease_owner,
    c.cancel_requested_at,
    c.cancel_reason,
)
ALIVE = w.state == WorkerState.ALIVE
PAUSED = queues.c.paused_at.is_not(None)
ENDED_SESSIONS_KEPT = 10  # of each host
SESSION_OVER = "this session is over: its lease expired, or another agent of this host registered; register again"


def routes_of(host_id: str) -> tuple[str, str]:
    """Return the two routes of a host: serial, for jobs that change something, and parallel, for read-only jobs."""
    return f"{SERIAL_ROUTE_PREFIX}host:{host_id}", f"host:{host_id}"


# pairing and keys


def make_token(tx: Tx, org_id: str, by: str, ttl: timedelta, now: datetime) -> tuple[str, str]:
    """Create a token that pairs one machine; returns its id and its text, which is not stored."""
    text = f"rota_pair_{secrets.token_urlsafe(32)}"
    row = {"id": new_id(), "org_id": org_id, "hash": hash_of(text), "created_by": by, "created_at": now}
    insert_rows(tx, pairing_tokens, [{**row, "expires_at": now + ttl}])
    tx.execute(delete(pairing_tokens).where(p.expires_at < now - timedelta(days=30)))
    return str(row["id"]), text


def find_token(tx: Tx, text: str) -> PairingToken | None:
    row = tx.execute(select(pairing_tokens).where(p.hash == hash_of(text))).one_or_none()
    return None if row is None else PairingToken(**row._asdict())


def pair(tx: Tx, token: PairingToken, name: str, now: datetime) -> tuple[str, str, str]:
    """Create a host for a pairing token; returns its id, its name and its key. A name in use gets a number. Raises
    Conflict if the token was used or has expired."""
    host_id = new_id()
    unused = and_(p.id == token.id, p.used_at.is_(None), p.expires_at > now)
    if not tx.execute(update(pairing_tokens).where(unused).values(used_at=now, host_id=host_id)).rowcount:
        raise Conflict("this pairing token was used already, or has expired; create a new one")
    key, hashed = make_key(host_id, 1)
    names = set(tx.execute(select(h.name).where(h.org_id == token.org_id, h.name.startswith(name))).scalars())
    if name in names:
        name = next(numbered for n in count(2) if (numbered := f"{name}-{n}") not in names)
    row = {
        "id": host_id,
        "org_id": token.org_id,
        "name": name,
        "labels": {},
        "key_hash": hashed,
        "key_version": 1,
        "created_at": now,
        "updated_at": now,
    }
    insert_rows(tx, hosts, [row])
    return host_id, name, key


def make_key(host_id: str, version: int) -> tuple[str, str]:
    text = f"rota_agent_{host_id}_{version}_{secrets.token_urlsafe(32)}"
    return text, hash_of(text)


def find_by_key(tx: Tx, text: str) -> HostRow | None:
    """Return the host of a key; None unless it is the current key of the host."""
    host_id = text.removeprefix("rota_agent_").partition("_")[0]
    row = tx.execute(select(hosts).where(h.id == host_id)).one_or_none()
    matches = hmac.compare_digest(row.key_hash if row else "", hash_of(text))
    return HostRow(**row._asdict()) if row is not None and matches else None


def rotate_key(tx: Tx, org_id: str, host_id: str, now: datetime) -> tuple[str, str]:
    """Replace the key of a host; the old one is invalid at once. Returns the id of the host and the new key."""
    version = get(tx, org_id, host_id, lock=True).key_version + 1
    text, hashed = make_key(host_id, version)
    tx.execute(update(hosts).where(h.id == host_id).values(key_hash=hashed, key_version=version, updated_at=now))
    return host_id, text


# hosts and servers


def get(tx: Tx, org_id: str, host_id: str, lock: bool = False) -> HostRow:
    stmt = select(hosts).where(h.id == host_id, h.org_id == org_id)
    row = tx.execute(stmt.with_for_update() if lock else stmt).one_or_none()
    if row is None:
        raise NotFound(f"host '{host_id}' not found")
    return HostRow(**row._asdict())


def host_id_of(tx: Tx, org_id: str, key: str) -> str | None:
    """Return the id of a host by its id or name; None if the org has none."""
    stmt = select(h.id).where(h.org_id == org_id, or_(h.id == key, h.name == key))
    return tx.execute(stmt.order_by(h.id != key)).scalar()


def server_id_of(tx: Tx, org_id: str, key: str) -> str | None:
    """Return the id of a server instance by its id or name; None if the org has none. Raises Conflict for a name that
    several hosts have."""
    stmt = select(v.id).where(v.org_id == org_id, or_(v.id == key, v.name == key))
    ids = tx.execute(stmt.order_by(v.id != key).limit(2)).scalars().all()
    if len(ids) > 1 and ids[0] != key:
        raise Conflict(f"server instance '{key}' exists on several hosts; use its id")
    return ids[0] if ids else None


def edit_host(tx: Tx, org_id: str, host_id: str, changes: Mapping[str, object], now: datetime) -> str:
    get(tx, org_id, host_id, lock=True)
    same_name = select(h.id).where(h.org_id == org_id, h.name == changes.get("name"), h.id != host_id)
    if tx.execute(same_name).first() is not None:
        raise Conflict(f"host {changes['name']!r} already exists; choose another name")
    tx.execute(update(hosts).where(h.id == host_id).values(**changes, updated_at=now))
    return host_id


def delete_host(tx: Tx, org_id: str, host_id: str, now: datetime) -> str:
    get(tx, org_id, host_id, lock=True)
    if tx.execute(select(v.id).where(v.host_id == host_id).limit(1)).first() is not None:
        raise Conflict(f"host {host_id} has server instances; delete those first")
    tx.execute(
        update(tables.workers).where(w.host_id == host_id, ALIVE).values(state=WorkerState.STOPPED, stopped_at=now)
    )
    tx.execute(delete(hosts).where(h.id == host_id))
    return host_id


def find_server(tx: Tx, org_id: str, server_id: str) -> ServerRow | None:
    row = tx.execute(select(server_instances).where(v.id == server_id, v.org_id == org_id)).one_or_none()
    return None if row is None else ServerRow(**row._asdict())


def server(tx: Tx, org_id: str, server_id: str) -> ServerRow:
    row = find_server(tx, org_id, server_id)
    if row is None:
        raise NotFound(f"server instance '{server_id}' not found")
    return row


def add_server(tx: Tx, org_id: str, fields: Record, now: datetime) -> str:
    get(tx, org_id, fields["host_id"])
    row = {"id": new_id(), "org_id": org_id, **fields, "created_at": now, "updated_at": now}
    if not insert_new(tx, server_instances, [row], ("id",)):
        raise Conflict(f"server instance {fields['name']!r} already exists on this host; choose another name")
    return str(row["id"])


def edit_server(tx: Tx, org_id: str, server_id: str, changes: Mapping[str, object], now: datetime) -> str:
    host_id = server(tx, org_id, server_id).host_id
    same_name = select(v.id).where(v.host_id == host_id, v.name == changes.get("name"), v.id != server_id)
    if tx.execute(same_name).first() is not None:
        raise Conflict(f"server instance {changes['name']!r} already exists on this host; choose another name")
    tx.execute(update(server_instances).where(v.id == server_id).values(**changes, updated_at=now))
    return server_id


def delete_server(tx: Tx, org_id: str, server_id: str) -> str:
    """Delete a server; its runs stay. Raises Conflict if a schedule or a job of it is left."""
    routes = routes_of(server(tx, org_id, server_id).host_id)
    s = tables.schedules.c
    schedules_of_server = (
        select(s.name).where(s.org_id == org_id, s.target == server_id, s.deleted_at.is_(None)).limit(1)
    )
    if (name := tx.execute(schedules_of_server).scalar()) is not None:
        raise Conflict(f"server instance {server_id} is the target of schedule {name!r}; delete that first")
    if (
        tx.execute(select(c.id).where(OF_HOSTS, c.route.in_(routes), c.target == server_id).limit(1)).first()
        is not None
    ):
        raise Conflict(f"server instance {server_id} has a job that has not ended; cancel that first")
    tx.execute(delete(server_instances).where(v.id == server_id))
    return server_id


def servers_with(tx: Tx, org_id: str, labels: Mapping[str, str], host_id: str | None = None) -> list[ServerRow]:
    """Return the servers that have all of these labels, own or of their host; by name."""
    stmt = (
        select(server_instances, h.labels.label("host_labels")).join(hosts, h.id == v.host_id).where(v.org_id == org_id)
    )
    servers = []
    for row in tx.execute(matching(stmt, (v.host_id, host_id)).order_by(v.name, v.id)):
        columns = row._asdict()
        if labels.items() <= {**columns.pop("host_labels"), **row.labels}.items():
            servers.append(ServerRow(**columns))
    return servers


# an agent's session


def register(
    tx: Tx, host: HostRow, facts: Record, lease: timedelta, journal: Mapping[tuple[str, int], str], now: datetime
) -> tuple[str, list[tuple[str, int]]]:
    """Start a session of an agent and end the earlier ones, whose jobs its journal decides. Returns the id of the
    session, and the jobs whose outcome is still unknown, with their fences.

    A job that runs or ended on the host is claimed by the new session; one that never began is ready again; one that
    began without a known end waits for a person.
    """
    session = new_id()
    alive = [claim for claim, state in journal.items() if state in ("running", "ended")]
    get(tx, host.org_id, host.id, lock=True)  # one registration at a time
    routes = routes_of(host.id)
    tx.execute(update(tables.workers).where(w.host_id == host.id, ALIVE).values(state=WorkerState.DEAD, stopped_at=now))
    owners = select(c.lease_owner).distinct().where(OF_HOSTS, c.route.in_(routes), is_in(c.state, [State.RUNNING]))
    running_there = and_(
        OF_HOSTS, c.route.in_(routes), is_in(c.state, [State.RUNNING]), tuple_(c.id, c.fence).in_(alive)
    )
    tx.execute(update(tables.jobs).where(running_there).values(lease_owner=session))
    for owner in tx.execute(owners.where(c.lease_owner != session)).scalars().all():
        finishing.rescue(tx, owner, now)
    ended = select(w.id).where(w.host_id == host.id, w.state != WorkerState.ALIVE).order_by(w.id.desc())
    old = tx.execute(ended.offset(ENDED_SESSIONS_KEPT)).scalars().all()
    tx.execute(delete(tables.workers).where(w.id.in_(old)))
    workers.register(
        tx,
        worker=session,
        pid=facts["pid"],
        version=facts["version"],
        concurrency=facts["room"],
        kinds=[KIND],
        routes=routes,
        queues=None,
        lease=lease,
        now=now,
        host=host.name,
        host_id=host.id,
    )
    for job_id, fence in jobs_to_reconcile(tx, routes):
        state = journal.get((job_id, fence), "never")
        if state == "running":
            jobs.adopt(tx, job_id, fence, session, now)
        elif state == "never":
            jobs.resume(tx, job_id, now)
    seen = {"agent_version": facts["version"], "job_types": facts["job_types"], "last_heartbeat_at": now}
    tx.execute(update(hosts).where(h.id == host.id).values(seen))
    return session, jobs_to_reconcile(tx, routes)


def jobs_to_reconcile(tx: Tx, routes: Collection[str]) -> list[tuple[str, int]]:
    """Return the jobs of these routes that are parked for reconciliation, as id and fence."""
    parked = and_(OF_HOSTS, c.route.in_(routes), c.state == State.PARKED, c.parked_reason == RECONCILIATION)
    return [(row.id, row.fence) for row in tx.execute(select(c.id, c.fence).where(parked).order_by(c.id))]


def renewed_since(tx: Tx, host_id: str, session: str, since: datetime) -> bool:
    """Whether a session was renewed since then. Raises SessionOver."""
    renewed_at = tx.execute(select(w.renewed_at).where(w.id == session, w.host_id == host_id, ALIVE)).scalar()
    if renewed_at is None:
        raise SessionOver(SESSION_OVER)
    return bool(renewed_at >= since)


def renew(
    tx: Tx, host_id: str, session: str, lease: timedelta, metrics: Mapping[str, object] | None, now: datetime
) -> None:
    """Renew the lease of a session, and store the metrics of its host. Raises SessionOver."""
    own_session = and_(w.id == session, w.host_id == host_id, ALIVE)
    if not tx.execute(
        update(tables.workers).where(own_session).values(renewed_at=now, lease_until=now + lease)
    ).rowcount:
        raise SessionOver(SESSION_OVER)
    seen: Record = {"last_heartbeat_at": now} | ({} if metrics is None else {"metrics": metrics})
    tx.execute(update(hosts).where(h.id == host_id).values(seen))


def lock_session(tx: Tx, host: HostRow, session: str) -> None:
    """Lock a session until the transaction ends. Raises SessionOver, also if the key was replaced."""
    own_session = and_(w.id == session, w.host_id == host.id, ALIVE, h.key_version == host.key_version)
    stmt = select(w.id).join(hosts, h.id == w.host_id).where(own_session).with_for_update(of=tables.workers)
    if tx.execute(stmt).first() is None:
        raise SessionOver(SESSION_OVER)


def routes_with_work(tx: Tx) -> set[str]:
    """Return the routes of hosts with a job that is ready, or that runs and is to be canceled."""
    ready = select(c.route).distinct().where(OF_HOSTS, is_in(c.state, [State.READY]))
    canceled = (
        select(c.route).distinct().where(OF_HOSTS, is_in(c.state, [State.RUNNING]), c.cancel_requested_at.is_not(None))
    )
    return {*tx.execute(ready).scalars(), *tx.execute(canceled).scalars()}


def has_ready(tx: Tx, host_id: str, reads: int) -> bool:
    """Whether a host with room for so many read-only jobs would get a job."""
    routes = routes_of(host_id) if reads else routes_of(host_id)[:1]
    paused = exists(select(literal(1)).where(queues.c.org_id == c.org_id, queues.c.name == c.queue, PAUSED))
    ready = select(c.id).where(OF_HOSTS, c.route.in_(routes), is_in(c.state, [State.READY]), ~paused).limit(1)
    return tx.execute(ready).first() is not None


def claim(tx: Tx, org_id: str, host_id: str, session: str, reads: int) -> list[ClaimedJob]:
    """Claim ready jobs of a host: one serial job, and at most `reads` read-only ones."""
    serial, read_only = routes_of(host_id)
    ready = tx.execute(
        select(c.id, c.route, c.queue, queues.c.max_running, queues.c.paused_at, orgs.c.max_running.label("of_org"))
        .outerjoin(queues, and_(queues.c.org_id == c.org_id, queues.c.name == c.queue))
        .join(orgs, orgs.c.id == c.org_id)
        .where(
            OF_HOSTS, c.route.in_([serial, read_only]), is_in(c.state, states_before(Move.CLAIM)), c.org_id == org_id
        )
        .order_by(c.route == read_only, c.priority.desc(), c.run_at, c.id)
        .limit(reads + 1)
        .with_for_update(of=tables.jobs, skip_locked=True)
    ).all()
    limits = {row.queue: [limit for limit in (row.max_running, row.of_org) if limit is not None] for row in ready}
    lanes = [Lane(org_id, name, min(limits[name], default=None)) for name in sorted(limits)]
    caps = {
        lane.queue: lane.cap for lane in claiming.within_limits(tx, lanes, 0)
    }  # what the limits of queue and org leave; None without one
    room, chosen = {serial: 1, read_only: reads}, []
    for row in ready:
        left = caps[row.queue]
        if room[row.route] and row.paused_at is None and (left is None or left > 0):
            room[row.route] -= 1
            caps[row.queue] = None if left is None else left - 1
            chosen.append(row.id)
    if not chosen:
        return []
    leased = lease_values(Move.CLAIM, session, draw_fence(tx))
    stmt = update(tables.jobs).where(c.id.in_(chosen), is_in(c.state, states_before(Move.CLAIM))).values(leased)
    claimed = claimed_jobs(tx.execute(stmt.returning(*jobs.JOB_COLUMNS, *CLAIM_COLUMNS)))
    return sorted(claimed, key=lambda claimed_job: (claimed_job.job.run_at, claimed_job.job.id))


def running_jobs(tx: Tx, session: str) -> list[ClaimedJob]:
    """Return the started jobs of a session."""
    started = and_(c.lease_owner == session, is_in(c.state, [State.RUNNING]), c.run_id.is_not(None))
    return claimed_jobs(tx.execute(select(*jobs.JOB_COLUMNS, *CLAIM_COLUMNS).where(started).order_by(c.id)))


def lock_job_of_host(tx: Tx, host: HostRow, job_id: str) -> ClaimedJob | None:
    """Lock and return a job of this host; None if it has ended, or belongs to another host or org."""
    claimed = lock_job(tx, host.org_id, job_id)
    return claimed if claimed is not None and claimed.job.route in routes_of(host.id) else None


def lock_job(tx: Tx, org_id: str, job_id: str) -> ClaimedJob | None:
    """Lock and return a host job that has not ended; locks its serial key first, in the order of all writers."""
    lock_keys(tx, serial_keys.keys_of(tx, [job_id]))
    host_job = and_(c.id == job_id, c.org_id == org_id, OF_HOSTS)
    rows = tx.execute(select(*jobs.JOB_COLUMNS, *CLAIM_COLUMNS).where(host_job).with_for_update())
    return next(iter(claimed_jobs(rows)), None)


def claimed_jobs(rows: Iterable[ResultRow]) -> list[ClaimedJob]:
    """Build the records of rows of `jobs.JOB_COLUMNS` and CLAIM_COLUMNS."""
    names = [column.name for column in CLAIM_COLUMNS]
    return [ClaimedJob(jobs.job_of(row), **{name: getattr(row, name) for name in names}) for row in rows]
