"""Several processes on one SQLite file: they share it fairly, and a foreign transaction costs no lease."""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import func, select

from rota.db.tables import jobs
from tests.acceptance.cluster import Cluster

LOCK_ERRORS = ("locked", "busy", "Traceback")


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_four_busy_processes_share_one_file_fairly(tmp_path: Path, sqlite_database: str) -> None:
    async with Cluster(tmp_path, sqlite_database, concurrency=10) as cluster:
        processes = await cluster.up(4)
        promised: set[str] = set()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            ((waiting,),) = await cluster.rows(select(func.count()).select_from(jobs))
            if waiting < 1000:
                promised.update(await cluster.enqueue("quick", 1000))
            await asyncio.sleep(0.2)
        await cluster.idle()

        ledger = await cluster.runs()
        assert Counter((run.status, run.attempt) for run in ledger) == {("success", 1): len(promised)}
        assert {run.job_id for run in ledger} == promised
        assert Counter(line.run_id for line in cluster.witness_lines("end")) == Counter(run.id for run in ledger)
        shares = Counter(line.pid for line in cluster.witness_lines("end"))
        assert set(shares) == {process.pid for process in processes}
        assert min(shares.values()) >= 0.3 * max(shares.values()), shares
        assert [word for word in LOCK_ERRORS if word in cluster.log_text()] == []


HOLDER = """
import sqlite3

@app.task
def hold(ctx: RunContext, path: str, seconds: float):
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("BEGIN IMMEDIATE")
    note(ctx, "begin")
    time.sleep(seconds)
    connection.execute("ROLLBACK")
    connection.close()
    note(ctx, "end")
"""


async def test_a_long_foreign_transaction_costs_no_lease(tmp_path: Path, sqlite_database: str) -> None:
    async with Cluster(tmp_path, sqlite_database, HOLDER, lease_seconds=5) as cluster:
        await cluster.up(3)
        await cluster.enqueue("sleeper", 6, seconds=25)
        await cluster.wait_for_line("begin", count=6, target="sleeper")
        await cluster.enqueue("hold", path=sqlite_database.removeprefix("sqlite:///"), seconds=20)
        await cluster.wait_for_line("begin", target="hold")
        (late,) = cluster.start(1)  # starts while no process can write
        await cluster.wait_for_line("end", seconds=40, target="hold")
        await cluster.idle()

        assert Counter((run.target, run.status, run.attempt) for run in await cluster.runs()) == {
            ("sleeper", "success", 1): 6,
            ("hold", "success", 1): 1,
        }
        assert {row.state for row in await cluster.workers()} == {"alive"}
        assert late.alive
        assert "Traceback" not in cluster.log_text()
