"""Packages of this checkout: built once per test process, without a network."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(source: Path, target: str, to: Path) -> Path:
    """Build a `wheel` or `sdist` of a source tree; return its path."""
    pytest.importorskip("hatchling", reason="hatchling is not installed: install the extra dev")
    to.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(to)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (package,) = to.iterdir()
    return package


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("packages") / "sdist")


@pytest.fixture(scope="session")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist as an installer builds it."""
    place = tmp_path_factory.mktemp("packages")
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    (source,) = place.iterdir()
    return build(source, "wheel", place / "wheel")
