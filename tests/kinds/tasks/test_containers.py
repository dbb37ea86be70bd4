"""Tasks in containers of a real engine, Podman: results, limits, cancellation, what a lost worker leaves behind."""

import asyncio
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rota import Rota
from rota.core.clock import stopwatch
from rota.kinds.tasks.executors.executors import Executors
from rota.kinds.tasks.executors.settings import ExecutorSettings
from tests.kinds.tasks import cluster_program
from tests.kinds.tasks.harness import TaskHarness, open_task_harness

pytestmark = [
    pytest.mark.long,
    pytest.mark.engines,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="needs containers of this machine"),
]
IMAGE = "localhost/rota-test:1"
GRACE_SECONDS = 2
MOUNTED = ("/usr", "/bin", "/lib", "/lib64", sys.base_prefix, sys.prefix)  # instead of an image with Python
CONFIG = """
[containers]
netns = "none"
volumes = {volumes}
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Podman with a storage of its own, and an image whose programs are those of this machine."""
    home = tmp_path_factory.mktemp("podman")
    config = home / "containers.conf"
    volumes = [f"{path}:{path}:ro" for path in MOUNTED if os.path.exists(path)]
    config.write_text(CONFIG.format(volumes=json.dumps([*volumes, f"{home}:{home}"])))
    os.environ["CONTAINERS_CONF"] = str(config)
    with tarfile.open(home / "image.tar", "w") as image:
        for name in ("tmp", "usr", "bin", "lib", "lib64"):
            image.addfile(directory(name))
    reason = ""
    for runtime in ("crun", "runc"):
        command = ["podman", "--root", f"{home}/{runtime}", "--runroot", f"{home}/run-{runtime}", "--runtime", runtime]
        try:
            subprocess.run(
                [*command, "import", home / "image.tar", IMAGE], check=True, capture_output=True, timeout=120
            )
            subprocess.run([*command, "run", "--rm", IMAGE, "true"], check=True, capture_output=True, timeout=120)
        except FileNotFoundError:
            pytest.skip("install podman")
        except subprocess.CalledProcessError as error:
            reason = error.stderr.decode()
            unmount(f"{home}/{runtime}/overlay")
            continue
        yield command
        subprocess.run([*command, "rm", "--all", "--force"], capture_output=True, timeout=60)
        unmount(f"{home}/{runtime}/overlay")
        del os.environ["CONTAINERS_CONF"]
        return
    del os.environ["CONTAINERS_CONF"]
    pytest.skip(f"podman cannot run containers here: {reason}")


def unmount(path: str) -> None:
    """Unmount what each command of the engine leaves mounted, so that the folder can be deleted."""
    while subprocess.run(["umount", "--lazy", path], capture_output=True).returncode == 0:
        pass


