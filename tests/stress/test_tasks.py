"""A thousand executions at once, of every sort: none is lost, none runs twice, nothing is left open."""

import asyncio
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select, text

from rota import AsyncSession, Rota, ServiceBuilder, ServiceInfo
from rota.client import AsyncClient
from rota.db.connection import Database, open_database
from rota.db.tables import jobs, runs
from tests.acceptance.cluster import until

AT_ONCE = 20
MIX = Counter(waits=810, asks=50, computes=100, says=40)
FIRST = Counter(waits=10, asks=10, computes=20, says=5)
# Pools grow up to their size: threads for sync functions, connections. SQLite, too, keeps files of closed sessions for
# the following ones while other connections of the process have the database open.
SPARE = {"files": AT_ONCE + 5, "threads": AT_ONCE, "children": 0}


class ConcurrentCalls:
    """Counts who is inside, from any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = 0
        self.served: Counter[str] = Counter()

    @contextmanager
    def enter(self, name: str) -> Iterator[None]:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.served[name] += 1
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1


def program(concurrent: ConcurrentCalls, marks: Path) -> Rota:
    app = Rota()

    @app.task
    async def waits() -> None:
        with concurrent.enter("waits"):
            await asyncio.sleep(0.002)

    @app.task
    async def asks(session: AsyncSession) -> int:
        with concurrent.enter("asks"):
            return int((await session.execute(text("SELECT 1"))).scalar_one())

    @app.task
    def computes() -> None:
        with concurrent.enter("computes"):
            time.sleep(0.005)

    app.shell("says", f'echo . >> "{marks}"')
    return app


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_a_thousand_executions_of_every_sort_at_once(migrated_url: str, tmp_path: Path) -> None:
    concurrent, marks = ConcurrentCalls(), tmp_path / "marks"
    service = (
        ServiceBuilder(ServiceInfo("stress"), database_url=migrated_url, program=program(concurrent, marks))
        .with_tasks()
        .with_jobs(max_concurrency=AT_ONCE)
        .build()
    )
    db = open_database(migrated_url)
    client = AsyncClient("http://rota", "any", transport=httpx.ASGITransport(service))
    async with service.router.lifespan_context(service), client:
        warm = await execute_all(client, FIRST)  # opens what is kept for later
        await all_ended(db, len(warm))
        before = census()
        ids = warm + await execute_all(client, MIX - FIRST)
        await all_ended(db, len(ids))
        await tidy({name: before[name] + spare for name, spare in SPARE.items()})
    ledger = await db.read(lambda tx: list(tx.execute(select(runs.c.job_id, runs.c.target_name, runs.c.status))))
    await db.close()
    assert Counter((row.target_name, row.status) for row in ledger) == {(name, "success"): MIX[name] for name in MIX}
    assert sorted(row.job_id for row in ledger) == sorted(ids)
    assert concurrent.served == MIX - Counter(says=MIX["says"])
    assert len(marks.read_text().split()) == MIX["says"]
    assert AT_ONCE // 2 < concurrent.most <= AT_ONCE  # held, and made use of


async def execute_all(client: AsyncClient, mix: Counter[str]) -> list[str]:
    """All at once; returns the jobs' ids."""

    async def execute(name: str) -> str:
        return str((await client.call("POST", f"/tasks/{name}/$execute"))["job_id"])

    return await asyncio.gather(*map(execute, mix.elements()))


async def all_ended(db: Database, count: int) -> None:
    stmt = select(select(func.count()).select_from(runs).scalar_subquery(), func.count()).select_from(jobs)

    async def ended() -> bool:
        return bool(await db.read(lambda tx: tuple(tx.execute(stmt).one())) == (count, 0))

    await until(ended, 90, f"{count} runs have ended")


async def tidy(limit: dict[str, int]) -> None:
    """Wait until no more is open than this: resources of a run may be closed shortly after it ended."""
    end = time.monotonic() + 10
    while any((counts := census())[name] > most for name, most in limit.items()):
        assert time.monotonic() < end, f"left open: {counts}; allowed: {limit}"
        await asyncio.sleep(0.05)


def census() -> dict[str, int]:
    """What this process has open: connections and pipes are files, a SQLite session is a thread and files."""
    stats = (entry for entry in Path("/proc").glob("[0-9]*/stat"))
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "children": sum(parent_of(stat) == os.getpid() for stat in stats),
    }


def parent_of(stat: Path) -> int | None:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return None
