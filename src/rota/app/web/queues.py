"""Page of queues and workers."""

from fastapi import APIRouter, Request, Response

from rota.core.states import State
from rota.frame.http.reports import reports_of
from rota.frame.web.pages import NavigationItem, next_page_url, page, query_values
from rota.frame.web.sessions import Viewer
from rota.reports import installation

router = APIRouter()

NAVIGATION = [NavigationItem("/queues", "Queues & workers", "q", "layers", 2)]


@router.get("/queues")
async def list_all(request: Request, caller: Viewer) -> Response:
    db, query = reports_of(request, caller), query_values(request, "cursor", "state")
    queues = await db.read(installation.list_queues, caller.org_id)
    state = query["state"] if query["state"] in ("alive", "stopped", "dead") else "alive"
    workers, cursor = None, None
    if caller.reads("workers"):
        workers, cursor = await db.read(installation.list_workers, caller.sees_org, state=state, cursor=query["cursor"])
    return page(
        request,
        "queues.html",
        queues=queues,
        workers=workers,
        next_page_url=next_page_url(request, cursor),
        state=state,
        states=[member.value for member in State],
    )
