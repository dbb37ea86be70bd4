"""Hosts of an org, the servers on them, and their agents: pairing, keys, sessions, what is claimed for a host.

An agent is a worker that reaches the queue through the API. Its session is a row of `workers`, with a lease like any
other; its jobs carry the host's routes. The host is known by the key alone: `rota_agent_HOST_VERSION_SECRET`.
"""

import hmac
import secrets
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from sqlalchemy import Select, and_, delete, exists, func, literal, literal_column, or_, select, tuple_, update

from rota.access.store.accounts import hash_of
from rota.core.errors import Conflict, NotFound, SessionOver
from rota.core.fair_shares import Lane
from rota.core.ids import new_id
from rota.core.model import HOST_JOB, SERIAL_ROUTE_PREFIX
from rota.core.policy import RECONCILIATION
from rota.core.redact import redacted
from rota.core.states import Move, State, WorkerState, states_before
from rota.db.dialect import Tx, draw_fence, insert_new, insert_rows, lock_keys
from rota.db.paging import Page, Record, dict_of, matching, page_by
from rota.db.tables import hosts, jobs, orgs, pairing_tokens, queues, runs, schedules, server_instances, workers
from rota.engine import jobs as queue
from rota.engine import workers as sessions
from rota.engine.jobs import is_in

KIND = HOST_JOB
h, v, p, w, c, r = hosts.c, server_instances.c, pairing_tokens.c, workers.c, jobs.c, runs.c
OF_HOSTS = c.kind == literal_column(f"'{KIND}'")  # in the statement's text: a partial index serves no parameter
ALIVE = w.state == WorkerState.ALIVE
PAUSED = queues.c.paused_at.is_not(None)
ENDED_SESSIONS_KEPT = 10  # of each host
OVER = "this session is over: its lease ran out, or another agent of this host came up; register anew"


def routes_of(host_id: str) -> tuple[str, str]:
    """The two roads to a host: what changes something there goes one by one, what only looks goes beside it."""
    return f"{SERIAL_ROUTE_PREFIX}host:{host_id}", f"host:{host_id}"


# pairing and keys


def make_token(tx: Tx, org_id: str, by: str, ttl: timedelta, now: datetime) -> tuple[str, str]:
    """A token that pairs one machine; its id, and its text, which nobody can read again."""
    text = f"rota_pair_{secrets.token_urlsafe(32)}"
    row = {"id": new_id(), "org_id": org_id, "hash": hash_of(text), "created_by": by, "created_at": now}
    insert_rows(tx, pairing_tokens, [{**row, "expires_at": now + ttl}])
    tx.execute(delete(pairing_tokens).where(p.expires_at < now - timedelta(days=30)))
    return str(row["id"]), text


def find_token(tx: Tx, text: str) -> Any | None:
    return tx.execute(select(pairing_tokens).where(p.hash == hash_of(text))).one_or_none()


def pair(tx: Tx, token: Any, name: str, now: datetime) -> tuple[str, str, str]:
    """Make a host of the machine that holds this token; its id, its name, and the text of its key. A token works once;
    a name that is taken gets a number."""
    host_id = new_id()
    unused = and_(p.id == token.id, p.used_at.is_(None), p.expires_at > now)
    if not tx.execute(update(pairing_tokens).where(unused).values(used_at=now, host_id=host_id)).rowcount:
        raise Conflict("this pairing token was used already, or has expired; ask for a new one")
    key, hashed = make_key(host_id, 1)
    taken = set(tx.execute(select(h.name).where(h.org_id == token.org_id, h.name.startswith(name))).scalars())
    if name in taken:
        name = next(one for n in count(2) if (one := f"{name}-{n}") not in taken)
    row = {
        "id": host_id, "org_id": token.org_id, "name": name, "labels": {}, "key_hash": hashed, "key_version": 1,
        "created_at": now, "updated_at": now,
    }  # fmt: skip
    insert_rows(tx, hosts, [row])
    return host_id, name, key


