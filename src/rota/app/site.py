"""`app.asgi()`: API and dashboard of a program as an ASGI application, also below a path of another application.

Inside, requests look as if the site were at the root of its server. The path prefix is put in front of redirects,
cookies and links where responses leave the site.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from rota.app.api_thread import prepare_site
from rota.app.asgi import create_site
from rota.app.main import check_schema, migrate
from rota.app.mounting import NOT_STARTED
from rota.app.node import Node, sync_clock
from rota.app.reports_replica import followed, open_replica
from rota.app.service import running_worker
from rota.app.settings import Settings
from rota.core.clock import SystemClock
from rota.core.errors import RotaError
from rota.db.connection import open_database
from rota.db.wake import Wake
from rota.engine.metrics import Metrics
from rota.engine.runner import capture_output
from rota.engine.supervision import start_supervised
from rota.frame.http.contract import problem
from rota.frame.http.exposure import MOUNT_KEY, Exposure

if TYPE_CHECKING:
    from rota.app.application import Rota

OPENAPI_PATH = "/openapi.json"  # FastAPI itself writes the prefix into its `servers`


class MountedSite:
    """API and dashboard, with a worker if there is a file that its declarations belong to. Its lifespan, or the first
    request, starts it."""

    def __init__(self, program: "Rota", worker_file: str | None = None, **overrides: object) -> None:
        self.program, self.worker_file, self._overrides = program, worker_file, overrides
        self._site: FastAPI | None = None
        self._starting = asyncio.Lock()
        self._running: AsyncExitStack | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})  # the site has no WebSockets
            return
        if self._site is None and (refusal := await self._start_for_request()) is not None:
            await problem(503, "not_started", refusal)(scope, receive, send)
            return
        assert self._site is not None
        prefix = str(scope.get("root_path", "")).rstrip("/")
        await self._site(inner_scope(scope, prefix), receive, below(prefix, send) if prefix else send)

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Any = None) -> AsyncIterator[None]:
        """Start the site, and stop it at the end: `FastAPI(lifespan=site.lifespan)`. Raises Unavailable if the database
        is not migrated."""
        async with self._starting:
            await self._start()
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop the site: drain its worker, end its event streams, close the database. A no-op if it does not run."""
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()

    async def _start_for_request(self) -> str | None:
        """Start a site whose lifespan was not run; return why it cannot be started. A worker needs a lifespan: nothing
        else would drain it."""
        if self.worker_file is not None:
            return NOT_STARTED
        async with self._starting:
            try:
                await self._start()
            except RotaError as error:
                return error.message
        return None

    async def _start(self) -> None:
        if self._running is not None:
            return
        async with AsyncExitStack() as stack:
            self._site = await self._open(stack)
            stack.callback(setattr, self, "_site", None)
            self._running = stack.pop_all()

    async def _open(self, stack: AsyncExitStack) -> FastAPI:
        settings = Settings.load(**self._overrides)
        if self.worker_file is not None:
            capture_output()
            await asyncio.to_thread(migrate, settings)
        else:
            await check_schema(settings)
        node = Node(settings, self.program, self.worker_file) if self.worker_file is not None else None
        clock, metrics = (node.clock, node.metrics) if node else (SystemClock(), Metrics())
        db = open_database(settings.database_url)
        stack.push_async_callback(db.close)
        from rota.app.assembly import make_engine  # here: `Rota.asgi` imports this module

        engine = make_engine(settings, self.program, self.worker_file, db, clock, Wake(), metrics)
        self.program.use(engine)
        await (node.prepare(engine) if node else prepare_site(engine, settings, self.program, None))
        replica = open_replica(settings, db, metrics)
        await stack.enter_async_context(followed(replica))
        site = create_site(
            engine,
            db,
            replica=replica,
            loops=node.problems if node else None,
            service_token=settings.service_token,
            trace_url=settings.trace_url,
            guarded_hosts=settings.guarded_hosts(unprotected=False),
            exposure=Exposure(settings.public_url, bool(settings.trusted_proxies)),
        )
        if node is not None:
            await stack.enter_async_context(running_worker(site, node, engine))
        else:
            loops = [
                start_supervised("clock", lambda: sync_clock(db, clock)),
                start_supervised("wake-ups", lambda: engine.wake.listen(db)),
            ]
            stack.push_async_callback(end, site, loops)
        return site

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        """Run as the whole application of a server."""
        await receive()
        try:
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except RotaError as error:
            await send({"type": "lifespan.startup.failed", "message": error.message})
            return
        await send({"type": "lifespan.shutdown.complete"})


async def end(site: FastAPI, loops: Iterable["asyncio.Task[None]"]) -> None:
    site.state.closing = True
    site.state.engine.wake.notify_followers("anything")
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)


def inner_scope(scope: Scope, prefix: str) -> Scope:
    """Return the scope of a request as if the site were not mounted."""
    path = str(scope["path"])
    below_prefix = path == prefix or path.startswith(f"{prefix}/")
    if not prefix:
        return scope
    if path.removeprefix(prefix) == OPENAPI_PATH:
        return {**scope, MOUNT_KEY: prefix}
    inner = path.removeprefix(prefix) or "/" if below_prefix else path
    kept = {name: value for name, value in scope.items() if name not in ("app_root_path", "route_root_path")}
    return {**kept, "path": inner, "raw_path": inner.encode(), "root_path": "", MOUNT_KEY: prefix}


def below(prefix: str, send: Send) -> Send:
    """Put the prefix in front of redirects and into the path of cookies."""

    async def send_below(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(name, with_prefix(name, value, prefix)) for name, value in message["headers"]]
            message = {**message, "headers": headers}
        await send(message)

    return send_below


def with_prefix(name: bytes, value: bytes, prefix: str) -> bytes:
    match name.lower():
        case b"location" if value.startswith(b"/") and not value.startswith(b"//"):
            return prefix.encode() + value
        case b"set-cookie":
            parts = value.split(b"; ")
            return b"; ".join(b"Path=" + prefix.encode() if part.lower() == b"path=/" else part for part in parts)
        case _:
            return value
