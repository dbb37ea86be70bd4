"""Workflows: how they stand, what came in and went out, and what a person can do about one."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from rota.app.api.manners import Cursor, Limit, answer, answer_page, engine_of, read_body
from rota.app.auth import Caller, Operator, Viewer
from rota.core.workflows import EventStatus
from rota.kinds.workflows import WorkflowManager
from rota.store import workflow_reports as views

router = APIRouter(prefix="/workflows", tags=["workflows"])

Topic = Annotated[str | None, Query()]


@router.get("")
async def list_all(request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """By name."""
    engine = engine_of(request)
    now = engine.clock.now()
    return answer_page(await engine.db.read(views.list_workflows, caller.org_id, now, limit=limit, cursor=cursor))


@router.get("/{key}")
async def read(request: Request, caller: Viewer, key: str) -> Response:
    """One workflow, by id or name: status, the issue in plain words, what it did lately, what waits."""
    engine = engine_of(request)
    return answer(await engine.db.read(views.workflow, caller.org_id, key, engine.clock.now()))


@router.get("/{key}/handlers")
async def handlers(request: Request, caller: Viewer, key: str) -> Response:
    """Its inside, for developers: producers and consumers with their states, flags and moments."""
    items = await engine_of(request).db.read(views.inside, caller.org_id, key)
    return answer({"items": items, "next_cursor": None})


@router.get("/{key}/runs")
async def runs(request: Request, caller: Viewer, key: str, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Each attempt with its phase, newest first."""
    read_page = engine_of(request).db.read(views.list_runs, caller.org_id, key, limit=limit, cursor=cursor)
    return answer_page(await read_page)


@router.get("/{key}/events")
async def events(
    request: Request, caller: Viewer, key: str, topic: Topic = None, status: EventStatus | None = None,
    limit: Limit = 50, cursor: Cursor = None,
) -> Response:  # fmt: skip
    """What lies and lay in its topics, newest first."""
    return answer_page(
        await engine_of(request).db.read(
            views.list_events, caller.org_id, key, topic=topic, status=status, limit=limit, cursor=cursor
        )
    )


@router.get("/{key}/inputs")
async def inputs(
    request: Request, caller: Viewer, key: str, status: Literal["pending", "done", "skipped"] | None = None,
    limit: Limit = 50, cursor: Cursor = None,
) -> Response:  # fmt: skip
    """What came in, newest first; `pending` until nothing that goes back to it waits any more."""
    engine = engine_of(request)
    now = engine.clock.now()
    return answer_page(
        await engine.db.read(views.list_inputs, caller.org_id, key, now, status=status, limit=limit, cursor=cursor)
    )


@router.get("/{key}/outputs")
async def outputs(request: Request, caller: Viewer, key: str, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """What it did to the world outside, newest first, with a warning where nobody knows whether it happened."""
    read_page = engine_of(request).db.read(views.list_outputs, caller.org_id, key, limit=limit, cursor=cursor)
    return answer_page(await read_page)


@router.post("/{key}/topics/{topic}/events", status_code=201)
async def publish(request: Request, caller: Operator, key: str, topic: str) -> Response:
    """Put an event into a topic: `{message_id, payload?, title?}`. The same `message_id` again answers 200: it replaces
    the event while that is pending, and changes nothing once somebody has taken it (`result` says which)."""
    event_id, result = await manager(request, caller).publish(key, topic, await read_body(request))
    return answer({"id": event_id, "result": result}, 201 if result == "created" else 200)


@router.post("/{key}/$run", status_code=202)
async def run(request: Request, caller: Operator, key: str) -> Response:
    """Run all its producers now, one after the other. Refused while it runs, is paused, backs off or is stuck."""
    await read_body(request, [], optional=True)
    return answer({"job_ids": await manager(request, caller).run(key)}, 202)


@router.post("/{key}/$pause")
async def pause(request: Request, caller: Operator, key: str) -> Response:
    """Start nothing more: `{reason?}`. What runs finishes; what comes meanwhile waits."""
    body = await read_body(request, ["reason"], optional=True)
    await manager(request, caller).pause(key, body.get("reason") or "")
    return await read(request, caller, key)


@router.post("/{key}/$resume")
async def resume(request: Request, caller: Operator, key: str) -> Response:
    """End a pause; or, where it is stuck, try again what failed."""
    await read_body(request, [], optional=True)
    await manager(request, caller).resume(key)
    return await read(request, caller, key)


@router.post("/{key}/$resolve")
async def resolve(request: Request, caller: Operator, key: str) -> Response:
    """Decide about the run that waits for a person: `{resolution, result?}`. `approve` goes on, `reject` gives the run
    up and skips its events; of a mutation that gave no answer say `applied` (with its result), `not_applied`, `skip`,
    or `try_again` to have its service asked once more."""
    body = await read_body(request, ["resolution", "result"])
    await manager(request, caller).resolve(key, body.get("resolution"), body.get("result"), caller.user_id)
    return await read(request, caller, key)


@router.post("/{key}/events/{event_id}/$skip")
async def skip(request: Request, caller: Operator, key: str, event_id: str) -> Response:
    """Leave out an event that is pending, an input for instance, with what came of it alone and waits. Refused once a
    run has taken it."""
    await read_body(request, [], optional=True)
    await manager(request, caller).skip(key, event_id)
    return await read(request, caller, key)


def manager(request: Request, caller: Caller) -> WorkflowManager:
    return WorkflowManager(engine_of(request), caller.org_id)