def make_key(host_id: str, version: int) -> tuple[str, str]:
    text = f"rota_agent_{host_id}_{version}_{secrets.token_urlsafe(32)}"
    return text, hash_of(text)


def find_by_key(tx: Tx, text: str) -> Any | None:
    """The host that a key belongs to; None unless it is the host's newest."""
    host_id = text.removeprefix("rota_agent_").partition("_")[0]
    found = tx.execute(select(hosts).where(h.id == host_id)).one_or_none()
    good = hmac.compare_digest(found.key_hash if found else "", hash_of(text))
    return found if good else None


def rotate_key(tx: Tx, org_id: str, host_id: str, now: datetime) -> tuple[str, str]:
    """A new key for a host; from now on its old one opens nothing. Returns the host's id and the key's text."""
    version = get(tx, org_id, host_id, lock=True).key_version + 1
    text, hashed = make_key(host_id, version)
    tx.execute(update(hosts).where(h.id == host_id).values(key_hash=hashed, key_version=version, updated_at=now))
    return host_id, text


# hosts and servers


def get(tx: Tx, org_id: str, host_id: str, lock: bool = False) -> Any:
    stmt = select(hosts).where(h.id == host_id, h.org_id == org_id)
    found = tx.execute(stmt.with_for_update() if lock else stmt).one_or_none()
    if found is None:
        raise NotFound(f"host '{host_id}' not found")
    return found


def host_id_of(tx: Tx, org_id: str, key: str) -> str | None:
    """The id of a host by its id or name; None if the org has none."""
    mine = select(h.id).where(h.org_id == org_id, or_(h.id == key, h.name == key))
    return tx.execute(mine.order_by(h.id != key)).scalar()


def server_id_of(tx: Tx, org_id: str, key: str) -> str | None:
    """The id of a server instance by its id or name; None if the org has none. Raises Conflict for a name that several
    hosts have."""
    mine = select(v.id).where(v.org_id == org_id, or_(v.id == key, v.name == key))
    ids = tx.execute(mine.order_by(v.id != key).limit(2)).scalars().all()
    if len(ids) > 1 and ids[0] != key:
        raise Conflict(f"server instance '{key}': several hosts have one of this name; use its id")
    return ids[0] if ids else None


def edit_host(tx: Tx, org_id: str, host_id: str, changes: Mapping[str, Any], now: datetime) -> str:
    get(tx, org_id, host_id, lock=True)
    taken = select(h.id).where(h.org_id == org_id, h.name == changes.get("name"), h.id != host_id)
    if tx.execute(taken).first() is not None:
        raise Conflict(f"host {changes['name']!r} already exists; choose another name")
    tx.execute(update(hosts).where(h.id == host_id).values(**changes, updated_at=now))
    return host_id


def delete_host(tx: Tx, org_id: str, host_id: str, now: datetime) -> str:
    get(tx, org_id, host_id, lock=True)
    if tx.execute(select(v.id).where(v.host_id == host_id).limit(1)).first() is not None:
        raise Conflict(f"host {host_id}: there are servers on it; remove those first")
    tx.execute(update(workers).where(w.host_id == host_id, ALIVE).values(state=WorkerState.STOPPED, stopped_at=now))
    tx.execute(delete(hosts).where(h.id == host_id))
    return host_id


def find_server(tx: Tx, org_id: str, server_id: str) -> Any | None:
    return tx.execute(select(server_instances).where(v.id == server_id, v.org_id == org_id)).one_or_none()


def server(tx: Tx, org_id: str, server_id: str) -> Any:
    found = find_server(tx, org_id, server_id)
    if found is None:
        raise NotFound(f"server instance '{server_id}' not found")
    return found


def add_server(tx: Tx, org_id: str, fields: Mapping[str, Any], now: datetime) -> str:
    get(tx, org_id, fields["host_id"])
    row = {"id": new_id(), "org_id": org_id, **fields, "created_at": now, "updated_at": now}
    if not insert_new(tx, server_instances, [row], ("id",)):
        raise Conflict(f"server instance {fields['name']}: its host has one of this name already; choose another")
    return str(row["id"])


