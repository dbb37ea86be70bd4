"""Pipelines: how they hang together by layer, what each runs, and what makes it run."""

from collections.abc import Mapping
from inspect import cleandoc
from typing import Any

from fastapi import APIRouter, Request, Response
from markupsafe import Markup

from rota.db.dialect import Tx
from rota.engine import reports as engine_reports
from rota.frame.web.actions import ask
from rota.frame.web.drawings import MOST, Box, network
from rota.frame.web.pages import Place, asked, engine_of, history, older, page
from rota.frame.web.sessions import Viewer, read_form
from rota.kinds.pipelines import store
from rota.kinds.pipelines.manager import PipelineManager

router = APIRouter()

PLACES = [Place("/pipelines", "Pipelines", "p", "funnel", 1)]
ONE = "/pipelines/{namespace}/{layer}/{name}"
LAYERS = ("bronze", "silver", "gold")
ROWS = 25
RUNS = 10


@router.get("/pipelines")
async def list_all(request: Request, caller: Viewer) -> Response:
    """Found by namespace, layer and type; the drawing shows what hangs on what in the namespace."""
    db, given = engine_of(request).db, asked(request, "namespace", "layer", "type", "cursor")
    items, cursor = await db.read(store.list_pipelines, caller.org_id, limit=ROWS, **given)
    paths = [one["path"] for one in items]

    def last_of(tx: Tx) -> dict[str, Any]:
        return {path: next(iter(store.last_runs(tx, caller.org_id, path, 1)), None) for path in paths}

    graph = await db.read(store.graph, caller.org_id)
    nodes = [one for one in graph["nodes"] if given["namespace"] in (None, one["namespace"])]
    return page(
        request, "pipelines.html", items=items, older=older(request, cursor), given=given, last=await db.read(last_of),
        planned=await planned(request, caller, paths), layers=LAYERS, drawn=drawing(nodes[:MOST], graph["edges"]),
        hidden=len(nodes) - MOST, namespaces=sorted({one["namespace"] for one in graph["nodes"]}),
    )  # fmt: skip


@router.get(ONE)
async def read(request: Request, caller: Viewer, namespace: str, layer: str, name: str) -> Response:
    return await show(request, caller, f"{namespace}/{layer}/{name}")


@router.post(f"{ONE}/$preview")
@router.post(f"{ONE}/$validate")
async def try_out(request: Request, caller: Viewer, namespace: str, layer: str, name: str) -> Response:
    """Show what a draft would make, or whether it could run: nothing is written, so the page stays."""
    path, form = f"{namespace}/{layer}/{name}", await read_form(request)
    how = request.url.path.rpartition("$")[2]
    draft = form.get("sql", "").replace("\r\n", "\n")
    answer = await ask(request, "POST", f"/pipelines/{path}/${how}", {"sql": draft} if draft.strip() else {})
    if answer.refusal is not None and answer.status != 422:
        return page(request, "refused.html", answer.status, message=answer.refusal, wrong=[], then=f"/pipelines/{path}")
    tried = {"how": how, "refusal": answer.refusal, "found": answer.data, "sql": draft}
    return await show(request, caller, path, tried, 200 if answer.refusal is None else 422)


async def show(
    request: Request, caller: Viewer, path: str, tried: Mapping[str, Any] | None = None, status: int = 200
) -> Response:
    db, org_id = engine_of(request).db, caller.org_id
    one = await PipelineManager(engine_of(request), org_id).find(path)
    graph = await db.read(store.graph, org_id)
    near = {path, *(other for edge in graph["edges"] if path in (edge["from"], edge["to"])
                    for other in (edge["from"], edge["to"]))}  # fmt: skip
    nodes = [node for node in graph["nodes"] if node["path"] in near]
    return page(
        request, "pipeline.html", status, one=one, tried=tried, sql=written(one),
        versions=await db.read(store.list_versions, org_id, path),
        triggers=await db.read(store.list_triggers, org_id, path),
        planned=(await planned(request, caller, [path])).get(path, []),
        runs=await db.read(store.last_runs, org_id, path, RUNS),
        changes=await history(request, caller, "pipelines", one["id"]),
        drawn=drawing(nodes[:MOST], graph["edges"]) if len(nodes) > 1 else None,
    )  # fmt: skip


async def planned(request: Request, caller: Viewer, paths: list[str]) -> dict[str, list[Any]]:
    """The schedules of each of these."""
    found, _ = await engine_of(request).db.read(
        engine_reports.list_schedules, caller.org_id, kind="pipeline", targets=paths, sort="id", limit=100
    )
    return {path: [one for one in found if one["target"] == path] for path in paths}


def written(one: Mapping[str, Any]) -> str:
    """Its SQL; what a program declares without the indentation that it has there."""
    text = one["sql"] or ""
    return cleandoc(text) if one["source"] == "code" else text


def drawing(nodes: list[Any], edges: list[Any]) -> Markup:
    """Pipelines by layer; a dashed arrow is a table that is read, a whole one makes the next run."""
    columns = [
        (layer.capitalize(), [Box(one["path"], one["name"], one["namespace"], layer, f"/pipelines/{one['path']}")
                              for one in nodes if one["layer"] == layer])
        for layer in LAYERS
    ]  # fmt: skip
    fires = {(one["from"], one["to"]) for one in edges if one["kind"] != "reads"}
    reads = {(one["from"], one["to"]) for one in edges} - fires
    arrows = [(*one, "fires") for one in sorted(fires)] + [(*one, "reads") for one in sorted(reads)]
    return network(columns, arrows, f"{len(nodes)} pipelines by layer")
