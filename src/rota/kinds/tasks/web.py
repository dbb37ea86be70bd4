"""Tasks: what can run, and a form of the parameters that each takes."""

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from rota.core.errors import RotaError
from rota.db.paging import Record
from rota.engine import reports as engine_reports
from rota.frame.web.actions import ask
from rota.frame.web.forms import by_schema
from rota.frame.web.pages import Place, asked, engine_of, flash, history, older, page
from rota.frame.web.sessions import Viewer, read_form
from rota.kinds.tasks.api import visible_task
from rota.kinds.tasks.manager import TaskManager

router = APIRouter()

PLACES = [Place("/tasks", "Tasks", "k", "box", 1)]


@router.get("/tasks")
async def list_all(request: Request, caller: Viewer) -> Response:
    given = asked(request, "task_type", "enabled", "cursor")
    enabled = {"true": True, "false": False}.get(given["enabled"] or "")
    wanted: dict[str, Any] = {"task_type": given["task_type"], "enabled": enabled, "cursor": given["cursor"]}
    items, cursor = await engine_of(request).db.read(engine_reports.list_tasks, caller.org_id, **wanted)
    items = [visible_task(item, caller) for item in items]
    return page(request, "tasks.html", items=items, older=older(request, cursor), given=given)


@router.get("/tasks/{key:path}")  # a name may have slashes
async def read(request: Request, caller: Viewer, key: str) -> Response:
    manager, db = TaskManager(engine_of(request), caller.org_id), engine_of(request).db
    one, schema = visible_task(await manager.find(key), caller), await manager.schema(key)
    org_id, used, runs = caller.org_id, list[Record](), list[Record]()
    if caller.reads("schedules"):
        used, _ = await db.read(engine_reports.list_schedules, org_id, targets=[one["id"], one["name"]], sort="id")
    if caller.reads("runs"):
        runs, _ = await db.read(engine_reports.list_runs, org_id, target=one["name"], kind="task", limit=10)
    changes = await history(request, caller, "tasks", one["id"])
    return page(request, "task.html", one=one, schema=schema, used=used, runs=runs, changes=changes)


@router.post("/tasks/{key}/$execute")
async def execute(request: Request, caller: Viewer, key: str) -> Response:
    """Run it once, with the parameters of its form."""
    form = await read_form(request)
    schema = await TaskManager(engine_of(request), caller.org_id).schema(key) or {}
    try:
        given = by_schema(form, schema)
        body = {"parameters": given} if given else {}
        answer = await ask(request, "POST", f"/tasks/{key}/$execute", body)
        refusal, status = answer.refusal, answer.status
    except RotaError as error:
        refusal, status = error.message, 422
    if refusal is not None:
        return page(request, "refused.html", status, message=refusal, wrong=[], then=f"/tasks/{key}")
    response = RedirectResponse(f"/runs/{answer.data['job_id']}", 303)
    flash(request, response, f"{key} was asked to run")
    return response
