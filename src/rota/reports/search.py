"""Search over everything of an org that has a page: by part of a name, or by the id of a run or job."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, literal, select, union_all

from rota.db.dialect import Query, Tx, contains_any_case
from rota.db.tables import alarms, calendars, hosts, jobs, pipelines, runs, schedules, tasks, workflows

MATCHES_MAX = 8  # of a resource
NAMED: dict[str, tuple[ColumnElement[Any], ColumnElement[Any], ColumnElement[Any], ColumnElement[bool] | None]] = {
    # resource: org, key of its page, name, condition
    "schedules": (schedules.c.org_id, schedules.c.id, schedules.c.name, schedules.c.deleted_at.is_(None)),
    "tasks": (tasks.c.org_id, tasks.c.id, func.coalesce(tasks.c.name, tasks.c.id), None),
    "workflows": (workflows.c.org_id, workflows.c.id, workflows.c.name, workflows.c.deleted_at.is_(None)),
    "pipelines": (pipelines.c.org_id, pipelines.c.path, pipelines.c.path, None),
    "hosts": (hosts.c.org_id, hosts.c.id, hosts.c.name, None),
    "calendars": (calendars.c.org_id, calendars.c.name, calendars.c.name, None),
    "alarms": (alarms.c.org_id, alarms.c.id, alarms.c.name, None),
}


@dataclass(frozen=True, slots=True)
class Match:
    """`resource` is the one whose read permission a caller needs; `key` is what the address of its page ends with."""

    resource: str
    key: str
    name: str


def search(tx: Tx, org_id: str, text: str, resources: Collection[str]) -> list[Match]:
    """Return what has this text in its name, at most MATCHES_MAX of each resource, and the runs and jobs with this id;
    only of these resources."""
    queries = [named(resource, org_id, text) for resource in NAMED if resource in resources]
    rows = tx.execute(union_all(*queries)).all() if queries else []
    matches = [Match(str(row.resource), str(row.key), str(row.name)) for row in rows]
    if "runs" in resources and text.isascii() and text.isalnum():
        key = text.upper()
        ended = select(runs.c.id, func.coalesce(runs.c.target_name, runs.c.target)).where(
            runs.c.org_id == org_id, runs.c.id == key
        )
        living = select(jobs.c.id, jobs.c.target).where(
            jobs.c.org_id == org_id, (jobs.c.id == key) | (jobs.c.run_id == key)
        )
        of_id = tx.execute(ended).all() or tx.execute(living).all()
        matches = [*(Match("runs", run_id, target) for run_id, target in of_id), *matches]
    return matches


def named(resource: str, org_id: str, text: str) -> Query:
    """Return the query of one resource: names that begin with the text first."""
    org, key, name, condition = NAMED[resource]
    stmt = select(literal(resource).label("resource"), key.label("key"), name.label("name"))
    stmt = stmt.where(org == org_id, contains_any_case(name, text))
    if condition is not None:
        stmt = stmt.where(condition)
    first = func.lower(func.substr(name, 1, len(text))) != text.lower()
    ordered = stmt.order_by(first, name).limit(MATCHES_MAX).subquery()
    return select(ordered)
