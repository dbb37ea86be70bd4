"""Page of alarms: what fires, the alarms and their channels."""

from fastapi import APIRouter, Request, Response

from rota.core.alarms import RULES, RUN_EVENTS, EventState
from rota.frame.http.reports import reports_of
from rota.frame.web.pages import NavigationItem, page
from rota.frame.web.sessions import Viewer
from rota.kinds.alarms.store import rows

router = APIRouter()

NAVIGATION = [NavigationItem("/alarms", "Alarms", "l", "bell", 2)]
RESOLVED_SHOWN = 20


@router.get("/alarms")
async def list_all(request: Request, caller: Viewer) -> Response:
    db = reports_of(request, caller)
    resolved, _ = await db.read(rows.list_events, caller.org_id, limit=RESOLVED_SHOWN, state=EventState.RESOLVED)
    return page(
        request,
        "alarms.html",
        items=await db.read(rows.list_alarms, caller.org_id),
        channels=await db.read(rows.list_channels, caller.org_id),
        events=await db.read(rows.open_events, caller.org_id),
        resolved=resolved,
        rules={**{name: kind.meaning for name, kind in RULES.items()}, **dict.fromkeys(RUN_EVENTS, "a run ended so")},
    )
