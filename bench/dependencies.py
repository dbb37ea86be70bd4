"""Installs what the peers need into `.bench/`, when they are first measured: Python and npm packages, node, Redis."""

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".bench"
PYTHON = CACHE / "venv" / "bin" / "python"
MODULES = CACHE / "npm"
NODE_AT_LEAST = 22  # required by graphile-worker and pg-boss
REDIS_PACKAGES = ("redis-tools", "liblzf1", "libjemalloc2")  # Debian's server is in the package of its tools


class Unavailable(Exception):
    """Something cannot be installed on this machine; the message has the reason."""


@cache
def python_with(packages: tuple[str, ...]) -> Path:
    """Install these packages into the benchmark's virtual environment; return its Python."""
    if not PYTHON.exists():
        run(sys.executable, "-m", "venv", CACHE / "venv")
    stamp = CACHE / "installed" / ("+".join(sorted(packages)).replace("/", "_") or "nothing")
    if packages and not stamp.exists():
        run(PYTHON, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *packages)
        stamp.parent.mkdir(exist_ok=True)
        stamp.touch()
    return PYTHON


@cache
def node_with(packages: tuple[str, ...]) -> Path:
    """Install these packages into `.bench/npm`; return a recent node."""
    node = recent_node()
    wanted = [package for package in packages if not (MODULES / "node_modules" / name_of(package)).exists()]
    if wanted:
        npm_install(wanted, node)
    return node


@cache
def recent_node() -> Path:
    installed = shutil.which("node")
    if (
        installed
        and int(subprocess.check_output([installed, "-p", "process.versions.node.split('.')[0]"])) >= NODE_AT_LEAST
    ):
        return Path(installed)
    machine = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine(), platform.machine())
    package = f"node-{sys.platform}-{machine}"
    node = MODULES / "node_modules" / package / "bin" / "node"
    if not node.exists():
        npm_install([f"{package}@{NODE_AT_LEAST}"], None)
    return node


def npm_install(packages: Sequence[str], node: Path | None) -> None:
    """Install with the node that will run the packages: npm chooses versions that fit the node it runs on."""
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not installed")
    MODULES.mkdir(parents=True, exist_ok=True)
    (MODULES / "package.json").touch()
    if not (MODULES / "package.json").read_text():
        (MODULES / "package.json").write_text("{}")
    words = [str(Path(npm).resolve()), "install", "--no-audit", "--no-fund", "--prefix", str(MODULES), *packages]
    run(*([node] if node else []), *words)


@cache
def redis_server() -> tuple[Path, dict[str, str]]:
    """Return the server program and its environment: the installed one, else from Debian's package, unpacked."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return Path(path), {}
    home = CACHE / "redis"
    program = home / "redis-server"
    if not program.exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            raise Unavailable("redis-server is not installed, and this is not Debian")
        home.mkdir(parents=True, exist_ok=True)
        run("apt-get", "download", *REDIS_PACKAGES, at=home)
        for package in home.glob("*.deb"):
            run("dpkg", "-x", package, home)
            package.unlink()
        program.symlink_to("usr/bin/redis-check-rdb")  # one program, whose name selects the function
    libraries = sorted({str(library.parent) for library in home.glob("usr/lib/**/*.so.*")})
    return program, {"LD_LIBRARY_PATH": ":".join(libraries)}


def versions(packages: Sequence[str], modules: Sequence[str]) -> dict[str, str]:
    """Return the installed versions of these packages."""
    versions_by_name: dict[str, str] = {}
    if packages and PYTHON.exists():
        names = [name_of(package) for package in packages]
        ask = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
        installed = subprocess.check_output([PYTHON, "-c", ask, *names], text=True).split()
        versions_by_name |= dict(zip(names, installed, strict=True))
    for module in modules:
        path = MODULES / "node_modules" / name_of(module) / "package.json"
        versions_by_name[name_of(module)] = json.loads(path.read_text())["version"]
    return versions_by_name


def name_of(requirement: str) -> str:
    """Return the name in a requirement: `huey` of `huey[redis]<4`, `pg-boss` of `pg-boss@12`."""
    for mark in "[<>=!~@ ":
        requirement = requirement.split(mark)[0]
    return requirement


def run(*words: object, at: Path | None = None) -> None:
    done = subprocess.run([str(word) for word in words], cwd=at, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if "rror" in line] or ["no reason given"]
        raise Unavailable(f"{Path(str(words[0])).name} failed: {lines[0].strip()[:200]}")
