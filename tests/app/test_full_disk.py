"""A disk that is full when a process starts, and one that fills while it runs: a real small filesystem."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from tests.app.command_line import environment, run
from tests.databases import copy_sqlite

SMALL_MIB = 12


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The directory of an empty filesystem of SMALL_MIB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small filesystem needs root")
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_MIB}m", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small filesystem cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, free_bytes: int = 0) -> Path:
    """Use up the space of a disk but for `free_bytes`; returns the file that does."""
    ballast = disk / "ballast"
    size = shutil.disk_usage(disk).free - free_bytes
    try:
        ballast.write_bytes(bytes(max(0, size)))
    except OSError as error:
        if error.errno != errno.ENOSPC:  # else the server was faster: the disk is full
            raise
    return ballast


@pytest.mark.parametrize(("command", "free_kib"), [("up", 0), ("up", 16), ("up", 300), ("server", 0), ("worker", 0)])
def test_a_start_on_a_full_disk_is_one_sentence(
    disk: Path, tmp_path: Path, sqlite_template: Path, command: str, free_kib: int
) -> None:
    """`up` makes its database there; `server` and `worker` find one."""
    data = disk / "data"
    if command != "up":
        data.mkdir(0o700)
        copy_sqlite(sqlite_template, f"sqlite:///{data / 'rota.db'}")
        (data / "rota.db").chmod(0o600)
    fill(disk, free_kib << 10)
    answer = run(tmp_path, command, "--data-dir", str(data), ROTA_PORT="0")
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    (sentence,) = answer.stderr.splitlines()
    assert sentence.startswith(f"error: the database {data / 'rota.db'} cannot be used: ")
    assert sentence.endswith(("disk is full; free space on its disk", "check that its disk has free space and works"))


def test_a_process_survives_a_disk_that_fills_and_is_ready_when_there_is_space_again(
    disk: Path, tmp_path: Path
) -> None:
    data = disk / "data"
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-m", "rota.app.cli", "up", "--data-dir", str(data), "--port", "0"]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=log, stderr=log)
    try:
        until(lambda: (data / "server.json").exists(), process, "the server is up")
        url = orjson.loads((data / "server.json").read_bytes())["url"]

        def problems() -> list[str]:
            return list(httpx.get(f"{url}/health/ready", timeout=30).json()["problems"])

        def rota(*args: str) -> subprocess.CompletedProcess[str]:
            return run(tmp_path, *args, ROTA_DATA_DIR=str(data))

        until(lambda: problems() == [], process, "it is ready")
        added = rota("schedule", "add", "tick", "--shell", "true", "--every", "1s")
        assert added.returncode == 0, added.stderr
        ballast = fill(disk)
        until(lambda: "database_not_writable" in problems(), process, "it is not ready")
        ballast.unlink()
        until(lambda: problems() == [], process, "it is ready again")
        ran = rota("schedule", "run", "tick", "--wait")
        assert ran.returncode == 0, ran.stderr
        assert rota("slots", "audit").returncode == 0
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(30)
    logged = (tmp_path / "log").read_text()
    assert code == 0, logged
    assert "Traceback" not in logged
    assert "database or disk is full; free space on its disk" in logged


def until(happened: Callable[[], bool], process: "subprocess.Popen[bytes]", name: str) -> None:
    """Wait for it while the process lives."""
    deadline = time.monotonic() + 60
    while not happened():
        assert process.poll() is None, "the process ended"
        assert time.monotonic() < deadline, f"still waiting: {name}"
        time.sleep(0.2)
