"""The operations handbook: pages that messages name exist, alerts lead to them, and documented commands exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from rota.app import doctor, health
from rota.app.cli import app
from rota.core import incidents
from rota.core.alarms import RULES
from rota.core.explain import explain_run
from tests.log_events import events

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {f"incidents/{path.stem}" for path in (DOCS / "incidents").glob("*.md") if path.stem != "README"}
NAMED = {value for value in vars(incidents).values() if isinstance(value, str) and value.startswith("incidents/")}
ALERTS = yaml.safe_load((ROOT / "deploy" / "monitoring" / "alerts.yaml").read_text())
RULES_OF_ALERTS = [rule for group in ALERTS["groups"] for rule in group["rules"]]
NO_INCIDENT = {"grant_expiring", "budget_low"}  # rules of alarms whose message says what to do
HARMLESS_CHECKS = {"sqlite", "drive", "modes", "tls", "artifacts"}  # findings that name the remedy themselves
PROGRAMS_COMMANDS = {"docs/cli.md"}  # explains the form of commands


def test_every_incident_page_is_named_by_a_message_or_an_alert() -> None:
    runbooks = {rule["annotations"]["runbook"] for rule in RULES_OF_ALERTS}
    assert NAMED | runbooks == PAGES


def test_every_problem_of_the_health_check_has_a_page() -> None:
    codes = set(re.findall(r"^(\w+)(?:, (\w+))?  +", health.__doc__ or "", re.MULTILINE))
    flat = {code for pair in codes for code in pair if code}
    assert flat - {"starting", "stopping"} == set(incidents.PAGES_OF_PROBLEMS)
    index = (DOCS / "incidents" / "README.md").read_text()
    for code, page in incidents.PAGES_OF_PROBLEMS.items():
        assert re.search(rf"^\|[^|]*`{code}`[^|]*\| \[[^\]]*\]\({Path(page).name}\.md\)", index, re.MULTILINE), code


def test_every_check_of_the_doctor_has_a_page_or_names_its_remedy() -> None:
    source = Path(doctor.__file__).read_text()
    checks = set(re.findall(r'Finding\(\s*"([^"]+)"', source)) | set(
        re.findall(r'^        \(\s*"([^"]+)",', source, re.M)
    )
    assert checks == set(incidents.PAGES_OF_CHECKS) | HARMLESS_CHECKS


def test_every_rule_of_alarms_has_a_page() -> None:
    assert set(incidents.PAGES_OF_ALARM_RULES) == set(RULES) - NO_INCIDENT


def test_a_parked_job_is_explained_with_its_page() -> None:
    job = dict.fromkeys(("cancel_requested_at", "schedule_id", "place_wanted", "reserved_at"))
    run = {"trigger": "manual", "kind": "task", "target": "t", "target_name": "t", "queued_at": None, "slot": None}
    for reason, page in {"reconciliation": incidents.OUTCOME_UNKNOWN, "approval": incidents.NEEDS_ATTENTION}.items():
        sentences = explain_run([], {**run, **job, "state": "parked", "parked_reason": reason}, None, [])
        assert sentences[-1].endswith(f"; see {page}.")


def test_the_monitoring_page_lists_each_alert_with_its_severity_and_page() -> None:
    page = (DOCS / "monitoring.md").read_text()
    rows = re.findall(r"^\| `(Rota\w+)` \| (\w+) \| \[[^\]]*\]\((incidents/[\w-]+)\.md\) \|$", page, re.MULTILINE)
    assert sorted(rows) == sorted(
        (rule["alert"], rule["labels"]["severity"], rule["annotations"]["runbook"]) for rule in RULES_OF_ALERTS
    )


def documented_commands() -> Iterator[tuple[str, str]]:
    """Yield the page and the text of each `rota` command in a block or in running text."""
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        name = str(path.relative_to(ROOT))
        if "decisions" in name or name in PROGRAMS_COMMANDS:
            continue
        text = path.read_text()
        blocks = re.findall(r"^```sh[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        lines = [line.split(" #")[0] for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        parts = [part.strip() for line in lines for part in re.split(r"&&|\||;|\$\(", line)]
        inline = [code.replace("\n", " ").split("\\|")[0] for code in re.findall(r"`(rota [^`]+)`", text)]
        for command in sorted({*(part.rstrip(")") for part in parts if part.startswith("rota ")), *inline}):
            yield name, command


def options_of(command: Any) -> set[str]:
    options = [param for param in command.params if param.param_type_name == "option"]
    return {name for option in options for name in (*option.opts, *option.secondary_opts)}


def unknown_word(root: Any, command_line: str) -> str | None:
    """Return the first subcommand or option of a command line that does not exist."""
    command, known, before = root, options_of(root) | {"--help", "-o", "--output", "--query"}, ""
    for word in re.sub(r"\"[^\"]*\"|'[^']*'", "TEXT", command_line).split()[1:]:
        if re.fullmatch(r"--?[A-Za-z][\w-]*(=.*)?", word):
            if word.split("=")[0] not in known:
                return word
        elif hasattr(command, "commands") and not before.startswith("-"):
            if word == "…":
                return None
            if not set(word.split("|")) <= set(command.commands):
                return word
            command = command.commands[word.split("|")[0]]
            known |= options_of(command)
        before = word
    return None


def test_every_documented_command_and_option_exists() -> None:
    root, commands = typer.main.get_command(app), list(documented_commands())
    assert len(commands) > 300
    wrong = [(page, line, word) for page, line in commands if (word := unknown_word(root, line)) is not None]
    assert wrong == []


@pytest.mark.parametrize("page", sorted(PAGES))
def test_an_incident_page_says_what_it_means_and_what_to_do(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text()
    assert "**You see**" in text
    assert re.findall(r"^## .*", text, re.MULTILINE)[-1] == "## Afterwards"
    assert "## Do now" in text


def test_the_page_of_log_events_is_that_of_the_source() -> None:
    page = (DOCS / "log-events.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| (`+)(.+?)\2 \| ([^|]*) \| ([^|]+) \|$", page, re.MULTILINE)
    listed = {event: (levels.split(", "), re.findall(r"`(\w+)`", fields)) for levels, _, event, fields, _ in rows}
    assert listed == events()
