"""SQL of hosts and their servers: pairing, keys, labels.

The key identifies the host: `rota_agent_HOST_VERSION_SECRET`. Sessions and claims of agents are in `sessions.py`.
"""

import hmac
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from itertools import count

from sqlalchemy import and_, delete, literal_column, or_, select, update

from rota.access.store.accounts import hash_of
from rota.core.errors import Conflict, NotFound, Refused
from rota.core.ids import new_id
from rota.core.model import SERIAL_ROUTE_PREFIX
from rota.core.states import WorkerState
from rota.db import tables
from rota.db.dialect import Tx
from rota.db.paging import Record, matching
from rota.db.statement import insert_new, insert_rows
from rota.db.tables import hosts, pairing_tokens, server_instances
from rota.kinds.hosts.store import statements
from rota.kinds.hosts.store.records import HostRow, PairingToken, ServerRow

KIND = "host_job"
h, v, p, w, c, r = hosts.c, server_instances.c, pairing_tokens.c, tables.workers.c, tables.jobs.c, tables.runs.c
OF_HOSTS = c.kind == literal_column(f"'{KIND}'")  # a literal: the planner uses a partial index only for constants
ALIVE = w.state == WorkerState.ALIVE


class KeyReplaced(Refused):
    """The key of an agent was replaced after its request was authenticated, or its host was deleted."""

    code = "unauthenticated"

    def __init__(self) -> None:
        super().__init__("the key of this host was replaced; `rota agent key` passes the new one to the agent")


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


def host_id_of_key(text: str) -> str:
    return text.removeprefix("rota_agent_").partition("_")[0]


def find_by_key(tx: Tx, text: str) -> HostRow | None:
    """Return the host of a key; None unless it is the current key of the host."""
    row = tx.execute(select(hosts).where(h.id == host_id_of_key(text))).one_or_none()
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


def servers_by_id(tx: Tx, server_ids: Iterable[str]) -> dict[str, ServerRow]:
    """Return servers of any org by id; unknown ids are left out."""
    columns = statements.SERVERS.columns(tx, [sorted(set(server_ids))])
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return {server.id: server for server in (ServerRow(**row) for row in rows)}


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
