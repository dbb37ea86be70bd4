"""`Idempotency-Key` on a POST: the first request with a key is executed, a repeat gets its stored answer.

The key, the effect and the answer are one transaction: the first write of the request inserts the key, later steps run
in the same transaction, and the answer is stored before it commits. A repeat that comes while the first request runs
waits for it. Only successful requests that wrote something keep their key: a refused request had no effect, and a
repeat is evaluated again. Keys are unique per org and are kept for a day. An answer with a secret
(`Cache-Control: no-store`) is not stored: a repeat is 409.
"""

import random
import re
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.core.clock import Clock, real_sleep
from rota.core.errors import Invalid, KeyInUse, RotaError
from rota.core.ids import new_id
from rota.db.connection import Database, P, R, Step
from rota.db.dialect import Tx
from rota.db.postgres import DEADLOCK_ATTEMPTS
from rota.db.statement import BoundStatement
from rota.db.transactions import Deadlock, Transaction
from rota.frame.http import store
from rota.frame.http.auth import REQUEST_DATABASE, Caller, Unauthenticated, authenticate, route_path
from rota.frame.http.contract import on_http_error, on_rota_error, problem
from rota.frame.http.limits import read_bytes
from rota.frame.http.store import KeyLease, StoredAnswer

KEY = re.compile(r"[\x21-\x7e]{1,255}")
REPLAYED_HEADERS = ("content-type", "etag", "location")
OPEN_ROUTES = "/api/v1/webhooks"  # authenticated by tokens of their own, without idempotency keys
# These change any number of schedules in batches: one transaction would block all other writers. A repeat after a
# crash changes the rest.
BATCHED_ROUTES = {f"/api/v1/schedules/${verb}" for verb in ("pause", "resume", "delete", "enable", "disable")}

# These are one transaction also without a key: the middleware draws one.
ATOMIC_ROUTES = {"/api/v1/files/$plan", "/api/v1/files/$apply"}


class KeyedRequest(NamedTuple):
    """A request with an idempotency key; the fingerprint covers query, body and permissions of the caller."""

    org_id: str
    key: str
    route: str
    fingerprint: str


