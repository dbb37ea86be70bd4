"""The HTTP endpoint of a worker process (`ROTA_METRICS_PORT`)."""

import contextlib
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from rota.app.application import Rota
from rota.app.metrics_endpoint import MetricsEndpoint
from rota.app.node import Node
from rota.app.settings import Settings
from rota.db.migrate import migrate
from tests.acceptance.cluster import Process
from tests.app.command_line import environment


def free_ports(count: int) -> int:
    """Return a port that is free, as are the next `count - 1`."""
    while True:
        first = random.randrange(20_000, 30_000)  # other test processes look for ports, too
        with contextlib.suppress(OSError), contextlib.ExitStack() as sockets:
            for number in range(count):
                sockets.enter_context(socket.create_server(("127.0.0.1", first + number)))
            return first


def start(home: Path, *options: str, **settings: object) -> Process:
    url = f"sqlite:///{home / 'rota.db'}"
    migrate(url)
    own = {"ROTA_DATABASE_URL": url, "ROTA_DATA_DIR": str(home / "data")}
    env = environment() | own | {name: str(value) for name, value in settings.items()}
    return Process([sys.executable, "-m", "rota.app.cli", "worker", *options], env, home / "log")


def answers(url: str, process: Process, status: int = 200) -> httpx.Response:
    """Wait until the endpoint answers with this status; return the answer."""
    deadline = time.monotonic() + 60
    while True:
        assert process.alive, process.log_text()
        with contextlib.suppress(httpx.TransportError):
            if (answer := httpx.get(url)).status_code == status:
                return answer
        assert time.monotonic() < deadline, f"{url} does not answer with {status}"
        time.sleep(0.05)


def test_a_worker_exposes_its_metrics_and_its_health(tmp_path: Path) -> None:
    port = free_ports(1)
    worker = start(tmp_path, ROTA_METRICS_PORT=port)
    base = f"http://127.0.0.1:{port}"
    try:
        assert answers(f"{base}/health/live", worker).json() == {"status": "ok"}
        assert answers(f"{base}/health/ready", worker).json() == {"status": "ok", "problems": [], "details": {}}
        text = httpx.get(f"{base}/metrics").text
        assert "rota_database_up 1.0" in text.splitlines()
        assert 'rota_scheduler_heartbeat_age_seconds{worker="' in text
        assert "# TYPE rota_runs_total counter" in text
        assert httpx.get(f"{base}/api/v1/runs").status_code == 404
        assert httpx.post(f"{base}/metrics", content=b"x" * 100).status_code == 405
        head = httpx.head(f"{base}/metrics")
        assert (head.status_code, head.content) == (200, b"")
        with socket.create_connection(("127.0.0.1", port)) as garbage:
            garbage.sendall(b"\x00\x01 nonsense\r\n\r\n")
            assert garbage.recv(100).startswith(b"HTTP/1.1 400")
    finally:
        worker.kill()


def test_each_of_several_processes_has_the_next_port(tmp_path: Path) -> None:
    port = free_ports(2)
    worker = start(tmp_path, "--processes", "2", ROTA_METRICS_PORT=port)
    try:
        for number in range(2):
            answer = answers(f"http://127.0.0.1:{port + number}/metrics", worker)
            assert "rota_database_up" in answer.text
    finally:
        worker.kill()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_taken_port_is_an_error_before_anything_starts(tmp_path: Path, processes: int) -> None:
    port = free_ports(2)
    with socket.create_server(("127.0.0.1", port + processes - 1)):
        worker = start(tmp_path, "--processes", str(processes), ROTA_METRICS_PORT=port)
        assert worker.popen.wait(60) == 1
    message = f"cannot listen on 127.0.0.1:{port + processes - 1}: Address already in use; choose another"
    assert message in worker.log_text()
    assert "ROTA_METRICS_PORT" in worker.log_text()
    assert "worker started" not in worker.log_text()


def test_the_endpoint_is_not_ready_while_nothing_runs_here(tmp_path: Path) -> None:
    """A node that has not registered its worker, on a database without any."""
    url = f"sqlite:///{tmp_path / 'rota.db'}"
    migrate(url)
    node = Node(Settings(data_dir=tmp_path, database_url=url), Rota(), None)
    sock = socket.create_server(("127.0.0.1", 0))
    endpoint = MetricsEndpoint(node, sock)
    endpoint.start()
    base = f"http://127.0.0.1:{sock.getsockname()[1]}"
    try:
        starting = httpx.get(f"{base}/health/ready")
        assert (starting.status_code, starting.json()["problems"]) == (503, ["starting"])
        node.stopping = True
        stopping = httpx.get(f"{base}/health/ready")
        assert (stopping.status_code, stopping.json()["problems"]) == (503, ["stopping", "no_worker"])
        assert httpx.get(f"{base}/health/live").status_code == 200
    finally:
        endpoint.stop()


def test_a_worker_without_the_port_loads_none_of_it() -> None:
    code = """if True:
        import sys
        import rota.app.main
        loaded = {"prometheus_client", "uvicorn", "fastapi", "rota.app.exposition", "rota.app.metrics_endpoint"}
        print(sorted(loaded & set(sys.modules)))
    """
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
