"""Versions of script workflows: which one is live, and the repairs of failed runs.

A repair is inserted by the transaction that ends the failed run: a row with outcome `asked`, and a job with its id. If
a worker dies, another takes the job; the transaction that settles a repair also makes it live and resumes the workflow.
"""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import and_, func, literal_column, or_, select, update

from rota.core.errors import Conflict, NotFound
from rota.core.ids import new_id
from rota.core.model import NewJob, Schedule
from rota.core.redact import redacted
from rota.core.states import Phase, State, Status
from rota.db import tables
from rota.db.dialect import Tx, lock_keys, notify
from rota.db.paging import PAGE_ROWS, Page, Record, dict_of, page_by
from rota.db.statement import insert_new, insert_rows
from rota.engine import jobs, orgs, runs, schedules, serial_keys
from rota.kinds.workflows.rules import REPAIRS_PER_FAILURE, EventStatus, VersionOutcome, serial_key_of
from rota.kinds.workflows.store import deployment, events, operators, workflows
from rota.kinds.workflows.store.effects import has_open_effect
from rota.kinds.workflows.store.phases import find_run
from rota.kinds.workflows.store.records import EventRow, ScriptVersion, WorkflowRow
from rota.kinds.workflows.store.workflows import SCRIPT

REPAIR = "repair"  # the kind of the jobs, and their route
SCRIPT_ROUTE = "scripts"  # of scripts that any worker can run; those with connectors need a worker of their org
FAILURE_EVENTS = 10  # events of a topic that a repairer gets

w, s, x, e, h = tables.workflows.c, tables.scripts.c, tables.workflow_runs.c, tables.events.c, tables.handlers.c
LISTED_COLUMNS = (
    s.id,
    s.workflow_id,
    s.major,
    s.minor,
    s.outcome,
    s.why,
    s.run_id,
    s.created_by,
    s.decided_by,
    s.created_at,
    s.decided_at,
)


# versions


def route_for(tx: Tx, org_id: str, declaration: Record) -> str:
    """Return the route of a script: with connectors, that of workers with a program of its org."""
    return f"{SCRIPT_ROUTE}:{orgs.slug_of(tx, org_id)}" if declaration["connectors"] else SCRIPT_ROUTE


def deploy(
    tx: Tx,
    org_id: str,
    key: str | None,
    fields: Record,
    producers: Mapping[str, Schedule],
    source: str,
    by: str | None,
    now: datetime,
) -> str:
    """Deploy a major version: the first of a new workflow, or the next of the one named by `key`; returns the
    workflow's id. Raises NotFound, or Conflict about the name."""
    name, major = fields["name"], 1
    if key is not None:
        workflow = workflows.get(tx, org_id, key, hold=True)
        if workflow.name != name:
            raise Conflict(f"workflow {workflow.name!r} cannot be renamed, but the script declares {name!r}")
        major += tx.execute(select(func.max(s.major)).where(s.workflow_id == workflow.id)).scalar() or 0
    elif tx.execute(select(w.id).where(w.org_id == org_id, w.name == name)).first() is not None:
        raise Conflict(f"workflow {name!r} already exists; PUT makes its next version")
    version = {**fields, "source": SCRIPT, "version": f"{major}.0"}
    workflow_id = deployment.deploy(tx, org_id, version, producers, now)
    assert workflow_id is not None  # its version is new
    row = version_row(workflow_id, major, 0, VersionOutcome.ACCEPTED, now) | {
        "source": source,
        "declaration": fields["declaration"],
        "created_by": by,
        "decided_by": by,
        "decided_at": now,
    }
    insert_rows(tx, tables.scripts, [row])
    return workflow_id


def version_row(workflow_id: str, major: int, minor: int, outcome: VersionOutcome, now: datetime) -> Record:
    empty = dict.fromkeys(("source", "declaration", "why", "run_id", "created_by", "decided_by", "decided_at"))
    return empty | {
        "id": new_id(),
        "workflow_id": workflow_id,
        "major": major,
        "minor": minor,
        "outcome": outcome.value,
        "created_at": now,
    }


def live(tx: Tx, org_id: str, key: str) -> tuple[WorkflowRow, ScriptVersion]:
    """Return a workflow and the row of its live version. Raises NotFound."""
    workflow = workflows.get(tx, org_id, key)
    return workflow, get_version(tx, workflow, workflow.version)


