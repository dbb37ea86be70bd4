"""The commands of `rota` are imported when they are used."""

import subprocess
import sys
from typing import Any

import pytest
import typer

from rota.app.cli import COMMANDS, app

ONLY_TYPER = "typer", "rota.app.cli", "rota.frame.cli.options"
SLOW = "rota.app.cli.runs", "rota.app.main", "rota.kinds", "asyncio", "httpx", "yaml", "sqlalchemy", "pydantic"


def test_the_list_of_commands_has_the_first_sentence_of_each_help() -> None:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert [(name, command.name, command.hidden) for name, command in commands.items()] == [
        (command.name, command.name, False) for command in COMMANDS
    ]
    shown = {name: command.get_short_help_str(limit=1000) for name, command in commands.items()}
    assert shown == {command.name: command.help for command in COMMANDS}


@pytest.mark.parametrize("words", ["--help", "--version"])
def test_help_imports_no_command(words: str) -> None:
    script = f"import sys; sys.argv = ['rota', '{words}']\nfrom rota.app.cli import main\ntry: main()\n"
    script += f"finally: print(*[name for name in {ONLY_TYPER + SLOW} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout
    assert shown.splitlines()[-1].split() == list(ONLY_TYPER)
    assert words == "--version" or "service-account" in shown


def test_a_command_imports_only_its_own_module() -> None:
    script = "import sys; sys.argv = ['rota', 'run', 'list', '--help']\nfrom rota.app.cli import main\ntry: main()\n"
    script += "finally: print(*[name for name in sys.modules if name.startswith('rota.kinds')])"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout
    assert "--longer-than" in shown
    assert not shown.splitlines()[-1].strip()
