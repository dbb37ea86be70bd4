"""Sign-in by a real provider, with an HTTP client: who gets in, as whom, and what an attacker cannot do."""

import html
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from structlog.testing import capture_logs

from rota.access.login_settings import LoginSettings
from rota.access.oidc.settings import OidcSettings
from rota.access.web.oidc import SIGN_INS_PER_MINUTE
from rota.app.asgi import create_site
from rota.frame.http.exposure import Exposure
from rota.frame.web.sessions import SESSION_COOKIE
from tests.access.real_provider import ADA, CLIENT_ID, CLIENT_SECRET, PUBLIC_URL, RealProvider, running_provider
from tests.access.test_web_login import csrf_of, dump
from tests.app.harness import NINE, Api

ROLES = {"rota-ops": "operator", "rota-admins": "admin"}
COOKIE = "__Host-rota_oidc"

on_sqlite = pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)  # where the database does not matter


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealProvider]:
    with running_provider(tmp_path_factory.mktemp("provider"), PUBLIC_URL) as running:
        yield running


@pytest.fixture(autouse=True)
def as_at_first(provider: RealProvider) -> None:
    provider.config["accounts"] = {}
    provider.change("ada", **ADA)


@pytest.fixture
async def site(api: Api, provider: RealProvider) -> Api:
    """The API's engine behind a site that knows the provider, at the real time."""
    await api.clock.advance(datetime.now(UTC) - NINE)
    return with_settings(api, settings_of(provider))


def settings_of(provider: RealProvider, **changes: object) -> OidcSettings:
    scopes = "openid profile email groups"
    settings = OidcSettings(provider.issuer, CLIENT_ID, ROLES, CLIENT_SECRET, scopes=scopes, name="Acme")
    return replace(settings, **changes)  # type: ignore[arg-type]


def with_settings(api: Api, settings: OidcSettings, passwords: bool = True) -> Api:
    login = LoginSettings(settings, passwords)
    api.app = create_site(api.engine, api.db, login=login, exposure=Exposure(PUBLIC_URL))
    api.client._transport = httpx.ASGITransport(api.app, raise_app_exceptions=False)
    return api


@asynccontextmanager
async def browser(site: Api) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(site.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=PUBLIC_URL) as client:
        yield client


async def begin(web: httpx.AsyncClient, then: str = "") -> str:
    """Return the URL at the provider to which Rota sends the browser."""
    answer = await web.get("/login/oidc", params={"next": then} if then else {})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def sign_in(web: httpx.AsyncClient, provider: RealProvider, login: str = "ada", then: str = "") -> httpx.Response:
    return await web.get(provider.sign_in(await begin(web, then), login))


async def who(web: httpx.AsyncClient) -> str | None:
    """Return the name that pages show, None without a login session."""
    answer = await web.get("/")
    return answer.text.partition('<span class="name">')[2].partition("<")[0] if answer.status_code == 200 else None


# who gets in


async def test_the_first_sign_in_creates_the_user_with_the_role_of_their_group(
    site: Api, provider: RealProvider
) -> None:
    async with browser(site) as web:
        shown = await web.get("/login?next=/runs")
        assert "Sign in with Acme" in shown.text
        assert 'href="/login/oidc?next=%2Fruns"' in shown.text
        url = urlsplit(await begin(web, "/runs?status=failed"))
        sent = {name: values[0] for name, values in parse_qs(url.query).items()}
        assert {name: sent[name] for name in ("client_id", "response_type", "code_challenge_method")} == {
            "client_id": CLIENT_ID,
            "response_type": "code",
            "code_challenge_method": "S256",
        }
        assert sent["redirect_uri"] == f"{PUBLIC_URL}/login/oidc/callback"
        assert len({sent["state"], sent["nonce"], sent["code_challenge"]}) == 3
        cookie = next(cookie for cookie in web.cookies.jar if cookie.name == COOKIE)
        assert (cookie.secure, cookie.path, cookie.has_nonstandard_attr("HttpOnly")) == (True, "/", True)
        entered = await web.get(provider.sign_in(url.geturl(), "ada"))
        assert (entered.status_code, entered.headers["location"]) == (303, "/runs?status=failed")
        session = next(value for name, value in entered.headers.multi_items() if SESSION_COOKIE in value)
        assert all(word in session for word in ("Secure", "HttpOnly", "SameSite=lax"))
        assert COOKIE not in web.cookies
        assert await who(web) == "Ada"
    [user] = (await site.get("/users"))["items"]
    assert (user["email"], user["name"], user["role"]) == ("ada@example.org", "Ada", "operator")
    [listed] = (await site.get("/sessions"))["items"]
    assert (listed["user_name"], listed["method"]) == ("Ada", "oidc")
    actions = [(entry["action"], entry["user_name"]) for entry in (await site.get("/audit"))["items"]]
    assert actions == [("sessions.create", "Ada"), ("users.create", "Ada")]


