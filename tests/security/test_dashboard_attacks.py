"""Forged forms, redirects to other sites, markup in addresses and forged log lines have no effect on the dashboard."""

import io
import json
import sys
from collections.abc import AsyncIterator
from urllib.parse import quote, urlencode, urlsplit

import httpx
import pytest
import structlog

from rota.app.logs import configure_logs
from rota.app.settings import Settings
from tests.access.test_web_login import browser, csrf_of, link, log_in, submit
from tests.app.harness import Api
from tests.app.test_web_pages import EVIL, LISTS

pytestmark = pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)  # the database has no part in it

PAUSE = "/schedules/nightly/$pause"
ELSEWHERE = [
    "//evil.example", "///evil.example", "https://evil.example", "https:evil.example", "http:/evil.example",
    "/\\evil.example", "\\/evil.example", "\\\\evil.example", "/\t/evil.example", "/\n/evil.example",
    "\t//evil.example", " //evil.example", "/%09/evil.example", "/.//evil.example", "/..//evil.example",
    "//evil.example@rota", "//rota@evil.example", "javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x",
    "/\r\nlocation: //evil.example", "evil.example", "/;//evil.example", "?//evil.example", "#//evil.example",
    "\uff0f\uff0fevil.example", "/\uff0fevil.example", "[", "//[",
]  # fmt: skip


