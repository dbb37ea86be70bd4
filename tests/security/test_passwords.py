"""Common passwords are rejected, and users change their own."""

import asyncio
import time

import pytest

from rota.access.password_thread import in_password_thread
from rota.access.store import accounts
from rota.frame.http.guessing import FAILURES_PER_MINUTE
from tests.app.harness import NINE, Api

ADA = {"email": "ada.lovelace@example.org", "name": "Ada", "password": "correct horse", "role": "viewer"}
ON_SQLITE = pytest.mark.parametrize("clean_url", ["sqlite"], indirect=True)  # where the database does not matter


@ON_SQLITE
async def test_common_passwords_and_the_address_are_refused(api: Api) -> None:
    for password in (
        "password",
        "12345678",
        "PassWord1",
        "ada.lovelace@example.org",
        "Ada.Lovelace",
        "short",
        " " * 8,
        "abAB" * 5,
    ):
        refused = await api.call("POST", "/users", {**ADA, "password": password})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "password"), password
        assert refused.json()["errors"][0]["value"] == "'…'"
    ada = (await api.call("POST", "/users", ADA)).json()
    for password in ("qwertyuiop", "ada.lovelace"):
        assert (await api.call("PATCH", f"/users/{ada['id']}", {"password": password})).status_code == 422


async def test_passwords_are_compared_one_after_the_other() -> None:
    running, most = 0, 0

    def compare() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.01)
        running -= 1

    await asyncio.gather(*(in_password_thread(compare) for _ in range(8)))
    assert most == 1


async def test_people_change_their_own_password(api: Api) -> None:
    ada = (await api.call("POST", "/users", ADA)).json()
    own: dict[str, dict[str, str]] = {}
    for name, scopes in (("plain", []), ("narrowed", ["users"])):
        text = await api.db.tx(accounts.create_key, api.org_id, name, "viewer", NINE, user_id=ada["id"], scopes=scopes)
        own[name] = {"authorization": f"Bearer {text}"}
    body = {"current_password": "correct horse", "new_password": "battery staple"}
    path = "/users/me/$password"
    assert (await api.call("POST", path, body, headers=own["narrowed"])).status_code == 403
    wrong = {**body, "current_password": "wrong horse"}
    assert (await api.call("POST", path, wrong, headers=own["plain"])).status_code == 403
    weak = await api.call("POST", path, {**body, "new_password": "ada.lovelace"}, headers=own["plain"])
    assert weak.json()["errors"][0]["field"] == "new_password"
    assert (await api.call("POST", path, body, headers=own["plain"])).status_code == 204
    assert (await api.call("POST", path, body, headers=own["plain"])).status_code == 403  # it is another one now
    (line,) = (await api.get("/audit", action="users.password"))["items"]
    assert (line["resource_id"], line["user_id"]) == (ada["id"], ada["id"])
    assert "staple" not in str(line)


@ON_SQLITE
async def test_guesses_of_the_current_password_are_limited(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "password_matches", lambda *_: False)  # hashing takes long
    ada = (await api.call("POST", "/users", ADA)).json()
    text = await api.db.tx(accounts.create_key, api.org_id, "k", "viewer", NINE, user_id=ada["id"])
    body = {"current_password": "wrong horse", "new_password": "battery staple"}
    headers = {"authorization": f"Bearer {text}"}
    tries = range(FAILURES_PER_MINUTE + 1)
    statuses = [(await api.call("POST", "/users/me/$password", body, headers=headers)).status_code for _ in tries]
    assert statuses == [403] * FAILURES_PER_MINUTE + [429]
