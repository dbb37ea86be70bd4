"""Failed logins are limited, and do not lock out other users."""

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from rota.access.store import accounts
from rota.app.settings import Settings
from rota.core.errors import Invalid
from rota.frame.http.guessing import (
    FAILURES_PER_MINUTE,
    PASSWORDS_PER_ADDRESS,
    PASSWORDS_PER_PERSON,
    Bucket,
    network_of,
)
from tests.app.command_line import running_server
from tests.app.harness import SERVICE_TOKEN, Api

ADA = {"email": "ada@example.org", "name": "Ada", "password": "correct horse", "role": "viewer"}
on_sqlite = pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)  # where the database does not matter


@pytest.fixture(autouse=True)
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing hundreds of passwords would take a minute."""
    monkeypatch.setattr(
        accounts, "password_matches", lambda hashed, text: hashed is not None and text == "correct horse"
    )


def at(api: Api, address: str, **more: Any) -> httpx.AsyncClient:
    """A client at another address."""
    transport = httpx.ASGITransport(api.app, raise_app_exceptions=False, client=(address, 5000))
    return httpx.AsyncClient(transport=transport, base_url="http://rota", **more)


async def try_passwords(client: httpx.AsyncClient, *emails: str, password: str = "wrong") -> list[int]:
    """Return the status of a login for each of these users."""
    page = await client.get("/login")
    token = re.search(r'name="csrf_token" value="([0-9a-f]{64})"', page.text)
    assert token
    forms = [{"csrf_token": token[1], "email": email, "password": password} for email in emails]
    return [(await client.post("/login", data=form)).status_code for form in forms]


@on_sqlite
async def test_wrong_passwords_from_one_address_do_not_lock_a_person_out_elsewhere(api: Api) -> None:
    await api.call("POST", "/users", ADA)
    async with at(api, "192.0.2.1") as guesser, at(api, "192.0.2.2") as ada:
        guesses = await try_passwords(guesser, *[ADA["email"]] * (FAILURES_PER_MINUTE + 1))
        assert guesses == [403] * FAILURES_PER_MINUTE + [429]
        assert await try_passwords(ada, ADA["email"], password="correct horse") == [303]


@on_sqlite
async def test_unknown_keys_from_an_address_do_not_lock_out_passwords_and_links_there(api: Api) -> None:
    await api.call("POST", "/users", ADA)
    url = (await api.call("POST", "/login-links")).json()["url"]
    async with at(api, "192.0.2.1") as there:
        for number in range(FAILURES_PER_MINUTE + 1):
            answer = await there.get("/api/v1/runs", headers={"x-api-key": f"rota_{number:07}{'x' * 36}"})
        assert answer.status_code == 429
        assert await try_passwords(there, ADA["email"], password="correct horse") == [303]
        guessed = [(await there.get("/login?token=guess")).status_code for _ in range(FAILURES_PER_MINUTE + 1)]
        assert guessed == [403] * FAILURES_PER_MINUTE + [429]
        assert (await there.get(url)).status_code in (200, 303)  # a good link is no guess


@on_sqlite
async def test_passwords_for_many_people_and_from_many_addresses_are_limited(api: Api) -> None:
    async with at(api, "192.0.2.1") as sprayer:
        people = [f"p{number}@example.org" for number in range(PASSWORDS_PER_ADDRESS + 1)]
        assert await try_passwords(sprayer, *people) == [403] * PASSWORDS_PER_ADDRESS + [429]
    now = api.clock.now()
    api.app.state.failures.add(
        now, *[Bucket("password of  eve@example.org", PASSWORDS_PER_PERSON)] * PASSWORDS_PER_PERSON
    )
    async with at(api, "192.0.2.3") as other:
        assert await try_passwords(other, "eve@example.org") == [429]
        await api.clock.advance(timedelta(minutes=1))
        assert await try_passwords(other, "eve@example.org") == [403]


@on_sqlite
async def test_guesses_of_the_service_token_are_limited(api: Api) -> None:
    async with at(api, "192.0.2.1") as guesser:
        asked = [guesser.get("/api/internal/graphs", headers={"authorization": f"Bearer g{n}"}) for n in range(21)]
        assert sorted(answer.status_code for answer in await asyncio.gather(*asked)) == [401] * 20 + [429]
        good = await guesser.get("/api/internal/graphs", headers={"authorization": f"Bearer {SERVICE_TOKEN}"})
        assert good.status_code == 200


def test_a_service_token_has_32_characters_and_is_not_shown() -> None:
    with pytest.raises(Invalid, match="shorter than 32 characters") as refused:
        Settings.load(service_token="abc-secret")
    assert "abc-secret" not in refused.value.message
    with pytest.raises(Invalid, match="not an address or network"):
        Settings.load(trusted_proxies="10.0.0.0/8, proxy.local")
    assert Settings.load(trusted_proxies="10.0.0.0/8, ::1").trusted_proxies == ["10.0.0.0/8", "::1"]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        (None, "None"),
    ],
)
def test_addresses_of_one_ipv6_network_count_together(address: str | None, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.parametrize(("trusted", "statuses"), [("", [401] * 20 + [429]), ("127.0.0.1", [401] * 21)])
def test_a_forwarded_address_counts_only_from_a_trusted_proxy(
    tmp_path: Path, trusted: str, statuses: list[int]
) -> None:
    with running_server(tmp_path, ROTA_TRUSTED_PROXIES=trusted):
        url = Path(tmp_path / "data" / "server.json").read_text().split('"')[3]
        with httpx.Client(base_url=url, timeout=60) as client:
            answers = [
                client.get(
                    "/api/v1/runs",
                    headers={"x-api-key": f"rota_{number:07}{'x' * 36}", "x-forwarded-for": f"192.0.2.{number}"},
                ).status_code
                for number in range(21)
            ]
    assert answers == statuses


@on_sqlite
async def test_guesses_of_webhook_tokens_are_limited(api: Api) -> None:
    for number in range(FAILURES_PER_MINUTE):
        answer = await api.call("POST", "/webhooks", headers={"x-webhook-token": f"guess-{number}"})
        assert answer.status_code == 404
    limited = await api.call("POST", "/webhooks", headers={"x-webhook-token": "guess"})
    assert (limited.status_code, limited.json()["code"]) == (429, "too_many_failures")
