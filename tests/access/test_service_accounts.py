"""Service accounts: what their keys may do, and that they cannot log in."""

from typing import Any

import pytest

from rota.access.store import logins
from rota.frame.http.auth import scopes_within
from tests.app.harness import Api


async def account(api: Api, name: str = "deploy", role: str = "operator", **more: Any) -> Any:
    answer = await api.call("POST", "/service-accounts", {"name": name, "role": role, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def key_of(api: Api, account: Any, role: str = "admin", **more: Any) -> tuple[str, dict[str, str]]:
    """Return the id of a new key and the header that sends it."""
    answer = await api.call("POST", "/api-keys", {"name": "k", "role": role, "user_id": account["id"], **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"], {"authorization": f"Bearer {answer.json()['key']}"}


async def test_a_key_acts_for_its_service_account_and_the_audit_log_names_it(api: Api) -> None:
    deploy = await account(api)
    _, headers = await key_of(api, deploy)
    body = {"name": "nightly", "target": "hello", "schedule_type": "interval", "interval_seconds": 3600}
    made = await api.call("POST", "/schedules", body, headers=headers)
    assert made.status_code == 201, made.text
    assert made.json()["owner_id"] == deploy["id"]
    grant = await api.call("POST", "/grants", {"scopes": ["task:execute:hello"]}, headers=headers)
    assert grant.status_code == 201, grant.text
    assert grant.json()["owner_id"] == deploy["id"]
    entries = (await api.get("/audit", user_id=deploy["id"]))["items"]
    assert [(entry["action"], entry["user_name"], entry["key_name"]) for entry in entries] == [
        ("grants.create", "deploy", "k"),
        ("schedules.create", "deploy", "k"),
    ]
    assert [user["name"] for user in (await api.get("/users"))["items"]] == [], "it is not a person"


async def test_its_keys_have_at_most_its_role(api: Api) -> None:
    deploy = await account(api, role="operator")
    _, headers = await key_of(api, deploy, "admin")
    assert (await api.call("GET", "/users", headers=headers)).status_code == 403
    assert (await api.call("POST", "/schedules/x/$pause", {"reason": "x"}, headers=headers)).status_code == 404
    await api.call("PATCH", f"/service-accounts/{deploy['id']}", {"role": "viewer"})
    assert (await api.call("POST", "/schedules/x/$pause", {"reason": "x"}, headers=headers)).status_code == 403


async def test_its_keys_have_at_most_its_scopes(api: Api) -> None:
    deploy = await account(api, scopes=["runs", "schedules"])
    _, whole = await key_of(api, deploy)
    _, narrow = await key_of(api, deploy, scopes=["runs:read"])
    for headers, statuses in ((whole, (200, 200, 403)), (narrow, (200, 403, 403))):
        paths = ("/runs", "/schedules", "/tasks")
        answers = [(await api.call("GET", path, headers=headers)).status_code for path in paths]
        assert tuple(answers) == statuses
    wider = {"name": "k", "role": "viewer", "user_id": deploy["id"], "scopes": ["tasks"]}
    refused = await api.call("POST", "/api-keys", wider)
    assert refused.status_code == 422
    assert "which has runs, schedules" in refused.text
    await api.call("PATCH", f"/service-accounts/{deploy['id']}", {"scopes": ["tasks"]})
    answers = [(await api.call("GET", path, headers=whole)).status_code for path in ("/runs", "/schedules", "/tasks")]
    assert answers == [403, 403, 403], "its keys do not get more than they were created with"


@pytest.mark.parametrize(
    ("scopes", "limits", "effective"),
    [
        ([], [], []),
        (["runs"], [], ["runs"]),
        ([], ["runs"], ["runs"]),
        (["runs"], ["runs:read"], ["runs:read"]),
        (["runs:read"], ["runs"], ["runs:read"]),
        (["runs"], ["tasks"], ["none"]),
        (["shell"], ["tasks"], ["tasks"]),
        (["shell"], ["shell"], ["shell"]),
        (["host-shell"], ["shell"], ["host-shell"]),
        (["shell"], ["host-shell"], []),
        (["runs", "shell"], ["runs", "tasks"], ["runs"]),
    ],
)
def test_scopes_of_a_key_are_limited_by_those_of_the_account(
    scopes: list[str], limits: list[str], effective: list[str]
) -> None:
    assert sorted(scopes_within(scopes, limits)) == effective


async def test_keys_are_rotated_with_an_overlap(api: Api) -> None:
    deploy = await account(api)
    old_id, old = await key_of(api, deploy)
    _, new = await key_of(api, deploy)
    assert [(await api.call("GET", "/runs", headers=headers)).status_code for headers in (old, new)] == [200, 200]
    assert (await api.call("DELETE", f"/api-keys/{old_id}")).status_code == 204
    assert [(await api.call("GET", "/runs", headers=headers)).status_code for headers in (old, new)] == [401, 200]
    listed = (await api.get("/api-keys", user_id=deploy["id"]))["items"]
    assert [(key["user_name"], key["revoked_at"] is None) for key in listed] == [("deploy", True), ("deploy", False)]


async def test_a_disabled_one_is_refused_until_it_is_enabled_and_a_deleted_one_for_good(api: Api) -> None:
    deploy = await account(api)
    _, headers = await key_of(api, deploy)
    for disabled, status in ((True, 401), (False, 200)):
        changed = await api.call("PATCH", f"/service-accounts/{deploy['id']}", {"disabled": disabled})
        assert changed.json()["disabled"] is disabled
        assert (await api.call("GET", "/runs", headers=headers)).status_code == status
    assert (await api.call("DELETE", f"/service-accounts/{deploy['id']}")).status_code == 204
    assert (await api.call("GET", "/runs", headers=headers)).status_code == 401
    assert (await api.call("GET", f"/service-accounts/{deploy['id']}")).status_code == 404
    assert (await account(api))["id"] != deploy["id"], "the name is free again"


async def test_it_cannot_log_in(api: Api) -> None:
    deploy = await account(api, role="admin")
    _, headers = await key_of(api, deploy)
    refused = await api.call("POST", "/login-links", headers=headers)
    assert refused.status_code == 403
    assert "cannot log in" in refused.text
    assert await api.db.read(logins.account_by_email, "", "service:deploy") is None
    link = await api.db.tx(logins.make_link, api.org_id, deploy["id"], None, api.clock.now())
    assert await api.db.read(logins.user_of_link, link.token, api.clock.now()) is None
    password = {"current_password": "x", "new_password": "correct horse"}
    assert (await api.call("POST", "/users/me/$password", password, headers=headers)).status_code == 409
    assert (await api.call("PATCH", f"/users/{deploy['id']}", {"password": "correct horse"})).status_code == 404


async def test_a_key_for_it_is_no_stronger_than_the_key_that_creates_it(api: Api) -> None:
    root = await account(api, "root", "admin")
    made = await api.call(
        "POST", "/api-keys", {"name": "n", "role": "admin", "scopes": ["api-keys", "service-accounts"]}
    )
    narrow = {"authorization": f"Bearer {made.json()['key']}"}
    body = {"name": "k", "role": "admin", "user_id": root["id"]}
    assert (await api.call("POST", "/api-keys", body, headers=narrow)).status_code == 403
    assert (await api.call("POST", "/api-keys", {**body, "scopes": ["users"]}, headers=narrow)).status_code == 403
    grown = {"name": "grown", "role": "admin"}
    assert (await api.call("POST", "/service-accounts", grown, headers=narrow)).status_code == 403
    path = f"/service-accounts/{root['id']}"
    changes: list[dict[str, object]] = [{"role": "admin"}, {"scopes": []}, {"disabled": False}]
    for change in changes:
        assert (await api.call("PATCH", path, change, headers=narrow)).status_code == 403
    user = await api.call("POST", "/users", {"email": "a@b.c", "password": "correct horse", "role": "admin"})
    person = {**body, "user_id": user.json()["id"]}
    assert (await api.call("POST", "/api-keys", person)).status_code == 404, "keys for other people cannot be made"


async def test_names_are_unique_and_other_orgs_do_not_see_them(api: Api) -> None:
    deploy = await account(api)
    assert (await api.call("POST", "/service-accounts", {"name": "deploy", "role": "viewer"})).status_code == 409
    other = await account(api, "other")
    renamed = await api.call("PATCH", f"/service-accounts/{other['id']}", {"name": "deploy"})
    assert renamed.status_code == 409
    assert "deploy" in renamed.json()["detail"]
    acme = (await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).json()["admin_key"]
    headers = {"authorization": f"Bearer {acme}"}
    for method, body in (("GET", None), ("PATCH", {"role": "viewer"}), ("DELETE", None)):
        answer = await api.call(method, f"/service-accounts/{deploy['id']}", body, headers=headers)
        assert answer.status_code == 404
    theirs = {"name": "k", "role": "admin", "user_id": deploy["id"]}
    assert (await api.call("POST", "/api-keys", theirs, headers=headers)).status_code == 404
    assert (await api.call("GET", "/service-accounts", headers=headers)).json()["items"] == []
