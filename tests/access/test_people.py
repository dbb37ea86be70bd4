"""Orgs, users, keys, their rights, and their entries in the audit log."""

from datetime import timedelta
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher

from rota.access.store import accounts
from rota.core.redact import redacted
from rota.engine import audit_log
from rota.engine.maintenance import Maintenance
from rota.frame.http.guessing import FAILURES_PER_MINUTE, Bucket, FailedAttempts, TooManyFailures
from rota.kinds.tasks.declare import declare
from rota.kinds.tasks.registry import TaskRegistry, task_rows
from rota.user_code.injection import Injector
from tests.app.harness import NINE, Api

ADA = {"email": "Ada@Example.org", "name": "Ada", "password": "correct horse", "role": "operator"}
SHELL_TASK = {"name": "sweep", "command": "curl -H 'Authorization: Bearer s3cret' https://me:pw@x.org"}


async def key_of(api: Api, **fields: Any) -> tuple[str, dict[str, str]]:
    """The id of a new key, and the headers to use it."""
    answer = await api.call("POST", "/api-keys", {"name": "k", "role": "operator", **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"], {"authorization": f"Bearer {answer.json()['key']}"}


async def test_a_key_is_shown_once_and_is_valid_until_it_is_revoked(api: Api) -> None:
    key_id, headers = await key_of(api, role="viewer")
    listed = (await api.get("/api-keys"))["items"]
    assert [key["name"] for key in listed] == ["k", "first admin key"]
    assert headers["authorization"].removeprefix("Bearer ")[12:] not in str(listed)
    assert (await api.call("GET", "/runs", headers=headers)).status_code == 200
    assert (await api.get(f"/api-keys/{key_id}"))["last_used_at"] == NINE.isoformat()
    assert (await api.call("DELETE", f"/api-keys/{key_id}")).status_code == 204
    refused = await api.call("GET", "/runs", headers=headers)
    assert (refused.status_code, refused.json()["detail"]) == (401, "this API key has been revoked")


async def test_a_key_expires(api: Api) -> None:
    _, headers = await key_of(api, expires_at=(NINE + timedelta(hours=1)).isoformat())
    assert (await api.call("GET", "/runs", headers=headers)).status_code == 200
    await api.clock.advance(timedelta(hours=1))
    assert (await api.call("GET", "/runs", headers=headers)).status_code == 401


async def test_last_use_is_written_at_most_once_a_minute(api: Api) -> None:
    key_id, headers = await key_of(api)
    for step, expected in ((0, 0), (59, 0), (1, 60)):
        await api.clock.advance(timedelta(seconds=step))
        await api.call("GET", "/runs", headers=headers)
        used = (await api.get(f"/api-keys/{key_id}"))["last_used_at"]
        assert used == (NINE + timedelta(seconds=expected)).isoformat()


async def test_scopes_narrow_a_role_and_shell_adds_to_an_operators(api: Api) -> None:
    await api.schedule("nightly")
    _, narrow = await key_of(api, scopes=["runs:read", "schedules"])
    for method, path, status in [
        ("GET", "/runs", 200),
        ("POST", "/runs/x/$retry", 403),
        ("POST", "/schedules/nightly/$run", 202),
        ("GET", "/tasks", 403),
    ]:
        assert (await api.call(method, path, headers=narrow)).status_code == status, path
    _, plain = await key_of(api)
    _, shell = await key_of(api, scopes=["shell"])
    assert (await api.call("POST", "/tasks", SHELL_TASK, headers=plain)).status_code == 403
    assert (await api.call("POST", "/tasks", SHELL_TASK, headers=shell)).status_code == 201
    wrong = await api.call("POST", "/api-keys", {"name": "k", "role": "viewer", "scopes": ["everything"]})
    assert wrong.json()["errors"][0]["field"] == "scopes"


async def test_an_org_keeps_an_admins_key(api: Api) -> None:
    made = (await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).json()
    acme = {"authorization": f"Bearer {made['admin_key']}"}
    (first,) = (await api.call("GET", "/api-keys", headers=acme)).json()["items"]
    assert (await api.call("DELETE", f"/api-keys/{first['id']}", headers=acme)).status_code == 409
    assert (await api.call("POST", "/api-keys", {"name": "k", "role": "admin"}, headers=acme)).status_code == 201
    assert (await api.call("DELETE", f"/api-keys/{first['id']}", headers=acme)).status_code == 204


async def test_a_user_is_made_edited_and_taken_away_with_their_keys(api: Api) -> None:
    made = await api.call("POST", "/users", ADA)
    assert made.status_code == 201
    ada = made.json()
    assert (ada["email"], ada["role"], "password" in str(ada)) == ("ada@example.org", "operator", False)
    assert (await api.call("POST", "/users", ADA)).status_code == 409
    stored = await api.db.read(
        lambda tx: [row[0] for row in tx.exec_driver_sql("SELECT password_hash FROM users WHERE email IS NOT NULL")]
    )
    assert PasswordHasher().verify(stored[0], "correct horse")
    key = await api.db.tx(accounts.create_key, api.org_id, "ada's", "operator", NINE, user_id=ada["id"])
    headers = {"authorization": f"Bearer {key}"}
    assert (await api.call("PUT", "/freeze", {}, headers=headers)).status_code == 200
    edited = await api.call("PATCH", f"/users/{ada['id']}", {"role": "viewer", "password": "battery staple"})
    assert edited.json()["role"] == "viewer"
    assert (await api.call("PUT", "/freeze", {}, headers=headers)).status_code == 403  # a key is no more than its user
    assert [user["id"] for user in (await api.get("/users"))["items"]] == [ada["id"]]
    assert (await api.call("DELETE", f"/users/{ada['id']}")).status_code == 204
    assert (await api.call("GET", "/runs", headers=headers)).status_code == 401
    assert (await api.call("GET", f"/users/{ada['id']}")).status_code == 404
    assert (await api.call("POST", "/users", ADA)).status_code == 201


@pytest.mark.parametrize(
    ("field", "value"),
    [("email", "unknown"), ("password", "short"), ("role", "root"), ("name", "a\nb"), ("is_admin", True)],
)
async def test_a_wrong_field_of_a_user_is_named_but_a_password_never(api: Api, field: str, value: Any) -> None:
    answer = await api.call("POST", "/users", {**ADA, field: value})
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert "short" not in answer.text


async def test_an_org_is_made_with_the_first_key_and_is_alone(api: Api) -> None:
    made = await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})
    assert made.status_code == 201
    theirs = {"authorization": f"Bearer {made.json()['admin_key']}"}
    assert (await api.call("POST", "/orgs", {"name": "Acme", "slug": "acme"})).status_code == 409
    assert (await api.call("POST", "/orgs", {"name": "X", "slug": "x"}, headers=theirs)).status_code == 403
    assert [org["slug"] for org in (await api.get("/orgs"))["items"]] == ["default", "acme"]
    assert [org["slug"] for org in (await api.call("GET", "/orgs", headers=theirs)).json()["items"]] == ["acme"]
    assert (await api.call("GET", "/api-keys", headers=theirs)).json()["items"][0]["user_name"] == "system"
    same = await api.call("POST", "/users", ADA, headers=theirs)  # the same person may be known to two orgs
    assert (same.status_code, (await api.call("POST", "/users", ADA)).status_code) == (201, 201)


