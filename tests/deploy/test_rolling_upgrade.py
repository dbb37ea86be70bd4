"""Rolling upgrade: workers of the previous release and of this checkout side by side, on the schema of this checkout.

The previous release is the newest version tag before this version. Until there is one, it is a fixed commit.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import asyncpg
import pytest
from sqlalchemy import text

from rota.db.dialect import Tx
from rota.db.schema import revisions
from rota.db.tables import metadata
from rota.version import __version__
from tests.acceptance.cluster import Cluster, Process
from tests.db.copies import in_transaction
from tests.db.large import add_runs, add_schedules
from tests.deploy.conftest import build
from tests.deploy.pythons import ROOT
from tests.postgres import create_database, drop_database

BEFORE_THE_FIRST_RELEASE = "07f3f53635aef19e5d34be0dbcd73c4a06b76501"  # schema 0004
JOBS_EACH = 20
PROGRAM = """
@app.task
async def work(ctx: RunContext):
    note(ctx, "begin")
    await asyncio.sleep(0.2)
    note(ctx, "end")

for number in range(10):
    app.schedule(f"tick-{number}", "work", every="1s", overlap="queue_all")
"""

LARGE_RUNS, LARGE_SCHEDULES = 1_000_000, 10_000
MAX_GAP_SECONDS = 1.0
CHAINS = """
from datetime import UTC, datetime, timedelta
from rota import JobScheduler

@app.task
async def work(ctx: RunContext, jobs: JobScheduler):
    note(ctx, "begin")
    await jobs.add_job("work")
    await asyncio.sleep(0.02)

for number in range(4):
    app.schedule(f"chain-{number}", "work", at=(datetime.now(UTC) + timedelta(seconds=2)).isoformat())
"""


class LockProbe:
    """Locks the tables of the queue as a worker that writes does, again and again; measures the longest wait."""

    def __init__(self, url: str) -> None:
        self.url, self.longest = url, 0.0

    async def __aenter__(self) -> Self:
        self.connection = await asyncpg.connect(self.url)
        self.probing = asyncio.create_task(self.probe())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.probing.cancel()
        await asyncio.wait([self.probing])
        await self.connection.close()

    async def probe(self) -> None:
        while True:
            begun = time.monotonic()
            async with self.connection.transaction():
                await self.connection.execute("LOCK TABLE jobs, runs, clocks, slots, schedules IN ROW EXCLUSIVE MODE")
            self.longest = max(self.longest, time.monotonic() - begun)
            await asyncio.sleep(0.005)


def git(*words: str) -> str | None:
    """The output of a git command; None if it fails."""
    try:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def previous_release() -> str:
    """The commit of the previous release."""
    tags = (git("tag", "--list", "v*", "--merged", "HEAD", "--sort=-v:refname") or "").split()
    return next((tag for tag in tags if tag != f"v{__version__}"), BEFORE_THE_FIRST_RELEASE)


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package of the previous release. It uses the dependencies of this environment."""
    commit, place = previous_release(), tmp_path_factory.mktemp("previous")
    if git("cat-file", "-e", f"{commit}^{{commit}}") is None:
        pytest.skip(f"this checkout has no history of {commit}")
    assert git("archive", "--output", str(place / "source.tar"), commit) is not None
    with tarfile.open(place / "source.tar") as archive:
        archive.extractall(place / "source", filter="data")
    with zipfile.ZipFile(build(place / "source", "wheel", place / "wheel")) as wheel:
        wheel.extractall(place / "packages")
    return place / "packages"