def edit_server(tx: Tx, org_id: str, server_id: str, changes: Mapping[str, Any], now: datetime) -> str:
    host_id = server(tx, org_id, server_id).host_id
    taken = select(v.id).where(v.host_id == host_id, v.name == changes.get("name"), v.id != server_id)
    if tx.execute(taken).first() is not None:
        raise Conflict(f"server instance {changes['name']}: its host has one of this name already; choose another")
    tx.execute(update(server_instances).where(v.id == server_id).values(**changes, updated_at=now))
    return server_id


def delete_server(tx: Tx, org_id: str, server_id: str) -> str:
    """Take a server away, unless something is still to run on it. What ran there stays in the ledger."""
    routes = routes_of(server(tx, org_id, server_id).host_id)
    s = schedules.c
    planned = select(s.name).where(s.org_id == org_id, s.target == server_id, s.deleted_at.is_(None)).limit(1)
    if (name := tx.execute(planned).scalar()) is not None:
        raise Conflict(f"server instance {server_id}: schedule {name} runs on it; delete that first")
    if (
        tx.execute(select(c.id).where(OF_HOSTS, c.route.in_(routes), c.target == server_id).limit(1)).first()
        is not None
    ):
        raise Conflict(f"server instance {server_id}: a job of it has not ended; cancel that first")
    tx.execute(delete(server_instances).where(v.id == server_id))
    return server_id


def servers_with(tx: Tx, org_id: str, labels: Mapping[str, str], host_id: str | None = None) -> list[Any]:
    """The servers that have all of these labels, of their own or of their host; by name."""
    stmt = select(server_instances, h.labels.label("of_host")).join(hosts, h.id == v.host_id).where(v.org_id == org_id)
    found = tx.execute(matching(stmt, (v.host_id, host_id)).order_by(v.name, v.id))
    return [row for row in found if labels.items() <= {**row.of_host, **row.labels}.items()]


# an agent's session


def register(
    tx: Tx, host: Any, facts: Mapping[str, Any], lease: timedelta, journal: Mapping[tuple[str, int], str],
    now: datetime,
) -> tuple[str, list[Any]]:  # fmt: skip
    """An agent is up: the sessions before it are over, what they had in hand is asked about, and its journal answers.
    Returns its session, and what is still asked.

    A job that is in its hand, or ended there, stays or is its own again; one that never reached it, or never began, is
    ready again; one of which it only knows that it began waits for a person.
    """
    session = new_id()
    kept = [name for name, state in journal.items() if state in ("running", "ended")]
    get(tx, host.org_id, host.id, lock=True)  # one at a time
    routes = routes_of(host.id)
    tx.execute(update(workers).where(w.host_id == host.id, ALIVE).values(state=WorkerState.DEAD, stopped_at=now))
    held = select(c.lease_owner).distinct().where(OF_HOSTS, c.route.in_(routes), is_in(c.state, [State.RUNNING]))
    in_hand = and_(OF_HOSTS, c.route.in_(routes), is_in(c.state, [State.RUNNING]), tuple_(c.id, c.fence).in_(kept))
    tx.execute(update(jobs).where(in_hand).values(lease_owner=session))
    for gone in tx.execute(held.where(c.lease_owner != session)).scalars().all():
        queue.rescue(tx, gone, now)
    ended = select(w.id).where(w.host_id == host.id, w.state != WorkerState.ALIVE).order_by(w.id.desc())
    old = tx.execute(ended.offset(ENDED_SESSIONS_KEPT)).scalars().all()
    tx.execute(delete(workers).where(w.id.in_(old)))
    sessions.register(
        tx, worker=session, pid=facts["pid"], version=facts["version"], concurrency=facts["room"], kinds=[KIND],
        routes=routes, queues=None, lease=lease, now=now, host=host.name, host_id=host.id,
    )  # fmt: skip
    for job in questions(tx, routes):
        answer = journal.get((job.id, job.fence), "never")
        if answer == "running":
            queue.adopt(tx, job.id, job.fence, session, now)
        elif answer == "never":
            queue.resume(tx, job.id, now)
    seen = {"agent_version": facts["version"], "job_types": facts["job_types"], "last_heartbeat_at": now}
    tx.execute(update(hosts).where(h.id == host.id).values(seen))
    return session, questions(tx, routes)


