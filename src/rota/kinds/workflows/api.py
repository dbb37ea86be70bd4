"""Routes of workflows: status, events, inputs, outputs, versions, and the commands of operators."""

from typing import Annotated, Literal

from fastapi import APIRouter, Body, Query, Request, Response

from rota.db.paging import Record
from rota.frame.http.auth import Caller, Operator, Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_page, answer_slice, engine_of
from rota.frame.http.models import BodyRoute, NoFields, page_of
from rota.frame.http.reports import reports_of
from rota.kinds.workflows import models, reports
from rota.kinds.workflows.handler_host import read_event
from rota.kinds.workflows.manager import WorkflowManager
from rota.kinds.workflows.rules import EventStatus
from rota.kinds.workflows.scripts import store as scripts_store

router = APIRouter(prefix="/workflows", tags=["workflows"], route_class=BodyRoute)

Stop = Annotated[models.StopBody, Body(default_factory=models.StopBody)]
Topic = Annotated[str | None, Query()]


@router.get("", response_model=page_of(models.Workflow))
async def list_all(request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """List workflows, by name."""
    engine = engine_of(request)
    now = engine.clock.now()
    return answer_page(
        await reports_of(request, caller).read(reports.list_workflows, caller.org_id, now, limit=limit, cursor=cursor)
    )


@router.post("", status_code=201, response_model=models.Workflow)
async def create(request: Request, caller: Operator, body: models.ScriptBody) -> Response:
    """Deploy a workflow from the Python file that declares it: `{script, name?}`. The script is loaded in the sandbox
    first; an invalid one is refused with the line and the reason."""
    workflow_id = await manager(request, caller).upload(None, body.script, caller.user_id, name=body.name)
    workflow = await report_of(request, caller, workflow_id)
    return answer(workflow, 201, {"location": f"/api/v1/workflows/{workflow_id}"})


@router.post("/$check", response_model=models.Declared)
async def check(request: Request, caller: Operator, body: models.FileBody) -> Response:
    """Return what a script declares, if it can be deployed: `{script}`. Stores nothing."""
    workflow = await manager(request, caller).check(body.script)
    return answer({"name": workflow.name, "description": workflow.description, **workflow.dump()})


@router.put("/{key}", response_model=models.Workflow)
async def replace(request: Request, caller: Operator, key: str, body: models.FileBody) -> Response:
    """Deploy the next major version of a script workflow: `{script}`."""
    await manager(request, caller).upload(key, body.script, caller.user_id)
    return await read(request, caller, key)


@router.delete("/{key}", status_code=204)
async def delete(request: Request, caller: Operator, key: str) -> Response:
    """Delete a script workflow: its jobs are canceled, its events skipped, its runs kept."""
    await manager(request, caller).delete(key)
    return Response(status_code=204)


@router.get("/{key}/versions", response_model=page_of(models.WorkflowVersion))
async def versions(
    request: Request, caller: Viewer, key: str, repairs: bool = False, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """List the versions of a script with their outcomes, newest first: major ones by users, minor ones by repair; or
    only the `repairs`."""
    read_page = reports_of(request, caller).read(
        scripts_store.list_versions, caller.org_id, key, repairs=repairs, limit=limit, cursor=cursor
    )
    return answer_page(await read_page)


@router.get("/{key}/versions/{version}", response_model=models.WorkflowFile)
async def version(
    request: Request, caller: Viewer, key: str, version: str, against: Annotated[str | None, Query()] = None
) -> Response:
    """Return a version with its file, and its diff against the one that was live before it, or another."""
    return answer(await manager(request, caller).version(key, version, against))


@router.post("/{key}/versions/{version}/$accept", response_model=models.Workflow)
async def accept(request: Request, caller: Operator, key: str, version: str, _: NoFields) -> Response:
    """Accept a repair that waits for an operator: it becomes live and the failed run is retried."""
    await manager(request, caller).decide(key, version, True, "", caller.user_id)
    return await read(request, caller, key)


@router.post("/{key}/versions/{version}/$reject", response_model=models.Workflow)
async def reject(request: Request, caller: Operator, key: str, version: str, body: Stop) -> Response:
    """Reject a repair: `{reason?}`, which the repairer gets. Another is asked for, up to two per failure."""
    await manager(request, caller).decide(key, version, False, body.reason or "", caller.user_id)
    return await read(request, caller, key)


@router.post("/{key}/$rollback", response_model=models.Workflow)
async def roll_back(request: Request, caller: Operator, key: str, body: models.RollbackBody) -> Response:
    """Deploy the file of an earlier version as the next major version: `{version}`."""
    await manager(request, caller).roll_back(key, body.version, caller.user_id)
    return await read(request, caller, key)


@router.get("/{key}", response_model=models.Workflow)
async def read(request: Request, caller: Viewer, key: str) -> Response:
    """Return a workflow by id or name: status, issue in plain words, recent runs, pending events."""
    return answer(await report_of(request, caller, key))


@router.get("/{key}/handlers", response_model=page_of(models.Handler))
async def handlers(request: Request, caller: Viewer, key: str, limit: Limit = 200, cursor: Cursor = None) -> Response:
    """List the producers and consumers with their states, flags and next times, for developers."""
    items = await reports_of(request, caller).read(reports.list_handlers, caller.org_id, key)
    return answer_slice(items, limit, cursor)


@router.get("/{key}/runs", response_model=page_of(models.WorkflowRun))
async def runs(request: Request, caller: Viewer, key: str, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """List the attempts with their phases, newest first."""
    read_page = reports_of(request, caller).read(reports.list_runs, caller.org_id, key, limit=limit, cursor=cursor)
    return answer_page(await read_page)


@router.get("/{key}/events", response_model=page_of(models.TopicEvent))
async def events(
    request: Request, caller: Viewer, key: str, topic: Topic = None, status: EventStatus | None = None,
    limit: Limit = 50, cursor: Cursor = None,
) -> Response:  # fmt: skip
    """List events, newest first."""
    return answer_page(
        await reports_of(request, caller).read(
            reports.list_events, caller.org_id, key, topic=topic, status=status, limit=limit, cursor=cursor
        )
    )


@router.get("/{key}/inputs", response_model=page_of(models.Input))
async def inputs(
    request: Request, caller: Viewer, key: str, status: Literal["pending", "done", "skipped"] | None = None,
    limit: Limit = 50, cursor: Cursor = None,
) -> Response:  # fmt: skip
    """List inputs, newest first; an input is `pending` until all events derived from it are done."""
    engine = engine_of(request)
    now = engine.clock.now()
    return answer_page(
        await reports_of(request, caller).read(
            reports.list_inputs, caller.org_id, key, now, status=status, limit=limit, cursor=cursor
        )
    )


@router.get("/{key}/outputs", response_model=page_of(models.Output))
async def outputs(request: Request, caller: Viewer, key: str, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """List mutations, newest first, with a warning where the outcome is unknown."""
    read_page = reports_of(request, caller).read(reports.list_outputs, caller.org_id, key, limit=limit, cursor=cursor)
    return answer_page(await read_page)


@router.post("/{key}/topics/{topic}/events", status_code=201, response_model=models.PublishedEvent)
async def publish(request: Request, caller: Operator, key: str, topic: str, body: models.EventBody) -> Response:
    """Put an event into a topic: `{message_id, payload?, title?}`. The same `message_id` again answers 200: it replaces
    a pending event, and is a no-op once a run has reserved it (`result`: `replaced` or `kept`)."""
    event_id, result = await manager(request, caller).publish(
        key, topic, message_id=body.message_id, payload=body.payload, title=body.title
    )
    return answer({"id": event_id, "result": result}, 201 if result == "created" else 200)


@router.post("/{key}/topics/{topic}/events/$bulk", status_code=201, response_model=models.PublishedEvents)
async def publish_many(request: Request, caller: Operator, key: str, topic: str, body: models.EventsBody) -> Response:
    """Put up to 1,000 events `{items: […]}` into a topic in one transaction; none if one is invalid. Answers with the
    `id` and `result` of each, in this order; of several with one `message_id`, the last counts."""
    events = [read_event(topic, item.message_id, item.payload, item.title) for item in body.items]
    results = await manager(request, caller).publish_many(key, events)
    return answer({"items": [{"id": event_id, "result": result} for event_id, result in results]}, 201)


@router.post("/{key}/$run", status_code=202, response_model=models.JobRefs)
async def run(request: Request, caller: Operator, key: str, _: NoFields) -> Response:
    """Run all producers now, one after the other. Refused while a run is active, backs off or needs attention, and
    while the workflow is paused."""
    return answer({"job_ids": await manager(request, caller).run(key)}, 202)


@router.post("/{key}/$pause", response_model=models.Workflow)
async def pause(request: Request, caller: Operator, key: str, body: Stop) -> Response:
    """Pause a workflow: `{reason?}`. The active run finishes, no other begins, new events stay pending."""
    await manager(request, caller).pause(key, body.reason or "")
    return await read(request, caller, key)


@router.post("/{key}/$resume", response_model=models.Workflow)
async def resume(request: Request, caller: Operator, key: str, _: NoFields) -> Response:
    """End a pause, or retry the failed run of a workflow that is stuck."""
    await manager(request, caller).resume(key)
    return await read(request, caller, key)


@router.post("/{key}/$resolve", response_model=models.Workflow)
async def resolve(request: Request, caller: Operator, key: str, body: models.ResolveBody) -> Response:
    """Decide about the run that needs an operator: `{resolution, result?}`. `approve` retries it, `reject` gives it up
    and skips its events. For a mutation with an unknown outcome: `applied` (with its result), `not_applied`, `skip`, or
    `try_again` to reconcile it once more."""
    await manager(request, caller).resolve(key, body.resolution, body.result, caller.user_id)
    return await read(request, caller, key)


@router.post("/{key}/events/{event_id}/$skip", response_model=models.Workflow)
async def skip(request: Request, caller: Operator, key: str, event_id: str, _: NoFields) -> Response:
    """Skip a pending event, such as an input, and the pending events derived from it alone. Refused once a run has
    reserved it."""
    await manager(request, caller).skip(key, event_id)
    return await read(request, caller, key)


async def report_of(request: Request, caller: Caller, key: str) -> Record:
    engine = engine_of(request)
    return await engine.db.read(reports.workflow, caller.org_id, key, engine.clock.now())


def manager(request: Request, caller: Caller) -> WorkflowManager:
    return WorkflowManager(engine_of(request), caller.org_id)
