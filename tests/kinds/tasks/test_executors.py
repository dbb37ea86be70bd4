"""Tasks with an executor: what is refused at their declaration, when they are stored and at the start, by name."""

import importlib.util
import logging
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rota import Rota, RunContext
from rota.app.settings import Settings
from rota.core.errors import Invalid, LogicError
from rota.kinds.tasks.executors import functions
from rota.kinds.tasks.executors.executors import Executors
from rota.kinds.tasks.executors.port import FAILURE_BYTES, RemoteRun
from rota.kinds.tasks.executors.settings import ExecutorSettings
from rota.kinds.tasks.registry import task_rows
from rota.user_code.services import ArtifactManager, JobScheduler
from tests.kinds.tasks.harness import TaskHarness


def need(executor: str) -> None:
    """Skip the test without the extra of the executor."""
    for package in functions.PACKAGES[executor]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"install the extra {executor}")


lock = threading.Lock()


def add(a: int, b: int = 1) -> int:
    return a + b


def locked() -> None:
    with lock:
        pass


def save(artifacts: ArtifactManager, jobs: JobScheduler) -> None: ...


def look(ctx: RunContext, logger: logging.Logger) -> None: ...


class Client: ...


def own(client: Client) -> None: ...


def declared(function: Any, **options: Any) -> list[dict[str, Any]]:
    app = Rota()
    app.provide(Client, Client)
    app.task("heavy", **options)(function)
    return task_rows(app.registry, app.injector, "test")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"executor": "spark"}, "executor: 'spark' is not one of dask, ray, container"),
        ({"executor": "dask", "isolation": "process"}, "isolation: 'process' cannot be combined with executor 'dask'"),
        ({"executor": "dask", "env": {"A": "b"}}, "env: .* has no effect with executor 'dask'"),
        ({"executor": "container"}, "container is missing: name an image"),
        (
            {"executor": "container", "container": {"image": "--privileged"}},
            "image: .* is not the name of an image",
        ),
        (
            {"executor": "container", "container": {"image": "a", "pull": "x"}},
            "pull: 'x' is not one of missing, always",
        ),
        ({"container": {"image": "alpine"}}, "container: .* has an effect only with executor 'container'"),
    ],
)
def test_an_executor_that_does_not_fit_is_refused_where_the_task_is_declared(options: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        Rota().task("heavy", **options)(add)


def test_a_command_runs_on_no_cluster() -> None:
    with pytest.raises(Invalid, match="executor: 'dask' runs functions, not commands"):
        Rota().shell("heavy", "true", executor="dask")


@pytest.mark.parametrize("executor", ["dask", "ray"])
def test_services_that_cannot_travel_are_refused_by_name(executor: str) -> None:
    with pytest.raises(Invalid, match="task 'heavy': artifacts: ArtifactManager, jobs: JobScheduler cannot be sent"):
        declared(save, executor=executor)
    with pytest.raises(Invalid, match="client: Client cannot be sent to another machine"):
        declared(own, executor=executor)
    need(executor)
    assert declared(look, executor=executor)[0]["options"]["executor"] == executor


@pytest.mark.parametrize("executor", ["dask", "ray"])
def test_a_function_that_cannot_be_pickled_is_refused_by_name(executor: str) -> None:
    need(executor)
    with pytest.raises(Invalid, match=r"function of task 'heavy' cannot be sent .*lock.*; create what cannot be"):
        declared(locked, executor=executor)


@pytest.mark.parametrize("executor", list(functions.PACKAGES))
def test_a_missing_extra_is_one_sentence(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(functions.PACKAGES, executor, ("cloudpickle", "a_package_that_is_not_installed"))
    with pytest.raises(Invalid) as error:
        declared(add, executor=executor, container={"image": "a"} if executor == "container" else None)
    assert str(error.value) == (
        f"executor: '{executor}' of task 'heavy' needs a package that is not installed: "
        f"pip install 'rota-scheduler[{executor}]'"
    )


def test_an_executor_without_an_address_is_refused_at_the_start() -> None:
    with pytest.raises(Invalid, match="executor: 'dask' of task 'heavy' has no address: set ROTA_DASK_ADDRESS"):
        Executors(ExecutorSettings()).check({"heavy": "dask"})
    Executors(ExecutorSettings(dask_address="tcp://127.0.0.1:8786")).check({"heavy": "dask"})
    with pytest.raises(Invalid, match="executor: 'ray' of task 'heavy' has no address: set ROTA_RAY_ADDRESS"):
        Executors(ExecutorSettings(dask_address="tcp://127.0.0.1:8786")).check({"heavy": "ray"})


@pytest.mark.long
def test_a_worker_without_the_address_does_not_start_and_says_so(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text("from rota import Rota\napp = Rota()\n@app.task(executor='dask')\ndef heavy() -> None: ...\n")
    command = [
        sys.executable,
        "-m",
        "rota.app.cli",
        "up",
        str(app),
        "--data-dir",
        str(tmp_path / "data"),
        "--port",
        "0",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert ended.returncode != 0
    assert "executor: 'dask' of task 'heavy' has no address: set ROTA_DASK_ADDRESS" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("address", ["scheduler:8786", "http://scheduler:8786", "tcp://scheduler", "tcp://a:b:c"])
def test_a_wrong_address_of_dask_is_refused(address: str) -> None:
    with pytest.raises(Invalid, match=r"dask_address: .* is not the address of a dask scheduler such as tcp://"):
        Settings.load(dask_address=address)


@pytest.mark.parametrize("address", ["head:10001", "http://head:10001", "ray://head", "ray://me:secret@head:10001"])
def test_a_wrong_address_of_ray_is_refused(address: str) -> None:
    with pytest.raises(Invalid, match=r"ray_address: .* is not the address of a ray client server such as ray://"):
        Settings.load(ray_address=address)


def test_an_engine_that_is_not_installed_is_named_with_the_remedy() -> None:
    with pytest.raises(
        Invalid, match=r"of task 'heavy' cannot run: nodocker is not installed: .* ROTA_CONTAINER_COMMAND"
    ):
        Executors(ExecutorSettings(container_command="nodocker --host x")).check({"heavy": "container"})


async def test_a_stored_task_runs_where_its_function_is_declared_to(harness: TaskHarness) -> None:
    harness.program.task(executor="dask")(add)
    await harness.declare()
    with pytest.raises(Invalid, match="executor: 'dask' is set where the task is declared"):
        await harness.store("add", name="other", executor="dask")
    with pytest.raises(Invalid, match="executor: 'dask' runs functions, not commands"):
        await harness.manager.create({"command": "true", "executor": "dask"})
    assert (await harness.manager.find("add"))["executor"] == "dask"
    await harness.manager.edit("add", {"enabled": False})
    await harness.manager.edit("add", {"enabled": True})
    stored = await harness.store("add", name="other", parameters={"a": 2})
    assert stored["executor"] is None
    assert (await harness.execute(stored))["outcome"] == 3  # without executors in the process: here


@pytest.mark.parametrize(("executor", "address"), [("dask", "tcp://127.0.0.1:9"), ("ray", "ray://127.0.0.1:9")])
async def test_a_cluster_out_of_reach_is_a_transient_failure_that_names_its_address(
    harness: TaskHarness, executor: str, address: str
) -> None:
    need(executor)
    harness.program.task(executor=executor, retry={"max_retries": 0})(add)
    settings: dict[str, Any] = {f"{executor}_address": address}
    harness.runner.executors = Executors(ExecutorSettings(**settings))
    run = await harness.run("add", a=1)
    assert (run["status"], run["reason"]) == ("failed", "transient")
    assert f"the {executor.title()} cluster at {address} cannot be reached" in run["error"]["message"]


async def test_a_result_that_is_larger_than_allowed_is_not_unpickled() -> None:
    run = RemoteRun(SimpleNamespace(info=SimpleNamespace()), "the cluster")  # type: ignore[arg-type]
    ended: dict[str, Any] = {
        "answer": bytes(FAILURE_BYTES + 11),
        "cpu_seconds": None,
        "peak_memory_bytes": None,
        "dropped": 0,
        "tail": [],
    }
    with pytest.raises(LogicError, match="returned 1048587 bytes; at most 10 are allowed"):
        await run.end(ended, 10)


def test_clusters_cost_nothing_until_they_are_used() -> None:
    code = "import sys, rota.app.main; print({'distributed', 'cloudpickle', 'ray'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
