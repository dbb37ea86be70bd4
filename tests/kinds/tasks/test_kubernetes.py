"""Commands as Jobs of Kubernetes, against a fake API server that checks each request and runs the commands."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rota.core.clock import stopwatch
from rota.core.errors import Invalid
from rota.kinds.tasks.executors import kubernetes
from rota.kinds.tasks.executors.executors import Executors
from rota.kinds.tasks.executors.settings import ExecutorSettings
from tests.kinds.tasks.harness import TaskHarness, open_task_harness

pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
from tests.kinds.tasks.fake_kubernetes import FakeKubernetes

TEMPLATE = {
    "metadata": {"annotations": {"team": "data"}},
    "spec": {"template": {"spec": {"nodeSelector": {"disk": "ssd"}, "containers": [{"name": "job", "tty": False}]}}},
}


@pytest.fixture
def cluster() -> Iterator[FakeKubernetes]:
    cluster = FakeKubernetes()
    yield cluster
    cluster.close()


@pytest.fixture
async def harness(
    clean_url: str, cluster: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TaskHarness]:
    monkeypatch.setattr(kubernetes, "POLL_SECONDS", 0.05)
    harness = await open_task_harness(clean_url, cancel_grace=timedelta(seconds=1))
    use(harness, cluster.config(tmp_path / "config"))
    yield harness
    await harness.runner.close()
    await harness.close()


def use(harness: TaskHarness, config: str) -> None:
    harness.runner.executors = Executors(ExecutorSettings(kubernetes_config=config))


def shell(harness: TaskHarness, name: str, command: str, **options: Any) -> None:
    container = {"image": "alpine:3.22", **options.pop("container", {})}
    harness.program.shell(name, command, executor="kubernetes", container=container, **options)


async def pod_of(cluster: FakeKubernetes) -> str:
    """Wait until a pod runs, and return its name."""
    end = stopwatch() + 30
    while not cluster.processes:
        assert stopwatch() < end, "a pod runs"
        await asyncio.sleep(0.02)
    return next(iter(cluster.processes))


async def start(harness: TaskHarness, task: str) -> str:
    await harness.declare()
    (job_id,) = await harness.engine.enqueue(harness.org_id, "task", task, [None])
    await harness.claim()
    return job_id


async def test_a_command_runs_as_a_job_that_the_schema_allows(harness: TaskHarness, cluster: FakeKubernetes) -> None:
    options = {"manifest": TEMPLATE, "cpus": 0.5, "pull": "always"}
    shell(
        harness, "show", "cat; env; exit 0", container=options, memory_mb=64, env={"A": "line 1\nline 2"}, timeout="5m"
    )
    run = await harness.run("show", day="today's")
    assert run["status"] == "success", run
    assert json.loads(run["outcome"]["stdout"].partition("}")[0] + "}") == {"day": "today's"}
    assert f"ROTA_RUN_ID={run['id']}" in run["outcome"]["stdout"]
    assert "started on node node-1" in "\n".join(await harness.logs(run))
    secret, job = cluster.created
    assert secret["stringData"]["env.A"] == "line 1\nline 2"
    assert "today" not in json.dumps(job)
    assert job["metadata"]["annotations"] == {"team": "data"}
    assert (job["spec"]["backoffLimit"], job["spec"]["activeDeadlineSeconds"]) == (0, 301)
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["containers"][0]["resources"] == {"limits": {"memory": "64Mi", "cpu": "0.5"}}
    assert (pod["containers"][0]["imagePullPolicy"], pod["containers"][0]["name"]) == ("Always", "job")
    assert cluster.objects == {}  # nothing is left


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_exit_codes_and_refusals_have_their_class(
    harness: TaskHarness, cluster: FakeKubernetes, tmp_path: Path
) -> None:
    shell(harness, "fail", "echo no more; exit 3")
    run = await harness.run("fail")
    assert (run["status"], run["reason"], run["outcome"]["exit_code"]) == ("failed", "logic", 3)
    assert run["error"]["message"].endswith("exited with code 3: no more")
    shell(harness, "wrong", "true", container={"manifest": {"spec": {"parallelism": "many"}}})
    run = await harness.run("wrong")
    assert (run["status"], run["reason"]) == ("failed", "logic")
    assert f"Kubernetes at {cluster.url} refused (422)" in run["error"]["message"]
    for status, ending in ((403, ("paused", "approval")), (503, ("paused", "transient"))):
        cluster.status = status
        run = await harness.run("fail")
        assert (run["status"], run["reason"]) == ending
        assert f"refused ({status})" in run["error"]["message"]
    cluster.status = None
    use(harness, cluster.config(tmp_path / "other", token="revoked"))
    run = await harness.run("fail")
    assert (run["status"], run["reason"]) == ("paused", "approval")
    assert "(401): Unauthorized; renew the credentials" in run["error"]["message"]
    assert cluster.objects == {}


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_a_canceled_run_deletes_its_job_and_waits_for_its_pod(
    harness: TaskHarness, cluster: FakeKubernetes
) -> None:
    shell(harness, "stay", "trap '' TERM; while true; do sleep 0.1; done")
    job_id = await start(harness, "stay")
    pod = await pod_of(cluster)
    harness.worker.active[job_id].stop("a person")
    await harness.work()
    run = await harness.last_run(job_id)
    assert (run["status"], run["reason"]) == ("canceled", "a person")
    assert cluster.processes[pod].poll() is not None
    assert ("jobs", pod.removesuffix("-abcde")) not in cluster.objects


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_a_pod_whose_node_is_lost_is_retried_by_policy(harness: TaskHarness, cluster: FakeKubernetes) -> None:
    shell(harness, "again", "[ $ROTA_ATTEMPT != 1 ] || sleep 600", retry={"max_retries": 1})
    job_id = await start(harness, "again")
    cluster.lose(await pod_of(cluster))
    await harness.work()
    run = await harness.last_run(job_id)
    assert (run["status"], run["reason"]) == ("paused", "transient")
    assert f"of Kubernetes at {cluster.url} was lost on node node-1: NodeLost" in run["error"]["message"]
    await harness.run_until(harness.clock.now() + timedelta(minutes=5))
    run = await harness.last_run(job_id)
    assert (run["status"], run["attempt"]) == ("success", 2)


def test_a_missing_or_wrong_kubeconfig_is_named_with_the_remedy(tmp_path: Path) -> None:
    for content in ("[]", "{current-context: a, contexts: []}", "{"):
        (tmp_path / "config").write_text(content)
        with pytest.raises(
            Invalid, match=r"task 'heavy' cannot run: kubeconfig '.*config' cannot be used .*KUBERNETES_CONF"
        ):
            Executors(ExecutorSettings(kubernetes_config=str(tmp_path / "config"))).check({"heavy": "kubernetes"})