async def test_the_role_follows_the_groups_at_each_sign_in(site: Api, provider: RealProvider) -> None:
    async with browser(site) as web, browser(site) as other:
        await sign_in(other, provider)
        assert (await other.get("/audit")).status_code == 403
        provider.change("ada", **{**ADA, "groups": ["rota-admins", "rota-ops"], "name": "Ada L."})
        await sign_in(web, provider)
        assert (await other.get("/audit")).status_code == 200, "the earlier session has the new role"
        [user] = (await site.get("/users"))["items"]
        assert (user["role"], user["name"]) == ("admin", "Ada L.")
        provider.change("ada", **ADA)
        await sign_in(web, provider)
        assert (await other.get("/audit")).status_code == 403


async def test_without_a_group_that_has_a_role_nothing_is_created(site: Api, provider: RealProvider) -> None:
    for groups in ([], ["staff"], ["*"], "rota", {"rota-ops": True}, None):
        provider.change("bob", name="Bob", groups=groups)
        async with browser(site) as web:
            refused = await sign_in(web, provider, "bob")
            assert refused.status_code == 403
            assert "none of your groups has a role" in refused.text
            assert await who(web) is None
    assert (await site.get("/users"))["items"] == []


async def test_losing_all_groups_ends_sessions_and_stops_keys_until_the_next_sign_in(
    site: Api, provider: RealProvider
) -> None:
    provider.change("ada", **{**ADA, "groups": ["rota-admins"]})
    async with browser(site) as web, browser(site) as other:
        await sign_in(other, provider)
        token = csrf_of(await other.get("/settings"))
        made = await other.post("/api-keys", data={"csrf_token": token, "name": "mine", "role": "admin"})
        key = made.text.partition("rota_")[2].partition("<")[0]
        headers = {"authorization": f"Bearer rota_{key}"}
        assert (await site.call("GET", "/schedules", headers=headers)).status_code == 200
        provider.change("ada", **{**ADA, "groups": []})
        assert (await sign_in(web, provider)).status_code == 403
        assert await who(other) is None
        refused = await site.call("GET", "/schedules", headers=headers)
        assert refused.status_code == 401
        assert "disabled" in refused.text
        [user] = (await site.get("/users"))["items"]
        assert (user["disabled"], user["disabled_by"]) == (True, "provider")
        provider.change("ada", **ADA)
        assert (await sign_in(web, provider)).status_code == 303
        assert (await site.call("GET", "/schedules", headers=headers)).status_code == 200
        assert (await site.call("GET", "/users", headers=headers)).status_code == 403, "the key has the new role"


async def test_a_disabled_user_stays_out_and_a_deleted_one_is_created_anew(site: Api, provider: RealProvider) -> None:
    async with browser(site) as web:
        await sign_in(web, provider)
        [user] = (await site.get("/users"))["items"]
        assert (await site.call("PATCH", f"/users/{user['id']}", {"disabled": True})).status_code == 200
        assert await who(web) is None
        refused = await sign_in(web, provider)
        assert refused.status_code == 403
        assert "is disabled" in refused.text
        assert await site.count("login_sessions") == 0
        provider.change("ada", **{**ADA, "groups": []})
        assert (await sign_in(web, provider)).status_code == 403
        provider.change("ada", **ADA)
        assert (await sign_in(web, provider)).status_code == 403, "the provider does not undo what an admin did"
        assert (await site.call("DELETE", f"/users/{user['id']}")).status_code == 204
        assert (await sign_in(web, provider)).status_code == 303
        [again] = (await site.get("/users"))["items"]
        assert again["id"] != user["id"]


# accounts are not linked by their address


