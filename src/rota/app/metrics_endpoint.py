"""HTTP endpoint of a worker process, on a port of its own: `/metrics`, `/health/live` and `/health/ready`.

Serves in a thread with its own event loop: tasks that block the worker's loop do not block it. Imports neither the API
nor the dashboard, and is imported only if `ROTA_METRICS_PORT` is set.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson
import structlog
import uvicorn

from rota.app import exposition
from rota.app.connections import HEAD_BYTES, Connection
from rota.app.health import Readiness
from rota.app.node import Node
from rota.core.clock import system_time
from rota.db.connection import open_database
from rota.db.outages import outage_of

MAX_CONNECTIONS = 32
JSON = "application/json"

Answer = tuple[int, str, bytes]  # status, content type, body
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

log = structlog.get_logger("rota")


class MetricsEndpoint(threading.Thread):
    """Serves the metrics and the health of a node on a socket that is bound already."""

    def __init__(self, node: Node, sock: socket.socket) -> None:
        super().__init__(name="rota-metrics", daemon=True)
        self.node, self.sock = node, sock
        self.readiness: Readiness | None = None
        self.server = uvicorn.Server(
            uvicorn.Config(
                self.answer,
                interface="asgi3",
                log_config=None,
                access_log=False,
                lifespan="off",
                http=Connection,
                h11_max_incomplete_event_size=HEAD_BYTES,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_graceful_shutdown=1,
                proxy_headers=False,
            )
        )

    def run(self) -> None:
        try:
            asyncio.run(self.serve())
        except Exception:
            log.exception("the metrics endpoint failed; the worker goes on without it")

    async def serve(self) -> None:
        db = open_database(self.node.settings.database_url, 1)
        self.readiness = Readiness(db, self.node.clock, self.node.problems)
        try:
            await self.server.serve(sockets=[self.sock])
        finally:
            await db.close()

    def stop(self) -> None:
        """Close the connections; waits up to 5 s for the thread."""
        self.server.should_exit = True
        self.join(timeout=5)

    async def answer(self, scope: MutableMapping[str, Any], _receive: object, send: Send) -> None:
        """Answer a request, as an ASGI application. Bodies are not read."""
        routes = {"/metrics": self.metrics, "/health/live": self.live, "/health/ready": self.ready}
        route = routes.get(scope["path"])
        if route is None:
            status, media_type, body = problem(404, f"{', '.join(routes)} are the paths of this endpoint")
        elif scope["method"] not in ("GET", "HEAD"):
            status, media_type, body = problem(405, "only GET and HEAD are allowed")
        else:
            status, media_type, body = await route()
        headers = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def metrics(self) -> Answer:
        metrics, clock = self.node.metrics, self.node.clock
        families = [
            *exposition.counted({metrics.source: metrics.current()}),
            *exposition.of_process(metrics),
            *exposition.of_database(
                outage_of(self.node.settings.database_url).since is None, (clock.now() - system_time()).total_seconds()
            ),
        ]
        return 200, exposition.CONTENT_TYPE, exposition.exposition(families)

    async def live(self) -> Answer:
        return 200, JSON, orjson.dumps({"status": "ok"})

    async def ready(self) -> Answer:
        assert self.readiness is not None  # set before the server starts
        problems = await self.readiness.problems()
        body = {"status": "unavailable" if problems else "ok", "problems": list(problems), "details": dict(problems)}
        return (503 if problems else 200), JSON, orjson.dumps(body)


def problem(status: int, message: str) -> Answer:
    return status, JSON, orjson.dumps({"status": status, "detail": message})
