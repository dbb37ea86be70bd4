"""Forms of the dashboard call routes of the API in this process, as the user of the login session.

Roles, audit log, validation and error messages are those of the API. The action of a form is the route without
`/api/v1`, and its fields have the names of the API. Control fields: `then` (redirect target), `said` (flash message),
`use` (command that shows a secret of the answer), `form_method` (instead of POST), `if_match`, `audit_reason`.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson
import structlog
from fastapi import APIRouter, BackgroundTasks, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.types import Message, Receive, Scope, Send

from rota.frame.http.auth import SESSION_SCOPE_KEY, Caller, Unauthenticated
from rota.frame.web.forms import body_of, schema_of_route
from rota.frame.web.pages import flash, page, preferences, safe_redirect_path
from rota.frame.web.sessions import SignedIn, read_form, signed_in

METHODS = ("POST", "PUT", "PATCH", "DELETE")
SECRET_FIELDS = ("key", "admin_key", "token", "agent_key")  # fields of answers that are shown only once
COPIED_SCOPE_KEYS = ("type", "asgi", "http_version", "server", "client", "scheme", "root_path")

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    data: Any  # JSON of the API

    @property
    def refusal(self) -> str | None:
        """The error message of the API; None if it did not refuse."""
        return None if self.status < 400 else str((self.data or {}).get("detail", "request refused"))


@router.get("/live/events")
async def events(request: Request, _: SignedIn, since: str = "") -> Response:
    """Stream changes of the org to the page's script; `since` is the stream position of the page."""
    last = request.headers.get("last-event-id") or since
    return Stream(request, "/events", accept="text/event-stream", last_event_id=last)


@router.get("/live/runs/{run_id}/logs")
async def log(request: Request, _: SignedIn, run_id: str, after: int = 0) -> Response:
    """Stream the log of a run."""
    last = request.headers.get("last-event-id", "")
    return Stream(request, f"/runs/{run_id}/logs", f"after={after}", accept="text/event-stream", last_event_id=last)


@router.get("/files/{artifact_id}")
async def file(request: Request, _: SignedIn, artifact_id: str) -> Response:
    """Return an artifact as the API returns it: as a download, never as a page."""
    sent = {name: request.headers.get(name.replace("_", "-"), "") for name in ("range", "if_range")}
    return Stream(request, f"/artifacts/{artifact_id}/$content", **sent)


@router.get("/{path:path}")
async def page_not_found(request: Request, later: BackgroundTasks, path: str) -> Response:
    with suppress(Unauthenticated):
        await signed_in(request, later)  # to show the navigation
    raise HTTPException(404, f"page /{path} not found")


@router.post("/{path:path}")
async def act(request: Request, _: SignedIn, path: str) -> Response:
    """Execute the API route of a form, then redirect to the page in `then`."""
    form = await read_form(request)
    method = form.get("form_method", "POST")
    if method not in METHODS:
        raise HTTPException(405, f"{method} is not a method of forms")
    schema = schema_of_route(request.app.state.api.openapi(), method, f"/api/v1/{path}")
    body = body_of(form, preferences(request).zone, schema)
    headers = {"if_match": form.get("if_match", ""), "x_reason": form.get("audit_reason", "")}
    answer = await call_api(request, method, f"/{path}", None if method == "DELETE" else body, **headers)
    then = safe_redirect_path(fill_placeholders(form.get("then", ""), answer.data, quote))
    if answer.refusal is not None:
        wrong = (answer.data or {}).get("errors", [])
        return page(request, "refused.html", answer.status, message=answer.refusal, wrong=wrong, then=then)
    answer_fields = answer.data if isinstance(answer.data, dict) else {}
    if secret := next((answer_fields[name] for name in SECRET_FIELDS if name in answer_fields), None):
        shown_as = fill_placeholders(form["use"], answer_fields, str) if form.get("use") else secret
        return page(request, "secret.html", secret=shown_as, made={"name": "it", **answer_fields}, then=then)
    response = RedirectResponse(then, 303)
    flash(request, response, fill_placeholders(form.get("said", "Done"), answer.data, str))
    return response


async def call_api(request: Request, method: str, path: str, body: object = None, **headers: str) -> Answer:
    """Call the API as the user of the login session."""
    raw, status, parts = b"" if body is None else orjson.dumps(body), 500, []

    async def receive() -> Message:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    sent_headers = {"content_type": "application/json", **headers}
    await request.app.state.api(scope_of(request, method, path, "", sent_headers), receive, send)
    text = b"".join(parts)
    return Answer(status, orjson.loads(text) if text else None)


class Stream(Response):
    """Streams an answer of the API."""

    def __init__(self, request: Request, path: str, query: str = "", **headers: str) -> None:
        super().__init__()
        self.api, self.inner = request.app.state.api, scope_of(request, "GET", path, query, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        async def once(message: Message) -> None:  # the outer middleware adds the request id
            if message["type"] == "http.response.start":
                message["headers"] = [header for header in message["headers"] if header[0] != b"x-request-id"]
            await send(message)

        await self.api(self.inner, receive, once)


def scope_of(request: Request, method: str, path: str, query: str, headers: Mapping[str, str]) -> Scope:
    """Return the ASGI scope of an internal API request, with a function that authenticates the login session again."""

    async def caller() -> Caller:
        return await signed_in(request, BackgroundTasks())

    request_id = structlog.contextvars.get_contextvars().get("request_id", "")
    sent_headers = {**headers, "host": request.headers.get("host", ""), "x_request_id": str(request_id)}
    full = f"/api/v1{path}"
    return {
        **{name: request.scope[name] for name in COPIED_SCOPE_KEYS if name in request.scope},
        "method": method,
        "path": full,
        "raw_path": quote(full).encode(),
        "query_string": query.encode(),
        SESSION_SCOPE_KEY: caller,
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in sent_headers.items() if value],
    }


def fill_placeholders(text: str, data: object, write: Callable[[str], str]) -> str:
    """Replace placeholders such as `{job_id}` by fields of the answer."""
    fields = data if isinstance(data, dict) else {}
    return re.sub(r"\{(\w+)\}", lambda match: write(str(fields.get(match[1], ""))), text)
