"""What callers elsewhere reach, and what a Host header or a link in a message can cause."""

import re
from typing import Any

import httpx
import pytest

from rota.frame.http.exposure import Exposure
from rota.frame.web.sessions import SESSION_COOKIE
from tests.app.harness import Api

pytestmark = pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)  # the database does not matter
ADA = {"email": "ada@example.org", "name": "Ada", "password": "correct horse", "role": "viewer"}


def browser(api: Api, address: str = "127.0.0.1", **more: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(api.app, raise_app_exceptions=False, client=(address, 5000))
    return httpx.AsyncClient(transport=transport, base_url="http://rota", **more)


def expose(api: Api, **exposure: Any) -> None:
    api.app.state.exposure = Exposure(**exposure)


async def link(api: Api) -> str:
    return str((await api.call("POST", "/login-links")).json()["url"])


async def press(client: httpx.AsyncClient, page: httpx.Response, **fields: str) -> httpx.Response:
    """Submit the form of a page, with other values for some fields."""
    shown = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.text))
    return await client.post("/login", data={**shown, **fields})


# login links


async def test_a_link_waits_for_a_button_unless_the_servers_own_machine_follows_it(api: Api) -> None:
    for address, headers in (
        ("192.0.2.1", {}),
        ("127.0.0.1", {"x-real-ip": "192.0.2.1"}),
        ("127.0.0.1", {"sec-fetch-site": "cross-site"}),
        ("127.0.0.1", {"sec-purpose": "prefetch;prerender"}),
    ):
        url = await link(api)
        async with browser(api, address, headers=headers) as other:
            for _ in range(3):  # a preview of the link does not use it up
                page = await other.get(url)
                assert page.status_code == 200
                assert SESSION_COOKIE not in page.cookies
            assert "as <b>system</b> of" in page.text
            assert (await press(other, page, csrf_token="0" * 64)).status_code == 403
            assert (await press(other, page)).status_code == 303
            assert SESSION_COOKIE in other.cookies
            assert (await press(other, page)).status_code == 403  # once
    async with browser(api) as here:
        assert (await here.get(await link(api))).status_code == 303


async def test_a_link_does_not_replace_another_users_session_by_itself(api: Api) -> None:
    await api.call("POST", "/users", ADA)
    async with browser(api) as web:
        page = await web.get("/login")
        assert (await press(web, page, email=ADA["email"], password=ADA["password"])).status_code == 303
        before = web.cookies[SESSION_COOKIE]
        page = await web.get(await link(api))
        assert (page.status_code, web.cookies[SESSION_COOKIE]) == (200, before)
        assert "logged in as <b>Ada</b>" in page.text
        assert (await press(web, page)).status_code == 303
        assert web.cookies[SESSION_COOKIE] != before


# addresses


async def test_the_host_header_does_not_choose_the_address_of_links_and_commands(api: Api) -> None:
    made = await api.call("POST", "/login-links", headers={"host": "evil.example"})
    assert made.json()["url"].startswith("http://rota/login?token=")  # what the connection reached
    async with browser(api) as web:
        await web.get(await link(api))
        assert "evil.example" not in (await web.get("/settings", headers={"host": "evil.example"})).text
    made = await api.call("POST", "/login-links", headers={"host": "localhost:8420"})
    assert made.json()["url"].startswith("http://localhost:8420/login?token=")
    expose(api, public_url="https://rota.example.org/ops")
    assert (await link(api)).startswith("https://rota.example.org/ops/login?token=")


# metrics


async def test_metrics_are_open_to_this_machine_only(api: Api) -> None:
    async with browser(api) as here, browser(api, "192.0.2.1") as elsewhere:
        assert (await here.get("/metrics")).status_code == 200
        assert (await elsewhere.get("/metrics")).status_code == 401
        assert (await elsewhere.get("/metrics", headers={"x-api-key": api.key})).status_code == 200
        for name in ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "cf-connecting-ip"):
            assert (await here.get("/metrics", headers={name: "192.0.2.1"})).status_code == 401, name
        for exposure in ({"public_url": "https://rota.example.org"}, {"behind_proxy": True}):
            expose(api, **exposure)
            assert (await here.get("/metrics")).status_code == 401


# the audit log


async def test_wrong_passwords_are_in_the_audit_log_but_not_a_flood_of_them(api: Api) -> None:
    ada = (await api.call("POST", "/users", ADA)).json()
    async with browser(api, "192.0.2.1") as web:
        page = await web.get("/login")
        for email in (*[ADA["email"]] * 7, "eve@example.org"):
            assert (await press(web, page, email=email, password="wrong")).status_code == 403
    lines = (await api.get("/audit", action="sessions.fail"))["items"]
    assert len(lines) == 5
    assert {(line["resource_id"], line["address"]) for line in lines} == {(ada["id"], "192.0.2.1")}
    assert "wrong" not in str(lines)
