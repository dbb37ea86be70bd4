"""dbt projects as tasks: real dbt on DuckDB and PostgreSQL, with the results of its nodes."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rota.core.errors import Invalid
from rota.core.policy import FailureClass
from rota.engine.runner import RunLog
from rota.kinds.tasks import dbt
from tests.kinds.tasks.harness import TaskHarness
from tests.postgres import create_database, drop_database

PROJECT = """
name: shop
version: "1.0"
profile: shop
models: {+materialized: table}
"""
MODELS = {
    "orders": "SELECT 1 AS id, 'a' AS name UNION ALL SELECT 2, 'b'",
    "totals": "SELECT count(*) AS n FROM {{ ref('orders') }}",
    "broken": "SELECT CAST(name AS INTEGER) AS n FROM {{ ref('orders') }}",
    "after_broken": "SELECT * FROM {{ ref('broken') }}",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "dbt_project.yml").write_text(PROJECT)
    for name, sql in MODELS.items():
        (tmp_path / "models" / f"{name}.sql").write_text(sql)
    return tmp_path


@pytest.fixture(scope="session")
def executable(tmp_path_factory: pytest.TempPathFactory) -> str:
    """dbt of an environment of its own: its requirements do not fit those of the other tools."""
    if "ROTA_TEST_DBT" in os.environ:
        return os.environ["ROTA_TEST_DBT"]
    place = tmp_path_factory.mktemp("dbt")
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    packages = ["dbt-core>=1.11.16,<1.12", "dbt-duckdb>=1.11.1,<2", "dbt-postgres>=1.11,<2"]
    install = [str(place / "bin/python"), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *packages]
    installed = subprocess.run(install, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"dbt cannot be installed: {installed.stderr.strip()[-300:]}")
    return str(place / "bin/dbt")


@pytest.fixture(params=["duckdb", "postgresql"])
def profile(request: pytest.FixtureRequest, project: Path, postgres_url: str) -> Iterator[None]:
    if request.param == "duckdb":
        write_profile(project, f"{{type: duckdb, path: '{project}/shop.duckdb', threads: 1}}")
        yield
        return
    from sqlalchemy import make_url

    url = create_database(postgres_url)
    parts = make_url(url)
    address = (
        f"host: '{parts.host}', port: {parts.port or 5432}, user: '{parts.username}', pass: '{parts.password or ''}'"
    )
    write_profile(project, f"{{type: postgres, {address}, dbname: '{parts.database}', schema: shop, threads: 1}}")
    yield
    drop_database(postgres_url, url)


def write_profile(project: Path, output: str) -> None:
    (project / "profiles.yml").write_text(f"shop: {{target: dev, outputs: {{dev: {output}}}}}\n")


def by_name(run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {node["node"].rpartition(".")[2]: node for node in run["outcome"]["nodes"]}


@pytest.mark.long
@pytest.mark.engines
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("profile")
async def test_a_build_records_each_node(harness: TaskHarness, project: Path, executable: str) -> None:
    harness.program.dbt("shop", str(project), executable=executable)
    good = await harness.run("shop", select="orders totals")
    assert good["status"] == "success", good
    nodes = by_name(good)
    assert {name: node["status"] for name, node in nodes.items()} == {"orders": "success", "totals": "success"}
    assert nodes["totals"]["reads"] == ["model.shop.orders"]
    assert all(node["duration_ms"] >= 0 for node in nodes.values())
    assert any("Completed successfully" in line for line in await harness.logs(good))

    failed = await harness.run("shop")
    assert (failed["status"], failed["reason"]) == ("failed", "logic")
    assert "1 of 4 nodes failed; model.shop.broken" in failed["error"]["message"]
    assert {name: node["status"] for name, node in by_name(failed).items()} == {
        "orders": "success",
        "totals": "success",
        "broken": "error",
        "after_broken": "skipped",
    }


@pytest.mark.long
@pytest.mark.engines
@pytest.mark.timeout(1200)
async def test_canceling_a_run_ends_dbt(
    harness: TaskHarness, project: Path, executable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, write = asyncio.Event(), RunLog.write

    def watch(log: RunLog, stream: str, text: str) -> None:
        write(log, stream, text)
        if "START" in text:  # of a model
            started.set()

    monkeypatch.setattr(RunLog, "write", watch)
    write_profile(project, f"{{type: duckdb, path: '{project}/shop.duckdb', threads: 1}}")
    endless = "SELECT count(*) AS n FROM range(1000000000) AS a, range(1000000000) AS b"
    (project / "models" / "orders.sql").write_text(endless)
    harness.program.dbt("shop", str(project), executable=executable)
    await harness.declare()
    (job_id,) = await harness.engine.enqueue(harness.org_id, "task", "shop", [None])
    await harness.claim()
    await started.wait()
    await harness.engine.cancel(harness.org_id, job_id)
    await harness.work()
    assert (await harness.last_run(job_id))["status"] == "canceled"
    assert not processes_with(str(project))


def processes_with(text: str) -> list[str]:
    return subprocess.run(["pgrep", "-f", text], capture_output=True, text=True, check=False).stdout.split()


def failed_node(message: str) -> dict[str, Any]:
    result = {"unique_id": "model.shop.a", "status": "error", "message": message, "execution_time": 0.5}
    return dbt.outcome_of({"results": [result]}, {"parent_map": {"model.shop.a": ["source.shop.b"]}})


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Database Error: division by zero", FailureClass.LOGIC),
        ("IO Error: Could not set lock on file shop.duckdb", FailureClass.TRANSIENT),
        ("server closed the connection unexpectedly", FailureClass.TRANSIENT),
        ('password authentication failed for user "x"', FailureClass.AUTH),
    ],
)
def test_failures_are_classified_by_the_messages_of_nodes(message: str, expected: FailureClass) -> None:
    outcome = failed_node(message)
    assert outcome["nodes"][0]["reads"] == ["source.shop.b"]
    failure = dbt.failure_of(1, outcome, "", "")
    assert failure.failure_class is expected
    assert failure.message.startswith("1 of 1 nodes failed; model.shop.a: ")


def test_a_dbt_that_fails_before_its_nodes_is_classified_by_its_output() -> None:
    empty = dbt.outcome_of({}, {})
    assert dbt.failure_of(2, empty, "could not connect to server", "x").failure_class is FailureClass.TRANSIENT
    assert dbt.failure_of(2, empty, "Parsing Error", "Parsing Error").message == "dbt exited with code 2: Parsing Error"
    assert dbt.failure_of(-9, empty, "", "").failure_class is FailureClass.TRANSIENT


def test_wrong_declarations_are_refused_by_name(project: Path, tmp_path: Path) -> None:
    wrong: list[tuple[Path, dict[str, object], str]] = [
        (tmp_path / "models", {}, "project_dir"),
        (project, {"command": "debug"}, "command"),
        (project, {"select": "--project-dir /tmp"}, "select"),
        (project, {"target": "-x"}, "target"),
    ]
    for place, options, field in wrong:
        with pytest.raises(Invalid) as refused:
            dbt.dbt_task("shop", str(place), {"executable": "dbt", **options})
        assert refused.value.field == field
    assert dbt.dbt_task("shop", str(project), {"executable": "dbt"}).max_running == 1


@pytest.mark.skipif(find_spec("dbt") is not None or shutil.which("dbt") is not None, reason="dbt is installed")
def test_a_missing_dbt_is_named(project: Path) -> None:
    with pytest.raises(Invalid, match=r"install rota-scheduler\[dbt\]"):
        dbt.dbt_task("shop", str(project), {})
