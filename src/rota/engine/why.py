"""Why a run, a job or a slot is as it is: the rows behind `rota.core.explain`."""

from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from sqlalchemy import and_, func, or_, select

from rota.core import explain
from rota.core.errors import NotFound
from rota.core.redact import redacted
from rota.core.states import HEADS, State
from rota.db.dialect import Tx
from rota.db.paging import PAGE_ROWS_MAX, Record, dict_of
from rota.db.tables import jobs, queues, runs, schedules, slots
from rota.engine import workers
from rota.engine.audit_rows import list_audit
from rota.engine.extensions import ExplainsRoutes
from rota.engine.jobs import find, is_in
from rota.engine.reports import schedule_id_of, schedule_query, schedule_record
from rota.engine.run_reports import RUN, with_target_names
from rota.engine.runner import Runners
from rota.engine.runs import BY_ATTEMPT

NO_RUNNERS: Runners = MappingProxyType({})
AROUND = timedelta(seconds=10)  # between a command's moment and its line in the audit log

ASKS = (  # actions of the audit log by which a job is asked for
    *("schedules.run", "tasks.execute", "graphs.run", "pipelines.run", "workflows.run", "runs.retry"),
    *("jobs.create", "host-jobs.create", "batches.create"),
)

j, r, t = jobs.c, runs.c, slots.c


def of_run(tx: Tx, org_id: str, key: str, now: datetime, runners: Runners = NO_RUNNERS) -> Record:
    """Of a run, or of a job that has none yet. `runners` know why no worker takes jobs of their kind."""
    living = find(tx, org_id, key)
    ended = tx.execute(select(r.job_id).where(r.org_id == org_id, or_(r.id == key, r.job_id == key)).limit(1)).scalar()
    job_id = living.id if living is not None else ended
    if job_id is None:
        raise NotFound(f"run {key!r} not found")
    return of_job(tx, org_id, job_id, now, runners)


def of_slot(tx: Tx, org_id: str, schedule: str, slot: datetime, now: datetime, runners: Runners = NO_RUNNERS) -> Record:
    """Of a moment a schedule was due: its own row, or the gap that it lies in."""
    schedule_id = schedule_id_of(tx, org_id, schedule)
    last = func.coalesce(t.last_slot, t.slot, type_=t.slot.type)
    inside = and_(t.schedule_id == schedule_id, t.slot <= slot, last >= slot)
    found = tx.execute(select(slots).where(inside).order_by(t.slot.desc()).limit(1)).one_or_none()
    if schedule_id is None:
        raise NotFound(f"schedule {schedule!r} not found")
    if found is None:
        raise NotFound(f"schedule {schedule!r} has no slot at {slot.isoformat()}; `rota slots list` shows the slots")
    if found.job_id is not None:
        return of_job(tx, org_id, found.job_id, now, runners)
    told = explain.explain_slot(dict_of(found), schedule_of(tx, schedule_id) or {})
    return {"job_id": None, "schedule_id": schedule_id, "slot": found.slot, "status": found.verdict, "sentences": told}


def of_job(tx: Tx, org_id: str, job_id: str, now: datetime, runners: Runners) -> Record:
    stmt = select(*RUN).where(r.org_id == org_id, r.job_id == job_id).order_by(*BY_ATTEMPT)
    ended = [{**dict_of(row), "error": redacted(row.error)} for row in tx.execute(stmt)]
    row = tx.execute(select(jobs).where(j.org_id == org_id, j.id == job_id)).one_or_none()
    if row is None and not ended:
        raise NotFound(f"job {job_id}: its runs are forgotten; they were older than what is kept")
    ended = with_target_names(tx, ended)
    named = with_target_names(tx, [{**dict_of(row), "retry_of": row.last_run_id, "target_name": None}] if row else [])
    living = named[0] if named else None
    first: Record = living or ended[0]
    status = ended[-1]["status"] if living is None else living["state"]
    found = waits(tx, row, now, runners) if living else []
    told = explain.explain_run(
        ended, living, schedule_of(tx, first["schedule_id"]), found, asker(tx, org_id, job_id, first)
    )
    same = {field: first[field] for field in ("schedule_id", "slot")}
    return {"job_id": job_id, **same, "status": status, "sentences": told}


def asker(tx: Tx, org_id: str, job_id: str, job: Record) -> str:
    """Who pressed the button, as the audit log tells; it has forgotten those of long ago."""
    about = {"since": job["queued_at"] - AROUND, "until": job["queued_at"] + AROUND}
    for action in ASKS:
        lines, _ = list_audit(tx, org_id, limit=PAGE_ROWS_MAX, action=action, **about)
        for line in lines:
            if job_id in (line["resource_id"], (line["after"] or {}).get("result")):
                return f"{line['user_name'] or 'A user'} (key {line['key_name']})"
    return "A user"


def waits(tx: Tx, job: Any, now: datetime, runners: Runners) -> list[str]:
    """What keeps a job from starting."""
    if job.state == State.BLOCKED:
        head = tx.execute(select(j.id, j.state).where(j.serial_key == job.serial_key, is_in(j.state, HEADS))).first()
        return [f"That is job {head.id}, which is {head.state}."] if head else []
    if job.state != State.READY:
        return []
    told = []
    if job.route not in workers.live_routes(tx, now):
        told.append(no_worker(tx, runners, job, now))
    mine = and_(queues.c.org_id == job.org_id, queues.c.name == job.queue)
    queue = tx.execute(select(queues).where(mine)).one_or_none()
    if queue is not None and queue.paused_at is not None:
        told.append(f"Queue {job.queue} is paused since {explain.at(queue.paused_at)}.")
    if queue is not None and queue.max_running is not None:
        running = and_(j.org_id == job.org_id, j.queue == job.queue, is_in(j.state, [State.RUNNING]))
        count = tx.execute(select(func.count()).select_from(jobs).where(running)).scalar_one()
        told.append(f"Queue {job.queue} may run {queue.max_running} at once, and runs {count}.")
    return told


def no_worker(tx: Tx, runners: Runners, job: Any, now: datetime) -> str:
    """Why no live worker can run a job: as its kind knows, or no worker announces its route."""
    for runner in runners.values():
        reason = runner.why_no_worker(tx, job.org_id, job.route, now) if isinstance(runner, ExplainsRoutes) else None
        if reason is not None:
            return reason
    return f"No live worker can run {job.route}."


def schedule_of(tx: Tx, schedule_id: str | None) -> Record | None:
    """Also one that was deleted."""
    found = tx.execute(schedule_query().where(schedules.c.id == schedule_id)).first() if schedule_id else None
    return None if found is None else schedule_record(found)
