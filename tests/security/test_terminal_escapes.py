"""What others named, logged or returned does not steer the terminal of who reads it with the command line."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rota.frame.cli.connection import Connection, Output, print_stderr
from rota.frame.cli.output import print_details, print_table
from rota.frame.cli.run_results import print_result
from rota.frame.cli.terminal import json_text, output, visible
from rota.kinds.tasks.cli import print_tree

TITLE, CLEAR, C1, TURNED = "\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x9b2J", "\u202etxt.exe"
HOSTILE = f"a{TITLE}b{CLEAR}c{C1}d{TURNED}e\x7f\r\x08"
FORBIDDEN = ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\x07", "\x7f", "\r", "\x08")


def test_text_of_others_is_shown_with_its_control_characters_as_escapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    thing: dict[str, Any] = {"name": HOSTILE, "labels": {HOSTILE: HOSTILE}}
    artifact = {"label": HOSTILE, "id": "I", "content_type": HOSTILE, "size": 1, "children": []}
    print_stderr(f"error: {HOSTILE}")
    print_table(("name",), [[HOSTILE]])
    for form in Output:
        print_details(Connection(None, None, tmp_path, form), thing, ("name", "labels"))
        for query in ("name", "[name, labels]", "[labels]"):
            print_details(Connection(None, None, tmp_path, form, query=query), thing, ("name", "labels"))
    print_tree(artifact, "")
    for outcome in (HOSTILE, {"x": HOSTILE}, {"exit_code": 0, "stdout": HOSTILE, "stderr": HOSTILE}):
        print_result(outcome)
    written = capsys.readouterr()
    for text in (written.out, written.err):
        assert [character for character in FORBIDDEN if character in text] == []
        assert "\\x1b]0;owned\\x07" in text or "\\u001b]0;owned\\u0007" in text


def test_json_stays_what_it_was_and_colours_stay_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(json_text({"a": HOSTILE}, indent=2)) == {"a": HOSTILE}
    assert visible("tab\tand\nline é") == "tab\tand\nline é"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert output(f"\x1b[31mred\x1b[0m{CLEAR}") == "\x1b[31mred\x1b[0m\\x1b[2J\\x1b[H"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert output(HOSTILE) == HOSTILE  # a file or a pipe gets what the run printed
