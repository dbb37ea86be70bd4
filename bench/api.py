"""Cost of API requests: a real server with a large installation, over loopback, with keep-alive connections.

The load comes from this process, over raw asyncio connections that only write a request and read its answer:
a client library would cost more than the server. It shares the machine with the server and the database.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text as sql

from bench.figures import Figure, Size, percentile
from bench.installation import DatabaseKind, Installation, installation
from rota.access.store import accounts
from rota.db.dialect import Tx, on_sqlite
from rota.db.tables import clocks, runs, schedule_stats, schedules, trigger_spans

ROUNDS = 3
LOAD_FACTOR = 5  # times as many requests are sent to measure requests per second
CONNECTIONS = 8  # concurrent connections to measure requests per second
TURN = 20  # requests to one server before the other's turn
BATCH = 50_000  # rows that one statement inserts
FEW = 1_000  # runs of the small installation
PREFIX = "01BENCH000000000"  # of ids; ten digits follow
BODY = b'{"overlap":"allow"}'


Ask = Callable[[int], tuple[str, str, bytes]]

LISTS = {
    "GET /schedules": "/api/v1/schedules?limit=50",
    "GET /schedules?tag=, 1 in 100 has it": "/api/v1/schedules?limit=50&tag=some",
    "GET /schedules?tag=, 1 in 10,000 has it": "/api/v1/schedules?limit=50&tag=few",
    "GET /runs": "/api/v1/runs?limit=50",
}


async def api(kind: DatabaseKind, size: Size) -> AsyncIterator[Figure]:
    """Two installations side by side, of few runs and of many; their requests take turns, so that a slow minute of the
    machine touches both."""
    async with large(kind, size, FEW) as few, large(kind, size, size.stored_runs) as many:
        for _ in range(ROUNDS):
            for name, path in LISTS.items():
                ask = getting(path)
                small, spans = [], []
                for _ in range(size.requests // TURN):
                    small += await few.latencies(ask, TURN)
                    spans += await many.latencies(ask, TURN)
                ratio = percentile(spans, 0.5) / percentile(small, 0.5)
                yield Figure(f"{name}, p50 at {size.stored_runs:,} runs ÷ at {FEW:,}", ratio, "times", None, "≤ 1.5")
                async for figure in many.figures(name, ask, spans, size):
                    yield figure
            spans = await many.latencies(many.run_request, size.requests)
            async for figure in many.figures("POST /schedules/{name}/$run", many.run_request, spans, size):
                yield figure


def getting(path: str) -> Ask:
    return lambda _: ("GET", path, b"")


@dataclass
class Server:
    """A `rota server` with a key to it."""

    here: Installation
    port: int
    key: str
    size: Size
    asked: int = 0

    def run_request(self, number: int) -> tuple[str, str, bytes]:
        return "POST", f"/api/v1/schedules/copy-{1_000_000_000 + number % self.size.schedules}/$run", BODY

    async def figures(self, name: str, ask: Ask, spans: list[float], size: Size) -> AsyncIterator[Figure]:
        yield Figure(f"{name}, one after the other, p50", percentile(spans, 0.5), "ms")
        yield Figure(f"{name}, one after the other, p99", percentile(spans, 0.99), "ms")
        begun = time.perf_counter()
        await asyncio.gather(
            *(self.latencies(ask, LOAD_FACTOR * size.requests // CONNECTIONS) for _ in range(CONNECTIONS))
        )
        yield Figure(
            f"{name}, {CONNECTIONS} connections", LOAD_FACTOR * size.requests / (time.perf_counter() - begun), "/s"
        )

    async def latencies(self, ask: Ask, count: int) -> list[float]:
        """The milliseconds that each of so many requests takes, one after the other over one connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        spans = []
        try:
            for _ in range(count):
                self.asked += 1
                request = wire(*ask(self.asked), self.key)
                begun = time.perf_counter()
                writer.write(request)
                await read_answer(reader)
                spans.append((time.perf_counter() - begun) * 1000)
        finally:
            writer.close()
        return spans


