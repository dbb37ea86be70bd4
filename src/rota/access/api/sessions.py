"""Routes of login sessions: the caller's own or, for admins, all of the org."""

from fastapi import APIRouter, Request, Response

from rota.access.api import models
from rota.access.authentication import visible_sessions
from rota.access.store import logins
from rota.frame.http.auth import Role, Viewer
from rota.frame.http.contract import Cursor, Limit, answer_page, engine_of
from rota.frame.http.models import page_of

router = APIRouter()


@router.get("/sessions", tags=["sessions"], response_model=page_of(models.Session))
async def list_sessions(
    request: Request, caller: Viewer, limit: Limit = 50, cursor: Cursor = None, user_id: str | None = None
) -> Response:
    """List login sessions: the caller's own, or all of the org for an admin.

    For a key without the role admin, these are the sessions started by its login links.
    """
    engine = engine_of(request)
    page = await engine.db.read(
        logins.list_sessions,
        engine.clock.now(),
        visible_sessions(caller),
        limit=limit,
        cursor=cursor,
        user_id=user_id,
    )
    return answer_page(page)


@router.delete("/sessions/{session_id}", status_code=204, tags=["sessions"])
async def end_session(request: Request, caller: Viewer, session_id: str) -> Response:
    """End a login session: the caller's own or, for an admin, any of the org."""
    caller.check(Role.VIEWER, "sessions", writes=True)
    await engine_of(request).db.tx(logins.end_session, session_id, visible_sessions(caller))
    return Response(status_code=204)
