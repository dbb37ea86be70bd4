"""Python interpreters of this machine, and clean virtual environments of them."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OFFLINE = re.compile(r"NewConnectionError|ConnectTimeoutError|NameResolutionError|ReadTimeoutError|ProxyError")


def interpreter(version: str) -> str | None:
    """Return the path of a Python such as `3.12` that starts: from PATH, or installed by pyenv."""
    roots = (os.environ.get("PYENV_ROOT"), Path.home() / ".pyenv")
    installed = [path for root in roots if root for path in Path(root).glob(f"versions/{version}.*/bin/python")]
    for path in (shutil.which(f"python{version}"), *map(str, installed)):
        code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        if (
            path
            and subprocess.run([path, "-c", code], capture_output=True, text=True, check=False).stdout == f"{version}\n"
        ):
            return path
    return None


def clean_venv(place: Path, python: str, wheel: Path) -> Path:
    """Install a wheel with the versions of constraints.txt into a new environment; return its directory of programs.
    Skips the test where no package index can be reached."""
    subprocess.run([python, "-m", "venv", str(place)], check=True, capture_output=True, timeout=120)
    command = [place / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--constraint", ROOT / "constraints.txt", wheel]
    answer = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=280,
        check=False,
    )
    if answer.returncode and OFFLINE.search(answer.stderr):
        pytest.skip("no package index can be reached")
    assert answer.returncode == 0, answer.stderr
    return place / "bin"


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without what leads Python or Rota to this checkout or to a developer's settings."""
    own = ("PYTHON", "ROTA_", "VIRTUAL_ENV", "PYTEST")
    return {**{name: value for name, value in os.environ.items() if not name.startswith(own)}, **more}
