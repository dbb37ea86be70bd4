"""Versions of workflows that are scripts: which one is live, and what repairers made of failures.

A repair is a row from the moment its run failed: `asked`, with a job that carries its id. Whoever dies on the way, the
row and the job are there, and the step that decides about it also makes it live and lets the workflow go on.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import and_, func, literal_column, or_, select, update

from rota.core.errors import Conflict, NotFound
from rota.core.ids import new_id
from rota.core.model import WORKFLOW, NewJob, Schedule, serial_key_of_target
from rota.core.redact import redacted
from rota.core.states import Phase, State, Status
from rota.db.dialect import Tx, insert_new, insert_rows, lock_keys, notify
from rota.db.paging import PAGE_ROWS, Page, Record, dict_of, page_by
from rota.db.tables import effects, events, handlers, jobs, scripts, workflow_runs, workflows
from rota.engine import jobs as queue
from rota.engine import orgs, schedules
from rota.engine import runs as ledger
from rota.kinds.workflows.rules import OPEN_EFFECTS, REPAIRS, EventStatus, VersionOutcome
from rota.kinds.workflows.store import workflows as flows
from rota.kinds.workflows.store.workflows import SCRIPT

REPAIR = "repair"  # the kind of the jobs, and their route
ROUTE = "scripts"  # of workflows that any worker can run; those with connectors need one with a program of their org
SHOWN = 10  # events of a topic that a repairer sees

w, s, x, e, h = workflows.c, scripts.c, workflow_runs.c, events.c, handlers.c
BRIEF = (
    s.id, s.workflow_id, s.major, s.minor, s.outcome, s.why, s.run_id, s.created_by, s.decided_by, s.created_at,
    s.decided_at,
)  # fmt: skip


# versions


def route_for(tx: Tx, org_id: str, declaration: Mapping[str, Any]) -> str:
    return f"{ROUTE}:{orgs.slug_of(tx, org_id)}" if declaration["connectors"] else ROUTE


def deploy(
    tx: Tx, org_id: str, key: str | None, fields: Mapping[str, Any], producers: Mapping[str, Schedule], source: str,
    by: str | None, now: datetime,
) -> str:  # fmt: skip
    """A version by a person: the first of a new workflow, or the next of the one named by `key`."""
    name, major = fields["name"], 1
    if key is not None:
        flow = flows.get(tx, org_id, key, hold=True)
        if flow.name != name:
            raise Conflict(f"workflow {flow.name}: the script declares {name}; a workflow keeps its name")
        major += tx.execute(select(func.max(s.major)).where(s.workflow_id == flow.id)).scalar() or 0
    elif tx.execute(select(w.id).where(w.org_id == org_id, w.name == name)).first() is not None:
        raise Conflict(f"workflow {name}: there is one already; PUT makes its next version")
    made = flows.deploy(tx, org_id, {**fields, "source": SCRIPT, "version": f"{major}.0"}, producers, now)
    assert made is not None  # its version is new
    row = version_row(made, major, 0, VersionOutcome.ACCEPTED, now) | {
        "source": source, "declaration": fields["declaration"], "created_by": by, "decided_by": by, "decided_at": now,
    }  # fmt: skip
    insert_rows(tx, scripts, [row])
    return made


def version_row(workflow_id: str, major: int, minor: int, outcome: VersionOutcome, now: datetime) -> dict[str, Any]:
    blank = dict.fromkeys(("source", "declaration", "why", "run_id", "created_by", "decided_by", "decided_at"))
    return blank | {
        "id": new_id(), "workflow_id": workflow_id, "major": major, "minor": minor, "outcome": outcome.value,
        "created_at": now,
    }  # fmt: skip


def live(tx: Tx, org_id: str, key: str) -> Any:
    """The version of a workflow that runs now, with its declaration."""
    flow = flows.get(tx, org_id, key)
    return flow, version(tx, flow, flow.version)


def version(tx: Tx, flow: Any, number: str) -> Any:
    major, _, minor = number.partition(".")
    found = None
    if major.isdigit() and minor.isdigit() and len(number) < 12:
        mine = and_(s.workflow_id == flow.id, s.major == int(major), s.minor == int(minor))
        found = tx.execute(select(scripts).where(mine)).one_or_none()
    if found is None:
        raise NotFound(f"workflow {flow.name}: it has no version {number}")
    return found


def before(tx: Tx, flow: Any, one: Any) -> Any | None:
    """The version that was live when this one was made."""
    earlier = or_(s.major < one.major, and_(s.major == one.major, s.minor < one.minor))
    stmt = select(scripts).where(s.workflow_id == flow.id, earlier, s.outcome == VersionOutcome.ACCEPTED)
    return tx.execute(stmt.order_by(s.major.desc(), s.minor.desc()).limit(1)).one_or_none()


def list_versions(
    tx: Tx, org_id: str, key: str, *, repairs: bool = False, limit: int = PAGE_ROWS, cursor: str | None = None
) -> Page:
    """Newest first; or only what repairers made."""
    flow = flows.get(tx, org_id, key)
    stmt = select(*BRIEF).where(s.workflow_id == flow.id)
    if repairs:
        stmt = stmt.where(s.minor > 0)
    return page_by(tx, stmt, s.id, limit, cursor, lambda row: told(row, flow), descending=True)


def told(row: Any, flow: Any) -> Record:
    found = dict_of(row)
    number = f"{found.pop('major')}.{found.pop('minor')}"
    for name in ("id", "workflow_id"):
        del found[name]
    return {"version": number, "live": number == flow.version, **found}


def delete(tx: Tx, org_id: str, key: str, now: datetime) -> str:
    """Take a script workflow away: what waits in it is given up, what it ran stays in the ledger."""
    flow = flows.get(tx, org_id, key, hold=True)
    if flow.source != SCRIPT:
        raise Conflict(f"workflow {flow.name}: a program declares it ({flow.source}); take it out there")
    line = serial_key_of_target(WORKFLOW, org_id, flow.name)
    lock_keys(tx, [line])
    head = queue.head_of(tx, line)
    if head is not None and head.state == State.RUNNING:
        raise Conflict(f"workflow {flow.name}: a run is active; pause it, and wait until that has ended")
    for one in list(tx.execute(select(h.schedule_id).where(h.workflow_id == flow.id)).scalars()):
        schedules.delete_if_exists(tx, org_id, one, now)
    queue.withdraw(tx, jobs.c.serial_key == line, Status.CANCELED, "deleted", now, promoting=False)
    tx.execute(handlers.delete().where(h.workflow_id == flow.id))
    for status in (EventStatus.PENDING, EventStatus.RESERVED):
        waits = and_(e.workflow_id == flow.id, e.status == literal_column(f"'{status.value}'"))
        tx.execute(update(events).where(waits).values(status=EventStatus.SKIPPED.value, updated_at=now))
    gone = {"name": flow.id, "deleted_at": now, "updated_at": now, "paused_at": now, "pause_reason": "deleted"}
    tx.execute(update(workflows).where(w.id == flow.id).values(gone))
    return str(flow.id)


# repair


def ask(tx: Tx, flow: Any, run_id: str, now: datetime) -> bool:
    """Have a failed run repaired, unless that was tried often enough. The row and its job stand together."""
    major = int(flow.version.partition(".")[0])
    if flow.declaration["repair"] == "off" or spent(tx, flow, run_id) >= REPAIRS or unclear(tx, flow):
        return False
    last = tx.execute(select(func.max(s.minor)).where(s.workflow_id == flow.id, s.major == major)).scalar() or 0
    row = version_row(flow.id, major, last + 1, VersionOutcome.ASKED, now) | {"run_id": run_id}
    if not insert_new(tx, scripts, [row], ("id",)):
        return False  # somebody else asks for another handler just now; this one waits for a person
    job = NewJob(flow.org_id, REPAIR, flow.name, {"id": row["id"]}, now, f"run:{run_id}", route=REPAIR)
    queue.enqueue(tx, [job], now)
    return True


def spent(tx: Tx, flow: Any, run_id: str) -> int:
    """How many repairs were made for a handler since a run of it was committed, or a person wrote a new version."""
    handler = select(x.handler_id).where(x.id == run_id).scalar_subquery()
    same = and_(x.workflow_id == flow.id, x.handler_id == handler)
    done = tx.execute(select(func.max(x.id)).where(same, x.phase == Phase.COMMITTED.value)).scalar()
    failed = scripts.join(workflow_runs, x.id == s.run_id)
    mine = and_(s.workflow_id == flow.id, s.major == int(flow.version.partition(".")[0]), same, x.id > (done or ""))
    return int(tx.execute(select(func.count()).select_from(failed).where(mine)).scalar_one())


def unclear(tx: Tx, flow: Any) -> bool:
    """Whether there is an effect of which nobody knows: then nothing is changed before that is known."""
    some = select(effects.c.id).where(effects.c.workflow_id == flow.id, effects.c.status.in_(OPEN_EFFECTS))
    return tx.execute(some).first() is not None


def waits(tx: Tx, flow: Any, run_id: str) -> bool:
    """Whether a failed run is still what its workflow, or its handler, waits for."""
    stuck = flows.waits_for_person(tx, flow)
    here = stuck is not None and stuck.state == State.PARKED and stuck.last_run_id == run_id
    return here or run_id in flows.held(flow).values()


def failure(tx: Tx, repair_id: str) -> Record | None:
    """What a repairer is told, without secrets; None if there is nothing to repair any more."""
    row = tx.execute(select(scripts).where(s.id == repair_id)).one()
    flow = flow_of(tx, row)
    if row.outcome != VersionOutcome.ASKED or not waits(tx, flow, row.run_id):
        return None
    run = tx.execute(select(workflow_runs).where(x.id == row.run_id)).one()
    ended, base = ledger.get(tx, flow.org_id, row.run_id), version(tx, flow, flow.version)
    handler = flow.handlers.get(run.handler_id)
    found: dict[str, list[Any]] = {}
    for topic in handler.subscribe if handler is not None else ():
        mine = e.reserved_by == run.id
        taken = select(events).where(e.workflow_id == flow.id, e.topic == topic, mine).order_by(e.id).limit(SHOWN)
        rows = list(tx.execute(taken)) or flows.peek(tx, flow.id, topic, SHOWN)
        found[topic] = [{"message_id": one.message_id, "payload": one.payload} for one in rows]
    same = and_(s.workflow_id == flow.id, s.major == row.major, s.minor > 0, s.minor < row.minor)
    earlier = tx.execute(select(scripts).where(same).order_by(s.minor))
    hidden = redacted({
        "phase": run.phase, "error": ended.error if ended is not None else None,
        "inputs": {
            "state": handler.state if handler is not None else None, "events": found, "prepared": run.prepare_result,
            "mutation": {"status": run.mutation_outcome, "result": run.mutation_result},
        },
    })  # fmt: skip
    return {
        "workflow": flow.name, "version": flow.version, "handler": run.handler_id, "run_id": run.id,
        "source": base.source, **hidden,
        "proposals": [
            {"version": f"{one.major}.{one.minor}", "outcome": one.outcome, "why": one.why, "source": one.source}
            for one in earlier
        ],
        "declaration": base.declaration, "org_id": flow.org_id,
    }  # fmt: skip


def settle(
    tx: Tx, repair_id: str, base: str, outcome: VersionOutcome, why: str | None, source: str | None,
    declaration: Mapping[str, Any] | None, now: datetime,
) -> str:  # fmt: skip
    """Write down what became of a repair. If it is accepted it is live from here on and its workflow goes on; if it is
    refused, another one is asked for while the budget lasts."""
    row = tx.execute(select(scripts).where(s.id == repair_id)).one()
    flow = flow_of(tx, row, hold=True)
    row = tx.execute(select(scripts).where(s.id == repair_id)).one()  # as it is now that nobody else can change it
    if row.outcome != VersionOutcome.ASKED:
        return str(row.outcome)
    if flow.version != base or not waits(tx, flow, row.run_id) or unclear(tx, flow):
        outcome, why = VersionOutcome.SUPERSEDED, why or "the workflow went on meanwhile"
    values = {"outcome": outcome.value, "why": why, "source": source, "declaration": declaration, "decided_at": now}
    if outcome is VersionOutcome.WAITING:
        values["decided_at"] = None
    tx.execute(update(scripts).where(s.id == row.id).values(values))
    if outcome is VersionOutcome.ACCEPTED:
        go_live(tx, flow, row, declaration or {}, now)
    elif outcome is VersionOutcome.REFUSED:
        ask(tx, flow, row.run_id, now)
    touch(tx, flow, now)
    return outcome.value


def flow_of(tx: Tx, row: Any, hold: bool = False) -> flows.Flow:
    """The workflow of a version, also one that is deleted."""
    stmt = select(workflows).where(w.id == row.workflow_id)
    found = tx.execute(stmt.with_for_update() if hold else stmt).one()
    return flows.with_handlers(tx, dict(zip(w.keys(), found, strict=True)))


def go_live(tx: Tx, flow: Any, row: Any, declaration: Mapping[str, Any], now: datetime) -> None:
    values = {"version": f"{row.major}.{row.minor}", "declaration": declaration, "updated_at": now}
    tx.execute(update(workflows).where(w.id == flow.id).values(values))
    fresh = flows.get(tx, flow.org_id, flow.id)
    flows.go_on(tx, fresh, flows.waits_for_person(tx, fresh), now)
    notify(tx, "ready")


def touch(tx: Tx, flow: Any, now: datetime) -> None:
    """Whoever follows what changes sees it."""
    tx.execute(update(workflows).where(w.id == flow.id).values(updated_at=now))


def decide(tx: Tx, org_id: str, key: str, number: str, accept: bool, why: str, by: str, now: datetime) -> str:
    """What a person says about a repair that waits for one."""
    flow = flows.get(tx, org_id, key, hold=True)
    row = version(tx, flow, number)
    if row.outcome != VersionOutcome.WAITING:
        raise Conflict(f"workflow {flow.name}: version {number} is {row.outcome}; nobody has to decide about it")
    if accept and (unclear(tx, flow) or not waits(tx, flow, row.run_id)):
        raise Conflict(f"workflow {flow.name}: it does not wait for version {number} any more; reject it")
    outcome = VersionOutcome.ACCEPTED if accept else VersionOutcome.REJECTED
    values = {"outcome": outcome.value, "why": why or None, "decided_by": by, "decided_at": now}
    tx.execute(update(scripts).where(s.id == row.id).values(values))
    if accept:
        go_live(tx, flow, row, row.declaration, now)
    elif waits(tx, flow, row.run_id):
        ask(tx, flow, row.run_id, now)
    touch(tx, flow, now)
    return str(flow.id)


def words(tx: Tx, flow: Any, run_id: str) -> tuple[str, str] | None:
    """How a workflow stands whose failed run was to be repaired, and that in words; None if that was not tried."""
    mine = and_(s.workflow_id == flow.id, s.minor > 0, s.major == int(flow.version.partition(".")[0]))
    found = list(tx.execute(select(*BRIEF).where(mine).order_by(s.minor.desc()).limit(REPAIRS)))
    if not found or not spent(tx, flow, run_id):
        return None
    last = found[0]
    number = f"{last.major}.{last.minor}"
    if last.outcome == VersionOutcome.ASKED:
        return "idle", "it is being repaired"
    if last.outcome == VersionOutcome.WAITING:
        return "needs_attention", f"version {number} would repair it: accept or reject that"
    tried = [f"{one.major}.{one.minor} {one.why or 'did not help'}" for one in found[::-1]]
    text = f"it could not be repaired ({'; '.join(tried)}): deploy a version that does not fail, then resume"
    return "needs_attention", text