async def test_guessing_ends_in_429(api: Api) -> None:
    guess = {"authorization": "Bearer rota_guess"}
    for _ in range(FAILURES_PER_MINUTE):
        assert (await api.call("GET", "/runs", headers=guess)).status_code == 401
    refused = await api.call("GET", "/runs", headers=guess)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_failures")
    assert refused.headers["retry-after"] == "60"
    assert (await api.call("GET", "/runs")).status_code == 200  # a valid key is never limited
    await api.clock.advance(FailedAttempts.WINDOW)
    assert (await api.call("GET", "/runs", headers=guess)).status_code == 401


async def test_a_wrong_key_with_an_idempotency_key_is_one_failure(api: Api) -> None:
    guess = {"authorization": "Bearer rota_guess", "idempotency-key": "once"}
    for _ in range(FAILURES_PER_MINUTE):
        assert (await api.call("POST", "/schedules", {}, headers=guess)).status_code == 401
    assert (await api.call("POST", "/schedules", {}, headers=guess)).status_code == 429


async def test_the_audit_log_forgets_by_age(api: Api) -> None:
    for number in range(3):
        await api.schedule(f"n{number}")
        api.clock.set(NINE + timedelta(days=number + 1))
    kept = api.engine.settings.keep_audit
    await Maintenance(api.engine).prune(NINE + kept)
    assert await api.count("audit_log") == 3
    await Maintenance(api.engine).prune(NINE + kept + timedelta(days=1, hours=1))
    assert [entry["resource_id"] for entry in (await api.get("/audit"))["items"]] == [
        (await api.get("/schedules/n2"))["id"]
    ]
    await api.db.tx(audit_log.prune, NINE + timedelta(days=9), 10)
    assert await api.count("audit_log") == 0


async def test_the_audit_log_is_forgotten_in_small_chunks(api: Api) -> None:
    for number in range(3):
        await api.schedule(f"n{number}")
    later = NINE + timedelta(days=1)
    assert [await api.db.tx(audit_log.prune, later, 2) for _ in range(3)] == [2, 1, 0]


