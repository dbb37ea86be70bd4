"""Workflows: how they stand, what came in and went out, and what a person can do about one."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from rota.db.paging import Record
from rota.frame.http.auth import Caller, Operator, Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_page, answer_part, engine_of, read_body
from rota.kinds.workflows import reports as views
from rota.kinds.workflows.manager import WorkflowManager
from rota.kinds.workflows.rules import EventStatus
from rota.kinds.workflows.scripts import store as scripts_store

router = APIRouter(prefix="/workflows", tags=["workflows"])

Topic = Annotated[str | None, Query()]


@router.get("")
async def list_all(request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """By name."""
    engine = engine_of(request)
    now = engine.clock.now()
    return answer_page(await engine.db.read(views.list_workflows, caller.org_id, now, limit=limit, cursor=cursor))


@router.post("", status_code=201)
async def create(request: Request, caller: Operator) -> Response:
    """Deploy a workflow from the Python file that declares it: `{script, name?}`. It is loaded in the sandbox first;
    one that cannot work is refused with the line and the reason."""
    body = await read_body(request, ["name", "script"])
    made = await manager(request, caller).upload(None, body, caller.user_id)
    seen = await views_of(request, caller, made)
    return answer(seen, 201, {"location": f"/api/v1/workflows/{made}"})


@router.post("/$check")
async def check(request: Request, caller: Operator) -> Response:
    """What a script declares, if it could be deployed: `{script}`. Stores nothing."""
    found = await manager(request, caller).check((await read_body(request, ["script"])).get("script"))
    return answer({"name": found.name, "description": found.description, **found.dump()})


@router.put("/{key}")
async def replace(request: Request, caller: Operator, key: str) -> Response:
    """The next major version of a workflow that is a script: `{script}`."""
    await manager(request, caller).upload(key, await read_body(request, ["script"]), caller.user_id)
    return await read(request, caller, key)


@router.delete("/{key}", status_code=204)
async def delete(request: Request, caller: Operator, key: str) -> Response:
    """Take a workflow that is a script away: what waits in it is given up, what it ran stays in the ledger."""
    await manager(request, caller).delete(key)
    return Response(status_code=204)


@router.get("/{key}/versions")
async def versions(
    request: Request, caller: Viewer, key: str, repairs: bool = False, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """The versions of a script, newest first: major ones by people, minor ones by repair, with what became of each; or
    only the `repairs`."""
    found = engine_of(request).db.read(
        scripts_store.list_versions, caller.org_id, key, repairs=repairs, limit=limit, cursor=cursor
    )
    return answer_page(await found)


@router.get("/{key}/versions/{version}")
async def version(
    request: Request, caller: Viewer, key: str, version: str, against: Annotated[str | None, Query()] = None
) -> Response:
    """One version with its file, and the lines that it changed: since the one that was live before it, or another."""
    return answer(await manager(request, caller).version(key, version, against))


@router.post("/{key}/versions/{version}/$accept")
async def accept(request: Request, caller: Operator, key: str, version: str) -> Response:
    """Let a repair that waits for a person become live; what failed is tried again with it."""
    await read_body(request, [], optional=True)
    await manager(request, caller).decide(key, version, True, None, caller.user_id)
    return await read(request, caller, key)


@router.post("/{key}/versions/{version}/$reject")
async def reject(request: Request, caller: Operator, key: str, version: str) -> Response:
    """Do not take a repair: `{reason?}`, which the repairer is told. Another is asked for while the budget lasts."""
    body = await read_body(request, ["reason"], optional=True)
    await manager(request, caller).decide(key, version, False, body.get("reason"), caller.user_id)
    return await read(request, caller, key)


@router.post("/{key}/$rollback")
async def roll_back(request: Request, caller: Operator, key: str) -> Response:
    """Deploy the file of an earlier version again, as the next major one: `{version}`."""
    body = await read_body(request, ["version"])
    await manager(request, caller).roll_back(key, body.get("version"), caller.user_id)
    return await read(request, caller, key)


@router.get("/{key}")
async def read(request: Request, caller: Viewer, key: str) -> Response:
    """One workflow, by id or name: status, the issue in plain words, what it did lately, what waits."""
    return answer(await views_of(request, caller, key))


@router.get("/{key}/handlers")
async def handlers(request: Request, caller: Viewer, key: str, limit: Limit = 200, cursor: Cursor = None) -> Response:
    """Its inside, for developers: producers and consumers with their states, flags and moments."""
    items = await engine_of(request).db.read(views.inside, caller.org_id, key)
    return answer_part(items, limit, cursor)


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


async def views_of(request: Request, caller: Caller, key: str) -> Record:
    engine = engine_of(request)
    return await engine.db.read(views.workflow, caller.org_id, key, engine.clock.now())


def manager(request: Request, caller: Caller) -> WorkflowManager:
    return WorkflowManager(engine_of(request), caller.org_id)
