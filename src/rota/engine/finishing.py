"""Results of attempts: record starts, finish jobs, hand them back, rescue those of dead workers.

NO_MOVE_WITHOUT_THE_LEASE: each write about a leased job has its fence in the WHERE.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import and_, or_, select, update

from rota.core.errors import LeaseLost
from rota.core.model import SERIAL_ROUTE_PREFIX, Attempt, AttemptResult, FinishResult, Job
from rota.core.policy import QUARANTINE_CRASHES, RECONCILIATION
from rota.core.states import Move, State, Status, state_after, states_before
from rota.core.steps import WaitingData
from rota.db.dialect import ResultRow, Tx, lock_keys, notify
from rota.db.statement import BoundStatement
from rota.db.tables import jobs
from rota.engine import children, runs, statements, steps
from rota.engine.claiming import claim_next
from rota.engine.instruments import RESCUES
from rota.engine.job_states import IS_RUNNING, is_in
from rota.engine.jobs import JOB_COLUMNS, job_of, withdraw
from rota.engine.metrics import count_on_commit
from rota.engine.places import free_places, hand_on_places, place_lock
from rota.engine.serial_keys import promote
from rota.engine.versions import pin_rescued, pinned

c = jobs.c
RESCUE_BATCH_ROWS = 500
NOT_STARTED = or_(c.run_id.is_(None), c.waiting.is_not(None))  # of a leased job; a suspended run keeps its id


def mark_started(tx: Tx, attempts: Sequence[Attempt]) -> set[str]:
    """Record that these attempts began; returns the run ids of those whose lease still held."""
    return mark_started_statement(attempts)(tx)


def mark_started_statement(attempts: Sequence[Attempt]) -> BoundStatement[set[str]]:
    """Return the statement of `mark_started`, which is the whole step."""
    rows = [
        (attempt.job.id, attempt.job.fence, attempt.run_id, attempt.number, attempt.started_at) for attempt in attempts
    ]
    return statements.MARK_STARTED.bound(lambda columns: set(columns["run_id"]), list(zip(*rows, strict=True)))


def finish(tx: Tx, ended: Sequence[AttemptResult], worker: str | None, now: datetime | None = None) -> FinishResult:
    """Append the runs of ended attempts and delete their jobs, or move them to where they wait for the next attempt."""
    staying = [result for result in ended if result.move]
    final = [result for result in ended if not result.move] if staying else ended
    keys = {result.job.serial_key for result in ended if result.job.serial_key}
    places = {result.job.place_key for result in ended if result.job.place_key}
    lock_keys(tx, keys | {place_lock(key) for key in places})
    moved, canceled = move_jobs(tx, staying)
    runs.append(tx, [result for result in staying if result.run_id in moved and result.ended], worker, now)
    woken = steps.wake_completed(tx, [result for result in staying if result.run_id in moved and result.suspension])
    kept = delete_finished(tx, final, worker, now) | moved
    promoted = promote(tx, keys) + hand_on_places(tx, places, now or ended[0].finished_at)
    for job_id, by in canceled.items():  # canceled while its attempt failed
        withdraw(tx, c.id == job_id, Status.CANCELED, by, max(result.finished_at for result in ended))
    ready = bool(promoted or canceled or woken) or any(
        result.move in (Move.HAND_BACK, Move.RESCUE) for result in staying
    )
    if ready:
        notify(tx, "ready")
    return FinishResult(kept, ready)


def finish_and_claim_next(
    tx: Tx, ended: AttemptResult, worker: str, now: datetime, claims_next: bool
) -> tuple[bool, Job | None]:
    """Finish a job with a serial key, whose lock the caller holds; returns whether its lease still held, and with
    `claims_next` the next job with that key, leased to the same worker, if that is possible without counting
    limits."""
    assert ended.job.serial_key is not None
    if not delete_finished(tx, [ended], worker, now):
        return False, None
    if not promote(tx, [ended.job.serial_key]):
        return True, None
    next_job = claim_next(tx, ended.job, worker) if claims_next else None
    if next_job is None:
        notify(tx, "ready")
    return True, next_job


def is_plain(ended: Iterable[AttemptResult]) -> bool:
    """Return whether `finish` is a single statement: no serial key, no place, no schedule, no further attempt."""
    return not any(
        result.move or result.job.serial_key or result.job.schedule_id or result.job.place_key for result in ended
    )


class Finished(NamedTuple):
    """Jobs that were deleted with their last attempt."""

    run_ids: set[str]  # of attempts whose lease still held
    followed: list[str]  # ids of jobs whose end others wait for


def finish_plain(
    ended: Sequence[AttemptResult], worker: str | None, now: Callable[[], datetime] | datetime | None
) -> BoundStatement[Finished]:
    """Return the statement that deletes the jobs of final attempts and appends their runs."""
    rows = [(result.job.id, result.job.fence, *runs.result_values(result)) for result in ended]
    batch = list(zip(*rows, strict=True))
    return statements.FINISH.bound(finished_of, batch, worker=worker, recorded_at=now)


def finished_of(columns: Mapping[str, Sequence[Any]]) -> Finished:
    followed = columns["followed"]
    any_followed = any(followed) if followed else False
    ids = [job_id for job_id, yes in zip(columns["job_id"], followed, strict=True) if yes] if any_followed else []
    return Finished(set(columns["id"]), ids)


def delete_finished(tx: Tx, ended: Sequence[AttemptResult], worker: str | None, now: datetime | None) -> set[str]:
    """Finish jobs in a transaction, count their runs for their schedules, and wake the jobs that wait for them; returns
    the ids of the runs whose lease still held."""
    kept, followed = finish_plain(ended, worker, now)(tx)
    count_on_commit(tx, lambda metrics: metrics.ended(result for result in ended if result.run_id in kept))
    runs.update_stats(tx, [result for result in ended if result.job.schedule_id and result.run_id in kept])
    if followed:
        children.deliver_ended(tx, followed, now or max(result.finished_at for result in ended))
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
            result.run_id if result.ended else result.job.last_run_id,
            result.number if result.ended else result.job.attempt,
            result.job.tries + (result.counts and result.status is not Status.CRASHED),
            result.job.crashes + (result.counts and result.status is Status.CRASHED),
            result.reason if result.move in (Move.PARK, Move.SUSPEND) else None,
            *waiting_columns(result),
            route_after(result),
        )
        for result in ended
        if result.move is not None
    ]
    moved = statements.MOVE.run(tx, rows)
    canceled = {job_id: reason or "" for job_id, requested_at, reason in moved if requested_at is not None}
    job_ids = {job_id for job_id, _, _ in moved}
    return {result.run_id for result in ended if result.job.id in job_ids}, canceled


def waiting_columns(result: AttemptResult) -> tuple[str | None, datetime | None, WaitingData | None]:
    """Return `run_id`, `started_at` and `waiting` of a job that stays: set while its run is suspended, also if that run
    could not go on for lack of room."""
    waiting = result.suspension.waiting if result.suspension else result.job.waiting if result.not_started else None
    if waiting is None:
        return None, None, None
    return waiting["run_id"], datetime.fromisoformat(waiting["started_at"]), waiting


def route_after(result: AttemptResult) -> str:
    """Return the route of a job that stays: a run with recorded steps goes on under the version that ran it."""
    info = result.info
    if info is None or info.code_version is None or not info.recorded_steps:
        return result.job.route
    return pinned(result.job.route, info.code_version)


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
    stmt = update(jobs).where(c.lease_owner == worker, is_in(c.state, states_before(Move.HAND_BACK)), NOT_STARTED)
    stmt = stmt.where(c.id.in_(job_ids)) if job_ids is not None else stmt.where(c.id.not_in(known))
    moved: int = tx.execute(stmt.values(state=state_after(Move.HAND_BACK), lease_owner=None)).rowcount
    if moved:
        notify(tx, "ready")
    return moved


def rescue(
    tx: Tx, worker: str, now: datetime, limit: int = RESCUE_BATCH_ROWS, evidence: bool = True
) -> tuple[int, bool]:
    """Make the jobs of a dead worker ready; attempts that are known to have started become `crashed` runs. Returns the
    number of jobs, and whether there are more. Without `evidence` the death counts against no job."""
    leased = and_(c.lease_owner == worker, is_in(c.state, [State.RUNNING]))
    stmt = select(c.id, c.serial_key).where(leased).order_by(c.id).limit(limit)
    keys = {row.id: row.serial_key for row in tx.execute(stmt)}
    lock_keys(tx, {key for key in keys.values() if key})
    # read again, locked: a start or a result may have been recorded while this waited for the keys
    full = select(*JOB_COLUMNS, c.run_id, c.started_at, c.cancel_requested_at, c.cancel_reason)
    rows = list(tx.execute(full.where(leased, c.id.in_(keys)).order_by(c.id).with_for_update()))
    culprit = culprit_of(rows) if evidence and len(keys) < limit else None
    ended = [crash_of(row, now, row.id == culprit) for row in rows if has_started(row)]
    final = [result for result in ended if result.final]
    moved, _ = move_jobs(tx, [result for result in ended if not result.final])
    runs.append(tx, [result for result in ended if result.run_id in moved], worker, now)
    delete_finished(tx, final, worker, now)
    unstarted = [row.id for row in rows if not has_started(row)]
    ready = {"state": state_after(Move.RESCUE), "lease_owner": None}
    tx.execute(update(jobs).where(c.id.in_(unstarted), leased).values(ready))
    pin_rescued(tx, worker, rows)
    present = [row.id for row in rows if row.id != culprit]
    tx.execute(update(jobs).where(c.id.in_(present)).values(rescues=c.rescues + 1))
    promote(tx, {result.job.serial_key for result in final if result.job.serial_key})
    free_places(tx, {result.job.place_key for result in ended if result.job.place_key}, now)
    if rows:
        count_on_commit(tx, lambda metrics: metrics.add(RESCUES, amount=len(rows)))
        notify(tx, "ready")
    return len(rows), len(keys) == limit


def culprit_of(rows: Sequence[ResultRow]) -> str | None:
    """Return the job that the death of its worker is evidence against: the only one of the worker, or the only
    started job that was running alone (see `Job.alone`). None if others may be the cause."""
    suspects = rows if len(rows) == 1 else [row for row in rows if job_of(row).alone]
    begun = [row.id for row in suspects if has_started(row)]
    return begun[0] if len(begun) == 1 else None


def has_started(row: ResultRow) -> bool:
    """Return whether the start of a leased job's attempt on this worker is recorded."""
    return row.run_id is not None and row.waiting is None


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