def test_failures_are_counted_by_each_name_and_forgotten() -> None:
    failures = FailedAttempts()
    for second in range(FAILURES_PER_MINUTE):
        failures.add(NINE + timedelta(seconds=second), Bucket("address a"), Bucket(f"prefix {second}"))
    failures.check(NINE, Bucket("address b"), Bucket("prefix 1"))
    with pytest.raises(TooManyFailures) as error:
        failures.check(NINE + timedelta(seconds=30), Bucket("address a"))
    assert error.value.seconds == 30
    failures.MAX_BUCKETS = 5
    failures.add(NINE, Bucket("address c"))
    assert len(failures.seen) == 5


async def test_the_audit_log_records_who_changed_what_from_where(api: Api) -> None:
    await api.schedule("nightly", input={"name": "postgresql://me:s3cret@host/db"})
    headers = {"x-request-id": "req-1"}
    await api.call("PATCH", "/schedules/nightly", {"description": "new"}, headers=headers)
    await api.call("POST", "/tasks", SHELL_TASK)
    job_id = await api.job("nightly")
    items = (await api.get("/audit"))["items"]
    assert [entry["action"] for entry in items] == [
        "schedules.run",
        "tasks.create",
        "schedules.edit",
        "schedules.create",
    ]
    run, task, edit, create = items
    assert (edit["before"], edit["after"]) == ({"description": ""}, {"description": "new"})
    assert (edit["request_id"], edit["address"], edit["key_name"]) == ("req-1", "127.0.0.1", "first admin key")
    assert (create["resource_id"], create["before"]) == (edit["resource_id"], None)
    assert create["after"]["input"] == {"name": "postgresql://me:***@host/db"}
    assert run["after"]["result"] == job_id
    assert "s3cret" not in str(items)
    assert "pw@" not in str(items)
    assert task["after"]["name"] == "sweep"
    page = await api.get("/audit", resource="schedules", limit=2)
    assert [entry["action"] for entry in page["items"]] == ["schedules.run", "schedules.edit"]
    rest = await api.get("/audit", resource="schedules", cursor=page["next_cursor"])
    assert [entry["action"] for entry in rest["items"]] == ["schedules.create"]
    assert (await api.get("/audit", since=(NINE + timedelta(seconds=1)).isoformat()))["items"] == []


async def test_what_was_refused_or_changed_nothing_is_not_in_the_audit_log(api: Api) -> None:
    await api.schedule("nightly")
    before = await api.count("audit_log")
    await api.call("POST", "/schedules/nightly/$resume", {})
    await api.call("PATCH", "/schedules/nightly", {"cron_expression": "nonsense"})
    dry = {"from": "2026-05-01T00:00:00Z", "to": "2026-05-03T00:00:00Z", "dry_run": True}
    assert (await api.call("POST", "/schedules/nightly/$backfill", dry)).json()["count"] == 2
    assert await api.count("audit_log") == before


async def test_declarations_of_code_are_logged_as_system(api: Api) -> None:
    registry = TaskRegistry.of_program()
    registry.register_function("hello", lambda: None)
    registry.register_function("bye", lambda: None)
    rows = task_rows(registry, Injector(), "app")
    body = {"name": "coded", "target": "hello", "cron_expression": "0 1 * * *"}
    for changed in ({}, {}, {"description": "new"}):
        await declare(api.engine, "default", "app.py", rows, [{**body, **changed}])
    await declare(api.engine, "default", "app.py", rows, [])
    items = (await api.get("/audit"))["items"]
    actions = ["schedules.pause", "schedules.edit", "schedules.create", "tasks.declare"]
    assert [entry["action"] for entry in items] == actions
    assert {(entry["user_name"], entry["key_id"]) for entry in items} == {("system", None)}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"password": "x", "keyboard": "y", "monkey": "z"}, {"password": "***", "keyboard": "y", "monkey": "z"}),
        ({"a": [{"x-api-key": 1}], "secret": None}, {"a": [{"x-api-key": "***"}], "secret": None}),
        ("postgresql://me:pw@host/db", "postgresql://me:***@host/db"),
        (
            "curl -H 'Authorization: Bearer abc' -d token=abc&x=1",
            "curl -H 'Authorization: Bearer ***' -d token=***&x=1",
        ),
        (f"key rota_{'a' * 43}", "key rota_***"),
        (5, 5),
    ],
)
def test_secrets_are_redacted(value: Any, shown: Any) -> None:
    assert redacted(value) == shown


async def test_a_service_token_opens_nothing_else(api: Api) -> None:
    api.app.state.service_token = "service-token"
    answer: httpx.Response = await api.call("GET", "/runs", headers={"authorization": "Bearer service-token"})
    assert answer.status_code == 401