def get_version(tx: Tx, workflow: WorkflowRow, number: str) -> ScriptVersion:
    """Return the row of a version such as `2.1`. Raises NotFound."""
    major, _, minor = number.partition(".")
    row = None
    if major.isdigit() and minor.isdigit() and len(number) < 12:
        same = and_(s.workflow_id == workflow.id, s.major == int(major), s.minor == int(minor))
        row = tx.execute(select(tables.scripts).where(same)).one_or_none()
    if row is None:
        raise NotFound(f"version {number!r} of workflow {workflow.name!r} not found")
    return ScriptVersion(**row._asdict())


def previous_version(tx: Tx, workflow: WorkflowRow, version: ScriptVersion) -> ScriptVersion | None:
    """Return the row of the version that was live when this one was made."""
    earlier = or_(s.major < version.major, and_(s.major == version.major, s.minor < version.minor))
    accepted = and_(s.workflow_id == workflow.id, earlier, s.outcome == VersionOutcome.ACCEPTED)
    stmt = select(tables.scripts).where(accepted).order_by(s.major.desc(), s.minor.desc()).limit(1)
    row = tx.execute(stmt).one_or_none()
    return None if row is None else ScriptVersion(**row._asdict())


def list_versions(
    tx: Tx, org_id: str, key: str, *, repairs: bool = False, limit: int = PAGE_ROWS, cursor: str | None = None
) -> Page:
    """Return versions of a script, or only the repairs, newest first."""
    workflow = workflows.get(tx, org_id, key)
    stmt = select(*LISTED_COLUMNS).where(s.workflow_id == workflow.id)
    if repairs:
        stmt = stmt.where(s.minor > 0)
    return page_by(tx, stmt, s.id, limit, cursor, lambda row: describe(dict_of(row), workflow), descending=True)


def describe_version(version: ScriptVersion, workflow: WorkflowRow) -> Record:
    """Return a version with its file, as the API shows it."""
    names = (name for name in ScriptVersion.__slots__ if name != "declaration")
    return describe({name: getattr(version, name) for name in names}, workflow)


def describe(fields: Record, workflow: WorkflowRow) -> Record:
    """Return the columns of a version as the API shows them."""
    number = f"{fields.pop('major')}.{fields.pop('minor')}"
    for name in ("id", "workflow_id"):
        del fields[name]
    return {"version": number, "live": number == workflow.version, **fields}


def delete(tx: Tx, org_id: str, key: str, now: datetime) -> str:
    """Delete a script workflow: its jobs are canceled, its events skipped, its runs kept. Returns its id. Raises
    NotFound, or Conflict if a program declares it or a run is active."""
    workflow = workflows.get(tx, org_id, key, hold=True)
    if workflow.source != SCRIPT:
        raise Conflict(f"workflow {workflow.name!r} is declared by a program ({workflow.source}); remove it there")
    serial_key = serial_key_of(org_id, workflow.name)
    lock_keys(tx, [serial_key])
    head = serial_keys.head_of(tx, serial_key)
    if head is not None and head.state == State.RUNNING:
        raise Conflict(f"workflow {workflow.name!r} has an active run; pause it and wait until the run has ended")
    for schedule_id in list(tx.execute(select(h.schedule_id).where(h.workflow_id == workflow.id)).scalars()):
        schedules.delete_if_exists(tx, org_id, schedule_id, now)
    jobs.withdraw(tx, tables.jobs.c.serial_key == serial_key, Status.CANCELED, "deleted", now, promoting=False)
    tx.execute(tables.handlers.delete().where(h.workflow_id == workflow.id))
    for status in (EventStatus.PENDING, EventStatus.RESERVED):
        unfinished = and_(e.workflow_id == workflow.id, e.status == literal_column(f"'{status.value}'"))
        skipped = {"status": EventStatus.SKIPPED.value, "updated_at": now}
        tx.execute(update(tables.events).where(unfinished).values(skipped))
    deleted = {"name": workflow.id, "deleted_at": now, "updated_at": now, "paused_at": now, "pause_reason": "deleted"}
    tx.execute(update(tables.workflows).where(w.id == workflow.id).values(deleted))
    return workflow.id


# repair


