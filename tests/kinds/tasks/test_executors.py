"""Tasks with an executor: what is refused at their declaration, when they are stored and at the start, by name."""

import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rota import Rota, RunContext
from rota.app.settings import Settings
from rota.core.errors import Invalid
from rota.kinds.tasks.executors import functions
from rota.kinds.tasks.executors.executors import Executors
from rota.kinds.tasks.executors.settings import ExecutorSettings
from rota.kinds.tasks.registry import task_rows
from rota.user_code.services import ArtifactManager, JobScheduler
from tests.kinds.tasks.harness import TaskHarness

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
        ({"executor": "spark"}, "executor: 'spark' is not one of dask"),
        ({"executor": "dask", "isolation": "process"}, "isolation: 'process' cannot be combined with executor 'dask'"),
        ({"executor": "dask", "env": {"A": "b"}}, "env: .* has no effect with executor 'dask'"),
    ],
)
def test_an_executor_that_does_not_fit_is_refused_where_the_task_is_declared(options: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        Rota().task("heavy", **options)(add)


def test_a_command_runs_on_no_cluster() -> None:
    with pytest.raises(Invalid, match="executor: 'dask' runs functions, not commands"):
        Rota().shell("heavy", "true", executor="dask")


@pytest.mark.parametrize("executor", ["dask"])
def test_services_that_cannot_travel_are_refused_by_name(executor: str) -> None:
    with pytest.raises(Invalid, match="task 'heavy': artifacts: ArtifactManager, jobs: JobScheduler cannot be sent"):
        declared(save, executor=executor)
    with pytest.raises(Invalid, match="client: Client cannot be sent to another machine"):
        declared(own, executor=executor)
    pytest.importorskip(functions.PICKLERS[executor], reason=f"install the extra {executor}")
    assert declared(look, executor=executor)[0]["options"]["executor"] == executor


@pytest.mark.parametrize("executor", ["dask"])
def test_a_function_that_cannot_be_pickled_is_refused_by_name(executor: str) -> None:
    pytest.importorskip(functions.PICKLERS[executor], reason=f"install the extra {executor}")
    with pytest.raises(Invalid, match=r"function of task 'heavy' cannot be sent .*lock.*; create what cannot be"):
        declared(locked, executor=executor)


@pytest.mark.parametrize("executor", ["dask"])
def test_a_missing_extra_is_one_sentence(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(functions.PICKLERS, executor, "a_package_that_is_not_installed")
    with pytest.raises(Invalid) as error:
        declared(add, executor=executor)
    assert str(error.value) == (
        f"executor: '{executor}' of task 'heavy' needs a package that is not installed: "
        f"pip install 'rota-scheduler[{executor}]'"
    )


def test_an_executor_without_an_address_is_refused_at_the_start() -> None:
    with pytest.raises(Invalid, match="executor: 'dask' of task 'heavy' has no address: set ROTA_DASK_ADDRESS"):
        Executors(ExecutorSettings()).check({"heavy": "dask"})
    Executors(ExecutorSettings(dask_address="tcp://127.0.0.1:8786")).check({"heavy": "dask"})


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


async def test_a_stored_task_runs_where_its_function_is_declared_to(harness: TaskHarness) -> None:
    harness.program.task(executor="dask")(add)
    await harness.declare()
    with pytest.raises(Invalid, match="executor: 'dask' is set where the function is declared"):
        await harness.store("add", name="other", executor="dask")
    with pytest.raises(Invalid, match="executor: 'dask' runs functions, not commands"):
        await harness.manager.create({"command": "true", "executor": "dask"})
    assert (await harness.manager.find("add"))["executor"] == "dask"
    await harness.manager.edit("add", {"enabled": False})
    await harness.manager.edit("add", {"enabled": True})
    stored = await harness.store("add", name="other", parameters={"a": 2})
    assert stored["executor"] is None
    assert (await harness.execute(stored))["outcome"] == 3  # without executors in the process: here


async def test_a_cluster_out_of_reach_is_a_transient_failure_that_names_its_address(harness: TaskHarness) -> None:
    pytest.importorskip("distributed", reason="install the extra dask")
    harness.program.task(executor="dask", retry={"max_retries": 0})(add)
    harness.runner.executors = Executors(ExecutorSettings(dask_address="tcp://127.0.0.1:9"))
    run = await harness.run("add", a=1)
    assert (run["status"], run["reason"]) == ("failed", "transient")
    assert "the Dask cluster at tcp://127.0.0.1:9 cannot be reached" in run["error"]["message"]


def test_clusters_cost_nothing_until_they_are_used() -> None:
    code = "import sys, rota.app.main; print({'distributed', 'cloudpickle', 'ray'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
