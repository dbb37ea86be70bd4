"""Logging in to the dashboard, what a session is worth, and the first page."""

import asyncio
import html
import re
import statistics
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from rota.access.devices import device_of
from rota.access.login_settings import LoginSettings
from rota.access.store import accounts, logins
from rota.app.asgi import create_site
from rota.core.states import Status
from rota.db.dialect import Tx
from rota.db.tables import metadata
from rota.frame.http.guessing import FAILURES_PER_MINUTE, FailedAttempts
from rota.frame.http.limits import SECURITY_HEADERS
from rota.frame.web.pages import safe_redirect_path
from rota.frame.web.sessions import LOGIN_COOKIE, SESSION_COOKIE
from rota.reports import overview
from tests.app.harness import NINE, Api

ADA = {"email": "Ada@Example.org", "name": "Ada", "password": "correct horse", "role": "viewer"}
CREDENTIALS = {"email": "ada@example.org", "password": "correct horse"}

on_sqlite = pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)  # where the database does not matter


def browser(api: Api, base: str = "http://rota") -> httpx.AsyncClient:
    """Somebody else's browser: no key, no cookies."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(api.app, raise_app_exceptions=False), base_url=base)


@pytest.fixture
async def web(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(api) as client:
        yield client


async def link(api: Api, **more: Any) -> str:
    answer = await api.call("POST", "/login-links", **more)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["url"])


async def log_in(api: Api, web: httpx.AsyncClient) -> None:
    assert (await web.get(await link(api))).status_code == 303


async def submit(web: httpx.AsyncClient, **fields: str) -> httpx.Response:
    """Fill in the login form as it is shown."""
    shown = await web.get("/login")
    return await web.post("/login", data={"csrf_token": csrf_of(shown), **fields})


def csrf_of(answer: httpx.Response) -> str:
    token = re.search(r'name="csrf_token" value="([0-9a-f]{64})"', answer.text)
    assert token, answer.text
    return token[1]


async def is_in(web: httpx.AsyncClient) -> bool:
    answer = await web.get("/")
    assert answer.status_code in (200, 303)
    return answer.status_code == 200


async def dump(api: Api) -> str:
    def step(tx: Tx) -> str:
        return str([tx.execute(table.select()).all() for table in metadata.sorted_tables])

    return await api.db.read(step)


# links


async def test_a_link_logs_in_once_and_is_kept_nowhere(api: Api, web: httpx.AsyncClient) -> None:
    with capture_logs() as logs:
        made = await api.call("POST", "/login-links")
        url = made.json()["url"]
        token = url.partition("token=")[2]
        assert made.headers["cache-control"] == "no-store"
        assert url == f"http://rota/login?token={token}"
        assert made.json()["expires_at"] == (NINE + timedelta(minutes=15)).isoformat()
        assert token not in await dump(api)
        assert accounts.hash_of(token) in await dump(api)
        entered = await web.get(url)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert "<h1>Now" in (await web.get("/")).text
        async with browser(api) as other:
            again = await other.get(url)
            assert again.status_code == 403
            assert "rota login" in again.text
            assert not await is_in(other)
    assert len(token) >= 43
    assert token not in await dump(api)
    assert token not in str(logs)
    assert [log_entry["event"] for log_entry in logs if log_entry["log_level"] == "warning"] == ["login link refused"]


async def test_concurrent_uses_of_a_login_link_log_in_once(api: Api) -> None:
    for _ in range(5):
        url = await link(api)
        async with browser(api) as first, browser(api) as second, browser(api) as third:
            answers = await asyncio.gather(*(client.get(url) for client in (first, second, third)))
        assert sorted(answer.status_code for answer in answers) == [303, 403, 403]


@pytest.mark.parametrize(("minutes", "status"), [(14, 303), (15, 403)])
async def test_a_link_expires(api: Api, web: httpx.AsyncClient, minutes: int, status: int) -> None:
    url = await link(api)
    await api.clock.advance(timedelta(minutes=minutes))
    assert (await web.get(url)).status_code == status


async def test_an_unknown_link_is_refused_kindly_and_guessing_is_limited(api: Api, web: httpx.AsyncClient) -> None:
    for _ in range(FAILURES_PER_MINUTE):
        assert (await web.get("/login?token=guess%00%ff%ED%A0%80")).status_code == 403
    limited = await web.get("/login?token=guess")
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "60")


async def test_the_session_of_the_start_link_ends_with_its_key(api: Api, web: httpx.AsyncClient) -> None:
    made = await api.db.tx(logins.first_link, NINE)
    assert made is not None
    await web.get(f"/login?token={made.token}")
    assert '<span class="name">system</span>' in (await web.get("/")).text
    await api.db.tx(accounts.reset_first_key, NINE)
    assert not await is_in(web)
    assert await api.count("login_sessions") == 0


async def test_a_session_made_with_a_key_is_no_more_than_the_key_and_ends_with_it(api: Api) -> None:
    made = (await api.call("POST", "/api-keys", {"name": "k", "role": "viewer", "scopes": ["login-links"]})).json()
    narrow = {"authorization": f"Bearer {made['key']}"}
    made = (await api.call("POST", "/api-keys", {"name": "k", "role": "viewer"})).json()
    plain = {"authorization": f"Bearer {made['key']}"}
    async with browser(api) as web:
        await web.get(await link(api, headers=narrow))
        refused = await web.get("/")
        assert refused.status_code == 403
        assert "needs the scope" in refused.text
        await web.get(await link(api, headers=plain))
        assert await is_in(web)
        await api.call("DELETE", f"/api-keys/{made['id']}")
        assert not await is_in(web)


# passwords


async def test_a_person_logs_in_with_a_password(api: Api, web: httpx.AsyncClient) -> None:
    ada = (await api.call("POST", "/users", ADA)).json()
    entered = await submit(web, **CREDENTIALS, next="/?a=b")
    assert (entered.status_code, entered.headers["location"]) == (303, "/?a=b")
    cookie = next(cookie for cookie in entered.headers.get_list("set-cookie") if cookie.startswith(SESSION_COOKIE))
    assert {"HttpOnly", "SameSite=lax", f"Max-Age={14 * 86_400}"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert "Ada" in (await web.get("/")).text
    entries = (await api.get("/audit", action="sessions.create"))["items"]
    assert [(entry["user_id"], entry["key_id"], entry["address"]) for entry in entries] == [
        (ada["id"], None, "127.0.0.1")
    ]


@on_sqlite
async def test_cookies_are_secure_where_the_connection_is(api: Api) -> None:
    async with browser(api, "https://rota") as web:
        entered = await web.get((await link(api)).removeprefix("http://rota"))
        assert "Secure" in entered.headers["set-cookie"].split("; ")


async def test_a_wrong_password_is_refused_and_not_logged(api: Api, web: httpx.AsyncClient) -> None:
    await api.call("POST", "/users", ADA)
    wrongs = [
        {"password": "wrong"},
        {"email": "eve@example.org"},
        {"org": "nowhere"},
        {"email": ""},
        {"email": "system", "password": ""},
        {"password": "x" * 100_000},
    ]
    for wrong in wrongs:
        with capture_logs() as logs:
            refused = await submit(web, **{**CREDENTIALS, **wrong})
        assert refused.status_code == 403
        assert "Wrong e-mail address or password" in refused.text
        assert [log_entry["event"] for log_entry in logs] == ["login failed"]
        for word in ("correct horse", "wrong", "xxxx"):
            assert word not in str(logs) + refused.text
        assert not await is_in(web)


@on_sqlite
async def test_wrong_passwords_are_limited_also_for_a_known_user(api: Api, web: httpx.AsyncClient) -> None:
    await api.call("POST", "/users", ADA)
    for _ in range(3):  # successful logins do not count
        assert (await submit(web, **CREDENTIALS)).status_code == 303
    shown = csrf_of(await web.get("/login"))
    wrong = {**CREDENTIALS, "password": "wrong", "csrf_token": shown}
    many = await asyncio.gather(
        *(web.post("/login", data=wrong) for _ in range(FAILURES_PER_MINUTE + 3))
    )  # all at once
    assert sorted(answer.status_code for answer in many) == [403] * FAILURES_PER_MINUTE + [429] * 3
    limited = await web.post("/login", data={**wrong, **CREDENTIALS})
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "60")
    assert "try again in 60 s" in limited.text
    await api.clock.advance(FailedAttempts.WINDOW)
    assert (await web.post("/login", data={**wrong, **CREDENTIALS})).status_code == 303


def test_rejecting_an_unknown_user_takes_as_long_as_a_wrong_password() -> None:
    known = accounts.hash_password("correct horse")
    spans: dict[str | None, list[float]] = {known: [], None: []}
    accounts.password_matches(None, "")
    for hashed in (known, None) * 5:
        start = time.perf_counter()
        assert not accounts.password_matches(hashed, "wrong")
        spans[hashed].append(time.perf_counter() - start)
    ratio = statistics.median(spans[known]) / statistics.median(spans[None])
    assert 1 / 3 < ratio < 3  # without the work it would be thousands
    assert accounts.password_matches(known, "correct horse")
    assert not accounts.password_matches("no hash", "wrong")


async def test_the_org_is_asked_for_when_there_are_several(api: Api, web: httpx.AsyncClient) -> None:
    assert 'name="org"' not in (await web.get("/login")).text
    theirs = (await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).json()
    headers = {"authorization": f"Bearer {theirs['admin_key']}"}
    await api.call("POST", "/users", {**ADA, "password": "another horse"}, headers=headers)
    await api.call("POST", "/users", ADA)
    assert 'name="org"' in (await web.get("/login")).text
    assert (await submit(web, **CREDENTIALS)).status_code == 403
    assert (await submit(web, **CREDENTIALS, org="acme")).status_code == 403
    assert (await submit(web, **{**CREDENTIALS, "password": "another horse"}, org="acme")).status_code == 303
    assert "Acme" in (await web.get("/")).text


# sessions


@on_sqlite
async def test_a_session_ends_after_14_days(api: Api, web: httpx.AsyncClient) -> None:
    await log_in(api, web)
    for _ in range(13):
        await api.clock.advance(timedelta(days=1))
        assert await is_in(web)
    await api.clock.advance(timedelta(days=1, seconds=-1))
    assert await is_in(web)
    await api.clock.advance(timedelta(seconds=1))
    assert not await is_in(web)


@on_sqlite
async def test_a_session_that_is_not_used_ends_after_7_days(api: Api, web: httpx.AsyncClient) -> None:
    await log_in(api, web)
    await api.clock.advance(timedelta(days=3))
    assert await is_in(web)
    await api.clock.advance(timedelta(days=7, seconds=-1))
    assert len((await api.get("/sessions"))["items"]) == 1
    await api.clock.advance(timedelta(seconds=1))
    assert not await is_in(web)
    assert (await api.get("/sessions"))["items"] == []


@on_sqlite
async def test_a_shorter_limit_applies_to_sessions_that_exist(api: Api, web: httpx.AsyncClient) -> None:
    await log_in(api, web)
    await api.clock.advance(timedelta(hours=2))
    assert await is_in(web)
    limits = logins.SessionLimits(timedelta(hours=2), timedelta(hours=1))
    shorter = create_site(api.engine, api.db, login=LoginSettings(session_limits=limits))
    transport = httpx.ASGITransport(shorter)
    async with httpx.AsyncClient(transport=transport, base_url="http://rota", cookies=web.cookies) as same_browser:
        assert not await is_in(same_browser)


async def test_all_other_sessions_are_ended(api: Api, web: httpx.AsyncClient) -> None:
    ada = (await api.call("POST", "/users", ADA)).json()
    await api.call("POST", "/users", {**ADA, "email": "bob@example.org", "name": "Bob"})
    async with browser(api) as second, browser(api) as bob:
        await submit(second, **CREDENTIALS)
        await submit(bob, **{**CREDENTIALS, "email": "bob@example.org"})
        await submit(web, **CREDENTIALS)
        token = csrf_of(await web.get("/settings"))
        other = {"csrf_token": token, "user_id": "01BOB000000000000000000000"}
        assert (await web.post("/sessions/$end", data=other)).status_code == 403
        assert (await web.post("/sessions/$end", data={"csrf_token": token})).status_code == 303
        assert [await is_in(client) for client in (web, second, bob)] == [True, False, True]
        assert (await api.call("POST", "/sessions/$end", {"user_id": ada["id"]})).json() == {"ended": 1}
        assert [await is_in(client) for client in (web, bob)] == [False, True]
        assert (await api.call("POST", "/sessions/$end")).json() == {"ended": 0}


@on_sqlite
async def test_sessions_name_the_device_and_how_they_began(api: Api, web: httpx.AsyncClient) -> None:
    await api.call("POST", "/users", ADA)
    web.headers["user-agent"] = "Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0"
    await submit(web, **CREDENTIALS)
    (session,) = (await api.get("/sessions"))["items"]
    assert (session["device"], session["method"], session["current"]) == ("Firefox on Linux", "password", False)
    page = (await web.get("/settings")).text
    assert "Firefox on Linux" in page
    assert "current session" in page


async def test_a_disabled_user_is_out_at_once(api: Api, web: httpx.AsyncClient) -> None:
    ada = (await api.call("POST", "/users", ADA)).json()
    await submit(web, **CREDENTIALS)
    assert await is_in(web)
    changed = (await api.call("PATCH", f"/users/{ada['id']}", {"disabled": True})).json()
    assert (changed["disabled"], changed["disabled_by"]) == (True, "admin")
    assert not await is_in(web)
    assert (await submit(web, **CREDENTIALS)).status_code == 403
    await api.call("PATCH", f"/users/{ada['id']}", {"disabled": False})
    assert not await is_in(web), "sessions have ended for good"
    assert (await submit(web, **CREDENTIALS)).status_code == 303


def test_devices_are_named() -> None:
    for agent, device in (
        ("Mozilla/5.0 (Windows NT 10.0; Win64; x64) Chrome/142.0 Safari/537.36 Edg/142.0", "Edge on Windows"),
        ("Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) Version/26.0 Safari/605.1.15", "Safari on macOS"),
        ("Mozilla/5.0 (Linux; Android 16) Chrome/142.0 Mobile Safari/537.36", "Chrome on Android"),
        ("python-httpx/0.28.1", "Python"),
        ("", None),
        (None, None),
    ):
        assert device_of(agent) == device


@pytest.mark.parametrize("change", [{"password": "battery staple"}, None])
async def test_a_session_ends_with_the_password_and_the_user(
    api: Api, web: httpx.AsyncClient, change: dict[str, str] | None
) -> None:
    ada = (await api.call("POST", "/users", ADA)).json()
    await submit(web, **CREDENTIALS)
    await api.call("PATCH", f"/users/{ada['id']}", {"name": "Ada L."})
    assert "Ada L." in (await web.get("/")).text
    await api.call("PATCH" if change else "DELETE", f"/users/{ada['id']}", change)
    assert not await is_in(web)


async def test_a_cookie_that_was_changed_is_worth_nothing(api: Api, web: httpx.AsyncClient) -> None:
    await log_in(api, web)
    good = web.cookies[SESSION_COOKIE]
    assert len(good) == 43
    assert good not in await dump(api)  # only its hash is stored
    for bad in ("", "x", good[:-1], f"{good}x", good[::-1], good.swapcase(), accounts.hash_of(good), "é.ü"):
        async with browser(api) as thief:
            answer = await thief.get("/", headers=[(b"cookie", f"{SESSION_COOKIE}={bad}".encode())])
            assert answer.status_code == 303, bad
    async with browser(api) as same:
        same.cookies.set(SESSION_COOKIE, good)
        assert await is_in(same)


async def test_two_logins_of_a_user_at_the_same_time_are_two_sessions(api: Api, web: httpx.AsyncClient) -> None:
    await log_in(api, web)
    async with browser(api) as other:
        await log_in(api, other)
        assert web.cookies[SESSION_COOKIE] != other.cookies[SESSION_COOKIE]
        assert (await other.post("/logout", data={"csrf_token": csrf_of(await web.get("/"))})).status_code == 403


async def test_a_logout_ends_the_session_at_the_server(api: Api, web: httpx.AsyncClient) -> None:
    await log_in(api, web)
    cookie = web.cookies[SESSION_COOKIE]
    out = await web.post("/logout", data={"csrf_token": csrf_of(await web.get("/"))})
    assert (out.status_code, out.headers["location"]) == (303, "/login")
    assert not await is_in(web)
    async with browser(api) as thief:
        thief.cookies.set(SESSION_COOKIE, cookie)
        assert not await is_in(thief)
    lines = (await api.get("/audit", resource="sessions"))["items"]
    assert [line["action"] for line in lines] == ["sessions.delete", "sessions.create"]
    assert len({line["resource_id"] for line in lines}) == 1


async def test_sessions_are_listed_and_ended(api: Api, web: httpx.AsyncClient) -> None:
    ada = (await api.call("POST", "/users", ADA)).json()
    await submit(web, **CREDENTIALS)
    async with browser(api) as second:
        await submit(second, **CREDENTIALS)
        web.cookies.clear()
        await log_in(api, web)  # another user, in the first browser
        listed = await api.get("/sessions")
        assert [session["user_name"] for session in listed["items"]] == ["system", "Ada", "Ada"]
        newest = listed["items"][0]
        assert (newest["key_name"], newest["address"], newest["created_at"]) == (
            "first admin key",
            "127.0.0.1",
            NINE.isoformat(),
        )
        assert len((await api.get("/sessions", user_id=ada["id"]))["items"]) == 2
        page = (await second.get("/settings")).text
        assert (page.count("current session"), page.count('action="/sessions/0')) == (1, 1)
        form = {"csrf_token": csrf_of(await second.get("/")), "form_method": "DELETE", "then": "/settings"}
        assert (await second.post(f"/sessions/{newest['id']}", data=form)).status_code == 404  # not hers
        assert await is_in(web)
        hers = [session["id"] for session in listed["items"][1:]]
        assert (await second.post(f"/sessions/{hers[1]}", data=form)).status_code == 303
        assert (await api.call("DELETE", f"/sessions/{hers[0]}")).status_code == 204
        assert not await is_in(second)
    assert [session["id"] for session in (await api.get("/sessions"))["items"]] == [newest["id"]]
    assert (await api.call("DELETE", f"/sessions/{hers[0]}")).status_code == 404


async def test_a_key_below_admin_sees_only_the_sessions_that_it_began(api: Api, web: httpx.AsyncClient) -> None:
    await log_in(api, web)
    made = (await api.call("POST", "/api-keys", {"name": "k", "role": "viewer"})).json()
    plain = {"authorization": f"Bearer {made['key']}"}
    made = (await api.call("POST", "/api-keys", {"name": "r", "role": "viewer", "scopes": ["sessions:read"]})).json()
    reader = {"authorization": f"Bearer {made['key']}"}
    (session,) = (await api.get("/sessions"))["items"]
    assert (await api.call("GET", "/sessions", headers=plain)).json()["items"] == []
    assert (await api.call("DELETE", f"/sessions/{session['id']}", headers=plain)).status_code == 404
    async with browser(api) as other:
        await other.get(await link(api, headers=plain))
        (theirs,) = (await api.call("GET", "/sessions", headers=plain)).json()["items"]
    assert (await api.call("DELETE", f"/sessions/{theirs['id']}", headers=reader)).status_code == 403
    assert (await api.call("DELETE", f"/sessions/{theirs['id']}", headers=plain)).status_code == 204


@on_sqlite
async def test_the_last_use_of_a_session_is_exact_to_a_minute(api: Api, web: httpx.AsyncClient) -> None:
    await log_in(api, web)
    for seconds, expected in ((59, 0), (1, 60)):
        await api.clock.advance(timedelta(seconds=seconds))
        await web.get("/")
        (session,) = (await api.get("/sessions"))["items"]
        assert session["last_used_at"] == (NINE + timedelta(seconds=expected)).isoformat()


@on_sqlite
async def test_the_api_does_not_take_the_cookie(api: Api, web: httpx.AsyncClient) -> None:
    await log_in(api, web)
    assert (await web.get("/api/v1/runs")).status_code == 401
    assert (await web.put("/api/v1/freeze", json={})).status_code == 401


@on_sqlite
async def test_a_form_without_its_token_changes_nothing(api: Api, web: httpx.AsyncClient) -> None:
    await api.call("POST", "/users", ADA)
    login_token = csrf_of(await web.get("/login"))
    await log_in(api, web)
    async with browser(api) as other:
        await api.clock.advance(timedelta(seconds=1))
        await log_in(api, other)
        others = csrf_of(await other.get("/"))
    for token in ({}, {"csrf_token": ""}, {"csrf_token": "é"}, {"csrf_token": others}, {"csrf_token": login_token}):
        assert (await web.post("/logout", data=token)).status_code == 403
    session_token = csrf_of(await web.get("/"))
    for wrong in ({}, {"csrf_token": "0" * 64}, {"csrf_token": session_token}):
        assert (await web.post("/login", data={**CREDENTIALS, **wrong})).status_code == 403
    assert await is_in(web)
    typed = {"content-type": "text/plain"}
    assert (await web.post("/logout", content=f"csrf_token={session_token}", headers=typed)).status_code == 415
    async with browser(api) as stranger:
        assert (await stranger.post("/login", data={**CREDENTIALS, "csrf_token": login_token})).status_code == 403
        asked = await stranger.post("/logout", data={"csrf_token": session_token})
        assert (asked.status_code, asked.headers["location"]) == (303, "/login")


@on_sqlite
async def test_a_form_that_cannot_be_read_is_refused(api: Api, web: httpx.AsyncClient) -> None:
    token = csrf_of(await web.get("/login"))
    assert (await web.post("/login", data={"csrf_token": token, "email": "a\0b"})).status_code == 422
    assert (await web.post("/login", data={f"f{n}": "" for n in range(1001)})).status_code == 422
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert (await web.post("/login", content=b"\xff=1", headers=form)).status_code == 422


# where people go


@on_sqlite
async def test_a_page_without_a_login_redirects_to_the_login_form(api: Api, web: httpx.AsyncClient) -> None:
    assert (await web.get("/")).headers["location"] == "/login"
    asked = await web.get("/", params={"a": "b&c"})
    assert asked.headers["location"] == "/login?next=%2F%3Fa%3Db%2526c"
    form = await web.get(asked.headers["location"])
    assert '<input type="hidden" name="next" value="/?a=b%26c">' in form.text


@pytest.mark.parametrize(
    "bad",
    [
        *("//evil.org", "https://evil.org", "/\\evil.org", "\\\\evil.org", "/\t/evil.org", "/\n/evil.org", "evil.org"),
        *("javascript:alert(1)", " //evil.org", "/a\\..\\..//evil.org", "", "///evil.org", "/\r\nset-cookie: a=b"),
    ],
)
def test_a_login_redirects_to_no_other_site(bad: str) -> None:
    assert safe_redirect_path(bad) == "/"


@on_sqlite
async def test_a_login_leads_only_to_a_page_of_this_site(api: Api, web: httpx.AsyncClient) -> None:
    assert 'name="next" value="/">' in (await web.get("/login?next=//evil.org")).text
    assert (await web.get(f"{await link(api)}&next=//evil.org")).headers["location"] == "/"
    assert (await web.get(f"{await link(api)}&next=/runs%3Fa=b")).headers["location"] == "/runs?a=b"
    await api.call("POST", "/users", ADA)
    assert (await submit(web, **CREDENTIALS, next="https://evil.org")).headers["location"] == "/"


@on_sqlite
async def test_every_answer_has_its_headers(api: Api, web: httpx.AsyncClient) -> None:
    url = await link(api)
    answers = [await web.get(path) for path in ("/", "/login", url, "/", url, "/nowhere", "/static/none.css")]
    answers += [await web.post("/logout"), await web.put("/"), await web.get("/static/rota.css")]
    assert [answer.status_code for answer in answers] == [303, 200, 303, 200, 403, 404, 404, 403, 405, 200]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:;")
        assert policy.endswith("form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == ("no-cache" if "/static" in str(answer.url) else "no-store")
        assert answer.headers["x-request-id"]
        own_script = "<script(?! src=./static/(rota|live).js. defer></script>)"
        assert not re.search(rf"{own_script}|<style|style=|onclick", answer.text)
    assert answers[-1].headers["content-type"] == "text/css; charset=utf-8"
    assert (await web.get("/api/v1/nowhere")).headers["content-type"] == "application/problem+json"


@on_sqlite
async def test_a_page_that_fails_shows_only_its_request_id(
    api: Api, web: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log_in(api, web)
    await api.execute("UPDATE users SET role = 'strange'")  # as no version of ours would write it
    with capture_logs() as logs:
        failed = await web.get("/", headers={"x-request-id": "req-7"})
    assert failed.status_code == 500
    assert "req-7" in failed.text
    assert "KeyError" not in failed.text
    assert [log_entry["event"] for log_entry in logs] == ["page failed"]
    assert failed.headers["content-security-policy"] == SECURITY_HEADERS["content-security-policy"]


# the first page


async def test_a_new_installation_teaches_the_first_command(api: Api, web: httpx.AsyncClient) -> None:
    await log_in(api, web)
    text = html.unescape((await web.get("/")).text)
    assert 'rota schedule add disk --shell "df -h /" --every 1m' in text
    assert "No worker is alive" in text
    await api.schedule("nightly")
    assert "Nothing is scheduled yet" not in (await web.get("/")).text


async def test_the_first_page_shows_the_status_of_the_org_escaped(api: Api, web: httpx.AsyncClient) -> None:
    evil = "<img src=x onerror=alert('x')>"
    for name in ("bad", "worse", "fine", "goes", "waits"):
        await api.schedule(f"{name} {evil}")
    await api.schedule("tomorrow")
    await api.engine.freeze(api.org_id, reason=evil)
    await api.execute(
        "UPDATE schedules SET condition = 'broken', condition_reason = :why WHERE name LIKE 'worse%'", why=evil
    )
    for name, status in (("bad", Status.FAILED), ("worse", Status.CRASHED), ("fine", Status.SUCCESS)):
        await api.job(f"{name} {evil}")
        await api.end(await api.start(), status, "logic" if status is Status.FAILED else None)
        await api.clock.advance(timedelta(minutes=1))
    await api.job(f"waits {evil}")
    await api.execute("UPDATE jobs SET state = 'parked', parked_reason = 'approval'")
    await api.job(f"goes {evil}")
    await api.start()
    await api.call("POST", "/users", {**ADA, "name": evil})
    await submit(web, **CREDENTIALS)
    answer = await web.get("/")
    assert "<img src=x" not in answer.text
    text = html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", answer.text)))
    attention, _, rest = text.partition(" Running 1 ")
    assert attention.count(evil) >= 6
    order = [attention.index(word) for word in ("Frozen", f"worse {evil} broken", f"waits {evil} parked")]
    order += [attention.index(word) for word in (f"worse {evil} crashed", f"bad {evil} failed")]
    assert order == sorted(order)
    assert "A person must act first" in attention
    assert "the task raised an error" in attention
    assert f"goes {evil}" in rest.partition(" Next due ")[0]
    assert "tomorrow in 2h57m every day at 12:00 (UTC)" in rest
    assert re.search(r"success 1 failed 1 crashed 1 ", rest)
    await api.clock.advance(timedelta(hours=25))
    later = (await web.get("/")).text
    assert "Runs that failed" not in later


async def test_another_orgs_things_are_not_shown(api: Api, web: httpx.AsyncClient) -> None:
    await api.schedule("canary")
    await api.job("canary")
    await api.end(await api.start(), Status.FAILED, "logic")
    await api.job("canary")
    await api.start()
    await api.schedule("canary-2")
    await api.job("canary-2")
    await api.execute("UPDATE jobs SET state = 'parked', parked_reason = 'approval' WHERE state = 'ready'")
    await api.execute("UPDATE schedules SET condition = 'broken' WHERE name = 'canary-2'")
    await api.engine.freeze(api.org_id, reason="canary")
    theirs = (await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).json()
    await log_in(api, web)
    assert (await web.get("/")).text.count("canary") >= 6
    async with browser(api) as other:
        await other.get(await link(api, headers={"authorization": f"Bearer {theirs['admin_key']}"}))
        text = (await other.get("/")).text
        assert "Acme" in text
        assert "canary" not in text
        assert "Nothing is scheduled yet" in text


async def test_runs_are_counted_up_to_a_bound(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "COUNT_MAX", 3)
    await api.schedule("nightly")
    for status in (Status.FAILED, Status.SUCCESS, Status.SUCCESS, Status.SUCCESS):
        await api.job()
        await api.end(await api.start(), status)
    counts = await api.db.read(overview.counts, api.org_id, NINE - overview.DAY)
    assert (counts[Status.SUCCESS], counts[Status.FAILED], counts[Status.MISSED]) == (3, 1, 0)
    for status in (Status.FAILED, Status.SUCCESS, Status.FAILED, Status.FAILED):
        await api.job()
        await api.end(await api.start(), status)
    counts = await api.db.read(overview.counts, api.org_id, NINE - overview.DAY)
    assert (counts.get(Status.SUCCESS), counts[Status.FAILED]) == (None, 3)


@on_sqlite
async def test_the_login_form_has_its_own_cookie(api: Api, web: httpx.AsyncClient) -> None:
    shown = await web.get("/login")
    assert shown.headers["set-cookie"].startswith(f"{LOGIN_COOKIE}=")
    assert csrf_of(shown) == csrf_of(await web.get("/login"))
