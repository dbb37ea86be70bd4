"""Tasks: what can run. Python tasks come from code; shell tasks can be made here."""

from fastapi import APIRouter, Request, Response

from rota.app.api.manners import Cursor, Limit, answer, answer_page, engine_of, read_body
from rota.app.auth import Operator, Viewer
from rota.core import parse
from rota.core.errors import Conflict
from rota.store import reports, tasks
from rota.store.dialect import Tx

router = APIRouter(prefix="/tasks", tags=["tasks"])

COMMAND_LIMIT = 100_000  # characters


@router.get("")
async def list_all(
    request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None, task_type: str | None = None
) -> Response:
    db = engine_of(request).db
    page = await db.read(reports.list_tasks, caller.org_id, limit=limit, cursor=cursor, task_type=task_type)
    return answer_page(page)


@router.post("", status_code=201)
async def create(request: Request, caller: Operator) -> Response:
    """A shell task `{name, command, task_type: "shell"}`. Whoever may make one may run anything on the workers."""
    caller.check_shell()
    engine = engine_of(request)
    form = parse.Form(await read_body(request), frozenset({"name", "command", "task_type"}))
    name = form.need("name", parse.name)
    command = form.need("command", lambda value, field: parse.text(value, field, COMMAND_LIMIT, required=True))
    form.take("task_type", lambda value, field: parse.one_of(value, field, ["shell"]), "shell")
    form.done()
    now = engine.clock.now()
    task_id = await engine.db.tx(tasks.insert, caller.org_id, name or "", "shell", command or "", "api", now)
    found = await engine.db.read(reports.task, caller.org_id, task_id)
    return answer(found, 201, {"location": f"/api/v1/tasks/{task_id}"})


@router.get("/{key}")
async def read(request: Request, caller: Viewer, key: str) -> Response:
    """One task, by its id or name."""
    return answer(await engine_of(request).db.read(reports.task, caller.org_id, key))


@router.delete("/{key}", status_code=204)
async def delete(request: Request, caller: Operator, key: str) -> Response:
    """Take a task away that no schedule needs and no program declares."""
    caller.check_shell()

    def step(tx: Tx) -> None:
        found = reports.task(tx, caller.org_id, key)
        if found["source"] == tasks.CODE:
            raise Conflict(f"task {found['name']}: a program declares it, and would declare it again")
        if user := reports.first_user(tx, caller.org_id, found):
            raise Conflict(f"task {found['name']}: schedule {user} needs it; delete or edit that one first")
        tasks.remove(tx, caller.org_id, found["id"])

    await engine_of(request).db.tx(step)
    return Response(status_code=204)
