"""Why a run, a job or a slot is as it is: the rows behind `rota.core.explain`."""

from collections.abc import Collection
from datetime import date, datetime, timedelta
from types import MappingProxyType

from sqlalchemy import and_, func, select

from rota.core import explain
from rota.core.errors import NotFound
from rota.core.freeze import FreezeMode, window_at
from rota.core.redact import redacted
from rota.core.states import HEADS, State
from rota.core.timing import presentation, stored, triggers
from rota.core.timing.dst import TICK, zone_of
from rota.db.dialect import ResultRow, Tx
from rota.db.paging import PAGE_ROWS_MAX, Record, dict_of
from rota.db.tables import jobs, queues, schedules, slots
from rota.engine import dependencies, freezes, versions, workers
from rota.engine import schedules as schedules_store
from rota.engine import slots as slot_rows
from rota.engine.extensions import ExplainsRoutes, RulesVersions
from rota.engine.job_states import is_in
from rota.engine.runner import Runners
from rota.reports import calendars as calendar_reports
from rota.reports.audit import list_audit
from rota.reports.jobs import job_id_of, job_rows
from rota.reports.runs import with_target_names
from rota.reports.schedules import schedule_id_of, schedule_query, schedule_record

NAMED_JOBS = 5  # of those that a job waits for
NO_RUNNERS: Runners = MappingProxyType({})
REQUEST_SECONDS_APART = timedelta(seconds=10)  # between a job and the audit log entry of its request

REQUEST_ACTIONS = (  # actions of the audit log that request a job
    *("schedules.run", "tasks.execute", "graphs.run", "pipelines.run", "workflows.run", "runs.retry"),
    *("jobs.create", "host-jobs.create", "batches.create"),
)

j, t = jobs.c, slots.c


def of_run(tx: Tx, org_id: str, key: str, now: datetime, runners: Runners = NO_RUNNERS) -> Record:
    """Explain a run, or a job that has none yet. `runners` explain why no worker runs jobs of their kind."""
    return of_job(tx, org_id, job_id_of(tx, org_id, key), now, runners)


def of_slot(tx: Tx, org_id: str, schedule: str, slot: datetime, now: datetime, runners: Runners = NO_RUNNERS) -> Record:
    """Explain a slot of a schedule, also one inside a gap. Raises NotFound."""
    schedule_id = schedule_id_of(tx, org_id, schedule)
    last = func.coalesce(t.last_slot, t.slot, type_=t.slot.type)
    inside = and_(t.schedule_id == schedule_id, t.slot <= slot, last >= slot)
    row = tx.execute(select(slots).where(inside).order_by(t.slot.desc()).limit(1)).one_or_none()
    if schedule_id is None:
        raise NotFound(f"schedule {schedule!r} not found")
    if row is None:
        missing = held_slot(tx, org_id, schedule_id, slot) or without_slot(tx, org_id, schedule_id, slot)
        if missing is None:
            at = slot.isoformat()
            raise NotFound(f"schedule {schedule!r} has no slot at {at}; `rota slots list` shows the slots")
        return {"job_id": None, "schedule_id": schedule_id, "slot": slot, "status": "no slot", "sentences": missing}
    if row.job_id is not None:
        return of_job(tx, org_id, row.job_id, now, runners)
    sentences = explain.explain_slot(dict_of(row), schedule_of(tx, schedule_id) or {})
    return {"job_id": None, "schedule_id": schedule_id, "slot": row.slot, "status": row.verdict, "sentences": sentences}


def held_slot(tx: Tx, org_id: str, schedule_id: str, slot: datetime) -> list[str] | None:
    """Explain a slot that is not decided yet and that a freeze window holds or will skip. None for other times."""
    schedule = schedules_store.get(tx, org_id, schedule_id)
    window = window_at(freezes.of_schedule(tx, schedule, slot), slot)
    if window is None or triggers.next_slot(schedule.timing, slot - TICK) != slot:
        return None
    effect = "is due at its end" if window.mode is FreezeMode.HOLD else "will be skipped"
    return [
        f"The slot {explain.at(slot)} of schedule {schedule.name} is in freeze window {window.note}, "
        f"which ends at {explain.at(window.ends_at)}: it {effect}."
    ]


def without_slot(tx: Tx, org_id: str, schedule_id: str, at: datetime) -> list[str] | None:
    """Explain why a time that the trigger names has no slot: it is on a holiday. None for other times."""
    row = tx.execute(select(schedules).where(schedules.c.id == schedule_id)).one()
    span = next((span for span in reversed(slot_rows.spans_of(tx, schedule_id)) if span.from_at < at), None)
    timing = stored.load(span.timing if span is not None else row.timing)
    rule = timing.holidays
    if rule is None or not presentation.left_out(timing, at - TICK, at):
        return None
    day = at.astimezone(zone_of(timing.zone)).date()
    name = calendar_reports.holiday_name(tx, org_id, rule.calendar.id, day)
    target = rule.target_of(day.toordinal())
    known = f"{day} is a holiday of calendar {rule.calendar.name}" + (f" ({name})" if name else "")
    moved = f"its slots take place on {date.fromordinal(target)}" if target is not None else "it has no slots"
    return [f"{known}, and on_holiday of schedule {row.name} is {rule.on_holiday}: {moved}."]