async def test_an_address_of_another_user_is_not_taken_over(site: Api, provider: RealProvider) -> None:
    body = {"email": "ada@example.org", "name": "Ada by password", "password": "correct horse", "role": "admin"}
    local = (await site.call("POST", "/users", body)).json()
    async with browser(site) as web:
        refused = await sign_in(web, provider)
        assert refused.status_code == 403
        assert "rota user edit ada@example.org --oidc-subject" in refused.text
        assert await who(web) is None
        connected = await site.call("PATCH", f"/users/{local['id']}", {"oidc_subject": "ada"})
        assert connected.status_code == 200, connected.text
        assert (await sign_in(web, provider)).status_code == 303
        assert [user["id"] for user in (await site.get("/users"))["items"]] == [local["id"]]
        assert (await site.get(f"/users/{local['id']}"))["role"] == "operator", "the provider decides on the role"
        token = csrf_of(await web.get("/login"))
        credentials = {"email": "ada@example.org", "password": "correct horse", "csrf_token": token}
        assert (await web.post("/login", data=credentials)).status_code == 403, "the password has ended"
    for change in ({"password": "battery staple"}, {"password": "battery staple", "oidc_subject": "ada"}):
        refused = await site.call("PATCH", f"/users/{local['id']}", change)
        assert refused.status_code == 409
        assert "cannot have a password" in refused.text
    other = {**body, "email": "other@example.org"}
    other_id = (await site.call("POST", "/users", other)).json()["id"]
    taken = await site.call("PATCH", f"/users/{other_id}", {"oidc_subject": "ada"})
    assert taken.status_code == 409
    assert "connected to another user" in taken.text


async def test_commands_that_the_page_shows_are_safe_to_copy(site: Api, provider: RealProvider) -> None:
    address, subject = "a`id`@example.org", "x';id;'"
    body = {"email": address, "name": "x", "password": "correct horse", "role": "viewer"}
    assert (await site.call("POST", "/users", body)).status_code == 201
    provider.change(subject, **{**ADA, "email": address})
    async with browser(site) as web:
        refused = html.unescape((await sign_in(web, provider, subject)).text)
    command = refused.partition("connects it with: ")[2].partition("</p>")[0].rstrip(".")
    assert shlex.split(command) == ["rota", "user", "edit", address, "--oidc-subject", subject]


@pytest.mark.parametrize("verified", [False, None, "yes", 1])
async def test_an_address_that_the_provider_has_not_verified_is_not_used(
    site: Api, provider: RealProvider, verified: object
) -> None:
    body = {"email": "boss@example.org", "name": "Boss", "password": "correct horse", "role": "admin"}
    boss = (await site.call("POST", "/users", body)).json()
    provider.change("eve", **{**ADA, "email": "boss@example.org", "email_verified": verified, "name": "Eve"})
    async with browser(site) as web:
        assert (await sign_in(web, provider, "eve")).status_code == 303
        assert await who(web) == "Eve"
    users = {user["name"]: user for user in (await site.get("/users"))["items"]}
    assert users["Boss"] == boss
    assert users["Eve"]["email"] is None


async def test_subjects_are_distinct_even_with_the_same_name(site: Api, provider: RealProvider) -> None:
    for login in ("x", "X", "x "):
        provider.change(login.strip(), name="Same", groups=["rota-ops"])
    async with browser(site) as web:
        await sign_in(web, provider, "x")
        await sign_in(web, provider, "X")
    assert len((await site.get("/users"))["items"]) == 2


# attacks


@on_sqlite
async def test_another_browser_cannot_complete_a_sign_in(site: Api, provider: RealProvider) -> None:
    """Login CSRF: an attacker sends the victim a link with the attacker's code."""
    async with browser(site) as attacker, browser(site) as victim:
        callback = provider.sign_in(await begin(attacker), "ada")
        assert (await victim.get(callback)).status_code == 403
        await begin(victim)
        assert (await victim.get(callback)).status_code == 403
        assert await who(victim) is None
        foreign = parse_qs(urlsplit(await begin(victim)).query)["state"][0]
        code = parse_qs(urlsplit(callback).query)["code"][0]
        mixed = await victim.get("/login/oidc/callback", params={"code": code, "state": foreign})
        assert mixed.status_code == 403, "the code is bound to the attacker's PKCE verifier"
        assert await who(victim) is None


@on_sqlite
async def test_a_callback_works_once(site: Api, provider: RealProvider) -> None:
    async with browser(site) as web:
        url = await begin(web)
        cookie = web.cookies[COOKIE]
        callback = provider.sign_in(url, "ada")
        assert (await web.get(callback)).status_code == 303
        assert (await web.get(callback)).status_code == 403, "the cookie is gone"
    async with browser(site) as thief:
        thief.cookies.set(COOKIE, cookie, domain="rota.example")
        assert (await thief.get(callback)).status_code == 403, "the provider refuses the code"
        assert await who(thief) is None


