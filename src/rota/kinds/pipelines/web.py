"""Pages of pipelines: their dependencies by layer; one pipeline with its SQL, triggers and runs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from inspect import cleandoc

from fastapi import APIRouter, Request, Response
from markupsafe import Markup

from rota.core.states import shown_status
from rota.core.timing.describe import short_span
from rota.db.paging import Record
from rota.frame.http.reports import reports_of
from rota.frame.web.actions import call_api
from rota.frame.web.drawings import MOST, Box, network
from rota.frame.web.pages import NavigationItem, engine_of, history, next_page_url, page, query_values, span
from rota.frame.web.sessions import Viewer, read_form
from rota.kinds.pipelines import reports, store
from rota.kinds.pipelines.manager import PipelineManager
from rota.reports import schedules as schedule_reports

router = APIRouter()

NAVIGATION = [NavigationItem("/pipelines", "Pipelines", "p", "funnel", 1)]
PIPELINE_PATH = "/pipelines/{namespace}/{layer}/{name}"
LAYERS = ("bronze", "silver", "gold")
PAGE_ROWS = 25
LAST_RUNS = 10


@router.get("/pipelines")
async def list_all(request: Request, caller: Viewer) -> Response:
    """The list, filtered by namespace, layer and type, with a drawing of the dependencies in the namespace."""
    db, query = reports_of(request, caller), query_values(request, "namespace", "layer", "type", "cursor")
    items, cursor = await db.read(store.list_pipelines, caller.org_id, limit=PAGE_ROWS, **query)
    paths = [item["path"] for item in items]

    graph = await db.read(store.graph, caller.org_id)
    nodes = [node for node in graph["nodes"] if query["namespace"] in (None, node["namespace"])]
    drawn = nodes[:MOST]
    last = await db.read(reports.last_runs, caller.org_id, [*{*paths, *(node["path"] for node in drawn)}])
    return page(
        request, "pipelines.html", items=items, next_page_url=next_page_url(request, cursor), query=query,
        last=last, planned=await planned(request, caller, paths), layers=LAYERS,
        drawn=drawing(drawn, graph["edges"], last, engine_of(request).clock.now()), drawn_count=len(drawn),
        hidden=len(nodes) - MOST, namespaces=sorted({node["namespace"] for node in graph["nodes"]}),
    )  # fmt: skip


@router.get(PIPELINE_PATH)
async def read(request: Request, caller: Viewer, namespace: str, layer: str, name: str) -> Response:
    return await show(request, caller, f"{namespace}/{layer}/{name}")


@router.post(f"{PIPELINE_PATH}/$preview")
@router.post(f"{PIPELINE_PATH}/$validate")
async def try_out(request: Request, caller: Viewer, namespace: str, layer: str, name: str) -> Response:
    """Preview or validate a draft, and show the result on the page. Writes nothing."""
    path, form = f"{namespace}/{layer}/{name}", await read_form(request)
    action = request.url.path.rpartition("$")[2]
    draft = form.get("sql", "").replace("\r\n", "\n")
    answer = await call_api(request, "POST", f"/pipelines/{path}/${action}", {"sql": draft} if draft.strip() else {})
    if answer.refusal is not None and answer.status != 422:
        return page(request, "refused.html", answer.status, message=answer.refusal, wrong=[], then=f"/pipelines/{path}")
    tried = {"action": action, "refusal": answer.refusal, "result": answer.data, "sql": draft}
    return await show(request, caller, path, tried, 200 if answer.refusal is None else 422)


async def show(request: Request, caller: Viewer, path: str, tried: Record | None = None, status: int = 200) -> Response:
    db, org_id = reports_of(request, caller), caller.org_id
    pipeline = await PipelineManager(engine_of(request), org_id).find(path)
    graph = await db.read(store.graph, org_id)
    near = around(path, graph["edges"], MOST)
    nodes = [node for node in graph["nodes"] if node["path"] in near]
    last = await db.read(reports.last_runs, org_id, [node["path"] for node in nodes])
    return page(
        request, "pipeline.html", status, pipeline=pipeline, tried=tried, sql=shown_sql(pipeline),
        versions=await db.read(store.list_versions, org_id, path),
        triggers=await db.read(store.list_triggers, org_id, path),
        planned=(await planned(request, caller, [path])).get(path, []),
        runs=await db.read(store.last_runs, org_id, path, LAST_RUNS),
        changes=await history(request, caller, "pipelines", pipeline["id"]),
        drawn=drawing(nodes, graph["edges"], last, engine_of(request).clock.now(), path) if len(nodes) > 1 else None,
    )  # fmt: skip


async def planned(request: Request, caller: Viewer, paths: list[str]) -> dict[str, list[Record]]:
    """Return the schedules of each of these pipelines."""
    schedules, _ = await reports_of(request, caller).read(
        schedule_reports.list_schedules, caller.org_id, kind="pipeline", targets=paths, sort="id", limit=100
    )
    return {path: [schedule for schedule in schedules if schedule["target"] == path] for path in paths}


def shown_sql(pipeline: Record) -> str:
    """Return its SQL; that of a program without the indentation of its source."""
    sql = pipeline["sql"] or ""
    return cleandoc(sql) if pipeline["source"] == "code" else sql


def drawing(
    nodes: Sequence[Record], edges: Sequence[Record], last: Mapping[str, Record], now: datetime, current: str = ""
) -> Markup:
    """Draw pipelines by layer with their last runs; a solid arrow is a trigger, a dashed one a table that is read."""
    columns = [
        (layer.capitalize(), [node_box(node, last.get(node["path"]), now, current) for node in nodes
                              if node["layer"] == layer])
        for layer in LAYERS
    ]  # fmt: skip
    fires = {(edge["from"], edge["to"]) for edge in edges if edge["kind"] != "reads"}
    reads = {(edge["from"], edge["to"]) for edge in edges} - fires
    arrows = [(*edge, "fires") for edge in sorted(fires)] + [(*edge, "reads") for edge in sorted(reads)]
    return network([column for column in columns if column[1]], arrows, f"{len(nodes)} pipelines by layer")


def node_box(node: Record, run: Record | None, now: datetime, current: str) -> Box:
    """Return the box of a pipeline: its last run, how long it took, and how many rows it wrote."""
    status = shown_status(run) if run else "none"
    kind = f"{node['layer']} {status}{' current' if node['path'] == current else ''}"
    return Box(node["path"], node["name"], run_text(run, now), kind, f"/pipelines/{node['path']}", status)


def run_text(run: Record | None, now: datetime) -> str:
    if run is None:
        return "has not run"
    parts = [shown_status(run)]
    if run["started_at"]:
        parts.append(span(((run["finished_at"] or now) - run["started_at"]).total_seconds()))
    if run["outcome"] and "rows_written" in run["outcome"]:
        parts.append(f"{run['outcome']['rows_written']:,} rows")
    elif run["finished_at"]:
        parts.append(f"{short_span(now - run['finished_at'])} ago")
    return " · ".join(parts)


def around(path: str, edges: Sequence[Record], limit: int) -> set[str]:
    """Return the paths of the pipelines before and after one, near ones first, at most `limit`."""
    related = {path}
    for start, end in (("from", "to"), ("to", "from")):
        following: dict[str, list[str]] = {}
        for edge in edges:
            following.setdefault(edge[start], []).append(edge[end])
        open_ends, seen = [path], {path}
        while open_ends:
            nearest = sorted({other for key in open_ends for other in following.get(key, ())} - seen)
            open_ends = nearest[: max(0, limit - len(related))]
            seen.update(open_ends)
            related.update(open_ends)
    return related
