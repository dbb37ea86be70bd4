"""A provider that lies, is slow, huge, broken or away. Nobody gets in, the reason is shown, passwords still work."""

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc.jwk import OctKey, RSAKey

from rota.access.oidc import provider as oidc_provider
from rota.access.oidc.settings import OidcSettings
from tests.access import lying_provider as lies
from tests.access.lying_provider import CLIENT_ID, CLIENT_SECRET, LyingProvider, lying_provider, send
from tests.access.test_oidc import browser, who, with_settings
from tests.access.test_web_login import csrf_of
from tests.app.harness import NINE, Api

pytestmark = pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)

DISCOVERY = "/.well-known/openid-configuration"
ROLES = {"rota-ops": "operator"}


@pytest.fixture
def provider() -> Iterator[LyingProvider]:
    with lying_provider() as running:
        yield running


@pytest.fixture
async def site(api: Api, provider: LyingProvider) -> Api:
    await api.clock.advance(datetime.now(UTC) - NINE)
    return with_settings(api, OidcSettings(provider.issuer, CLIENT_ID, ROLES, CLIENT_SECRET, name="Acme"))


async def attempt(web: httpx.AsyncClient, provider: LyingProvider) -> httpx.Response:
    """Begin a sign-in and come back with a code, as if the person had signed in at the provider."""
    begun = await web.get("/login/oidc")
    if begun.status_code != 303:
        return begun
    sent = parse_qs(urlsplit(begun.headers["location"]).query)
    provider.nonce = sent["nonce"][0]
    return await web.get("/login/oidc/callback", params={"code": "a-code", "state": sent["state"][0]})


async def refusal(site: Api, provider: LyingProvider, status: int) -> str:
    """Return the reason that the page shows; checks that no user and no session was created."""
    async with browser(site) as web:
        answer = await attempt(web, provider)
        assert answer.status_code == status, answer.text
        assert await who(web) is None
    assert await site.count("login_sessions") == 0
    assert (await site.get("/users"))["items"] == []
    return answer.text.partition('role="alert">')[2].partition("</p>")[0]


async def test_the_provider_of_these_tests_is_honest_by_default(site: Api, provider: LyingProvider) -> None:
    async with browser(site) as web:
        assert (await attempt(web, provider)).status_code == 303
        assert await who(web) == "Ada"


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example"},
        {"iss": None},
        {"aud": "another-client"},
        {"aud": ["another-client"]},
        {"aud": []},
        {"aud": None},
        {"aud": [CLIENT_ID, "another-client"]},  # without azp
        {"aud": [CLIENT_ID, "another-client"], "azp": "another-client"},
        {"azp": "another-client"},
        {"exp": 1},
        {"exp": None},
        {"exp": "tomorrow"},
        {"iat": 1},
        {"iat": None},
        {"iat": "now"},
        {"iat": 99999999999},
        {"nbf": 99999999999},
        {"nonce": "another"},
        {"nonce": None},
        {"nonce": ["x"]},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "x" * 256},
        {"sub": "ada\u0000"},
        {"sub": "ådå"},
        {"at_hash": "x"},
        {"exp": 1e400},
        {"exp": {"a": 1}},
    ],
    ids=str,
)
async def test_an_id_token_with_wrong_claims_is_refused(
    site: Api, provider: LyingProvider, claims: dict[str, Any]
) -> None:
    provider.claims = claims
    assert "ID token" in await refusal(site, provider, 403)


async def test_an_id_token_of_a_few_seconds_ago_or_ahead_is_accepted(site: Api, provider: LyingProvider) -> None:
    for seconds in (-30, 30):
        now = int(site.clock.now().timestamp())
        provider.claims = {"iat": now + seconds, "exp": now + 300, "aud": [CLIENT_ID]}
        async with browser(site) as web:
            assert (await attempt(web, provider)).status_code == 303


