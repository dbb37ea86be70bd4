"""The project itself: what a fresh clone must keep."""

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import pytest

from rota.version import DISTRIBUTION

ROOT = Path(__file__).parents[1]
RECORDS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
MACHINE_PATH = re.compile(r"(?<![\w.~}-])/(?:work|root)(?=[/\s\"'`),;:]|$)", re.MULTILINE)
REGISTRY = re.compile(
    r"\b(?:pypi|test\.pypi|files\.pythonhosted|registry|devpi|artifactory|nexus)(?:\.[a-z0-9-]+)*\.[a-z]{2,}\b(?=[:/])"
    r"|--(?:extra-)?index-url|--find-links"
)
OTHER_DISTRIBUTION = re.compile(
    r"\bpip install(?: -\S+)* '?rota(?![\w-])|(?<![\w-])rota\[(?:dev|duckdb|langgraph|otel|sentry)\b"
)
INVARIANT = re.compile(r"\b(?!ROTA_|PR_|OTEL_|CONN_)[A-Z]+(?:_[A-Z]+){2,}\b")


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The project's files, committed or about to be."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git working tree")
    paths = [ROOT / name for name in listed.split("\0") if name]
    this = Path(__file__).resolve()  # it spells the patterns
    return {
        str(path.relative_to(ROOT)): path.read_text(errors="ignore")
        for path in paths
        if path.is_file() and path.resolve() != this
    }


def test_the_ci_script_runs_all_tests() -> None:
    script = ROOT / ".ci" / "run"
    shebang, *lines = script.read_text().splitlines()
    assert shebang.startswith("#!")
    commands = [line for line in lines if line.strip() and not line.startswith("#")]
    assert commands[0] == "set -e"
    tests = [number for number, line in enumerate(commands) if line.startswith("make test ")]
    long = [number for number, line in enumerate(commands) if line.startswith("timeout ") and '-m "$LONG"' in line]
    assert len(tests) == len(long) == 1
    assert tests < long  # while time is left
    assert os.access(script, os.X_OK)


def test_no_file_names_a_path_of_one_machine(texts: dict[str, str]) -> None:
    assert [name for name, text in texts.items() if MACHINE_PATH.search(text)] == []


def test_no_file_names_a_package_registry(texts: dict[str, str]) -> None:
    assert [name for name, text in texts.items() if REGISTRY.search(text)] == []


def test_every_page_and_message_names_the_distribution_as_it_is(texts: dict[str, str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    record = "docs/decisions/0033-distribution-name.md"  # says that the short name is wrong
    assert [name for name, text in texts.items() if name != record and OTHER_DISTRIBUTION.search(text)] == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_decision_record_has_its_three_parts(record: Path) -> None:
    assert re.fullmatch(r"\d{4}-[a-z0-9-]+", record.stem)
    headings = re.findall(r"^#+ .*", record.read_text(), re.MULTILINE)
    assert headings[0].startswith(f"# {record.name[:4]}. ")
    assert headings[1:] == ["## Context", "## Decision", "## Consequences"]


def test_every_decision_record_is_in_its_index() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text()
    assert [record.name for record in RECORDS if f"({record.name})" not in index] == []


def test_decision_records_have_numbers_of_their_own() -> None:
    numbers = [record.name[:4] for record in RECORDS]
    assert len(numbers) == len(set(numbers))


def test_the_readme_shows_the_quickstart_as_it_is() -> None:
    code = (ROOT / "examples" / "quickstart.py").read_text()
    assert code[code.index("from rota") :] in (ROOT / "README.md").read_text()


def test_every_public_name_can_be_imported() -> None:
    code = "import rota; [getattr(rota, name) for name in rota.__all__]"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


def test_links_between_pages_lead_to_files(texts: dict[str, str]) -> None:
    pages = {name: text for name, text in texts.items() if name.endswith(".md")}
    links = [(name, target) for name, text in pages.items() for target in LINK.findall(text)]
    assert len(links) > 50
    assert [(name, target) for name, target in links if not (ROOT / name).parent.joinpath(target).exists()] == []


def test_every_page_is_in_the_index(texts: dict[str, str]) -> None:
    index = texts["docs/index.md"]
    pages = [name for name in texts if re.fullmatch(r"docs/[\w-]+\.md", name) and name != "docs/index.md"]
    assert [name for name in pages if f"({Path(name).name})" not in index] == []


def test_the_list_of_invariants_is_that_of_the_source() -> None:
    page = (ROOT / "docs" / "design.md").read_text()
    table = page[page.index("## Invariants") : page.index("## Considered")]
    listed = {}
    for name, code, test in re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \| `([^|]*)` \|$", table, re.MULTILINE):
        listed[name] = set(re.findall(r"`([^`]*)`", code))
        assert name in (ROOT / test).read_text(), f"{test} does not name {name}"
    assert listed == named_invariants()


def named_invariants() -> dict[str, set[str]]:
    """Return the invariants that comments and docstrings name, with the modules: names that no code defines."""
    defined: set[str] = set()
    mentioned: dict[str, set[str]] = {}
    source = ROOT / "src" / "rota"
    for path in source.rglob("*.py"):
        text = path.read_text()
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        defined |= {token.string for token in tokens if token.type == tokenize.NAME}
        prose = [token.string for token in tokens if token.type == tokenize.COMMENT]
        prose += [
            ast.get_docstring(node) or ""
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for name in INVARIANT.findall("\n".join(prose)):
            mentioned.setdefault(name, set()).add(path.relative_to(source).as_posix())
    return {name: paths for name, paths in mentioned.items() if name not in defined}
