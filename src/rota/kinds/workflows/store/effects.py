"""The ledger of mutations. A row is written before the mutation is tried, and its status moves as EFFECT_MOVES says."""

from datetime import datetime

from sqlalchemy import select, update

from rota.core.effects import EFFECT_MOVES, OPEN_EFFECTS, EffectStatus
from rota.core.errors import Conflict
from rota.core.model import Job
from rota.core.policy import FailureData
from rota.core.states import Phase
from rota.db import tables
from rota.db.dialect import Tx
from rota.db.statement import insert_rows
from rota.kinds.workflows.rules import Outcome
from rota.kinds.workflows.store import events
from rota.kinds.workflows.store.phases import check_lease, move_phase
from rota.kinds.workflows.store.records import OpenEffect, StartedRun

OUTCOMES = {EffectStatus.APPLIED: Outcome.APPLIED, EffectStatus.FAILED: Outcome.FAILED}  # of final statuses

f = tables.effects.c


def open_effect(tx: Tx, run_id: str | None) -> OpenEffect | None:
    """Return the mutation of a run whose outcome is not known, or None."""
    columns = (f.id, f.call, f.params, f.title, f.status, f.reconcile_attempts)
    row = tx.execute(select(*columns).where(f.run_id == run_id, f.status.in_(OPEN_EFFECTS))).one_or_none()
    return None if row is None else OpenEffect(**{**row._asdict(), "status": EffectStatus(row.status)})


def has_open_effect(tx: Tx, workflow_id: str) -> bool:
    """Return whether any mutation of a workflow has an unknown outcome."""
    stmt = select(f.id).where(f.workflow_id == workflow_id, f.status.in_(OPEN_EFFECTS))
    return tx.execute(stmt).first() is not None


def record_effect(
    tx: Tx, job: Job, run: StartedRun, effect_id: str, call: str, params: object, title: str | None, now: datetime
) -> None:
    """Write a mutation before it is tried; its id is the idempotency key. Raises LeaseLost."""
    if move_phase(tx, job, run, Phase.MUTATING, now):
        row = {
            "id": effect_id,
            "workflow_id": run.workflow_id,
            "run_id": run.id,
            "call": call,
            "params": params,
            "title": title,
            "status": EffectStatus.IN_FLIGHT.value,
            "reconcile_attempts": 0,
            "inputs": len(events.inputs_of(tx, events.reserved_events(tx, run))),
            "created_at": now,
            "updated_at": now,
        }
        insert_rows(tx, tables.effects, [row])


def settle(
    tx: Tx,
    job: Job,
    run: StartedRun,
    effect_id: str,
    status: EffectStatus,
    now: datetime,
    result: object = None,
    error: FailureData | None = None,
    reconcile_attempts: int = 0,
) -> None:
    """Write the status of a mutation after it was tried or reconciled; a final one also moves the run past the mutation
    boundary. Raises LeaseLost, or Conflict if the mutation has a final status already."""
    outcome = OUTCOMES.get(status)
    if outcome is None:
        check_lease(tx, job)
    elif not move_phase(tx, job, run, Phase.MUTATED, now, mutation_outcome=outcome.value, mutation_result=result):
        return
    values = {"error": error, "reconcile_attempts": reconcile_attempts, "result": result}
    move_effect(tx, effect_id, status, now, **values)


def hand_over(tx: Tx, old_run_id: str, run_id: str, now: datetime) -> None:
    """Give the mutation of a run to its next attempt."""
    tx.execute(update(tables.effects).where(f.run_id == old_run_id).values(run_id=run_id, updated_at=now))


def move_effect(tx: Tx, /, effect_id: str, to: EffectStatus, now: datetime, **values: object) -> None:
    """Move a mutation to another status and set columns; a no-op if it has that status already. Raises Conflict if
    EFFECT_MOVES does not allow the move."""
    sources = [before.value for before, after in EFFECT_MOVES if after is to]
    stmt = update(tables.effects).where(f.id == effect_id, f.status.in_(sources))
    if tx.execute(stmt.values(status=to.value, updated_at=now, **values)).rowcount:
        return
    status = tx.execute(select(f.status).where(f.id == effect_id)).scalar_one()
    if status != to:
        raise Conflict(f"mutation {effect_id} is {status} and cannot become {to.value}")
