"""The documentation site: the generated reference is complete, and the site builds without a broken link."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rota
from docs_site import reference
from tests.clients.document import client_document

ROOT = Path(__file__).parents[1]


def test_every_field_of_a_schedule_and_of_its_retry_policy_is_described() -> None:
    page = reference.schedule_fields(client_document())
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    assert [row for row in rows if re.search(r"\|\s*\|", row)] == []
    assert "| `graph` | `skip` | `queue_one` |" in rows


def test_every_command_option_error_and_public_name_is_described() -> None:
    commands = reference.commands()
    sections = [section.partition("\n") for section in commands.split("\n## ")[1:]]
    assert len(sections) > 100
    assert [head for head, _, text in sections if not text.strip() or text.strip().startswith("|")] == []
    assert re.findall(r"^\| `[^|]*\|\s*\|$", commands, re.MULTILINE) == []
    assert re.findall(r"^\| `[^|]*\|\s*\|$", reference.error_codes(), re.MULTILINE) == []
    assert [name for name in rota.__all__ if not name.startswith("_") and not getattr(rota, name).__doc__] == []


@pytest.mark.long
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stderr
    fields = (tmp_path / "site" / "reference" / "schedule-fields.html").read_text()
    assert "catch_up_limit" in fields
