"""The parts of an agent on their own: the journal's answers, one run as a process, the unit, the docs' example."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rota.app.cli import app
from rota.kinds.hosts.agent.job_types import Allowed
from rota.kinds.hosts.agent.journal import Claim, Journal
from rota.kinds.hosts.agent.loop import environment, supervisor_command

DOCS = Path(__file__).parents[3] / "docs" / "hosts.md"


def order(home: Path, job_type: str = "shell", **more: Any) -> dict[str, Any]:
    return {
        "job_id": "01KQRS3Z5T8M0A2N6Y4V7W9XCD",
        "fence": 7,
        "run_id": "R",
        "attempt": 1,
        "job_type": job_type,
        "payload": {},
        "server": {"id": "S", "name": "web", "type": "x", "config": {}},
        "slot": None,
        "schedule_id": None,
        "timeout_seconds": None,
        "trigger": "manual",
        "grace_seconds": 1,
        "cwd": str(home),
        "allowed": {"any_shell": True, "python": ["platform:*"], "http": ["127.0.0.1"]},
        **more,
    }


def run(home: Path, where: Path | None = None, **more: Any) -> dict[str, Any]:
    """A run as its agent starts it in the directory `where`, to its end."""
    claim = Journal(home).add(order(home, **more))
    assert claim is not None
    lock = claim.lock()
    child = subprocess.Popen(
        supervisor_command(claim), pass_fds=[lock], start_new_session=True, env=environment(), cwd=where
    )
    os.close(lock)
    assert child.wait(30) == 0
    assert claim.state() == "ended"
    return claim.result() or {}


def lines(home: Path) -> list[Any]:
    (claim,) = Journal(home).claims()
    return [json.loads(line) for line in (claim.home / "log").read_text().splitlines()]


def test_a_command_leaves_its_output_its_outcome_and_no_secret(tmp_path: Path) -> None:
    server = {"id": "S", "name": "web", "type": "x", "config": {"rcon_password": "canary-1"}}
    command = "echo $ROTA_SERVER_CONFIG; echo bye canary-2 >&2; exit 3"
    result = run(tmp_path, payload={"command": command, "token": "canary-2"}, server=server)
    assert (result["status"], result["outcome"]["exit_code"]) == ("failed", 3)
    assert result["error"]["message"] == "exit code 3: bye ***"
    assert lines(tmp_path) == [["stdout", '{"rcon_password": "***"}'], ["stderr", "bye ***"]]
    assert "canary" not in json.dumps(result)


def test_a_run_imports_nothing_from_the_directory_of_its_agent(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('planted')")
    home = tmp_path / "home"
    assert run(home, tmp_path, job_type="python", payload={"entry_point": "platform:system"})["status"] == "success"


def test_python_and_http_do_only_what_they_may(tmp_path: Path) -> None:
    good = run(tmp_path / "a", job_type="python", payload={"entry_point": "platform:system"})
    assert good["status"] == "success"
    for number, (kind, payload) in enumerate(
        [("python", {"entry_point": "os:getcwd"}), ("http_check", {"url": "file:///etc/passwd"})]
    ):
        bad = run(tmp_path / str(number), job_type=kind, payload=payload)
        assert (bad["status"], bad["error"]["type"]) == ("failed", "Refused")
    away = run(tmp_path / "c", job_type="http_check", payload={"url": "http://127.0.0.1:9/"})
    assert away["error"]["code"] == "transient"


def test_the_journal_answers_after_every_kind_of_death(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    claim = journal.add(order(tmp_path, payload={"command": "sleep 60"}))
    assert claim is not None
    assert journal.add(order(tmp_path)) is None  # it is known
    assert claim.state() == "never"
    lock = claim.lock()
    child = subprocess.Popen(supervisor_command(claim), pass_fds=[lock], start_new_session=True, env=environment())
    os.close(lock)
    assert claim.state() == "running"
    end = time.monotonic() + 30
    while claim.pid() is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
    while (state := Claim(claim.home).state()) == "running":  # its work dies with it
        assert time.monotonic() < end
        time.sleep(0.02)
    assert state == "unknown"
    claim.mark_done()
    assert journal.open_claims() == []


def test_the_job_type_of_the_docs_works(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    types = tmp_path / "types.py"
    types.write_text(code)
    known = Allowed(types=str(types)).load()
    assert set(known) == {"shell", "http_check", "python", "backup"}
    allowed = {"shell": [], "python": [], "types": str(types)}
    result = run(tmp_path / "run", job_type="backup", payload={"to": "/nowhere"}, allowed=allowed)
    assert (result["status"], result["outcome"]) == ("success", {"bytes": 42})
    assert lines(tmp_path / "run") == [["stdout", "backing up web"]]


def test_the_docs_name_commands_and_options_that_there_are() -> None:
    text = DOCS.read_text()
    for verbs in set(re.findall(r"\brota ((?:host|agent|batch|host-job|server-instance|schedule) [a-z-]+)", text)):
        helped = CliRunner().invoke(app, [*verbs.split(), "--help"])
        assert helped.exit_code == 0, verbs
    shown = CliRunner().invoke(app, ["agent", "run", "--help"], env={"COLUMNS": "200"}).stdout
    for option in (
        "--allow-shell",
        "--allow-any-shell",
        "--allow-http",
        "--allow-python",
        "--types",
        "--room",
        "--dir",
    ):
        assert option in shown


def test_the_unit_starts_this_agent_and_leaves_its_runs_alone(tmp_path: Path) -> None:
    (tmp_path / "agent.json").write_text(json.dumps({"server": "http://x", "host_id": "H", "name": "n", "key": "k"}))
    unit = tmp_path / "rota-agent.service"
    pattern = "systemctl restart *"
    made = CliRunner().invoke(
        app, ["agent", "install", "--dir", str(tmp_path), "--allow-shell", pattern, "--to", str(unit)]
    )
    assert made.exit_code == 0, made.stderr
    text = unit.read_text()
    assert f"ExecStart={sys.executable} -m rota.app.cli agent run --dir {tmp_path} --allow-shell '{pattern}'" in text
    assert "KillMode=process" in text


@pytest.mark.parametrize("command", [["run"], ["status"], ["install"]])
def test_an_agent_that_is_not_paired_says_how_to(tmp_path: Path, command: list[str]) -> None:
    result = CliRunner().invoke(app, ["agent", *command, "--dir", str(tmp_path)])
    assert result.exit_code == 3
    assert "rota agent pair" in result.stderr
