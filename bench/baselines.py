"""The bare driver: what the database allows at this time. Figures are shown as ratios to it, because machines differ.

claims   jobs per second of a loop that claims 500 and completes 500, 20,000 rows, in one process or more
pickups  milliseconds until a row inserted by one connection is claimed by another that waits for it, median of 100
"""

import asyncio
import json
import os
import sqlite3
import statistics
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import asyncpg

BATCH = 500
ROWS = 20_000
PICKUPS = 100

PG_TABLE = """
DROP TABLE IF EXISTS baseline;
CREATE TABLE baseline (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state smallint NOT NULL DEFAULT 0,
  priority int NOT NULL DEFAULT 0, run_at timestamptz NOT NULL DEFAULT now(), payload jsonb,
  attempts int NOT NULL DEFAULT 0, worker text, started_at timestamptz, finished_at timestamptz);
CREATE INDEX baseline_ready ON baseline (priority, run_at, id) WHERE state = 0;
"""
PG_CLAIM = """
UPDATE baseline SET state = 1, attempts = attempts + 1, worker = $2, started_at = now()
WHERE id IN (SELECT id FROM baseline WHERE state = 0 AND run_at <= now()
             ORDER BY priority, run_at, id FOR UPDATE SKIP LOCKED LIMIT $1)
RETURNING id, payload, attempts"""
PG_DONE = "UPDATE baseline SET state = 2, finished_at = now() WHERE id = any($1)"

LITE_TABLE = """
CREATE TABLE baseline (
  id integer PRIMARY KEY, state int NOT NULL DEFAULT 0, priority int NOT NULL DEFAULT 0, run_at real NOT NULL,
  payload text, attempts int NOT NULL DEFAULT 0, worker text, started_at real, finished_at real);
CREATE INDEX baseline_ready ON baseline (priority, run_at, id) WHERE state = 0;
"""
LITE_CLAIM = """
UPDATE baseline SET state = 1, attempts = attempts + 1, worker = ?2, started_at = ?3
WHERE id IN (SELECT id FROM baseline WHERE state = 0 AND run_at <= ?3 ORDER BY priority, run_at, id LIMIT ?1)
RETURNING id, payload, attempts"""
LITE_DONE = "UPDATE baseline SET state = 2, finished_at = ?2 WHERE id IN (SELECT value FROM json_each(?1))"


async def claims(url: str, processes: int = 1) -> float:
    """Return how many rows per second the driver claims and completes in the database at this URL."""
    if url.startswith("sqlite"):
        return await asyncio.to_thread(sqlite_claims, url)
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(PG_TABLE)
        await connection.execute(f"INSERT INTO baseline (payload) SELECT '{{}}' FROM generate_series(1, {ROWS})")
        await connection.execute("ANALYZE baseline")
        command = (sys.executable, "-m", "bench.baselines", url)
        loops = [await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE) for _ in range(processes)]
        for loop in loops:
            assert loop.stdout is not None
            await loop.stdout.readline()  # it is connected
        begun = time.perf_counter()
        await asyncio.gather(*(loop.communicate(b"go") for loop in loops))
        rate = ROWS / (time.perf_counter() - begun)
        await connection.execute("DROP TABLE baseline")
        return rate
    finally:
        await connection.close()


async def claim_all(url: str) -> None:
    """Claim and complete until nothing is left, when stdin allows it: one process of `claims`."""
    connection = await asyncpg.connect(url)
    await connection.fetch(PG_CLAIM, 0, "w")
    print("ready", flush=True)
    sys.stdin.read()
    while rows := await connection.fetch(PG_CLAIM, BATCH, "w"):
        await connection.execute(PG_DONE, [row["id"] for row in rows])
    os._exit(0)  # closing takes time


async def pickups(url: str, gap: float) -> tuple[float, float]:
    """Return the median milliseconds from the return, and from the call, of an insert until its row is claimed."""
    turns = sqlite_pickups(url) if url.startswith("sqlite") else postgres_pickups(url)
    spans = []
    async for called, returned, claimed in turns:
        spans.append(((claimed - returned) * 1000, (claimed - called) * 1000))
        await asyncio.sleep(gap)
    after_return, after_call = zip(*spans, strict=True)
    return statistics.median(after_return), statistics.median(after_call)


async def postgres_pickups(url: str) -> AsyncIterator[tuple[float, float, float]]:
    producer, consumer = await asyncpg.connect(url), await asyncpg.connect(url)
    notified = asyncio.Event()
    try:
        await producer.execute(PG_TABLE)
        await consumer.add_listener("baseline", lambda *_: notified.set())

        async def claim() -> float:
            await notified.wait()
            notified.clear()
            await consumer.fetch(PG_CLAIM, BATCH, "w")
            return time.perf_counter()

        for _ in range(PICKUPS):
            claiming = asyncio.ensure_future(claim())
            called = time.perf_counter()
            await producer.execute("INSERT INTO baseline (payload) VALUES ('{}'); NOTIFY baseline")
            returned = time.perf_counter()
            yield called, returned, await claiming
        await producer.execute("DROP TABLE baseline")
    finally:
        await producer.close()
        await consumer.close()


def sqlite_claims(url: str) -> float:
    with sqlite_file(url) as (connection, _):
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO baseline (run_at, payload) VALUES (0, ?)", [("{}",)] * ROWS)
        connection.execute("COMMIT")
        begun = time.perf_counter()
        while rows := sqlite_claim(connection):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(LITE_DONE, (json.dumps([row[0] for row in rows]), time.time()))
            connection.execute("COMMIT")
        return ROWS / (time.perf_counter() - begun)


async def sqlite_pickups(url: str) -> AsyncIterator[tuple[float, float, float]]:
    with sqlite_file(url) as (producer, consumer):
        for _ in range(PICKUPS):
            called = time.perf_counter()
            producer.execute("INSERT INTO baseline (run_at, payload) VALUES (0, '{}')")
            returned = time.perf_counter()
            sqlite_claim(consumer)
            yield called, returned, time.perf_counter()


def sqlite_claim(connection: sqlite3.Connection) -> list[Any]:
    connection.execute("BEGIN IMMEDIATE")
    rows = connection.execute(LITE_CLAIM, (BATCH, "w", time.time())).fetchall()
    connection.execute("COMMIT")
    return rows


@contextmanager
def sqlite_file(url: str) -> Iterator[tuple[sqlite3.Connection, sqlite3.Connection]]:
    """Yield two connections to an empty table, in a file beside the database at this URL."""
    path = Path(url.removeprefix("sqlite:///")).with_name("baseline.db")
    for leftover in path.parent.glob(f"{path.name}*"):
        leftover.unlink()
    first, second = (sqlite3.connect(path, isolation_level=None, check_same_thread=False) for _ in range(2))
    with closing(first), closing(second):
        for connection in (first, second):
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        first.executescript(LITE_TABLE)
        yield first, second


if __name__ == "__main__":
    asyncio.run(claim_all(sys.argv[1]))
