"""Cost of API requests: a real server with a large installation, over loopback, with keep-alive connections.

The load comes from this process, over raw asyncio connections that only write a request and read its answer:
a client library would cost more than the server. It shares the machine with the server and the database. Lists are
compared with a bare FastAPI + orjson server over the same rows (`bare_api`), in alternation.
"""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import text as sql

from bench.figures import Figure, Size, percentile
from bench.installation import DatabaseKind, Installation, installation
from rota.access.store import accounts
from rota.db.dialect import Tx, on_sqlite
from rota.db.tables import clocks, runs, schedule_stats, schedule_tags, schedules, trigger_spans

ROUNDS = 3
LOAD_FACTOR = 5  # times as many requests are sent to measure requests per second
CONNECTIONS = 8  # concurrent connections to measure requests per second
TURN = 20  # requests to one server before the other's turn, one after the other
LOAD_TURN = 25  # requests of each connection before the other server's turn
BATCH = 50_000  # rows that one statement inserts
FEW = 1_000  # runs and schedules of the small installation
STREAMS = 400
STREAMS_PER_KEY = 20  # that a server allows; it answers more with 429
CHANGE_SECONDS = 0.5  # between the changes that the streams receive
PART_SECONDS = 60.0  # after which a part of the workload ends with what it has measured
PREFIX = "01BENCH000000000"  # of ids; ten digits follow
BODY = b'{"overlap":"allow"}'


Ask = Callable[[int], tuple[str, str, bytes]]

LISTS = {
    "GET /schedules": "/api/v1/schedules?limit=50",
    "GET /runs": "/api/v1/runs?limit=50",
    "GET /schedules?tag=, 1 in 100 has it": "/api/v1/schedules?limit=50&tag=some",
    "GET /schedules?tag=, 1 in 10,000 has it": "/api/v1/schedules?limit=50&tag=few",
}
BARE_PATHS = {"GET /schedules": "/schedules", "GET /runs": "/runs"}


