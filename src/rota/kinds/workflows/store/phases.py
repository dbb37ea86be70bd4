"""The guarded move of a run from phase to phase."""

from datetime import datetime

from sqlalchemy import select

from rota.core.errors import Conflict, LeaseLost
from rota.core.model import Job
from rota.core.states import Phase
from rota.db import tables
from rota.db.dialect import Tx
from rota.engine.job_states import IS_RUNNING
from rota.kinds.workflows.rules import HandlerKind, Outcome, may_move
from rota.kinds.workflows.store import statements
from rota.kinds.workflows.store.records import RunRow, StartedRun

r, j = tables.workflow_runs.c, tables.jobs.c


def find_run(tx: Tx, run_id: str | None) -> RunRow | None:
    """Return the row of a run, or None if it has none."""
    row = tx.execute(select(tables.workflow_runs).where(r.id == run_id)).one_or_none() if run_id else None
    if row is None:
        return None
    columns = row._asdict()
    outcome = columns["mutation_outcome"]
    enums = {
        "handler_type": HandlerKind(columns["handler_type"]),
        "phase": Phase(columns["phase"]),
        "mutation_outcome": Outcome(outcome) if outcome else None,
    }
    return RunRow(**{**columns, **enums})


def move_phase(tx: Tx, job: Job, run: StartedRun, to: Phase, now: datetime, **values: object) -> bool:
    """PHASE_MOVES_FORWARD: move a run to a later phase and set columns, of KEPT_COLUMNS. False if it is in that phase
    already, because the answer to the first try was lost. Raises LeaseLost, or Conflict for a move that is not
    allowed."""
    earlier = [phase.value for phase in Phase if may_move(phase, to)]
    kept = [values.get(name) for name in statements.KEPT_COLUMNS]
    if statements.MOVE_PHASE.run(tx, [(job.id, job.fence, run.id, to.value, now, *kept)], earlier=earlier):
        return True
    before = tx.execute(select(r.phase).where(r.id == run.id)).scalar_one()
    if before == to:
        return False
    check_lease(tx, job)
    raise Conflict(f"run {run.id} cannot move from phase {before} to {to}")


def check_lease(tx: Tx, job: Job) -> None:
    """NO_MOVE_WITHOUT_THE_LEASE: lock the job's row. Raises LeaseLost if this worker no longer owns the job."""
    owned = select(j.id).where(j.id == job.id, j.fence == job.fence, IS_RUNNING).with_for_update()
    if tx.execute(owned).first() is None:
        raise lease_lost(job)


def lease_lost(job: Job) -> LeaseLost:
    return LeaseLost(f"job {job.id}: this worker no longer owns its lease")
