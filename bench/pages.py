"""Cost of dashboard pages in a large installation: server time and size of the HTML.

Requested like by a logged-in browser, over a keep-alive connection. Each page is loaded several times; the
slowest load counts too, because the first load has cold caches.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator

from sqlalchemy import text as sql

from bench.api import PREFIX, Server, large
from bench.figures import Figure, Size, percentile
from bench.installation import DatabaseKind
from rota.access.store import accounts

LOADS = 12
FIRST = f"{PREFIX}1000000000"  # of the schedules and of the runs
PAGES = {
    "Now": "/",
    "Timeline": "/timeline",
    "Timeline, a week": "/timeline?span=week",
    "Timeline, a minute": "/timeline?span=minute",
    "Timeline, failed runs": "/timeline?span=week&status=failed",
    "Grid": "/grid",
    "Schedules": "/schedules",
    "Schedules, found by name": "/schedules?name=0077",
    "Schedules, none found": "/schedules?name=nowhere",
    "Schedule": f"/schedules/{FIRST}",
    "Editor": f"/schedules/{FIRST}/edit",
    "Runs": "/runs",
    "Runs that failed": "/runs?status=failed",
    "Run": f"/runs/{FIRST}",
    "Tasks": "/tasks",
    "Workflows": "/workflows",
    "Pipelines": "/pipelines",
    "Grid of pipelines": "/grid?of=pipelines",
    "Hosts": "/hosts",
    "Graphs": "/graphs",
    "Grants": "/grants",
    "Queues": "/queues",
    "Settings": "/settings",
    "Audit": "/audit",
    "System": "/system",
}
SLOTS = "INSERT INTO slots (schedule_id, slot, job_id, attempts) SELECT schedule_id, queued_at, job_id, 1 FROM runs"


async def pages(kind: DatabaseKind, size: Size) -> AsyncIterator[Figure]:
    async with large(kind, size, size.stored_runs) as server:
        await server.here.db.tx(lambda tx: tx.execute(sql(f"{SLOTS} WHERE schedule_id IS NOT NULL")))
        await server.here.db.tx(lambda tx: tx.execute(sql("ANALYZE")))
        cookie = await logged_in(server)
        for name, path in PAGES.items():
            spans, length = await loads(server, path, cookie)
            yield Figure(f"{name}, p50", percentile(spans, 0.5), "ms", None, "≤ 300")
            yield Figure(f"{name}, slowest of {LOADS}", max(spans), "ms")
            yield Figure(f"{name}, HTML", length / 1000, "kB", None, "≤ 200")


async def logged_in(server: Server) -> str:
    """Log an admin in by a link; return the cookie."""
    here = server.here
    key = await here.db.tx(accounts.create_key, here.org_id, "pages", "admin", here.engine.clock.now())
    head = f"host: rota\r\nauthorization: Bearer {key}\r\ncontent-length: 0\r\n"
    _, body = await ask(server, f"POST /api/v1/login-links HTTP/1.1\r\n{head}\r\n")
    token = re.search(rb"token=([\w-]+)", body)
    assert token, body
    head_of_answer, _ = await ask(server, f"GET /login?token={token[1].decode()} HTTP/1.1\r\nhost: rota\r\n\r\n")
    cookie = re.search(r"set-cookie: (rota_session=[^;]+)", head_of_answer)
    assert cookie, head_of_answer
    return cookie[1]


async def loads(server: Server, path: str, cookie: str) -> tuple[list[float], int]:
    """Return the milliseconds of each load of a page, and its size in bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    request, spans, length = f"GET {path} HTTP/1.1\r\nhost: rota\r\ncookie: {cookie}\r\n\r\n".encode(), [], 0
    try:
        for _ in range(LOADS):
            begun = time.perf_counter()
            writer.write(request)
            head, body = await read(reader)
            spans.append((time.perf_counter() - begun) * 1000)
            assert head.startswith("HTTP/1.1 200"), (path, head)
            length = len(body)
    finally:
        writer.close()
    return spans, length


async def ask(server: Server, request: str) -> tuple[str, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request.encode())
    try:
        return await read(reader)
    finally:
        writer.close()


async def read(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = re.search(r"(?i)content-length: (\d+)", head)
    return head, await reader.readexactly(int(length[1])) if length else b""
