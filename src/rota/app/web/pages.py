"""What all pages share: how they are rendered, which headers they carry, how a refusal looks."""

import traceback
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import structlog
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.app.auth import TooManyFailures, Unauthenticated
from rota.app.http import status_of
from rota.core.errors import RotaError
from rota.core.words import short

POLICY = {
    "default-src": "'none'", "style-src": "'self'", "script-src": "'self'", "img-src": "'self' data:",
    "connect-src": "'self'", "form-action": "'self'", "base-uri": "'none'", "frame-ancestors": "'none'",
}  # fmt: skip
HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # a login link is an address
}

log = structlog.get_logger("rota.web")


def page(request: Request, template: str, status: int = 200, **shown: Any) -> Response:
    """A page. Templates know `session`, None for somebody who is not logged in, `now`, and what is given here."""
    session, now = getattr(request.state, "session", None), request.app.state.engine.clock.now()
    return HTMLResponse(TEMPLATES.get_template(template).render(session=session, now=now, **shown), status)


async def on_error(request: Request, error: Exception) -> Response:
    """Refusals as pages; somebody who is not logged in is asked to."""
    if isinstance(error, Unauthenticated):
        asked = f"{request.url.path}?{request.url.query}".rstrip("?")
        back = f"?next={quote(asked, safe='')}" if request.method == "GET" and asked != "/" else ""
        return RedirectResponse(f"/login{back}", 303)
    if isinstance(error, HTTPException):
        return error_page(request, error.status_code, error.detail)
    if isinstance(error, RequestValidationError):
        return error_page(request, 422, "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors()))
    assert isinstance(error, RotaError)
    status = status_of(error)
    if status is None:
        raise error
    answer = error_page(request, status, error.message)
    if isinstance(error, TooManyFailures):
        answer.headers["retry-after"] = str(error.seconds)
    return answer


def error_page(request: Request, status: int, message: str) -> Response:
    return page(request, "error.html", status, title=HTTPStatus(status).phrase, message=message)


class Frame:
    """Around every page: its headers, and an error that nobody expected tells nothing but the request's id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_framed(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers["cache-control"] = "no-cache" if scope["path"].startswith("/static/") else "no-store"
            await send(message)

        try:
            await self.app(scope, receive, send_framed)
        except Exception:
            if started:
                raise
            log.error("a page failed", path=scope["path"], exception=traceback.format_exc())
            request_id = structlog.contextvars.get_contextvars().get("request_id")
            told = f"Something went wrong here that should not; the server's log has it under {request_id}."
            await error_page(Request(scope), 500, told)(scope, receive, send_framed)


# how values look


def away(moment: datetime, now: datetime) -> str:
    """`in 5m`, `2h ago`; further away than a day the date."""
    if abs(moment - now) >= timedelta(days=1):
        return utc(moment)
    span = short(abs(moment - now))
    return f"in {span}" if moment > now else f"{span} ago"


def utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def sentence(message: str) -> str:
    """A message of ours as it stands alone."""
    return f"{message[:1].upper()}{message[1:]}{'' if message.endswith('.') else '.'}"


def said(error: Any) -> str:
    """The first line of what a run said when it failed."""
    found = error.get("message") if isinstance(error, dict) else error
    return str(found or "").strip().partition("\n")[0]


TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters.update(away=away, utc=utc, said=said, sentence=sentence, short=short)
