"""Wheel and sdist: they contain all files, and work without the repository."""

import json
import re
import signal
import subprocess
import tarfile
import time
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import httpx
import pytest

from rota.version import DISTRIBUTION, __version__
from tests.deploy.pythons import ROOT, clean_environment, clean_venv, interpreter

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
FIRST_RUN_SECONDS = 60


def package_files() -> set[str]:
    """The files of the package in this checkout."""
    source = ROOT / "src"
    paths = (path for path in (source / "rota").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(source).as_posix() for path in paths}


def test_the_wheel_contains_every_file_of_the_package(wheel: Path) -> None:
    assert wheel.name == f"{DISTRIBUTION.replace('-', '_')}-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == package_files()
    suffixes = {Path(name).suffix for name in names}
    assert {".html", ".css", ".js", ".template"} <= suffixes
    assert {"rota/py.typed", "rota/db/migrations/env.py", "rota/db/migrations/versions/0001_engine.py"} <= names


def test_the_wheel_describes_itself(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_string(archive.read(name).decode())
        commands = archive.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert (metadata["Name"], metadata["Version"]) == (DISTRIBUTION, __version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "rota = rota.app.cli:main" in commands
    assert "# Rota" in metadata.get_payload()


def test_the_sdist_contains_what_its_tests_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in package_files()} <= names
    for needed in ("constraints.txt", "Makefile", "LICENSE", "README.md", "CHANGELOG.md", "deploy/Dockerfile"):
        assert needed in names
    assert {"tests/conftest.py", "examples/quickstart.py", "docs/index.md", ".dockerignore"} <= names


def test_classifiers_name_the_pythons_that_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: "
    named = {text.removeprefix(prefix) for text in project["classifiers"] if re.fullmatch(rf"{prefix}\d\.\d+", text)}
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    (matrix,) = re.findall(r"python: \[(.*)\]", workflow)
    assert named <= set(re.findall(r"\d\.\d+", matrix))
    assert named <= set(VERSIONS)


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_an_installed_wheel_runs_the_demo_without_the_repository(version: str, wheel: Path, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed")
    programs = clean_venv(tmp_path / "venv", python, wheel)
    home = tmp_path / "home"
    home.mkdir()

    def rota(*words: str) -> str:
        command = [str(programs / "rota"), *words]
        answer = subprocess.run(
            command, cwd=home, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    where = [str(programs / "python"), "-c", "import rota; print(rota.__file__)"]
    where_output = subprocess.run(where, cwd=home, env=clean_environment(), capture_output=True, text=True, check=True)
    assert Path(where_output.stdout.strip()).is_relative_to(tmp_path / "venv")
    assert rota("--version") == f"rota {__version__}\n"
    rota("init", "project")
    assert (home / "project" / "test_app.py").exists()
    data = home / "rota-demo" / ".rota"
    begun = time.monotonic()
    with (home / "log").open("wb") as log:
        demo = subprocess.Popen(
            [str(programs / "rota"), "demo", "--port", "0"], cwd=home, env=clean_environment(), stdout=log, stderr=log
        )
    try:
        while not (data / "server.json").exists() or not runs(
            rota("--data-dir", str(data), "-o", "json", "run", "list")
        ):
            assert demo.poll() is None, (home / "log").read_text()
            assert time.monotonic() - begun < FIRST_RUN_SECONDS, (home / "log").read_text()
            time.sleep(0.2)
        url = json.loads((data / "server.json").read_text())["url"]
        page = httpx.get(f"{url}/login")
        assert page.status_code == 200
        files = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text)
        assert files
        assert {httpx.get(f"{url}{file}").status_code for file in files} == {200}
        assert json.loads(rota("--data-dir", str(data), "-o", "json", "slots", "audit"))
        demo.send_signal(signal.SIGINT)
        assert demo.wait(30) == 0, (home / "log").read_text()
    finally:
        demo.kill()
        demo.wait(30)


def runs(page: str) -> bool:
    """Whether a run of a schedule succeeded."""
    return any(run["status"] == "success" and run["slot"] for run in json.loads(page)["items"])
