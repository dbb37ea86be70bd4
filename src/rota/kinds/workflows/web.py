"""Pages of workflows: status and issue, inputs and outputs, versions, and the commands of operators."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from fastapi import APIRouter, Request, Response
from markupsafe import Markup

from rota.core.timing.describe import short_span
from rota.db.paging import Record
from rota.frame.http.reports import reports_of
from rota.frame.web.drawings import Arrow, Box, levels, network
from rota.frame.web.pages import NavigationItem, engine_of, next_page_url, page, plural, query_values, span
from rota.frame.web.sessions import Viewer
from rota.kinds.workflows import reports
from rota.kinds.workflows.manager import WorkflowManager
from rota.kinds.workflows.rules import HandlerKind, Resolution
from rota.kinds.workflows.scripts import store as scripts_store
from rota.kinds.workflows.store import activity
from rota.kinds.workflows.store.workflows import SCRIPT

router = APIRouter()

NAVIGATION = [NavigationItem("/workflows", "Workflows", "f", "flow", 1)]
WORKFLOWS_PER_PAGE = 25
ITEMS_SHOWN = 20  # of inputs, outputs, events and runs each, on the page of a workflow
VERSIONS_SHOWN = 10  # of a script, with their diffs
STATUS_TEXTS = {"running": "Running", "idle": "Idle", "needs_attention": "Needs attention", "stopped": "Stopped"}
RESOLUTION_TEXTS = {
    Resolution.APPROVE: "Retry the run: what it lacked is available now.",
    Resolution.REJECT: "Give up this run: it is failed, its events are skipped, and the workflow continues.",
    Resolution.APPLIED: "It happened: the run continues after it and does not repeat it.",
    Resolution.NOT_APPLIED: "It did not happen: the run starts again and does it.",
    Resolution.SKIP: "Continue without it: the mutation and its events are skipped.",
    Resolution.TRY_AGAIN: "Retry the failed run with all its tries.",
}
RECONCILE_AGAIN = "Ask the service again whether it happened; it is not repeated."


@router.get("/workflows")
async def list_all(request: Request, caller: Viewer) -> Response:
    engine, cursor = engine_of(request), query_values(request, "cursor")["cursor"]
    items, next_cursor = await reports_of(request, caller).read(
        reports.list_workflows, caller.org_id, engine.clock.now(), limit=WORKFLOWS_PER_PAGE, cursor=cursor
    )
    return page(
        request,
        "workflows.html",
        items=items,
        next_page_url=next_page_url(request, next_cursor),
        status_texts=STATUS_TEXTS,
    )


@router.get("/workflows/{key:path}")  # a name may have slashes
async def read(request: Request, caller: Viewer, key: str) -> Response:
    engine, db, org_id = engine_of(request), reports_of(request, caller), caller.org_id
    now = engine.clock.now()
    workflow = await db.read(reports.workflow, org_id, key, now)
    key = workflow["id"]
    handlers = await db.read(reports.list_handlers, org_id, key)
    pending = await db.read(reports.count_pending, org_id, key)
    inputs, _ = await db.read(reports.list_inputs, org_id, key, now, status="pending", limit=ITEMS_SHOWN)
    outputs, _ = await db.read(reports.list_outputs, org_id, key, limit=ITEMS_SHOWN)
    events, _ = await db.read(reports.list_events, org_id, key, limit=ITEMS_SHOWN)
    runs, _ = await db.read(reports.list_runs, org_id, key, limit=ITEMS_SHOWN)
    active = await db.read(activity.of_handlers, key)
    oldest = await db.read(activity.oldest_pending, key, list(pending))
    decision = await db.read(reports.decision, org_id, key)
    versions = []
    if workflow["source"] == SCRIPT:
        manager = WorkflowManager(engine, org_id)
        listed, _ = await db.read(scripts_store.list_versions, org_id, key, limit=VERSIONS_SHOWN)
        versions = [await manager.version(key, version["version"]) for version in listed]
    resolution_texts = RESOLUTION_TEXTS | ({Resolution.TRY_AGAIN: RECONCILE_AGAIN} if decision["effect"] else {})
    return page(
        request,
        "workflow.html",
        workflow=workflow,
        status_texts=STATUS_TEXTS,
        handlers=handlers,
        inputs=inputs,
        outputs=outputs,
        events=events,
        runs=runs,
        decision=decision,
        resolution_texts=resolution_texts,
        versions=versions,
        drawing=draw(
            workflow["topics"],
            [{**handler, "last": active.get(handler["name"])} for handler in handlers],
            {topic: (pending.get(topic, 0), oldest.get(topic)) for topic in workflow["topics"]},
            now,
        ),
    )


def draw(
    topics: Sequence[str],
    handlers: Sequence[Record],
    pending: Mapping[str, tuple[int, datetime | None]],
    now: datetime,
) -> Markup:
    """Draw producers, topics and consumers, from left to right as events flow. `pending` has the number of pending
    events and the time of the oldest, by topic."""
    boxes = {f"t:{topic}": topic_box(topic, *pending[topic], now) for topic in topics}
    arrows: list[Arrow] = []
    for handler in handlers:
        key = f"h:{handler['name']}"
        boxes[key] = handler_box(key, handler, now)
        arrows += [(f"t:{topic}", key, "takes") for topic in handler["subscribe"] or ()]
        arrows += [(key, f"t:{topic}", "gives") for topic in handler["publishes"] or ()]
    published = {end for start, end, _ in arrows if start.startswith("h:")}
    unpublished = [key for key in boxes if key.startswith("t:") and key not in published]
    producers = [f"h:{handler['name']}" for handler in handlers if handler["type"] == HandlerKind.PRODUCER]
    from_outside = [("", key, "") for key in unpublished]  # a virtual start, so that these are in the topics' column
    level = dict(levels([*producers, ""], [*arrows, *from_outside]))
    for key in boxes:
        level.setdefault(key, 1 if key.startswith("t:") else 2)
    columns = []
    for number in sorted({level[key] for key in boxes}):
        heading = "Topics" if number % 2 else "Consumers" if number else "Producers"
        columns.append((heading, [box for key, box in boxes.items() if level[key] == number]))
    return network(columns, arrows, f"{len(handlers)} producers and consumers, and {len(topics)} topics between them")


def topic_box(topic: str, count: int, oldest: datetime | None, now: datetime) -> Box:
    """Return the box of a topic, with its pending events and the age of the oldest."""
    waits = f", oldest {short_span(now - oldest)}" if oldest else ""
    words = f"{count:,} pending{waits}" if count else "no pending events"
    return Box(f"t:{topic}", topic, words, "topic", "", "pending" if count else "none")


def handler_box(key: str, handler: Record, now: datetime) -> Box:
    """Return the box of a producer or consumer: its last run and its next one, linked to the last run."""
    last, parts = handler["last"], list[str]()
    status = "none" if last is None else last["status"]
    if last is not None:
        took = ((last["finished_at"] or now) - last["started_at"]).total_seconds() if last["started_at"] else None
        parts += [status, *([span(took)] if took is not None else [])]
        parts += [f"{last['failures']} of {last['runs']} failed"] if last["failures"] else [plural(last["runs"], "run")]
    if handler["held_run_id"]:
        parts[:1], status = ["on hold"], "failed"
    elif last is None:
        at = handler["next_run_at"] or handler["wake_at"]
        parts = ["next " + (f"in {short_span(at - now)}" if at > now else "now") if at else "has not run"]
    kind = f"{handler['type']} {status}"
    return Box(key, handler["name"], " · ".join(parts), kind, f"/runs/{last['run_id']}" if last else "", status)
