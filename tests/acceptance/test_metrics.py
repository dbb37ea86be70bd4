"""The metrics of an installation add up to its ledger: two servers, three workers, one of them killed."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from rota.access.store import accounts
from tests.acceptance.cluster import Cluster, Process, until

APP = """
@app.task
async def breaks():
    raise ValueError("it does")
"""
Totals = Counter[tuple[str, ...]]


class Server:
    """A server process on a free port."""

    def __init__(self, here: Cluster, number: int) -> None:
        self.data_dir = here.home / f"server-{number}"
        env = {**os.environ, "ROTA_DATABASE_URL": here.url, "ROTA_DATA_DIR": str(self.data_dir), "ROTA_PORT": "0"}
        command = [sys.executable, "-m", "rota.app.cli", "server", str(here.app)]
        self.process = Process(command, {**env, **here.settings}, here.home / f"server-{number}.log")
        here.processes.append(self.process)
        self.url = ""

    async def up(self) -> None:
        note = self.data_dir / "server.json"

        async def answers() -> bool:
            assert self.process.alive, self.process.log_text()
            return note.exists()

        await until(answers, 60, "the server is up")
        self.url = json.loads(note.read_text())["url"]

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        answer = httpx.get(f"{self.url}/metrics")
        assert answer.status_code == 200, answer.text
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value

    def totals(self) -> Totals:
        """Return fires, slots by verdict and runs by kind and status, summed over all values of `worker`."""
        counted: Totals = Counter()
        for name, labels, value in self.samples():
            if name in ("rota_fires_total", "rota_runs_total"):
                counted[name, *(labels[key] for key in sorted(labels) if key != "worker")] += round(value)
        return counted

    def cancel(self, job_id: str, key: str) -> None:
        answer = httpx.post(f"{self.url}/api/v1/jobs/{job_id}/$cancel", headers={"x-api-key": key})
        assert answer.status_code == 202, answer.text

    def workers(self) -> set[str]:
        return {labels["worker"] for name, labels, _ in self.samples() if name == "rota_runs_total"}


async def ledger(here: Cluster) -> Totals:
    """Return the same numbers from the database."""
    counted: Totals = Counter({("rota_fires_total",): sum(slot.job_id is not None for slot in await here.slots())})
    for run in await here.runs():
        counted["rota_runs_total", run.kind, run.status] += 1
    return counted


async def test_metrics_of_two_servers_and_three_workers_add_up_to_the_ledger(
    tmp_path: Path, postgres_database: str
) -> None:
    async with Cluster(tmp_path, postgres_database, APP, lease_seconds=3) as here:
        key = await here.db.tx(accounts.create_key, here.org, "ops", "admin", here.clock.now())
        servers = [Server(here, number) for number in range(2)]
        workers = await here.up(3)
        for server in servers:
            await server.up()

        async def adds_up() -> bool:
            expected = await ledger(here)
            return all(server.totals() == expected for server in servers)

        # schedules, jobs that succeed and fail, and jobs that a server cancels while they wait
        every_second = {"schedule_type": "interval", "interval": "1s", "overlap": "allow"}
        ids = await here.schedule_all(
            [{"name": f"s{number}", "target": "quick", **every_second} for number in range(5)]
        )
        await here.enqueue("quick", 60)
        await here.enqueue("breaks", 5)
        later = await here.engine.enqueue(
            here.org, "task", "quick", [None] * 3, run_at=here.clock.now() + timedelta(hours=1)
        )
        for server, job_id in zip([*servers, servers[0]], later, strict=True):
            server.cancel(job_id, key)
        await here.wait_for_line("end", 60, count=90)
        for schedule_id in ids:
            await here.engine.edit_schedule(here.org, schedule_id, {"enabled": False})
        await here.idle()
        await until(adds_up, 30, "the metrics of both servers equal the ledger")
        before = await ledger(here)
        assert before["rota_runs_total", "task", "success"] >= 90
        assert before["rota_runs_total", "task", "failed"] == 5
        assert before["rota_runs_total", "task", "canceled"] == 3
        assert before["rota_fires_total",] >= 20
        assert "servers" in servers[0].workers()

        # the worker that runs a job is killed: its row keeps what it counted, and the rescuer counts the crash
        await here.enqueue("sleeper", seconds=4)
        (begun,) = await here.wait_for_line("begin", target="sleeper")
        await asyncio.sleep(1.5)  # its start is recorded, and a heartbeat has passed
        (victim,) = [worker for worker in workers if worker.pid == begun.pid]
        victim.signal(signal.SIGKILL)
        await here.wait_for_line("end", 60, target="sleeper")
        await here.idle()
        await until(adds_up, 30, "the metrics equal the ledger after a worker was killed")
        after = await ledger(here)
        assert after["rota_runs_total", "task", "crashed"] == 1
        assert after["rota_fires_total",] == before["rota_fires_total",]
        assert all(value >= before[series] for series, value in after.items())
        rescues = sum(value for name, _, value in servers[0].samples() if name == "rota_rescues_total")
        assert rescues == 1
