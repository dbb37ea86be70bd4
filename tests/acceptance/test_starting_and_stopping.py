"""Start-up: concurrently, and after a long downtime; shutdown by signals."""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from sqlalchemy import func, select

from rota.core.clock import ManualClock
from rota.db.dialect import Tx
from rota.db.tables import jobs, runs, schedules, slots
from rota.db.wake import Wake
from rota.engine.commands import Engine
from rota.engine.engine_settings import EngineSettings
from rota.engine.slot_audit import audit
from tests.acceptance.cluster import Cluster, Process, until
from tests.acceptance.conftest import MakeCluster

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"

DECLARING = """
app.shell("command", "true")
for n in range(20):
    app.schedule(f"declared-{n}", ("quick", "command")[n % 2], every="1h")
"""


@pytest.mark.long
async def test_eight_processes_that_start_at_once_declare_each_schedule_once(cluster: MakeCluster) -> None:
    async with cluster(DECLARING, bare=True) as live_cluster:
        processes = await live_cluster.up(8)
        assert Counter(row.name for row in await live_cluster.schedules()) == {f"declared-{n}": 1 for n in range(20)}
        assert {(row.revision, row.condition, row.paused_at) for row in await live_cluster.schedules()} == {
            (1, "ok", None)
        }
        assert all(process.alive for process in processes)
        assert "Traceback" not in live_cluster.log_text()


async def test_a_worker_that_is_asked_to_stop_hands_its_runs_back(cluster: MakeCluster) -> None:
    async with cluster(lease_seconds=100, cancel_grace_seconds=0, drain_seconds=4, concurrency=3) as live_cluster:
        (first,) = await live_cluster.up(1)
        short = await live_cluster.enqueue("sleeper", 1, seconds=2.5)  # longer than the grace, shorter than the drain
        long = await live_cluster.enqueue("sleeper", 2, seconds=40)
        waiting = await live_cluster.enqueue("quick", 5)  # no room for these
        await live_cluster.wait_for_line("begin", count=3)
        first.signal(signal.SIGTERM)
        asked_at = time.monotonic()
        assert await first.ended(30) == 0
        assert time.monotonic() - asked_at > 3.5

        ledger = {run.job_id: run for run in await live_cluster.runs()}
        assert set(ledger) == {*short, *long}
        assert ledger[short[0]].status == "success"
        assert {(ledger[job].status, ledger[job].reason) for job in long} == {("canceled", "shutdown")}
        queue = {row.id: row for row in await live_cluster.jobs()}
        assert set(queue) == {*long, *waiting}
        assert {(row.state, row.tries, row.lease_owner) for row in queue.values()} == {("ready", 0, None)}
        assert {queue[job].attempt for job in long} == {1}
        assert [row.state for row in await live_cluster.workers()] == ["stopped"]

        await live_cluster.up(1)  # without waiting for the lease to expire
        begun = await live_cluster.wait_for_line("begin", count=2, attempt=2)
        assert {seen.job_id for seen in begun} == set(long)
        assert time.monotonic() - asked_at < 90
        assert "runs=3 seconds=4" in first.log_text()


async def test_an_idle_worker_stops_at_once(cluster: MakeCluster) -> None:
    async with cluster() as live_cluster:
        (worker,) = await live_cluster.up(1)
        worker.signal(signal.SIGTERM)
        assert await worker.ended(5) == 0
        assert [row.state for row in await live_cluster.workers()] == ["stopped"]


async def test_a_second_signal_cancels_and_a_third_ends_the_process(sqlite_cluster: MakeCluster) -> None:
    async with sqlite_cluster(STUBBORN, drain_seconds=300, cancel_grace_seconds=300) as live_cluster:
        (worker,) = await live_cluster.up(1)
        (patient,) = await live_cluster.enqueue("sleeper", seconds=300)
        await live_cluster.enqueue("stubborn")
        await live_cluster.wait_for_line("begin", count=2)
        worker.signal(signal.SIGTERM)
        await until(lambda: "a second signal cancels" in worker.log_text(), 20, "the worker drains")
        assert await live_cluster.jobs(jobs.c.id == patient, jobs.c.state == "running")
        worker.signal(signal.SIGTERM)
        await until(lambda: handed_back(live_cluster, patient), 20, "the second signal cancels")
        assert worker.alive  # the thread of the other one does not end
        worker.signal(signal.SIGTERM)
        assert await worker.ended(20) == 1


async def handed_back(cluster: Cluster, job: str) -> bool:
    return bool(await cluster.jobs(jobs.c.id == job, jobs.c.state == "ready"))


STUBBORN = """
@app.task
def stubborn(ctx: RunContext):
    note(ctx, "begin")
    time.sleep(60)
"""


async def test_a_log_that_cannot_be_written_stops_nothing(sqlite_cluster: MakeCluster) -> None:
    async with sqlite_cluster() as live_cluster:
        await live_cluster.schedule("ticks", "quick", interval=1)
        (worker,) = await live_cluster.up(1, log=Path("/dev/full"))  # each write fails as on a full disk
        await live_cluster.wait_for_line("begin", count=2)
        await until(lambda: succeeded(live_cluster, 2), 20, "results are stored")
        assert worker.alive
        worker.signal(signal.SIGTERM)
        assert await worker.ended(20) == 0


async def succeeded(cluster: Cluster, count: int) -> bool:
    return len(await cluster.runs(runs.c.status == "success")) >= count


