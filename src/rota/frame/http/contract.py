"""The HTTP contract of all routes: request bodies, JSON answers, pages of lists, problem details (RFC 9457)."""

import re
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, TypedDict

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
from rota.core.wire import invalid_fields
from rota.db.paging import read_cursor, write_cursor
from rota.engine.commands import Engine
from rota.frame.http.guessing import TooManyFailures
from rota.frame.http.limits import MAX_QUERY_VALUE_CHARACTERS, read_bytes, status_of

MAX_JSON_DEPTH = 100
INPUT_PREFIX = "input."  # of query parameters that name a field of an input
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
EXTRA_HEADERS = {
    HTTPStatus.UNAUTHORIZED: {"www-authenticate": "Bearer"},
    HTTPStatus.SERVICE_UNAVAILABLE: {"retry-after": "1"},
}

Limit = Annotated[int, Query(ge=1, le=200, description="maximum number of items")]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the previous page", max_length=1000)]
Timestamp = Annotated[str | None, Query(description="RFC 3339 with offset", examples=["2026-05-04T09:00:00+00:00"])]

log = structlog.get_logger("rota.api")


def engine_of(request: Request) -> Engine:
    """Return the engine; for a write request the one that writes the audit log (see `auth.record_caller`)."""
    engine: Engine = getattr(request.state, "engine", request.app.state.engine)
    return engine


def trace_of(request: Request) -> str | None:
    """Return the `traceparent` for jobs of this request: of the current span, else of the request header."""
    return engine_of(request).current_trace() or parse.traceparent(request.headers.get("traceparent"))


# requests


