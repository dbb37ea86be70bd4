"""Login sessions and CSRF protection of the dashboard.

A cookie has a random token; the row with its hash is the session. Each form has a CSRF token derived from the cookie.
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
    LAST_USED_PRECISION,
    Authentication,
    Caller,
    Role,
    SessionUser,
    Unauthenticated,
    record_caller,
    require_role,
)
from rota.frame.http.exposure import is_https
from rota.frame.http.limits import read_bytes

SESSION_COOKIE = "rota_session"
LOGIN_COOKIE = "rota_login"  # its value yields the CSRF token of the login form
TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
MAX_FORM_FIELDS = 1000  # of a form

NOT_LOGGED_IN = "not logged in"


@dataclass(frozen=True, slots=True)
class Session:
    """The login session of a request, as pages use it."""

    id: str
    user: SessionUser
    csrf_token: str
    role: Role


async def signed_in(request: Request, later: BackgroundTasks) -> Caller:
    """Return the caller of the session cookie. Raises Unauthenticated."""
    token = request.cookies.get(SESSION_COOKIE, "")
    now: datetime = request.app.state.engine.clock.now()
    authentication: Authentication = request.app.state.authentication
    session = await authentication.login_session(token, now) if TOKEN.fullmatch(token) else None
    if session is None:
        raise Unauthenticated(NOT_LOGGED_IN)
    caller = session.caller
    request.state.session = Session(session.id, session.user, csrf_token(token), caller.role)
    if now - session.last_used_at >= LAST_USED_PRECISION:
        later.add_task(authentication.record_session_use, session.id, now)
    await record_caller(request, later, caller)
    return caller


SignedIn = Annotated[Caller, Depends(signed_in)]  # any role: the API checks permissions
Viewer = Annotated[Caller, Depends(require_role(Role.VIEWER, signed_in))]
Admin = Annotated[Caller, Depends(require_role(Role.ADMIN, signed_in))]


# forms


async def check_csrf(request: Request) -> None:
    """Dependency of every route. Raises Refused for a write without the CSRF token of the session."""
    if request.method in ("GET", "HEAD"):
        return
    cookie = request.cookies.get(LOGIN_COOKIE if request.url.path == "/login" else SESSION_COOKIE, "")
    if not cookie and request.url.path != "/login":
        raise Unauthenticated(NOT_LOGGED_IN)
    sent_token = (await read_form(request)).get("csrf_token", "")
    if not cookie or not hmac.compare_digest(sent_token.encode(), csrf_token(cookie).encode()):
        raise Refused("the form has expired, or is from another site; go back, reload the page and try again")


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of the form; reads the body once per request. Raises HTTPException 415, Invalid."""
    if not hasattr(request.state, "form"):
        raw = await read_bytes(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if raw and kind != "application/x-www-form-urlencoded":
            raise HTTPException(415, f"the content type of the body is {kind or 'missing'}; send a form")
        try:
            fields = dict(parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS))
        except ValueError as error:
            raise Invalid("form", "…", f"cannot be read: {error}") from error
        for name, value in fields.items():
            if "\0" in value:
                raise Invalid(name, "…", "has a NUL character")
        request.state.form = fields
    form: dict[str, str] = request.state.form
    return form


def csrf_token(cookie: str) -> str:
    """Return the CSRF token for forms shown to the browser with this cookie."""
    return hmac.digest(cookie.encode(), b"csrf", "sha256").hex()


def set_cookie(request: Request, response: Response, name: str, value: str, life: timedelta | None = None) -> None:
    seconds = None if life is None else int(life.total_seconds())
    response.set_cookie(name, value, max_age=seconds, httponly=True, samesite="lax", secure=is_https(request))
