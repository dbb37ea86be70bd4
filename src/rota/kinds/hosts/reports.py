"""Lists and details of hosts, their servers and jobs, for people."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import and_, exists, func, literal, literal_column, or_, select

from rota.core.errors import NotFound
from rota.core.model import SERIAL_ROUTE_PREFIX
from rota.core.policy import RECONCILIATION
from rota.core.redact import redacted
from rota.core.states import State
from rota.db import tables
from rota.db.dialect import Query, Tx
from rota.db.paging import Page, Record, dict_of, matching, page_by
from rota.db.tables import hosts, server_instances
from rota.engine.job_states import is_in
from rota.kinds.hosts.store.hosts import ALIVE, KIND, OF_HOSTS, get, host_id_of, routes_of, server, server_id_of
from rota.kinds.hosts.store.records import ServerRow

h, v, w, c, r = hosts.c, server_instances.c, tables.workers.c, tables.jobs.c, tables.runs.c


def jobs_of(tx: Tx, org_id: str, server_ids: Collection[str], limit: int) -> list[str]:
    """Return the ids of jobs on these servers, newest first: queued and running ones, then those that ended."""
    living = select(c.id).where(c.org_id == org_id, OF_HOSTS, c.target.in_(server_ids)).order_by(c.id.desc())
    job_ids = list(tx.execute(living.limit(limit)).scalars())
    ended_runs = select(r.job_id, r.recorded_at).where(r.kind == literal_column(f"'{KIND}'"), r.org_id == org_id)
    newest = ended_runs.order_by(r.recorded_at.desc(), r.id.desc()).limit(limit)
    ended = [row for server_id in server_ids for row in tx.execute(newest.where(r.target == server_id))]
    job_ids += [row.job_id for row in sorted(ended, key=lambda row: row.recorded_at, reverse=True)]
    return list(dict.fromkeys(job_ids))[:limit]


def running_by_host(tx: Tx, host_ids: Collection[str]) -> dict[str, list[Record]]:
    """Return the running jobs of each of these hosts."""
    host_of = {route: host_id for host_id in host_ids for route in routes_of(host_id)}
    columns = (c.id, c.run_id, c.target, c.payload, c.started_at, c.route)
    running = select(*columns).where(OF_HOSTS, c.route.in_(host_of), is_in(c.state, [State.RUNNING])).order_by(c.id)
    by_host: dict[str, list[Record]] = {host_id: [] for host_id in host_ids}
    for row in tx.execute(running):
        job = {"job_id": row.id, "job_type": row.payload["job_type"], "server_id": row.target}
        by_host[host_of[row.route]].append(job | {"started_at": row.started_at})
    return by_host


def parked_for_reconciliation(tx: Tx, org_id: str, limit: int) -> list[str]:
    """Return the ids of jobs that wait for a person to reconcile them, oldest first."""
    parked = and_(is_in(c.state, [State.PARKED]), c.parked_reason == RECONCILIATION)
    return list(
        tx.execute(select(c.id).where(c.org_id == org_id, OF_HOSTS, parked).order_by(c.id).limit(limit)).scalars()
    )


def host_query(now: datetime) -> Query:
    live_session = and_(w.host_id == h.id, ALIVE, w.lease_until >= now)
    servers = select(func.count()).where(v.host_id == h.id).correlate(hosts).scalar_subquery()
    online = exists(select(literal(1)).select_from(tables.workers).where(live_session).correlate(hosts))
    columns = (
        h.id,
        h.name,
        h.labels,
        h.key_version,
        h.agent_version,
        h.job_types,
        h.metrics,
        h.last_heartbeat_at,
        h.created_at,
        h.updated_at,
    )
    return select(*columns, online.label("online"), servers.label("servers"))


def host_record(fields: Record) -> Record:
    offline_status = "offline" if fields["last_heartbeat_at"] is not None else "unknown"
    fields["status"] = "online" if fields.pop("online") else offline_status
    return fields


def described(tx: Tx, org_id: str, key: str) -> Record:
    """Return what the audit log records of a host, by its id or name."""
    row = get(tx, org_id, host_id_of(tx, org_id, key) or key)
    return {"id": row.id, "name": row.name, "labels": row.labels, "key_version": row.key_version}


def described_server(tx: Tx, org_id: str, key: str) -> Record:
    """Return what the audit log records of a server instance, by its id or name."""
    return server_record(server(tx, org_id, server_id_of(tx, org_id, key) or key))


def list_hosts(tx: Tx, org_id: str, now: datetime, *, limit: int, cursor: str | None) -> Page:
    stmt = host_query(now).where(h.org_id == org_id)
    return page_by(tx, stmt, h.name, limit, cursor, lambda row: host_record(dict_of(row)))


def offline(tx: Tx, org_id: str, now: datetime, limit: int) -> list[Record]:
    """Return hosts whose agent was connected once and is not now, by name."""
    stmt = host_query(now).where(h.org_id == org_id, h.last_heartbeat_at.is_not(None)).subquery()
    rows = tx.execute(select(stmt).where(~stmt.c.online).order_by(stmt.c.name).limit(limit))
    return [host_record(dict_of(row)) for row in rows]


def host(tx: Tx, org_id: str, key: str, now: datetime) -> Record:
    """Return a host by its id or name. Raises NotFound."""
    by_key = or_(and_(h.org_id == org_id, h.id == key), and_(h.org_id == org_id, h.name == key))
    row = tx.execute(host_query(now).where(by_key).order_by(h.id != key)).first()
    if row is None:
        raise NotFound(f"host {key!r} not found")
    return host_record(dict_of(row))


def host_of_route(tx: Tx, org_id: str, route: str, now: datetime) -> Record | None:
    """Return the host of a route; None for other routes."""
    kind, _, host_id = route.removeprefix(SERIAL_ROUTE_PREFIX).partition(":")
    if kind != "host":
        return None
    row = tx.execute(host_query(now).where(h.org_id == org_id, h.id == host_id)).one_or_none()
    return None if row is None else host_record(dict_of(row))


def list_servers(
    tx: Tx, org_id: str, *, limit: int, cursor: str | None, host_id: str | None = None, type: str | None = None
) -> Page:
    stmt = select(server_instances).where(v.org_id == org_id)
    stmt = matching(stmt, (v.host_id, host_id), (v.type, type))
    return page_by(tx, stmt, v.id, limit, cursor, lambda row: server_record(ServerRow(**row._asdict())))


def server_record(server: ServerRow) -> Record:
    """Return a server instance without secrets: only its agent gets them."""
    fields = {name: getattr(server, name) for name in ServerRow.__slots__ if name != "org_id"}
    return {**fields, "config": redacted(server.config)}
