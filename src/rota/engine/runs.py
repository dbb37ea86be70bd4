"""Runs: one row per attempt, written once, when the attempt ended; and their log lines."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import and_, bindparam, delete, func, select, update

from rota.core.ids import trace_id_of, traceparent
from rota.core.kinds import registered, traits_of
from rota.core.model import AttemptResult, RunInfo
from rota.core.states import Status, Verdict, verdict_of
from rota.db.dialect import ResultRow, Tx
from rota.db.statement import insert_rows
from rota.db.tables import artifacts, jobs, logs, orgs, runs, slots
from rota.engine import statements
from rota.engine.records import RunRow
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
    update_stats(tx, [result for result in ended if result.job.schedule_id])


def statuses(tx: Tx, run_ids: Collection[str]) -> dict[str, str]:
    """Return the statuses of these runs by id, as far as they are recorded."""
    return {row.id: row.status for row in tx.execute(select(runs.c.id, runs.c.status).where(runs.c.id.in_(run_ids)))}


def record_lost(
    tx: Tx, ended: Sequence[AttemptResult], worker: str, now: datetime, lines: Sequence[LogLine] = ()
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
    insert_rows(tx, runs, [row | {"lost_fence": row["fence"]} for run_id, row in rows.items() if run_id not in before])
    for run_id in rows.keys() & before.keys():
        values = {name: rows[run_id][name] for name in (*RESULT_COLUMNS, "recorded_at", "worker")}
        del values["id"], values["attempt"]
        tx.execute(update(runs).where(runs.c.id == run_id, runs.c.status == Status.CRASHED).values(values))
    write_logs(tx, [line for line in lines if line[0] in rows])
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
    of_this_job = and_(runs.c.job_id == job_id, runs.c.org_id == org_id)
    rows = tx.execute(select(runs).where(of_this_job).order_by(*BY_ATTEMPT))
    return [RunRow(**row._asdict()) for row in rows]


def write_logs(tx: Tx, lines: Sequence[LogLine]) -> None:
    """Append log lines."""
    insert_rows(
        tx, logs, [{"run_id": run, "at": at, "stream": stream, "text": text} for run, at, stream, text in lines]
    )


def log_size(tx: Tx, run_id: str, line_cost: int) -> int:
    """Return the number of characters in the log of a run, with `line_cost` more for each line."""
    size = func.coalesce(func.sum(func.length(logs.c.text) + line_cost), 0)
    return int(tx.execute(select(size).where(logs.c.run_id == run_id)).scalar_one())


def read_logs(tx: Tx, run_id: str, after: int, limit: int) -> Sequence[ResultRow]:
    stmt = select(logs).where(logs.c.run_id == run_id, logs.c.id > after).order_by(logs.c.id).limit(limit)
    return list(tx.execute(stmt))


def orgs_with_old_runs(tx: Tx, before: datetime, statuses: Collection[str]) -> list[str]:
    """Return the ids of orgs that have runs of these statuses older than `before`."""
    old = and_(runs.c.org_id == orgs.c.id, runs.c.recorded_at < before, runs.c.status.in_(statuses))
    return list(tx.execute(select(orgs.c.id).where(select(runs.c.id).where(old).exists())).scalars())


def prune(tx: Tx, org_id: str, before: datetime, statuses: Collection[str], limit: int) -> int:
    """Delete an org's old runs of these statuses with their logs and artifacts; returns their number.
    Runs of jobs that still wait, and those that their kind has in use, are kept."""
    alive = select(jobs.c.id).where(jobs.c.id == runs.c.job_id).exists()
    in_use = [traits.runs_in_use() for traits in registered().values() if traits.runs_in_use is not None]
    of_org = (runs.c.org_id == org_id, runs.c.recorded_at < before, runs.c.status.in_(statuses))
    old = and_(*of_org, ~alive, *(~condition for condition in in_use))
    rows = tx.execute(select(runs).where(old).order_by(runs.c.recorded_at, runs.c.id).limit(limit))
    return delete_runs(tx, [RunRow(**row._asdict()) for row in rows])


def delete_runs(tx: Tx, rows: Sequence[RunRow]) -> int:
    """Delete these runs with their logs and artifacts; returns their number."""
    ids = [row.id for row in rows]
    if ids:
        keep_verdicts(tx, [row for row in rows if row.slot is not None])
        tx.execute(delete(logs).where(logs.c.run_id.in_(ids)))
        tx.execute(delete(artifacts).where(artifacts.c.run_id.in_(ids)))
        for traits in registered().values():
            if traits.delete_run_rows is not None:
                traits.delete_run_rows(tx, ids)
        tx.execute(delete(runs).where(runs.c.id.in_(ids)))
    return len(ids)


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
        "retry_of": job.last_run_id, "queued_at": job.queued_at, "fence": job.fence,
    }  # fmt: skip
    result_columns = dict(zip(RESULT_COLUMNS, result_values(result), strict=True))
    return of_job | result_columns | {"recorded_at": now or result.finished_at, "worker": worker}


def result_values(result: AttemptResult) -> tuple[object, ...]:
    """Return the values of RESULT_COLUMNS."""
    info = result.info or NO_INFO
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
    )