@on_sqlite
async def test_a_sign_in_replaces_the_session_of_the_browser(site: Api, provider: RealProvider) -> None:
    """Session fixation: a token that was in the browser before is worth nothing afterwards."""
    async with browser(site) as web, browser(site) as attacker:
        await sign_in(web, provider)
        planted = web.cookies[SESSION_COOKIE]
        await sign_in(web, provider)
        assert web.cookies[SESSION_COOKIE] != planted
        attacker.cookies.set(SESSION_COOKIE, planted, domain="rota.example")
        assert await who(attacker) is None
        assert await site.count("login_sessions") == 1


@on_sqlite
@pytest.mark.parametrize(
    "then", ["https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil.example", "javascript:alert(1)"]
)
async def test_the_page_to_return_to_is_one_of_this_site(site: Api, provider: RealProvider, then: str) -> None:
    async with browser(site) as web:
        entered = await sign_in(web, provider, then=then)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        callback = provider.sign_in(await begin(web), "ada")
        secret = web.cookies[COOKIE].partition(".")[0]
        web.cookies.clear()
        web.cookies.set(COOKIE, f"{secret}.{urlencode({'': then})[1:]}", domain="rota.example")
        assert (await web.get(callback)).headers["location"] == "/", "also if the cookie was changed"


@on_sqlite
async def test_an_answer_of_another_issuer_is_refused(site: Api, provider: RealProvider) -> None:
    async with browser(site) as web:
        callback = provider.sign_in(await begin(web), "ada")
        assert f"iss={urlencode({'': provider.issuer})[1:]}" in callback
        query = {name: values[0] for name, values in parse_qs(urlsplit(callback).query).items()}
        query["iss"] = "https://evil.example"
        assert (await web.get("/login/oidc/callback", params=query)).status_code == 403
        callback = provider.sign_in(await begin(web), "ada")
        query = {name: values[0] for name, values in parse_qs(urlsplit(callback).query).items() if name != "iss"}
        assert (await web.get("/login/oidc/callback", params=query)).status_code == 403
        assert await who(web) is None


@on_sqlite
@pytest.mark.parametrize("site_header", ["cross-site", "same-site"])
async def test_another_site_cannot_start_a_sign_in(site: Api, site_header: str) -> None:
    async with browser(site) as web:
        for path in ("/login/oidc", "/login/oidc/logout"):
            shown = await web.get(path, headers={"sec-fetch-site": site_header})
            assert shown.status_code == 200
            assert "Sign in with Acme" in shown.text
        assert COOKIE not in web.cookies


@on_sqlite
async def test_failed_sign_ins_are_limited_and_do_not_reach_the_provider(site: Api) -> None:
    async with browser(site) as web:
        for _ in range(SIGN_INS_PER_MINUTE):
            assert (await web.get("/login/oidc/callback?code=x&state=y")).status_code == 403
        limited = await web.get("/login/oidc/callback?code=x&state=y")
        assert (limited.status_code, limited.headers["retry-after"]) == (429, "60")


@on_sqlite
@pytest.mark.parametrize(
    "query",
    [
        "",
        "?code=x",
        "?state=%00&code=%00",
        "?state=%ff%fe&code=" + "x" * 9000,
        "?error=%3Cscript%3Ealert(1)%3C/script%3E&state=x",
        "?state=a&state=b&code=c&code=d",
    ],
)
async def test_malformed_answers_get_a_page(site: Api, query: str) -> None:
    async with browser(site) as web:
        await begin(web)
        answer = await web.get(f"/login/oidc/callback{query}")
        assert answer.status_code == 403
        assert "<script>alert" not in answer.text


@on_sqlite
async def test_an_error_of_the_provider_is_explained(site: Api) -> None:
    async with browser(site) as web:
        for error, words in (("access_denied", "was canceled"), ("<b>x\n", "the provider reports: &lt;b&gt;x")):
            query = parse_qs(urlsplit(await begin(web)).query)
            params = {"state": query["state"][0], "error": error, "error_description": "<script>x</script>"}
            params["iss"] = site.app.state.login.oidc.issuer
            answer = await web.get("/login/oidc/callback", params=params)
            assert answer.status_code == 403
            assert words in answer.text.replace("The provider", "the provider")
            assert "<script>x" not in answer.text


