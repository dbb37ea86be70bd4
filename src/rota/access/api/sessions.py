"""Routes of login sessions: the caller's own or, for admins, all of the org."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Body, Request, Response

from rota.access.api import models
from rota.access.authentication import visible_sessions
from rota.access.devices import device_of
from rota.access.login_settings import LoginSettings, SessionLimits
from rota.access.store import logins
from rota.core.errors import Refused
from rota.db.paging import Record
from rota.frame.http.auth import Caller, Role, Viewer
from rota.frame.http.contract import Cursor, Limit, answer, answer_page, engine_of
from rota.frame.http.models import BodyRoute, page_of

router = APIRouter(route_class=BodyRoute)


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
        limits=session_limits(request),
    )
    return answer_page((described(page[0], caller), page[1]))


@router.post("/sessions/$end", tags=["sessions"], response_model=models.EndedSessions)
async def end_sessions(
    request: Request, caller: Viewer, body: Annotated[models.SessionsEnd, Body(default_factory=models.SessionsEnd)]
) -> Response:
    """End all login sessions of the caller's user, but not the one that makes the request. For an admin, `user_id` may
    be another user."""
    caller.check(Role.VIEWER, "sessions", writes=True)
    user_id = body.user_id or caller.user_id
    owner = visible_sessions(caller)
    if user_id != caller.user_id and owner.user_id is not None:
        raise Refused("ending the login sessions of other users needs the role admin")
    ended = await engine_of(request).db.tx(logins.end_sessions, replace(owner, user_id=user_id), caller.session_id)
    return answer({"ended": len(ended)})


@router.delete("/sessions/{session_id}", status_code=204, tags=["sessions"])
async def end_session(request: Request, caller: Viewer, session_id: str) -> Response:
    """End a login session: the caller's own or, for an admin, any of the org."""
    caller.check(Role.VIEWER, "sessions", writes=True)
    await engine_of(request).db.tx(logins.end_session, session_id, visible_sessions(caller))
    return Response(status_code=204)


def described(sessions: list[Record], caller: Caller) -> list[Record]:
    """Return login sessions with the device and whether the caller uses them for this request."""
    return [
        {**session, "device": device_of(session["user_agent"]), "current": session["id"] == caller.session_id}
        for session in sessions
    ]


def session_limits(request: Request) -> SessionLimits:
    settings: LoginSettings = request.app.state.login
    return settings.session_limits
