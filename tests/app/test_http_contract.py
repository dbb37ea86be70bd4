"""HTTP contract of the API for every resource: authentication, bodies, errors, lists, ETag, OpenAPI."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from rota.access.store import accounts
from rota.core.errors import DataRefused, Unavailable
from rota.db import paging
from rota.frame.http.limits import MAX_BODY_BYTES
from tests.app.harness import NINE, Api

CREATE = {"name": "nightly", "target": "hello", "cron_expression": "0 12 * * *"}


def problem(answer: httpx.Response, status: int, code: str) -> Any:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (body["status"], body["code"]) == (status, code)
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer rota_wrong"}, {"x-api-key": "é"}, {"authorization": "Basic eA=="}]
)
async def test_an_unknown_caller_gets_401(api: Api, headers: dict[str, str]) -> None:
    api.client.headers.pop("authorization")
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    answer = await api.client.get("/api/v1/schedules", headers=raw)
    problem(answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_key_may_come_in_either_header(api: Api) -> None:
    api.client.headers.pop("authorization")
    assert (await api.client.get("/api/v1/runs", headers={"x-api-key": api.key})).status_code == 200
    assert (await api.client.get("/api/v1/runs", headers={"authorization": f"bearer {api.key}"})).status_code == 200


async def test_some_paths_are_open(api: Api) -> None:
    api.client.headers.pop("authorization")
    for path in ("/health/live", "/openapi.json", "/docs"):
        assert (await api.client.get(path)).status_code == 200, path
    assert (await api.client.get("/health/ready")).json()["problems"] == ["no_worker"]


async def test_a_role_may_do_what_it_may(api: Api) -> None:
    await api.schedule("nightly")
    calls: dict[str, list[Any]] = {
        "viewer": [("GET", "/schedules", None, 200), ("POST", "/schedules/nightly/$run", {}, 403)],
        "operator": [
            ("POST", "/schedules/nightly/$run", {}, 202),
            ("POST", "/tasks", {"name": "x", "command": "x"}, 403),
        ],
        "admin": [("POST", "/tasks", {"name": "x", "command": "true"}, 201)],
    }
    for role, expected in calls.items():
        key = await api.db.tx(accounts.create_key, api.org_id, role, role, NINE)
        for method, path, body, status in expected:
            answer = await api.call(method, path, body, headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == status, (role, method, path)


async def test_the_key_is_not_stored(api: Api) -> None:
    stored = await api.db.read(lambda tx: [list(row) for row in tx.exec_driver_sql("SELECT * FROM api_keys")])
    assert api.key not in str(stored)
    assert api.key[12:] not in str(stored)


async def test_only_the_first_start_makes_an_org_and_a_key(api: Api) -> None:
    assert await api.db.tx(accounts.ensure_default_org, NINE) == (api.org_id, None)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""])
async def test_a_body_that_is_not_json_gets_415(api: Api, kind: str) -> None:
    problem(
        await api.call("POST", "/schedules", content=b"{}", headers={"content-type": kind}),
        415,
        "unsupported_media_type",
    )


async def test_a_body_is_read_after_authentication_and_validated_after_the_role(api: Api) -> None:
    key = await api.db.tx(accounts.create_key, api.org_id, "reader", "viewer", NINE)
    for credential, status in ((f"Bearer {key}", 403), ("Bearer rota_wrong", 401)):
        headers = {"authorization": credential}
        assert (await api.call("POST", "/schedules", {"colour": 1}, headers=headers)).status_code == status
    text = {"authorization": "Bearer rota_wrong", "content-type": "text/plain"}
    assert (await api.call("POST", "/schedules", content=b"x", headers=text)).status_code == 401


async def test_json_may_come_with_a_charset(api: Api) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    assert (
        await api.call("POST", "/schedules/$preview", content=b'{"interval": "5m"}', headers=headers)
    ).status_code == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"[]", b"null", b'"text"', b"3", b"{", b'{"a": NaN}', b'{"a": Infinity}', b"\xff", b'{"name": "\\ud800"}',
        b'{"input": ' + b"[" * 200 + b"]" * 200 + b"}", b"[" * 5000, b'{"input":' * 3000,
    ],
)  # fmt: skip
async def test_a_body_that_is_no_json_object_gets_422(api: Api, raw: bytes) -> None:
    answer = await api.call("POST", "/schedules", content=raw, headers={"content-type": "application/json"})
    body = problem(answer, 422, "invalid")
    assert [error["field"] for error in body["errors"]] == ["body"]


async def test_a_body_that_is_too_long_is_not_read(api: Api) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b" " * 1024 * 1024

    headers = {"content-type": "application/json"}
    problem(await api.call("POST", "/schedules", content=endless(), headers=headers), 413, "request_entity_too_large")
    assert read <= 10
    longer = {**headers, "content-length": str(MAX_BODY_BYTES + 1)}
    problem(await api.call("POST", "/schedules", content=b"{}", headers=longer), 413, "request_entity_too_large")


@pytest.mark.parametrize(
    "path",
    ["/schedules", "/runs", "/slots", "/workers", "/tasks", "/schedules/nightly/runs", "/schedules/nightly/slots"],
)
async def test_lists_are_pages(api: Api, path: str) -> None:
    await api.schedule("nightly")
    assert set(await api.get(path)) == {"items", "next_cursor"}
    for limit in ("0", "201", "-1", "x", "1.5", "9" * 40):
        body = problem(await api.call("GET", path, params={"limit": limit}), 422, "invalid")
        assert body["errors"][0]["field"] == "limit"
    body = problem(await api.call("GET", path, params={"lmit": 1}), 422, "invalid")
    assert body["errors"][0]["field"] == "lmit"
    for cursor in (
        "x",
        "WzFd",
        "WyJhIiwiYiIsImMiXQ",
        "é",
        "a" * 2000,
        paging.write_cursor("a\0"),
        paging.write_cursor("x", "y"),
    ):
        answer = await api.call("GET", path, params={"cursor": cursor})
        assert answer.status_code == 422, cursor
        assert answer.json()["errors"][0]["field"] == "cursor"


@pytest.mark.parametrize("value", ["2026-05-04", "yesterday", "2026-05-04T09:00:00", "2026-13-04T09:00:00Z"])
async def test_a_moment_needs_its_offset(api: Api, value: str) -> None:
    for path in ("/runs", "/slots"):
        body = problem(await api.call("GET", path, params={"since": value}), 422, "invalid")
        assert body["errors"][0]["field"] == "since"


@pytest.mark.parametrize("path", ["/schedules/a%00b", "/runs/%00", "/jobs/%00", "/tasks/%00"])
async def test_nul_in_a_path_is_not_found(api: Api, path: str) -> None:
    problem(await api.call("GET", path), 404, "not_found")


@pytest.mark.parametrize("query", ["name=%00", "tag=a%00b", "kind=%00"])
async def test_nul_in_a_query_is_refused(api: Api, query: str) -> None:
    problem(await api.call("GET", f"/schedules?{query}"), 422, "invalid")


async def test_strange_texts_find_nothing(api: Api) -> None:
    for text in ("x" * 1000, "'; DROP TABLE runs; --", "%", "_", "😀", "\u202e"):
        assert (await api.call("GET", f"/schedules/{text}")).status_code == 404
        assert (await api.get("/schedules", name=text))["items"] == []
        assert (await api.get("/runs", job_id=text, target=text, schedule_id=text))["items"] == []


async def test_what_is_not_there_is_a_problem_too(api: Api) -> None:
    problem(await api.call("GET", "/nowhere"), 404, "not_found")
    problem(await api.call("PUT", "/schedules", {}), 405, "method_not_allowed")
    for path in (
        "/schedules/none",
        "/runs/none",
        "/jobs/none",
        "/tasks/none",
        "/runs/none/logs",
        "/schedules/none/slots",
    ):
        problem(await api.call("GET", path), 404, "not_found")
    for path in ("/schedules/none/$run", "/runs/none/$cancel", "/runs/none/$retry", "/jobs/none/$cancel"):
        problem(await api.call("POST", path), 404, "not_found")


async def test_a_request_keeps_the_id_it_came_with(api: Api) -> None:
    assert (await api.call("GET", "/runs", headers={"x-request-id": "abc-1"})).headers["x-request-id"] == "abc-1"
    assert (await api.call("GET", "/runs", headers={"x-request-id": "<b>"})).headers["x-request-id"] != "<b>"


async def test_an_unexpected_error_reveals_nothing(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("the secret is out")

    monkeypatch.setattr(api.engine, "create_schedules", broken)
    body = problem(await api.call("POST", "/schedules", CREATE), 500, "internal")
    assert "secret" not in str(body)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Unavailable("the database is out of reach"), 503, "unavailable"),
        (DataRefused("UNIQUE constraint failed: schedules.name"), 409, "conflict"),
        (DataRefused("value too long"), 500, "internal"),
    ],
)
async def test_database_errors_become_problems(
    api: Api, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(api.engine, "create_schedules", broken)
    answer = await api.call("POST", "/schedules", CREATE)
    problem(answer, status, code)
    assert "constraint" not in answer.text


async def test_the_api_describes_itself(api: Api) -> None:
    paths = (await api.client.get("/openapi.json")).json()["paths"]
    assert "/api/v1/schedules/{key}/$skip-next" in paths
    parameters = paths["/api/v1/runs"]["get"]["parameters"]
    assert {"status", "since", "limit"} <= {parameter["name"] for parameter in parameters}


async def test_every_route_says_what_it_takes_and_gives(api: Api) -> None:
    document = (await api.client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    operations = {
        f"{method.upper()} {path.removeprefix('/api/v1')}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if path.startswith("/api/v1")
    }
    assert len(operations) > 120
    for route, operation in operations.items():
        (status,) = [status for status in operation["responses"] if status.startswith("2")]
        content = operation["responses"][status].get("content", {})
        assert bool(content) == (status != "204"), route
        assert all(media["schema"] for kind, media in content.items() if kind != "*/*"), route
        for media in operation.get("requestBody", {}).get("content", {}).values():
            assert media["schema"]["$ref"], route
            assert "example" in media, route


async def test_concurrent_creations_with_one_name_are_a_conflict(api: Api) -> None:
    answers = await asyncio.gather(*(api.call("POST", "/schedules", CREATE) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 7
    assert await api.count("schedules") == 1


async def test_another_orgs_things_are_not_found(api: Api) -> None:
    await api.schedule("nightly")
    job_id = await api.job()
    (begun,) = await api.start()
    await api.execute(
        "INSERT INTO orgs (id, slug, name, created_at) SELECT 'other', 'other', 'Other', created_at FROM orgs LIMIT 1"
    )
    key = await api.db.tx(accounts.create_key, "other", "theirs", "admin", NINE)
    api.client.headers["authorization"] = f"Bearer {key}"
    api.clock.set(NINE + timedelta(minutes=1))
    for path in (
        "/schedules/nightly",
        f"/jobs/{job_id}",
        f"/runs/{begun.run_id}",
        f"/runs/{begun.run_id}/logs",
        "/tasks/hello",
    ):
        problem(await api.call("GET", path), 404, "not_found")
    for path in ("/schedules", "/runs", "/slots", "/tasks", "/queues"):
        assert (await api.get(path))["items"] == [], path
    problem(await api.call("POST", f"/jobs/{job_id}/$cancel"), 404, "not_found")
