"""What the bare driver does here, now: figures are told as ratios to these, because machines differ and are shared.

claim   jobs per second of a loop that claims 500 and completes 500, 20,000 rows
commit  milliseconds that inserting one row and committing takes, median of 200
"""

import asyncio
import json
import sqlite3
import statistics
import time
from pathlib import Path

import asyncpg

BATCH = 500
ROWS = 20_000
COMMITS = 200

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


async def measure(url: str) -> dict[str, float]:
    """Both yardsticks, beside the database at this URL."""
    if url.startswith("sqlite"):
        return await asyncio.to_thread(measure_sqlite, Path(url.removeprefix("sqlite:///")).with_name("yardstick.db"))
    return await measure_postgres(url)


async def measure_postgres(url: str) -> dict[str, float]:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(PG_TABLE)
        await connection.execute(f"INSERT INTO yardstick (payload) SELECT '{{}}' FROM generate_series(1, {ROWS})")
        await connection.execute("ANALYZE yardstick")
        begun = time.perf_counter()
        while found := await connection.fetch(PG_CLAIM, BATCH, "w"):
            await connection.execute(PG_DONE, [row["id"] for row in found])
        rate = ROWS / (time.perf_counter() - begun)
        spans = []
        for _ in range(COMMITS):
            begun = time.perf_counter()
            await connection.execute("INSERT INTO yardstick (payload) VALUES ('{}')")
            spans.append((time.perf_counter() - begun) * 1000)
        await connection.execute("DROP TABLE yardstick")
        return {"claim": rate, "commit": statistics.median(spans)}
    finally:
        await connection.close()


def measure_sqlite(path: Path) -> dict[str, float]:
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.executescript(LITE_TABLE)
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO yardstick (run_at, payload) VALUES (0, ?)", [("{}",)] * ROWS)
        connection.execute("COMMIT")
        begun = time.perf_counter()
        while True:
            connection.execute("BEGIN IMMEDIATE")
            found = connection.execute(LITE_CLAIM, (BATCH, "w", time.time())).fetchall()
            connection.execute("COMMIT")
            if not found:
                break
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(LITE_DONE, (json.dumps([row[0] for row in found]), time.time()))
            connection.execute("COMMIT")
        rate = ROWS / (time.perf_counter() - begun)
        spans = []
        for _ in range(COMMITS):
            begun = time.perf_counter()
            connection.execute("INSERT INTO yardstick (run_at, payload) VALUES (0, '{}')")
            spans.append((time.perf_counter() - begun) * 1000)
        return {"claim": rate, "commit": statistics.median(spans)}
    finally:
        connection.close()
