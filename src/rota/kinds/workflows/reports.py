"""Read models of workflows: status and issue in plain words, inputs, outputs, events, runs. Reads only.

Phases, handlers and flags are not in the first view; `list_handlers` and `list_runs` return them for developers.
"""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import and_, func, literal_column, select, union_all

from rota.core.effects import OPEN_EFFECTS, EffectStatus
from rota.core.incidents import NEEDS_ATTENTION, OUTCOME_UNKNOWN, with_page
from rota.core.policy import RECONCILIATION
from rota.core.redact import redacted
from rota.core.states import Phase, State
from rota.core.timing import presentation, stored
from rota.core.timing.describe import listing, plural, short_span
from rota.db import tables
from rota.db.dialect import Query, ResultRow, Tx
from rota.db.paging import PAGE_ROWS, Page, Record, dict_of, matching, page_by
from rota.engine import jobs, serial_keys
from rota.kinds.workflows.rules import STALE_AFTER, EventStatus, HandlerKind, Outcome, Resolution, serial_key_of
from rota.kinds.workflows.scripts import store as scripts_store
from rota.kinds.workflows.store import events, operators, workflows
from rota.kinds.workflows.store.effects import open_effect
from rota.kinds.workflows.store.phases import find_run
from rota.kinds.workflows.store.records import OpenEffect, RunRow, WorkflowRow
from rota.kinds.workflows.store.workflow_runs import PAUSED
from rota.reports import runs as run_reports

w, h, e, f = tables.workflows.c, tables.handlers.c, tables.events.c, tables.effects.c
x, runs, clocks, causes = tables.workflow_runs.c, tables.runs.c, tables.clocks.c, tables.causes.c

RECENT_RUNS = 10
IS_OPEN = f.status.in_([literal_column(f"'{status.value}'") for status in OPEN_EFFECTS])  # literals, as in its index
WARNINGS = {
    EffectStatus.IN_FLIGHT: "in flight",
    EffectStatus.NEEDS_RECONCILE: "no answer; its service will be asked whether it happened",
    EffectStatus.INDETERMINATE: "outcome unknown; an operator must resolve it",
}


def workflow(tx: Tx, org_id: str, key: str, now: datetime) -> Record:
    """Return one workflow as the API and the dashboard show it. Raises NotFound."""
    return describe(tx, workflows.get(tx, org_id, key), now)


def audited_fields(tx: Tx, org_id: str, key: str) -> Record:
    """Return the fields of a workflow that commands change, for the audit log."""
    row = workflows.get(tx, org_id, key)
    names = ("id", "name", "version", "source", "paused_at", "pause_reason")
    return {name: getattr(row, name) for name in names}


def list_workflows(tx: Tx, org_id: str, now: datetime, *, limit: int = PAGE_ROWS, cursor: str | None = None) -> Page:
    """Return workflows by name."""
    stmt = select(tables.workflows).where(w.org_id == org_id, w.deleted_at.is_(None))

    return page_by(
        tx, stmt, w.name, limit, cursor, lambda row: describe(tx, workflows.with_handlers(tx, dict_of(row)), now)
    )