def ask_for_repair(tx: Tx, workflow: WorkflowRow, run_id: str, now: datetime) -> bool:
    """Insert a repair of a failed run and its job. False if repairs are off or used up, or a mutation has an unknown
    outcome."""
    if workflow.declaration["repair"] == "off" or has_open_effect(tx, workflow.id):
        return False
    if count_repairs(tx, workflow, run_id) >= REPAIRS_PER_FAILURE:
        return False
    major = major_of(workflow)
    last = tx.execute(select(func.max(s.minor)).where(s.workflow_id == workflow.id, s.major == major)).scalar() or 0
    row = version_row(workflow.id, major, last + 1, VersionOutcome.ASKED, now) | {"run_id": run_id}
    if not insert_new(tx, tables.scripts, [row], ("id",)):
        return False  # race: a repair of another handler has this version number; an operator decides about this run
    job = NewJob(workflow.org_id, REPAIR, workflow.name, {"id": row["id"]}, now, f"run:{run_id}", route=REPAIR)
    jobs.enqueue(tx, [job], now)
    return True


def count_repairs(tx: Tx, workflow: WorkflowRow, run_id: str) -> int:
    """Return how many repairs of a run's handler were made since its last commit, of the live major version."""
    handler = select(x.handler_id).where(x.id == run_id).scalar_subquery()
    same = and_(x.workflow_id == workflow.id, x.handler_id == handler)
    committed = tx.execute(select(func.max(x.id)).where(same, x.phase == Phase.COMMITTED.value)).scalar()
    joined = tables.scripts.join(tables.workflow_runs, x.id == s.run_id)
    since = and_(s.workflow_id == workflow.id, s.major == major_of(workflow), same, x.id > (committed or ""))
    return int(tx.execute(select(func.count()).select_from(joined).where(since)).scalar_one())


def major_of(workflow: WorkflowRow) -> int:
    return int(workflow.version.partition(".")[0])


def is_stuck_on(tx: Tx, workflow: WorkflowRow, run_id: str) -> bool:
    """Return whether a workflow, or one of its handlers, still waits because of this failed run."""
    stuck = operators.stuck_job(tx, workflow)
    parked = stuck is not None and stuck.state == State.PARKED and stuck.last_run_id == run_id
    return parked or run_id in workflow.held_runs().values()


def failure(tx: Tx, repair_id: str) -> Record | None:
    """Return the failure that a repair is asked for, redacted; None if it no longer needs a repair."""
    row = tx.execute(select(tables.scripts).where(s.id == repair_id)).one()
    workflow = workflows.get_by_id(tx, row.workflow_id)
    if row.outcome != VersionOutcome.ASKED or not is_stuck_on(tx, workflow, row.run_id):
        return None
    run = find_run(tx, row.run_id)
    assert run is not None
    ended, base = runs.get(tx, workflow.org_id, row.run_id), get_version(tx, workflow, workflow.version)
    handler = workflow.handlers.get(run.handler_id)
    inputs: dict[str, list[Record]] = {}
    for topic in handler.subscribe if handler is not None else ():
        reserved = and_(e.workflow_id == workflow.id, e.topic == topic, e.reserved_by == run.id)
        stmt = select(tables.events).where(reserved).order_by(e.id).limit(FAILURE_EVENTS)
        reserved_events = [EventRow(**event._asdict()) for event in tx.execute(stmt)]
        shown_events = reserved_events or events.peek(tx, workflow.id, {topic: FAILURE_EVENTS})
        inputs[topic] = [{"message_id": event.message_id, "payload": event.payload} for event in shown_events]
    earlier = and_(s.workflow_id == workflow.id, s.major == row.major, s.minor > 0, s.minor < row.minor)
    proposals = tx.execute(select(tables.scripts).where(earlier).order_by(s.minor))
    redacted_fields = redacted(
        {
            "phase": run.phase.value,
            "error": ended.error if ended is not None else None,
            "inputs": {
                "state": handler.state if handler is not None else None,
                "events": inputs,
                "prepared": run.prepare_result,
                "mutation": {"status": run.mutation_outcome, "result": run.mutation_result},
            },
        }
    )
    return {
        "workflow": workflow.name,
        "version": workflow.version,
        "handler": run.handler_id,
        "run_id": run.id,
        "source": base.source,
        **redacted_fields,
        "proposals": [
            {
                "version": f"{proposal.major}.{proposal.minor}",
                "outcome": proposal.outcome,
                "why": proposal.why,
                "source": proposal.source,
            }
            for proposal in proposals
        ],
        "declaration": base.declaration,
        "org_id": workflow.org_id,
    }


