"""The command line against a real server: `rota up` in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rota.app.cli import app

APP = """
from rota.app.application import Rota

app = Rota()


@app.task
def hello(name: str = "you") -> str:
    print(f"hello {name}")
    return name


@app.task
def fails() -> None:
    raise ValueError("it does")
"""

Rota = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory with a server running on it."""
    place = tmp_path_factory.mktemp("cli")
    (place / "app.py").write_text(APP)
    command = [sys.executable, "-m", "rota.app.cli", "up", "app.py", "--data-dir", "data", "--port", "0"]
    log = (place / "up.log").open("wb")
    process = subprocess.Popen(command, cwd=place, env=environment(), stdout=log, stderr=log)
    try:
        end = time.monotonic() + 30
        while not (place / "data" / "server.json").exists() or run(place, "workers").returncode:
            assert process.poll() is None, (place / "up.log").read_text()
            assert time.monotonic() < end, (place / "up.log").read_text()
            time.sleep(0.1)
        yield place
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (place / "up.log").read_text()
        assert not (place / "data" / "server.json").exists()
        log.close()


def run(place: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rota.app.cli", *args]
    given = environment(**env)
    return subprocess.run(command, cwd=place, env=given, capture_output=True, text=True, timeout=60, check=False)


def environment(**more: str) -> dict[str, str]:
    """Nothing of the developer's own settings; the same modules as here."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "ROTA_DATA_DIR": "data", **more}


@pytest.fixture
def rota(home: Path) -> Rota:
    """The command line in this process: most tests need no other."""

    def call(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
        result = CliRunner().invoke(app, args, env={"ROTA_DATA_DIR": str(home / "data"), **env})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return subprocess.CompletedProcess(args, result.exit_code, result.stdout, result.stderr)

    return call


def read(answer: subprocess.CompletedProcess[str]) -> Any:
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_a_schedule_lives_and_dies(rota: Rota, home: Path) -> None:
    trigger = ["--cron", "0 2 * * *", "--tz", "Europe/Oslo", "--window", "01:00-03:00"]
    policies = ["--tag", "a", "--input", '{"name": "Ada"}', "--retries", "2", "--timeout", "9"]
    added = rota("schedule", "add", "life", "--task", "hello", *trigger, *policies)
    assert added.returncode == 0, added.stderr
    assert "every day at 02:00 (Europe/Oslo)" in added.stdout
    shown = read(rota("-o", "json", "schedule", "show", "life"))
    assert (shown["input"], shown["tags"], shown["retry"]["max_retries"]) == ({"name": "Ada"}, ["a"], 2)
    assert (shown["window_start"], shown["window_end"], shown["timeout_seconds"]) == ("01:00", "03:00", 9)
    listed = run(home, "schedule", "list", "--tag", "a")  # through a pipe: no colours, 80 columns
    assert "life" in listed.stdout
    assert max(map(len, listed.stdout.splitlines())) <= 80
    assert "\x1b" not in listed.stdout
    assert len(read(rota("-o", "json", "schedule", "next", "life", "--count", "3"))["slots"]) == 3
    assert rota("schedule", "next", "life").returncode == 0
    assert "paused" in rota("schedule", "pause", "life", "--reason", "why").stdout
    assert "enabled" in rota("schedule", "resume", "life", "--gap", "once").stdout
    assert read(rota("-o", "json", "schedule", "skip-next", "life", "--reason", "x"))["verdict"] == "skipped"
    assert "skipped" in rota("slots", "list", "--schedule", "life").stdout
    dry = rota(
        "schedule", "backfill", "life", "--from", "2026-01-01T00:00:00Z", "--to", "2026-01-03T00:00:00Z", "--dry-run"
    )
    assert len(dry.stdout.splitlines()) == 2
    assert rota("schedule", "show", "life").stdout.startswith("id ")
    assert rota("schedule", "rm", "life").returncode == 0
    assert rota("schedule", "show", "life").returncode == 3


def test_a_run_is_waited_for_and_read(rota: Rota) -> None:
    assert rota("schedule", "add", "greets", "--task", "hello", "--every", "1h").returncode == 0
    ran = read(rota("-o", "json", "schedule", "run", "greets", "--input", '{"name": "Bo"}', "--wait"))
    assert ran["status"] == "success"
    shown = read(rota("-o", "json", "run", "show", ran["id"]))  # by the job's id
    assert shown["outcome"] == "Bo"
    assert rota("run", "logs", "-f", shown["id"]).stdout == "hello Bo\n"
    assert shown["id"] in rota("run", "list", "--schedule", "greets").stdout
    again = read(rota("-o", "json", "run", "retry", shown["id"]))
    assert again["job_id"]
    assert rota("run", "cancel", shown["id"]).returncode == 4


def test_a_failed_run_has_an_exit_code(rota: Rota) -> None:
    assert rota("schedule", "add", "breaks", "--task", "fails", "--every", "1h").returncode == 0
    ran = rota("schedule", "run", "breaks", "--wait")
    assert (ran.returncode, ran.stderr) == (7, "error: it does\n")
    failed = read(rota("-o", "json", "run", "list", "--status", "failed", "--schedule", "breaks"))["items"][0]
    assert "ValueError: it does" in rota("run", "show", failed["id"]).stdout


def test_a_shell_command_is_scheduled_with_its_task_or_not_at_all(rota: Rota) -> None:
    refused = rota("schedule", "add", "sh", "--shell", "echo hi", "--cron", "61 * * * *", "--tz", "Mars/Olympus")
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert "cron_expression: '61 * * * *'" in refused.stderr
    assert "timezone: 'Mars/Olympus'" in refused.stderr
    assert "sh " not in rota("task", "list").stdout
    for _ in range(2):  # the task of a deleted schedule is taken again
        assert rota("schedule", "add", "sh", "--shell", "echo hi", "--every", "1h").returncode == 0
        assert rota("schedule", "run", "sh", "--wait").returncode == 0
        assert rota("schedule", "rm", "sh").returncode == 0
    assert rota("schedule", "add", "sh", "--shell", "echo other", "--every", "1h").returncode == 4
    assert rota("task", "rm", "sh").returncode == 0


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["schedule", "add", "x", "--task", "hello"], 2),
        (["schedule", "add", "x", "--every", "5m"], 2),
        (["schedule", "add", "x", "--task", "hello", "--every", "5m", "--cron", "* * * * *"], 2),
        (["schedule", "add", "x", "--task", "hello", "--every", "5m", "--input", "{"], 2),
        (["schedule", "add", "x", "--task", "hello", "--every", "5m", "--input", "@nowhere"], 2),
        (["schedule", "add", "x", "--task", "nobody", "--every", "5m"], 2),
        (["schedule", "frobnicate"], 2),
        (["run", "show", "none"], 3),
        (["run", "logs", "none"], 3),
        (["run", "list", "--since", "yesterday"], 2),
        (["schedule", "resume", "none"], 3),
        (["--key", "rota_wrong", "run", "list"], 5),
        (["--server", "http://127.0.0.1:9", "run", "list"], 1),
        (["--server", "nonsense", "run", "list"], 1),
        (["--data-dir", "elsewhere", "run", "list"], 1),
        (["slots", "audit"], 0),
        (["workers"], 0),
    ],
)
def test_exit_codes_mean_something(rota: Rota, args: list[str], code: int) -> None:
    answer = rota(*args)
    assert answer.returncode == code, answer.stderr
    assert "Traceback" not in answer.stderr
    if code:
        assert answer.stdout == ""
        assert answer.stderr


def test_server_and_key_may_come_from_the_environment(rota: Rota, home: Path) -> None:
    url = json.loads((home / "data" / "server.json").read_text())["url"]
    key = (home / "data" / "admin.key").read_text().strip()
    assert (home / "data" / "admin.key").stat().st_mode & 0o777 == 0o600
    assert rota("run", "list", ROTA_DATA_DIR="elsewhere", ROTA_SERVER=url, ROTA_KEY=key).returncode == 0


def test_a_wrong_setting_stops_a_process_before_it_starts(tmp_path: Path) -> None:
    answer = run(tmp_path, "up", ROTA_LEASE_SECONDS="0")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "lease_seconds" in answer.stderr


def test_a_worker_refuses_a_database_without_tables(tmp_path: Path) -> None:
    answer = run(tmp_path, "worker", "--data-dir", "fresh")
    assert answer.returncode == 1
    assert "rota migrate" in answer.stderr
    assert run(tmp_path, "migrate", "--data-dir", "fresh").returncode == 0


def test_help_loads_nothing_heavy() -> None:
    heavy = "fastapi sqlalchemy pydantic uvicorn httpx rich.table asyncio"
    code = f"import sys, rota.app.cli; print([one for one in '{heavy}'.split() if one in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
