"""Results of attempts: record starts, finish jobs, hand them back, rescue those of dead workers.

NO_MOVE_WITHOUT_THE_LEASE: each write about a leased job has its fence in the WHERE.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import and_, select, update

from rota.core.errors import LeaseLost
from rota.core.model import SERIAL_ROUTE_PREFIX, Attempt, AttemptResult, FinishResult, Job
from rota.core.policy import QUARANTINE_CRASHES, RECONCILIATION
from rota.core.states import Move, State, Status, state_after, states_before
from rota.db.dialect import ResultRow, Tx, lock_keys, notify
from rota.db.tables import jobs
from rota.engine import runs, statements
from rota.engine.claiming import claim_next
from rota.engine.job_states import IS_RUNNING, is_in
from rota.engine.jobs import JOB_COLUMNS, job_of, withdraw
from rota.engine.serial_keys import promote

c = jobs.c
RESCUE_BATCH_ROWS = 500


def mark_started(tx: Tx, attempts: Sequence[Attempt]) -> set[str]:
    """Record that these attempts began; returns the run ids of those whose lease still held."""
    rows = [
        (attempt.job.id, attempt.job.fence, attempt.run_id, attempt.number, attempt.started_at) for attempt in attempts
    ]
    return {run_id for (run_id,) in statements.MARK_STARTED.run(tx, rows)}


def finish(tx: Tx, ended: Sequence[AttemptResult], worker: str | None, now: datetime | None = None) -> FinishResult:
    """Append the runs of ended attempts and delete their jobs, or move them to where they wait for the next attempt."""
    staying = [result for result in ended if result.move]
    final = [result for result in ended if not result.move] if staying else ended
    keys = {result.job.serial_key for result in ended if result.job.serial_key}
    lock_keys(tx, keys)
    moved, canceled = move_jobs(tx, staying)
    runs.append(tx, [result for result in staying if result.run_id in moved and not result.not_started], worker, now)
    kept = delete_finished(tx, final, worker, now) | moved
    promoted = promote(tx, keys)
    for job_id, by in canceled.items():  # canceled while its attempt failed
        withdraw(tx, c.id == job_id, Status.CANCELED, by, max(result.finished_at for result in ended))
    ready = bool(promoted or canceled) or any(result.move in (Move.HAND_BACK, Move.RESCUE) for result in staying)
    if ready:
        notify(tx, "ready")
    return FinishResult(kept, ready)


def finish_and_claim_next(
    tx: Tx, ended: AttemptResult, worker: str, now: datetime, claims_next: bool
) -> tuple[bool, Job | None]:
    """Finish a job with a serial key; returns whether its lease still held, and with `claims_next` the next job with
    that key, leased to the same worker, if that is possible without counting limits."""
    assert ended.job.serial_key is not None
    lock_keys(tx, [ended.job.serial_key])
    if not delete_finished(tx, [ended], worker, now):
        return False, None
    if not promote(tx, [ended.job.serial_key]):
        return True, None
    next_job = claim_next(tx, ended.job, worker) if claims_next else None
    if next_job is None:
        notify(tx, "ready")
    return True, next_job


def is_plain(ended: Iterable[AttemptResult]) -> bool:
    """Return whether `finish` is one statement on PostgreSQL: no serial key, no schedule, no further attempt."""
    return not any(result.move or result.job.serial_key or result.job.schedule_id for result in ended)


def delete_finished(tx: Tx, ended: Sequence[AttemptResult], worker: str | None, now: datetime | None) -> set[str]:
    """Delete the jobs of final attempts and append their runs; returns the run ids of those whose lease still held."""
    rows = [(result.job.id, result.job.fence, *runs.result_values(result)) for result in ended]
    kept = {run_id for (run_id,) in statements.FINISH.run(tx, rows, worker=worker, recorded_at=now)}
    runs.update_stats(tx, [result for result in ended if result.job.schedule_id and result.run_id in kept])
    return kept


def move_jobs(tx: Tx, ended: Sequence[AttemptResult]) -> tuple[set[str], dict[str, str]]:
    """Move jobs that get another attempt or wait for a person; returns the run ids of those whose lease still held, and
    the reasons of cancel requests by job id."""
    rows = [
        (
            result.job.id,
            result.job.fence,
            state_after(result.move).value,
            result.run_at or result.job.run_at,
            result.job.last_run_id if result.not_started else result.run_id,
            result.job.attempt if result.not_started else result.number,
            result.job.tries + (result.counts and result.status is not Status.CRASHED),
            result.job.crashes + (result.counts and result.status is Status.CRASHED),
            result.reason if result.move is Move.PARK else None,
        )
        for result in ended
        if result.move is not None
    ]
    moved = statements.MOVE.run(tx, rows)
    canceled = {job_id: reason or "" for job_id, requested_at, reason in moved if requested_at is not None}
    job_ids = {job_id for job_id, _, _ in moved}
    return {result.run_id for result in ended if result.job.id in job_ids}, canceled


def set_aside(tx: Tx, job: Job, move: Move, solo_key: str, reason: str | None = None) -> None:
    """Return a leased job that did not start: until a person acts (PARK), or behind another job with its serial key
    (YIELD). It gets its solo key back, unless a newer job has it. The caller holds the lock of the serial key. Raises
    LeaseLost."""
    newer = tx.execute(select(c.id).where(c.solo_key == solo_key)).first()
    solo = {} if newer is not None or job.attempt else {"solo_key": solo_key}
    values = {"state": state_after(move), "parked_reason": reason, "lease_owner": None, **solo}
    if not tx.execute(update(jobs).where(c.id == job.id, c.fence == job.fence, IS_RUNNING).values(values)).rowcount:
        raise LeaseLost(f"job {job.id}: this worker no longer owns its lease")
    promote(tx, [job.serial_key] if job.serial_key else [])
    notify(tx, "ready")


def hand_back(tx: Tx, worker: str, job_ids: Collection[str] | None, known: Collection[str] = ()) -> int:
    """Return leased jobs that did not start: `job_ids`, or all the worker's jobs except `known`. It may own others if
    the answer to a claim was lost. Returns their number."""
    stmt = update(jobs).where(
        c.lease_owner == worker, is_in(c.state, states_before(Move.HAND_BACK)), c.run_id.is_(None)
    )
    stmt = stmt.where(c.id.in_(job_ids)) if job_ids is not None else stmt.where(c.id.not_in(known))
    moved: int = tx.execute(stmt.values(state=state_after(Move.HAND_BACK), lease_owner=None)).rowcount
    if moved:
        notify(tx, "ready")
    return moved


def rescue(
    tx: Tx, worker: str, now: datetime, limit: int = RESCUE_BATCH_ROWS, evidence: bool = True
) -> tuple[int, bool, list[AttemptResult]]:
    """Make the jobs of a dead worker ready; attempts that are known to have started become `crashed` runs. Returns the
    number of jobs, whether there are more, and those runs. Without `evidence` the death counts against no job."""
    leased = and_(c.lease_owner == worker, is_in(c.state, [State.RUNNING]))
    stmt = select(c.id, c.serial_key).where(leased).order_by(c.id).limit(limit)
    keys = {row.id: row.serial_key for row in tx.execute(stmt)}
    lock_keys(tx, {key for key in keys.values() if key})
    # read again, locked: a start or a result may have been recorded while this waited for the keys
    full = select(*JOB_COLUMNS, c.run_id, c.started_at, c.cancel_requested_at, c.cancel_reason)
    rows = list(tx.execute(full.where(leased, c.id.in_(keys)).order_by(c.id).with_for_update()))
    culprit = culprit_of(rows) if evidence and len(keys) < limit else None
    ended = [crash_of(row, now, row.id == culprit) for row in rows if row.run_id is not None]
    final = [result for result in ended if result.final]
    moved, _ = move_jobs(tx, [result for result in ended if not result.final])
    runs.append(tx, [result for result in ended if result.run_id in moved], worker, now)
    kept = delete_finished(tx, final, worker, now) | moved
    crashed = [result for result in ended if result.run_id in kept]
    unstarted = [row.id for row in rows if row.run_id is None]
    ready = {"state": state_after(Move.RESCUE), "lease_owner": None}
    tx.execute(update(jobs).where(c.id.in_(unstarted), leased).values(ready))
    present = [row.id for row in rows if row.id != culprit]
    tx.execute(update(jobs).where(c.id.in_(present)).values(rescues=c.rescues + 1))
    promote(tx, {result.job.serial_key for result in final if result.job.serial_key})
    if rows:
        notify(tx, "ready")
    return len(rows), len(keys) == limit, crashed


def culprit_of(rows: Sequence[ResultRow]) -> str | None:
    """Return the job that the death of its worker is evidence against: the only one of the worker, or the only
    started job that was running alone (see `Job.alone`). None if others may be the cause."""
    suspects = rows if len(rows) == 1 else [row for row in rows if job_of(row).alone]
    begun = [row.id for row in suspects if row.run_id is not None]
    return begun[0] if len(begun) == 1 else None


def crash_of(row: ResultRow, now: datetime, counts: bool) -> AttemptResult:
    """Return how an attempt ended whose worker died; a crash that counts may be the last one."""
    job = job_of(row)
    error = {"code": "crash", "type": "WorkerLost", "message": "the worker that ran this died", "traceback": None}
    ended = AttemptResult(
        job, Status.CRASHED, None, now, row.run_id, row.attempt, row.started_at, error, move=Move.RESCUE, run_at=now,
        counts=counts,
    )  # fmt: skip
    if job.route.startswith(SERIAL_ROUTE_PREFIX):  # UNKNOWN_IS_NOT_FAILED: its agent must report the outcome
        return replace(ended, status=Status.PAUSED, reason=RECONCILIATION, move=Move.PARK, counts=False)
    if row.cancel_requested_at is not None:
        return replace(ended, status=Status.CANCELED, reason=row.cancel_reason, move=None)
    if counts and job.crashes + 1 >= QUARANTINE_CRASHES:
        park = Move.PARK if job.parks_on_failure else None
        return replace(ended, status=Status.FAILED, reason="quarantined", counts=False, move=park)
    return ended
