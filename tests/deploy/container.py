"""A container without a container engine: bubblewrap with a read-only root, a user that is not root, no capabilities.

Rota comes from the wheel, everything else from this machine, mounted read-only. Commands and variables are those of
`deploy/Dockerfile`. The network is the machine's.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.deploy.pythons import ROOT

DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
USER_ID = "10001"
SYSTEM = ("usr", "bin", "lib", "lib64", "etc/ld.so.cache", "etc/alternatives", "etc/localtime")
COMMAND = """#!{python}
import sys
from rota.app.cli import main
sys.exit(main())
"""


class Container:
    """A root directory in which commands can be run. `data` is mounted at /data; nothing else can be written to."""

    def __init__(self, place: Path, wheel: Path) -> None:
        if shutil.which("bwrap") is None:
            pytest.skip("bubblewrap is not installed")
        self.data, self.root = place / "data", place / "root"
        self.data.mkdir(mode=0o700)
        self.mounts: dict[str, Path] = {}
        for name in SYSTEM:
            self.mount(Path("/", name), f"/{name}")
        for prefix in {sys.prefix, sys.base_prefix}:
            if not Path(prefix).is_relative_to("/usr"):
                self.mount(Path(prefix), prefix)
        for name in ("data", "dev", "proc", "tmp", "srv", "opt/rota/bin", "opt/rota/packages"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.root / "opt/rota/packages")
        program = self.root / "opt/rota/bin/rota"
        program.write_text(COMMAND.format(python=sys.executable))
        program.chmod(0o755)
        (self.root / "opt/rota/bin/python").symlink_to(sys.executable)
        self.require_namespaces()

    def mount(self, source: Path, target: str) -> None:
        """Mount a file or directory of this machine, read-only, if it exists."""
        point = self.root / target.lstrip("/")
        if not source.exists():
            return
        if source.is_dir():
            point.mkdir(parents=True, exist_ok=True)
        else:
            point.parent.mkdir(parents=True, exist_ok=True)
            point.touch()
        self.mounts[target] = source

    def command(self, *words: str, **env: str) -> list[str]:
        """The command line that runs `words` inside."""
        options = ["--die-with-parent", "--unshare-user", "--unshare-pid", "--as-pid-1", "--unshare-ipc"]
        options += ["--uid", USER_ID, "--gid", USER_ID, "--cap-drop", "ALL", "--clearenv", "--new-session"]
        options += ["--ro-bind", str(self.root), "/"]
        for target, source in self.mounts.items():
            options += ["--ro-bind", str(source), target]
        options += ["--proc", "/proc", "--dev", "/dev", "--bind", str(self.data), "/data", "--chdir", "/srv"]
        for name, value in {**self.environment(), **env}.items():
            options += ["--setenv", name, value]
        return ["bwrap", *options, *words]

    @staticmethod
    def environment() -> dict[str, str]:
        """The variables of the Dockerfile."""
        block = re.findall(r"^ENV ((?:.*\\\n)*.*)$", DOCKERFILE, re.MULTILINE)
        pairs = [pair.partition("=") for text in block for pair in text.replace("\\\n", " ").split()]
        variables = {name: value.replace("$PATH", "/usr/bin:/bin") for name, _, value in pairs}
        return {**variables, "PYTHONPATH": "/opt/rota/packages"}

    @staticmethod
    def entrypoint() -> list[str]:
        """ENTRYPOINT of the Dockerfile, without tini where it is not installed."""
        (text,) = re.findall(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.MULTILINE)
        words: list[str] = json.loads(text)
        return words if shutil.which("tini") else words[words.index("--") + 1 :]

    @staticmethod
    def healthcheck() -> list[str]:
        """The command of HEALTHCHECK of the Dockerfile."""
        (text,) = re.findall(r"^HEALTHCHECK .*\\\n\s*CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
        words: list[str] = json.loads(text)
        return words

    def run(self, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
        command = self.command(*words, **env)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def start(self, *words: str, log: Path, **env: str) -> "subprocess.Popen[bytes]":
        """Start the entry point with a command of Rota."""
        with log.open("ab") as out:
            return subprocess.Popen(self.command(*self.entrypoint(), *words, **env), stdout=out, stderr=out)

    @staticmethod
    def stop(process: "subprocess.Popen[bytes]") -> int:
        """Send SIGTERM to the entry point, as an engine does; return the exit code."""
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        return process.wait(60)

    def require_namespaces(self) -> None:
        answer = self.run("true")
        if answer.returncode:
            pytest.skip(f"bubblewrap cannot create namespaces here: {answer.stderr.strip()}")
