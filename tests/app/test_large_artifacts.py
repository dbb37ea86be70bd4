"""A gigabyte through the object store with flat memory: worker, server and command line are processes of their own."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.app.command_line import environment, run
from tests.object_server import ACCESS_KEY, REGION, SECRET_KEY, ObjectServer, peak_memory

SIZE_MB = 1000
GROWTH_MB = 150  # more than the same processes need for a small artifact: parts that are under way, and their copies
PROGRAM = """
import os
from pathlib import Path
from rota import ArtifactManager, Rota

app = Rota()


@app.task
async def save(megabytes: int, artifacts: ArtifactManager) -> str:
    path, part = Path("payload"), os.urandom(1 << 20)
    with path.open("wb") as file:
        for _ in range(megabytes):
            file.write(part)
    return await artifacts.save_file(path)


@app.task
async def load(artifact_id: str, artifacts: ArtifactManager) -> int:
    return await artifacts.load_file(artifact_id, "loaded")
"""


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def start(place: Path, *args: str, **env: str) -> "subprocess.Popen[bytes]":
    log = (place / f"{args[0]}.log").open("wb")
    command = [sys.executable, "-m", "rota.app.cli", *args, "app.py", "--data-dir", "data"]
    return subprocess.Popen(command, cwd=place, env=environment(**env), stdout=log, stderr=log)


def result(place: Path, task: str, param: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "rota.app.cli", "task", "run", task, "--param", param, "--wait", "--timeout", "500"],
        cwd=place, env=environment(ROTA_DATA_DIR="data"), capture_output=True, text=True, timeout=560, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_gigabyte_passes_worker_server_and_command_line_with_flat_memory(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    with ObjectServer() as objects:
        settings = {
            "ROTA_DATABASE_URL": database_url,
            "ROTA_PORT": "0",
            "ROTA_ARTIFACTS_URL": objects.url,
            "ROTA_ARTIFACTS_ENDPOINT": objects.endpoint,
            "ROTA_MAX_ARTIFACT_MB": str(SIZE_MB),
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
        }
        migrated = run(tmp_path, "migrate", "--data-dir", "data", **settings)
        assert migrated.returncode == 0, migrated.stderr
        worker, server = start(tmp_path, "worker", **settings), start(tmp_path, "server", **settings)
        try:
            deadline = time.monotonic() + 120
            while not (tmp_path / "data" / "server.json").exists():
                assert server.poll() is None, (tmp_path / "server.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            peaks = []
            for megabytes in (1, SIZE_MB):
                since = time.monotonic()
                artifact_id = result(tmp_path, "save", f"megabytes={megabytes}")
                saved = time.monotonic()
                assert result(tmp_path, "load", f"artifact_id={artifact_id}") == str(megabytes << 20)
                loaded = time.monotonic()
                ended = run_download(tmp_path, artifact_id)
                downloaded = time.monotonic()
                digests = {sha256(tmp_path / name) for name in ("payload", "loaded", "downloaded")}
                assert len(digests) == 1
                peaks.append([peak_memory(worker.pid), peak_memory(server.pid), ended])
                seconds = [f"{span:.1f} s" for span in (saved - since, loaded - saved, downloaded - loaded)]
                print(
                    megabytes, "MB: saved, loaded, downloaded in", seconds, "peaks in MB", [p >> 20 for p in peaks[-1]]
                )
            for small, large in zip(*peaks, strict=True):
                assert large - small < GROWTH_MB << 20, peaks
        finally:
            for process in (worker, server):
                process.send_signal(signal.SIGTERM)
            for process in (worker, server):
                process.wait(60)


def run_download(place: Path, artifact_id: str) -> int:
    """Download by the command line; return the peak memory of its process."""
    command = [sys.executable, "-m", "rota.app.cli", "artifact", "get", artifact_id, "-O", "downloaded"]
    process = subprocess.Popen(command, cwd=place, env=environment(ROTA_DATA_DIR="data"))
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return usage.ru_maxrss * 1024
