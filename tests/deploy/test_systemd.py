"""systemd units: those of `deploy/`, and the one that `rota init` writes."""

import configparser
import getpass
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rota.app.cli.first_steps import project_file
from rota.app.settings import Settings
from tests.deploy.pythons import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
DROP_IN = ROOT / "deploy" / "systemd" / "oidc.conf"
PROGRAM = "/opt/rota/bin/rota"
HIGHEST_EXPOSURE = 3.0  # of 10, as systemd counts it
systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def service(text: str) -> dict[str, list[str]]:
    """The settings of section [Service]; one that is repeated has several values."""
    section = text[text.index("[Service]") :].partition("[Install]")[0]
    settings: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", section, re.MULTILINE):
        settings.setdefault(name, []).append(value)
    return settings


@systemd
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in UNITS:  # systemd checks that the program exists
        (tmp_path / unit.name).write_text(unit.read_text().replace(PROGRAM, "/bin/true"))
    for name in ("rota", "rota-server"):
        (tmp_path / f"{name}.service.d").mkdir()
        (tmp_path / f"{name}.service.d" / "oidc.conf").write_text(DROP_IN.read_text())
    (tmp_path / "rota-project.service").write_text(project_file("rota.service", tmp_path))
    paths = [str(path) for path in sorted(tmp_path.glob("*.service"))]
    assert len(paths) == len(UNITS) + 1
    answer = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *paths],
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    own = [line for line in answer.stderr.splitlines() if "rota" in line]  # not the machine's other units
    assert (own, answer.returncode) == ([], 0)


@systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_are_hardened(unit: Path) -> None:
    answer = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(unit)], capture_output=True, text=True, check=False
    )
    if "unrecognized option" in answer.stderr:
        pytest.skip("this systemd cannot rate a unit file")
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", answer.stdout)
    assert float(exposure) <= HIGHEST_EXPOSURE


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_run_commands_that_exist_without_secrets(unit: Path) -> None:
    settings = service(unit.read_text())
    (command,) = settings["ExecStart"]
    program, name, *_ = command.split()
    assert program == PROGRAM
    assert name in {"up", "server", "worker", "migrate", "agent"}
    assert "WatchdogSec" not in settings  # Rota sends no watchdog messages
    assert settings["ProtectSystem"] == ["strict"]
    assert settings["NoNewPrivileges"] == ["yes"]
    known = {f"ROTA_{setting.upper()}" for setting in Settings.model_fields}
    variables = [assignment.partition("=")[0] for assignment in settings.get("Environment", [])]
    assert {variable.removesuffix("_FILE") for variable in variables} <= known
    assert not {"ROTA_DATABASE_URL", "ROTA_SERVICE_TOKEN"} & set(variables)
    if "ROTA_DATABASE_URL_FILE" in variables:
        assert settings["LoadCredential"] == ["database-url:/etc/rota/database-url"]


def test_the_secret_of_the_provider_is_a_credential() -> None:
    settings = service(DROP_IN.read_text())
    assert settings["LoadCredential"] == ["oidc-client-secret:/etc/rota/oidc-client-secret"]
    assert settings["Environment"] == ["ROTA_OIDC_CLIENT_SECRET_FILE=%d/oidc-client-secret"]


@pytest.mark.parametrize("name", ["rota", "rota-worker"])
def test_the_stop_timeout_is_above_the_drain(name: str) -> None:
    settings = service((ROOT / "deploy" / "systemd" / f"{name}.service").read_text())
    defaults = Settings(data_dir=Path("/nowhere"))
    assert int(settings["TimeoutStopSec"][0]) > defaults.drain_seconds + defaults.cancel_grace_seconds
    assert settings["KillMode"] == ["mixed"]


def test_jobs_outlive_the_agent() -> None:
    settings = service((ROOT / "deploy" / "systemd" / "rota-agent.service").read_text())
    assert settings["KillMode"] == ["process"]
    assert "DynamicUser" not in settings


def test_the_unit_of_a_project_escapes_what_systemd_expands(tmp_path: Path) -> None:
    text = project_file("rota.service", tmp_path / "50% of it")
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(text)
    assert parser["Service"]["WorkingDirectory"] == f"{tmp_path}/50%% of it"
    assert parser["Service"]["User"] == getpass.getuser()