@pytest.mark.parametrize(
    "sign",
    [
        lies.unsigned,
        lambda claims: lies.unsigned(claims, "None"),
        lambda claims: lies.unsigned(claims, "RS256"),
        lies.signed_with_secret,
        lies.signed_with_embedded_key,
        lambda _: "not.a.token",
        lambda _: "x",
        lambda _: "a.b.c.d.e",
        lambda _: "é" * 1000,
    ],
)
async def test_an_id_token_that_the_provider_has_not_signed_is_refused(
    site: Api, provider: LyingProvider, sign: Callable[[dict[str, Any]], str]
) -> None:
    provider.sign = sign
    assert "ID token" in await refusal(site, provider, 403)


async def test_the_public_key_is_not_a_shared_secret(site: Api, provider: LyingProvider) -> None:
    provider.sign = lies.signed_with_public_key(provider)
    assert "HS256" in await refusal(site, provider, 403)


async def test_a_published_shared_secret_is_no_key(site: Api, provider: LyingProvider) -> None:
    provider.published = [OctKey.import_key(CLIENT_SECRET, {"kid": "first"}).as_dict()]
    provider.sign = lies.signed_with_secret
    await refusal(site, provider, 403)
    provider.sign = None
    assert "no key for signatures" in await refusal(site, provider, 503)


async def test_a_short_key_is_not_used(site: Api, provider: LyingProvider) -> None:
    provider.key = RSAKey.generate_key(1024, {"kid": "first"})
    assert "no key for signatures" in await refusal(site, provider, 503)


async def test_a_signature_of_another_key_is_refused(site: Api, provider: LyingProvider) -> None:
    provider.published = [RSAKey.generate_key(2048, {"kid": "first"}).as_dict(private=False)]
    assert "bad_signature" in await refusal(site, provider, 403)


async def test_keys_are_fetched_again_for_an_unknown_key_at_most_once_a_minute(
    site: Api, provider: LyingProvider
) -> None:
    async with browser(site) as web:
        assert (await attempt(web, provider)).status_code == 303
        provider.key = RSAKey.generate_key(2048, {"kid": "second"})  # the provider has changed its key
        await site.clock.advance(timedelta(seconds=61))
        provider.claims = {"iat": int(site.clock.now().timestamp())}
        assert (await attempt(web, provider)).status_code == 303
        assert provider.requests.count("/keys") == 2
        provider.header = {"kid": "unknown"}
        for _ in range(5):
            refused = await attempt(web, provider)
            assert "unknown key" in refused.text
        assert provider.requests.count("/keys") == 2
        await site.clock.advance(timedelta(seconds=61))
        assert (await attempt(web, provider)).status_code == 403
        assert provider.requests.count("/keys") == 3
    assert provider.requests.count(DISCOVERY) == 1


async def test_the_user_info_must_be_about_the_same_subject(site: Api, provider: LyingProvider) -> None:
    provider.claims = {"groups": None}
    provider.user_info = {"sub": "admin", "groups": ["rota-ops"]}
    assert "another subject" in await refusal(site, provider, 403)
    provider.user_info = {"groups": ["rota-ops"], "email": "boss@example.org", "name": "Boss"}
    async with browser(site) as web:
        assert (await attempt(web, provider)).status_code == 303
        assert await who(web) == "Ada", "the ID token, which is signed, takes precedence"


# the discovery document


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"},
        {"issuer": None},
        {"token_endpoint": None},
        {"token_endpoint": "http://evil.example/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": "https://evil.example/" + "x" * 3000},
        {"id_token_signing_alg_values_supported": "RS256"},
    ],
    ids=str,
)
async def test_a_wrong_discovery_document_is_named(
    site: Api, provider: LyingProvider, metadata: dict[str, Any]
) -> None:
    provider.metadata = metadata
    reason = await refusal(site, provider, 503)
    assert "discovery document" in reason
    assert next(iter(metadata)) in reason


async def test_a_final_slash_of_the_issuer_counts(site: Api, provider: LyingProvider) -> None:
    provider.metadata = {"issuer": f"{provider.issuer}/"}
    assert "a final slash included" in await refusal(site, provider, 503)


def huge(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b'{"x": "' + b"x" * 65536)
    except OSError:
        pass