async def read_json(request: Request, *, optional: bool = False) -> dict[str, object] | None:
    """Return the body as a JSON object, None if it is optional and empty."""
    raw = await read_bytes(request)
    if not raw and optional:
        return None
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, f"the content type of the body is {kind or 'missing'}; send application/json")
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Invalid("body", raw[:40].decode(errors="replace"), f"is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Invalid("body", body, "is not a JSON object")
    if raw.count(b"[") + raw.count(b"{") > MAX_JSON_DEPTH and too_deep(body):
        raise Invalid("body", "…", f"is nested deeper than {MAX_JSON_DEPTH} levels")
    return body


async def read_body(
    request: Request, known: Collection[str] | None = None, *, optional: bool = False
) -> dict[str, Any]:
    """Return a body that has no model yet. With `known`, raises Invalid for other fields and drops nulls."""
    body = await read_json(request, optional=optional) or {}
    if known is None:
        return body
    right = f"is an unknown field; the fields are {names_list(known)}"
    wrong = [Invalid(field, body[field], right) for field in body if field not in known]
    if wrong:
        raise together(wrong)
    return {field: value for field, value in body.items() if value is not None}


def too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


async def check_query(request: Request) -> None:
    """Dependency of every route. Raises Invalid for unknown query parameters, so that a misspelt filter is noticed."""
    known = [field.alias for field in request.scope["route"].dependant.query_params]
    for field, value in request.query_params.multi_items():
        if field not in known and not (field.startswith(INPUT_PREFIX) and "input" in known):
            raise Invalid(field, value, f"is an unknown query parameter; the parameters are {names_list(known)}")
        if "\0" in value:
            raise Invalid(field, value, "has a NUL character")
        if not is_plain_value(value):
            raise Invalid(field, value, f"is longer than {MAX_QUERY_VALUE_CHARACTERS} characters")


def is_plain_value(value: str) -> bool:
    """Return whether a query parameter is short enough and has no NUL character."""
    return len(value) <= MAX_QUERY_VALUE_CHARACTERS and "\0" not in value


def expected_revision(request: Request) -> int | None:
    """Return the revision in `If-Match`, None without one. Raises StaleRevision if it is not an ETag of ours."""
    header = request.headers.get("if-match", "*").strip()
    if header == "*":
        return None
    match = re.fullmatch(r'(?:W/)?"?([0-9]{1,9})"?', header)
    if match is None:
        raise StaleRevision(
            f"If-Match: {short_repr(header)} is not an ETag of this resource; send its revision in quotes"
        )
    return int(match[1])


# responses


def answer(data: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(data), status, headers, "application/json")


def answer_with_etag(
    record: dict[str, object], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a record as JSON, with its revision as ETag."""
    return answer(record, status, {"etag": f'"{record["revision"]}"', **(headers or {})})


def answer_page(page: tuple[list[dict[str, object]], str | None]) -> Response:
    return answer({"items": page[0], "next_cursor": page[1]})


def answer_slice(items: Sequence[dict[str, object]], limit: int, cursor: str | None) -> Response:
    """Return one page of a list that is held in memory; the cursor is a position."""
    start = int(position) if cursor and (position := read_cursor(cursor)[0]).isdecimal() else 0
    end = start + limit
    return answer_page((list(items[start:end]), write_cursor(str(end)) if end < len(items) else None))


def problem(
    status: int,
    code: str,
    detail: str,
    errors_found: Sequence[Invalid] = (),
    headers: Mapping[str, str] | None = None,
    **more: object,
) -> Response:
    body = {
        "type": f"urn:rota:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        "request_id": structlog.contextvars.get_contextvars().get("request_id"),
        **more,
    }
    if errors_found:
        first = errors_found[: errors.MAX_NAMED_ERRORS]
        body["errors"] = [
            {"field": error.field, "value": short_repr(error.value), "message": error.right} for error in first
        ]
        body["errors_total"] = len(errors_found)
    return Response(orjson.dumps(body), status, headers, "application/problem+json")


async def on_rota_error(_: Request, error: Exception) -> Response:
    """Return a RotaError as a problem. Errors without a status are bugs and raised again."""
    assert isinstance(error, RotaError)
    if isinstance(error, errors.DataRefused) and "unique" in error.message.lower():
        return problem(409, errors.Conflict.code, "this name already exists; choose another name")
    status = status_of(error)
    if status is None:
        raise error
    wrong = error.all if isinstance(error, Invalid) else ()
    extra = {"retry-after": str(error.seconds)} if isinstance(error, TooManyFailures) else EXTRA_HEADERS.get(status)
    extra = {"retry-after": "1"} if isinstance(error, errors.KeyInUse) else extra
    return problem(status, error.code, escape_surrogates(error.message), wrong, extra)


async def on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).name.lower()
    return problem(error.status_code, code, error.detail, headers=error.headers)


async def on_bad_parameter(request: Request, error: Exception) -> Response:
    """Return FastAPI's errors of parameters and of the body as a problem."""
    assert isinstance(error, RequestValidationError)
    invalid = invalid_values(request, error)
    return problem(422, Invalid.code, escape_surrogates(together(invalid).message), invalid)


def invalid_values(request: Request, error: RequestValidationError) -> list[Invalid]:
    """Return FastAPI's errors of parameters and of the body as `Invalid`."""
    invalid, in_body = [], []
    for field_error in error.errors():
        place, *path = field_error["loc"]
        if place == "body":
            in_body.append({**field_error, "loc": path})
        else:
            invalid.append(Invalid(str(path[-1]), field_error.get("input"), field_error["msg"]))
    body_field = request.scope["route"].body_field
    return invalid + invalid_fields(body_field and body_field.field_info.annotation, in_body)


class RequestMiddleware:
    """Outermost middleware: gives each request an id; logs unexpected errors and answers 500 with the id only."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent_id = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = sent_id if REQUEST_ID.fullmatch(sent_id) else new_id()
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
                # formatted here: a log renderer that shows local variables would leak keys and payloads
                fields = {"method": scope["method"], "path": scope["path"], "exception": traceback.format_exc()}
                log.error("request failed", **fields)
                if started:
                    raise
                detail = f"internal error; see the server's log for request {request_id}"
                await problem(500, "internal", detail)(scope, receive, send_with_id)


class TimeSpan(TypedDict):
    since: datetime | None
    until: datetime | None


def time_span(since: str | None, until: str | None) -> TimeSpan:
    """Parse the query parameters `since` and `until`. Raises Invalid for a time that is not RFC 3339."""
    return {
        "since": None if since is None else triggers.parse_instant(since, "since"),
        "until": None if until is None else triggers.parse_instant(until, "until"),
    }


def names_list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def escape_surrogates(text: str) -> str:
    """Return text with lone surrogates escaped: JSON cannot encode them."""
    return text.encode("utf-8", "backslashreplace").decode()