async def test_the_quickstart_accounts_for_every_slot_after_a_crash(tmp_path: Path) -> None:
    data = tmp_path / "data"
    env = {**os.environ, "ROTA_DATA_DIR": str(data), "ROTA_PORT": "0", "ROTA_LEASE_SECONDS": "3"}
    command = [sys.executable, "-m", "rota.app.cli", "up", str(QUICKSTART)]
    first = Process(command, env, tmp_path / "first.log")
    try:
        async with client(data, first) as api:
            await until(lambda: any_run(api, "heartbeat"), 30, "the quickstart fires")
            assert (await api.post("/schedules/slow-every-minute/$run", json={})).status_code == 202
            await until(lambda: running(api, "slow"), 30, "a run is under way")
    finally:
        first.kill()
    second = Process(command, env, tmp_path / "second.log")
    try:
        async with client(data, second) as api:
            await until(lambda: any_run(api, "slow", "crashed"), 30, "the killed run is found")
            await until(lambda: any_run(api, "slow", "success"), 60, "and tried again")
            report = (await api.get("/slots/$audit")).json()
            assert report["ok"], report
            assert report["schedules"] == 3
            ended = (await api.get("/runs", params={"limit": 200})).json()["items"]
            (crashed,) = [run for run in ended if run["status"] == "crashed"]
            assert [run["status"] for run in ended if run["retry_of"] == crashed["id"]] == ["success"]
    finally:
        second.kill()


@asynccontextmanager
async def client(data: Path, process: Process) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that is just coming up."""
    note = data / "server.json"

    def up() -> bool:
        assert process.alive, process.log_text()
        return note.exists() and orjson.loads(note.read_bytes())["pid"] == process.pid

    await until(up, 120, "the server is up")
    url = orjson.loads(note.read_bytes())["url"]
    async with httpx.AsyncClient(base_url=f"{url}/api/v1", timeout=60) as api:

        async def ready() -> bool:
            try:
                return (await api.get(f"{url}/health/ready")).status_code == 200
            except httpx.TransportError:
                return False

        await until(ready, 30, "the server is ready")
        api.headers["authorization"] = f"Bearer {(data / 'admin.key').read_text().strip()}"
        yield api


async def any_run(api: httpx.AsyncClient, target: str, status: str = "success") -> bool:
    answer = await api.get("/runs", params={"limit": 200})
    assert answer.status_code == 200, answer.text
    runs = answer.json()["items"]
    return any(run["status"] == status and run["target"] == target for run in runs)


async def running(api: httpx.AsyncClient, target: str) -> bool:
    return await any_run(api, target, "running")


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_ten_thousand_schedules_are_up_again_in_seconds_after_two_hours_down(cluster: MakeCluster) -> None:
    async with cluster(misfire_grace_seconds=60) as live_cluster:
        night = live_cluster.clock.now() - timedelta(hours=2)
        await created_at(
            live_cluster, night, [{"name": f"m{n}", "cron_expression": "* * * * *"} for n in range(10_000)]
        )
        (worker,) = await live_cluster.up(1)
        up_at = time.monotonic()

        async def all_fired() -> bool:
            stmt = select(func.count(slots.c.schedule_id.distinct())).where(slots.c.job_id.is_not(None))
            return bool((await live_cluster.rows(stmt))[0][0] == 10_000)

        await until(all_fired, 60, "each has fired", every=0.2)
        assert time.monotonic() - up_at < 30
        worker.kill()

        per = select(slots.c.schedule_id, func.sum(slots.c.count), func.min(slots.c.slot), func.max(slots.c.last_slot))
        first = night.replace(second=0, microsecond=0) + timedelta(minutes=1)
        for _, count, since, until_slot in await live_cluster.rows(per.group_by(slots.c.schedule_id)):
            assert since == first
            assert count == (until_slot - first) // timedelta(minutes=1) + 1
        for name in ("m0", "m4999", "m9999"):
            report = await audit(live_cluster.db, live_cluster.org, name, None, live_cluster.clock.now())
            assert report["ok"], report
            assert report["slots"] >= 119


@pytest.mark.parametrize("damaged", ['{"nonsense": true}', "{this is not JSON"])
async def test_one_unreadable_schedule_stops_no_other(cluster: MakeCluster, damaged: str) -> None:
    async with cluster() as live_cluster:
        night = live_cluster.clock.now() - timedelta(hours=2)
        ids = await created_at(
            live_cluster, night, [{"name": f"m{n}", "cron_expression": "* * * * *"} for n in range(500)]
        )
        bad = ids[250]
        await live_cluster.db.tx(damage, bad, damaged)
        await live_cluster.up(1)

        async def others_fired() -> bool:
            return {row.schedule_id for row in await live_cluster.slots(slots.c.job_id.is_not(None))} == set(ids) - {
                bad
            }

        await until(others_fired, 30, "the other 499 fire", every=0.2)
        stmt = select(schedules.c.condition, schedules.c.condition_reason).where(schedules.c.id == bad)

        async def put_aside() -> bool:
            return bool((await live_cluster.rows(stmt))[0].condition == "broken")

        await until(put_aside, 10, "the bad one is put aside")
        assert (await live_cluster.rows(stmt))[0].condition_reason
        await live_cluster.idle()
        assert len({run.schedule_id for run in await live_cluster.runs(runs.c.status == "success")}) == 499


def damage(tx: Tx, schedule_id: str, text: str) -> None:
    tx.exec_driver_sql(f"UPDATE schedules SET timing = '{text}' WHERE id = '{schedule_id}'")


async def created_at(cluster: Cluster, time: Any, bodies: list[dict[str, Any]]) -> list[str]:
    """Create schedules at a time in the past; no scheduler has run since."""
    past = Engine(cluster.db, ManualClock(time), Wake(), cluster.engine.runners, EngineSettings())
    made = await past.create_schedules(cluster.org, [{"kind": "task", "target": "quick", **body} for body in bodies])
    return [schedule.id for schedule in made]
