"""ONE_JOB_PER_SLOT and EVERY_SLOT_HAS_ONE_VERDICT with many processes that all may fire."""

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from rota.db.tables import schedules
from tests.acceptance.cluster import Cluster, until

SECONDS = 60
SCHEDULES = 200


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_eight_processes_on_postgresql_run_every_slot_once(tmp_path: Path, postgres_database: str) -> None:
    async with Cluster(tmp_path, postgres_database) as cluster:
        await every_slot_runs_once(cluster, processes=8)


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_four_processes_on_one_sqlite_file_run_every_slot_once(tmp_path: Path, sqlite_database: str) -> None:
    async with Cluster(tmp_path, sqlite_database) as cluster:
        await every_slot_runs_once(cluster, processes=4)


async def every_slot_runs_once(cluster: Cluster, processes: int) -> None:
    await cluster.up(processes)
    start = cluster.clock.now() + timedelta(seconds=2)
    span = {
        "interval": 1,
        "anchor": start.isoformat(),
        "starts_at": start.isoformat(),
        "ends_at": (start + timedelta(seconds=SECONDS)).isoformat(),  # half-open
    }
    overlaps = ("allow", "queue_all")  # with these each slot has its own job, even on a busy machine
    ids = await cluster.schedule_all(
        [{"name": f"every-second-{n}", "target": "quick", "overlap": overlaps[n % 2], **span} for n in range(SCHEDULES)]
    )

    async def over() -> bool:
        return not await cluster.schedules(schedules.c.condition != "finished") and not await cluster.jobs()

    await until(over, SECONDS + 60, "all schedules are finished and the queue is empty", every=1)

    wanted = {(schedule_id, start + timedelta(seconds=n)) for schedule_id in ids for n in range(SECONDS)}
    slots = await cluster.slots()
    assert {(row.schedule_id, row.slot) for row in slots} == wanted
    assert all(row.verdict is None for row in slots)
    ledger = await cluster.runs()
    assert Counter((run.status, run.attempt) for run in ledger) == {("success", 1): len(wanted)}
    assert {(run.schedule_id, run.slot) for run in ledger} == wanted
    for event in ("begin", "end"):  # the witness file agrees
        happened = Counter(line.run_id for line in cluster.witness_lines(event))
        assert set(happened) == {run.id for run in ledger}
        assert set(happened.values()) == {1}
    report = await cluster.audit()
    assert report["ok"], report
    assert report["slots"] == len(wanted)
    assert len({line.pid for line in cluster.witness_lines("begin")}) == processes  # every process had a share
