"""Executes the commands of docs/planning.md against a real server."""

import re
import shlex
from pathlib import Path

import pytest

from tests.app.command_line import caller, running_server

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"


def test_the_commands_of_the_page_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("rota ")]
    assert len(commands) > 5
    with running_server(tmp_path_factory.mktemp("planning")) as home:
        rota = caller(home)
        rota("schedule", "add", "nightly", "--task", "hello", "--cron", "0 2 * * *", "--tag", "finance")
        for command in commands:
            done = rota(*shlex.split(command, comments=True)[1:])
            assert done.returncode == 0, (command, done.stderr)
            if command == "rota freeze show year-end":
                assert "nightly" in done.stdout
        assert "warning: " not in rota("schedule", "run", "nightly").stderr
        rota("freeze", "add", "now", "--to", "1h", "--reason", "release")
        assert "warning: freeze now: release is in effect until" in rota("schedule", "run", "nightly").stderr
        missing = rota("freeze", "show", "nope")
        assert (missing.returncode, missing.stderr) == (
            3, "error: freeze window 'nope' not found; see `rota freeze list`\n",
        )  # fmt: skip
        wrong = rota("freeze", "add", "late", "--from", "2020-01-01", "--to", "2020-01-02")
        assert wrong.returncode == 2
        assert "starts_at: " in wrong.stderr
        assert "ends_at: " in wrong.stderr
        assert "late" not in rota("freeze", "list").stdout
