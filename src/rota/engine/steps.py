"""Recorded steps of durable tasks: written by the worker that owns the job, completed by signals, children and people.

A wake-up is never lost: what completes a waiting step locks its job first, and the suspension of a run locks the job
before it reads whether its steps still wait.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, literal_column, select, update

from rota.core.errors import Invalid, LeaseLost
from rota.core.model import AttemptResult, Job
from rota.core.states import Move, state_after, states_before
from rota.core.steps import ENDED, StepStatus, StepType
from rota.db.connection import Database
from rota.db.dialect import ResultRow, Tx, is_listed, notify
from rota.db.group_commit import GroupCommit
from rota.db.statement import BoundStatement, insert_new
from rota.db.tables import jobs, steps
from rota.engine import statements
from rota.engine.job_states import IS_RUNNING, is_in
from rota.engine.records import StepRow

c = steps.c
PARALLEL_BATCHES = 2  # of recorded steps: one is committed while the next one is collected and sent
IS_WAITING = c.status == literal_column(
    f"'{StepStatus.WAITING.value}'"
)  # a literal: a partial index serves no parameter


def recording(rows: Sequence[tuple[int, StepRow]]) -> BoundStatement[set[tuple[str, str]]]:
    """Return the statement that inserts or updates steps, given with the fences of their jobs; its result are the keys
    (job id, name) of those whose lease still held."""
    columns = [(fence, *(getattr(row, name) for name in statements.STEP)) for fence, row in rows]
    return statements.RECORD_STEPS.bound(
        lambda result: set(zip(result["job_id"], result["name"], strict=True)), list(zip(*columns, strict=True))
    )


Recorder = GroupCommit[tuple[int, StepRow], bool]


def recorder(db: Database) -> Recorder:
    """Return what records the steps of a process, with shared statements for concurrent ones. An item is a step with
    the fence of its job; the result is whether the lease still held."""

    async def store(batch: list[tuple[int, StepRow]]) -> list[bool]:
        kept = await db.statement(recording(batch))
        return [(row.job_id, row.name) in kept for _, row in batch]

    return GroupCommit(store, lambda item: (item[1].job_id, item[1].name), min(db.writers, PARALLEL_BATCHES))


def of_job(tx: Tx, job_id: str) -> list[StepRow]:
    """Return the steps of a job in the order of their calls."""
    return [row_of(row) for row in tx.execute(select(steps).where(c.job_id == job_id).order_by(c.seq, c.started_at))]


def before(tx: Tx, job_id: str, name: str) -> list[StepRow]:
    """Return the ended steps of a job that were called before the named one. Raises Invalid if that is not recorded."""
    rows = of_job(tx, job_id)
    first = next((row for row in rows if row.name == name), None)
    if first is None:
        names = ", ".join(row.name for row in rows) or "none"
        raise Invalid("from_step", name, f"is not a recorded step of this run; recorded: {names}")
    return [row for row in rows if row.seq < first.seq and row.status in ENDED]


def keep(tx: Tx, job_id: str, rows: Sequence[StepRow]) -> None:
    """Give a new job these steps of another. A no-op for those that it has."""
    columns = [{name: getattr(row, name) for name in statements.STEP} | {"job_id": job_id} for row in rows]
    insert_new(tx, steps, columns, ["name"])


def get(tx: Tx, job_id: str, name: str) -> StepRow | None:
    row = tx.execute(select(steps).where(c.job_id == job_id, c.name == name)).one_or_none()
    return None if row is None else row_of(row)


def row_of(row: ResultRow) -> StepRow:
    columns = row._asdict()
    return StepRow(**{**columns, "type": StepType(columns["type"]), "status": StepStatus(columns["status"])})


def check_lease(tx: Tx, job: Job) -> None:
    """Lock a job that this worker owns. Raises LeaseLost."""
    own = select(jobs.c.id).where(jobs.c.id == job.id, jobs.c.fence == job.fence, IS_RUNNING)
    if tx.execute(own.with_for_update()).first() is None:
        raise LeaseLost(f"job {job.id}: this worker no longer owns its lease")


def register(tx: Tx, job: Job, row: StepRow) -> StepRow:
    """Insert a step that waits, unless it is recorded; returns it as it is recorded. The caller holds the lock of what
    it waits for. Raises LeaseLost."""
    check_lease(tx, job)
    values = {name: getattr(row, name) for name in statements.STEP}
    if insert_new(tx, steps, [values], ["name"]):
        return row
    existing = get(tx, job.id, row.name)
    assert existing is not None
    return existing


def begin_effect(tx: Tx, job: Job, run_id: str, attempt: int, started_at: datetime, row: StepRow) -> None:
    """Record the start of a run and an effect in flight, before the effect is tried. Raises LeaseLost."""
    check_lease(tx, job)
    statements.MARK_STARTED.run(tx, [(job.id, job.fence, run_id, attempt, started_at)])
    recording([(job.fence, row)])(tx)


def complete_own(tx: Tx, job: Job, name: str, status: StepStatus, now: datetime) -> StepRow:
    """End a waiting step of a job that this worker owns, unless a signal or child has ended it; returns it as it is
    recorded then. Raises LeaseLost."""
    check_lease(tx, job)
    complete(tx, job.id, name, status, now)
    row = get(tx, job.id, name)
    assert row is not None
    return row


def complete(
    tx: Tx, job_id: str, name: str, status: StepStatus, now: datetime, result: object = None, error: object = None
) -> bool:
    """End a waiting step; returns whether it was waiting: of two that end it, the first does. The caller holds the lock
    of its job."""
    stmt = update(steps).where(c.job_id == job_id, c.name == name, IS_WAITING)
    values = {"status": status.value, "finished_at": now, "result": result, "error": error}
    return bool(tx.execute(stmt.values(values)).rowcount)


def waiting_for(tx: Tx, subject: str, limit: int | None = None) -> list[StepRow]:
    """Return the steps of jobs in the queue that wait for a subject, the oldest first."""
    alive = select(jobs.c.id).where(jobs.c.id == c.job_id).exists()
    waiting = and_(c.waits_for == subject, IS_WAITING, c.waits_for.is_not(None), alive)
    return [
        row_of(row) for row in tx.execute(select(steps).where(waiting).order_by(c.started_at, c.job_id).limit(limit))
    ]


def lock_job(tx: Tx, job_id: str) -> bool:
    """Lock a job until the transaction ends; returns whether it is in the queue."""
    return tx.execute(select(jobs.c.id).where(jobs.c.id == job_id).with_for_update()).first() is not None


def can_go_on(tx: Tx, job_id: str) -> bool:
    """Whether a job of which a waiting step ended has something to do: always, unless it waits for all its steps. The
    caller holds its lock."""
    waiting = tx.execute(select(jobs.c.waiting).where(jobs.c.id == job_id)).scalar()
    if not (waiting or {}).get("all"):
        return True
    return tx.execute(select(c.name).where(c.job_id == job_id, IS_WAITING).limit(1)).first() is None


def wake(tx: Tx, job_ids: Collection[str], now: datetime) -> int:
    """Make suspended jobs ready; returns their number. The caller holds their locks."""
    if not job_ids:
        return 0
    return wake_where(tx, is_listed(tx, jobs.c.id, job_ids), now)


def wake_where(tx: Tx, where: ColumnElement[bool], now: datetime) -> int:
    stmt = update(jobs).where(where, is_in(jobs.c.state, states_before(Move.WAKE)))
    woken: int = tx.execute(stmt.values(state=state_after(Move.WAKE), run_at=now, parked_reason=None)).rowcount
    if woken:
        notify(tx, "ready")
    return woken


def wake_completed(tx: Tx, suspended: Sequence[AttemptResult]) -> int:
    """Wake jobs of which a step that they wait for has ended before they were suspended; returns their number. The
    statement that suspended them holds their locks."""
    names = {result.job.id: result.suspension.steps for result in suspended if result.suspension is not None}
    if not names:
        return 0
    patient = {
        result.job.id
        for result in suspended
        if result.suspension is not None and result.suspension.waiting.get("all", False)
    }
    stmt = select(c.job_id, c.name).where(is_listed(tx, c.job_id, names), IS_WAITING)
    waiting = {(row.job_id, row.name) for row in tx.execute(stmt)}
    completed = []
    for job_id, waited in names.items():
        ended = [(job_id, name) not in waiting for name in waited]
        if all(ended) if job_id in patient else any(ended):
            completed.append(job_id)
    return wake(tx, completed, max(result.finished_at for result in suspended))
