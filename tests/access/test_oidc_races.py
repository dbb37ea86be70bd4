"""Sign-ins at the same time: an ID token signs in once, an identity is one user."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from rota.access.oidc.settings import OidcSettings
from tests.access.lying_provider import CLIENT_ID, CLIENT_SECRET, LyingProvider, lying_provider
from tests.access.real_provider import PUBLIC_URL
from tests.access.test_oidc import with_settings
from tests.app.harness import NINE, Api

AT_ONCE = 12


@pytest.fixture
def provider() -> Iterator[LyingProvider]:
    """A provider that accepts each code as often as it is sent."""
    with lying_provider() as running:
        yield running


@pytest.fixture
async def site(api: Api, provider: LyingProvider) -> Api:
    await api.clock.advance(datetime.now(UTC) - NINE)
    return with_settings(api, OidcSettings(provider.issuer, CLIENT_ID, {"rota-ops": "operator"}, CLIENT_SECRET))


def client(site: Api) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(site.app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=PUBLIC_URL)


async def test_a_callback_that_is_sent_many_times_at_once_logs_in_once(site: Api, provider: LyingProvider) -> None:
    async with client(site) as web:
        sent = parse_qs(urlsplit((await web.get("/login/oidc")).headers["location"]).query)
        provider.nonce, cookies = sent["nonce"][0], "; ".join(f"{name}={value}" for name, value in web.cookies.items())
    async with client(site) as thieves:
        params, headers = {"code": "a-code", "state": sent["state"][0]}, {"cookie": cookies}
        requests = (thieves.get("/login/oidc/callback", params=params, headers=headers) for _ in range(AT_ONCE))
        statuses = sorted(answer.status_code for answer in await asyncio.gather(*requests))
    assert statuses == [303] + [403] * (AT_ONCE - 1)
    assert await site.count("login_sessions") == 1


async def test_first_sign_ins_of_one_person_at_once_create_one_user(site: Api, provider: LyingProvider) -> None:
    """Each browser has its own attempt; the nonce of the ID token is taken from the code."""
    provider.nonce_is_code = True

    async def attempt() -> int:
        async with client(site) as web:
            sent = parse_qs(urlsplit((await web.get("/login/oidc")).headers["location"]).query)
            params = {"code": sent["nonce"][0], "state": sent["state"][0]}
            return (await web.get("/login/oidc/callback", params=params)).status_code

    statuses = await asyncio.gather(*(attempt() for _ in range(AT_ONCE)))
    assert statuses == [303] * AT_ONCE
    assert len((await site.get("/users"))["items"]) == 1
    assert await site.count("login_sessions") == AT_ONCE
