"""Dockerfiles and compose files, of `deploy/` and of `rota init`. No container engine is needed."""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rota.app.cli.first_steps import project_file
from rota.app.settings import Settings
from rota.version import __version__
from tests.deploy.pythons import OFFLINE, ROOT, clean_environment

DEPLOY = ROOT / "deploy"
PROGRAMS = Path(sys.executable).parent


def tool(name: str) -> str:
    """The path of a tool of the extra dev, or of the machine. Skips the test if it is not installed."""
    path = shutil.which(name, path=f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}")
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def check(*command: str) -> None:
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.fixture(params=["deploy", "project"])
def container_files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory with a Dockerfile and a compose.yaml."""
    if request.param == "deploy":
        yield DEPLOY
        return
    for name in ("Dockerfile", "compose.yaml"):
        (tmp_path / name).write_text(project_file(name, tmp_path))
    yield tmp_path


def test_hadolint_has_no_complaint(container_files: Path) -> None:
    check(tool("hadolint"), str(container_files / "Dockerfile"))


def test_the_compose_file_follows_the_specification(container_files: Path) -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    check(tool("check-jsonschema"), *schema, str(container_files / "compose.yaml"))


def test_yaml_files_are_clean(container_files: Path) -> None:
    chart = DEPLOY / "helm" / "rota"
    files = [container_files / "compose.yaml", chart / "values.yaml", chart / "Chart.yaml"]
    check(tool("yamllint"), "--strict", "--config-file", str(DEPLOY / ".yamllint.yaml"), *map(str, files))


def test_processes_run_unprivileged_on_a_read_only_root(container_files: Path) -> None:
    compose = yaml.safe_load((container_files / "compose.yaml").read_text())
    defaults = Settings(data_dir=Path("/nowhere"))
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        if name != "postgres":
            seconds = int(service["stop_grace_period"].removesuffix("s"))
            assert seconds > defaults.drain_seconds + defaults.cancel_grace_seconds
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    text = (container_files / "Dockerfile").read_text()
    assert re.search(r"^USER (?!root|0)", text, re.MULTILINE)
    assert "HEALTHCHECK" in text


def test_the_compose_file_migrates_once_and_reads_secrets_from_files() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services: dict[str, Any] = compose["services"]
    assert {name: service.get("command", [""])[0] for name, service in services.items()} == {
        "postgres": "",
        "migrate": "migrate",
        "server": "server",
        "worker": "worker",
    }
    for name in ("server", "worker"):
        assert services[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    known = {f"ROTA_{setting.upper()}" for setting in Settings.model_fields}
    for name in ("migrate", "server", "worker"):
        variables = set(services[name]["environment"])
        assert {variable.removesuffix("_FILE") for variable in variables} <= known
        assert "ROTA_DATABASE_URL_FILE" in variables
        assert services[name]["image"] == f"rota:{__version__}"
    assert set(compose["secrets"]) == {"database_url", "postgres_password"}


def test_the_compose_file_of_the_provider_gives_its_secret_to_the_server_alone() -> None:
    path = DEPLOY / "compose.oidc.yaml"
    check(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(path))
    check(tool("yamllint"), "--strict", "--config-file", str(DEPLOY / ".yamllint.yaml"), str(path))
    compose = yaml.safe_load(path.read_text())
    ((name, server),) = compose["services"].items()
    assert name == "server"
    assert server["secrets"] == list(compose["secrets"]) == ["oidc_client_secret"]
    assert server["environment"]["ROTA_OIDC_CLIENT_SECRET_FILE"] == "/run/secrets/oidc_client_secret"
    known = {f"ROTA_{setting.upper()}" for setting in Settings.model_fields}
    assert {variable.removesuffix("_FILE") for variable in server["environment"]} <= known
    assert server["image"] == f"rota:{__version__}-oidc"
    assert "oidc" in server["build"]["args"]["EXTRAS"].split(",")


def test_the_final_stage_has_no_build_tools() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    assert len(stages) == 2
    assert "pip uninstall" in stages[1]
    assert not re.search(r"\b(gcc|build-essential|pip install|COPY \. )", stages[1])
    assert re.search(r"^ARG PYTHON_TAG=3\.1[1-4]-slim-\w+$", text, re.MULTILINE)


def test_the_image_gets_only_what_it_is_built_from() -> None:
    sources = re.findall(r"^COPY (?!--from)(.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    copied = {name for line in sources for name in line.split()}
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.long
def test_the_build_stage_installs_rota_from_its_context(tmp_path: Path) -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    context, target = tmp_path / "context", tmp_path / "rota"
    context.mkdir()
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for name in line.split():
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, context / name)
    (command,) = re.findall(r"^RUN (python -m venv (?:.*\\\n)*.*)$", text, re.MULTILINE)
    pip = f'"{sys.executable}" -m pip'
    command = command.replace("/opt/rota", str(target)).replace("python -m venv", f'"{sys.executable}" -m venv')
    command = command.replace("&& pip ", f"&& {pip} ")
    answer = subprocess.run(
        ["sh", "-c", command],
        cwd=context,
        env=clean_environment(EXTRAS="duckdb"),
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode and OFFLINE.search(answer.stderr):
        pytest.skip("no package index can be reached")
    assert answer.returncode == 0, answer.stderr
    version = subprocess.run(
        [target / "bin" / "rota", "--version"], env=clean_environment(), capture_output=True, text=True, check=True
    )
    assert version.stdout == f"rota {__version__}\n"
    assert not (target / "bin" / "pip").exists()


def test_the_script_writes_secrets_once(tmp_path: Path) -> None:
    script = tmp_path / "secrets.sh"
    shutil.copy(DEPLOY / "secrets.sh", script)
    assert subprocess.run([script], check=True).returncode == 0
    folder = tmp_path / "secrets"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    password = (folder / "postgres_password").read_text()
    assert re.fullmatch(r"[0-9a-f]{48}", password)
    assert (folder / "database_url").read_text() == f"postgresql://rota:{password}@postgres/rota"
    assert stat.S_IMODE((folder / "database_url").stat().st_mode) == 0o444
    again = subprocess.run([script], capture_output=True, text=True, check=False)
    assert (again.returncode, "nothing was written" in again.stderr) == (1, True)
    assert (folder / "postgres_password").read_text() == password
