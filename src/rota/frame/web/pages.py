"""Rendering of pages: templates, navigation, headers, error pages, formats of values."""

import re
import shlex
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
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
from rota.engine.commands import Engine
from rota.frame.http.auth import Caller, Role, Unauthenticated
from rota.frame.http.exposure import base_url_of, is_https, mount_of
from rota.frame.http.guessing import TooManyFailures
from rota.frame.http.limits import MAX_QUERY_VALUE_CHARACTERS, SECURITY_HEADERS, status_of
from rota.frame.web import charts, log_text, step_timeline
from rota.frame.web.forms import kind_of
from rota.reports.audit import list_audit

FLASH_COOKIE = "rota_flash"
HISTORY_ROWS = 20  # of the audit log of a resource
LOCAL_PATH = re.compile(
    r"/(?![/\\])[^\\\x00-\x20\x7f]*"
)  # paths of this site: browsers read `/\x` and `/<tab>/x` as `//x`

LINK = re.compile(r'(?<=\s)(href|action|formaction|src|data-follow|data-log|data-compare)="/(?!/)')

log = structlog.get_logger("rota.web")


@dataclass(frozen=True, slots=True)
class NavigationItem:
    """An entry of the navigation. `g` followed by `key` opens it."""

    path: str
    title: str
    key: str
    icon: str
    group: int = 0  # entries are grouped by this number
    admins: bool = False  # shown to admins only


@dataclass(frozen=True, slots=True)
class Preferences:
    """Display preferences, stored in cookies of the browser."""

    theme: str  # light, dark, or empty for the system's
    time: str  # UTC, a zone, or `schedule` for the zone of each schedule
    density: str = ""  # of lists: comfortable, or empty for compact

    @property
    def zone(self) -> str:
        """The zone for times that do not belong to a schedule."""
        return self.time if self.time in zone_names() else "UTC"


def safe_redirect_path(text: str) -> str:
    """Return a path of this site unchanged, and `/` for anything else: prevents open redirects."""
    return text if LOCAL_PATH.fullmatch(text) else "/"


def preferences(request: Request) -> Preferences:
    theme, time = request.cookies.get("rota_theme", ""), unquote(request.cookies.get("rota_time", ""))
    known = time == "schedule" or time in zone_names()
    density = "comfortable" if request.cookies.get("rota_density") == "comfortable" else ""
    return Preferences(theme if theme in ("light", "dark") else "", time if known else "UTC", density)


def page(request: Request, template: str, status: int = 200, **shown: object) -> Response:
    """Render a template. All templates have `session` (None if not logged in), `now` and other shared values."""
    session, now = getattr(request.state, "session", None), request.app.state.engine.clock.now()
    role = session.role if session else Role.VIEWER
    shared = {
        "session": session,
        "now": now,
        "places": visible_places(request, role),
        "here": request.url.path,
        "address": f"{request.url.path}?{request.url.query}".rstrip("?"),
        "times": TimeFormat(preferences(request), now),
        "flash": unquote(request.cookies.get(FLASH_COOKIE, "")),
        "operator": role >= Role.OPERATOR,
        "admin": role >= Role.ADMIN,
        "because": REASON_TEXTS,
        "since": (now - EPOCH) // TICK,
        "base": base_url_of(request),
        "mount": mount_of(request),
    }
    html = TEMPLATES.get_template(template).render(**{**shared, **shown})
    response = HTMLResponse(links_below(mount_of(request), html), status)
    if shared["flash"]:
        response.delete_cookie(FLASH_COOKIE)
    return response


def links_below(mount: str, html: str) -> str:
    """Return a page with the mount prefix in front of the paths of its links and forms. Quotes in texts are escaped, so
    the pattern matches attributes only."""
    return LINK.sub(lambda match: f'{match[1]}="{mount}/', html) if mount else html


def visible_places(request: Request, role: Role) -> list[NavigationItem]:
    """Return the navigation for a role."""
    return [place for place in request.app.state.places if role >= Role.ADMIN or not place.admins]


async def history(request: Request, caller: Caller, resource: str, resource_id: str) -> list[Record] | None:
    """Return the audit log of a resource, newest first; None if the caller may not read it."""
    if not caller.may(Role.ADMIN, "audit"):
        return None
    entries, _ = await engine_of(request).db.read(
        list_audit, caller.org_id, limit=HISTORY_ROWS, resource=resource, resource_id=resource_id
    )
    return entries