def directory(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
    return entry


@pytest.fixture
def shared(engine: list[str]) -> Path:
    """A folder that containers can write to."""
    return Path(engine[2]).parent


@pytest.fixture
async def harness(clean_url: str, engine: list[str]) -> AsyncIterator[TaskHarness]:
    harness = await open_task_harness(clean_url, cancel_grace=timedelta(seconds=GRACE_SECONDS))
    harness.runner.executors = Executors(ExecutorSettings(container_command=" ".join(engine)))
    container = {"image": IMAGE, "python": sys.executable}
    for function in cluster_program.FUNCTIONS:
        harness.program.task(executor="container", container=container, env=["ALLOWED"])(function)
    yield harness
    await harness.runner.close()
    await harness.close()


def shell(program: Rota, name: str, command: str, **options: Any) -> None:
    container = {"image": IMAGE, **options.pop("container", {})}
    program.shell(name, command, executor="container", container=container, **options)


def names(engine: list[str]) -> list[str]:
    listed = subprocess.run([*engine, "ps", "--all", "--format", "{{.Names}}"], capture_output=True, text=True)
    return listed.stdout.split()


async def noted(path: Path, text: str) -> str:
    end = stopwatch() + 60
    while text not in content_of(path):
        assert stopwatch() < end, f"{text!r} is noted"
        await asyncio.sleep(0.02)
    return content_of(path)


def content_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def start(harness: TaskHarness, task: str, **params: Any) -> str:
    await harness.declare()
    (job_id,) = await harness.engine.enqueue(harness.org_id, "task", task, [params or None])
    await harness.claim()
    return job_id


async def test_a_command_gets_its_parameters_by_stdin_and_only_the_variables_that_it_names(
    harness: TaskHarness, engine: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLOWED", "a value")
    monkeypatch.setenv("SECRET", "another")
    shell(harness.program, "show", "cat; echo; env; echo warned >&2", env=["ALLOWED"])
    run = await harness.run("show", day="today's")
    assert run["status"] == "success", run
    lines = run["outcome"]["stdout"].splitlines()
    assert json.loads(lines[0]) == {"day": "today's"}
    assert "ALLOWED=a value" in lines
    assert f"ROTA_RUN_ID={run['id']}" in lines
    assert not [line for line in lines if "another" in line or "CONTAINERS_CONF" in line]
    assert "warned" in "\n".join(await harness.logs(run))
    assert names(engine) == []


async def test_a_command_that_fails_and_an_image_that_is_missing_say_so(harness: TaskHarness) -> None:
    shell(harness.program, "fail", "echo no more >&2; exit 3")
    run = await harness.run("fail")
    assert (run["status"], run["reason"], run["outcome"]["exit_code"]) == ("failed", "logic", 3)
    assert run["error"]["message"].endswith("exited with code 3: no more")
    shell(harness.program, "nothing", "true", container={"image": "localhost/missing:1", "pull": "never"}, retry=None)
    run = await harness.run("nothing")
    assert (run["status"], run["reason"]) == ("paused", "transient")
    assert "could not start a container of image 'localhost/missing:1'" in run["error"]["message"]


async def test_a_function_runs_in_a_container_and_its_run_is_complete(harness: TaskHarness) -> None:
    run = await harness.run("wait_a_moment", number=1)
    assert (run["status"], run["outcome"]) == ("success", 2), run
    run = await harness.run("fail_as", kind="ValueError")
    assert run["error"]["type"] == "ModuleNotFoundError"  # Rota is not installed in the image
    assert "in fail_as" in run["error"]["traceback"]
    run = await harness.run("use_a_step")
    assert "ctx.step is not available with executor='container'" in run["error"]["message"]
    run = await harness.run("chat")
    assert run["status"] == "success"
    assert any("line 0 " in line for line in await harness.logs(run))


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_a_container_that_needs_too_much_memory_is_killed(harness: TaskHarness, engine: list[str]) -> None:
    hungry = f"{sys.executable} -c 'print(len(str(1) * 10**9))'"
    shell(harness.program, "hungry", f"{hungry}; exit $?", memory_mb=64)
    run = await harness.run("hungry")
    assert run["status"] == "failed"
    assert run["outcome"] is None or run["outcome"]["exit_code"] != 0
    assert names(engine) == []


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("task", ["linger", "stop_when_asked", "stay"])
async def test_a_canceled_run_leaves_no_container(
    harness: TaskHarness, engine: list[str], shared: Path, task: str
) -> None:
    path = shared / task
    shell(harness.program, "stay", f"trap '' TERM; echo begin > {path}; while true; do sleep 0.1; done")
    job_id = await start(harness, task, **({} if task == "stay" else {"path": str(path)}))
    await noted(path, "begin")
    assert len(names(engine)) == 1
    begun = stopwatch()
    harness.worker.active[job_id].stop("a person")
    await harness.work()
    run = await harness.last_run(job_id)
    assert (run["status"], run["reason"]) == ("canceled", "a person")
    assert stopwatch() - begun < GRACE_SECONDS + 10
    assert names(engine) == []
    assert task != "stop_when_asked" or "canceled True" in path.read_text()


@pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)
async def test_what_an_attempt_of_a_lost_worker_left_is_removed_before_the_next_one(
    harness: TaskHarness, engine: list[str]
) -> None:
    shell(harness.program, "again", "[ $ROTA_ATTEMPT != 1 ]", retry={"max_retries": 1})
    job_id = await start(harness, "again")
    label = f"rota.job={job_id}"
    left = ["run", "--detach", "--name", "left", "--label", label, IMAGE, "/bin/sleep", "600"]
    subprocess.run([*engine, *left], check=True, capture_output=True)  # noqa: ASYNC221
    await harness.work()
    await harness.run_until(harness.clock.now() + timedelta(minutes=5))
    run = await harness.last_run(job_id)
    assert (run["status"], run["attempt"]) == ("success", 2), run
    assert names(engine) == []