def wire(method: str, path: str, body: bytes, key: str) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: rota\r\nauthorization: Bearer {key}\r\n"
    content_headers = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if body else ""
    return f"{head}{content_headers}\r\n".encode() + body


async def read_answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("content-length: ")[1].split("\r\n")[0])
    body = await reader.readexactly(length)
    if not head.startswith("http/1.1 20"):
        raise AssertionError(f"{head.splitlines()[0]}: {body[:500]!r}")


# a large installation


@asynccontextmanager
async def large(kind: DatabaseKind, size: Size, stored: int) -> AsyncIterator[Server]:
    """A server over so many schedules and runs: copies of one schedule and of one run that Rota made itself."""
    async with installation(kind) as here:
        await here.engine.create_schedules(here.org_id, [{"name": "seed", "target": "quiet", "interval": "1d"}])
        await here.engine.run_now(here.org_id, "seed")
        worker = here.start_process()

        async def ran() -> bool:
            return await here.count("runs") == 1

        await here.until(ran, "the first job was done", 60, 0.02)
        worker.stop()
        here.processes.remove(worker)
        await here.db.tx(lambda tx: fill_schedules(tx, size.schedules))
        for start in range(0, stored, BATCH):
            await here.db.tx(fill_runs, start, min(BATCH, stored - start), size.schedules)
        await here.db.tx(lambda tx: tx.execute(sql("ANALYZE")))
        now: datetime = here.engine.clock.now()
        key = await here.db.tx(accounts.create_key, here.org_id, "bench", "operator", now)
        server = here.start_process("-m", "rota.app.cli", "server", "--port", "0")
        note = here.home / "server.json"

        async def up() -> bool:
            return note.exists()

        await here.until(up, "the server was up", 60, 0.05)
        yield Server(here, int(json.loads(note.read_text())["url"].rpartition(":")[2]), key, size)
        server.stop()


def fill_schedules(tx: Tx, count: int) -> None:
    number = "CAST(1000000000 + i AS text)"
    tags = """CASE WHEN i % 10000 = 77 THEN '["few"]' WHEN i % 100 = 55 THEN '["a","some"]' ELSE '["a"]' END"""
    made = {"id": f"'{PREFIX}' || {number}", "name": f"'copy-' || {number}", "tags": tags}
    copies(tx, schedules, 0, count, **made)
    for table in (clocks, schedule_stats, trigger_spans):
        copies(tx, table, 0, count, schedule_id=f"'{PREFIX}' || {number}")


def fill_runs(tx: Tx, start: int, count: int, among: int) -> None:
    """A run a second into the past, of one schedule after the other."""
    number, second = "CAST(1000000000 + i AS text)", "1000000" if on_sqlite(tx) else "interval '1 second'"
    made = dict.fromkeys(("id", "job_id"), f"'{PREFIX}' || {number}")
    made["schedule_id"] = f"'{PREFIX}' || CAST(1000000000 + i % {among} AS text)"
    for column in ("queued_at", "started_at", "finished_at", "recorded_at"):
        made[column] = f"{column} - i * {second}"
    copies(tx, runs, start, count, **made)


def copies(tx: Tx, table: Any, start: int, count: int, **made: str) -> None:
    """Copies of the first row of a table, with some columns made anew from their number `i`."""
    names = [column.name for column in table.columns]
    values = ", ".join(made.get(name, name) for name in names)
    first = f"(SELECT * FROM {table.name} WHERE {names[0]} NOT LIKE '{PREFIX}%' LIMIT 1) AS first"
    numbers = f"n(i) AS (SELECT {start} UNION ALL SELECT i + 1 FROM n WHERE i < {start + count - 1})"
    tx.execute(
        sql(f"INSERT INTO {table.name} ({', '.join(names)}) WITH RECURSIVE {numbers} SELECT {values} FROM n, {first}")
    )
