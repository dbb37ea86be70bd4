"""Queues and workers: what waits, what holds it up, and who works."""

from fastapi import APIRouter, Request, Response

from rota.core.states import State
from rota.engine import reports as engine_reports
from rota.frame.web.pages import Place, asked, engine_of, older, page
from rota.frame.web.sessions import Viewer

router = APIRouter()

PLACES = [Place("/queues", "Queues & workers", "q", "layers", 2)]


@router.get("/queues")
async def list_all(request: Request, caller: Viewer) -> Response:
    db, given = engine_of(request).db, asked(request, "cursor", "state")
    queues = await db.read(engine_reports.list_queues, caller.org_id)
    state = given["state"] if given["state"] in ("alive", "stopped", "dead") else "alive"
    workers, cursor = None, None
    if caller.reads("workers"):
        workers, cursor = await db.read(
            engine_reports.list_workers, caller.sees_org, state=state, cursor=given["cursor"]
        )
    return page(
        request, "queues.html", queues=queues, workers=workers, older=older(request, cursor), state=state,
        states=[one.value for one in State],
    )  # fmt: skip
