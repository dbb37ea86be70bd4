"""The entry point of the image, as a user that is not root, on a root that cannot be written to."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

from tests.deploy.container import USER_ID, Container
from tests.postgres import create_database, drop_database

PROGRAM = """
import os

from rota import Rota, RunContext

app = Rota()


@app.task
async def function(ctx: RunContext) -> str:
    return str(ctx.slot)


@app.task(isolation="process")
def process() -> int:
    return os.getuid()


app.shell("command", "id -u; touch /srv/x; touch /opt/rota/x; touch /tmp/x; touch /usr/x; true")

for name in ("function", "process", "command"):
    app.schedule(name, name, every="2s")
"""
DRAIN = {"ROTA_DRAIN_SECONDS": "1", "ROTA_HOST": "127.0.0.1", "ROTA_PORT": "0"}


@pytest.fixture
def container(tmp_path: Path, wheel: Path) -> Container:
    container = Container(tmp_path, wheel)
    (container.root / "srv" / "app.py").write_text(PROGRAM)
    return container


def wait_until(condition: Callable[[], bool], process: "Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.2)


def all_succeeded(container: Container) -> bool:
    answer = container.run("rota", "-o", "json", "run", "list", "--status", "success")
    if answer.returncode:
        return False
    return {run["target"] for run in json.loads(answer.stdout)["items"]} == {"function", "process", "command"}


def healthy(container: Container) -> int:
    """Run the health check of the image; return its exit code."""
    url = json.loads((container.data / "server.json").read_text())["url"]
    return container.run(*container.healthcheck(), ROTA_PORT=url.rpartition(":")[2]).returncode


def check_rights(container: Container) -> None:
    log = container.run("rota", "logs", "command").stdout
    assert log.splitlines()[0] == USER_ID
    assert log.count("Read-only file system") == 4


def test_up_needs_only_the_data_directory(container: Container, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = container.start("up", "/srv/app.py", log=log, **DRAIN)
    try:
        wait_until((container.data / "server.json").exists, process, log)
        assert healthy(container) == 0
        wait_until(lambda: all_succeeded(container), process, log)
        check_rights(container)
        audit = container.run("rota", "slots", "audit")
        assert audit.returncode == 0, audit.stdout
        assert container.stop(process) == 0, log.read_text()
    finally:
        process.kill()
        process.wait(30)
    assert container.run(*container.healthcheck(), ROTA_PORT="1").returncode == 1


def test_server_and_worker_need_only_their_data_directory(
    container: Container, tmp_path: Path, postgres_url: str
) -> None:
    url = create_database(postgres_url)
    secret, log = tmp_path / "secret", tmp_path / "log"
    secret.write_text(url)
    secret.chmod(0o444)
    container.mount(secret, "/run/secrets/database_url")
    env = {**DRAIN, "ROTA_DATABASE_URL_FILE": "/run/secrets/database_url"}
    processes: list[Popen[bytes]] = []
    try:
        migration = container.run(*container.entrypoint(), "migrate", **env)
        assert migration.returncode == 0, migration.stderr
        for command in ("server", "worker"):
            processes.append(container.start(command, "/srv/app.py", log=log, **env))
        server = processes[0]
        wait_until((container.data / "server.json").exists, server, log)
        assert healthy(container) == 0
        wait_until(lambda: all_succeeded(container), server, log)
        check_rights(container)
        command = "rota admin reset-key && rota user add you@example.com --role admin"  # as the chart's notes say
        user = container.run("sh", "-c", command, **env, ROTA_PASSWORD="correct horse battery")
        assert user.returncode == 0, user.stderr
        assert [container.stop(process) for process in reversed(processes)] == [0, 0], log.read_text()
    finally:
        for process in processes:
            process.kill()
            process.wait(30)
        drop_database(postgres_url, url)
