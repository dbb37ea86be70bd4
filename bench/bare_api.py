"""A bare FastAPI + orjson server over the same rows as Rota's lists: the reference of the workload `api`.

It has no authentication, filters, cursors or redaction: a SELECT by the driver, a dict per row, orjson. It runs with
the same uvicorn settings as `rota server`, and on SQLite it reads in threads, as Rota does.
"""

import asyncio
import os
import socket
import sqlite3
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import orjson
import uvicorn
import uvloop
from fastapi import FastAPI, Response

from rota.app.connections import HEAD_BYTES, Connection
from rota.db.tables import runs
from rota.reports.schedules import COLUMNS

ROWS = 50
OWN_COLUMNS = ("org_id", "route", "fence", "grant_id", "lost_fence")  # that Rota's list does not have
RUN_COLUMNS = ", ".join(column.name for column in runs.c if column.name not in OWN_COLUMNS)
SCHEDULE_COLUMNS = ", ".join(f"{getattr(column, 'element', column)} AS {column.name}" for column in COLUMNS)
TEXTS = {
    "/runs": f"SELECT {RUN_COLUMNS} FROM runs WHERE org_id = $1 ORDER BY recorded_at DESC, id DESC LIMIT {ROWS}",
    "/schedules": (
        f"SELECT {SCHEDULE_COLUMNS} FROM schedules "
        "JOIN clocks ON clocks.schedule_id = schedules.id "
        "JOIN schedule_stats ON schedule_stats.schedule_id = schedules.id "
        f"WHERE schedules.org_id = $1 AND deleted_at IS NULL ORDER BY name LIMIT {ROWS}"
    ),
}

Fetch = Callable[[str], Awaitable[list[dict[str, Any]]]]


def create_app(fetch: Fetch) -> FastAPI:
    app = FastAPI()

    def add_list(path: str, text: str) -> None:
        @app.get(path)
        async def page(limit: int = ROWS) -> Response:  # noqa: ARG001
            return Response(orjson.dumps({"items": await fetch(text)}), media_type="application/json")

    for path, text in TEXTS.items():
        add_list(path, text)
    return app


async def fetch_by_asyncpg(url: str, org_id: str) -> Fetch:
    settings = {"enable_seqscan": "off", "enable_mergejoin": "off", "jit": "off"}  # as Rota's
    pool = await asyncpg.create_pool(url, min_size=2, max_size=10, server_settings=settings)

    async def fetch(text: str) -> list[dict[str, Any]]:
        return [dict(row) for row in await pool.fetch(text, org_id)]

    return fetch


def fetch_by_sqlite3(path: str, org_id: str) -> Fetch:
    threads, local = ThreadPoolExecutor(2), threading.local()

    def read(text: str) -> list[dict[str, Any]]:
        if not hasattr(local, "connection"):
            local.connection = sqlite3.connect(path)
        cursor = local.connection.execute(text.replace("$1", "?"), (org_id,))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    async def fetch(text: str) -> list[dict[str, Any]]:
        return await asyncio.get_running_loop().run_in_executor(threads, read, text)

    return fetch


async def serve(sock: socket.socket) -> None:
    url, org_id = os.environ["BENCH_URL"], sys.argv[1]
    on_sqlite = url.startswith("sqlite")
    fetch = (
        fetch_by_sqlite3(url.removeprefix("sqlite:///"), org_id) if on_sqlite else await fetch_by_asyncpg(url, org_id)
    )
    config = uvicorn.Config(
        create_app(fetch),
        log_config=None,
        access_log=False,
        lifespan="off",
        http=Connection,
        h11_max_incomplete_event_size=HEAD_BYTES,
        proxy_headers=False,
    )
    await uvicorn.Server(config).serve(sockets=[sock])


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", int(sys.argv[2])))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(listening))