def settle_repair(
    tx: Tx,
    repair_id: str,
    base: str,
    outcome: VersionOutcome,
    why: str | None,
    source: str | None,
    declaration: Record | None,
    now: datetime,
) -> str:
    """Write the outcome of a repair and return it. An accepted one becomes live and its workflow is resumed; after a
    refused one another is asked for, up to the limit. A repair that is settled already is not changed."""
    row = tx.execute(select(tables.scripts).where(s.id == repair_id)).one()
    workflow = workflows.get_by_id(tx, row.workflow_id, hold=True)
    row = tx.execute(select(tables.scripts).where(s.id == repair_id)).one()  # again, now that the workflow is locked
    if row.outcome != VersionOutcome.ASKED:
        return str(row.outcome)
    if workflow.version != base or not is_stuck_on(tx, workflow, row.run_id) or has_open_effect(tx, workflow.id):
        outcome, why = VersionOutcome.SUPERSEDED, why or "the workflow continued before the repair was ready"
    values = {"outcome": outcome.value, "why": why, "source": source, "declaration": declaration, "decided_at": now}
    if outcome is VersionOutcome.WAITING:
        values["decided_at"] = None
    tx.execute(update(tables.scripts).where(s.id == row.id).values(values))
    if outcome is VersionOutcome.ACCEPTED:
        make_live(tx, workflow, ScriptVersion(**row._asdict()), declaration or {}, now)
    elif outcome is VersionOutcome.REFUSED:
        ask_for_repair(tx, workflow, row.run_id, now)
    touch(tx, workflow, now)
    return outcome.value


def make_live(tx: Tx, workflow: WorkflowRow, version: ScriptVersion, declaration: Record, now: datetime) -> None:
    """Make a repair the live version and retry the failed run."""
    values = {"version": version.number, "declaration": declaration, "updated_at": now}
    tx.execute(update(tables.workflows).where(w.id == workflow.id).values(values))
    changed = workflows.get(tx, workflow.org_id, workflow.id)
    operators.retry_stuck(tx, changed, operators.stuck_job(tx, changed), now)
    notify(tx, "ready")


def touch(tx: Tx, workflow: WorkflowRow, now: datetime) -> None:
    """Set `updated_at`, from which the event stream reads changes."""
    tx.execute(update(tables.workflows).where(w.id == workflow.id).values(updated_at=now))


def decide(tx: Tx, org_id: str, key: str, number: str, accept: bool, why: str, by: str, now: datetime) -> str:
    """Accept or reject a repair that waits for an operator; returns the workflow's id. Raises NotFound or Conflict."""
    workflow = workflows.get(tx, org_id, key, hold=True)
    row = get_version(tx, workflow, number)
    if row.outcome != VersionOutcome.WAITING:
        text = f"version {number} of workflow {workflow.name!r} is {row.outcome}"
        raise Conflict(f"{text}; only a waiting version can be accepted or rejected")
    assert row.run_id is not None  # a waiting version is a repair
    if accept and (has_open_effect(tx, workflow.id) or not is_stuck_on(tx, workflow, row.run_id)):
        raise Conflict(f"workflow {workflow.name!r} no longer needs version {number}; reject it")
    outcome = VersionOutcome.ACCEPTED if accept else VersionOutcome.REJECTED
    values = {"outcome": outcome.value, "why": why or None, "decided_by": by, "decided_at": now}
    tx.execute(update(tables.scripts).where(s.id == row.id).values(values))
    if accept:
        make_live(tx, workflow, row, row.declaration or {}, now)
    elif is_stuck_on(tx, workflow, row.run_id):
        ask_for_repair(tx, workflow, row.run_id, now)
    touch(tx, workflow, now)
    return workflow.id


def repair_status(tx: Tx, workflow: WorkflowRow, run_id: str) -> tuple[str, str] | None:
    """Return the status of a workflow whose failed run is being repaired, and the issue in words; None if no repair was
    asked for."""
    repairs = and_(s.workflow_id == workflow.id, s.minor > 0, s.major == major_of(workflow))
    stmt = select(*LISTED_COLUMNS).where(repairs).order_by(s.minor.desc()).limit(REPAIRS_PER_FAILURE)
    rows = list(tx.execute(stmt))
    if not rows or not count_repairs(tx, workflow, run_id):
        return None
    last = rows[0]
    number = f"{last.major}.{last.minor}"
    if last.outcome == VersionOutcome.ASKED:
        return "idle", "it is being repaired"
    if last.outcome == VersionOutcome.WAITING:
        return "needs_attention", f"version {number} would repair it: accept or reject it"
    tried = [f"{row.major}.{row.minor} {row.why or 'did not help'}" for row in rows[::-1]]
    text = f"it could not be repaired ({'; '.join(tried)}): deploy a version that does not fail, then resume"
    return "needs_attention", text