def questions(tx: Tx, routes: Collection[str]) -> list[Any]:
    """The jobs of which nobody knows whether they happened."""
    asked = and_(OF_HOSTS, c.route.in_(routes), c.state == State.PARKED, c.parked_reason == RECONCILIATION)
    return list(tx.execute(select(c.id, c.fence).where(asked).order_by(c.id)))


def spoke_since(tx: Tx, host_id: str, session: str, moment: datetime) -> bool:
    """Whether a session was renewed so lately that it need not be written again; raises if it is over."""
    found = tx.execute(select(w.renewed_at).where(w.id == session, w.host_id == host_id, ALIVE)).scalar()
    if found is None:
        raise SessionOver(OVER)
    return bool(found >= moment)


def beat(
    tx: Tx, host_id: str, session: str, lease: timedelta, metrics: Mapping[str, Any] | None, now: datetime
) -> None:
    """The agent lives."""
    mine = and_(w.id == session, w.host_id == host_id, ALIVE)
    if not tx.execute(update(workers).where(mine).values(renewed_at=now, lease_until=now + lease)).rowcount:
        raise SessionOver(OVER)
    seen: dict[str, Any] = {"last_heartbeat_at": now} | ({} if metrics is None else {"metrics": metrics})
    tx.execute(update(hosts).where(h.id == host_id).values(seen))


def hold(tx: Tx, host: Any, session: str) -> None:
    """Keep a session as it is until the transaction ends; raises if it is over, or its key is not the newest."""
    mine = and_(w.id == session, w.host_id == host.id, ALIVE, h.key_version == host.key_version)
    stmt = select(w.id).join(hosts, h.id == w.host_id).where(mine).with_for_update(of=workers)
    if tx.execute(stmt).first() is None:
        raise SessionOver(OVER)


def stirred(tx: Tx) -> set[str]:
    """The routes of hosts for which something is ready, or of which a run is to be stopped."""
    ready = select(c.route).distinct().where(OF_HOSTS, is_in(c.state, [State.READY]))
    stop = (
        select(c.route).distinct().where(OF_HOSTS, is_in(c.state, [State.RUNNING]), c.cancel_requested_at.is_not(None))
    )
    return {*tx.execute(ready).scalars(), *tx.execute(stop).scalars()}


def has_ready(tx: Tx, host_id: str, reads: int) -> bool:
    """Whether a host that has room for so many looks would be given a job."""
    routes = routes_of(host_id) if reads else routes_of(host_id)[:1]
    paused = exists(select(literal(1)).where(queues.c.org_id == c.org_id, queues.c.name == c.queue, PAUSED))
    ready = select(c.id).where(OF_HOSTS, c.route.in_(routes), is_in(c.state, [State.READY]), ~paused).limit(1)
    return tx.execute(ready).first() is not None


