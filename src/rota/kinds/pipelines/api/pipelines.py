"""Pipelines: tables made out of tables, by SQL or by functions, in layers. They are scheduled as any work is."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request, Response

from rota.core import parse
from rota.frame.http.auth import Caller, Operator, Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_page, answer_part, engine_of, read_body
from rota.kinds.pipelines import store
from rota.kinds.pipelines.manager import PipelineManager

router = APIRouter(prefix="/pipelines", tags=["pipelines"])

ONE = "/{namespace}/{layer}/{name}"
Slug = Annotated[str, Path(max_length=200)]


@router.post("", status_code=201)
async def create(request: Request, caller: Operator) -> Response:
    """`{namespace, layer, name, type, sql | function, description?, max_runs?, max_age_days?}`. Saved is live. Of its
    runs only the newest `max_runs` are kept, and none older than `max_age_days`."""
    made = await manager(request, caller).create(await read_body(request))
    return answer(made, 201, {"location": f"/api/v1/pipelines/{made['path']}"})


@router.get("")
async def list_all(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    namespace: str | None = None,
    layer: str | None = None,
    type: Literal["sql", "python"] | None = None,
) -> Response:
    """By their paths."""
    given: dict[str, Any] = {"limit": limit, "cursor": cursor, "namespace": namespace, "layer": layer, "type": type}
    return answer_page(await engine_of(request).db.read(store.list_pipelines, caller.org_id, **given))


@router.get("/$graph")
async def graph(request: Request, caller: Viewer) -> Response:
    """What hangs on what: edges are triggers (their type) and tables that are read (`reads`)."""
    return answer(await engine_of(request).db.read(store.graph, caller.org_id))


@router.get("/$namespaces")
async def namespaces(request: Request, caller: Viewer, limit: Limit = 200, cursor: Cursor = None) -> Response:
    """A namespace is made by its first pipeline."""
    items = await engine_of(request).db.read(store.namespaces, caller.org_id)
    return answer_part(items, limit, cursor)


@router.get(ONE)
async def read(request: Request, caller: Viewer, namespace: Slug, layer: Slug, name: Slug) -> Response:
    return answer(await manager(request, caller).find(f"{namespace}/{layer}/{name}"))


@router.put(ONE)
async def edit(request: Request, caller: Operator, namespace: Slug, layer: Slug, name: Slug) -> Response:
    """Write it anew; where it runs something else, that is its next version."""
    body = await read_body(request, ["type", "sql", "function", "description", "max_runs", "max_age_days"])
    return answer(await manager(request, caller).edit(f"{namespace}/{layer}/{name}", body))


@router.delete(ONE, status_code=204)
async def delete(request: Request, caller: Operator, namespace: Slug, layer: Slug, name: Slug) -> Response:
    """Take it away with its schedules and triggers; its runs and its table stay."""
    await manager(request, caller).delete(f"{namespace}/{layer}/{name}")
    return Response(status_code=204)


@router.get(f"{ONE}/versions")
async def versions(
    request: Request,
    caller: Viewer,
    namespace: Slug,
    layer: Slug,
    name: Slug,
    limit: Limit = 200,
    cursor: Cursor = None,
) -> Response:
    """What it ran, newest first."""
    found = await engine_of(request).db.read(store.list_versions, caller.org_id, f"{namespace}/{layer}/{name}")
    return answer_part(found, limit, cursor)


@router.post(f"{ONE}/$run", status_code=202)
async def run(request: Request, caller: Operator, namespace: Slug, layer: Slug, name: Slug) -> Response:
    """A job at once: `{input?}`, which are parameters of a function. A `traceparent` header gives its run the trace."""
    body = await read_body(request, ["input"], optional=True)
    trace = parse.traceparent(request.headers.get("traceparent"))
    job_id = await manager(request, caller).run(f"{namespace}/{layer}/{name}", body.get("input"), trace)
    return answer({"job_id": job_id}, 202)


@router.post(f"{ONE}/$preview")
async def preview(request: Request, caller: Operator, namespace: Slug, layer: Slug, name: Slug) -> Response:
    """The first 50 rows of its SQL, or of a draft `{sql?}`. Nothing is written."""
    body = await read_body(request, ["sql"], optional=True)
    return answer(await manager(request, caller).preview(f"{namespace}/{layer}/{name}", body.get("sql")))


@router.post(f"{ONE}/$validate")
async def validate(request: Request, caller: Operator, namespace: Slug, layer: Slug, name: Slug) -> Response:
    """Whether its SQL, or a draft `{sql?}`, could run now; what it reads, and the columns it makes."""
    body = await read_body(request, ["sql"], optional=True)
    return answer(await manager(request, caller).validate(f"{namespace}/{layer}/{name}", body.get("sql")))


@router.get(f"{ONE}/triggers")
async def triggers(
    request: Request,
    caller: Viewer,
    namespace: Slug,
    layer: Slug,
    name: Slug,
    limit: Limit = 200,
    cursor: Cursor = None,
) -> Response:
    """What makes it run, beside schedules and people."""
    found = await engine_of(request).db.read(store.list_triggers, caller.org_id, f"{namespace}/{layer}/{name}")
    return answer_part(found, limit, cursor)


@router.post(f"{ONE}/triggers", status_code=201)
async def add_trigger(request: Request, caller: Operator, namespace: Slug, layer: Slug, name: Slug) -> Response:
    """`{type: pipeline_success, upstream}`, `{type: cron_dependency, upstreams, cron_expression, timezone?}` (at a
    slot, or as soon after it as all upstreams succeeded anew) or `{type: webhook}`, whose `token` is told in this
    answer and never again; each with `cooldown_seconds?`."""
    path = f"{namespace}/{layer}/{name}"
    made, token = await manager(request, caller).add_trigger(path, await read_body(request))
    return answer({**made, "token": token}, 201, {"cache-control": "no-store"} if token else None)


@router.patch(f"{ONE}/triggers/{{trigger_id}}")
async def edit_trigger(
    request: Request, caller: Operator, namespace: Slug, layer: Slug, name: Slug, trigger_id: str
) -> Response:
    """`{enabled?, cooldown_seconds?}`."""
    path, body = f"{namespace}/{layer}/{name}", await read_body(request)
    return answer(await manager(request, caller).edit_trigger(path, trigger_id, body))


@router.delete(f"{ONE}/triggers/{{trigger_id}}", status_code=204)
async def delete_trigger(
    request: Request, caller: Operator, namespace: Slug, layer: Slug, name: Slug, trigger_id: str
) -> Response:
    await manager(request, caller).delete_trigger(f"{namespace}/{layer}/{name}", trigger_id)
    return Response(status_code=204)


def manager(request: Request, caller: Caller) -> PipelineManager:
    return PipelineManager(engine_of(request), caller.org_id, caller.user_id)
