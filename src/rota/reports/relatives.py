"""Jobs around a job: its parent and children, and the jobs that it follows or that follow it. Reads only."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import select

from rota.core.states import shown_status
from rota.db.dialect import Tx, is_listed
from rota.db.paging import Record, dict_of
from rota.db.tables import job_dependencies, jobs, runs
from rota.reports.runs import LIVING_RUN, with_target_names

GRAPH_JOBS_MAX = 200
CHILDREN_SHOWN_MAX = 50

j, r, d = jobs.c, runs.c, job_dependencies.c
LAST_RUN = (r.job_id, r.kind, r.target, r.target_name, r.status, r.reason)


@dataclass(frozen=True, slots=True)
class JobGraph:
    """Jobs that run after one another, around one of them."""

    jobs: dict[str, Record]  # by id
    levels: dict[str, int]  # distance from the job in the middle; negative before it
    edges: list[tuple[str, str, str]]  # a job, one that follows it, and its condition
    complete: bool  # whether it has all jobs


def briefs(tx: Tx, org_id: str, job_ids: Collection[str]) -> dict[str, Record]:
    """Return target, name and status of jobs by id, without those of other orgs and deleted ones."""
    if not job_ids:
        return {}
    living = select(*LIVING_RUN).where(is_listed(tx, j.id, job_ids), j.org_id == org_id)
    queued = {row.job_id: dict_of(row) for row in tx.execute(living)}
    ended = select(*LAST_RUN).where(is_listed(tx, r.job_id, job_ids), r.org_id == org_id, r.lost_fence == 0)
    last = {row.job_id: dict_of(row) for row in tx.execute(ended.order_by(r.attempt, r.recorded_at))}
    records = with_target_names(tx, list((last | queued).values()))
    return {record["job_id"]: {**record, "status": shown_status(record)} for record in records}


def family(tx: Tx, org_id: str, parent_id: str | None, children: Collection[str]) -> Record:
    """Return the parent of a job, None without one, and its first children."""
    shown = list(children)[:CHILDREN_SHOWN_MAX]
    records = briefs(tx, org_id, [*shown, *([parent_id] if parent_id else [])])
    return {
        "parent": records.get(parent_id or ""),
        "children": [records[child] for child in shown if child in records],
        "child_count": len(children),
    }


def graph(tx: Tx, org_id: str, job_id: str, limit: int = GRAPH_JOBS_MAX) -> JobGraph | None:
    """Return the jobs before and after a job, near ones first, at most `limit` of them; None if it follows none and
    none follows it."""
    levels, edges, complete = {job_id: 0}, set[tuple[str, str, str]](), True
    for near, far, step in ((d.job_id, d.depends_on, -1), (d.depends_on, d.job_id, 1)):
        frontier, level = [job_id], 0
        while frontier:
            level += step
            stmt = select(d.depends_on, d.job_id, d.condition, near.label("near"), far.label("far"))
            rows = list(tx.execute(stmt.where(is_listed(tx, near, frontier)).order_by(far).limit(limit + 1)))
            frontier, complete = [], complete and len(rows) <= limit
            for row in rows:
                if row.far not in levels and len(levels) == limit:
                    complete = False
                    continue
                if row.far not in levels:
                    levels[row.far] = level
                    frontier.append(row.far)
                edges.add((row.depends_on, row.job_id, row.condition))
    if len(levels) == 1:
        return None
    known = briefs(tx, org_id, levels)
    return JobGraph(known, {key: level for key, level in levels.items() if key in known}, sorted(edges), complete)