def of_job(tx: Tx, org_id: str, job_id: str, now: datetime, runners: Runners) -> Record:
    row, run_rows = job_rows(tx, org_id, job_id)
    ended = [{**dict_of(run_row), "error": redacted(run_row.error)} for run_row in run_rows]
    if row is None and not ended:
        raise NotFound(f"job {job_id!r} not found: its runs were deleted after their retention")
    ended = with_target_names(tx, ended)
    named = with_target_names(tx, [{**dict_of(row), "retry_of": row.last_run_id, "target_name": None}] if row else [])
    living = named[0] if named else None
    first: Record = living or ended[0]
    status = ended[-1]["status"] if living is None else living["state"]
    blockers = waits(tx, row, now, runners) if row is not None else []
    sentences = explain.explain_run(
        ended, living, schedule_of(tx, first["schedule_id"]), blockers, requested_by(tx, org_id, job_id, first)
    )
    same = {field: first[field] for field in ("schedule_id", "slot")}
    return {"job_id": job_id, **same, "status": status, "sentences": sentences}


def requested_by(tx: Tx, org_id: str, job_id: str, job: Record) -> str:
    """Return who requested a job according to the audit log; 'A user' if its entry is deleted."""
    around = {"since": job["queued_at"] - REQUEST_SECONDS_APART, "until": job["queued_at"] + REQUEST_SECONDS_APART}
    for action in REQUEST_ACTIONS:
        entries, _ = list_audit(tx, org_id, limit=PAGE_ROWS_MAX, action=action, **around)
        for entry in entries:
            if job_id in (entry["resource_id"], (entry["after"] or {}).get("result")):
                return f"{entry['user_name'] or 'A user'} (key {entry['key_name']})"
    return "A user"


def waits(tx: Tx, job: ResultRow, now: datetime, runners: Runners) -> list[str]:
    """Return sentences on what keeps a job from starting."""
    if job.state == State.BLOCKED:
        head = tx.execute(select(j.id, j.state).where(j.serial_key == job.serial_key, is_in(j.state, HEADS))).first()
        return [f"That is job {head.id}, which is {head.state}."] if head else []
    if job.state == State.LATER and (others := dependencies.waits_for(tx, job.id)):
        listed = ", ".join(others[:NAMED_JOBS])
        return [f"These are {len(others)}: {listed}{' …' if len(others) > NAMED_JOBS else ''}."]
    live = workers.live_routes(tx, now)
    sentences = version_rules(tx, job, live, runners)
    if job.state != State.READY:
        return sentences
    if job.route not in live and not sentences:
        sentences.append(no_worker(tx, runners, job, now))
    of_job = and_(queues.c.org_id == job.org_id, queues.c.name == job.queue)
    queue = tx.execute(select(queues).where(of_job)).one_or_none()
    if queue is not None and queue.paused_at is not None:
        sentences.append(f"Queue {job.queue} is paused since {explain.at(queue.paused_at)}.")
    if queue is not None and queue.max_running is not None:
        running = and_(j.org_id == job.org_id, j.queue == job.queue, is_in(j.state, [State.RUNNING]))
        count = tx.execute(select(func.count()).select_from(jobs).where(running)).scalar_one()
        sentences.append(f"Queue {job.queue} may run {queue.max_running} at once, and runs {count}.")
    return sentences


def version_rules(tx: Tx, job: ResultRow, live: Collection[str], runners: Runners) -> list[str]:
    """Return under which version of its code a job with recorded steps goes on, and by which rule; nothing while a live
    worker has the version that began it."""
    runner, began = runners.get(job.kind), versions.version_of(job.route)
    if not isinstance(runner, RulesVersions) or (job.route in live and versions.version_of(job.route)):
        return []
    if began is None and (job.waiting is None or job.state == State.RUNNING):
        return []
    rule = runner.on_new_version(tx, job.org_id, job.target)
    others = ", ".join(versions.live_versions(live, job.route))
    if began is None:
        under = f"version {others}" if others else "the version that the next worker has"
        return [f"No live worker had the version that recorded its steps: it continues under {under} by rule ({rule})."]
    if not others:
        return [f"It waits for a worker with version {began} of its code; with another version the rule is {rule}."]
    sentence = f"It waits for a worker with version {began} of its code; live workers have {others}."
    resume = f"`rota run retry {job.run_id or job.id}` lets it continue under their version."
    return [sentence, resume] if job.state == State.PARKED else [sentence]


def no_worker(tx: Tx, runners: Runners, job: ResultRow, now: datetime) -> str:
    """Return why no live worker can run a job: as its kind explains, or that no worker registers its route."""
    for runner in runners.values():
        reason = runner.why_no_worker(tx, job.org_id, job.route, now) if isinstance(runner, ExplainsRoutes) else None
        if reason is not None:
            return reason
    return f"No live worker can run {job.route}."


def schedule_of(tx: Tx, schedule_id: str | None) -> Record | None:
    """Return a schedule by its id, also a deleted one."""
    row = tx.execute(schedule_query().where(schedules.c.id == schedule_id)).first() if schedule_id else None
    return None if row is None else schedule_record(row)
