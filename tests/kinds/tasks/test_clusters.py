"""Tasks on local clusters of three worker processes: results, failures, lost nodes, cancellation, a lost cluster."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rota.core.clock import stopwatch
from rota.kinds.tasks.executors.executors import Executors
from rota.kinds.tasks.executors.settings import ExecutorSettings
from tests.acceptance.cluster import Cluster as Workers
from tests.kinds.tasks import cluster_program
from tests.kinds.tasks.clusters import CLUSTERS, Processes
from tests.kinds.tasks.harness import TaskHarness, open_task_harness

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),  # clusters start slowly
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]
GRACE_SECONDS = 2
PARTITIONS, PARTITION_SECONDS = 10, 8.0  # a heavy task, as seconds of CPU


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.engines if name == "ray" else ()) for name in CLUSTERS]
)
def executor(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(CLUSTERS[request.param].package, reason=f"install the extra {request.param}")
    return str(request.param)


@pytest.fixture(scope="module")
def shared_cluster(executor: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A cluster that tests leave as it was."""
    cluster = CLUSTERS[executor](tmp_path_factory.mktemp(executor))
    yield cluster
    cluster.close()


@pytest.fixture
async def harness(clean_url: str, executor: str, request: pytest.FixtureRequest) -> AsyncIterator[TaskHarness]:
    """Tasks of the program on the cluster of the test."""
    harness = await open_task_harness(clean_url, cancel_grace=timedelta(seconds=GRACE_SECONDS))
    yield harness
    await harness.runner.close()
    await harness.close()


def use(harness: TaskHarness, cluster: Processes) -> None:
    """Run the program's functions on a cluster."""
    harness.program = cluster_program.program(cluster.executor)
    harness.runner.registry = harness.program.registry
    harness.runner.executors = Executors(ExecutorSettings(**{f"{cluster.executor}_address": cluster.address}))


async def start(harness: TaskHarness, task: str, **params: Any) -> str:
    """Start a run of a task, and return its job."""
    await harness.declare()
    (job_id,) = await harness.engine.enqueue(harness.org_id, "task", task, [params or None])
    await harness.claim()
    return job_id


async def finish(harness: TaskHarness, job_id: str) -> dict[str, Any]:
    await harness.work()
    return await harness.last_run(job_id)


async def noted(path: Path, text: str, seconds: float = 120.0) -> str:
    """Wait until a function on a node has noted a line with this text, and return the line."""
    end = stopwatch() + seconds
    while True:
        if matching := [line for line in lines_of(path) if text in line]:
            return matching[0]
        assert stopwatch() < end, f"{text!r} is noted within {seconds:g} s"
        await asyncio.sleep(0.02)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_a_function_runs_on_a_node_and_its_run_is_complete(
    harness: TaskHarness, shared_cluster: Processes, tmp_path: Path
) -> None:
    use(harness, shared_cluster)
    run = await harness.run("report", path=str(tmp_path / "notes"), number=14)
    assert run["status"] == "success", run
    assert run["outcome"] == {"number": 42, "run": run["id"], "attempt": 1, "slot": None}
    logs = "\n".join(await harness.logs(run))
    for text in (shared_cluster.address, "started on node", "printed 14", "logged", "a line of its own"):
        assert text in logs
    assert (tmp_path / "notes").read_text() != f"pid {os.getpid()}\n"
    assert run["cpu_seconds"] > 0
    assert (await harness.run("wait_a_moment", number=1))["outcome"] == 2


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        ("TransientError", "paused", "transient"),
        ("LogicError", "failed", "logic"),
        ("ValueError", "failed", "logic"),
        ("AuthError", "paused", "approval"),
    ],
)
async def test_an_error_on_a_node_has_the_class_that_it_would_have_in_a_worker(
    harness: TaskHarness, shared_cluster: Processes, error: str, status: str, reason: str
) -> None:
    use(harness, shared_cluster)
    run = await harness.run("fail_as", kind=error)
    assert (run["status"], run["reason"], run["error"]["type"]) == (status, reason, error)
    assert "raise getattr" in run["error"]["traceback"]
    assert "supervise" not in run["error"]["traceback"]


async def test_what_a_node_cannot_do_is_refused_with_the_reason(
    harness: TaskHarness, shared_cluster: Processes
) -> None:
    use(harness, shared_cluster)
    run = await harness.run("use_a_step")
    assert run["status"] == "failed"
    assert f"ctx.step is not available with executor='{shared_cluster.executor}'" in run["error"]["message"]
    run = await harness.run("result_of", size=120_000_000)
    assert "at most 104857600 are allowed" in run["error"]["message"]
    run = await harness.run("chat")
    assert run["status"] == "success"
    logs = await harness.logs(run)
    assert "line 0 " in logs[2]
    run = await harness.run("die")
    assert (run["status"], run["reason"]) == ("failed", "quarantined")  # after two retries, as in a worker
    assert "signal SIGKILL" in run["error"]["message"]


async def test_a_node_that_dies_in_mid_run_is_a_transient_failure_and_the_next_attempt_has_the_only_result(
    harness: TaskHarness, executor: str, tmp_path: Path
) -> None:
    cluster = CLUSTERS[executor](tmp_path / "cluster", workers=2)
    try:
        use(harness, cluster)
        notes = tmp_path / "notes"
        job_id = await start(harness, "once_lost", path=str(notes), seconds=600)
        child, node = map(int, (await noted(notes, "begin")).split()[1:])
        os.kill(node, signal.SIGKILL)
        run = await finish(harness, job_id)
        assert (run["status"], run["reason"]) == ("paused", "transient"), run
        assert cluster.address in run["error"]["message"]
        await until_gone(child)
        await harness.run_until(harness.clock.now() + timedelta(minutes=5))
        run = await harness.last_run(job_id)
        assert (run["status"], run["outcome"], run["attempt"]) == ("success", 42, 2)
        assert len(notes.read_text().splitlines()) == 2  # the cluster did not start it again by itself
        final = await harness.run("no_retry", path=str(notes), seconds=0)
        assert final["status"] == "success"
    finally:
        cluster.close()