def compressed(handler: BaseHTTPRequestHandler) -> None:
    send(handler, gzip.compress(b"[" * 50_000_000), content_encoding="gzip")


BROKEN: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {
    "huge": huge,
    "compressed": compressed,
    "empty": lambda handler: send(handler, b""),
    "nested": lambda handler: send(handler, b"[" * 100_000),
    "a list": lambda handler: send(handler, b"[]"),
    "html": lambda handler: send(handler, b"<html>"),
    "redirect": lambda handler: send(handler, b"", 302, location="http://127.0.0.1:1/"),
    "error": lambda handler: send(handler, b"{}", 500),
    "hang up": lambda handler: handler.connection.close(),
}


@pytest.mark.parametrize("path", [DISCOVERY, "/keys", "/token", "/userinfo"])
@pytest.mark.parametrize("fault", BROKEN)
async def test_a_broken_answer_is_a_clear_page(site: Api, provider: LyingProvider, path: str, fault: str) -> None:
    provider.answers[path] = BROKEN[fault]
    provider.claims = {"groups": None}  # so that the user info is read
    async with browser(site) as web:
        answer = await attempt(web, provider)
        assert answer.status_code in (403, 503), answer.text
        assert 'role="alert"' in answer.text
        assert await who(web) is None


async def test_a_slow_provider_is_given_up_and_password_login_works(
    site: Api, provider: LyingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc_provider, "REQUEST_SECONDS", 0.2)
    body = {"email": "bob@example.org", "name": "Bob", "password": "correct horse", "role": "viewer"}
    assert (await site.call("POST", "/users", body)).status_code == 201
    done = threading.Event()

    def slow(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while not done.wait(0.02):
                handler.wfile.write(b" ")  # each byte in time, the whole never
        except OSError:
            pass

    provider.answers[DISCOVERY] = slow
    async with browser(site) as web:
        refused = await web.get("/login/oidc")
        assert refused.status_code == 503
        assert "no answer within" in refused.text
        asked = len(provider.requests)
        assert (await web.get("/login/oidc")).status_code == 503
        assert len(provider.requests) == asked, "it is not asked again at once"
        credentials = {"email": "bob@example.org", "password": "correct horse", "csrf_token": csrf_of(refused)}
        assert (await web.post("/login", data=credentials)).status_code == 303
        done.set()
        del provider.answers[DISCOVERY]
        await site.clock.advance(timedelta(seconds=6))
        assert (await web.get("/login/oidc")).status_code == 303, "it is back"


async def test_an_id_token_signs_in_once_even_if_the_provider_accepts_its_code_again(
    site: Api, provider: LyingProvider
) -> None:
    async with browser(site) as web:
        begun = await web.get("/login/oidc")
        sent = parse_qs(urlsplit(begun.headers["location"]).query)
        provider.nonce, cookies = sent["nonce"][0], dict(web.cookies)
        callback = {"code": "a-code", "state": sent["state"][0]}
        assert (await web.get("/login/oidc/callback", params=callback)).status_code == 303
    async with browser(site) as thief:
        for name, value in cookies.items():
            thief.cookies.set(name, value, domain="rota.example")
        assert (await thief.get("/login/oidc/callback", params=callback)).status_code == 403
        assert await who(thief) is None


async def test_the_client_secret_is_sent_to_the_token_endpoint_only(site: Api, provider: LyingProvider) -> None:
    seen: list[tuple[str, str]] = []

    def noted(path: str) -> Callable[[BaseHTTPRequestHandler], None]:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            seen.append((path, handler.headers.get("authorization", "")))
            send(handler, json.dumps(provider.document(path)).encode())

        return answer

    provider.claims = {"groups": None}
    provider.user_info = {"groups": ["rota-ops"]}
    provider.answers = {path: noted(path) for path in (DISCOVERY, "/keys", "/token", "/userinfo")}
    async with browser(site) as web:
        assert (await attempt(web, provider)).status_code == 303
    schemes = {path: header.partition(" ")[0] for path, header in seen}
    assert schemes == {DISCOVERY: "", "/keys": "", "/token": "Basic", "/userinfo": "Bearer"}
