"""What the bare driver does here, now: figures are told as ratios to these, because machines differ and are shared.

claims   jobs per second of a loop that claims 500 and completes 500, 20,000 rows
pickups  milliseconds until a row that one connection inserts is claimed by another that waits for it, median of 100
"""

import asyncio
import json
import sqlite3
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import asyncpg

BATCH = 500
ROWS = 20_000
PICKUPS = 100

PG_TABLE = """
DROP TABLE IF EXISTS yardstick;
CREATE TABLE yardstick (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state smallint NOT NULL DEFAULT 0,
  priority int NOT NULL DEFAULT 0, run_at timestamptz NOT NULL DEFAULT now(), payload jsonb,
  attempts int NOT NULL DEFAULT 0, worker text, started_at timestamptz, finished_at timestamptz);
CREATE INDEX yardstick_ready ON yardstick (priority, run_at, id) WHERE state = 0;
"""
PG_CLAIM = """
UPDATE yardstick SET state = 1, attempts = attempts + 1, worker = $2, started_at = now()
WHERE id IN (SELECT id FROM yardstick WHERE state = 0 AND run_at <= now()
             ORDER BY priority, run_at, id FOR UPDATE SKIP LOCKED LIMIT $1)
RETURNING id, payload, attempts"""
PG_DONE = "UPDATE yardstick SET state = 2, finished_at = now() WHERE id = any($1)"

LITE_TABLE = """
CREATE TABLE yardstick (
  id integer PRIMARY KEY, state int NOT NULL DEFAULT 0, priority int NOT NULL DEFAULT 0, run_at real NOT NULL,
  payload text, attempts int NOT NULL DEFAULT 0, worker text, started_at real, finished_at real);
CREATE INDEX yardstick_ready ON yardstick (priority, run_at, id) WHERE state = 0;
"""
LITE_CLAIM = """
UPDATE yardstick SET state = 1, attempts = attempts + 1, worker = ?2, started_at = ?3
WHERE id IN (SELECT id FROM yardstick WHERE state = 0 AND run_at <= ?3 ORDER BY priority, run_at, id LIMIT ?1)
RETURNING id, payload, attempts"""
LITE_DONE = "UPDATE yardstick SET state = 2, finished_at = ?2 WHERE id IN (SELECT value FROM json_each(?1))"


async def claims(url: str) -> float:
    """How many rows a second it claims and completes, beside the database at this URL."""
    if url.startswith("sqlite"):
        return await asyncio.to_thread(sqlite_claims, url)
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(PG_TABLE)
        await connection.execute(f"INSERT INTO yardstick (payload) SELECT '{{}}' FROM generate_series(1, {ROWS})")
        await connection.execute("ANALYZE yardstick")
        begun = time.perf_counter()
        while found := await connection.fetch(PG_CLAIM, BATCH, "w"):
            await connection.execute(PG_DONE, [row["id"] for row in found])
        rate = ROWS / (time.perf_counter() - begun)
        await connection.execute("DROP TABLE yardstick")
        return rate
    finally:
        await connection.close()


async def pickups(url: str, gap: float) -> tuple[float, float]:
    """How long after the return, and after the call, of an insert its row is claimed; so many seconds between them."""
    turns = sqlite_pickups(url) if url.startswith("sqlite") else postgres_pickups(url)
    spans = []
    async for called, returned, claimed in turns:
        spans.append(((claimed - returned) * 1000, (claimed - called) * 1000))
        await asyncio.sleep(gap)
    after_return, after_call = zip(*spans, strict=True)
    return statistics.median(after_return), statistics.median(after_call)


async def postgres_pickups(url: str) -> AsyncIterator[tuple[float, float, float]]:
    maker, taker = await asyncpg.connect(url), await asyncpg.connect(url)
    told = asyncio.Event()
    try:
        await maker.execute(PG_TABLE)
        await taker.add_listener("yardstick", lambda *_: told.set())

        async def take() -> float:
            await told.wait()
            told.clear()
            await taker.fetch(PG_CLAIM, BATCH, "w")
            return time.perf_counter()

        for _ in range(PICKUPS):
            taking = asyncio.ensure_future(take())
            called = time.perf_counter()
            await maker.execute("INSERT INTO yardstick (payload) VALUES ('{}'); NOTIFY yardstick")
            returned = time.perf_counter()
            yield called, returned, await taking
        await maker.execute("DROP TABLE yardstick")
    finally:
        await maker.close()
        await taker.close()


def sqlite_claims(url: str) -> float:
    with sqlite_file(url) as (connection, _):
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO yardstick (run_at, payload) VALUES (0, ?)", [("{}",)] * ROWS)
        connection.execute("COMMIT")
        begun = time.perf_counter()
        while found := sqlite_claim(connection):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(LITE_DONE, (json.dumps([row[0] for row in found]), time.time()))
            connection.execute("COMMIT")
        return ROWS / (time.perf_counter() - begun)


async def sqlite_pickups(url: str) -> AsyncIterator[tuple[float, float, float]]:
    with sqlite_file(url) as (maker, taker):
        for _ in range(PICKUPS):
            called = time.perf_counter()
            maker.execute("INSERT INTO yardstick (run_at, payload) VALUES (0, '{}')")
            returned = time.perf_counter()
            sqlite_claim(taker)
            yield called, returned, time.perf_counter()


def sqlite_claim(connection: sqlite3.Connection) -> list[Any]:
    connection.execute("BEGIN IMMEDIATE")
    found = connection.execute(LITE_CLAIM, (BATCH, "w", time.time())).fetchall()
    connection.execute("COMMIT")
    return found


@contextmanager
def sqlite_file(url: str) -> Iterator[tuple[sqlite3.Connection, sqlite3.Connection]]:
    """Two connections to an empty table, in a file beside the database at this URL."""
    path = Path(url.removeprefix("sqlite:///")).with_name("yardstick.db")
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()
    one, other = (sqlite3.connect(path, isolation_level=None, check_same_thread=False) for _ in range(2))
    with closing(one), closing(other):
        for connection in (one, other):
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        one.executescript(LITE_TABLE)
        yield one, other
