"""Routes of tasks: stored commands and functions, their schedules and parameters."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from rota.core.errors import NotFound
from rota.core.redact import public_task
from rota.db.paging import Record
from rota.frame.http.auth import Caller, Operator, Viewer
from rota.frame.http.contract import (
    Cursor,
    Limit,
    answer,
    answer_page,
    answer_with_etag,
    engine_of,
    expected_revision,
    trace_of,
)
from rota.frame.http.models import BodyRoute, page_of
from rota.frame.http.reports import reports_of
from rota.kinds.tasks import reports
from rota.kinds.tasks.manager import TaskManager
from rota.kinds.tasks.models import (
    ExecuteBody,
    Executed,
    Parameters,
    Task,
    TaskBody,
    TaskChanges,
    TaskReplacement,
    TaskSchedule,
    TaskScheduleBody,
    TaskScheduleChanges,
)
from rota.reports import schedules as schedule_reports

router = APIRouter(prefix="/tasks", tags=["tasks"], route_class=BodyRoute)


@router.get("", response_model=page_of(Task))
async def list_all(
    request: Request,
    caller: Viewer,
    limit: Limit = 50,
    cursor: Cursor = None,
    task_type: str | None = None,
    enabled: bool | None = None,
) -> Response:
    filters: dict[str, Any] = {"limit": limit, "cursor": cursor, "task_type": task_type, "enabled": enabled}
    items, next_cursor = await reports_of(request, caller).read(reports.list_tasks, caller.org_id, **filters)
    return answer_page(([visible_task(item, caller) for item in items], next_cursor))


@router.post("", status_code=201, response_model=Task)
async def create(request: Request, caller: Operator, body: TaskBody) -> Response:
    """Create a task: a command, or with `task_type: "python"` a function that a program registered. A command can run
    anything on the workers, so it needs the scope `shell`."""
    if body.task_type != "python":
        caller.check_shell()
    task = await manager(request, caller).create(body)
    return answer(visible_task(task, caller), 201, {"location": f"/api/v1/tasks/{task['id']}"})


@router.get("/{key}", response_model=Task)
async def read(request: Request, caller: Viewer, key: str) -> Response:
    """Read a task by its id or name. Without the scope `shell`, values of `env`, `stdin` and secrets are `***`."""
    return answer(visible_task(await manager(request, caller).find(key), caller))


@router.put("/{key}", response_model=Task)
async def put(request: Request, caller: Operator, key: str, body: TaskReplacement) -> Response:
    """Replace a task: omitted fields get their defaults, but name and type stay."""
    return await change(request, caller, key, body, whole=True)


@router.patch("/{key}", response_model=Task)
async def edit(request: Request, caller: Operator, key: str, body: TaskChanges) -> Response:
    """Change some fields of a task; omitted fields stay."""
    return await change(request, caller, key, body, whole=False)


@router.delete("/{key}", status_code=204)
async def delete(request: Request, caller: Operator, key: str) -> Response:
    """Delete a task with its schedules; its runs and artifacts stay."""
    tasks = manager(request, caller)
    if (await tasks.find(key))["task_type"] == "shell":
        caller.check_shell()
    await tasks.delete(key)
    return Response(status_code=204)


@router.get("/{key}/$schema", response_model=Parameters)
async def schema(request: Request, caller: Viewer, key: str) -> Response:
    """The JSON Schema of its function's parameters."""
    parameters = await manager(request, caller).schema(key)
    if parameters is None:
        raise NotFound(
            f"task {key!r} has no parameter schema: it is a command, or no program has declared its function"
        )
    return answer(parameters)


@router.post("/{key}/$execute", status_code=202, response_model=Executed)
async def execute(
    request: Request, caller: Operator, key: str, body: Annotated[ExecuteBody, Body(default_factory=ExecuteBody)]
) -> Response:
    """Enqueue a job now; `{parameters?}` override the task's own. A `traceparent` header sets the trace id of its
    run."""
    job_id = await manager(request, caller).execute_task(key, body.parameters, trace=trace_of(request))
    return answer({"job_id": job_id, "message": f"Task submitted for execution. Job ID: {job_id}"}, 202)


@router.post("/{key}/$schedule", status_code=201, response_model=TaskSchedule)
async def create_schedule(request: Request, caller: Operator, key: str, body: TaskScheduleBody) -> Response:
    """Create a schedule of this task: the fields of a schedule without `kind` and `target`."""
    schedule = await manager(request, caller).schedule(key, body)
    return answer_with_etag(schedule, 201, {"location": f"/api/v1/schedules/{schedule['id']}"})


@router.get("/{key}/$schedules", response_model=page_of(TaskSchedule))
async def schedules(request: Request, caller: Viewer, key: str, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """The schedules of this task."""
    row = await manager(request, caller).row(key)
    db = reports_of(request, caller)
    filters: dict[str, Any] = {"limit": limit, "cursor": cursor, "targets": [row.id, row.name], "sort": "id"}
    items, next_cursor = await db.read(schedule_reports.list_schedules, caller.org_id, **filters)
    return answer_page(([{**item, "task_id": row.id} for item in items], next_cursor))


@router.patch("/{key}/$schedules/{schedule_id}", response_model=TaskSchedule)
async def edit_schedule(
    request: Request, caller: Operator, key: str, schedule_id: str, body: TaskScheduleChanges
) -> Response:
    """Change a schedule of this task, for example `{enabled}`."""
    tasks = manager(request, caller)
    schedule_id = await tasks.schedule_of(key, schedule_id)
    changed = await tasks.engine.edit_schedule(
        caller.org_id, schedule_id, body.sent(), expected=expected_revision(request)
    )
    schedule = await tasks.engine.db.read(schedule_reports.schedule, caller.org_id, changed.id)
    return answer_with_etag({**schedule, "task_id": (await tasks.row(key)).id})


@router.delete("/{key}/$schedules/{schedule_id}", status_code=204)
async def delete_schedule(request: Request, caller: Operator, key: str, schedule_id: str) -> Response:
    tasks = manager(request, caller)
    await tasks.engine.delete_schedule(
        caller.org_id, await tasks.schedule_of(key, schedule_id), expected=expected_revision(request)
    )
    return Response(status_code=204)


def manager(request: Request, caller: Caller) -> TaskManager:
    return TaskManager(engine_of(request), caller.org_id, caller.user_id)


async def change(request: Request, caller: Caller, key: str, body: TaskChanges, *, whole: bool) -> Response:
    tasks = manager(request, caller)
    types = ((await tasks.find(key))["task_type"], body.task_type)
    only_enabled = not whole and body.model_fields_set <= {"enabled"}  # any operator may disable and enable a task
    if "shell" in types and not only_enabled:
        caller.check_shell()
    return answer(visible_task(await tasks.edit(key, body, whole=whole), caller))


def visible_task(task: Record, caller: Caller) -> Record:
    """Return a task as the caller may read it: without its secrets, unless they hold the scope `shell`."""
    return task if caller.holds_shell else public_task(task)
