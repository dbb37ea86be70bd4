"""Routes of files: plan, apply and export the resources of an org."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from rota.app.api.file_models import ApplyBody, Export, Plan, PlanBody
from rota.app.files import reconcile
from rota.app.files.resources import Installation
from rota.frame.http.auth import REQUEST_DATABASE, Caller, Operator, Viewer, engine_acting_on
from rota.frame.http.contract import answer, engine_of
from rota.frame.http.models import BodyRoute
from rota.kinds.tasks.runner import TaskRunner

router = APIRouter(prefix="/files", tags=["files"], route_class=BodyRoute)


@router.get("", response_model=Export)
async def export(
    request: Request,
    caller: Viewer,
    secrets: Annotated[bool, Query(description="with secrets of tasks, which needs the scope shell")] = False,
) -> Response:
    """All that files can describe, by resource, and what they cannot, with the reason."""
    if secrets:
        caller.check_shell()
    engine = engine_of(request)
    to = Installation(engine, lambda *_: engine, caller, engine.clock.now())
    return answer(await reconcile.export(to, secrets=secrets))


@router.post("/$plan", response_model=Plan)
async def plan(request: Request, caller: Operator, body: PlanBody) -> Response:
    """What an apply of these entries would change, stores nothing. `version` names the state it was planned for."""
    request.scope[REQUEST_DATABASE].is_rehearsal = True
    planned = await reconcile.reconcile(installation(request, caller), body.resources, prune=body.prune is True)
    return answer(planned)


@router.post("/$apply", response_model=Plan)
async def apply(request: Request, caller: Operator, body: ApplyBody) -> Response:
    """Create and change what these entries describe, all or nothing. What was applied before and is no longer described
    is paused or disabled with `prune`; nothing is deleted. With `version`, 412 if the installation has changed."""
    to = installation(request, caller)
    changed = await reconcile.reconcile(to, body.resources, prune=body.prune is True, version=body.version)
    runner = request.app.state.engine.runners.get("task")
    if isinstance(runner, TaskRunner):
        to.engine.db.after_commit(partial(runner.forget, caller.org_id))
    return answer(changed)


def installation(request: Request, caller: Caller) -> Installation:
    engine = engine_acting_on(request, "files", "apply", None)
    return Installation(engine, partial(engine_acting_on, request), caller, engine.clock.now())
