"""`rota init` and `rota demo`, from an empty directory."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template

import httpx
import pytest

from rota.app.cli.first_steps import PROJECT, SUPERVISOR_FILES, Supervisor, own_command
from rota.client import Client
from rota.version import DISTRIBUTION, __version__
from tests.app.command_line import environment, run
from tests.app.test_examples import wait_until

RUFF_RULES = "E,F,I,UP,B,SIM,RUF,PT,C4,ARG,RET"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    answer = run(tmp_path, "init", "new")
    assert answer.returncode == 0, answer.stderr
    return tmp_path / "new"


def test_init_writes_a_project_whose_test_passes(project: Path) -> None:
    assert sorted(path.name for path in project.iterdir()) == sorted(PROJECT)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_app.py"]
    answer = subprocess.run(command, cwd=project, env=environment(), capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout
    assert "1 passed" in answer.stdout


def test_the_code_of_a_new_project_is_clean(project: Path) -> None:
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--isolated", "--no-cache", "--line-length", "120"]
    for words in (["check", "--select", RUFF_RULES], ["format", "--check"]):
        answer = subprocess.run(
            [*ruff, *words, *options, "."], cwd=project, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stdout


@pytest.mark.parametrize("supervisor", list(Supervisor))
def test_init_writes_the_files_of_the_chosen_supervisor(tmp_path: Path, supervisor: Supervisor) -> None:
    answer = run(tmp_path, "init", "new", "--with", supervisor)
    assert answer.returncode == 0, answer.stderr
    texts = {path.name: path.read_text() for path in (tmp_path / "new").iterdir()}
    assert set(texts) == {*PROJECT, *SUPERVISOR_FILES[supervisor]}
    assert all("$" not in Template(text).safe_substitute() for name, text in texts.items() if name != "Dockerfile")
    if supervisor is Supervisor.COMPOSE:
        assert texts["requirements.txt"] == f"{DISTRIBUTION}=={__version__}\n"
    if supervisor is Supervisor.SYSTEMD:
        assert f"WorkingDirectory={tmp_path / 'new'}\n" in texts["rota.service"]
    *_, first, second = answer.stderr.splitlines()
    assert first.startswith("  cd new && ")
    python = shlex.quote(sys.executable)  # no virtual environment is activated
    assert second.removeprefix("  cd new && ") in {f"{python} -m pytest", "python -m pytest"}


def test_commands_are_named_by_path_unless_their_environment_is_activated(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    assert own_command() == "rota"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert own_command() == shlex.quote(str(programs / "rota"))


def test_init_overwrites_nothing_and_lists_the_files_that_exist(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("kept\n")
    (tmp_path / "rota.env").write_text("settings\n")
    answer = run(tmp_path, "init")
    assert answer.returncode == 4
    assert f"{tmp_path} already has app.py, rota.env; nothing was written" in answer.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app.py", "rota.env"]
    assert (tmp_path / "app.py").read_text() == "kept\n"


def test_init_rejects_an_unknown_supervisor(tmp_path: Path) -> None:
    answer = run(tmp_path, "init", "new", "--with", "upstart")
    assert answer.returncode == 2
    assert "systemd" in answer.stderr
    assert not (tmp_path / "new").exists()


@contextmanager
def running_demo(place: Path, *options: str, **env: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    log = place / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "rota.app.cli", "demo", *options],
            cwd=place,
            env=environment(**env),
            stdout=out,
            stderr=out,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        yield process, log
    finally:
        process.kill()
        process.wait(30)


def test_the_demo_runs_each_of_its_kinds_and_ctrl_c_names_its_directory(tmp_path: Path) -> None:
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"  # the demo must not use a database of the environment
    with running_demo(tmp_path, "--port", "0", ROTA_DATABASE_URL=elsewhere, ROTA_HOST="0.0.0.0") as (process, log):
        data = tmp_path / "rota-demo" / ".rota"
        wait_until(lambda: (data / "server.json").exists())
        url = json.loads((data / "server.json").read_text())["url"]
        assert url.startswith("http://127.0.0.1:")
        assert httpx.get(url, follow_redirects=True).status_code == 200
        with Client(url, (data / "admin.key").read_text().strip()) as rota:
            names = {schedule["name"] for schedule in rota.call("GET", "/schedules")["items"]}
            assert {"heartbeat", "flaky", "disk-every-minute", "disk-at-night", "slow"} <= names
            for name in ("flaky", "disk-at-night"):
                rota.call("POST", f"/schedules/{name}/$run")

            def succeeded() -> bool:
                runs = rota.runs(status="success")
                return {"heartbeat", "flaky", "disk", "orders"} <= {run["target"] for run in runs}

            wait_until(succeeded)
            assert {run["attempt"] for run in rota.runs(target="flaky")} >= {1, 2}
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        text = log.read_text()
        assert url in text
        assert "What to look at" in text
        assert text.splitlines()[-1].startswith(f"the demo has ended; program and data are in {tmp_path / 'rota-demo'}")
    assert not (tmp_path / "elsewhere.db").exists()
    assert os.listdir(tmp_path / "rota-demo" / ".rota")


def test_the_demo_keeps_a_program_that_was_changed(tmp_path: Path) -> None:
    program = tmp_path / "own" / "demo.py"
    program.parent.mkdir()
    program.write_text("from rota import Rota\napp = Rota()\napp.shell('own', 'true')\n")
    with running_demo(tmp_path, "own", "--port", "0") as (process, _):
        wait_until(lambda: (tmp_path / "own" / ".rota" / "server.json").exists())
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert "'own'" in program.read_text()