async def test_nothing_secret_is_stored_or_logged(site: Api, provider: RealProvider) -> None:
    with capture_logs() as logs:
        async with browser(site) as web:
            url = await begin(web)
            secret = web.cookies[COOKIE].partition(".")[0]
            callback = provider.sign_in(url, "ada")
            query = parse_qs(urlsplit(callback).query)
            assert (await web.get(callback)).status_code == 303
            assert (await web.get(callback)).status_code == 403
            session = web.cookies[SESSION_COOKIE]
            nonce = parse_qs(urlsplit(url).query)["nonce"][0]
    written = await dump(site) + str(logs)
    for text in (secret, query["code"][0], query["state"][0], nonce, session, CLIENT_SECRET, "eyJ"):
        assert text not in written


# other ways


@on_sqlite
async def test_passwords_can_be_switched_off(site: Api, provider: RealProvider) -> None:
    body = {"email": "bob@example.org", "name": "Bob", "password": "correct horse", "role": "admin"}
    assert (await site.call("POST", "/users", body)).status_code == 201
    credentials = {"email": "bob@example.org", "password": "correct horse"}
    async with browser(site) as web:
        token = csrf_of(await web.get("/login"))
        assert (await web.post("/login", data={**credentials, "csrf_token": token})).status_code == 303
        with_settings(site, settings_of(provider), passwords=False)
    async with browser(site) as web:
        shown = await web.get("/login")
        assert 'type="password"' not in shown.text
        link = (await site.call("POST", "/login-links")).json()["url"]
        token = csrf_of(await web.get(link))
        refused = await web.post("/login", data={**credentials, "csrf_token": token})
        assert refused.status_code == 403
        assert "switched off" in refused.text
        assert (await sign_in(web, provider)).status_code == 303


@on_sqlite
async def test_logging_out_offers_to_sign_out_at_the_provider(site: Api, provider: RealProvider) -> None:
    async with browser(site) as web:
        await sign_in(web, provider)
        token = csrf_of(await web.get("/settings"))
        ended = await web.post("/logout", data={"csrf_token": token})
        assert ended.headers["location"] == "/login?signed_out=provider"
        assert await site.count("login_sessions") == 0
        assert "Sign out of Acme" in (await web.get("/login?signed_out=provider")).text
        left = await web.get("/login/oidc/logout")
        url = urlsplit(left.headers["location"])
        assert left.headers["location"].startswith(f"{provider.issuer}/session/end?")
        assert parse_qs(url.query) == {
            "client_id": [CLIENT_ID],
            "post_logout_redirect_uri": [f"{PUBLIC_URL}/login"],
        }
        async with httpx.AsyncClient() as away:
            assert (await away.get(left.headers["location"])).status_code == 200


@on_sqlite
async def test_groups_may_be_in_the_id_token_or_in_the_user_info(
    site: Api, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running_provider(tmp_path_factory.mktemp("whole"), PUBLIC_URL, thin_id_token=False) as other:
        with_settings(site, settings_of(other))
        async with browser(site) as web:
            assert (await sign_in(web, other)).status_code == 303
            assert await who(web) == "Ada"


@on_sqlite
async def test_a_wrong_client_secret_is_named(site: Api, provider: RealProvider) -> None:
    with_settings(site, settings_of(provider, client_secret="wrong"))
    async with browser(site) as web:
        refused = await sign_in(web, provider)
        assert refused.status_code == 403
        assert "ROTA_OIDC_CLIENT_SECRET" in refused.text


@on_sqlite
async def test_an_org_that_does_not_exist_is_named(site: Api, provider: RealProvider) -> None:
    with_settings(site, settings_of(provider, org="acme"))
    async with browser(site) as web:
        assert "ROTA_OIDC_ORG" in (await sign_in(web, provider)).text
        assert (await site.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).status_code == 201
        assert (await sign_in(web, provider)).status_code == 303
    assert (await site.get("/users"))["items"] == [], "they are in org acme"


@on_sqlite
async def test_without_a_provider_the_routes_do_not_exist(api: Api) -> None:
    transport = httpx.ASGITransport(api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://rota") as web:
        for path in ("/login/oidc", "/login/oidc/callback", "/login/oidc/logout"):
            assert (await web.get(path)).status_code == 404
        assert "Sign in with" not in (await web.get("/login")).text


@on_sqlite
async def test_a_sign_in_that_takes_too_long_is_refused(site: Api, provider: RealProvider) -> None:
    async with browser(site) as web:
        callback = provider.sign_in(await begin(web), "ada")
        await site.clock.advance(timedelta(days=1))
        assert (await web.get(callback)).status_code == 403