def claim(tx: Tx, org_id: str, host_id: str, session: str, reads: int) -> list[Any]:
    """Take what is ready for a host: one job that changes something, and so many that only look. Rows of FIELDS, with
    who wants the job canceled."""
    changes, looks = routes_of(host_id)
    found = tx.execute(
        select(c.id, c.route, c.queue, queues.c.max_running, queues.c.paused_at, orgs.c.max_running.label("of_org"))
        .outerjoin(queues, and_(queues.c.org_id == c.org_id, queues.c.name == c.queue))
        .join(orgs, orgs.c.id == c.org_id)
        .where(OF_HOSTS, c.route.in_([changes, looks]), is_in(c.state, states_before(Move.CLAIM)), c.org_id == org_id)
        .order_by(c.route == looks, c.priority.desc(), c.run_at, c.id)
        .limit(reads + 1)
        .with_for_update(of=jobs, skip_locked=True)
    ).all()
    limits = {row.queue: [one for one in (row.max_running, row.of_org) if one is not None] for row in found}
    lanes = [Lane(org_id, name, min(limits[name], default=None)) for name in sorted(limits)]
    caps = {
        lane.queue: lane.cap for lane in queue.capped(tx, lanes, 0)
    }  # what their limits leave; mostly there is none
    room, chosen = {changes: 1, looks: reads}, []
    for row in found:
        left = caps[row.queue]
        if room[row.route] and row.paused_at is None and (left is None or left > 0):
            room[row.route] -= 1
            caps[row.queue] = None if left is None else left - 1
            chosen.append(row.id)
    if not chosen:
        return []
    leased = queue.lease_values(Move.CLAIM, session, draw_fence(tx))
    stmt = update(jobs).where(c.id.in_(chosen), is_in(c.state, states_before(Move.CLAIM))).values(leased)
    taken = tx.execute(stmt.returning(*queue.FIELDS, c.cancel_requested_at, c.cancel_reason)).all()
    return sorted(taken, key=lambda row: (row.run_at, row.id))


def in_hand(tx: Tx, session: str) -> list[Any]:
    """The jobs of a session that have begun, as far as the queue knows."""
    mine = and_(c.lease_owner == session, is_in(c.state, [State.RUNNING]), c.run_id.is_not(None))
    return list(tx.execute(select(*queue.FIELDS, c.run_id, c.cancel_requested_at).where(mine).order_by(c.id)))


def asked_of(tx: Tx, host: Any, job_id: str) -> Any | None:
    """A living job of this host, held until the transaction ends. Another host's, or another org's, is none."""
    found = locked(tx, host.org_id, job_id)
    return found if found is not None and found.route in routes_of(host.id) else None


def locked(tx: Tx, org_id: str, job_id: str) -> Any | None:
    """A living host job, held until the transaction ends; its serial key first, as everybody does."""
    lock_keys(tx, queue.keys_of(tx, [job_id]))
    more = (c.state, c.run_id, c.started_at, c.parked_reason, c.lease_owner, c.cancel_requested_at, c.cancel_reason)
    mine = and_(c.id == job_id, c.org_id == org_id, OF_HOSTS)
    return tx.execute(select(*queue.FIELDS, *more).where(mine).with_for_update()).one_or_none()


# lists and details


def jobs_of(tx: Tx, org_id: str, server_ids: Collection[str], limit: int) -> list[str]:
    """The ids of jobs on these servers, newest first: what waits or runs, then what ended."""
    living = select(c.id).where(c.org_id == org_id, OF_HOSTS, c.target.in_(server_ids)).order_by(c.id.desc())
    found = list(tx.execute(living.limit(limit)).scalars())
    mine = select(r.job_id, r.recorded_at).where(r.kind == literal_column(f"'{KIND}'"), r.org_id == org_id)
    newest = mine.order_by(r.recorded_at.desc(), r.id.desc()).limit(limit)
    ended = [row for one in server_ids for row in tx.execute(newest.where(r.target == one))]
    found += [row.job_id for row in sorted(ended, key=lambda row: row.recorded_at, reverse=True)]
    return list(dict.fromkeys(found))[:limit]


def under_way(tx: Tx, host_ids: Collection[str]) -> dict[str, list[Record]]:
    """What runs on each of these hosts now."""
    of = {route: one for one in host_ids for route in routes_of(one)}
    columns = (c.id, c.run_id, c.target, c.payload, c.started_at, c.route)
    running = select(*columns).where(OF_HOSTS, c.route.in_(of), is_in(c.state, [State.RUNNING])).order_by(c.id)
    found: dict[str, list[Record]] = {one: [] for one in host_ids}
    for row in tx.execute(running):
        told = {"job_id": row.id, "job_type": row.payload["job_type"], "server_id": row.target}
        found[of[row.route]].append(told | {"started_at": row.started_at})
    return found


