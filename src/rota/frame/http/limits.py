"""Limits of requests, security headers, and the HTTP status of each error."""

import asyncio
from http import HTTPStatus

from fastapi import Request
from starlette.exceptions import HTTPException

from rota.core import errors
from rota.core.errors import RotaError
from rota.frame.http.auth import TooManyStreams, Unauthenticated
from rota.frame.http.guessing import TooManyFailures

CONTENT_SECURITY_POLICY = {
    "default-src": "'none'", "style-src": "'self'", "script-src": "'self'", "img-src": "'self' data:",
    "connect-src": "'self'", "frame-src": "'self'",  # frames have previews of artifacts
    "form-action": "'self'", "base-uri": "'none'", "frame-ancestors": "'none'",
}  # fmt: skip
SECURITY_HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in CONTENT_SECURITY_POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # login links must not leak; `no-referrer` would make the Origin of forms null
}
MAX_BODY_BYTES = 8 * 1024 * 1024
BODY_TIMEOUT_SECONDS = 60.0
MAX_QUERY_VALUE_CHARACTERS = 1000  # longer than any value that a filter can match
STATUSES: dict[type[RotaError], HTTPStatus] = {  # the first match counts
    Unauthenticated: HTTPStatus.UNAUTHORIZED,
    TooManyFailures: HTTPStatus.TOO_MANY_REQUESTS,
    TooManyStreams: HTTPStatus.TOO_MANY_REQUESTS,
    errors.Invalid: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.NotFound: HTTPStatus.NOT_FOUND,
    errors.KeyMismatch: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.StaleRevision: HTTPStatus.PRECONDITION_FAILED,
    errors.Conflict: HTTPStatus.CONFLICT,
    errors.LeaseLost: HTTPStatus.CONFLICT,
    errors.NotRunnable: HTTPStatus.BAD_REQUEST,
    errors.Refused: HTTPStatus.FORBIDDEN,
    errors.Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ObjectStoreUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}


def status_of(error: RotaError) -> HTTPStatus | None:
    """Return the HTTP status of an error; None for an error that is a bug."""
    return next((status for kind, status in STATUSES.items() if isinstance(error, kind)), None)


async def read_bytes(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """Return the body. Raises HTTPException 413 if it, or its Content-Length, is too large, 408 after the timeout."""
    too_long = HTTPException(413, f"the body is larger than {limit} bytes")
    content_length = request.headers.get("content-length", "")
    if content_length.isdecimal() and int(content_length) > limit:
        raise too_long
    raw = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            async for part in request.stream():
                raw += part
                if len(raw) > limit:
                    raise too_long
    except TimeoutError:
        message = f"the body was not received within {BODY_TIMEOUT_SECONDS:g} s"
        raise HTTPException(408, message, {"connection": "close"}) from None
    return bytes(raw)