async def api(kind: DatabaseKind, size: Size) -> AsyncIterator[Figure]:
    """A large installation, a small one and a bare server on the large one; their requests take turns, so that a slow
    minute of the machine touches all."""
    async with large(kind, size, FEW, min(FEW, size.schedules)) as few, large(kind, size, size.stored_runs) as many:
        bare = await start_bare(many)
        for _ in range(ROUNDS):
            for name, path in LISTS.items():
                async for figure in list_figures(name, getting(path), few, many, bare, size):
                    yield figure
            spans = await many.latencies(many.run_request, size.requests)
            yield Figure("POST /schedules/{name}/$run, one after the other, p50", percentile(spans, 0.5), "ms")
            yield Figure("POST /schedules/{name}/$run, one after the other, p99", percentile(spans, 0.99), "ms")
            rate = await many.rate(many.run_request, size.requests // CONNECTIONS)
            yield Figure(f"POST /schedules/{{name}}/$run, {CONNECTIONS} connections", rate, "/s")
            async for figure in stream_figures(many, size):
                yield figure


async def list_figures(
    name: str, ask: Ask, few: "Server", many: "Server", bare: "Server", size: Size
) -> AsyncIterator[Figure]:
    bare_ask = getting(BARE_PATHS[name]) if name in BARE_PATHS else None
    small, spans, bare_spans = [], [], []
    for _ in range(size.requests // TURN):
        small += await few.latencies(ask, TURN)
        spans += await many.latencies(ask, TURN)
        if bare_ask is not None:
            bare_spans += await bare.latencies(bare_ask, TURN)
    growth = percentile(spans, 0.5) / percentile(small, 0.5)
    yield Figure(f"{name}, p50 at {size.stored_runs:,} runs ÷ at {FEW:,}", growth, "times", None, "≤ 1.5")
    target = "≤ 10" if "10,000" in name else "≤ 2.5"
    yield Figure(f"{name}, one after the other, p50", percentile(spans, 0.5), "ms", None, target)
    yield Figure(f"{name}, one after the other, p99", percentile(spans, 0.99), "ms")
    rates, bare_rates = [], []
    for _ in range(max(1, LOAD_FACTOR * size.requests // CONNECTIONS // LOAD_TURN)):
        rates.append(await many.rate(ask, LOAD_TURN))
        if bare_ask is not None:
            bare_rates.append(await bare.rate(bare_ask, LOAD_TURN))
    rate = percentile(rates, 0.5)
    yield Figure(f"{name}, {CONNECTIONS} connections", rate, "/s")
    if bare_ask is not None:
        ratio = percentile(bare_spans, 0.5) / percentile(spans, 0.5)
        yield Figure(f"{name}, bare route p50", percentile(bare_spans, 0.5), "ms")
        yield Figure(f"{name}, p50 of the bare route ÷ ours", ratio, "times", None, "≥ 0.6")
        loaded = rate / percentile(bare_rates, 0.5)
        yield Figure(f"{name}, {CONNECTIONS} connections, ours ÷ bare route", loaded, "times", None, "≥ 0.6")


async def stream_figures(server: "Server", size: Size) -> AsyncIterator[Figure]:
    """GET /runs while event streams are open and receive changes: 400 that one viewer asks for, of which the server
    allows 20, and 400 of 20 viewers."""
    now: datetime = server.here.engine.clock.now()
    count = STREAMS // STREAMS_PER_KEY
    keys = [
        await server.here.db.tx(accounts.create_key, server.here.org_id, f"viewer {number}", "viewer", now)
        for number in range(count)
    ]
    for viewers, users in (("one viewer", keys[:1]), (f"{count} viewers", keys)):
        name = f"GET /runs while {viewers} asked for {STREAMS} streams"
        async with server.streams(users) as accepted:
            yield Figure(f"{name}, open", accepted, "streams")
            spans = await server.latencies(getting(LISTS["GET /runs"]), size.requests)
        yield Figure(f"{name}, p50", percentile(spans, 0.5), "ms")
        yield Figure(f"{name}, p99", percentile(spans, 0.99), "ms", None, "≤ 50")


def getting(path: str) -> Ask:
    return lambda _: ("GET", path, b"")


@dataclass
class Server:
    """A server with a key to it."""

    here: Installation
    port: int
    key: str
    size: Size
    asked: int = 0

    def run_request(self, number: int) -> tuple[str, str, bytes]:
        return "POST", f"/api/v1/schedules/copy-{1_000_000_000 + number % self.size.schedules}/$run", BODY

    async def rate(self, ask: Ask, count: int) -> float:
        """The requests per second of all connections, each of which sends so many."""
        begun = time.perf_counter()
        sent = await asyncio.gather(*(self.latencies(ask, count) for _ in range(CONNECTIONS)))
        return sum(map(len, sent)) / (time.perf_counter() - begun)

    async def latencies(self, ask: Ask, count: int) -> list[float]:
        """The milliseconds that each of so many requests takes, one after the other over one connection; of fewer
        after PART_SECONDS."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        spans = []
        end = time.perf_counter() + PART_SECONDS
        try:
            for _ in range(count):
                self.asked += 1
                request = wire(*ask(self.asked), self.key)
                begun = time.perf_counter()
                writer.write(request)
                await read_answer(reader)
                spans.append((time.perf_counter() - begun) * 1000)
                if time.perf_counter() > end:
                    break
        finally:
            writer.close()
        return spans

    @asynccontextmanager
    async def streams(self, keys: list[str]) -> AsyncIterator[int]:
        """Ask for STREAMS event streams with these keys and read them, while changes happen; yields how many the
        server allowed."""
        writers, readers, accepted = [], [], 0
        for number in range(STREAMS):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(wire("GET", "/api/v1/events", b"", keys[number % len(keys)]))
            allowed = (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            accepted += allowed
            writers.append(writer)
            readers.append(asyncio.ensure_future(drained(reader)))
        changing = asyncio.ensure_future(self.change())
        try:
            yield accepted
        finally:
            for task in (changing, *readers):
                task.cancel()
            await asyncio.gather(changing, *readers, return_exceptions=True)
            for writer in writers:
                writer.close()

    async def change(self) -> None:
        """Change a schedule every CHANGE_SECONDS, for ever."""
        for number in range(1_000_000):
            body = json.dumps({"description": f"change {number}"}).encode()
            await self.latencies(partial(patching, body), 1)
            await asyncio.sleep(CHANGE_SECONDS)


def patching(body: bytes, _: int) -> tuple[str, str, bytes]:
    return "PATCH", "/api/v1/schedules/copy-1000000000", body


async def drained(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


async def start_bare(server: Server) -> Server:
    """Start the bare server on the database of a server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server.here.start_process("-m", "bench.bare_api", server.here.org_id, str(port))

    async def up() -> bool:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return True
        return False

    await server.here.until(up, "the bare server was up", 60, 0.05)
    return Server(server.here, port, "none", server.size)


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
async def large(
    kind: DatabaseKind, size: Size, stored: int, schedules_stored: int | None = None
) -> AsyncIterator[Server]:
    """A server over so many schedules and runs: copies of one schedule and of one run that Rota made itself."""
    among = schedules_stored or size.schedules
    async with installation(kind) as here:
        await here.engine.create_schedules(here.org_id, [{"name": "seed", "target": "quiet", "interval": "1d"}])
        await here.engine.run_now(here.org_id, "seed")
        worker = here.start_process()

        async def ran() -> bool:
            return await here.count("runs") == 1

        await here.until(ran, "the first job was done", 60, 0.02)
        worker.stop()
        here.processes.remove(worker)
        await here.db.tx(lambda tx: fill_schedules(tx, among))
        indexes = await here.db.tx(drop_indexes, "runs")
        for start in range(0, stored, BATCH):
            await here.db.tx(fill_runs, start, min(BATCH, stored - start), among)
        for index in indexes:
            await here.db.tx(execute, index)
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
    for tag, tagged in {"few": '%["few"]', "some": "%some%", "a": '["a"%'}.items():
        rows = f"SELECT org_id, '{tag}', name, id FROM schedules WHERE tags LIKE '{tagged}'"
        tx.execute(sql(f"INSERT INTO {schedule_tags.name} (org_id, tag, name, schedule_id) {rows}"))


def fill_runs(tx: Tx, start: int, count: int, among: int) -> None:
    """A run a second into the past, of one schedule after the other."""
    number, second = "CAST(1000000000 + i AS text)", "1000000" if on_sqlite(tx) else "interval '1 second'"
    made = dict.fromkeys(("id", "job_id"), f"'{PREFIX}' || {number}")
    made["schedule_id"] = f"'{PREFIX}' || CAST(1000000000 + i % {among} AS text)"
    for column in ("queued_at", "started_at", "finished_at", "recorded_at"):
        made[column] = f"{column} - i * {second}"
    copies(tx, runs, start, count, **made)


def execute(tx: Tx, text: str) -> None:
    tx.execute(sql(text))


def drop_indexes(tx: Tx, table: str) -> list[str]:
    """Drop the indexes of a table that belong to no constraint; return the statements that create them again: sorted
    at once they take a third of the time."""
    if on_sqlite(tx):
        stored = (
            f"SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = '{table}' AND sql IS NOT NULL"
        )
    else:
        own = f"SELECT conname FROM pg_constraint WHERE conrelid = '{table}'::regclass"
        stored = f"SELECT indexname, indexdef FROM pg_indexes WHERE tablename = '{table}' AND indexname NOT IN ({own})"
    rows = tx.execute(sql(stored.replace("::", "\\:\\:"))).all()
    for name, _ in rows:
        tx.execute(sql(f"DROP INDEX {name}"))
    return [text for _, text in rows]


def copies(tx: Tx, table: Any, start: int, count: int, **made: str) -> None:
    """Copies of the first row of a table, with some columns made anew from their number `i`."""
    names = [column.name for column in table.columns]
    values = ", ".join(made.get(name, name) for name in names)
    first = f"(SELECT * FROM {table.name} WHERE {names[0]} NOT LIKE '{PREFIX}%' LIMIT 1) AS first"
    numbers = f"n(i) AS (SELECT {start} UNION ALL SELECT i + 1 FROM n WHERE i < {start + count - 1})"
    tx.execute(
        sql(f"INSERT INTO {table.name} ({', '.join(names)}) WITH RECURSIVE {numbers} SELECT {values} FROM n, {first}")
    )
