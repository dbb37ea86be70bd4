"""The audit log's rows. They are added, never changed, and forgotten by age; `reports.list_audit` reads them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Select, delete, select

from rota.db.dialect import Tx, insert_rows
from rota.db.paging import PAGE_ROWS, Page, Record, matching, page_by, within
from rota.db.tables import api_keys, audit_log, hosts, orgs, schedules, server_instances, tasks, users, workflows

s = schedules.c
ACT = (
    audit_log.c.id, audit_log.c.at, audit_log.c.user_id, users.c.name.label("user_name"), audit_log.c.key_id,
    api_keys.c.name.label("key_name"), audit_log.c.action, audit_log.c.resource, audit_log.c.resource_id,
    audit_log.c.before, audit_log.c.after, audit_log.c.address, audit_log.c.request_id,
)  # fmt: skip


def append(tx: Tx, line: Mapping[str, Any]) -> None:
    insert_rows(tx, audit_log, [line])


def prune(tx: Tx, before: datetime, limit: int) -> int:
    """Forget the oldest lines; returns how many."""
    old = select(audit_log.c.id).where(audit_log.c.at < before).order_by(audit_log.c.at, audit_log.c.id).limit(limit)
    ids = tx.execute(old).scalars().all()
    if ids:
        tx.execute(delete(audit_log).where(audit_log.c.id.in_(ids)))
    return len(ids)


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
    """Who changed what, newest first."""
    a = audit_log.c
    named = audit_log.outerjoin(users, users.c.id == a.user_id).outerjoin(api_keys, api_keys.c.id == a.key_id)
    stmt: Select[Any] = select(*ACT).select_from(named).where(a.org_id == org_id)
    wanted = ((a.action, action), (a.resource, resource), (a.resource_id, resource_id), (a.user_id, user_id))
    stmt = within(matching(stmt, *wanted, (a.key_id, key_id)), a.at, since, until)
    lines, more = page_by(tx, stmt, a.id, limit, cursor, descending=True)
    return with_resource_names(tx, lines), more


def with_resource_names(tx: Tx, lines: list[Record]) -> list[Record]:
    """Lines of the audit log with `resource_name`: the name of the resource now, else the one in the line."""
    ids: dict[str, set[str]] = {}
    for line in lines:
        if line["resource_id"] is not None:
            ids.setdefault(line["resource"], set()).add(line["resource_id"])
    names: dict[tuple[str, str], str] = {}
    for resource, (key, name) in NAMED_RESOURCES.items():
        if resource in ids:
            rows = tx.execute(select(key.label("id"), name.label("name")).where(key.in_(ids[resource])))
            names |= {(resource, row.id): row.name for row in rows}
    return [
        {**line, "resource_name": names.get((line["resource"], line["resource_id"])) or noted(line)} for line in lines
    ]


NAMED_RESOURCES: dict[str, tuple[Column[str], Column[str]]] = {  # by the first part of the route
    "schedules": (s.id, s.name), "tasks": (tasks.c.id, tasks.c.name), "hosts": (hosts.c.id, hosts.c.name),
    "workflows": (workflows.c.id, workflows.c.name), "users": (users.c.id, users.c.name),
    "api-keys": (api_keys.c.id, api_keys.c.name), "orgs": (orgs.c.id, orgs.c.name),
    "server-instances": (server_instances.c.id, server_instances.c.name),
}  # fmt: skip


def noted(line: Record) -> str | None:
    """The name that a line of the audit log has in its values."""
    values = {**(line["before"] or {}), **(line["after"] or {})}
    name = values.get("name")
    return name if isinstance(name, str) else None
