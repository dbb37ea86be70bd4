"""Routes of pipelines and their triggers."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Request, Response

from rota.core import parse
from rota.frame.http.answers import JobRef
from rota.frame.http.auth import Caller, Operator, Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_page, answer_slice, engine_of
from rota.frame.http.models import BodyRoute, page_of
from rota.frame.http.reports import reports_of
from rota.kinds.pipelines import store
from rota.kinds.pipelines.manager import PipelineManager
from rota.kinds.pipelines.models import (
    DraftBody,
    JobIds,
    Namespace,
    NewTrigger,
    Pipeline,
    PipelineBackfillBody,
    PipelineBody,
    PipelineChanges,
    PipelineGraph,
    PipelinePreview,
    PipelineRunBody,
    PipelineVersion,
    Trigger,
    TriggerBody,
    TriggerChanges,
    Validation,
)

router = APIRouter(prefix="/pipelines", tags=["pipelines"], route_class=BodyRoute)

PIPELINE_PATH = "/{namespace}/{layer}/{name}"
Slug = Annotated[str, Path(max_length=200)]
Draft = Annotated[DraftBody, Body(default_factory=DraftBody)]


@router.post("", status_code=201, response_model=Pipeline)
async def create(request: Request, caller: Operator, body: PipelineBody) -> Response:
    """Create `{namespace, layer, name, type, sql | function, description?, max_runs?, max_age_days?}`. Of its runs only
    the newest `max_runs` are kept, and none older than `max_age_days`. Its runs replace the table, or with `append_by`,
    `merge_by` or `partition_by` a part of it."""
    pipeline = await manager(request, caller).create(body)
    return answer(pipeline, 201, {"location": f"/api/v1/pipelines/{pipeline['path']}"})


@router.get("", response_model=page_of(Pipeline))
async def list_all(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    namespace: str | None = None,
    layer: str | None = None,
    type: Literal["sql", "python"] | None = None,
) -> Response:
    """Pipelines, by path."""
    filters: dict[str, Any] = {"limit": limit, "cursor": cursor, "namespace": namespace, "layer": layer, "type": type}
    return answer_page(await reports_of(request, caller).read(store.list_pipelines, caller.org_id, **filters))


@router.get("/$graph", response_model=PipelineGraph)
async def graph(request: Request, caller: Viewer) -> Response:
    """The dependency graph: edges are triggers (their type) and tables that are read (`reads`)."""
    return answer(await reports_of(request, caller).read(store.graph, caller.org_id))


@router.get("/$namespaces", response_model=page_of(Namespace))
async def namespaces(request: Request, caller: Viewer, limit: Limit = 200, cursor: Cursor = None) -> Response:
    """Namespaces that have pipelines."""
    items = await reports_of(request, caller).read(store.namespaces, caller.org_id)
    return answer_slice(items, limit, cursor)


@router.get(PIPELINE_PATH, response_model=Pipeline)
async def read(request: Request, caller: Viewer, namespace: Slug, layer: Slug, name: Slug) -> Response:
    return answer(await manager(request, caller).find(f"{namespace}/{layer}/{name}"))


@router.put(PIPELINE_PATH, response_model=Pipeline)
async def edit(
    request: Request, caller: Operator, namespace: Slug, layer: Slug, name: Slug, body: PipelineChanges
) -> Response:
    """Replace a pipeline; as a new version if it runs something else."""
    return answer(await manager(request, caller).edit(f"{namespace}/{layer}/{name}", body))


@router.delete(PIPELINE_PATH, status_code=204)
async def delete(request: Request, caller: Operator, namespace: Slug, layer: Slug, name: Slug) -> Response:
    """Delete a pipeline with its schedules and triggers; its runs and its table stay."""
    await manager(request, caller).delete(f"{namespace}/{layer}/{name}")
    return Response(status_code=204)


@router.get(f"{PIPELINE_PATH}/versions", response_model=page_of(PipelineVersion))
async def versions(
    request: Request,
    caller: Viewer,
    namespace: Slug,
    layer: Slug,
    name: Slug,
    limit: Limit = 200,
    cursor: Cursor = None,
) -> Response:
    """The versions of a pipeline, newest first."""
    items = await reports_of(request, caller).read(store.list_versions, caller.org_id, f"{namespace}/{layer}/{name}")
    return answer_slice(items, limit, cursor)


@router.post(f"{PIPELINE_PATH}/$run", status_code=202, response_model=JobRef)
async def run(
    request: Request,
    caller: Operator,
    namespace: Slug,
    layer: Slug,
    name: Slug,
    body: Annotated[PipelineRunBody, Body(default_factory=PipelineRunBody)],
) -> Response:
    """Enqueue a job now: `{input?}`, the parameters of a function. A `traceparent` header sets the trace of its run."""
    trace = parse.traceparent(request.headers.get("traceparent"))
    job_id = await manager(request, caller).run(f"{namespace}/{layer}/{name}", body.input, trace)
    return answer({"job_id": job_id}, 202)


@router.post(f"{PIPELINE_PATH}/$backfill", status_code=202, response_model=JobIds)
async def backfill(
    request: Request, caller: Operator, namespace: Slug, layer: Slug, name: Slug, body: PipelineBackfillBody
) -> Response:
    """Enqueue a job for each day `{from, to}` of a pipeline with `partition_by`: at most 366 days."""
    job_ids = await manager(request, caller).backfill(f"{namespace}/{layer}/{name}", body.first, body.last)
    return answer({"job_ids": job_ids}, 202)


@router.post(f"{PIPELINE_PATH}/$preview", response_model=PipelinePreview)
async def preview(
    request: Request, caller: Operator, namespace: Slug, layer: Slug, name: Slug, body: Draft
) -> Response:
    """The first 50 rows of its SQL, or of a draft `{sql?}`. Writes nothing."""
    return answer(await manager(request, caller).preview(f"{namespace}/{layer}/{name}", body.sql))


@router.post(f"{PIPELINE_PATH}/$validate", response_model=Validation)
async def validate(
    request: Request, caller: Operator, namespace: Slug, layer: Slug, name: Slug, body: Draft
) -> Response:
    """Whether its SQL, or a draft `{sql?}`, could run now; its reads and its columns."""
    return answer(await manager(request, caller).validate(f"{namespace}/{layer}/{name}", body.sql))


@router.get(f"{PIPELINE_PATH}/triggers", response_model=page_of(Trigger))
async def triggers(
    request: Request,
    caller: Viewer,
    namespace: Slug,
    layer: Slug,
    name: Slug,
    limit: Limit = 200,
    cursor: Cursor = None,
) -> Response:
    """The triggers of a pipeline."""
    items = await reports_of(request, caller).read(store.list_triggers, caller.org_id, f"{namespace}/{layer}/{name}")
    return answer_slice(items, limit, cursor)


@router.post(f"{PIPELINE_PATH}/triggers", status_code=201, response_model=NewTrigger)
async def add_trigger(
    request: Request, caller: Operator, namespace: Slug, layer: Slug, name: Slug, body: TriggerBody
) -> Response:
    """Create `{type: pipeline_success, upstream}`, `{type: cron_dependency, upstreams, cron_expression, timezone?}`
    (runs at a slot, or after it as soon as all upstreams have succeeded again) or `{type: webhook}`, whose `token` is
    shown only in this answer; each with `cooldown_seconds?`."""
    trigger, token = await manager(request, caller).add_trigger(f"{namespace}/{layer}/{name}", body)
    return answer({**trigger, "token": token}, 201, {"cache-control": "no-store"} if token else None)


@router.patch(f"{PIPELINE_PATH}/triggers/{{trigger_id}}", response_model=Trigger)
async def edit_trigger(
    request: Request,
    caller: Operator,
    namespace: Slug,
    layer: Slug,
    name: Slug,
    trigger_id: str,
    body: TriggerChanges,
) -> Response:
    """Change `{enabled?, cooldown_seconds?}` of a trigger."""
    return answer(await manager(request, caller).edit_trigger(f"{namespace}/{layer}/{name}", trigger_id, body))


@router.delete(f"{PIPELINE_PATH}/triggers/{{trigger_id}}", status_code=204)
async def delete_trigger(
    request: Request, caller: Operator, namespace: Slug, layer: Slug, name: Slug, trigger_id: str
) -> Response:
    await manager(request, caller).delete_trigger(f"{namespace}/{layer}/{name}", trigger_id)
    return Response(status_code=204)


def manager(request: Request, caller: Caller) -> PipelineManager:
    return PipelineManager(engine_of(request), caller.org_id, caller.user_id)