def describe(tx: Tx, row: WorkflowRow, now: datetime) -> Record:
    status, issue = status_and_issue(tx, row, now)
    schedule, next_at = timing(tx, row)
    count = func.count().label("n")
    pending = select(count).where(e.workflow_id == row.id, events.is_pending())
    stale = count_stale_inputs(tx, row, now)
    unknown = select(count).where(f.workflow_id == row.id, IS_OPEN, f.status != EffectStatus.IN_FLIGHT)
    effects = int(tx.execute(unknown).scalar_one())
    if status == "needs_attention" and issue is not None:
        issue = with_page(issue, OUTCOME_UNKNOWN if effects else NEEDS_ATTENTION)
    return {
        "id": row.id,
        "name": row.name,
        "description": row.description,
        "status": status,
        "issue": issue,
        "schedule": schedule,
        "next_check_at": next_at,
        "next_check": None if next_at is None else f"in {short_span(next_at - now)}" if next_at > now else "now",
        "recent": recent_runs(tx, row),
        "pending": int(tx.execute(pending).scalar_one()),
        "stale_inputs": stale,
        "attention": effects + stale + (status == "needs_attention"),
        "paused_at": row.paused_at,
        "pause_reason": row.pause_reason,
        "version": row.version,
        "source": row.source,
        "topics": row.declaration["topics"],
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def status_and_issue(tx: Tx, row: WorkflowRow, now: datetime) -> tuple[str, str | None]:
    """Return running, idle, needs_attention or stopped; and the issue in words, if there is one."""
    head = serial_keys.head_of(tx, serial_key_of(row.org_id, row.name))
    failed = None
    if head is not None and head.last_run_id is not None:
        failed = tx.execute(select(tables.runs).where(runs.id == head.last_run_id)).one_or_none()
    error = "" if failed is None or not failed.error else redacted(failed.error["message"])
    if row.paused_at is not None:
        return "stopped", f"paused: {row.pause_reason}" if row.pause_reason else "paused"
    if head is not None and head.state == State.PARKED and head.parked_reason != PAUSED:
        repair = None
        if head.last_run_id and row.source == workflows.SCRIPT:
            repair = scripts_store.repair_status(tx, row, head.last_run_id)
        if repair is not None:
            return repair[0], f"it failed: {error}; {repair[1]}"
        effect = open_effect(tx, head.last_run_id) if head.last_run_id else None
        return "needs_attention", parked_issue(head.parked_reason, error, effect)
    held = row.held_runs()
    if held:
        return "needs_attention", f"{listing(held)} failed and is on hold; the other handlers continue"
    if head is not None and head.state == State.RETRY:
        return "idle", f"retrying in {short_span(max(head.run_at, now) - now)}: {error}"
    return ("idle" if head is None else "running"), None


def parked_issue(reason: str | None, error: str, effect: OpenEffect | None = None) -> str:
    """Return why a parked workflow needs an operator. A mutation in flight is named, because its outcome is unknown."""
    crashed = "it crashed its worker three times"
    if reason == "quarantined" and effect is not None:
        title = f"{effect.call} ({effect.title})" if effect.title else effect.call
        return f"{crashed} while {title} was in flight; resolve it as applied, not_applied or skip"
    return {
        jobs.UNROUTABLE: "no running worker has its program",
        "approval": f"waiting for you: {error}",
        "reconciliation": f"{error}; resolve it as applied, not_applied or skip",
        "transient": f"no retries left: {error}; resume it when the service is available again",
        "internal": f"Rota failed internally: {error}; resume it to retry",
        "quarantined": f"{crashed}; deploy a version that does not, then resume",
    }.get(reason or "", f"it failed: {error}; deploy a version that does not, then resume")


def decision(tx: Tx, org_id: str, key: str) -> Record:
    """Return what an operator can do about a workflow now: whether it can be resumed, and the resolutions that fit the
    run that needs a decision."""
    row = workflows.get(tx, org_id, key)
    stuck, held = operators.stuck_job(tx, row), row.held_runs()
    reason = None if stuck is None else stuck.parked_reason
    run_id = stuck.last_run_id if stuck is not None else next(iter(held.values()), None)
    if stuck is None and run_id is not None:
        reason = tx.execute(select(runs.reason).where(runs.id == run_id)).scalar()
    run = None if reason == PAUSED else find_run(tx, run_id)
    effect = None if run is None else open_effect(tx, run.id)
    failed = (stuck is not None or bool(held)) and reason != RECONCILIATION and effect is None
    shown = None if effect is None else {"call": effect.call, "params": effect.params, "title": effect.title}
    return {
        "resumable": row.paused_at is not None or failed,
        "run_id": None if run is None else run.id,
        "effect": shown,
        "resolutions": [] if run is None else valid_resolutions(run, effect, reason),
    }


def valid_resolutions(run: RunRow, effect: OpenEffect | None, reason: str | None) -> list[Resolution]:
    """Return the resolutions that fit a run: those for a mutation with an unknown outcome, or those for a failure."""
    if effect is not None:
        return [Resolution.APPLIED, Resolution.NOT_APPLIED, Resolution.SKIP, Resolution.TRY_AGAIN]
    first = [Resolution.APPROVE if reason == "approval" else Resolution.TRY_AGAIN, Resolution.REJECT]
    early = run.phase in (Phase.EXECUTING, Phase.PREPARING)
    return first if early or run.mutation_outcome == Outcome.APPLIED else [*first, Resolution.SKIP]


def count_pending(tx: Tx, org_id: str, key: str) -> dict[str, int]:
    """Return the number of pending events by topic."""
    pending = and_(e.workflow_id == workflows.get(tx, org_id, key).id, events.is_pending())
    rows = tx.execute(select(e.topic, func.count().label("n")).where(pending).group_by(e.topic))
    return {row.topic: int(row.n) for row in rows}


def timing(tx: Tx, row: WorkflowRow) -> tuple[str | None, datetime | None]:
    """Return when the producers run, in words; and when a handler runs by itself next."""
    joined = tables.handlers.outerjoin(tables.schedules, tables.schedules.c.id == h.schedule_id)
    joined = joined.outerjoin(tables.clocks, clocks.schedule_id == h.schedule_id)
    stmt = select(tables.schedules.c.timing, clocks.next_run_at, h.wake_at).select_from(joined)
    handlers = list(tx.execute(stmt.where(h.workflow_id == row.id)))
    words = dict.fromkeys(
        presentation.describe(stored.load(each.timing)) for each in handlers if each.timing is not None
    )
    times = [at for handler in handlers for at in (handler.next_run_at, handler.wake_at) if at is not None]
    return f"checks {listing(words)}" if words else None, min(times, default=None)


def recent_runs(tx: Tx, row: WorkflowRow) -> list[Record]:
    """Return the latest runs in words, newest first, without those that had nothing to do."""
    stmt = select(tables.workflow_runs, runs.status, runs.reason, runs.outcome, runs.finished_at, runs.error)
    stmt = stmt.join(tables.runs, runs.id == x.id).where(x.workflow_id == row.id)
    latest = tx.execute(stmt.order_by(x.id.desc()).limit(3 * RECENT_RUNS))
    shown = [{"at": run.finished_at, "run_id": run.id, "text": run_in_words(run)} for run in latest]
    return [run for run in shown if run["text"]][:RECENT_RUNS]


def run_in_words(run: ResultRow) -> str | None:
    """Return what a run did, or None if it had nothing to do."""
    outcome = run.outcome or {}
    if run.status != "success":
        return f"{run.status}: {redacted((run.error or {}).get('message', run.reason))}"
    published = [count_in_topic(count, topic) for topic, count in (outcome.get("published") or {}).items()]
    if run.handler_type == HandlerKind.PRODUCER:
        return f"published {listing(published)}" if published else None
    if not outcome.get("taken"):
        return None
    parts = [outcome.get("title") or f"handled {plural(outcome['taken'], 'event')}"]
    parts += ["effect skipped"] if outcome.get("mutation") == "skipped" else []
    return " → ".join([*parts, *(["published " + listing(published)] if published else [])])


def count_in_topic(count: int, topic: str) -> str:
    """`1 item`, `2 items`, whether the topic is called item or items."""
    return plural(count, topic if topic.endswith("ss") else topic.removesuffix("s"))


def count_stale_inputs(tx: Tx, row: WorkflowRow, now: datetime) -> int:
    """Return the number of inputs that are not done and older than STALE_AFTER."""
    stale = and_(e.id.in_(open_inputs(row.id)), e.created_at <= now - STALE_AFTER)
    return int(tx.execute(select(func.count()).select_from(tables.events).where(stale)).scalar_one())


def open_inputs(workflow_id: str) -> Query:
    """Select the ids of inputs that are not done: they, or events derived from them, are pending or reserved."""
    own = select(e.id, e.source).where(e.workflow_id == workflow_id)
    reserved = own.where(events.is_in_status("reserved", "skipped"), e.status == EventStatus.RESERVED)
    unfinished = union_all(own.where(events.is_pending()), reserved).cte("unfinished")
    derived = select(causes.input_id).join(unfinished, unfinished.c.id == causes.event_id)
    return select(select(unfinished.c.id).where(unfinished.c.source.is_not(None)).union(derived).subquery().c.id)


# lists


def list_events(
    tx: Tx,
    org_id: str,
    key: str,
    *,
    topic: str | None = None,
    status: str | None = None,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
) -> Page:
    """Return events of a workflow, newest first."""
    row = workflows.get(tx, org_id, key)
    stmt = matching(select(tables.events).where(e.workflow_id == row.id), (e.topic, topic), (e.status, status))
    items, next_cursor = page_by(tx, stmt, e.id, limit, cursor, descending=True)
    links = select(tables.causes).where(causes.event_id.in_([event["id"] for event in items]))
    inputs: dict[str, list[str]] = {}
    for link in tx.execute(links):
        inputs.setdefault(link.event_id, []).append(link.input_id)
    for event in items:
        event["caused_by"] = sorted(inputs.get(event["id"], [event["id"]] if event["source"] else []))
        del event["workflow_id"]
    return items, next_cursor


def list_inputs(
    tx: Tx,
    org_id: str,
    key: str,
    now: datetime,
    *,
    status: str | None = None,
    limit: int = PAGE_ROWS,
    cursor: str | None = None,
) -> Page:
    """Return inputs of a workflow, newest first: `pending` until all events derived from it are done."""
    row = workflows.get(tx, org_id, key)
    pending = e.id.in_(open_inputs(row.id))
    stmt = select(e.id, e.topic, e.source, e.message_id, e.title, e.status, e.created_at, pending.label("pending"))
    stmt = stmt.where(e.workflow_id == row.id, e.source.is_not(None))
    if status is not None:
        skipped = and_(e.status == EventStatus.SKIPPED, ~pending)
        done = and_(~pending, e.status != EventStatus.SKIPPED)
        stmt = stmt.where({"pending": pending, "skipped": skipped, "done": done}[status])
    items, next_cursor = page_by(tx, stmt, e.id, limit, cursor, descending=True)
    for item in items:
        is_pending = bool(item.pop("pending"))
        item["status"] = "pending" if is_pending else "skipped" if item["status"] == EventStatus.SKIPPED else "done"
        item["stale"] = is_pending and item["created_at"] <= now - STALE_AFTER
    return items, next_cursor


def list_outputs(tx: Tx, org_id: str, key: str, *, limit: int = PAGE_ROWS, cursor: str | None = None) -> Page:
    """Return mutations of a workflow, newest first, without those that certainly failed."""
    row = workflows.get(tx, org_id, key)
    columns = (
        f.id,
        f.run_id,
        f.call,
        f.params,
        f.title,
        f.status,
        f.result,
        f.inputs,
        f.resolved_by,
        f.created_at,
        f.updated_at,
    )
    stmt = select(*columns).where(f.workflow_id == row.id, f.status != EffectStatus.FAILED.value)
    items, next_cursor = page_by(tx, stmt, f.id, limit, cursor, descending=True)
    return [{**item, "warning": WARNINGS.get(item["status"])} for item in items], next_cursor


def list_runs(tx: Tx, org_id: str, key: str, *, limit: int = PAGE_ROWS, cursor: str | None = None) -> Page:
    """Return attempts with their phases, newest first."""
    row = workflows.get(tx, org_id, key)
    stmt = select(x.id).where(x.workflow_id == row.id)
    items, next_cursor = page_by(tx, stmt, x.id, limit, cursor, descending=True)
    return [run_reports.run(tx, org_id, item["id"]) for item in items], next_cursor


def run_details(tx: Tx, run_ids: Collection[str]) -> dict[str, Record]:
    """Return phases and results of runs by run id."""
    columns = (
        x.id, x.workflow_id, x.handler_id, x.handler_type, x.phase, x.mutation_outcome, x.prepare_result,
        x.mutation_result, x.updated_at, x.retry_of,
    )  # fmt: skip
    records = [dict_of(row) for row in tx.execute(select(*columns).where(x.id.in_(run_ids)))]
    return {record.pop("id"): redacted(record) for record in records}


def list_handlers(tx: Tx, org_id: str, key: str) -> list[Record]:
    """Return the handlers with their flags and states, by name."""
    row = workflows.get(tx, org_id, key)
    declared = {declaration["name"]: declaration for declaration in row.declaration["handlers"]}
    columns = (h.name, h.type, h.state, h.dirty, h.wake_at, h.schedule_id, h.held_run_id, clocks.next_run_at)
    joined = tables.handlers.outerjoin(tables.clocks, clocks.schedule_id == h.schedule_id)
    stmt = select(*columns).select_from(joined).where(h.workflow_id == row.id).order_by(h.name)
    fields = ("subscribe", "publishes", "schedule")
    return [
        dict_of(handler) | {field: declared.get(handler.name, {}).get(field) for field in fields}
        for handler in tx.execute(stmt)
    ]
