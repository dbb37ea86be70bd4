"""Operators who try to let work run at the expense of another person's grant."""

from typing import Any

import pytest

from tests.app.harness import Api
from tests.billing.test_api_billing import new_user

GRAPH: dict[str, Any] = {"name": "poems", "kind": "graph", "target": "python:echo", "cron_expression": "0 9 * * 1"}


async def ask(api: Api, headers: dict[str, str], method: str, path: str, body: Any = None) -> Any:
    return await api.call(method, path, body, headers=headers)


async def alice_and_bob(api: Api) -> tuple[str, dict[str, str], str, dict[str, str]]:
    return *(await new_user(api, "alice", "operator")), *(await new_user(api, "bob", "operator"))


async def grant_of(api: Api, headers: dict[str, str], *scopes: str) -> str:
    answer = await ask(api, headers, "POST", "/grants", {"scopes": list(scopes)})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def test_only_its_owner_or_an_admin_runs_a_graph_under_a_grant(api: Api) -> None:
    _, alice, _, bob = await alice_and_bob(api)
    held = await grant_of(api, alice, "graph:execute:python:echo")
    run = ("POST", "/graphs/python:echo/$run", {"grant_id": held})
    refused = await ask(api, bob, *run)
    assert (refused.status_code, "only its owner or an admin" in refused.text) == (403, True)
    assert await api.count("jobs") == 0
    assert (await ask(api, alice, *run)).status_code == 202
    assert (await api.call(*run)).status_code == 202  # the admin


async def test_a_grant_is_named_for_a_schedule_only_by_its_owner_or_an_admin(api: Api) -> None:
    _, alice, _, bob = await alice_and_bob(api)
    held = await grant_of(api, alice, "task:execute:hello")
    body = {"name": "nightly", "target": "hello", "cron_expression": "0 2 * * *"}
    assert (await ask(api, bob, "POST", "/schedules", {**body, "grant_id": held})).status_code == 403
    assert (await ask(api, bob, "POST", "/schedules", body)).status_code == 201
    assert (await ask(api, bob, "PATCH", "/schedules/nightly", {"grant_id": held})).status_code == 403
    refused = await ask(api, bob, "POST", "/tasks/hello/$schedule", {"cron_expression": "0 2 * * *", "grant_id": held})
    assert refused.status_code == 403
    assert (await api.call("PATCH", "/schedules/nightly", {"grant_id": held})).status_code == 200


async def test_another_person_edits_and_runs_a_schedule_under_a_grant_only_as_it_stands(api: Api) -> None:
    _, alice, _, bob = await alice_and_bob(api)
    held = await grant_of(api, alice, "task:execute:hello")
    body = {"name": "nightly", "target": "hello", "cron_expression": "0 2 * * *", "grant_id": held}
    assert (await ask(api, alice, "POST", "/schedules", body)).status_code == 201
    assert (await ask(api, bob, "PATCH", "/schedules/nightly", {"cron_expression": "0 3 * * *"})).status_code == 200
    whole = {**body, "cron_expression": "0 4 * * *"}
    assert (await ask(api, bob, "PUT", "/schedules/nightly", whole)).status_code == 200
    assert (await ask(api, bob, "PATCH", "/schedules/nightly", {"input": {"name": "bob"}})).status_code == 403
    run = "/schedules/nightly/$run"
    assert (await ask(api, bob, "POST", run, {"input": {"name": "bob"}})).status_code == 403
    assert (await ask(api, bob, "POST", run, {})).status_code == 202
    answer = await ask(api, alice, "POST", run, {"input": {"name": "alice"}, "overlap": "allow"})
    assert answer.status_code == 202


@pytest.mark.parametrize(
    "change",
    [{"input": {"say": "bob"}}, {"input": {"say": "bob"}, "grant_id": None}],
)
async def test_a_minted_grant_is_minted_anew_for_the_person_who_changes_the_work(
    api: Api, change: dict[str, Any]
) -> None:
    alice_id, alice, bob_id, bob = await alice_and_bob(api)
    made = (await ask(api, alice, "POST", "/schedules", GRAPH)).json()
    assert (await api.get(f"/grants/{made['grant_id']}"))["owner_id"] == alice_id
    assert (await ask(api, bob, "POST", "/schedules/poems/$run", {"input": {"say": "bob"}})).status_code == 403
    same = await ask(api, bob, "PATCH", "/schedules/poems", {"cron_expression": "0 8 * * 1", "grant_id": None})
    assert same.json()["grant_id"] == made["grant_id"]  # the work is the same
    changed = await ask(api, bob, "PATCH", "/schedules/poems", change)
    assert changed.status_code == 200, changed.text
    fresh = await api.get(f"/grants/{changed.json()['grant_id']}")
    account = (await ask(api, bob, "GET", "/billing/account")).json()["id"]
    assert (fresh["owner_id"], fresh["billing_account_id"]) == (bob_id, account)
    assert (await api.get(f"/grants/{made['grant_id']}"))["revoked_at"] is not None


async def test_a_wide_grant_of_another_person_is_not_kept_for_other_work(api: Api) -> None:
    _, alice, bob_id, bob = await alice_and_bob(api)
    held = await grant_of(api, alice, "graph:execute:python:*")
    await ask(api, alice, "POST", "/schedules", {**GRAPH, "grant_id": held})
    work = {"input": {"say": "bob"}}
    assert (await ask(api, bob, "PATCH", "/schedules/poems", work)).status_code == 403
    changed = await ask(api, bob, "PATCH", "/schedules/poems", {**work, "grant_id": None})
    assert (await api.get(f"/grants/{changed.json()['grant_id']}"))["owner_id"] == bob_id
    assert (await api.get(f"/grants/{held}"))["revoked_at"] is None


async def test_a_grant_is_revoked_only_by_its_owner_or_an_admin(api: Api) -> None:
    _, alice, _, bob = await alice_and_bob(api)
    first, second = [await grant_of(api, alice, "task:execute:hello") for _ in range(2)]
    assert (await ask(api, bob, "POST", f"/grants/{first}/$revoke")).status_code == 403
    assert (await api.get(f"/grants/{first}"))["revoked_at"] is None
    assert (await ask(api, alice, "POST", f"/grants/{first}/$revoke")).status_code == 200
    assert (await api.call("POST", f"/grants/{second}/$revoke")).status_code == 200
