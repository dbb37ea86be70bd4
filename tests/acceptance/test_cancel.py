"""A run is `canceled` only when all its processes have ended."""

import os
import sys
import uuid
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.acceptance.cluster import Process, until
from tests.acceptance.conftest import MakeCluster
from tests.acceptance.test_starting_and_stopping import client

APP = """
import subprocess, time
from rota import Rota

app = Rota()
mark = "MARK"

stay = "trap '' TERM; sleep 60 {0}; sleep 60 {0}"
some = "sleep 60 {0} & setsid sleep 60 {0} & (" + stay + ") & setsid sh -c \\"" + stay + "\\" & sleep 60 {0}"

@app.task(isolation="process")
def function():
    for one in (["sleep", "60", mark + "1"], ["sh", "-c", stay.format(mark + "1")]):
        subprocess.Popen(one)
        subprocess.Popen(["setsid", *one])
    time.sleep(60)

app.shell("command", some.format(mark + "2"))
app.shell("stubborn", "trap '' TERM; " + some.format(mark + "3"))
"""
SLEEPERS = {"function": ("1", 4), "command": ("2", 5), "stubborn": ("3", 5)}


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_the_whole_process_tree_is_gone_before_a_run_is_canceled(tmp_path: Path) -> None:
    mark = f"0.{uuid.uuid4().int % 10**12:012}"  # sleep adds up its numbers: this one names the processes of this test
    (tmp_path / "app.py").write_text(APP.replace("MARK", mark))
    settings = {"ROTA_DATA_DIR": str(tmp_path / "data"), "ROTA_PORT": "0", "ROTA_CANCEL_GRACE_SECONDS": "2"}
    command = [sys.executable, "-m", "rota.app.cli", "up", str(tmp_path / "app.py")]
    up = Process(command, {**os.environ, **settings}, tmp_path / "up.log")
    try:
        async with client(tmp_path / "data", up) as api:
            for task, (end, sleepers) in SLEEPERS.items():
                job_id = await execute(api, task)
                await until(partial(all_sleep, mark + end, sleepers), 30, f"{task} has started its processes")
                tree = {pid for pid in descendants(up.pid) if "warden_process" not in command_of(pid)}
                assert len(tree) >= sleepers + 3  # and their parents, and two shells that ignore SIGTERM
                assert sleeping(mark + end) < tree
                assert (await api.post(f"/runs/{job_id}/$cancel")).status_code == 202
                status = "running"
                while status == "running":  # polled without a pause: status and process list must be close in time
                    status = (await api.get(f"/jobs/{job_id}")).json()["status"]
                left = (tree & living()) | sleeping(mark + end)
                assert (task, status, left) == (task, "canceled", set())
    finally:
        up.kill()


async def test_replace_stops_the_running_job_at_its_slot(cluster: MakeCluster) -> None:
    async with cluster() as live_cluster:
        await live_cluster.up(1)
        start = live_cluster.clock.now() + timedelta(seconds=1)
        times = {"interval": 2, "anchor": start.isoformat(), "starts_at": start.isoformat()}
        body = {"name": "s", "target": "sleeper", "input": {"seconds": 60}, "overlap": "replace", **times}
        await live_cluster.schedule_all([body])
        first, second = (await live_cluster.wait_for_line("begin", seconds=40, count=2))[:2]
        slots = [datetime.fromisoformat(seen.slot) for seen in (first, second)]
        assert slots[1] - slots[0] == timedelta(seconds=2)  # no slot in between was coalesced into the second
        assert second.at - slots[1].timestamp() < 5  # half of what a renewal of the default lease would take


async def execute(api: httpx.AsyncClient, task: str) -> str:
    answer = await api.post(f"/tasks/{task}/$execute")
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job_id"])


def all_sleep(mark: str, count: int) -> bool:
    return len(sleeping(mark)) == count


def descendants(pid: int) -> set[int]:
    above = parents()
    pids = {pid}
    while more := {child for child, parent in above.items() if parent in pids} - pids:
        pids |= more
    return pids - {pid}


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it has ended
        return ""


def living() -> set[int]:
    return set(parents())


def parents() -> dict[int, int]:
    """Return the living processes with their parents; zombies do not count."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended
            continue
        if state not in "ZX":
            parents[int(entry.name)] = int(parent)
    return parents


def sleeping(mark: str) -> set[int]:
    """The processes that sleep under this mark."""
    pids = set()
    for pid in living():
        try:
            name, *arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if name == b"sleep" and mark.encode() in arguments:
            pids.add(pid)
    return pids
