"""Runs: one row per attempt, written once, when the attempt ended; and their log lines."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, and_, bindparam, delete, false, func, or_, select, update

from rota.core.errors import Conflict, NotFound
from rota.core.ids import new_id, trace_id_of, traceparent
from rota.core.kinds import registered, traits_of
from rota.core.model import AttemptResult, RunInfo
from rota.core.states import Status, Verdict, verdict_of
from rota.db.dialect import ResultRow, Tx
from rota.db.statement import insert_rows
from rota.db.tables import artifacts, job_dependencies, jobs, logs, orgs, runs, schedule_stats, schedules, slots, steps
from rota.engine import object_operations, statements
from rota.engine.metrics import count_on_commit
from rota.engine.records import RunRow

if TYPE_CHECKING:
    from rota.engine.runner import LogLine

NO_INFO = RunInfo()
BY_ATTEMPT = (runs.c.attempt, runs.c.lost_fence.desc())  # of two runs with one attempt number, the lost one came first

RESULT_COLUMNS = tuple(statements.FINISH.batch)[2:]  # after the job and its fence; values are in `result_values`
SET_VERDICT = (
    update(slots)
    .where(
        slots.c.schedule_id == bindparam("of_schedule"),
        slots.c.slot == bindparam("of_slot"),
        slots.c.job_id == bindparam("of_job"),
        slots.c.verdict.is_(None),
        ~select(jobs.c.id).where(jobs.c.id == slots.c.job_id).exists(),
    )
    .values(verdict=bindparam("new_verdict"), reason=bindparam("new_reason"))
)


def append(tx: Tx, ended: Sequence[AttemptResult], worker: str | None, now: datetime | None = None) -> None:
    """Insert runs that ended, and count them for their schedules. `now` becomes `recorded_at`, by which the event feed
    reads new rows, with an overlap, because transactions do not commit in the order of their timestamps."""
    insert_rows(tx, runs, [row_of(result, worker, now) for result in ended])
    count_on_commit(tx, lambda metrics: metrics.ended(ended))
    update_stats(tx, [result for result in ended if result.job.schedule_id])


def statuses(tx: Tx, run_ids: Collection[str]) -> dict[str, str]:
    """Return the statuses of these runs by id, as far as they are recorded."""
    return {row.id: row.status for row in tx.execute(select(runs.c.id, runs.c.status).where(runs.c.id.in_(run_ids)))}


def record_lost(
    tx: Tx, ended: Sequence[AttemptResult], worker: str, now: datetime, lines: "Sequence[LogLine]" = ()
) -> list[AttemptResult]:
    """Record attempts that ran but whose results were refused because the lease was lost, with their log lines; returns
    them. The reason is the status that they ended as. A row that a rescue wrote as crashed becomes lost. No other row
    and no job changes: an attempt that is recorded otherwise (its commit was done, only the answer was lost; canceled;
    quarantined) is left out."""
    before = statuses(tx, [result.run_id for result in ended])
    late = [
        replace(result, status=Status.LOST, reason=None if result.status is Status.LOST else result.status.value)
        for result in ended
        if result.started_at is not None
        and (
            result.run_id not in before
            or (before[result.run_id] == Status.CRASHED and result.status is not Status.CRASHED)
        )
    ]
    rows = {attempt.run_id: row_of(attempt, worker, now) for attempt in late}
    resumed = {attempt.run_id for attempt in late if attempt.job.waiting is not None}  # may go on elsewhere by its id
    insert_rows(
        tx,
        runs,
        [
            row | {"lost_fence": row["fence"], "id": new_id() if run_id in resumed else run_id}
            for run_id, row in rows.items()
            if run_id not in before
        ],
    )
    for run_id in rows.keys() & before.keys():
        values = {name: rows[run_id][name] for name in (*RESULT_COLUMNS, "recorded_at", "worker")}
        del values["id"], values["attempt"]
        tx.execute(update(runs).where(runs.c.id == run_id, runs.c.status == Status.CRASHED).values(values))
    write_logs(tx, [line for line in lines if line[0] in rows])
    count_on_commit(tx, lambda metrics: metrics.ended(late))
    return late


def update_stats(tx: Tx, ended: Sequence[AttemptResult]) -> None:
    """Update the statistics of schedules: their last run, and the numbers of failures and skips."""
    if not ended:
        return
    stats: dict[str, list[Any]] = {}  # last_run_at, last_run_id, last_job_id, last status, failed, skipped
    for result in ended:
        entry = stats.setdefault(result.job.schedule_id or "", [None, None, None, None, 0, 0])
        if result.started_at is not None:
            entry[:3] = [result.started_at, result.run_id, result.job.id]
        if result.final and result.status is not Status.COALESCED:
            skipped = result.status is Status.CANCELED and traits_of(result.job.kind).shows_skips
            entry[3] = Status.SKIPPED.value if skipped else result.status.value
            entry[4] += result.status is Status.FAILED
            entry[5] += result.status is Status.SKIPPED
    statements.ADD_TO_STATS.run(tx, [(key, *stats[key]) for key in sorted(stats)])


def last_attempt(tx: Tx, job_id: str) -> int:
    """Return the highest attempt number of a job, 0 without runs."""
    stmt = select(func.coalesce(func.max(runs.c.attempt), 0)).where(runs.c.job_id == job_id)
    return int(tx.execute(stmt).scalar_one())


def get(tx: Tx, org_id: str, run_id: str) -> RunRow | None:
    row = tx.execute(select(runs).where(runs.c.id == run_id, runs.c.org_id == org_id)).one_or_none()
    return None if row is None else RunRow(**row._asdict())


def of_job(tx: Tx, org_id: str, job_id: str) -> list[RunRow]:
    """Return all runs of a job, first attempt first."""
    return [run for run in of_jobs(tx, [job_id]) if run.org_id == org_id]


def of_jobs(tx: Tx, job_ids: Collection[str]) -> list[RunRow]:
    """Return all runs of these jobs, of any org, by job, first attempt first."""
    rows = tx.execute(select(runs).where(runs.c.job_id.in_(job_ids)).order_by(runs.c.job_id, *BY_ATTEMPT))
    return [RunRow(**row._asdict()) for row in rows]


def write_logs(tx: Tx, lines: "Sequence[LogLine]") -> None:
    """Append log lines."""
    insert_rows(
        tx, logs, [{"run_id": run, "at": at, "stream": stream, "text": text} for run, at, stream, text in lines]
    )


def log_sizes(tx: Tx, run_ids: Collection[str], line_cost: int) -> dict[str, int]:
    """Return the number of characters in the logs of runs that have one, with `line_cost` more for each line."""
    size = func.sum(func.length(logs.c.text) + line_cost)
    stmt = select(logs.c.run_id, size.label("size")).where(logs.c.run_id.in_(run_ids)).group_by(logs.c.run_id)
    return {row.run_id: int(row.size) for row in tx.execute(stmt)}


def read_logs(tx: Tx, run_id: str, after: int, limit: int) -> Sequence[ResultRow]:
    stmt = select(logs).where(logs.c.run_id == run_id, logs.c.id > after).order_by(logs.c.id).limit(limit)
    return list(tx.execute(stmt))


def orgs_with_old_runs(tx: Tx, since: datetime | None, before: datetime, statuses: Collection[str]) -> list[str]:
    """Return the ids of orgs that have runs of these statuses recorded from `since` to `before`."""
    old = and_(runs.c.org_id == orgs.c.id, recorded(since, before), runs.c.status.in_(statuses))
    return list(tx.execute(select(orgs.c.id).where(select(runs.c.id).where(old).exists())).scalars())


def prune(tx: Tx, org_id: str, since: datetime | None, before: datetime, statuses: Collection[str], limit: int) -> int:
    """Delete an org's runs of these statuses recorded from `since` to `before`, with their logs and artifacts; returns
    their number. Runs of jobs that still wait, those that their kind has in use, and those of schedules with a
    retention of their own are kept."""
    own = select(schedules.c.id).where(schedules.c.id == runs.c.schedule_id, schedules.c.keep_runs_days.is_not(None))
    of_org = and_(runs.c.org_id == org_id, runs.c.status.in_(statuses), ~own.exists())
    return delete_old(tx, and_(of_org, recorded(since, before)), limit)


def schedule_limits(tx: Tx) -> list[int]:
    """Return the different retentions of schedules that have their own, in days."""
    days = schedules.c.keep_runs_days
    return list(tx.execute(select(days).where(days.is_not(None)).distinct()).scalars())


def schedules_with_old_runs(tx: Tx, days: int, before: datetime) -> list[str]:
    """Return the ids of schedules with this retention that have runs recorded before `before`."""
    old = select(runs.c.id).where(runs.c.schedule_id == schedules.c.id, runs.c.recorded_at < before)
    return list(tx.execute(select(schedules.c.id).where(schedules.c.keep_runs_days == days, old.exists())).scalars())


def prune_schedule(tx: Tx, schedule_id: str, before: datetime, limit: int) -> int:
    """Delete runs of a schedule recorded before `before`, as `prune` does, of any status; returns their number."""
    return delete_old(tx, and_(runs.c.schedule_id == schedule_id, runs.c.recorded_at < before), limit)


def recorded(since: datetime | None, before: datetime) -> ColumnElement[bool]:
    old = runs.c.recorded_at < before
    return old if since is None else and_(old, runs.c.recorded_at >= since)


def in_use() -> list[ColumnElement[bool]]:
    """Return the conditions on `runs` by which kinds still read ended runs."""
    return [traits.runs_in_use() for traits in registered().values() if traits.runs_in_use is not None]


def delete_ended(tx: Tx, org_id: str, key: str) -> str:
    """Delete the runs of a job that has left the queue, by the id of one or of the job; returns the job's id. Raises
    NotFound or Conflict."""
    run = get(tx, org_id, key)
    job_id = key if run is None else run.job_id
    if tx.execute(select(jobs.c.id).where(jobs.c.org_id == org_id, jobs.c.id == job_id)).first() is not None:
        raise Conflict(f"run {key} has not ended; cancel it first")
    rows = of_job(tx, org_id, job_id)
    if not rows:
        raise NotFound(f"run {key!r} not found")
    if tx.execute(select(runs.c.id).where(runs.c.job_id == job_id, or_(false(), *in_use()))).first() is not None:
        raise Conflict(f"run {key} is still needed: the handler of its workflow waits for a decision about it")
    delete_runs(tx, rows[::-1])  # the last attempt decides the verdict of the slot
    st = schedule_stats.c
    tx.execute(update(schedule_stats).where(st.last_job_id == job_id).values(last_run_id=None, last_job_id=None))
    return job_id


def delete_old(tx: Tx, old: ColumnElement[bool], limit: int) -> int:
    alive = select(jobs.c.id).where(jobs.c.id == runs.c.job_id).exists()
    unused = and_(old, ~alive, *(~condition for condition in in_use()))
    rows = tx.execute(select(runs).where(unused).order_by(runs.c.recorded_at, runs.c.id).limit(limit))
    return delete_runs(tx, [RunRow(**row._asdict()) for row in rows])


def delete_runs(tx: Tx, rows: Sequence[RunRow]) -> int:
    """Delete these runs with their logs and artifacts; returns their number."""
    ids = [row.id for row in rows]
    if ids:
        keep_verdicts(tx, [row for row in rows if row.slot is not None])
        tx.execute(delete(logs).where(logs.c.run_id.in_(ids)))
        object_operations.delete_of_runs(tx, ids)
        tx.execute(delete(artifacts).where(artifacts.c.run_id.in_(ids)))
        for traits in registered().values():
            if traits.delete_run_rows is not None:
                traits.delete_run_rows(tx, ids)
        tx.execute(delete(runs).where(runs.c.id.in_(ids)))
        delete_orphaned(tx, {row.job_id for row in rows})
    return len(ids)


def delete_orphaned(tx: Tx, job_ids: Collection[str]) -> None:
    """Delete the steps of jobs that have left the queue and have no runs any more, and what they waited for."""
    for table in (steps, job_dependencies):
        has_job = select(jobs.c.id).where(jobs.c.id == table.c.job_id).exists()
        has_run = select(runs.c.id).where(runs.c.job_id == table.c.job_id).exists()
        tx.execute(delete(table).where(table.c.job_id.in_(job_ids), ~has_job, ~has_run))


def keep_verdicts(tx: Tx, rows: Sequence[RunRow]) -> None:
    """Store the verdicts of slots whose runs are about to be deleted: slots are kept longer than runs."""
    values = [
        {
            "of_schedule": row.schedule_id,
            "of_slot": row.slot,
            "of_job": row.job_id,
            "new_verdict": verdict,
            "new_reason": row.reason if verdict is Verdict.SKIPPED else None,
        }
        for row in rows
        for verdict in [verdict_of(Status(row.status))]
    ]
    if values:
        tx.execute(SET_VERDICT, values)


def trace_of(run: RunRow) -> str:
    """Return the `traceparent` of a run, for another attempt of it."""
    return traceparent(run.trace_id or trace_id_of(run.job_id))


def row_of(result: AttemptResult, worker: str | None, now: datetime | None) -> dict[str, object]:
    job = result.job
    of_job = {
        "job_id": job.id, "org_id": job.org_id, "kind": job.kind, "target": job.target, "route": job.route,
        "input": job.payload, "schedule_id": job.schedule_id, "slot": job.slot, "trigger": job.trigger,
        "retry_of": job.last_run_id, "queued_at": job.queued_at, "fence": job.fence, "parent_id": job.parent_id,
    }  # fmt: skip
    result_columns = dict(zip(RESULT_COLUMNS, result_values(result), strict=True))
    return of_job | result_columns | {"recorded_at": now or result.finished_at, "worker": result.worker or worker}


def result_values(result: AttemptResult) -> tuple[object, ...]:
    """Return the values of RESULT_COLUMNS."""
    info = result.info or NO_INFO
    resources = info.resources
    return (
        result.run_id,
        result.number,
        result.status.value,
        result.reason,
        result.error,
        result.outcome,
        result.started_at,
        result.finished_at,
        info.name or result.job.target,
        info.version,
        info.artifact_id,
        info.usage,
        result.job.trace[3:35] if result.job.trace else info.trace_id,
        result.job.terms.grant_id,
        None if resources is None else resources.cpu_seconds,
        None if resources is None else resources.peak_memory_bytes,
    )
