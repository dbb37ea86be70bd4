"""The command line against a real server: `rota up` in its own process."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from rota.app.cli import app

APP = """
from rota import ArtifactManager, Rota, RunContext
from rota.graphs import TextDelta, UsageReport

app = Rota()


@app.task
def hello(name: str = "you") -> str:
    print(f"hello {name}")
    return name


@app.task
def fails() -> None:
    raise ValueError("it does")


@app.task
async def sleeps(ctx: RunContext) -> str:
    await ctx.sleep("1s")
    return "woke"


@app.task
async def adds(a: int, artifacts: ArtifactManager, b: int = 1) -> dict:
    page = await artifacts.save("a page", label="page")
    await artifacts.save(bytes(range(256)), parent=page, label="picture", content_type="image/png")
    return {"sum": a + b}


async def echo(request, caller):
    "Say it again."
    yield TextDelta(str(request.input["say"]))
    yield UsageReport("one", "tiny", 1, 1, "0.001")


app.graph("echo", echo, provider="python")
"""

Rota = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def running_server(place: Path, /, *pass_fds: int, **env: str) -> Iterator[Path]:
    """A data directory with a server running on it."""
    (place / "app.py").write_text(APP)
    port = env.get("ROTA_PORT", "0")
    command = [sys.executable, "-m", "rota.app.cli", "up", "app.py", "--data-dir", "data", "--port", port]
    log = (place / "up.log").open("wb")
    process = subprocess.Popen(command, cwd=place, env=environment(**env), stdout=log, stderr=log, pass_fds=pass_fds)
    try:
        end = time.monotonic() + 120
        while not (place / "data" / "server.json").exists() or run(place, "workers").returncode:
            assert process.poll() is None, (place / "up.log").read_text()
            assert time.monotonic() < end, (place / "up.log").read_text()
            time.sleep(0.1)
        yield place
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (place / "up.log").read_text()
        assert not (place / "data" / "server.json").exists()
        log.close()


def run(place: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rota.app.cli", *args]
    return subprocess.run(
        command, cwd=place, env=environment(**env), capture_output=True, text=True, timeout=60, check=False
    )


def followed(place: Path, *args: str) -> "subprocess.Popen[str]":
    """Start a command that runs until SIGINT, even if the tests themselves ignore it."""
    return subprocess.Popen(
        [sys.executable, "-m", "rota.app.cli", *args],
        cwd=place,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def environment(**more: str) -> dict[str, str]:
    """Environment without the developer's settings, with the same import path."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        "ROTA_DATA_DIR": "data",
        "ROTA_DRAIN_SECONDS": "0",
        **more,
    }


def caller(home: Path) -> Rota:
    """Run the command line in this process, which is faster."""

    def call(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
        result = CliRunner().invoke(app, args, env={"ROTA_DATA_DIR": str(home / "data"), **env})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return subprocess.CompletedProcess(args, result.exit_code, result.stdout, result.stderr)

    return call


def read(answer: subprocess.CompletedProcess[str]) -> Any:
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def on_terminal(place: Path, *args: str, typed: str = "", until: str | None = None, times: int = 1, **more: str) -> str:
    """Return the output of a command in a terminal of 80 columns; press Ctrl-C after `until` was seen that often."""
    outside, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "rota.app.cli", *args]
    env = environment(TERM="xterm-256color", **more)
    process = subprocess.Popen(
        command,
        cwd=place,
        env=env,
        stdin=inside,
        stdout=inside,
        stderr=inside,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(inside)
    os.write(outside, typed.encode())
    seen = bytearray()
    while True:
        try:
            part = os.read(outside, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
        if until is not None and seen.count(until.encode()) >= times:
            process.send_signal(signal.SIGINT)
    os.close(outside)
    assert process.wait(30) == 0, seen.decode()
    return seen.decode()
