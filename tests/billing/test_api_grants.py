"""Grants over HTTP: creation, rejection, and the effects of a revocation."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from rota.access.store import accounts
from rota.app.asgi import create_site
from rota.core.ids import new_id
from tests.app.harness import Api
from tests.engine.harness import NINE, Harness, at, open_harness

HELLO = {"scopes": ["task:execute:hello"]}


async def give(api: Api, **fields: Any) -> Any:
    answer = await api.call("POST", "/grants", {**HELLO, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_a_grant_is_made_listed_and_read(api: Api) -> None:
    scopes = ["graph:execute:langgraph:poet", "graph:execute:python:*", "pipeline:run:sales/gold/report"]
    later = (NINE + timedelta(days=30)).isoformat()
    answer = await api.call("POST", "/grants", {"scopes": scopes, "expires_at": later, "budget": {"per_day": 5}})
    made = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/api/v1/grants/{made['id']}")
    assert (made["scopes"], made["expires_at"], made["revoked_at"]) == (scopes, later, None)
    assert (made["budget"], made["spent"]) == ({"per_day": 5, "total": None}, 0)
    account = await api.get("/billing/account")
    assert (made["owner_id"], made["billing_account_id"]) == (account["owner_id"], account["id"])
    other = await give(api, billing_account_id=account["id"])
    await api.schedule("nightly", grant_id=other["id"])
    assert await api.get(f"/grants/{other['id']}") == {**other, "schedules": ["nightly"]}  # what a revocation stops
    first = await api.get("/grants", limit=1)
    rest = await api.get("/grants", cursor=first["next_cursor"])
    assert (first["items"] + rest["items"], rest["next_cursor"]) == ([other, made], None)
    assert (await api.call("GET", f"/grants/{new_id()}")).status_code == 404
    everything = await give(api, scopes=["graph:execute:*"], consent=True)
    assert everything["scopes"] == ["graph:execute:*"]


async def test_a_grant_that_names_a_task_allows_a_schedule_of_its_id(api: Api) -> None:
    task = (await api.call("POST", "/tasks", {"name": "disk", "command": "df"})).json()
    held = await give(api, scopes=["task:execute:disk"])
    body = {"cron_expression": "0 2 * * *", "grant_id": held["id"]}
    assert (await api.call("POST", f"/tasks/{task['id']}/$schedule", body)).status_code == 201
    other = await give(api, scopes=["task:execute:other"])
    assert (await api.call("POST", "/tasks/disk/$schedule", {**body, "grant_id": other["id"]})).status_code == 422


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"scopes": "task:execute:hello"}, "scopes"),
        ({"scopes": ["task:execute:hello"] * 101}, "scopes"),
        ({"scopes": ["everything"]}, "scopes"),
        ({"scopes": ["graph:execute:poet"]}, "scopes"),  # no provider
        ({"scopes": ["graph:execute:*:poet"]}, "scopes"),
        ({"scopes": ["task:execute:"]}, "scopes"),
        ({"scopes": ["task:execute:" + "x" * 300]}, "scopes"),
        ({"scopes": [7]}, "scopes"),
        ({"scopes": ["graph:execute:*"]}, "scopes"),  # without consent
        ({"scopes": ["graph:execute:*"], "consent": False}, "scopes"),
        ({**HELLO, "consent": "yes"}, "consent"),
        ({**HELLO, "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({**HELLO, "expires_at": NINE.isoformat()}, "expires_at"),
        ({**HELLO, "expires_at": "tomorrow"}, "expires_at"),
        ({**HELLO, "budget": {"per_day": -1}}, "budget.per_day"),
        ({**HELLO, "budget": {"total": 2**53 + 1}}, "budget.total"),
        ({**HELLO, "budget": {"total": 10**30}}, "budget.total"),
        ({**HELLO, "budget": {"total": True}}, "budget.total"),
        ({**HELLO, "budget": {"total": 1.5}}, "budget.total"),
        ({**HELLO, "budget": {"total": "5"}}, "budget.total"),
        ({**HELLO, "budget": {"per_week": 5}}, "per_week"),
        ({**HELLO, "budget": 5}, "budget"),
        ({**HELLO, "budget": {}}, "budget"),
        ({**HELLO, "billing_account_id": "mine"}, "billing_account_id"),
        ({**HELLO, "owner_id": "01KQRS3Z5T8M0A2N6Y4V7W9XCD"}, "owner_id"),
    ],
)
async def test_a_wrong_field_of_a_grant_is_named(api: Api, body: Any, field: str) -> None:
    refused = await api.call("POST", "/grants", body)
    assert refused.status_code == 422, refused.text
    assert [error["field"] for error in refused.json()["errors"]] == [field]
    assert await api.count("grants") == 0


async def test_a_grant_is_charged_to_an_account_of_its_org(api: Api) -> None:
    key = (await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).json()["admin_key"]
    theirs = {"authorization": f"Bearer {key}"}
    account = (await api.call("GET", "/billing/account", headers=theirs)).json()["id"]
    assert (await api.call("POST", "/grants", {**HELLO, "billing_account_id": account})).status_code == 404
    held = await give(api)
    for method, path in (("GET", ""), ("POST", "/$revoke")):
        assert (await api.call(method, f"/grants/{held['id']}{path}", headers=theirs)).status_code == 404


async def test_only_an_admin_lets_others_pay_for_a_grant(api: Api) -> None:
    user = await api.db.tx(accounts.create_user, api.org_id, "ada@example.org", "ada", "x", "operator", NINE)
    key = await api.db.tx(accounts.create_key, api.org_id, "ada", "operator", NINE, user_id=user)
    hers = {"authorization": f"Bearer {key}"}
    own, other = (await api.get("/billing/account", owner_id=user))["id"], (await api.get("/billing/account"))["id"]
    assert (await api.call("POST", "/grants", {**HELLO, "billing_account_id": own}, headers=hers)).status_code == 201
    assert (await api.call("POST", "/grants", {**HELLO, "billing_account_id": other}, headers=hers)).status_code == 403
    assert (await give(api, billing_account_id=own))["billing_account_id"] == own


async def test_the_grants_of_a_person_who_is_removed_are_revoked(api: Api) -> None:
    user = await api.db.tx(accounts.create_user, api.org_id, "ada@example.org", "ada", "x", "operator", NINE)
    key = await api.db.tx(accounts.create_key, api.org_id, "ada", "operator", NINE, user_id=user)
    hers, own = await api.call("POST", "/grants", HELLO, headers={"authorization": f"Bearer {key}"}), await give(api)
    await api.schedule("nightly", grant_id=hers.json()["id"])
    assert (await api.call("DELETE", f"/users/{user}")).status_code == 204
    (lapsed,) = (await api.get("/grants/$forecast"))["items"]
    assert (lapsed["schedule_name"], lapsed["reason"]) == ("nightly", "grant_revoked")
    assert (await api.get(f"/grants/{own['id']}"))["revoked_at"] is None


async def test_a_schedule_names_a_grant_that_allows_it_or_is_refused(api: Api) -> None:
    held, other = await give(api), await give(api, scopes=["task:execute:bye"])
    made = await api.schedule("nightly", grant_id=held["id"])
    assert made["grant_id"] == held["id"]
    body = {"target": "hello", "cron_expression": "0 12 * * *"}
    await api.call("POST", f"/grants/{held['id']}/$revoke")
    for grant_id, code in ((other["id"], "grant_scope"), (held["id"], "grant_revoked"), (new_id(), "grant_not_found")):
        refused = await api.call("POST", "/schedules", {**body, "grant_id": grant_id})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "grant_id")
        assert code in refused.json()["detail"]


async def test_taking_a_grant_back_twice_is_as_once(api: Api) -> None:
    held = await give(api)
    first = await api.call("POST", f"/grants/{held['id']}/$revoke")
    await api.clock.advance(timedelta(hours=1))
    again = await api.call("POST", f"/grants/{held['id']}/$revoke", {"cancel_running": True})
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json() == {**held, "revoked_at": NINE.isoformat()}
    wrong = await api.call("POST", f"/grants/{held['id']}/$revoke", {"cancel_running": "yes"})
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "cancel_running")


async def test_the_forecast_lists_what_will_not_run_since_when_and_why(api: Api) -> None:
    soon = NINE + timedelta(days=3)
    held = {"lasting": await give(api), "soon": await give(api, expires_at=soon.isoformat()), "gone": await give(api)}
    for name, grant in held.items():
        await api.schedule(name, grant_id=grant["id"])
    await api.call("POST", f"/grants/{held['gone']['id']}/$revoke")
    forecasts = (await api.get("/grants/$forecast", days=7))["items"]
    assert [(forecast["schedule_name"], forecast["lapses_at"], forecast["reason"]) for forecast in forecasts] == [
        ("gone", NINE.isoformat(), "grant_revoked"),
        ("soon", soon.isoformat(), "grant_expired"),
    ]
    assert [forecast["schedule_name"] for forecast in (await api.get("/grants/$forecast", days=2))["items"]] == ["gone"]
    assert (await api.call("GET", "/grants/$forecast?days=0")).status_code == 422


# while something runs


@pytest.fixture
async def harness(clean_url: str) -> AsyncIterator[Harness]:
    harness = await open_harness(clean_url)
    yield harness
    await harness.close()


@pytest.fixture
async def lived_in(harness: Harness) -> AsyncIterator[Api]:
    """The API of an installation where time passes and work is done."""
    app = create_site(harness.engine, harness.db)
    key = await harness.db.tx(accounts.create_key, harness.org_id, "admin", "admin", NINE)
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://rota", headers=headers) as client:
        yield Api(client, app, harness.engine, harness.db, harness.clock, harness.org_id, key)


async def test_the_run_after_a_revocation_is_skipped_and_every_view_says_why(harness: Harness, lived_in: Api) -> None:
    api = lived_in
    held = await give(api)
    await api.schedule("nightly", grant_id=held["id"], cron_expression="*/10 * * * *")
    await harness.run_until(at("9:10"))
    await api.call("POST", f"/grants/{held['id']}/$revoke")
    await harness.run_until(at("9:20"))
    skipped, ran = (await api.get("/runs"))["items"]
    assert (ran["status"], skipped["status"], skipped["reason"]) == ("success", "skipped", "grant_revoked")
    slot = (await api.get("/slots", schedule="nightly"))["items"][0]
    assert (slot["verdict"], slot["reason"]) == ("skipped", "grant_revoked")
    by_slot = await api.get("/slots/$why", schedule="nightly", slot=at("9:20").isoformat())
    assert by_slot == await api.get(f"/runs/{skipped['id']}/$why")
    assert "skipped, because its grant was revoked (grant_revoked)" in " ".join(by_slot["sentences"])
    schedule = await api.get("/schedules/nightly")
    assert (schedule["next_run_at"], schedule["skipped_count"]) == (
        at("9:30").isoformat(),
        1,
    )  # the next slot is planned


@pytest.mark.parametrize(("stop", "status", "reason"), [(False, "success", None), (True, "canceled", "grant_revoked")])
async def test_what_runs_finishes_unless_it_is_to_be_canceled(
    harness: Harness, lived_in: Api, stop: bool, status: str, reason: str | None
) -> None:
    api = lived_in
    harness.fake_runner.long, harness.fake_runner.stubborn = lambda _: True, True
    held = await give(api)
    await api.schedule("nightly", grant_id=held["id"], cron_expression="*/10 * * * *")
    await harness.run_until(at("9:10"))
    await api.call("POST", f"/grants/{held['id']}/$revoke", {"cancel_running": stop})
    job_id = (await api.get("/runs"))["items"][0]["job_id"]
    sentences = " ".join((await api.get(f"/runs/{job_id}/$why"))["sentences"])
    assert ("asked to stop" in sentences and "because its grant was revoked" in sentences) is stop
    harness.fake_runner.stubborn = False
    await harness.work()
    if not stop:
        await harness.release()
    (run,) = (await api.get("/runs"))["items"]
    assert (run["status"], run["reason"]) == (status, reason)
