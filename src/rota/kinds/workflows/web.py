"""Workflows: how each stands, in words; what came in and went out; and what a person can do about it."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from markupsafe import Markup

from rota.frame.web.drawings import Arrow, Box, levels, network
from rota.frame.web.pages import Look, Place, asked, engine_of, older, page, preferences
from rota.frame.web.sessions import Viewer
from rota.kinds.workflows import reports as views
from rota.kinds.workflows.manager import WorkflowManager
from rota.kinds.workflows.rules import HandlerKind, Resolution
from rota.kinds.workflows.scripts import store as scripts_store
from rota.kinds.workflows.store.workflows import SCRIPT

router = APIRouter()

PLACES = [Place("/workflows", "Workflows", "f", "flow", 1)]
ROWS = 25
SHOWN = 20  # inputs, outputs, events and runs on the page of one
VERSIONS = 10  # of a script, with what each changed
STANDING = {"running": "Running", "idle": "Idle", "needs_attention": "Needs attention", "stopped": "Stopped"}
MEANS = {
    Resolution.APPROVE: "Go on: what it lacked is there now, and the run is tried again.",
    Resolution.REJECT: "Give this run up: it has failed, its events are skipped, and the workflow goes on.",
    Resolution.APPLIED: "It happened: the run goes on from there, and it is not done again.",
    Resolution.NOT_APPLIED: "It did not happen: the run starts anew and does it.",
    Resolution.SKIP: "Go on without it: the effect is left out and its events are skipped.",
    Resolution.TRY_AGAIN: "Try again what failed, as if for the first time.",
}
ASK_AGAIN = "Ask the service once more whether it happened; it is not done twice."


@router.get("/workflows")
async def list_all(request: Request, caller: Viewer) -> Response:
    engine, given = engine_of(request), asked(request, "cursor")
    found = engine.db.read(views.list_workflows, caller.org_id, engine.clock.now(), limit=ROWS, cursor=given["cursor"])
    items, cursor = await found
    return page(request, "workflows.html", items=items, older=older(request, cursor), standing=STANDING)


@router.get("/workflows/{key:path}")  # a name may have slashes
async def read(request: Request, caller: Viewer, key: str) -> Response:
    engine, db, org_id = engine_of(request), engine_of(request).db, caller.org_id
    now = engine.clock.now()
    one = await db.read(views.workflow, org_id, key, now)
    key = one["id"]
    handlers, waiting = await db.read(views.inside, org_id, key), await db.read(views.waiting, org_id, key)
    inputs, _ = await db.read(views.list_inputs, org_id, key, now, status="pending", limit=SHOWN)
    outputs, _ = await db.read(views.list_outputs, org_id, key, limit=SHOWN)
    events, _ = await db.read(views.list_events, org_id, key, limit=SHOWN)
    runs, _ = await db.read(views.list_runs, org_id, key, limit=SHOWN)
    decision = await db.read(views.decision, org_id, key)
    versions = []
    if one["source"] == SCRIPT:
        manager = WorkflowManager(engine, org_id)
        found, _ = await db.read(scripts_store.list_versions, org_id, key, limit=VERSIONS)
        versions = [await manager.version(key, each["version"]) for each in found]
    means = MEANS | ({Resolution.TRY_AGAIN: ASK_AGAIN} if decision["effect"] else {})
    return page(
        request, "workflow.html", one=one, standing=STANDING, handlers=handlers, inputs=inputs, outputs=outputs,
        events=events, runs=runs, decision=decision, means=means, versions=versions,
        drawn=drawing(one["topics"], handlers, waiting, Look(preferences(request), now)),
    )  # fmt: skip


def drawing(
    topics: Sequence[str], handlers: Sequence[Mapping[str, Any]], waiting: Mapping[str, int], look: Look
) -> Markup:
    """Producers, topics and consumers, from left to right as events go."""
    boxes = {f"t:{one}": Box(f"t:{one}", one, in_topic(waiting.get(one, 0)), "topic") for one in topics}
    arrows: list[Arrow] = []
    for one in handlers:
        name, aside = f"h:{one['name']}", "aside" if one["held_run_id"] else ""
        boxes[name] = Box(name, one["name"], of_handler(one, look), f"{one['type']} {aside}".strip())
        arrows += [(f"t:{topic}", name, "takes") for topic in one["subscribe"] or ()]
        arrows += [(name, f"t:{topic}", "gives") for topic in one["publishes"] or ()]
    given = {end for start, end, _ in arrows if start.startswith("h:")}
    outside = [key for key in boxes if key.startswith("t:") and key not in given]
    first = [f"h:{one['name']}" for one in handlers if one["type"] == HandlerKind.PRODUCER]
    arrows_and_outside = [*arrows, *(("", key, "") for key in outside)]  # what comes from outside stands with topics
    level = dict(levels([*first, ""], arrows_and_outside))
    for key in boxes:
        level.setdefault(key, 1 if key.startswith("t:") else 2)
    columns = []
    for number in sorted({level[key] for key in boxes}):
        heading = "Topics" if number % 2 else "Consumers" if number else "Producers"
        columns.append((heading, [one for key, one in boxes.items() if level[key] == number]))
    return network(columns, arrows, f"{len(handlers)} producers and consumers, and {len(topics)} topics between them")


def in_topic(count: int) -> str:
    return f"{count:,} waiting" if count else "nothing waits"


def of_handler(one: Mapping[str, Any], look: Look) -> str:
    if one["held_run_id"]:
        return "put aside"
    at = one["next_run_at"] or one["wake_at"]
    return f"next {look.away(at)}" if at and at > look.now else "next now" if at else "woken by events"
