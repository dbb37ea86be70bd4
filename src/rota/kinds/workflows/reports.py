"""What people see of workflows: how it stands, in plain words, and what came in and went out. Reads only.

Phases, handlers and flags stay out of the first view; `inside` and `runs` show them to developers.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, literal_column, select, union_all

from rota.core.model import WORKFLOW, serial_key_of_target
from rota.core.policy import RECONCILIATION
from rota.core.redact import redacted
from rota.core.states import Phase, State
from rota.core.timing import triggers
from rota.core.timing.describe import listing, plural, short_span
from rota.db.dialect import Tx
from rota.db.paging import PAGE_ROWS, Page, Record, dict_of, matching, page_by
from rota.db.tables import causes, clocks, effects, events, handlers, schedules, workflow_runs, workflows
from rota.db.tables import runs as ledger
from rota.engine import jobs as queue
from rota.engine.reports import run
from rota.kinds.workflows.rules import OPEN_EFFECTS, STALE, EffectStatus, EventStatus, HandlerKind, Outcome, Resolution
from rota.kinds.workflows.scripts import store as scripts_store
from rota.kinds.workflows.store import workflows as store

w, h, e, x, f = workflows.c, handlers.c, events.c, workflow_runs.c, effects.c

RECENT = 10
IS_OPEN = f.status.in_([literal_column(f"'{one.value}'") for one in OPEN_EFFECTS])  # as its index has it
WARNINGS = {
    EffectStatus.IN_FLIGHT: "under way",
    EffectStatus.NEEDS_RECONCILE: "it gave no answer; its service will be asked",
    EffectStatus.INDETERMINATE: "nobody knows whether it happened; somebody has to say so",
}


def workflow(tx: Tx, org_id: str, key: str, now: datetime) -> Record:
    """One workflow as people see it."""
    return described(tx, store.get(tx, org_id, key), now)


def brief(tx: Tx, org_id: str, key: str) -> Record:
    """What of a workflow people change."""
    flow = store.get(tx, org_id, key)
    same = ("id", "name", "version", "source", "paused_at", "pause_reason")
    return {name: getattr(flow, name) for name in same}


def list_workflows(tx: Tx, org_id: str, now: datetime, *, limit: int = PAGE_ROWS, cursor: str | None = None) -> Page:
    """By name."""
    stmt = select(workflows).where(w.org_id == org_id, w.deleted_at.is_(None))
    return page_by(
        tx, stmt, w.name, limit, cursor, lambda row: described(tx, store.with_handlers(tx, dict_of(row)), now)
    )


def described(tx: Tx, flow: Any, now: datetime) -> Record:
    status, issue = standing(tx, flow, now)
    words, next_at = timing(tx, flow)
    waiting = func.count().label("n")
    counted = select(waiting).where(e.workflow_id == flow.id, store.is_pending())
    stale = stale_inputs(tx, flow, now)
    blocked = select(waiting).where(f.workflow_id == flow.id, IS_OPEN, f.status != EffectStatus.IN_FLIGHT)
    return {
        "id": flow.id, "name": flow.name, "description": flow.description, "status": status, "issue": issue,
        "schedule": words, "next_check_at": next_at,
        "next_check": None if next_at is None else f"in {short_span(next_at - now)}" if next_at > now else "now",
        "recent": recent(tx, flow), "pending": int(tx.execute(counted).scalar_one()), "stale_inputs": stale,
        "attention": int(tx.execute(blocked).scalar_one()) + stale + (status == "needs_attention"),
        "paused_at": flow.paused_at, "pause_reason": flow.pause_reason, "version": flow.version,
        "source": flow.source, "topics": flow.declaration["topics"], "created_at": flow.created_at,
        "updated_at": flow.updated_at,
    }  # fmt: skip


def standing(tx: Tx, flow: Any, now: datetime) -> tuple[str, str | None]:
    """Running, idle, needs attention or stopped; and what is the matter, in plain words."""
    head = queue.head_of(tx, serial_key_of_target(WORKFLOW, flow.org_id, flow.name))
    failed = None
    if head is not None and head.last_run_id is not None:
        failed = tx.execute(select(ledger).where(ledger.c.id == head.last_run_id)).one_or_none()
    what = "" if failed is None or not failed.error else redacted(failed.error["message"])
    if flow.paused_at is not None:
        return "stopped", f"paused: {flow.pause_reason}" if flow.pause_reason else "paused"
    if head is not None and head.state == State.PARKED and head.parked_reason != store.PAUSED:
        repair = (
            scripts_store.words(tx, flow, head.last_run_id)
            if head.last_run_id and flow.source == store.SCRIPT
            else None
        )
        if repair is not None:
            return repair[0], f"it failed: {what}; {repair[1]}"
        effect = store.open_effect(tx, head.last_run_id) if head.last_run_id else None
        return "needs_attention", parked_words(head.parked_reason, what, effect)
    aside = store.held(flow)
    if aside:
        return "needs_attention", f"{listing(aside)} failed and is put aside; the rest goes on"
    if head is not None and head.state == State.RETRY:
        return "idle", f"trying again in {short_span(max(head.run_at, now) - now)}: {what}"
    return ("idle" if head is None else "running"), None


def parked_words(reason: str | None, what: str, effect: Any = None) -> str:
    """Why a workflow waits for a person. An effect that was in flight is named: its outcome is not known."""
    crashed = "it took its worker down three times"
    if reason == "quarantined" and effect is not None:
        title = f"{effect.call} ({effect.title})" if effect.title else effect.call
        return f"{crashed} while {title} was in flight; record whether it was applied, not_applied, or skip it"
    return {
        queue.UNROUTABLE: "no running worker has its program",
        "approval": f"waiting for you: {what}",
        "reconciliation": f"{what}; say whether it was applied, not_applied, or skip it",
        "transient": f"it was tried often enough: {what}; resume it when the other side is well",
        "internal": f"Rota itself failed: {what}; nothing more is tried until somebody resumes it",
        "quarantined": f"{crashed}; deploy a version that does not, then resume",
    }.get(reason or "", f"it failed: {what}; deploy a version that does not, then resume")


def decision(tx: Tx, org_id: str, key: str) -> Record:
    """What a person can say about a workflow now: whether resuming it does something, and which resolutions of the run
    that waits make sense."""
    flow = store.get(tx, org_id, key)
    stuck, aside = store.waits_for_person(tx, flow), store.held(flow)
    reason = None if stuck is None else stuck.parked_reason
    run_id = stuck.last_run_id if stuck is not None else next(iter(aside.values()), None)
    if stuck is None and run_id is not None:
        reason = tx.execute(select(ledger.c.reason).where(ledger.c.id == run_id)).scalar()
    row = None if reason == store.PAUSED else tx.execute(select(workflow_runs).where(x.id == run_id)).one_or_none()
    effect = None if row is None else store.open_effect(tx, row.id)
    stands = (stuck is not None or bool(aside)) and reason != RECONCILIATION and effect is None
    told = None if effect is None else {"call": effect.call, "params": effect.params, "title": effect.title}
    return {
        "resumable": flow.paused_at is not None or stands, "run_id": None if row is None else row.id, "effect": told,
        "resolutions": [] if row is None else sensible(row, effect, reason),
    }  # fmt: skip


def sensible(row: Any, effect: Any, reason: str | None) -> list[Resolution]:
    """Which resolutions say something about a run: of an effect of which nobody knows, or of a failure."""
    if effect is not None:
        return [Resolution.APPLIED, Resolution.NOT_APPLIED, Resolution.SKIP, Resolution.TRY_AGAIN]
    first = [Resolution.APPROVE if reason == "approval" else Resolution.TRY_AGAIN, Resolution.REJECT]
    early = row.phase in (Phase.EXECUTING, Phase.PREPARING)
    return first if early or row.mutation_outcome == Outcome.APPLIED else [*first, Resolution.SKIP]


def waiting(tx: Tx, org_id: str, key: str) -> dict[str, int]:
    """How many events wait in each topic."""
    mine = and_(e.workflow_id == store.get(tx, org_id, key).id, store.is_pending())
    counted = select(e.topic, func.count().label("n")).where(mine).group_by(e.topic)
    rows = tx.execute(counted)
    return {row.topic: int(row.n) for row in rows}


def timing(tx: Tx, flow: Any) -> tuple[str | None, datetime | None]:
    """When its producers run, in words; and when something happens by itself next."""
    joined = handlers.outerjoin(schedules, schedules.c.id == h.schedule_id)
    joined = joined.outerjoin(clocks, clocks.c.schedule_id == h.schedule_id)
    found = list(
        tx.execute(
            select(schedules.c.timing, clocks.c.next_run_at, h.wake_at)
            .select_from(joined)
            .where(h.workflow_id == flow.id)
        )
    )
    words = dict.fromkeys(triggers.describe(triggers.load(one.timing)) for one in found if one.timing is not None)
    moments = [moment for one in found for moment in (one.next_run_at, one.wake_at) if moment is not None]
    return f"checks {listing(words)}" if words else None, min(moments, default=None)


def recent(tx: Tx, flow: Any) -> list[Record]:
    """What it did lately, newest first; runs that found nothing to do are left out."""
    stmt = select(
        workflow_runs, ledger.c.status, ledger.c.reason, ledger.c.outcome, ledger.c.finished_at, ledger.c.error
    )
    stmt = (
        stmt.join(ledger, ledger.c.id == x.id).where(x.workflow_id == flow.id).order_by(x.id.desc()).limit(3 * RECENT)
    )
    told = [{"at": row.finished_at, "run_id": row.id, "text": activity(row)} for row in tx.execute(stmt)]
    return [one for one in told if one["text"]][:RECENT]


def activity(row: Any) -> str | None:
    done = row.outcome or {}
    if row.status != "success":
        return f"{row.status}: {redacted((row.error or {}).get('message', row.reason))}"
    published = [of_topic(count, topic) for topic, count in (done.get("published") or {}).items()]
    if row.handler_type == HandlerKind.PRODUCER:
        return f"took in {listing(published)}" if published else None
    if not done.get("taken"):
        return None
    parts = [done.get("title") or f"handled {plural(done['taken'], 'event')}"]
    parts += ["effect skipped"] if done.get("mutation") == "skipped" else []
    return " → ".join([*parts, *(["passed on " + listing(published)] if published else [])])


def of_topic(count: int, topic: str) -> str:
    """`1 item`, `2 items`, whether the topic is called item or items."""
    return plural(count, topic if topic.endswith("ss") else topic.removesuffix("s"))


def stale_inputs(tx: Tx, flow: Any, now: datetime) -> int:
    """Inputs that are older than they should be and not done."""
    old = and_(e.id.in_(open_inputs(flow.id)), e.created_at <= now - STALE)
    return int(tx.execute(select(func.count()).select_from(events).where(old)).scalar_one())


def open_inputs(workflow_id: str) -> Select[Any]:
    """The ids of inputs that are not done: something that goes back to them waits, or a run has it."""
    mine = select(e.id, e.source).where(e.workflow_id == workflow_id)
    taken = mine.where(store.is_one_of("reserved", "skipped"), e.status == EventStatus.RESERVED)
    waits = union_all(mine.where(store.is_pending()), taken).cte("waits")
    derived = select(causes.c.input_id).join(waits, waits.c.id == causes.c.event_id)
    return select(select(waits.c.id).where(waits.c.source.is_not(None)).union(derived).subquery().c.id)


# what came in, what went out


def list_events(
    tx: Tx, org_id: str, key: str, *, topic: str | None = None, status: str | None = None, limit: int = PAGE_ROWS,
    cursor: str | None = None,
) -> Page:  # fmt: skip
    """Newest first."""
    flow = store.get(tx, org_id, key)
    stmt = matching(select(events).where(e.workflow_id == flow.id), (e.topic, topic), (e.status, status))
    found, more = newest(tx, stmt, e.id, limit, cursor)
    links = select(causes).where(causes.c.event_id.in_([one["id"] for one in found]))
    known: dict[str, list[str]] = {}
    for link in tx.execute(links):
        known.setdefault(link.event_id, []).append(link.input_id)
    for one in found:
        one["caused_by"] = sorted(known.get(one["id"], [one["id"]] if one["source"] else []))
        del one["workflow_id"]
    return found, more


def list_inputs(
    tx: Tx, org_id: str, key: str, now: datetime, *, status: str | None = None, limit: int = PAGE_ROWS,
    cursor: str | None = None,
) -> Page:  # fmt: skip
    """What came in from outside, newest first: `pending` while anything that goes back to it is not done."""
    flow = store.get(tx, org_id, key)
    pending = e.id.in_(open_inputs(flow.id))
    stmt = select(e.id, e.topic, e.source, e.message_id, e.title, e.status, e.created_at, pending.label("pending"))
    stmt = stmt.where(e.workflow_id == flow.id, e.source.is_not(None))
    if status is not None:
        skipped = and_(e.status == EventStatus.SKIPPED, ~pending)
        wanted = {"pending": pending, "skipped": skipped, "done": and_(~pending, e.status != EventStatus.SKIPPED)}
        stmt = stmt.where(wanted[status])
    found, more = newest(tx, stmt, e.id, limit, cursor)
    for one in found:
        still = one.pop("pending")
        one["status"] = "pending" if still else "skipped" if one["status"] == EventStatus.SKIPPED else "done"
        one["stale"] = bool(still) and one["created_at"] <= now - STALE
    return found, more


def list_outputs(tx: Tx, org_id: str, key: str, *, limit: int = PAGE_ROWS, cursor: str | None = None) -> Page:
    """What it did to the world outside, newest first. What surely did not happen is in the history of runs alone."""
    flow = store.get(tx, org_id, key)
    columns = (
        f.id, f.run_id, f.call, f.params, f.title, f.status, f.result, f.inputs, f.resolved_by, f.created_at,
        f.updated_at,
    )  # fmt: skip
    stmt = select(*columns).where(f.workflow_id == flow.id, f.status != EffectStatus.FAILED.value)
    found, more = newest(tx, stmt, f.id, limit, cursor)
    return [{**one, "warning": WARNINGS.get(one["status"])} for one in found], more


def list_runs(tx: Tx, org_id: str, key: str, *, limit: int = PAGE_ROWS, cursor: str | None = None) -> Page:
    """Attempts with their phases, newest first."""
    flow = store.get(tx, org_id, key)
    stmt = select(x.id).where(x.workflow_id == flow.id)
    found, more = newest(tx, stmt, x.id, limit, cursor)
    return [run(tx, org_id, one["id"]) for one in found], more


def inside(tx: Tx, org_id: str, key: str) -> list[Record]:
    """The handlers with their flags and states, for developers."""
    flow = store.get(tx, org_id, key)
    declared = {one["name"]: one for one in flow.declaration["handlers"]}
    columns = (h.name, h.type, h.state, h.dirty, h.wake_at, h.schedule_id, h.held_run_id, clocks.c.next_run_at)
    joined = handlers.outerjoin(clocks, clocks.c.schedule_id == h.schedule_id)
    stmt = select(*columns).select_from(joined).where(h.workflow_id == flow.id).order_by(h.name)
    same = ("subscribe", "publishes", "schedule")
    return [dict_of(row) | {field: declared.get(row.name, {}).get(field) for field in same} for row in tx.execute(stmt)]


def newest(tx: Tx, stmt: Select[Any], key: ColumnElement[str], limit: int, cursor: str | None) -> Page:
    return page_by(tx, stmt, key, limit, cursor, descending=True)
