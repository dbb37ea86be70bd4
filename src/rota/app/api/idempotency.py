"""`Idempotency-Key` on any POST: the first request runs, whoever sends the same again gets its answer.

Keys are an org's own and are kept for a day. A request that fails for a reason of ours (5xx) lets go of its key, and
one that died with its process does so when its lease runs out. An answer with a secret (`Cache-Control: no-store`) is
not stored: asking again only tells that it was given.
"""

import contextlib
import re
from hashlib import sha256

from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.app.api.manners import on_http_error, on_rota_error, problem
from rota.app.auth import Caller, Unauthenticated, authenticate
from rota.app.http import read_bytes
from rota.core.errors import Invalid, RotaError, Unavailable
from rota.store import idempotency
from rota.store.idempotency import Kept, Ticket

KEY = re.compile(r"[\x21-\x7e]{1,255}")
REPLAYED = ("content-type", "etag", "location")


class Idempotency:
    """The layer before the routes, for all of them."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope["type"] == "http" and scope["method"] == "POST" and scope["path"].startswith("/api/v1/")
        given = dict(scope["headers"]).get(b"idempotency-key") if asked else None
        if given is None:
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            key = given.decode("latin-1")
            if not KEY.fullmatch(key):
                raise Invalid("Idempotency-Key", key, "is not 1 to 255 printable ASCII characters")
            caller = await authenticate(request)
            body = await read_bytes(request)
            found = await self.begin(request, caller, key, body)
        except Unauthenticated:
            await self.app(scope, receive, send)  # the route says so better
        except RotaError as error:
            await (await on_rota_error(request, error))(scope, receive, send)
        except HTTPException as error:
            await (await on_http_error(request, error))(scope, receive, send)
        else:
            if isinstance(found, Kept):
                await again(found)(scope, receive, send)
            else:
                await self.run(request, found, body, send)

    async def begin(self, request: Request, caller: Caller, key: str, body: bytes) -> Ticket | Kept:
        """Take the key for this request. The same request: the path, the query, the body, and what the caller may."""
        db, now = request.app.state.db, request.app.state.engine.clock.now()
        may = f"{caller.role.name} {sorted(caller.scopes)}\n{request.url.query}\n".encode()
        route, fingerprint = f"POST {request.url.path}", sha256(may + body).hexdigest()
        found: Ticket | Kept = await db.tx(idempotency.begin, caller.org_id, key, route, fingerprint, now)
        return found

    async def run(self, request: Request, ticket: Ticket, body: bytes, send: Send) -> None:
        """Let the route answer, and remember what it says before it is sent."""
        db = request.app.state.db
        start: Message = {}
        parts = bytearray()

        async def receive() -> Message:
            nonlocal body
            now, body = body, b""
            return {"type": "http.request", "body": now, "more_body": False}

        async def gather(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                parts.extend(message.get("body", b""))

        try:
            await self.app(request.scope, receive, gather)
        except Exception:
            await db.tx(idempotency.let_go, ticket)
            raise
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in start["headers"]}
        with contextlib.suppress(Unavailable):  # what was done is told all the same
            if start["status"] >= 500:
                await db.tx(idempotency.let_go, ticket)
            else:
                secret = "no-store" in headers.get("cache-control", "")
                kept = {name: headers[name] for name in REPLAYED if name in headers}
                await db.tx(idempotency.keep, ticket, start["status"], kept, None if secret else bytes(parts))
        await send(start)
        await send({"type": "http.response.body", "body": bytes(parts)})


def again(kept: Kept) -> Response:
    replayed = {"idempotency-replayed": "true"}
    if kept.body is None:
        detail = "this was done by the first request with this Idempotency-Key; its answer held a secret, shown once"
        return problem(409, "idempotency_secret", detail, headers=replayed)
    return Response(kept.body, kept.status, {**kept.headers, **replayed})