async def until_gone(*pids: int) -> None:
    end = stopwatch() + 10
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert stopwatch() < end, f"processes {alive} end"
        await asyncio.sleep(0.05)


async def test_a_canceled_run_ends_when_its_function_and_what_it_started_have_ended(
    harness: TaskHarness, shared_cluster: Processes, tmp_path: Path
) -> None:
    use(harness, shared_cluster)
    notes = tmp_path / "notes"
    job_id = await start(harness, "linger", path=str(notes))
    child = int((await noted(notes, "begin")).split()[1])
    await noted(tmp_path / "notes.child", "")
    begun = stopwatch()
    harness.worker.active[job_id].stop("a person")
    run = await finish(harness, job_id)
    assert (run["status"], run["reason"]) == ("canceled", "a person")
    assert stopwatch() - begun < GRACE_SECONDS + 5
    assert not is_alive(child)
    size = (tmp_path / "notes.child").stat().st_size
    await asyncio.sleep(0.3)
    assert (tmp_path / "notes.child").stat().st_size == size  # also what left the session
    assert "has not confirmed" not in "\n".join(await harness.logs(run))


async def test_a_function_sees_that_it_is_canceled_and_has_the_grace_to_end(
    harness: TaskHarness, shared_cluster: Processes, tmp_path: Path
) -> None:
    use(harness, shared_cluster)
    notes = tmp_path / "notes"
    job_id = await start(harness, "stop_when_asked", path=str(notes))
    await noted(notes, "begin")
    harness.worker.active[job_id].stop("a person")
    run = await finish(harness, job_id)
    assert run["status"] == "canceled"
    assert "canceled True" in notes.read_text()


async def test_a_timeout_and_missing_heartbeats_stop_the_function_on_its_node(
    harness: TaskHarness, shared_cluster: Processes, tmp_path: Path
) -> None:
    use(harness, shared_cluster)
    notes = tmp_path / "notes"
    await harness.run("wait_a_moment", number=1)  # connects
    run = await harness.run("short", path=str(notes))
    assert (run["status"], run["reason"]) == ("failed", "timeout")
    assert not is_alive(int((await noted(notes, "begin")).split()[1]))
    assert (await harness.run("beat", times=10))["status"] == "success"


async def test_a_cluster_that_is_gone_is_named_and_retried_by_policy(
    harness: TaskHarness, executor: str, tmp_path: Path
) -> None:
    cluster = CLUSTERS[executor](tmp_path / "cluster", workers=2)
    try:
        use(harness, cluster)
        notes = tmp_path / "notes"
        job_id = await start(harness, "once_lost", path=str(notes), seconds=600)
        child = int((await noted(notes, "begin")).split()[1])
        cluster.lose()
        run = await finish(harness, job_id)
        assert (run["status"], run["reason"]) == ("paused", "transient"), run
        assert cluster.address in run["error"]["message"]
        await until_gone(child)  # what ran there has ended: it may be started elsewhere
        run = await harness.run("no_retry", path=str(notes), seconds=0)
        assert run["status"] == "failed"
        assert cluster.address in run["error"]["message"]
    finally:
        cluster.close()


async def test_ten_partitions_are_faster_on_a_cluster_than_in_one_process(
    harness: TaskHarness, shared_cluster: Processes
) -> None:
    if (os.cpu_count() or 1) < 2 or os.getloadavg()[0] > 1:
        pytest.skip("needs two cores with nothing else to do")
    use(harness, shared_cluster)
    await harness.run("wait_a_moment", number=1)  # connects
    begun = stopwatch()
    cluster_program.burn(PARTITION_SECONDS)
    one_process = PARTITIONS * (stopwatch() - begun)
    await harness.declare()
    partitions = [{"seconds": PARTITION_SECONDS}] * PARTITIONS
    begun = stopwatch()
    job_ids = await harness.engine.enqueue(harness.org_id, "task", "burn", partitions)
    await harness.work()
    elapsed = stopwatch() - begun
    assert [(await harness.last_run(job_id))["status"] for job_id in job_ids] == ["success"] * PARTITIONS
    assert one_process / elapsed >= 1.6


APP = """
@app.task(executor="EXECUTOR")
def once_lost(path: str) -> int:
    with open(path, "a") as file:
        file.write(f"begin {os.getpid()}\\n")
    if len(open(path).readlines()) == 1:
        time.sleep(600)
    return 42
"""


@pytest.mark.parametrize("clean_url", ["postgresql"], indirect=True)
async def test_a_killed_worker_leaves_nothing_running_on_the_cluster_and_its_job_runs_again(
    clean_url: str, executor: str, shared_cluster: Processes, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    address: dict[str, Any] = {f"{executor}_address": shared_cluster.address}
    async with Workers(tmp_path, clean_url, APP.replace("EXECUTOR", executor), lease_seconds=3, **address) as workers:
        (worker,) = await workers.up()
        await workers.enqueue("once_lost", path=str(notes))
        child = int((await noted(notes, "begin")).split()[1])
        worker.kill()
        await until_gone(child)
        await workers.up()
        await workers.idle(120)
        run = (await workers.runs())[-1]
        assert (run.status, run.outcome) == ("success", 42)
        assert len(lines_of(notes)) == 2
