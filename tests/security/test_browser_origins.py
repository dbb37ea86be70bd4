"""Pages of other sites reach neither a service without keys nor a server on loopback through a browser."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from rota import ServiceBuilder, ServiceInfo
from rota.app.api.browser_guard import BrowserGuard
from rota.app.settings import Settings
from rota.core.addresses import is_loopback

OWN_HOSTS = ["localhost:8420", "127.0.0.1:8420", "[::1]:8420", "app.localhost", "rota", "10.1.2.3", "rota.example.com"]
FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:8420",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "[::1",
    "a@b.c",
]


def refused(method: str, host: str, **headers: str) -> bool:
    async def app(_: Scope, __: Receive, ___: Send) -> None:
        raise AssertionError

    named = {"host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    raw = [(name.encode(), value.encode()) for name, value in named.items()]
    guard = BrowserGuard(app, hosts=["rota.example.com"])
    return guard.refusal({"type": "http", "method": method, "headers": raw}) is not None


def test_only_names_of_the_server_are_taken_as_host() -> None:
    assert [host for host in OWN_HOSTS if refused("GET", host)] == []
    assert [host for host in FOREIGN_HOSTS if not refused("GET", host)] == []


def test_a_page_of_another_origin_may_not_write() -> None:
    here = "localhost:8420"
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        for origin in ("http://evil.example", "null", "http://localhost:3000", "https://evil.example:8420", "x"):
            assert refused(method, here, origin=origin), origin
        assert refused(method, here, sec_fetch_site="cross-site")
        assert not refused(method, here, origin=f"http://{here}", sec_fetch_site="same-origin")
        assert not refused(method, here, origin="https://rota.example.com")
        assert not refused(method, here, origin="null", sec_fetch_site="same-origin")
        assert refused(method, here, origin="null", sec_fetch_site="same-site")
        assert refused(method, here, origin="http://[")
        assert not refused(method, here)  # a program
    assert not refused("GET", here, origin="http://evil.example")  # the browser keeps the answer from that page


@pytest.fixture
async def open_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setenv("ROTA_DATA_DIR", str(tmp_path))
    app = ServiceBuilder(ServiceInfo("Open"), database_url=f"sqlite:///{tmp_path}/rota.db").with_tasks().build()
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:8000") as client,
    ):
        yield client


async def test_a_rebinding_page_runs_nothing_in_a_service_without_keys(open_service: httpx.AsyncClient) -> None:
    task = {"name": "t", "command": "true", "enabled": False}
    attacks: list[dict[str, Any]] = [
        {"host": "evil.example"},
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"host": "evil.example:8000", "origin": "http://evil.example:8000", "sec-fetch-site": "same-origin"},
    ]
    assert (await open_service.post("/api/v1/tasks", json=task)).status_code == 201
    for headers in attacks:
        stored = await open_service.post("/api/v1/tasks", json={**task, "name": "x"}, headers=headers)
        executed = await open_service.post("/api/v1/tasks/t/$execute", headers=headers)
        assert (stored.status_code, executed.status_code) == (403, 403), headers
        assert stored.headers["content-type"] == "application/problem+json"
    names = [item["name"] for item in (await open_service.get("/api/v1/tasks")).json()["items"]]
    assert names == ["t"]


def test_the_names_of_a_server_come_from_its_settings() -> None:
    assert Settings.load(allowed_hosts="a.example, B.example").guarded_hosts(False) == ["a.example", "b.example"]
    assert Settings().guarded_hosts(unprotected=True) == []
    assert Settings().guarded_hosts(unprotected=False) is None


def test_a_server_is_on_loopback_by_its_address() -> None:
    assert [host for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9") if not is_loopback(host)] == []
    assert not is_loopback("0.0.0.0")
