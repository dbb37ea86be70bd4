"""Compression of large answers of the API, for clients that accept gzip.

Only GET requests below `/api/v1` are compressed. Pages of the dashboard have a CSRF token beside text from the query,
and the length of a compressed page would reveal the token byte by byte (BREACH); answers with new secrets are to POST
requests. Other sites cannot make a browser send an API key, so they cannot observe answers of the API in this way.
Event streams are not compressed, because a compressor would hold events back, and contents of artifacts are not, so
that a range of their bytes can be asked for.
"""

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from rota.frame.http.auth import SESSION_SCOPE_KEY, route_path

COMPRESSED_BYTES_MIN = 8192  # smaller answers fit into a few packets
COMPRESSION_LEVEL = 1  # 50 runs: 32 kB become 4 kB in 0.2 ms; higher levels take longer and save little


class Compression:
    """Middleware that compresses large answers to GET requests of the API."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.compressing = GZipMiddleware(app, COMPRESSED_BYTES_MIN, COMPRESSION_LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.compressing if is_compressed(scope) else self.app)(scope, receive, send)


def is_compressed(scope: Scope) -> bool:
    """Return whether a request is a GET of the API by key, from a client that accepts gzip."""
    return (
        scope["type"] == "http"
        and scope["method"] == "GET"
        and SESSION_SCOPE_KEY not in scope
        and route_path(scope).startswith("/api/v1/")
        and not route_path(scope).endswith("/$content")
        and any(name == b"accept-encoding" and b"gzip" in value for name, value in scope["headers"])
    )
