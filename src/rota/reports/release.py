"""What an installation has stored that code must still fit: read before a release."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select

from rota.core.steps import StepType
from rota.db.dialect import Tx
from rota.db.tables import effects, events, jobs, steps, workflows

STEP_ROWS_MAX = 20_000
NAMED_STEPS = (StepType.STEP, StepType.EFFECT)  # waits and children get their names from Rota
OPEN_EFFECTS = ("in_flight", "needs_reconcile", "indeterminate")

w, e, f = workflows.c, events.c, effects.c


@dataclass(frozen=True, slots=True)
class BegunJobs:
    """Jobs of one target and route that have recorded steps, with the names that the code gave to steps and effects."""

    kind: str
    target: str
    route: str
    jobs: int
    steps: tuple[str, ...]


def begun_jobs(tx: Tx, org_id: str) -> tuple[list[BegunJobs], bool]:
    """Return jobs that have not ended and have recorded steps; and whether there are more than were read."""
    c, s = jobs.c, steps.c
    of_jobs = (
        select(c.kind, c.target, c.route, c.id, s.name, s.type).join(steps, s.job_id == c.id).where(c.org_id == org_id)
    )
    rows = tx.execute(of_jobs.order_by(c.target, c.route, c.id, s.seq).limit(STEP_ROWS_MAX)).all()
    groups: dict[tuple[str, str, str], tuple[set[str], dict[str, None]]] = {}
    for row in rows:
        job_ids, names = groups.setdefault((row.kind, row.target, row.route), (set(), {}))
        job_ids.add(row.id)
        if row.type in NAMED_STEPS:
            names[row.name] = None
    begun = [BegunJobs(*key, len(job_ids), tuple(names)) for key, (job_ids, names) in groups.items()]
    return begun, len(rows) == STEP_ROWS_MAX


def waiting_jobs(tx: Tx, org_id: str, kind: str) -> dict[str, int]:
    """Return the numbers of jobs of a kind that have not ended, by target."""
    c = jobs.c
    stmt = select(c.target, func.count()).where(c.org_id == org_id, c.kind == kind).group_by(c.target)
    return {row[0]: row[1] for row in tx.execute(stmt)}


@dataclass(frozen=True, slots=True)
class StoredWorkflow:
    name: str
    source: str
    declaration: Mapping[str, object]
    pending: Mapping[str, int]  # events by topic
    effects: Mapping[str, int]  # effects that are not settled, by call


def stored_workflows(tx: Tx, org_id: str) -> list[StoredWorkflow]:
    """Return the workflows of an org with what they still have to do, by name."""
    of_org = (w.org_id == org_id, w.deleted_at.is_(None))
    pending: dict[str, dict[str, int]] = {}
    counted = select(e.workflow_id, e.topic, func.count().label("count")).join(workflows, w.id == e.workflow_id)
    for row in tx.execute(counted.where(*of_org, e.status == "pending").group_by(e.workflow_id, e.topic)):
        pending.setdefault(row.workflow_id, {})[row.topic] = row[2]
    unsettled: dict[str, dict[str, int]] = {}
    calls = select(f.workflow_id, f.call, func.count().label("count")).join(workflows, w.id == f.workflow_id)
    for row in tx.execute(calls.where(*of_org, f.status.in_(OPEN_EFFECTS)).group_by(f.workflow_id, f.call)):
        unsettled.setdefault(row.workflow_id, {})[row.call] = row[2]
    rows = tx.execute(select(w.id, w.name, w.source, w.declaration).where(*of_org).order_by(w.name))
    return [
        StoredWorkflow(row.name, row.source, row.declaration, pending.get(row.id, {}), unsettled.get(row.id, {}))
        for row in rows
    ]
