"""What API and dashboard share: headers of pages, how long a body may be, and the status of each refusal."""

import asyncio
from http import HTTPStatus

from fastapi import Request
from starlette.exceptions import HTTPException

from rota.core import errors
from rota.core.errors import RotaError
from rota.frame.http.auth import TooManyStreams, Unauthenticated
from rota.frame.http.guessing import TooManyFailures

POLICY = {
    "default-src": "'none'", "style-src": "'self'", "script-src": "'self'", "img-src": "'self' data:",
    "connect-src": "'self'", "form-action": "'self'", "base-uri": "'none'", "frame-ancestors": "'none'",
}  # fmt: skip
SECURITY_HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # a login link is an address; `no-referrer` would make the Origin of forms null
}
BODY_LIMIT = 8 * 1024 * 1024
BODY_SECONDS = 60.0
QUERY_VALUE_LIMIT = 1000  # characters; nothing that a filter could match is longer
STATUSES: dict[type[RotaError], HTTPStatus] = {  # the first that fits
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
}


def status_of(error: RotaError) -> HTTPStatus | None:
    """None for what nobody should see: it is a bug."""
    return next((status for kind, status in STATUSES.items() if isinstance(error, kind)), None)


async def read_bytes(request: Request) -> bytes:
    """The body, up to the limits of size (413) and time (408): one that says it is longer is not read at all."""
    too_long = HTTPException(413, f"the body is longer than {BODY_LIMIT} bytes")
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > BODY_LIMIT:
        raise too_long
    raw = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                raw += part
                if len(raw) > BODY_LIMIT:
                    raise too_long
    except TimeoutError:
        message = f"the body of a request must arrive within {BODY_SECONDS:g} s"
        raise HTTPException(408, message, {"connection": "close"}) from None
    return bytes(raw)
