"""Tasks: what can run. Functions come from programs; a row says which one, or holds a command, with its parameters."""

from typing import Any

from fastapi import APIRouter, Request, Response

from rota.core.errors import NotFound
from rota.db.paging import Record
from rota.engine import reports as engine_reports
from rota.frame.http.auth import Caller, Operator, Viewer
from rota.frame.http.contract import (
    Cursor,
    Limit,
    answer,
    answer_page,
    answer_with_etag,
    engine_of,
    expected_revision,
    read_body,
    trace_of,
)
from rota.kinds.tasks.manager import TaskManager, check_own

router = APIRouter(prefix="/tasks", tags=["tasks"])


@router.get("")
async def list_all(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    task_type: str | None = None,
    enabled: bool | None = None,
) -> Response:
    wanted: dict[str, Any] = {"limit": limit, "cursor": cursor, "task_type": task_type, "enabled": enabled}
    items, more = await engine_of(request).db.read(engine_reports.list_tasks, caller.org_id, **wanted)
    return answer_page(([visible_task(item, caller) for item in items], more))


@router.post("", status_code=201)
async def create(request: Request, caller: Operator) -> Response:
    """A command, or with `task_type: "python"` a function that a program registered, with its parameters. Whoever may
    store a command may run anything on the workers: that takes the scope `shell`."""
    body = await read_body(request)
    if body.get("task_type", "shell") != "python":
        caller.check_shell()
    made = await manager(request, caller).create(body)
    return answer(visible_task(made, caller), 201, {"location": f"/api/v1/tasks/{made['id']}"})


@router.get("/{key}")
async def read(request: Request, caller: Viewer, key: str) -> Response:
    """One task, by its id or name. Without the scope `shell`, values of `env`, `stdin` and secrets are `***`."""
    return answer(visible_task(await manager(request, caller).find(key), caller))


@router.put("/{key}")
async def put(request: Request, caller: Operator, key: str) -> Response:
    """Write a task anew: what is not said is as in a new one, but for its name and its type."""
    return await change(request, caller, key, whole=True)


@router.patch("/{key}")
async def edit(request: Request, caller: Operator, key: str) -> Response:
    """Change some fields; what is not said stays."""
    return await change(request, caller, key, whole=False)


@router.delete("/{key}", status_code=204)
async def delete(request: Request, caller: Operator, key: str) -> Response:
    """Take a task away with its schedules; what it ran and left stays."""
    tasks = manager(request, caller)
    if (await tasks.find(key))["task_type"] == "shell":
        caller.check_shell()
    await tasks.delete(key)
    return Response(status_code=204)


@router.get("/{key}/$schema")
async def schema(request: Request, caller: Viewer, key: str) -> Response:
    """The JSON Schema of the parameters that its function takes."""
    found = await manager(request, caller).schema(key)
    if found is None:
        raise NotFound(f"task {key}: it has no parameters of its own, or no program told of them yet")
    return answer(found)


@router.post("/{key}/$execute", status_code=202)
async def execute(request: Request, caller: Operator, key: str) -> Response:
    """A job at once: `{parameters?}` stand over the task's own. A `traceparent` header gives its run the trace id."""
    body = await read_body(request, ["parameters"], optional=True)
    job_id = await manager(request, caller).execute_task(key, body.get("parameters"), trace=trace_of(request))
    return answer({"job_id": job_id, "message": f"Task submitted for execution. Job ID: {job_id}"}, 202)


@router.post("/{key}/$schedule", status_code=201)
async def schedule(request: Request, caller: Operator, key: str) -> Response:
    """Say when it runs: the fields of a schedule, without its kind and target."""
    made = await manager(request, caller).schedule(key, await read_body(request))
    return answer_with_etag(made, 201, {"location": f"/api/v1/schedules/{made['id']}"})


@router.get("/{key}/$schedules")
async def schedules(request: Request, caller: Viewer, key: str, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """When it runs."""
    row = await manager(request, caller).row(key)
    db = engine_of(request).db
    wanted: dict[str, Any] = {"limit": limit, "cursor": cursor, "targets": [row.id, row.name], "sort": "id"}
    items, more = await db.read(engine_reports.list_schedules, caller.org_id, **wanted)
    return answer_page(([{**item, "task_id": row.id} for item in items], more))


@router.patch("/{key}/$schedules/{schedule_id}")
async def edit_schedule(request: Request, caller: Operator, key: str, schedule_id: str) -> Response:
    """Change a schedule of this task, for example `{enabled}`."""
    tasks = manager(request, caller)
    known, body = await tasks.schedule_of(key, schedule_id), await read_body(request)
    check_own(body)
    changed = await tasks.engine.edit_schedule(caller.org_id, known, body, expected=expected_revision(request))
    found = await tasks.engine.db.read(engine_reports.schedule, caller.org_id, changed.id)
    return answer_with_etag({**found, "task_id": (await tasks.row(key)).id})


@router.delete("/{key}/$schedules/{schedule_id}", status_code=204)
async def delete_schedule(request: Request, caller: Operator, key: str, schedule_id: str) -> Response:
    tasks = manager(request, caller)
    await tasks.engine.delete_schedule(
        caller.org_id, await tasks.schedule_of(key, schedule_id), expected=expected_revision(request)
    )
    return Response(status_code=204)


def manager(request: Request, caller: Caller) -> TaskManager:
    return TaskManager(engine_of(request), caller.org_id, caller.user_id)


async def change(request: Request, caller: Caller, key: str, *, whole: bool) -> Response:
    tasks, body = manager(request, caller), await read_body(request)
    types = ((await tasks.find(key))["task_type"], body.get("task_type"))
    if "shell" in types and (whole or body.keys() - {"enabled"}):  # an operator may switch any task off and on
        caller.check_shell()
    return answer(visible_task(await tasks.edit(key, body, whole=whole), caller))


def visible_task(task: Record, caller: Caller) -> Record:
    """Return a task as the caller may read it: without its secrets, unless they hold the scope `shell`."""
    return task if caller.holds_shell else engine_reports.public_task(task)