class Idempotency:
    """Middleware that executes a request with an `Idempotency-Key` at most once."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope) if scope["type"] == "http" and scope["method"] == "POST" else ""
        keyed = path.startswith("/api/v1/") and not path.startswith(OPEN_ROUTES)
        header = dict(scope["headers"]).get(b"idempotency-key") if keyed else None
        if header is None and path in ATOMIC_ROUTES:
            header = new_id().encode()
        if header is None:
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            key = header.decode("latin-1")
            if not KEY.fullmatch(key):
                raise Invalid("Idempotency-Key", key, "is not 1 to 255 printable ASCII characters")
            caller = await authenticate(request)
            response = await self.respond(request, caller, key, await read_bytes(request))
        except Unauthenticated:
            await self.app(scope, receive, send)  # the route's own answer names the remedy
        except RotaError as error:
            await (await on_rota_error(request, error))(scope, receive, send)
        except HTTPException as error:
            await (await on_http_error(request, error))(scope, receive, send)
        else:
            await response(scope, receive, send)

    async def respond(self, request: Request, caller: Caller, key: str, body: bytes) -> Response:
        """Return the answer stored under the key, else the answer of the route."""
        db: Database = request.app.state.db
        clock: Clock = request.app.state.engine.clock
        may = f"{caller.role.name} {sorted(caller.scopes)}\n{request.url.query}\n".encode()
        keyed = KeyedRequest(caller.org_id, key, f"POST {request.url.path}", sha256(may + body).hexdigest())
        stored: StoredAnswer | None = await db.read(store.find, *keyed, clock.now())
        for attempt in range(1, DEADLOCK_ATTEMPTS + 1):
            if stored is not None:
                return replay(stored)
            request_db = RequestDatabase(db, clock, keyed, in_batches=route_path(request.scope) in BATCHED_ROUTES)
            try:
                response = await self.run(request, request_db, body)
            finally:
                await request_db.rollback()
            if not request_db.deadlocked or attempt == DEADLOCK_ATTEMPTS:
                break
            await real_sleep(random.uniform(0, 0.02 * 2**attempt))
        if request_db.stored is None and response.status_code >= 400:
            # the refusal may be an effect of the first request, which ran concurrently
            request_db.stored = await db.read(store.find, *keyed, clock.now())
        return response if request_db.stored is None else replay(request_db.stored)

    async def run(self, request: Request, request_db: "RequestDatabase", body: bytes) -> Response:
        """Run the route; commit its writes together with the stored answer, or roll back if it is refused."""
        start: Message = {}
        parts = bytearray()
        failed: RotaError | None = None

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def gather(message: Message) -> None:
            nonlocal failed
            if message["type"] == "http.response.start":
                start.update(message)
                return
            parts.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            try:  # before the route's background tasks, which use transactions of their own
                await (request_db.commit(built()) if start["status"] < 400 else request_db.rollback())
            except RotaError as error:
                failed = error

        def built() -> Response:
            response = Response(bytes(parts), start["status"])
            response.raw_headers = list(start["headers"])
            return response

        scope = {**request.scope, "state": {**request.scope.get("state", {})}, REQUEST_DATABASE: request_db}
        await self.app(scope, receive, gather)
        return built() if failed is None else await on_rota_error(request, failed)


class RequestDatabase:
    """The database of one request with a key. Its first write begins a transaction with the key, in which all further
    steps run; after the commit it is the plain database."""

    def __init__(self, db: Database, clock: Clock, keyed: KeyedRequest, *, in_batches: bool) -> None:
        self.db, self.clock, self.keyed, self.in_batches = db, clock, keyed, in_batches
        self.url, self.survives_partition, self.writers = db.url, db.survives_partition, db.writers
        self.observer = db.observer
        self.stored: StoredAnswer | None = None  # the answer of another request with the same key
        self.deadlocked = False
        self._open: Transaction | None = None
        self._lease: KeyLease | None = None
        self._wrote = self._ended = False
        self.is_rehearsal = False  # the writes are rolled back although the request succeeds
        self._after: list[Callable[[], None]] = []

    async def tx(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self._wrote = True
        if self._ended or self.in_batches:
            return await self.db.tx(step, *args, **kwargs)
        if self._open is None:
            self._open = await self.db.begin()
            begun = await self._run(store.begin, *self.keyed, self.clock.now())
            if isinstance(begun, StoredAnswer):
                self.stored = begun
                raise KeyInUse(f"Idempotency-Key {self.keyed.key} is already used by another request")
            self._lease = begun
        return await self._run(step, *args, **kwargs)

    async def statement(self, bound: BoundStatement[R]) -> R:
        return await self.tx(bound)

    async def read(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await (self.db.read if self._open is None else self._run)(step, *args, **kwargs)

    async def begin(self) -> Transaction:
        raise NotImplementedError("a request with an Idempotency-Key is one transaction")

    def after_commit(self, action: Callable[[], None]) -> None:
        if self._open is None:
            action()
        else:
            self._after.append(action)

    async def close(self) -> None:
        await self.rollback()

    async def commit(self, response: Response) -> None:
        """Store the answer under the key and commit. A request that wrote nothing stores nothing."""
        headers = {name: response.headers[name] for name in REPLAYED_HEADERS if name in response.headers}
        secret = "no-store" in response.headers.get("cache-control", "")
        answer = (response.status_code, headers, None if secret else bytes(response.body))
        if self.is_rehearsal:
            await self.rollback()
            return
        if self._open is not None and self._lease is not None:
            await self._run(store.store_answer, self._lease, *answer)
            await self._open.commit()
            self._ended, self._open = True, None
            for action in self._after:
                action()
        elif self._wrote:

            def record(tx: Tx) -> None:
                begun = store.begin(tx, *self.keyed, self.clock.now())
                if isinstance(begun, KeyLease):
                    store.store_answer(tx, begun, *answer)

            await self.db.tx(record)
        self._ended = True

    async def rollback(self) -> None:
        opened, self._open, self._ended = self._open, None, True
        if opened is not None:
            await opened.rollback()

    async def _run(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        assert self._open is not None
        try:
            return await self._open.run(step, *args, **kwargs)
        except Deadlock:
            self.deadlocked = True
            raise


def replay(stored: StoredAnswer) -> Response:
    replayed = {"idempotency-replayed": "true"}
    if stored.body is None:
        detail = "the first request with this Idempotency-Key succeeded; its answer had a secret and is not stored"
        return problem(409, "idempotency_secret", detail, headers=replayed)
    return Response(stored.body, stored.status, {**stored.headers, **replayed})
