"""`rota.django` in a real project: a worker process, Django's connection, and its Tasks framework.

With Django 5.2 and django-tasks in this environment, and with Django 6, which needs Python 3.12, in one of its own.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.conftest import sdist, wheel
from tests.deploy.pythons import ROOT, clean_environment, interpreter
from tests.postgres import create_database, drop_database

__all__ = ["sdist", "wheel"]
PROJECT = Path(__file__).parent / "project"


@pytest.fixture(params=["sqlite", "postgresql"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a project with an empty database of each kind."""
    shop = {"SHOP_DATA_DIR": str(tmp_path / "rota"), "PATH": os.environ["PATH"]}
    if request.param == "sqlite":
        yield {**shop, "SHOP_DATABASE": f"sqlite:///{tmp_path / 'shop.db'}"}
        return
    server = request.getfixturevalue("postgres_url")
    url = create_database(server)
    yield {**shop, "SHOP_DATABASE": url}
    drop_database(server, url)


@pytest.mark.long
def test_a_project_with_django_5_enqueues_and_runs_its_tasks(environment: dict[str, str], tmp_path: Path) -> None:
    check_project(sys.executable, environment, tmp_path)


@pytest.fixture(scope="session")
def django_6(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with Rota and Django 6. Skips the test where there is no such Python, or no package index."""
    python = next(filter(None, map(interpreter, ("3.13", "3.12", "3.14"))), None)
    if python is None:
        pytest.skip("Django 6 needs Python 3.12 or newer")
    place = tmp_path_factory.mktemp("django") / "venv"
    subprocess.run([python, "-m", "venv", str(place)], check=True, capture_output=True, timeout=120)
    own = str(place / "bin" / "python")
    words = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    words += ["--constraint", str(ROOT / "constraints.txt"), f"{wheel}[django]", "psycopg[binary]"]
    done = subprocess.run(words, capture_output=True, text=True, env=clean_environment(), timeout=280, check=False)
    if done.returncode and "NewConnectionError" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    return own


@pytest.mark.long
def test_a_project_with_django_6_enqueues_and_runs_its_tasks(
    django_6: str, environment: dict[str, str], tmp_path: Path
) -> None:
    assert "with Django 6." in check_project(django_6, environment, tmp_path)


def check_project(python: str, environment: dict[str, str], tmp_path: Path) -> str:
    """Migrate, start a worker, and run the story beside it; return its output."""
    migrated = run(python, environment, "manage.py", "migrate")
    assert "shop.0001_initial" in migrated
    assert run(python, environment, "manage.py", "rota", "--version").startswith("rota ")
    with worker(python, environment, tmp_path / "worker.log"):
        return run(python, environment, "story.py")


def run(python: str, environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [python, *words], cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def worker(python: str, environment: dict[str, str], log: Path) -> Iterator[None]:
    """`manage.py rota up` on a free port, ready; its log is shown if the test fails."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [python, "manage.py", "rota", "up", "--port", "0"], cwd=PROJECT, env=environment, stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + 60
        while "Rota is up at" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(30)
        print(log.read_text())
