"""What all routes share: how a body is read, how an answer is written, how a refusal is told (RFC 9457)."""

import re
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

import orjson
import structlog
from fastapi import Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.core import effort, errors, parse
from rota.core.errors import Invalid, RotaError, StaleRevision, short_repr, together
from rota.core.ids import new_id
from rota.core.timing import triggers
from rota.db.paging import read_cursor, write_cursor
from rota.engine.commands import Engine
from rota.frame.http.guessing import TooManyFailures
from rota.frame.http.limits import QUERY_VALUE_LIMIT, read_bytes, status_of

DEPTH_LIMIT = 100
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
EXTRA = {HTTPStatus.UNAUTHORIZED: {"www-authenticate": "Bearer"}, HTTPStatus.SERVICE_UNAVAILABLE: {"retry-after": "1"}}

Limit = Annotated[int, Query(ge=1, le=200, description="how many items at most")]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before", max_length=1000)]
Moment = Annotated[str | None, Query(description="RFC 3339 with offset", examples=["2026-05-04T09:00:00+00:00"])]

log = structlog.get_logger("rota.api")


def engine_of(request: Request) -> Engine:
    """The engine; for a request that may write, one that tells the audit log (see `auth.authenticate`)."""
    engine: Engine = getattr(request.state, "engine", request.app.state.engine)
    return engine


def trace_of(request: Request) -> str | None:
    """The `traceparent` of what a request causes: its own span's, where requests have spans, else as it came."""
    return engine_of(request).current_trace() or parse.traceparent(request.headers.get("traceparent"))


# what comes in


async def read_body(
    request: Request, known: Collection[str] | None = None, *, optional: bool = False
) -> dict[str, Any]:
    """The body as a JSON object. With `known`, other fields are refused and nulls count as absent."""
    raw = await read_bytes(request)
    if not raw and optional:
        return {}
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, f"the body is {kind or 'of no type'}; send application/json")
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Invalid("body", raw[:40].decode(errors="replace"), f"is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Invalid("body", body, "is not a JSON object")
    if raw.count(b"[") + raw.count(b"{") > DEPTH_LIMIT and too_deep(body):
        raise Invalid("body", "…", f"is nested deeper than {DEPTH_LIMIT} levels")
    if known is None:
        return body
    right = f"is an unknown field; the fields are {listed(known)}"
    wrong = [Invalid(field, body[field], right) for field in body if field not in known]
    if wrong:
        raise together(wrong)
    return {field: value for field, value in body.items() if value is not None}


def too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEPTH_LIMIT):
        level = [
            child
            for one in level
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


async def check_query(request: Request) -> None:
    """Query parameters that the route does not know are refused, so that a misspelt filter does not go unnoticed."""
    known = [field.alias for field in request.scope["route"].dependant.query_params]
    for field, value in request.query_params.multi_items():
        if field not in known:
            raise Invalid(field, value, f"is not a query parameter of this; it has {listed(known)}")
        if "\0" in value:
            raise Invalid(field, value, "has a NUL character")
        if len(value) > QUERY_VALUE_LIMIT:
            raise Invalid(field, value, f"is longer than {QUERY_VALUE_LIMIT} characters")


def expected_revision(request: Request) -> int | None:
    """What If-Match demands; None when anything will do."""
    given = request.headers.get("if-match", "*").strip()
    if given == "*":
        return None
    found = re.fullmatch(r'(?:W/)?"?([0-9]{1,9})"?', given)
    if found is None:
        raise StaleRevision(f"If-Match: {short_repr(given)} is not an ETag of this; it is the revision in quotes")
    return int(found[1])


# what goes out


def answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(data), status, headers, "application/json")


def answer_with_etag(record: dict[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer a record that has a revision, which is its ETag."""
    return answer(record, status, {"etag": f'"{record["revision"]}"', **(headers or {})})


def answer_page(page: tuple[list[dict[str, Any]], str | None]) -> Response:
    return answer({"items": page[0], "next_cursor": page[1]})


def answer_part(items: Sequence[Any], limit: int, cursor: str | None) -> Response:
    """A page of a list that is computed as a whole; the cursor is a position in it."""
    start = int(position) if cursor and (position := read_cursor(cursor)[0]).isdecimal() else 0
    end = start + limit
    return answer_page((list(items[start:end]), write_cursor(str(end)) if end < len(items) else None))


def problem(
    status: int, code: str, detail: str, wrong: Sequence[Invalid] = (), headers: Mapping[str, str] | None = None,
    **more: Any,
) -> Response:  # fmt: skip
    body = {
        "type": f"urn:rota:problem:{code}", "title": HTTPStatus(status).phrase, "status": status, "code": code,
        "detail": detail, "request_id": structlog.contextvars.get_contextvars().get("request_id"),
        **more,
    }  # fmt: skip
    if wrong:
        first = wrong[: errors.MAX_NAMED_ERRORS]
        body["errors"] = [{"field": one.field, "value": short_repr(one.value), "message": one.right} for one in first]
        body["errors_total"] = len(wrong)
    return Response(orjson.dumps(body), status, headers, "application/problem+json")


async def on_rota_error(_: Request, error: Exception) -> Response:
    """Our own refusals; what has no status of its own is a bug, told like one."""
    assert isinstance(error, RotaError)
    if isinstance(error, errors.DataRefused) and "unique" in error.message.lower():
        return problem(409, errors.Conflict.code, "something of this name is there already; choose another name")
    status = status_of(error)
    if status is None:
        raise error
    wrong = error.all if isinstance(error, Invalid) else ()
    extra = {"retry-after": str(error.seconds)} if isinstance(error, TooManyFailures) else EXTRA.get(status)
    extra = {"retry-after": "1"} if isinstance(error, errors.KeyInUse) else extra
    return problem(status, error.code, storable(error.message), wrong, extra)


async def on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).name.lower()
    return problem(error.status_code, code, error.detail, headers=error.headers)


async def on_bad_parameter(_: Request, error: Exception) -> Response:
    """Path and query parameters that FastAPI checked for us."""
    assert isinstance(error, RequestValidationError)
    wrong = [Invalid(str(one["loc"][-1]), one.get("input"), one["msg"]) for one in error.errors()]
    return problem(422, Invalid.code, together(wrong).message, wrong)


class Guard:
    """The outermost layer: every request has an id, and an error that nobody expected tells nothing but that id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = given if REQUEST_ID.fullmatch(given) else new_id()
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id), effort.limited():
            try:
                if "\0" in scope["path"]:
                    raise HTTPException(404)
                await self.app(scope, receive, send_with_id)
            except HTTPException as error:
                await (await on_http_error(Request(scope), error))(scope, receive, send_with_id)
            except Exception:
                # as text, made here: a renderer that shows local variables would show keys and payloads
                told = {"method": scope["method"], "path": scope["path"], "exception": traceback.format_exc()}
                log.error("a request failed", **told)
                if started:
                    raise
                detail = f"something went wrong here that should not; the server's log has it under {request_id}"
                await problem(500, "internal", detail)(scope, receive, send_with_id)


def time_span(since: str | None, until: str | None) -> dict[str, datetime | None]:
    """Parse the query parameters `since` and `until`. Raises Invalid for a time that is not RFC 3339."""
    return {
        "since": None if since is None else triggers.parse_instant(since, "since"),
        "until": None if until is None else triggers.parse_instant(until, "until"),
    }


def listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def storable(text: str) -> str:
    """Half surrogate pairs made visible: JSON cannot carry them."""
    return text.encode("utf-8", "backslashreplace").decode()
