"""The documentation site: the generated reference is complete, and the site builds without a broken link."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rota
from docs_site import permissions, pictures, reference
from docs_site.words import WORDS_OF_PAGES
from rota.frame.http.auth import ADDING_SCOPES
from tests.clients.document import client_document, operations_of

ROOT = Path(__file__).parents[1]
WORDS = {word: page for page, words in WORDS_OF_PAGES.items() for word in words}


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


def test_every_route_is_listed_with_its_role_and_scope() -> None:
    page = permissions.permissions()
    listed = set(re.findall(r"`([A-Z]+ /[^`]*)`", page))
    wanted = {f"{method} {path.removeprefix('/api/v1')}" for method, path, _ in operations_of(client_document())}
    assert wanted - listed == set()
    assert {scope for scope, _ in permissions.MORE_RIGHTS} >= ADDING_SCOPES


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning: a broken link or anchor is one."""
    place = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert built.returncode == 0, built.stderr
    return place


@pytest.mark.long
def test_the_site_has_the_generated_reference(site: Path) -> None:
    assert "catch_up_limit" in (site / "reference" / "schedule-fields.html").read_text()


@pytest.mark.long
def test_the_search_finds_the_words_of_other_systems(site: Path) -> None:
    """Asks the worker of the site's own search box for each word; the right page must come first."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    command = ["node", str(ROOT / "docs_site" / "search.mjs"), str(site), *WORDS]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr
    pages = dict(json.loads(line) for line in answer.stdout.splitlines())
    wrong = {word: pages[word][:3] for word, page in WORDS.items() if pages[word][:1] != [page.replace(".md", ".html")]}
    assert wrong == {}


def test_each_search_word_is_in_the_text_of_its_page() -> None:
    texts = {page: " ".join((ROOT / "docs" / page).read_text().lower().split()) for page in set(WORDS.values())}
    assert len(WORDS) > 50
    assert [word for word, page in WORDS.items() if word.lower() not in texts[page]] == []


def test_the_pictures_are_those_that_the_code_draws() -> None:
    """If this fails, run `make diagrams`."""
    for name, content in pictures.pictures().items():
        assert (pictures.IMAGES / name).read_text() == content, name