def engine_of(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


def flash(request: Request, response: Response, text: str) -> None:
    """Show a message on the next page."""
    response.set_cookie(
        FLASH_COOKIE, quote(text[:500]), max_age=60, httponly=True, samesite="lax", secure=is_https(request)
    )


def query_values(request: Request, *names: str) -> dict[str, str | None]:
    """Return the named query parameters, None for empty ones. Raises Invalid if one is too long."""
    for name in names:
        if len(request.query_params.get(name, "")) > MAX_QUERY_VALUE_CHARACTERS:
            raise Invalid(name, request.query_params[name], f"is longer than {MAX_QUERY_VALUE_CHARACTERS} characters")
    return {name: request.query_params.get(name, "").strip().replace("\0", "") or None for name in names}


def next_page_url(request: Request, cursor: str | None) -> str | None:
    """Return the URL of the next page of a list, None on the last."""
    query = {**request.query_params, "cursor": cursor}
    return f"{request.url.path}?{urlencode(query)}" if cursor else None


async def on_error(request: Request, error: Exception) -> Response:
    """Return an error as a page; redirects to the login page if not logged in."""
    if isinstance(error, Unauthenticated):
        url = f"{request.url.path}?{request.url.query}".rstrip("?")
        back = f"?next={quote(url, safe='')}" if request.method == "GET" and url != "/" else ""
        return RedirectResponse(f"/login{back}", 303)
    if isinstance(error, HTTPException):
        return error_page(request, error.status_code, error.detail)
    if isinstance(error, RequestValidationError):
        return error_page(
            request, 422, "; ".join(f"{problem['loc'][-1]}: {problem['msg']}" for problem in error.errors())
        )
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


class PageMiddleware:
    """Middleware of pages: adds security headers; logs unexpected errors and shows only the request id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_framed(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)  # previews of artifacts have a stricter policy of their own
                headers["cache-control"] = "no-cache" if scope["path"].startswith("/static/") else "no-store"
            await send(message)

        try:
            await self.app(scope, receive, send_framed)
        except Exception:
            if started:
                raise
            log.error("page failed", path=scope["path"], exception=traceback.format_exc())
            request_id = structlog.contextvars.get_contextvars().get("request_id")
            message_text = f"Internal error; see the server's log for request {request_id}."
            await error_page(Request(scope), 500, message_text)(scope, receive, send_framed)


# formats of values


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """Formats times in UTC, in the user's zone, or in the zone of a schedule."""

    prefers: Preferences
    now: datetime

    def at(self, at: datetime, own: str | None = None) -> str:
        """Return date, time and zone."""
        return self.local(at, own).strftime("%Y-%m-%d %H:%M:%S %Z")

    def relative(self, at: datetime, own: str | None = None) -> str:
        """Return `in 5m` or `2h ago`; from one day on the date."""
        if abs(at - self.now) >= timedelta(days=1):
            return self.local(at, own).strftime("%Y-%m-%d %H:%M %Z")
        span = short_span(abs(at - self.now))
        return f"in {span}" if at > self.now else f"{span} ago"

    def local(self, at: datetime, own: str | None = None) -> datetime:
        zone = own if self.prefers.time == "schedule" and own in zone_names() else self.prefers.zone
        return at.astimezone(zone_of(zone or "UTC"))

    def field(self, at: datetime | None, own: str | None = None) -> str:
        """Return the value of an <input type="datetime-local">."""
        return f"{at.astimezone(zone_of(own or self.prefers.zone)):%Y-%m-%dT%H:%M}" if at else ""


def utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def sentence(message: str) -> str:
    """Return a message as a sentence: capitalised, with a full stop."""
    return f"{message[:1].upper()}{message[1:]}{'' if message.endswith(('.', '!', '?')) else '.'}"


def error_line(error: object) -> str:
    """Return the first line of the error message of a run."""
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or "").strip().partition("\n")[0]


def pretty(value: object) -> str:
    """Return text unchanged, any other value as indented JSON."""
    if isinstance(value, str):
        return value
    return orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode()


def compact(value: object) -> str:
    """Return text unchanged, any other value as JSON in one line."""
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def span(seconds: float) -> str:
    """`300 ms`, `1.2s`, `12s`, `3m20s`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:{'.2g' if seconds < 0.0995 else '.0f'}} ms"
    return f"{seconds:.1f}s" if seconds < 10 else short_span(timedelta(seconds=seconds))


def plural(count: int, unit: str) -> str:
    """`1 slot`, `1,200 slots`."""
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


def credits(amount: int) -> str:
    return f"{amount:,}".replace(",", "\u202f")


STATIC = Path(__file__).parent / "static"
PAGE_OF = {  # page of a resource of the audit log
    "schedules": "/schedules/", "tasks": "/tasks/", "workflows": "/workflows/", "hosts": "/hosts/", "runs": "/runs/",
    "jobs": "/runs/", "calendars": "/calendars/", "freeze-windows": "/freeze-windows/",
}  # fmt: skip
TEMPLATES = Environment(
    loader=FileSystemLoader(sorted(Path(__file__).parents[2].rglob("templates"))),  # each slice has its own
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters.update(
    utc=utc, error_line=error_line, sentence=sentence, short=short_span, pretty=pretty, span=span, credits=credits,
    plural=plural, compact=compact, query=lambda text: quote(str(text), safe=""), sh=shlex.quote,
    shown_status=shown_status,
)  # fmt: skip
TEMPLATES.globals.update(
    page_of=PAGE_OF, charts=charts, step_timeline=step_timeline, log_text=log_text, kind_of=kind_of, to_span=span,
)  # fmt: skip
