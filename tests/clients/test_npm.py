"""The TypeScript client and the Postman collection against a running server, by the tools of their users."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.command_line import running_server
from tests.clients import write

OFFLINE = ("ENOTFOUND", "ECONNREFUSED", "EAI_AGAIN", "ETIMEDOUT", "ENETUNREACH")
NEWMAN = "newman@6.2.2"
# what newman requests, with the parameters of the path; they answer 200 on a server that has just started
READS = ("GET /api/v1/schedules", "GET /api/v1/queues", "GET /api/v1/workers", "GET /health/live", "GET /api/v1/runs")
WRITES = ("POST /api/v1/schedules/$preview",)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a client: URL and key of a server that has a worker."""
    with running_server(tmp_path_factory.mktemp("server")) as home:
        url = json.loads((home / "data" / "server.json").read_text())["url"]
        yield {"ROTA_SERVER": url, "ROTA_KEY": (home / "data" / "admin.key").read_text().strip()}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the TypeScript client with its dependencies."""
    try:
        return write.copy_package(tmp_path_factory.mktemp("typescript"))
    except subprocess.CalledProcessError as error:
        skip_if_offline(error.stderr)
        raise


def test_the_types_are_those_that_the_generator_writes(package: Path) -> None:
    generate = ["npm", "run", "--silent", "generate"]
    subprocess.run(generate, cwd=package, check=True, capture_output=True, timeout=120)
    made = write.typescript_head() + (package / "src" / "schema.ts").read_text()
    assert made == write.TYPES.read_text(), "run `make clients`"


def test_the_typescript_client_works_with_a_server(package: Path, server: dict[str, str]) -> None:
    """`npm test` compiles strictly, then runs the tests of the package."""
    env = {**os.environ, **server}
    answer = subprocess.run(
        ["npm", "test"], cwd=package, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "# fail 0" in answer.stdout
    assert "# pass 5" in answer.stdout


def test_a_value_of_a_wrong_type_does_not_compile(package: Path) -> None:
    wrong = package / "test" / "wrong.ts"
    wrong.write_text(
        'import { connect } from "../src/index.js";\n'
        'await connect().POST("/api/v1/schedules", { body: { name: "x", target: "t", priority: "high" } });\n'
    )
    try:
        answer = subprocess.run(
            ["npx", "tsc", "--noEmit"], cwd=package, capture_output=True, text=True, timeout=120, check=False
        )
    finally:
        wrong.unlink()
    assert answer.returncode != 0
    assert "'string' is not assignable to type 'number'" in answer.stdout


def test_newman_runs_requests_of_the_collection(server: dict[str, str], tmp_path: Path) -> None:
    collection = json.loads((write.CLIENTS / "rota.postman_collection.json").read_text())
    chosen = [item for folder in collection["item"] for item in folder["item"] if item["name"] in READS + WRITES]
    assert len(chosen) == len(READS + WRITES)
    (tmp_path / "collection.json").write_text(json.dumps({**collection, "item": chosen}))
    install = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(tmp_path), NEWMAN]
    installed = subprocess.run(install, capture_output=True, text=True, timeout=240, check=False)
    skip_if_offline(installed.stderr)
    assert installed.returncode == 0, installed.stderr
    command = [
        tmp_path / "node_modules" / ".bin" / "newman",
        "run",
        tmp_path / "collection.json",
        "--reporters",
        "json",
    ]
    command += ["--env-var", f"base_url={server['ROTA_SERVER']}", "--env-var", f"key={server['ROTA_KEY']}"]
    command += ["--reporter-json-export", tmp_path / "report.json"]
    subprocess.run([str(word) for word in command], check=True, capture_output=True, timeout=120)
    report = json.loads((tmp_path / "report.json").read_text())["run"]
    assert {execution["response"]["code"] for execution in report["executions"]} == {200}
    assert len(report["executions"]) == len(chosen)


def skip_if_offline(output: str) -> None:
    if any(word in (output or "") for word in OFFLINE):
        pytest.skip("no package registry can be reached")
