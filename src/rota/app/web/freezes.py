"""Pages of freeze windows."""

from fastapi import APIRouter, Request, Response

from rota.frame.http.reports import reports_of
from rota.frame.web.pages import NavigationItem, engine_of, history, page
from rota.frame.web.sessions import Viewer
from rota.reports import freezes as reports

router = APIRouter()

NAVIGATION = [NavigationItem("/freeze-windows", "Freeze windows", "z", "snowflake", 2)]


@router.get("/freeze-windows")
async def list_all(request: Request, caller: Viewer) -> Response:
    engine = engine_of(request)
    items = await reports_of(request, caller).read(reports.list_windows, caller.org_id, engine.clock.now())
    return page(request, "freeze_windows.html", items=items, kinds=sorted(engine.runners))


@router.get("/freeze-windows/{key}")
async def read(request: Request, caller: Viewer, key: str) -> Response:
    engine = engine_of(request)
    window = await reports_of(request, caller).read(reports.window, caller.org_id, key, engine.clock.now())
    changes = await history(request, caller, "freeze-windows", window["id"])
    return page(request, "freeze_window.html", window=window, changes=changes)