@pytest.fixture
async def web(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(api) as client:
        await log_in(api, client)
        await api.schedule("nightly")
        yield client


def leaves(location: str) -> bool:
    """Whether a browser on http://rota that follows this location leaves the site."""
    seen = location.strip().replace("\\", "/").replace("\t", "").replace("\n", "").replace("\r", "")
    return urlsplit(str(httpx.URL("http://rota/").join(seen))).netloc != "rota" or seen.startswith("//")


async def test_a_form_of_another_site_changes_nothing(api: Api, web: httpx.AsyncClient) -> None:
    before = await api.get("/schedules/nightly")
    token = csrf_of(await web.get("/"))
    form = {"content-type": "application/x-www-form-urlencoded"}
    raw = urlencode({"csrf_token": token, "reason": "x"})
    attacks: dict[str, httpx.Response] = {
        "no token": await web.post(PAUSE, data={"reason": "x"}),
        "token in the query": await web.post(f"{PAUSE}?csrf_token={token}", data={"reason": "x"}),
        "token in a header": await web.post(PAUSE, data={"reason": "x"}, headers={"x-csrf-token": token}),
        "token with capitals": await web.post(PAUSE, data={"csrf_token": token.upper()}),
        "part of the token": await web.post(PAUSE, data={"csrf_token": token[:32]}),
        "two tokens": await web.post(PAUSE, content=f"{raw}&csrf_token=x", headers=form),
        "plain text": await web.post(PAUSE, content=raw, headers={"content-type": "text/plain"}),
        "JSON": await web.post(PAUSE, json={"csrf_token": token}),
        "multipart": await web.post(PAUSE, files={"csrf_token": (None, token)}),
        "no body": await web.post(PAUSE),
        "PUT": await web.put(PAUSE, data={"csrf_token": token}),
        "PATCH": await web.patch("/schedules/nightly", data={"csrf_token": token}),
        "DELETE": await web.delete("/schedules/nightly"),
        "GET": await web.get(f"{PAUSE}?csrf_token={token}&form_method=POST"),
        "method in a header": await web.get("/schedules/nightly", headers={"x-http-method-override": "DELETE"}),
    }
    for name, answer in attacks.items():
        allowed = (200, 303, 404) if name.startswith(("GET", "method")) else (403, 404, 405, 415, 422)
        assert answer.status_code in allowed, (name, answer.status_code)
    assert await api.get("/schedules/nightly") == before


async def test_a_form_reaches_nothing_beside_the_api_by_an_odd_path(api: Api, web: httpx.AsyncClient) -> None:
    token = csrf_of(await web.get("/"))
    tables = ("schedules", "orgs", "api_keys", "hosts", "users")
    before = [await api.count(table) for table in tables]
    paths = (
        "/../agent/pair",
        "/%2e%2e/agent/pair",
        "/..%2fagent%2fpair",
        "/schedules/../../agent/poll",
        "//evil.example/x",
        "/http://evil.example/",
        "/schedules/nightly%00",
        "/schedules/nightly%0d%0aX: y",
        "/internal/graphs/x:run",
        "/%2e%2e/internal/graphs",
        "/.",
        "/..",
        "/;/$delete",
    )
    for path in paths:
        for method in ("POST", "DELETE"):
            sent = {"csrf_token": token, "form_method": method}
            raw = httpx.URL("http://rota").copy_with(raw_path=path.encode())
            answer = await web.post(raw, data=sent)
            assert 400 <= answer.status_code < 500, (path, method, answer.status_code)
    assert [await api.count(table) for table in tables] == before


async def test_no_form_or_link_leads_to_another_site(api: Api, web: httpx.AsyncClient) -> None:
    token = csrf_of(await web.get("/"))
    async with browser(api) as stranger:
        for target in ELSEWHERE:
            done = await web.post("/preferences", data={"csrf_token": token, "then": target, "next": target})
            paused = await web.post(PAUSE, data={"csrf_token": token, "reason": "x", "then": target})
            entered = await stranger.get(f"{await link(api)}&next={quote(target, safe='')}")
            for answer in (done, paused, entered):
                assert answer.status_code == 303, (target, answer.url)
                assert not leaves(answer.headers["location"]), (target, answer.headers["location"])
            stranger.cookies.clear()
            shown = await stranger.get("/login", params={"next": target})
            assert 'value="//' not in shown.text, target
            await api.call("POST", "/schedules/nightly/$resume")
        asked = await stranger.get(httpx.URL("http://rota").copy_with(raw_path=b"//evil.example/%2e%2e"))
        assert not leaves(asked.headers.get("location", "/"))


async def test_markup_in_an_address_is_shown_as_text(api: Api, web: httpx.AsyncClient) -> None:
    names = ("name", "tag", "status", "kind", "target", "cursor", "q", "state", "queue", "action", "resource", "user")
    query = urlencode(dict.fromkeys(names, EVIL))
    pages = [f"{page}{'&' if '?' in page else '?'}{query}" for page in LISTS]
    pages += [f"{page}?{name}={quote(EVIL)}" for page in ("/runs", "/schedules", "/audit") for name in names]
    pages += [f"{page}/{quote(EVIL, safe='')}" for page in ("", "/schedules", "/runs", "/tasks", "/hosts", "/batches")]
    pages += [f"/login?next={quote(EVIL)}&token={quote(EVIL)}&org={quote(EVIL)}"]
    for page in pages:
        shown = await web.get(page)
        assert shown.status_code < 500, page
        assert "<script>alert" not in shown.text, page
        assert "<img src=x" not in shown.text, page
        policy = shown.headers["content-security-policy"]
        assert "default-src 'none'" in policy or "default-src 'self'" in policy, page
        assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0], page


@pytest.mark.parametrize("log_format", ["json", "text"])
async def test_a_log_line_cannot_be_forged(api: Api, monkeypatch: pytest.MonkeyPatch, log_format: str) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    forged = "x@example.org\r\n2026-05-04T09:00:00Z [info] FORGED\x1b[2J\x1b]0;title\x07\x85FORGED\u2028FORGED"
    try:
        configure_logs(Settings(log_format=log_format))
        async with browser(api) as stranger:
            refused = await submit(stranger, email=forged, password="wrong", org="a\nFORGED")
            await stranger.get("/login", params={"token": forged})
        assert refused.status_code == 403
    finally:
        structlog.reset_defaults()
    lines = written.getvalue().splitlines()  # also at the separators of Unicode
    assert len(lines) == 2, lines
    assert "login failed" in lines[0]
    assert "\x1b" not in lines[0].replace("\x1b[0m", "")
    if log_format == "json":
        assert [json.loads(line)["event"] for line in lines] == ["login failed", "login link refused"]
