"""Every form does what one route of the API does: it is asked in this process, for the person who is logged in.

So roles, audit log, checks and the words of a refusal are those of the API, and a page needs no code to act: a form
whose address is the route's, without `/api/v1`, and whose fields have the wire's names. Beside them stand `then`, the
page that follows, `said`, what it tells, `use`, the command that takes an answer's secret, `form_method` for what is no
POST, `if_match`, and `audit_reason`.
"""

import re
from collections.abc import Mapping
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

from rota.frame.http.auth import SESSION, Caller, Unauthenticated
from rota.frame.web.forms import body_of
from rota.frame.web.pages import flash, page, preferences, safe_redirect_path
from rota.frame.web.sessions import SignedIn, read_form, signed_in

METHODS = ("POST", "PUT", "PATCH", "DELETE")
SECRETS = ("key", "admin_key", "token", "agent_key")  # what an answer tells only once
KEPT = ("type", "asgi", "http_version", "server", "client", "scheme", "root_path")

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    data: Any

    @property
    def refusal(self) -> str | None:
        """What the API said when it refused."""
        return None if self.status < 400 else str((self.data or {}).get("detail", "It was refused"))


@router.get("/live/events")
async def events(request: Request, _: SignedIn, since: str = "") -> Response:
    """What changes in the org, for the script of a page; `since` is where that page stands."""
    last = request.headers.get("last-event-id") or since
    return Stream(request, "/events", accept="text/event-stream", last_event_id=last)


@router.get("/live/runs/{run_id}/logs")
async def log(request: Request, _: SignedIn, run_id: str, after: int = 0) -> Response:
    """A run's log as it is written."""
    last = request.headers.get("last-event-id", "")
    return Stream(request, f"/runs/{run_id}/logs", f"after={after}", accept="text/event-stream", last_event_id=last)


@router.get("/files/{artifact_id}")
async def file(request: Request, _: SignedIn, artifact_id: str) -> Response:
    """What a run saved, as the API gives it out: never as a page."""
    return Stream(request, f"/artifacts/{artifact_id}/$content")


@router.get("/{path:path}")
async def nowhere(request: Request, later: BackgroundTasks, path: str) -> Response:
    with suppress(Unauthenticated):
        await signed_in(request, later)  # so that the navigation is shown
    raise HTTPException(404, f"page /{path} not found")


@router.post("/{path:path}")
async def act(request: Request, _: SignedIn, path: str) -> Response:
    """Do what a form says, and go on to the page that it names."""
    form = await read_form(request)
    method = form.get("form_method", "POST")
    if method not in METHODS:
        raise HTTPException(405, f"{method} is no method of a form")
    body = body_of(form, preferences(request).zone)
    said = {"if_match": form.get("if_match", ""), "x_reason": form.get("audit_reason", "")}
    answer = await ask(request, method, f"/{path}", None if method == "DELETE" else body, **said)
    then = safe_redirect_path(filled(form.get("then", ""), answer.data, quote))
    if answer.refusal is not None:
        wrong = (answer.data or {}).get("errors", [])
        return page(request, "refused.html", answer.status, message=answer.refusal, wrong=wrong, then=then)
    shown = answer.data if isinstance(answer.data, dict) else {}
    if secret := next((shown[name] for name in SECRETS if name in shown), None):
        shown_as = filled(form["use"], shown, str) if form.get("use") else secret
        return page(request, "secret.html", secret=shown_as, made={"name": "it", **shown}, then=then)
    response = RedirectResponse(then, 303)
    flash(request, response, filled(form.get("said", "Done"), answer.data, str))
    return response


async def ask(request: Request, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """Ask the API, as the person who is logged in."""
    raw, status, parts = b"" if body is None else orjson.dumps(body), 500, []

    async def receive() -> Message:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    told = {"content_type": "application/json", **headers}
    await request.app.state.api(scope_of(request, method, path, "", told), receive, send)
    text = b"".join(parts)
    return Answer(status, orjson.loads(text) if text else None)


class Stream(Response):
    """An answer of the API, handed on as it comes."""

    def __init__(self, request: Request, path: str, query: str = "", **headers: str) -> None:
        super().__init__()
        self.api, self.inner = request.app.state.api, scope_of(request, "GET", path, query, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        async def once(message: Message) -> None:  # the request's id is told by the outer one
            if message["type"] == "http.response.start":
                message["headers"] = [one for one in message["headers"] if one[0] != b"x-request-id"]
            await send(message)

        await self.api(self.inner, receive, once)


def scope_of(request: Request, method: str, path: str, query: str, headers: Mapping[str, str]) -> Scope:
    """A request to the API that no network can make: it says who is logged in, and can look again whether they are."""

    async def caller() -> Caller:
        return await signed_in(request, BackgroundTasks())

    request_id = structlog.contextvars.get_contextvars().get("request_id", "")
    told = {**headers, "host": request.headers.get("host", ""), "x_request_id": str(request_id)}
    full = f"/api/v1{path}"
    return {
        **{name: request.scope[name] for name in KEPT if name in request.scope}, "method": method, "path": full,
        "raw_path": quote(full).encode(), "query_string": query.encode(), SESSION: caller,
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in told.items() if value],
    }  # fmt: skip


def filled(text: str, data: Any, write: Any) -> str:
    """`{job_id}` and the like, as the answer has them."""
    found = data if isinstance(data, dict) else {}
    return re.sub(r"\{(\w+)\}", lambda one: write(str(found.get(one[1], ""))), text)
