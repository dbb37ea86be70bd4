"""Routes of freeze windows: time ranges announced ahead in which slots do not fire."""

from fastapi import APIRouter, Request, Response

from rota.app.api import planning_models as models
from rota.frame.http.auth import Operator, Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_slice, engine_of
from rota.frame.http.models import BodyRoute, page_of
from rota.frame.http.reports import reports_of
from rota.reports import freezes as reports

router = APIRouter(prefix="/freeze-windows", tags=["freeze windows"], route_class=BodyRoute)


@router.post("", status_code=201, response_model=models.FreezeWindow)
async def create(request: Request, caller: Operator, body: models.FreezeWindowBody) -> Response:
    """Announce a freeze window: the slots of the schedules that it covers are skipped, or held until its end."""
    engine = engine_of(request)
    window_id = await engine.add_freeze_window(caller.org_id, body.present(), by=caller.user_id)
    made = await engine.db.read(reports.window, caller.org_id, window_id, engine.clock.now())
    return answer(made, 201, {"location": f"/api/v1/freeze-windows/{window_id}"})


@router.get("", response_model=page_of(models.FreezeWindowSummary))
async def list_all(request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Freeze windows, the latest first."""
    engine = engine_of(request)
    return answer_slice(
        await reports_of(request, caller).read(reports.list_windows, caller.org_id, engine.clock.now()), limit, cursor
    )


@router.get("/{key}", response_model=models.FreezeWindow)
async def read(request: Request, caller: Viewer, key: str) -> Response:
    """One freeze window, by its name or id, with the schedules that it covers."""
    engine = engine_of(request)
    return answer(await engine.db.read(reports.window, caller.org_id, key, engine.clock.now()))


@router.patch("/{key}", response_model=models.FreezeWindow)
async def edit(request: Request, caller: Operator, key: str, body: models.FreezeWindowChanges) -> Response:
    """Change a freeze window that has not ended; slots that were decided keep their verdict."""
    engine = engine_of(request)
    window_id = await engine.edit_freeze_window(caller.org_id, key, body.sent())
    return answer(await engine.db.read(reports.window, caller.org_id, window_id, engine.clock.now()))


@router.delete("/{key}", status_code=204)
async def delete(request: Request, caller: Operator, key: str) -> Response:
    """Delete a freeze window, which ends it: slots that it holds are due now."""
    await engine_of(request).delete_freeze_window(caller.org_id, key)
    return Response(status_code=204)
