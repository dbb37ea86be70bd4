"""Failed runs and internal errors at a real HTTP receiver of Sentry's envelopes, from a real worker process."""

import gzip
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rota.app.logs import add_ids
from rota.app.sentry import SentryReporter
from rota.core.errors import Invalid
from rota.db.migrate import migrate
from tests.acceptance.cluster import Process
from tests.app.command_line import environment

APP = """
from rota import Rota
app = Rota()

@app.task
def breaks(password: str):
    local = "a local value"
    raise ValueError("cannot log in with password=hunter22")

app.schedule("often", breaks, every="1s", params={"password": "swordfish"})
"""


class Receiver:
    """Receives envelopes, as Sentry does."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.arrived = threading.Semaphore(0)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                text = gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body
                receiver.bodies.append(text.decode())
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")
                receiver.arrived.release()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def dsn(self) -> str:
        return f"http://secretkey@127.0.0.1:{self.server.server_port}/1"

    def events(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for body in self.bodies for line in body.splitlines() if line.startswith("{")]
        return [line for line in lines if "event_id" in line and "level" in line]

    def wait(self) -> dict[str, Any]:
        """Wait for a report; return the newest."""
        while True:
            assert self.arrived.acquire(timeout=60), "no report arrived"
            if events := self.events():
                return events[-1]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()


def test_a_failed_run_is_reported_without_its_input(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    url = f"sqlite:///{tmp_path / 'rota.db'}"
    migrate(url)
    env = environment() | {"ROTA_DATABASE_URL": url, "ROTA_SENTRY_DSN": receiver.dsn, "ROTA_LOG_FORMAT": "json"}
    env["ROTA_DATA_DIR"] = str(tmp_path / "data")
    command = [sys.executable, "-m", "rota.app.cli", "worker", str(tmp_path / "app.py")]
    worker = Process(command, env, tmp_path / "log")
    try:
        event = receiver.wait()
    finally:
        worker.kill()
    tags = event["tags"]
    assert tags["target"] == "breaks"
    assert (tags["kind"], tags["status"], tags["attempt"]) == ("task", "failed", "1")
    assert len(tags["run"]) == len(tags["job"]) == len(tags["schedule"]) == 26
    assert len(tags["trace"]) == 32
    assert event["message"].startswith("breaks failed: ValueError: cannot log in with")
    assert event["release"].startswith("rota@")
    for secret in ("swordfish", "hunter22", "a local value", "secretkey@"):
        assert not any(secret in body for body in receiver.bodies), secret
    line = next(
        line for line in map(json.loads, worker.log_text().splitlines()) if line["event"] == "run ended"
    )  # the same ids in the log
    assert {name: line[name] for name in ("target", "kind", "status")} == {
        "target": "breaks",
        "kind": "task",
        "status": "failed",
    }
    assert len(line["run"]) == len(line["job"]) == len(line["schedule"]) == 26
    assert len(line["trace"]) == 32


def test_an_internal_error_is_reported_with_its_stack_and_without_values(receiver: Receiver) -> None:
    reporter = SentryReporter(receiver.dsn)
    hidden = "a local value"
    try:
        raise RuntimeError("a bug")
    except RuntimeError:
        line = {"event": "maintenance failed; trying again", "exc_info": True}
        assert reporter(None, "error", line) is line
    event = receiver.wait()
    (exception,) = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("RuntimeError", "a bug")
    assert exception["stacktrace"]["frames"][-1]["function"] == "test_an_internal_error_is_reported_" + (
        "with_its_stack_and_without_values"
    )
    assert not any(hidden in body for body in receiver.bodies)


def test_lines_that_are_no_errors_are_not_reported(receiver: Receiver) -> None:
    reporter = SentryReporter(receiver.dsn)
    reporter(None, "info", {"event": "run ended", "status": "success"})
    reporter(None, "warning", {"event": "database is back"})
    reporter.sdk.flush(2)
    assert receiver.events() == []


def test_a_wrong_dsn_is_one_sentence_without_it() -> None:
    with pytest.raises(Invalid) as caught:
        SentryReporter("no dsn at all secret")
    assert "secret" not in caught.value.message
    assert "is not a DSN of Sentry" in caught.value.message


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)
    with pytest.raises(Invalid, match=r"pip install 'rota-scheduler\[sentry\]'"):
        SentryReporter("http://key@127.0.0.1:1/1")


def test_ids_of_a_line_come_first() -> None:
    line = add_ids(None, "info", {"event": "x", "run": "r1", "ids": {"run": "r2", "job": "j1"}})
    assert line == {"event": "x", "run": "r1", "job": "j1"}
