"""What all pages share: how they are rendered, which headers they carry, how a refusal looks."""

import re
import shlex
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

import orjson
import structlog
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.core.errors import Invalid, RotaError
from rota.core.explain import REASON_TEXTS
from rota.core.states import shown_status
from rota.core.timing.describe import short_span
from rota.core.timing.dst import zone_names, zone_of
from rota.db.column_types import EPOCH, TICK
from rota.db.paging import Record
from rota.engine import dashboard
from rota.engine.commands import Engine
from rota.frame.http.auth import Caller, Role, Unauthenticated
from rota.frame.http.exposure import base_url_of
from rota.frame.http.guessing import TooManyFailures
from rota.frame.http.limits import QUERY_VALUE_LIMIT, SECURITY_HEADERS, status_of
from rota.frame.web import charts
from rota.frame.web.forms import kind_of

FLASH = "rota_flash"
OWN_PATH = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]*")  # of this site: browsers read `/\x` and `/<tab>/x` as `//x`

log = structlog.get_logger("rota.web")


@dataclass(frozen=True, slots=True)
class Place:
    """A page of the navigation. `key` behind `g` goes there."""

    path: str
    title: str
    key: str
    icon: str
    group: int = 0  # what belongs together stands together
    admins: bool = False  # shown to admins only


@dataclass(frozen=True, slots=True)
class Preferences:
    """How somebody wants to see things, from cookies: they are no secret, and hold in this browser."""

    theme: str  # light, dark, or as the system has it
    time: str  # UTC, a zone, or `schedule`: each in its own

    @property
    def zone(self) -> str:
        """Where no schedule says another."""
        return self.time if self.time in zone_names() else "UTC"


def safe_redirect_path(text: str) -> str:
    """Return a path of this site as it is, and `/` for anything else: no link leads to another site by a redirect."""
    return text if OWN_PATH.fullmatch(text) else "/"


def preferences(request: Request) -> Preferences:
    theme, time = request.cookies.get("rota_theme", ""), unquote(request.cookies.get("rota_time", ""))
    known = time == "schedule" or time in zone_names()
    return Preferences(theme if theme in ("light", "dark") else "", time if known else "UTC")


def page(request: Request, template: str, status: int = 200, **shown: Any) -> Response:
    """A page. Templates know `session`, None for somebody who is not logged in, `now`, and what is given here."""
    session, now = getattr(request.state, "session", None), request.app.state.engine.clock.now()
    role = session.role if session else Role.VIEWER
    given = {
        "session": session, "now": now, "places": visible_places(request, role), "here": request.url.path,
        "address": f"{request.url.path}?{request.url.query}".rstrip("?"), "look": Look(preferences(request), now),
        "flash": unquote(request.cookies.get(FLASH, "")), "operator": role >= Role.OPERATOR,
        "admin": role >= Role.ADMIN, "because": REASON_TEXTS, "since": (now - EPOCH) // TICK,
        "base": base_url_of(request),
    }  # fmt: skip
    response = HTMLResponse(TEMPLATES.get_template(template).render(**{**given, **shown}), status)
    if given["flash"]:
        response.delete_cookie(FLASH)
    return response


def visible_places(request: Request, role: Role) -> list[Place]:
    """The pages of the navigation that a role may open."""
    return [place for place in request.app.state.places if role >= Role.ADMIN or not place.admins]


async def history(request: Request, caller: Caller, resource: str, resource_id: str) -> list[Record] | None:
    """Who changed a resource, newest first; None for callers who may not read the audit log."""
    if not caller.may(Role.ADMIN, "audit"):
        return None
    return await engine_of(request).db.read(dashboard.history, caller.org_id, resource, resource_id)


def engine_of(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


def flash(request: Request, response: Response, text: str) -> None:
    """Tell it on the next page, once."""
    secure = request.url.scheme == "https"
    response.set_cookie(FLASH, quote(text[:500]), max_age=60, httponly=True, samesite="lax", secure=secure)


def asked(request: Request, *names: str) -> dict[str, str | None]:
    """The filters that stand in the address; what is empty asks nothing. Raises Invalid if one is too long."""
    for name in names:
        if len(request.query_params.get(name, "")) > QUERY_VALUE_LIMIT:
            raise Invalid(name, request.query_params[name], f"is longer than {QUERY_VALUE_LIMIT} characters")
    return {name: request.query_params.get(name, "").strip().replace("\0", "") or None for name in names}


def older(request: Request, cursor: str | None) -> str | None:
    """The address of the list's next page."""
    query = {**request.query_params, "cursor": cursor}
    return f"{request.url.path}?{urlencode(query)}" if cursor else None


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
                headers.update(SECURITY_HEADERS)
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


@dataclass(frozen=True, slots=True)
class Look:
    """How moments look to somebody: in UTC, in their own zone, or in that of the schedule at hand."""

    prefers: Preferences
    now: datetime

    def at(self, moment: datetime, own: str | None = None) -> str:
        """In full, with its zone."""
        return self.local(moment, own).strftime("%Y-%m-%d %H:%M:%S %Z")

    def away(self, moment: datetime, own: str | None = None) -> str:
        """`in 5m`, `2h ago`; further away than a day the date."""
        if abs(moment - self.now) >= timedelta(days=1):
            return self.local(moment, own).strftime("%Y-%m-%d %H:%M %Z")
        span = short_span(abs(moment - self.now))
        return f"in {span}" if moment > self.now else f"{span} ago"

    def local(self, moment: datetime, own: str | None = None) -> datetime:
        zone = own if self.prefers.time == "schedule" and own in zone_names() else self.prefers.zone
        return moment.astimezone(zone_of(zone or "UTC"))

    def field(self, moment: datetime | None, own: str | None = None) -> str:
        """As a field for a moment takes it."""
        return f"{moment.astimezone(zone_of(own or self.prefers.zone)):%Y-%m-%dT%H:%M}" if moment else ""


def utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def sentence(message: str) -> str:
    """A message of ours as it stands alone."""
    return f"{message[:1].upper()}{message[1:]}{'' if message.endswith(('.', '!', '?')) else '.'}"


def said(error: Any) -> str:
    """The first line of what a run said when it failed."""
    found = error.get("message") if isinstance(error, dict) else error
    return str(found or "").strip().partition("\n")[0]


def pretty(value: Any) -> str:
    """A value as people read it: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode()


def span(seconds: float) -> str:
    """`300 ms`, `1.2s`, `12s`, `3m20s`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:{'.2g' if seconds < 0.0995 else '.0f'}} ms"
    return f"{seconds:.1f}s" if seconds < 10 else short_span(timedelta(seconds=seconds))


def of(count: int, unit: str) -> str:
    """`1 slot`, `1,200 slots`."""
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


def credits(amount: int) -> str:
    return f"{amount:,}".replace(",", "\u202f")


STATIC = Path(__file__).parent / "static"
PAGE_OF = {  # where a resource of the audit log is shown
    "schedules": "/schedules/", "tasks": "/tasks/", "workflows": "/workflows/", "hosts": "/hosts/", "runs": "/runs/",
    "jobs": "/runs/",
}  # fmt: skip
TEMPLATES = Environment(
    loader=FileSystemLoader(sorted(Path(__file__).parents[2].rglob("templates"))),  # each slice has its own
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters.update(
    utc=utc, said=said, sentence=sentence, short=short_span, pretty=pretty, span=span, credits=credits, of=of,
    query=lambda text: quote(str(text), safe=""), sh=shlex.quote, shown_status=shown_status,
)  # fmt: skip
TEMPLATES.globals.update(page_of=PAGE_OF, charts=charts, kind_of=kind_of, to_span=span)
