"""Pages of tasks: the list, and one task with a form of its parameters."""

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from rota.core.errors import RotaError
from rota.db.paging import Record
from rota.frame.http.reports import reports_of
from rota.frame.web.actions import call_api
from rota.frame.web.forms import by_schema
from rota.frame.web.pages import NavigationItem, engine_of, flash, history, next_page_url, page, query_values
from rota.frame.web.sessions import Viewer, read_form
from rota.kinds.tasks import reports
from rota.kinds.tasks.api import visible_task
from rota.kinds.tasks.manager import TaskManager
from rota.reports import runs as run_reports
from rota.reports import schedules as schedule_reports

router = APIRouter()

NAVIGATION = [NavigationItem("/tasks", "Tasks", "k", "box", 1)]


@router.get("/tasks")
async def list_all(request: Request, caller: Viewer) -> Response:
    query = query_values(request, "task_type", "enabled", "cursor")
    enabled = {"true": True, "false": False}.get(query["enabled"] or "")
    filters: Record = {"task_type": query["task_type"], "enabled": enabled, "cursor": query["cursor"]}
    items, cursor = await reports_of(request, caller).read(reports.list_tasks, caller.org_id, **filters)
    items = [visible_task(item, caller) for item in items]
    return page(request, "tasks.html", items=items, next_page_url=next_page_url(request, cursor), query=query)


@router.get("/tasks/{key:path}")  # a name may have slashes
async def read(request: Request, caller: Viewer, key: str) -> Response:
    manager, db = TaskManager(engine_of(request), caller.org_id), reports_of(request, caller)
    task, schema = visible_task(await manager.find(key), caller), await manager.schema(key)
    targets = [task["id"], task["name"]]
    schedules, runs = list[Record](), list[Record]()
    if caller.reads("schedules"):
        schedules, _ = await db.read(schedule_reports.list_schedules, caller.org_id, targets=targets, sort="id")
    if caller.reads("runs"):
        runs, _ = await db.read(run_reports.list_runs, caller.org_id, target=task["name"], kind="task", limit=10)
    changes = await history(request, caller, "tasks", task["id"])
    return page(request, "task.html", task=task, schema=schema, schedules=schedules, runs=runs, changes=changes)


@router.post("/tasks/{key}/$execute")
async def execute(request: Request, caller: Viewer, key: str) -> Response:
    """Run a task once, with the parameters of its form."""
    form = await read_form(request)
    schema = await TaskManager(engine_of(request), caller.org_id).schema(key) or {}
    try:
        parameters = by_schema(form, schema)
        body = {"parameters": parameters} if parameters else {}
        answer = await call_api(request, "POST", f"/tasks/{key}/$execute", body)
        refusal, status = answer.refusal, answer.status
    except RotaError as error:
        refusal, status = error.message, 422
    if refusal is not None:
        return page(request, "refused.html", status, message=refusal, wrong=[], then=f"/tasks/{key}")
    response = RedirectResponse(f"/runs/{answer.data['job_id']}", 303)
    flash(request, response, f"{key} is queued")
    return response