def waiting_for_word(tx: Tx, org_id: str, limit: int) -> list[str]:
    """The ids of jobs of which nobody knows whether they happened, oldest first."""
    parked = and_(is_in(c.state, [State.PARKED]), c.parked_reason == RECONCILIATION)
    return list(
        tx.execute(select(c.id).where(c.org_id == org_id, OF_HOSTS, parked).order_by(c.id).limit(limit)).scalars()
    )


def host_query(now: datetime) -> Select[Any]:
    held = and_(w.host_id == h.id, ALIVE, w.lease_until >= now)
    servers = select(func.count()).where(v.host_id == h.id).correlate(hosts).scalar_subquery()
    online = exists(select(literal(1)).select_from(workers).where(held).correlate(hosts))
    columns = (
        h.id, h.name, h.labels, h.key_version, h.agent_version, h.job_types, h.metrics, h.last_heartbeat_at,
        h.created_at, h.updated_at,
    )  # fmt: skip
    return select(*columns, online.label("online"), servers.label("servers"))


def host_record(row: Any) -> Record:
    found = dict_of(row)
    silent = "offline" if row.last_heartbeat_at is not None else "unknown"
    found["status"] = "online" if found.pop("online") else silent
    return found


def described(tx: Tx, org_id: str, key: str) -> Record:
    """What the audit log keeps of a host, by its id or name."""
    row = get(tx, org_id, host_id_of(tx, org_id, key) or key)
    return {"id": row.id, "name": row.name, "labels": row.labels, "key_version": row.key_version}


def described_server(tx: Tx, org_id: str, key: str) -> Record:
    """What the audit log keeps of a server instance, by its id or name."""
    return server_record(server(tx, org_id, server_id_of(tx, org_id, key) or key))


def list_hosts(tx: Tx, org_id: str, now: datetime, *, limit: int, cursor: str | None) -> Page:
    stmt = host_query(now).where(h.org_id == org_id)
    return page_by(tx, stmt, h.name, limit, cursor, host_record)


def offline(tx: Tx, org_id: str, now: datetime, limit: int) -> list[Record]:
    """Hosts whose agent was connected once and is not now, by name."""
    stmt = host_query(now).where(h.org_id == org_id, h.last_heartbeat_at.is_not(None)).subquery()
    rows = tx.execute(select(stmt).where(~stmt.c.online).order_by(stmt.c.name).limit(limit))
    return [host_record(row) for row in rows]


def host(tx: Tx, org_id: str, key: str, now: datetime) -> Record:
    """A host by its id or name."""
    mine = or_(and_(h.org_id == org_id, h.id == key), and_(h.org_id == org_id, h.name == key))
    found = tx.execute(host_query(now).where(mine).order_by(h.id != key)).first()
    if found is None:
        raise NotFound(f"host {key!r} not found")
    return host_record(found)


def host_of_route(tx: Tx, org_id: str, route: str, now: datetime) -> Record | None:
    """The host that jobs with this route run on; None for other routes."""
    kind, _, host_id = route.removeprefix(SERIAL_ROUTE_PREFIX).partition(":")
    if kind != "host":
        return None
    row = tx.execute(host_query(now).where(h.org_id == org_id, h.id == host_id)).one_or_none()
    return None if row is None else host_record(row)


def list_servers(
    tx: Tx, org_id: str, *, limit: int, cursor: str | None, host_id: str | None = None, type: str | None = None
) -> Page:
    stmt = select(server_instances).where(v.org_id == org_id)
    stmt = matching(stmt, (v.host_id, host_id), (v.type, type))
    return page_by(tx, stmt, v.id, limit, cursor, server_record)


def server_record(row: Any) -> Record:
    """Passwords in its config are for its agent alone."""
    found = dict_of(row)
    del found["org_id"]
    return {**found, "config": redacted(found["config"])}
