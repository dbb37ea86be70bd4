"""The first page: what needs attention, what runs, what comes, what was."""

from fastapi import APIRouter, Request, Response

from rota.app.web.pages import page
from rota.app.web.sessions import Viewer
from rota.core.why import BECAUSE
from rota.engine.engine import Engine
from rota.store.overview import FEW, MOST, overview

router = APIRouter()


@router.get("/")
async def now(request: Request, caller: Viewer) -> Response:
    engine: Engine = request.app.state.engine
    found = await engine.db.read(overview, caller.org_id, sorted(engine.runners), engine.clock.now())
    return page(request, "now.html", **found, because=BECAUSE, few=FEW, most=MOST)