@pytest.mark.long
async def test_old_and_new_workers_share_a_database(previous: Path, postgres_url: str, tmp_path: Path) -> None:
    url = create_database(postgres_url)
    env = {**os.environ, "ROTA_DATABASE_URL": url, "ROTA_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(previous)}
    cluster = Cluster(tmp_path, url, PROGRAM, bare=True, concurrency=4, drain_seconds=20)
    try:
        await asyncio.to_thread(migrate_by, env)
        old = start(cluster, PYTHONPATH=str(previous))
        await cluster.wait_for_line("end", 60, pid=old.pid)
        async with cluster:  # migrates to the schema of this checkout while the old worker runs
            new = start(cluster)
            await cluster.wait_for_line("end", 60, pid=new.pid)
            lines = {process: len(cluster.witness_lines("end", pid=process.pid)) for process in (old, new)}
            for process, count in lines.items():
                await cluster.wait_for_line("end", 60, count + JOBS_EACH, pid=process.pid)
            old.signal(signal.SIGTERM)
            assert await old.ended(30) == 0, old.log_text()
            count = len(cluster.witness_lines("end", pid=new.pid))
            await cluster.wait_for_line("end", 60, count + JOBS_EACH, pid=new.pid)
            new.signal(signal.SIGTERM)
            assert await new.ended(30) == 0, new.log_text()
            await check_records(cluster)
            assert "Traceback" not in cluster.log_text()
    finally:
        drop_database(postgres_url, url)


@pytest.mark.long
async def test_the_queue_continues_while_a_long_history_is_migrated(
    previous: Path, postgres_url: str, tmp_path: Path
) -> None:
    """A worker of the previous release runs jobs that enqueue the next ones, while a million runs are migrated."""
    url = create_database(postgres_url)
    env = {**os.environ, "ROTA_DATABASE_URL": url, "ROTA_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(previous)}
    cluster = Cluster(tmp_path, url, CHAINS, bare=True, concurrency=8)
    try:
        await asyncio.to_thread(migrate_by, env)
        (old,) = cluster.start(PYTHONPATH=str(previous))
        await cluster.wait_for_line("begin", 60)
        (org,) = await cluster.rows(text("SELECT id FROM orgs"))
        await asyncio.to_thread(in_transaction, url, lambda tx: add_schedules(tx, org.id, LARGE_SCHEDULES))
        await asyncio.to_thread(in_transaction, url, lambda tx: add_runs(tx, org.id, LARGE_RUNS))
        await cluster.wait_for_line("begin", 60, len(cluster.witness_lines("begin")) + 100)
        begun, before = time.time(), len(cluster.witness_lines("begin"))
        async with LockProbe(url) as probe:
            await asyncio.to_thread(migrate_by, {**env, "PYTHONPATH": str(ROOT / "src")})
        ended = time.time()
        await cluster.wait_for_line("begin", 60, len(cluster.witness_lines("begin")) + 100)
        starts = [line.at for line in cluster.witness_lines("begin")][before - 1 :]
        gap = max(later - earlier for earlier, later in pairwise(starts))
        print(
            f"{LARGE_RUNS} runs migrated in {ended - begun:.1f} s; longest time without a start: {gap * 1000:.0f} ms, "
            f"longest wait for a lock to write: {probe.longest * 1000:.0f} ms"
        )
        assert max(gap, probe.longest) < MAX_GAP_SECONDS
        assert (await cluster.rows(text("SELECT count(*) FROM schedule_tags")))[0][0] == 2 * LARGE_SCHEDULES
        own = text("SELECT DISTINCT status FROM runs WHERE id NOT LIKE '0R%'")
        assert [row.status for row in await cluster.rows(own)] == ["success"]
        assert old.alive
    finally:
        for process in cluster.processes:
            process.kill()
        await cluster.db.close()
        drop_database(postgres_url, url)


@pytest.mark.long
async def test_a_worker_starts_on_a_newer_schema_of_its_generation(database_url: str, tmp_path: Path) -> None:
    async with Cluster(tmp_path, database_url, PROGRAM, bare=True, concurrency=4, drain_seconds=20) as cluster:
        await cluster.db.tx(extend_every_table)
        worker = start(cluster)
        await cluster.wait_for_line("end", 60, JOBS_EACH, pid=worker.pid)
        worker.signal(signal.SIGTERM)
        assert await worker.ended(30) == 0, worker.log_text()
        await check_records(cluster)
        assert "Traceback" not in cluster.log_text()


def extend_every_table(tx: Tx) -> None:
    """Do what a later migration may do: add columns to all tables."""
    for table in metadata.tables:
        tx.execute(text(f"ALTER TABLE {table} ADD COLUMN added_later INTEGER"))
        tx.execute(text(f"ALTER TABLE {table} ADD COLUMN added_with_default INTEGER NOT NULL DEFAULT 0"))
    tx.execute(text("UPDATE alembic_version SET version_num = :newer"), {"newer": f"{int(revisions()[-1]) + 1:04}"})


def migrate_by(env: dict[str, str]) -> None:
    """Migrate with the package that the environment leads to, which must not be that of this checkout."""
    where = [sys.executable, "-c", "import rota; print(rota.__file__)"]
    answer = subprocess.run(where, env=env, check=True, capture_output=True, text=True)
    assert answer.stdout.startswith(env["PYTHONPATH"])
    subprocess.run([sys.executable, "-m", "rota.app.cli", "migrate"], env=env, check=True, timeout=60)


def start(cluster: Cluster, **settings: Any) -> Process:
    (process,) = cluster.start(**settings)
    return process


async def check_records(cluster: Cluster) -> None:
    """Each job ran once and its run is recorded; each slot has one verdict."""
    begun, ended = cluster.witness_lines("begin"), cluster.witness_lines("end")
    assert len({line.job_id for line in begun}) == len(begun) == len(ended)
    rows = await cluster.runs()
    assert {row.status for row in rows} == {"success"}
    assert {row.job_id for row in rows} == {line.job_id for line in ended}
    cluster.org = rows[0].org_id
    report = await cluster.audit()
    assert report["ok"], report
    assert report["slots"] >= len({line.slot for line in ended})
