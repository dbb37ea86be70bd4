"""Downloads of contents of artifacts: streamed, whole or a range of their bytes."""

import re
from base64 import b64encode
from collections.abc import AsyncIterator

import structlog
from fastapi import Request, Response
from starlette.responses import StreamingResponse

from rota.core.errors import NotFound, ObjectStoreUnavailable
from rota.engine.artifact_contents import Content

RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)

log = structlog.get_logger("rota.artifacts")


async def download_of(request: Request, content: Content) -> Response:
    """Return the answer to a request for a content. A range of several parts is answered with the whole. Raises
    ObjectStoreUnavailable or NotFound before the answer has begun."""
    etag = f'"{content.sha256 or content.artifact_id}"'
    headers = {
        "content-disposition": f'attachment; filename="{content.artifact_id}"',
        "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'; sandbox",
        "accept-ranges": "bytes",
        "etag": etag,
    }
    if content.sha256 is not None:
        headers["repr-digest"] = f"sha-256=:{b64encode(bytes.fromhex(content.sha256)).decode()}:"
    wanted = request.headers.get("range", "")
    span = range_of(wanted, content.size) if request.headers.get("if-range", etag) == etag else None
    if span is not None and span[0] >= span[1]:
        return Response(status_code=416, headers={**headers, "content-range": f"bytes */{content.size}"})
    start, end = span or (0, content.size)
    if span is not None:
        headers["content-range"] = f"bytes {start}-{end - 1}/{content.size}"
    headers["content-length"] = str(end - start)
    parts = content.parts(start, end)
    first = await anext(parts, b"")  # an error of it still has a status
    status = 206 if span is not None else 200
    return StreamingResponse(stream(content, first, parts), status, headers, media_type=content.content_type)


async def stream(content: Content, first: bytes, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts. An error after the first ends the connection: the answer is shorter than its length says."""
    yield first
    try:
        async for part in parts:
            yield part
    except (ObjectStoreUnavailable, NotFound) as error:
        log.warning("download broken off", artifact_id=content.artifact_id, error=error.message)
        raise


def range_of(text: str, size: int) -> tuple[int, int] | None:
    """Return the start and the end, exclusive, that a Range header asks for; an empty span if the content has no such
    bytes, None for a header that is absent, malformed or has several ranges."""
    match = RANGE.fullmatch(text.strip())
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":  # the last bytes
        return max(0, size - int(match[2])), size
    start, end = int(match[1]), size if match[2] == "" else min(int(match[2]) + 1, size)
    return None if match[2] != "" and int(match[2]) < start else (start, max(start, end))
