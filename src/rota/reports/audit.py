"""Entries of the audit log as records with the field names of the API. Reads only."""

from datetime import datetime

from sqlalchemy import Column, select

from rota.db.dialect import Tx
from rota.db.paging import PAGE_ROWS, Page, Record, matching, page_by, within
from rota.db.tables import api_keys, audit_log, hosts, orgs, schedules, server_instances, tasks, users, workflows

s = schedules.c
ENTRY = (
    audit_log.c.id, audit_log.c.at, audit_log.c.user_id, users.c.name.label("user_name"), audit_log.c.key_id,
    api_keys.c.name.label("key_name"), audit_log.c.action, audit_log.c.resource, audit_log.c.resource_id,
    audit_log.c.before, audit_log.c.after, audit_log.c.address, audit_log.c.request_id,
)  # fmt: skip


def list_audit(
    tx: Tx,
    org_id: str,
    *,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
    action: str | None = None,
    resource: str | None = None,
    resource_id: str | None = None,
    user_id: str | None = None,
    key_id: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Page:
    """Return a page of the audit log, newest first."""
    a = audit_log.c
    named = audit_log.outerjoin(users, users.c.id == a.user_id).outerjoin(api_keys, api_keys.c.id == a.key_id)
    of_org = select(*ENTRY).select_from(named).where(a.org_id == org_id)
    filters = ((a.action, action), (a.resource, resource), (a.resource_id, resource_id), (a.user_id, user_id))
    stmt = within(matching(of_org, *filters, (a.key_id, key_id)), a.at, since, until)
    entries, more = page_by(tx, stmt, a.id, limit, cursor, descending=True)
    return with_resource_names(tx, entries), more


def with_resource_names(tx: Tx, entries: list[Record]) -> list[Record]:
    """Add `resource_name` to entries: the current name of the resource, else the name recorded in the entry."""
    ids: dict[str, set[str]] = {}
    for entry in entries:
        if entry["resource_id"] is not None:
            ids.setdefault(entry["resource"], set()).add(entry["resource_id"])
    names: dict[tuple[str, str], str] = {}
    for resource, (key, name) in NAMED_RESOURCES.items():
        if resource in ids:
            rows = tx.execute(select(key.label("id"), name.label("name")).where(key.in_(ids[resource])))
            names |= {(resource, row.id): row.name for row in rows}
    return [
        {**entry, "resource_name": names.get((entry["resource"], entry["resource_id"])) or name_in(entry)}
        for entry in entries
    ]


NAMED_RESOURCES: dict[str, tuple[Column[str], Column[str]]] = {  # by the first part of the route
    "schedules": (s.id, s.name), "tasks": (tasks.c.id, tasks.c.name), "hosts": (hosts.c.id, hosts.c.name),
    "workflows": (workflows.c.id, workflows.c.name), "users": (users.c.id, users.c.name),
    "service-accounts": (users.c.id, users.c.name),
    "api-keys": (api_keys.c.id, api_keys.c.name), "orgs": (orgs.c.id, orgs.c.name),
    "server-instances": (server_instances.c.id, server_instances.c.name),
}  # fmt: skip


def name_in(entry: Record) -> str | None:
    """Return the name recorded in the values of an entry."""
    values = {**(entry["before"] or {}), **(entry["after"] or {})}
    name = values.get("name")
    return name if isinstance(name, str) else None
