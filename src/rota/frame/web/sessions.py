"""Who is logged in. A cookie holds a random token; the session is the row that has its hash, and ends with that row.

Each form carries a token that follows from the cookie: only a page of ours can have shown it to this browser.
"""

import hmac
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import BackgroundTasks, Depends, Request, Response
from starlette.exceptions import HTTPException

from rota.core.errors import Invalid, Refused
from rota.frame.http.auth import (
    USED_EVERY,
    Authentication,
    Caller,
    Role,
    SessionUser,
    Unauthenticated,
    at_least,
    note_caller,
)
from rota.frame.http.limits import read_bytes

COOKIE = "rota_session"
LOGIN_COOKIE = "rota_login"  # what the login form's token follows from, before there is a session
SHAPE = re.compile(r"[A-Za-z0-9_-]{43}")
FIELDS = 1000  # of a form

NOT_LOGGED_IN = "nobody is logged in here"


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody who is logged in, as pages show them."""

    id: str
    user: SessionUser
    csrf_token: str
    role: Role


async def signed_in(request: Request, later: BackgroundTasks) -> Caller:
    """The caller behind a session, who is the same to the rest of Rota as one with a key."""
    token = request.cookies.get(COOKIE, "")
    now: datetime = request.app.state.engine.clock.now()
    authentication: Authentication = request.app.state.authentication
    session = await authentication.login_session(token, now) if SHAPE.fullmatch(token) else None
    if session is None:
        raise Unauthenticated(NOT_LOGGED_IN)
    caller = session.caller
    request.state.session = Session(session.id, session.user, csrf_token(token), caller.role)
    if now - session.last_used_at >= USED_EVERY:
        later.add_task(authentication.record_session_use, session.id, now)
    await note_caller(request, later, caller)
    return caller


SignedIn = Annotated[Caller, Depends(signed_in)]  # where the API judges what they may do
Viewer = Annotated[Caller, Depends(at_least(Role.VIEWER, signed_in))]
Admin = Annotated[Caller, Depends(at_least(Role.ADMIN, signed_in))]


# forms


async def check_csrf(request: Request) -> None:
    """Before every route: what changes something must come from a form of ours."""
    if request.method in ("GET", "HEAD"):
        return
    cookie = request.cookies.get(LOGIN_COOKIE if request.url.path == "/login" else COOKIE, "")
    if not cookie and request.url.path != "/login":
        raise Unauthenticated(NOT_LOGGED_IN)
    given = (await read_form(request)).get("csrf_token", "")
    if not cookie or not hmac.compare_digest(given.encode(), csrf_token(cookie).encode()):
        raise Refused("this form is too old, or did not come from here; go back, load the page anew and try again")


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form, read once per request."""
    if not hasattr(request.state, "form"):
        raw = await read_bytes(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if raw and kind != "application/x-www-form-urlencoded":
            raise HTTPException(415, f"the body is {kind or 'of no type'}; send a form")
        try:
            fields = dict(parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=FIELDS))
        except ValueError as error:
            raise Invalid("form", "…", f"cannot be read: {error}") from error
        for name, value in fields.items():
            if "\0" in value:
                raise Invalid(name, "…", "has a NUL character")
        request.state.form = fields
    form: dict[str, str] = request.state.form
    return form


def csrf_token(cookie: str) -> str:
    """The token of the forms that are shown to the browser with this cookie."""
    return hmac.digest(cookie.encode(), b"csrf", "sha256").hex()


def set_cookie(request: Request, response: Response, name: str, value: str, life: timedelta | None = None) -> None:
    seconds, secure = None if life is None else int(life.total_seconds()), request.url.scheme == "https"
    response.set_cookie(name, value, max_age=seconds, httponly=True, samesite="lax", secure=secure)
