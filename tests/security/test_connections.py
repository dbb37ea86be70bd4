"""Requests that are slow, large or ambiguous are answered, and do not hold a connection for long."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from rota.app import connections
from rota.frame.http import limits
from tests.app.live_api import LiveApi


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[LiveApi]:
    path = Path(tmp_path_factory.mktemp("live") / "rota.db")
    path.write_bytes(sqlite_template.read_bytes())
    with LiveApi(f"sqlite:///{path}") as live:
        yield live


def answer(live: LiveApi, *parts: bytes) -> bytes:
    """What the server sends until it closes a connection on which these parts were sent."""
    with closing(socket.create_connection(("127.0.0.1", live.port), timeout=20)) as sock:
        for part in parts:
            sock.sendall(part)
        received = bytearray()
        while data := sock.recv(65536):
            received += data
    return bytes(received)


@pytest.mark.parametrize("size", [70_000, 2_000_000])
def test_a_head_that_is_too_large_is_answered_with_431(live: LiveApi, size: int) -> None:
    half = b"x" * (size // 2)
    for head in ((b"GET /", half, half), (b"GET / HTTP/1.1\r\nhost: localhost\r\nx-large: ", half, half)):
        assert answer(live, *head).startswith(b"HTTP/1.1 431 ")


def test_what_is_no_http_is_answered_with_400(live: LiveApi) -> None:
    assert answer(live, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_a_head_that_takes_too_long_is_answered_with_408(live: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 1.0)  # a busy machine is slow to read even a whole head
    assert answer(live, b"GET /health/live HTTP/1.1\r\nhost: loc").startswith(b"HTTP/1.1 408 ")
    assert answer(live) == b""  # a connection on which nothing was asked is closed
    with closing(socket.create_connection(("127.0.0.1", live.port), timeout=20)) as sock:
        sock.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        first = b""
        while not first.endswith(b"}"):  # the end of its body, which may come apart from its head
            first += sock.recv(65536)
        assert first.startswith(b"HTTP/1.1 200 ")
        sock.sendall(b"GET /health/live HTTP/1.1\r\nho")
        assert sock.recv(65536).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_takes_too_long_is_answered_with_408(live: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_TIMEOUT_SECONDS", 0.2)
    lines = [
        "POST /api/v1/schedules HTTP/1.1",
        "host: localhost",
        f"authorization: Bearer {live.key}",
        "content-type: application/json",
        "content-length: 100",
        "",
        '{"name": "x',
    ]
    for more in ([], ["idempotency-key: once"]):
        received = answer(live, "\r\n".join([*lines[:5], *more, *lines[5:]]).encode())
        assert received.startswith(b"HTTP/1.1 408 ")
        assert b"not received within 0.2 s" in received


@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
def test_several_credentials_in_one_request_are_refused(live: LiveApi, name: str) -> None:
    value = f"Bearer {live.key}" if name == "authorization" else live.key
    refused = httpx.get(f"{live.url}/api/v1/runs", headers=[(name, value), (name, value)], timeout=60)
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_request")
    both = httpx.get(f"{live.url}/api/v1/runs", headers={**live.headers, "x-api-key": "rota_other"}, timeout=60)
    assert both.status_code == 200  # Authorization counts


def test_of_a_json_key_that_comes_twice_the_last_counts(live: LiveApi) -> None:
    body = b'{"cron_expression": "nonsense", "cron_expression": "0 12 * * *", "count": 1}'
    headers = {**live.headers, "content-type": "application/json"}
    made = httpx.post(f"{live.url}/api/v1/schedules/$preview", content=body, headers=headers, timeout=60)
    assert made.status_code == 200
