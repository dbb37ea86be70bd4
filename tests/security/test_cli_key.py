"""Where the command line sends a key, and who is warned that it can be read on the way."""

import json
from pathlib import Path

import pytest
import typer
from structlog.testing import capture_logs
from typer.testing import CliRunner

from rota.app import api_thread
from rota.app.cli import app
from rota.app.doctor import tls_finding
from rota.app.settings import Settings
from rota.frame.cli.connection import Connection, Exit, Output, warn_without_tls


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "server.json").write_text(json.dumps({"url": "http://evil.example:8420", "pid": 1}))
    return tmp_path


def call(data: Path, key: str | None = "rota_secret") -> tuple[str, str]:
    return Connection(None, key, data, Output.TABLE).address()


def test_a_key_of_the_environment_does_not_go_where_a_folder_says(data: Path) -> None:
    env = {"ROTA_DATA_DIR": str(data), "ROTA_KEY": "rota_secret"}
    answer = CliRunner().invoke(app, ["run", "list"], env=env)
    assert answer.exit_code == 5
    assert "your key was not made for it and is not sent" in answer.stderr
    assert "rota_secret" not in answer.stderr


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_a_key_goes_where_the_folder_is_this_users_own(data: Path, mode: int) -> None:
    (data / "admin.key").write_text("rota_first\n")
    (data / "admin.key").chmod(mode)
    if mode == 0o600:
        assert call(data) == ("http://evil.example:8420", "rota_secret")
    else:  # as version control would leave it
        with pytest.raises(typer.Exit) as refused:
            call(data)
        assert refused.value.exit_code == Exit.REFUSED
    assert call(data, None) == ("http://evil.example:8420", "rota_first")


def test_a_link_in_place_of_the_key_file_does_not_count(data: Path, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text("x")
    real.chmod(0o600)
    (data / "admin.key").symlink_to(real)
    assert CliRunner().invoke(app, ["--key", "k", "run", "list"], env={"ROTA_DATA_DIR": str(data)}).exit_code == 5


def test_a_key_goes_to_a_server_of_this_machine(data: Path) -> None:
    (data / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": 1}))
    assert call(data) == ("http://127.0.0.1:1", "rota_secret")


@pytest.mark.parametrize(
    ("server", "warned"),
    [("http://10.0.0.1:8420", True), ("https://rota.example.org", False), ("http://localhost:8420", False)],
)
def test_the_command_line_warns_without_tls(server: str, warned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    warn_without_tls.cache_clear()
    Connection(server, "k", Path("none"), Output.TABLE).address()
    assert ("without TLS" in capsys.readouterr().err) == warned


@pytest.mark.parametrize(
    ("host", "public_url", "warned"),
    [("0.0.0.0", "", True), ("0.0.0.0", "https://rota.example.org", False), ("127.0.0.1", "", False)],
)
def test_a_server_and_the_doctor_warn_without_tls(host: str, public_url: str, warned: bool, tmp_path: Path) -> None:
    settings = Settings(host=host, public_url=public_url, data_dir=tmp_path)
    with capture_logs() as logs:
        api_thread.announce(settings, "http://somewhere:1", None)
    events = [line["event"] for line in logs]
    assert events == (["keys and passwords reach this server without TLS"] if warned else [])
    assert tls_finding(settings).verdict == ("note" if warned else "ok")
